"""The n-th order with the n-th bill, however far apart they come: what waits for its partner lies in a store."""

import tempfile
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import holdfast
from holdfast.spark import barrier, read_stream, session

root, noon = tempfile.mkdtemp(), datetime(2026, 3, 1, 12, tzinfo=UTC)
inputs = {"orders": pa.schema({"item": pa.string()}), "bills": pa.schema({"amount": pa.int64()})}
for name, apart in (("orders", 1), ("bills", 3)):
    with holdfast.open(root).create(name, inputs[name], bucket="1s").producer(stime="stime") as producer:
        for n in range(4):
            value = {"item": f"i{n}"} if name == "orders" else {"amount": n * 10}
            producer.send({"stime": noon + timedelta(seconds=n * apart), **value})

gate = barrier("gate", inputs, schema="stime timestamp, item string, amount bigint", side="stream",
               store=f"log:{root}/.states")  # fmt: skip
with session() as spark:
    paired = read_stream(spark, "orders", "bills", root=root).transform(gate).writeStream.format("holdfast")
    paired.options(root=root, create="true", checkpointLocation=f"{root}/.paired").start("paired").awaitTermination()
for row in holdfast.open(root).open("paired").subscribe().rows():
    print(f"{row.stime:%S}", row.values)
