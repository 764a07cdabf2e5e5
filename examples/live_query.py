"""An ordinary streaming query over two streams, its results a stream again, each batch exactly once."""

import tempfile

from pyspark.sql import functions as F

import holdfast
from holdfast.spark import read_stream, session

root = tempfile.mkdtemp()
for name in ("clicks", "taps"):
    with holdfast.open(root).create(name, "page string, ms bigint", bucket="1s").producer() as producer:
        producer.send_many([{"page": f"/p{n % 3}", "ms": n} for n in range(30)])

spark = session()
pages = read_stream(spark, "clicks", "taps", root=root, boundaries="exact")
slow = pages.groupBy(F.window("stime", "10 seconds"), "page").agg(F.avg("ms").alias("ms"))
query = slow.writeStream.format("holdfast").option("root", root).option("create", "true")
query.option("checkpointLocation", f"{root}/.slow").start("slow_pages").awaitTermination()
for row in holdfast.open(root).open("slow_pages").subscribe().rows():
    print(row.stime, row.values["page"], row.values["ms"])
spark.stop()
