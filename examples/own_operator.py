"""An operator of one's own, with a state per shop that a store keeps: every second, or whatever the policy says."""

import tempfile

import holdfast
from holdfast.operators import UserOperator, decode, encode, every
from holdfast.spark import read_stream, session, udop


class Mean(UserOperator):
    total, count = 0.0, 0

    def process(self, row):
        self.total, self.count = self.total + row["amount"], self.count + 1
        return [{"stime": row["stime"], "mean": self.total / self.count}]

    def checkpoint(self):
        return encode([self.total, self.count])

    def restore(self, saved):
        self.total, self.count = decode(saved)


with holdfast.open(root := tempfile.mkdtemp()).create("orders", "shop string, amount double").producer() as producer:
    producer.send_many([{"shop": f"s{n % 3}", "amount": n * 1.5} for n in range(9)])
own = udop("avg", Mean, key="shop", schema="stime timestamp, mean float", checkpoint=every("1s"), store=f"log:{root}.s")
with session() as spark:
    means = read_stream(spark, "orders", root=root).transform(own).writeStream.format("holdfast")
    means.options(root=root, create="true", checkpointLocation=f"{root}/.means").start("means").awaitTermination()
print(sorted(row.values["mean"] for row in holdfast.open(root).open("means").subscribe().rows()))
