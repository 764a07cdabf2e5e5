"""Bids put in order of price, as far as a window of four lets them be: each leaves when four others have come."""

import tempfile

import holdfast
from holdfast.operators import continuous
from holdfast.spark import flow, session

root = tempfile.mkdtemp()
with holdfast.open(root).create("bids", "price bigint", bucket="1s").producer() as producer:
    producer.send_many([{"price": n * 7 % 12} for n in range(12)])

spark = session()
flow(spark, "bids", root=root).bsort("price", 4, checkpoint=continuous()).write(
    "sorted", checkpoint_location=f"{root}/.sorted"
).awaitTermination()
print([row.values["price"] for row in holdfast.open(root).open("sorted").subscribe().rows()])
spark.stop()
