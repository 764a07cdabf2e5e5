"""Each visit with the last two orders of its customer; of the windows, the groups that changed go to a store."""

import tempfile

import pyarrow as pa

import holdfast
from holdfast.operators import Input, groups, keyed_join
from holdfast.spark import read_stream, session, udop

root = tempfile.mkdtemp()
columns = "side string, customer bigint, amount bigint, page string"
with holdfast.open(root).create("shop", columns, bucket="1s").producer() as producer:
    producer.send_many([{"side": "left", "customer": n % 2, "amount": n} for n in range(6)])
    producer.send_many([{"side": "right", "customer": n, "page": f"/p{n}"} for n in range(2)])
orders, visits = (pa.schema([("customer", pa.int64()), c]) for c in (("amount", pa.int64()), ("page", pa.string())))
join = keyed_join(Input(orders, 2), Input(visits, 0), on="customer")
result = "stime timestamp, customer bigint, amount bigint, page string"  # The time of the later of the two.
policy = groups(512, every="1s", exact=True)
pairs = udop("pairs", join, key="customer", schema=result, checkpoint=policy, store=f"log:{root}/.states")

spark = session()
query = read_stream(spark, "shop", root=root).transform(pairs).writeStream.format("holdfast").option("root", root)
query.option("create", "true").option("checkpointLocation", f"{root}/.pairs").start("pairs").awaitTermination()
for row in holdfast.open(root).open("pairs").subscribe().rows():
    print(row.values)
spark.stop()
