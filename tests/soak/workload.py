"""Two real Spark nodes in a chain, sources that never rest, and failures drawn from a seed.

Rules:
1. `sums` (an operator of the user's, on host a) reads two sources; `counts` (Spark's windows, on host b) reads `sums`
   and a third source.
2. Host a is never killed, so that what grows with time grows there; host b is, with its JVM.
3. What everybody has read is removed, so that disks can stay as they are; the results of `counts` are kept.
4. What is expected comes from Spark without streams: the same rows as a plain table, windows and running totals.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.clock import pause
from holdfast.model.time import SECOND_US
from tests.faults.deployment import Hosts
from tests.faults.trial import Trial
from tests.soak.samples import WHOLE_HEAP

BUCKET = "1s"
SOURCES = ("m1", "m2", "m3")
#: Rows of a source's sends, five a second: usually, and in a burst.
ROWS, BURST_ROWS = 20, 100
#: Small enough that segments are filled and removed all the time: a disk is flat only over many of them.
SEGMENT_BYTES = 1 << 18
APPLICATION = """
import holdfast
from holdfast.operators.udop import UserOperator, decode, encode
from holdfast.spark.keyed import udop
from pyspark.sql import functions as F

app = holdfast.App("soak")


class Running(UserOperator):
    def __init__(self):
        self.total = 0

    def process(self, row):
        self.total += row["bytes"]
        return [{"stime": row["stime"], "source": row["source"], "bytes": row["bytes"], "total": self.total}]

    def checkpoint(self):
        return encode(self.total)

    def restore(self, saved):
        self.total = decode(saved)


running = udop("running", Running, key="source", schema="stime timestamp, source string, bytes bigint, total bigint")


@app.node(inputs=["m1", "m2"], max_delay="5s", keepalive="200ms", retain="acknowledged")
def sums(c):
    return c.transform(running)


@app.node(inputs=["sums", "m3"], max_delay="5s", keepalive="200ms")
def counts(c):
    window = F.window("stime", "2 seconds")
    return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"),
                                           F.max("total").alias("total"))
"""


def deployed(folder: Path) -> Trial:
    """The deployment at work, with a client that wants news and corrections."""
    hosts = Hosts(
        folder, APPLICATION, BUCKET, SOURCES, {"sums": ["a"], "counts": ["b"]}, java=WHOLE_HEAP,
        retention=holdfast.Retention(acknowledged=True), segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip
    columns = "source string, bytes bigint, total bigint"
    hosts.store("a").create("sums", columns, bucket=BUCKET, segment_bytes=SEGMENT_BYTES)
    return Trial(hosts, ("a", "b"), lambda hosts: {"counts": hosts.listen("b", "counts")})


class Faults:
    """Failures one after the other, each healed and waited for."""

    def __init__(self, trial: Trial, seed: int) -> None:
        self._trial, self._random = trial, random.Random(seed)
        self.done: Counter[str] = Counter()
        self.settled_s: list[float] = []
        self._kinds: dict[str, Callable[[], None]] = {
            "cut of a source": self._cut_source,
            "cut between hosts": self._cut_hosts,
            "SIGSTOP of a host": self._stop,
            "kill -9 of a host": self._kill,
            "burst of load": self._burst,
        }

    def one(self) -> None:
        """Draw one, do it, heal it, and wait until all is as before."""
        pause(self._random.randrange(5, 20) * SECOND_US)
        kind = self._random.choice(sorted(self._kinds))
        with self._trial.failure(kind, available=False) as outcome:
            self._kinds[kind]()
        self.done[kind] += 1
        self.settled_s.append((outcome.settled_us - outcome.healed_us) / SECOND_US)

    def _last(self, longest_s: int) -> None:
        pause(self._random.randrange(1, longest_s) * SECOND_US)

    def _cut_source(self) -> None:
        link, reader = self._random.choice([("m1>a", "a"), ("m2>a", "a"), ("m3>b", "b")])
        self._trial.hosts.cut(link, reader)
        self._last(15)
        self._trial.hosts.heal(link, reader)

    def _cut_hosts(self) -> None:
        self._trial.hosts.cut("a-b", "a", "b")
        self._last(15)
        self._trial.hosts.heal("a-b", "a", "b")

    def _stop(self) -> None:
        host = self._random.choice(["a", "b"])
        self._trial.hosts.signal(host, signal.SIGSTOP)
        try:
            self._last(10)
        finally:
            self._trial.hosts.signal(host, signal.SIGCONT)

    def _kill(self) -> None:
        self._trial.hosts.kill("b", with_java=self._random.random() < 0.5)
        self._last(5)
        self._trial.hosts.start("b")

    def _burst(self) -> None:
        for feed in self._trial.hosts.feeds.values():
            feed.rows = BURST_ROWS
        self._last(15)
        for feed in self._trial.hosts.feeds.values():
            feed.rows = ROWS


Result = tuple[int, str, int, int, int | None]


def results(hosts: Hosts) -> list[Result]:
    """All stable results, from the first on: (end of the window in microseconds, source, n, bytes, total)."""
    with hosts.store("b").open("counts").subscribe() as subscriber:
        return [
            (instant(row.stime), row.values["source"], row.values["n"], row.values["bytes"], row.values["total"])
            for batch in subscriber.poll()
            for row in subscriber.rows_of(batch)
        ]


def instant(stime: Any) -> int:
    return round(stime.timestamp() * SECOND_US)


def expected(hosts: Hosts) -> list[Result]:
    """The same from Spark as a batch over what was sent (rule 4)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from holdfast.spark.session import session

    spark = session("expected", spark_sql_shuffle_partitions="2")
    sent = [(name, *send) for name, feed in hosts.feeds.items() for send in feed.sends]
    rows = spark.createDataFrame(sent, "stream string, at bigint, first bigint, count bigint").select(
        "stream", F.timestamp_micros("at").alias("stime"),
        F.explode(F.expr("sequence(first, first + count - 1)")).alias("bytes"),
    ).withColumn("source", F.concat(F.lit("s"), F.col("bytes") % 7))  # fmt: skip
    own = F.when(F.col("stream") != "m3", F.col("bytes"))
    counted = rows.groupBy(F.window("stime", "2 seconds").alias("w"), "source").agg(
        F.count("*").alias("n"), F.sum("bytes").alias("bytes"), F.sum(own).alias("own")
    )
    so_far = F.sum("own").over(Window.partitionBy("source").orderBy("w.end"))
    found = counted.select(
        F.unix_micros("w.end").alias("at"), "source", "n", "bytes", F.when(F.col("own").isNotNull(), so_far)
    ).orderBy("at", "source").collect()  # fmt: skip
    spark.stop()
    return [tuple(row) for row in found]
