"""Windows of ten sales per item, which Spark does not have, with their state checkpointed in the log of the results."""

import tempfile

import holdfast
from holdfast.operators import avg, continuous, count, count_window
from holdfast.spark import flow, session

root = tempfile.mkdtemp()
with holdfast.open(root).create("sales", "item string, price double", bucket="1s").producer() as producer:
    producer.send_many([{"item": ("tea", "salt")[n % 2], "price": float(n)} for n in range(40)])

spark = session()
flow(spark, "sales", root=root).aggregate(
    count(), avg("price"), window=count_window(10), by="item", checkpoint=continuous()
).write("averages", checkpoint_location=f"{root}/.averages").awaitTermination()
for row in holdfast.open(root).open("averages").subscribe().rows():
    print(row.stime, row.values)
spark.stop()
