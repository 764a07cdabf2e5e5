"""Each order with the last two pages that its customer had visited: a window per customer, its groups in a store."""

import tempfile
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import holdfast
from holdfast.operators import Input, groups, keyed_join
from holdfast.spark import read_stream, session, udop

root, noon = tempfile.mkdtemp(), datetime(2026, 3, 1, 12, tzinfo=UTC)
visits = pa.schema({"customer": pa.string(), "page": pa.string()})
orders = pa.schema({"customer": pa.string(), "amount": pa.int64()})
for name, schema, lag in (("visits", visits, 0), ("orders", orders, 6)):
    with holdfast.open(root).create(name, schema, bucket="1s").producer(stime="stime") as producer:
        for n in range(9):
            row = {"page": f"/p{n}"} if name == "visits" else {"amount": n}
            producer.send({"stime": noon + timedelta(seconds=n + lag), "customer": f"c{n % 2}", **row})

pairs = udop("pairs", keyed_join(Input(visits, 2), Input(orders, 0), on="customer"), key="customer",
             schema="stime timestamp, customer string, page string, amount bigint",
             checkpoint=groups(512, every="1s"), store=f"log:{root}/.states")  # fmt: skip
with session() as spark:
    both = read_stream(spark, "visits", "orders", root=root)
    sided = both.selectExpr("*", "if(stream = 'visits', 'left', 'right') as side").transform(pairs)
    query = sided.writeStream.format("holdfast").options(root=root, create="true", checkpointLocation=f"{root}/.pairs")
    query.start("pairs").awaitTermination()
print(*(f"{row.stime:%S} {row.values}" for row in holdfast.open(root).open("pairs").subscribe().rows()), sep="\n")
