"""An operator of one's own, with a state per customer that a store keeps: every second, or whatever the policy says."""

import tempfile

import holdfast
from holdfast.operators import UserOperator, decode, encode, every
from holdfast.spark import read_stream, session, udop


class Mean(UserOperator):
    total, count = 0.0, 0

    def process(self, row):
        self.total, self.count = self.total + row["amount"], self.count + 1
        return [{"stime": row["stime"], "customer": row["customer"], "mean": self.total / self.count}]

    def checkpoint(self):
        return encode([self.total, self.count])

    def restore(self, saved):
        self.total, self.count = decode(saved)


root = tempfile.mkdtemp()
with holdfast.open(root).create("orders", "customer string, amount double", bucket="1s").producer() as producer:
    producer.send_many([{"customer": f"c{n % 3}", "amount": n * 1.5} for n in range(9)])
columns = "stime timestamp, customer string, mean double"
mean = udop("mean", Mean, key="customer", schema=columns, checkpoint=every("1s"), store=f"log:{root}/.states")

spark = session()
query = read_stream(spark, "orders", root=root).transform(mean).writeStream.format("holdfast").option("root", root)
query.option("create", "true").option("checkpointLocation", f"{root}/.means").start("means").awaitTermination()
print(sorted(row.values["mean"] for row in holdfast.open(root).open("means").subscribe().rows()))
spark.stop()
