"""Orders with the payments of the same customer at most ten seconds apart, their windows checkpointed as they go."""

import tempfile
from datetime import UTC, datetime, timedelta

import holdfast
from holdfast.operators import continuous, keep_time
from holdfast.spark import flow, session

root, noon = tempfile.mkdtemp(), datetime(2026, 3, 1, 12, tzinfo=UTC)
for name, lag in (("orders", 0), ("payments", 4)):
    stream = holdfast.open(root).create(name, "customer string, amount bigint", bucket="1s")
    with stream.producer(stime="stime") as producer:
        for n in range(5):
            producer.send({"stime": noon + timedelta(seconds=n * 20 + lag), "customer": f"c{n}", "amount": n})

spark = session()
flow(spark, "orders", "payments", root=root).join(
    "orders", "payments", window=keep_time("10s"), by="customer", checkpoint=continuous(),
    take_left={"ordered": "amount"}, take_right={"paid": "amount"},
).write("paid", checkpoint_location=f"{root}/.paid").awaitTermination()  # fmt: skip
for row in holdfast.open(root).open("paid").subscribe().rows():
    print(row.stime, row.values)
spark.stop()
