"""A barrier: the first scan with the first weight, the second with the second, however far one side runs ahead."""

import tempfile

import pyarrow as pa

import holdfast
from holdfast.spark import barrier, read_stream, session

root = tempfile.mkdtemp()
with holdfast.open(root).create("belt", "side string, code string, grams bigint", bucket="1s").producer() as producer:
    producer.send_many([{"side": "scan", "code": f"box {n}"} for n in range(4)])
    producer.send_many([{"side": "scale", "grams": 100 * n} for n in range(3)])
sides = {"scan": pa.schema([("code", pa.string())]), "scale": pa.schema([("grams", pa.int64())])}
result = "stime timestamp, code string, grams bigint"  # The time of the last of them.
boxes = barrier("boxes", sides, schema=result, store=f"log:{root}/.states")  # Tuples on their way are saved there.

spark = session()
query = read_stream(spark, "belt", root=root).transform(boxes).writeStream.format("holdfast").option("root", root)
query.option("create", "true").option("checkpointLocation", f"{root}/.boxes").start("boxes").awaitTermination()
for row in holdfast.open(root).open("boxes").subscribe().rows():
    print(row.values)
spark.stop()
