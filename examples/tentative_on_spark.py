"""A Spark query that is given tentative rows at once, and then told to take them back, as any subscriber is."""

import tempfile
import threading

from pyspark.sql.functions import window

import holdfast
from holdfast.spark import session

app, end = holdfast.App("shops", root=tempfile.mkdtemp()), threading.Event()


@app.node(inputs=["east", "west"], output="sales", max_delay="3s")
def sales(orders):
    return orders.groupBy(window("stime", "1 second")).count()


def sell(shop):
    with holdfast.open(app.root).create(shop, "amount bigint", bucket="500ms").producer() as producer:
        while not end.wait(0.1):
            producer.send({"amount": 1})


def tell(frame, number):
    for row in frame.collect():
        print(holdfast.TupleType(row.tuple_type).name, row["count"])
        if row.tuple_type == holdfast.TupleType.REC_DONE:
            end.set()  # Both streams end, and with them the node and this query.


for shop in ("east", "west"):
    threading.Thread(target=sell, args=[shop]).start()
spark = session()
spark.sparkContext.setLogLevel("OFF")
with app.start(spark=spark) as running:
    running.wait_until_stable("2m")
    frame = spark.readStream.format("holdfast").options(root=app.root, tentative="true").load("sales")
    query = frame.writeStream.foreachBatch(tell).option("checkpointLocation", f"{app.root}/.told").start()
    running.fail("west")
    threading.Timer(8, running.heal, ["west"]).start()
    query.awaitTermination()
spark.stop()
