"""Orders of three shops, counted by three seconds, into a table of PostgreSQL that is corrected in place."""

import os

from pyspark.sql import functions as F

import holdfast
from holdfast.sinks import postgres

KAFKA = os.environ.get("KAFKA", "kafka:9092")
DATABASE = os.environ.get("DATABASE", "postgresql://shops:shops@postgres/shops")
SHOPS = ["north", "south", "west"]
app = holdfast.App("shops", root="/data/shops")
for shop in SHOPS:
    app.source(shop, holdfast.kafka(KAFKA, topic=shop), schema="item bigint", bucket="1s")
app.sink("sales", postgres(DATABASE, "sales", key=["until"], tentative=True))


@app.node(inputs=SHOPS, output="sales", max_delay="3s", stime="until")
def sales(orders):
    return orders.groupBy(F.window("stime", "3 seconds")).count().selectExpr("window.end AS until", "count AS orders")
