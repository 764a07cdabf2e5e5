"""Your own data in a stream, queried with Spark: the example of the README."""

import tempfile

import holdfast
from holdfast.spark import session

root = tempfile.mkdtemp()
store = holdfast.open(root)
store.create("orders", "customer string, amount double", bucket="1s")
with store.open("orders").producer() as producer:
    for customer, amount in [("ann", 12.5), ("bob", 3.0), ("ann", 7.5)]:
        producer.send({"customer": customer, "amount": amount})
# Leaving the block ended the stream; producer.close(end=False) keeps it open for later.

spark = session()
orders = spark.read.format("holdfast").option("root", root).load("orders")
orders.groupBy("customer").sum("amount").orderBy("customer").show()
spark.stop()
