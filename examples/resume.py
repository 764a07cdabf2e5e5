"""A consumer that stops anywhere and goes on exactly behind the last row that its own database has."""

import sqlite3
import tempfile

import holdfast

stream = holdfast.open(tempfile.mkdtemp()).create("orders", "customer string, amount bigint", bucket="1s")
with stream.producer() as producer:
    producer.send_many([{"customer": f"c{n}", "amount": n} for n in range(10)])

database = sqlite3.connect(":memory:")
database.execute("create table orders (customer text, amount integer, position text)")
for run in (1, 2):
    (position,) = database.execute("select position from orders order by rowid desc limit 1").fetchone() or (None,)
    for number, row in enumerate(stream.subscribe(after=position).rows()):
        if run == 1 and number == 4:
            break  # The first run stops in the middle; the second repeats nothing and leaves nothing out.
        with database:
            database.execute("insert into orders values (?, ?, ?)", (*row.values.values(), row.position))
    print("run", run, "has", database.execute("select count(*), sum(amount) from orders").fetchone())
