"""A table that is kept at what a stream says: each row once, and corrected in place when it was tentative."""

import sqlite3
import tempfile

import holdfast
from holdfast.sinks import run_sink, sqlite

root = tempfile.mkdtemp()
with holdfast.open(root).create("totals", "shop string, total bigint", bucket="1s").producer() as producer:
    for total in (1, 2, 3):
        producer.send_many([{"shop": shop, "total": total} for shop in ("north", "south")])

run_sink(holdfast.open(root).open("totals"), sqlite(f"{root}/shops.db", "shops", key=["shop"], tentative=True))
for shop, total, tentative in sqlite3.connect(f"{root}/shops.db").execute("select shop, total, tentative from shops"):
    print(shop, total, "(may change)" if tentative else "")
