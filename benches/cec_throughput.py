"""Operators with continuous checkpoints, without any, and Spark's own: tuples per second.

The seeds' fast, slow and mixed applications (000 §4.2: average price by item, windows of 1, 1,000 and 10 tuples) beside
`transformWithStateInPandas`, and time windows over 1,000, 100,000 and 1,000,000 keys beside Spark's windowed aggregates
with both of its state stores (RocksDB with changelog checkpoints, and the one in memory), and polars in one process
(`benches.polars_limit`). All read the same streams and write through the same sink, polars by a producer. The first
batch of a query warms it up and is not counted. What a batch costs Spark whatever is in it, about 0.1 s, weighs on
500,000 tuples; so polars is set beside a backlog in batches of two million as well, a third of what is read at a time
unless somebody asks for less.

    python -m benches.cec_throughput [--quick] [--rounds N] [--only time_1000 --only time_100000]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import holdfast
from benches.cec_counts import SEEDS, counts
from benches.cec_workloads import APPLICATIONS, Workload, fill, windows
from benches.polars_limit import limit
from benches.report import console, finish, table
from benches.tws import AVERAGES, CountWindows
from holdfast.operators.functions import avg, count
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import read_stream, session
from holdfast.spark.flow import flow

NOW = {"availableNow": True}
#: Spark's state stores.
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
#: Tuples in a batch of transformWithStateInPandas: what it does in some seconds.
TWS_ROWS = 50_000
#: Tuples in a batch of a backlog: some 90 MB. The default is 256 MB.
BACKLOG_ROWS = 2_000_000


def rate(query: StreamingQuery, w: Workload) -> float:
    """Tuples per second over all batches but the first. An operator that reads for itself shows Spark its results only,
    so the tuples are counted from the workload."""
    query.awaitTermination()
    taken = [p.durationMs["triggerExecution"] for p in query.recentProgress if "addBatch" in p.durationMs][
        1 : w.batches
    ]
    assert len(taken) == w.batches - 1, f"{len(taken)} batches instead of {w.batches - 1}"
    return w.rows * len(taken) / (sum(taken) / 1e3)


#: Workloads that are read as a backlog, too.
BACKLOGS = ("time_1000", "time_100000")


class Rates(NamedTuple):
    """Tuples per second."""

    ours: float
    unprotected: float
    peer: float
    """Spark: with RocksDB, or its own operator of the user's."""
    memory: float | None = None
    """Spark with its state store in memory."""
    polars: float | None = None
    """From log to log."""
    polars_memory: float | None = None

    @property
    def best(self) -> float:
        """Spark's."""
        return max(self.peer, self.memory or 0)


class Bench:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root, self.store = spark, root, holdfast.open(root)
        self._runs = 0

    def _place(self) -> tuple[str, str]:
        self._runs += 1
        return f"out{self._runs}", str(self.root / f".checkpoint{self._runs}")

    def ours(self, w: Workload, checkpointed: bool) -> float:
        out, place = self._place()
        policy = continuous(period="4s") if checkpointed else None
        flowing = flow(self.spark, w.name.replace("_", "-"), root=self.root, maxRowsPerBatch=w.rows)
        flowing = flowing.aggregate(count(), avg("item_price"), window=w.window, by="item_id", checkpoint=policy)
        return rate(flowing.write(out, checkpoint_location=place, trigger=NOW, scratch=self.root / f".scratch{out}"), w)

    def native(self, w: Workload, store: str) -> float:
        out, place = self._place()
        self.spark.conf.set(PROVIDER, store)
        frame = read_stream(self.spark, w.name.replace("_", "-"), root=self.root, boundaries="exact",
                            maxRowsPerBatch=w.rows)  # fmt: skip
        made = frame.groupBy(F.window("stime", "10 seconds"), "item_id").agg(
            F.count("*").alias("count"), F.avg("item_price").alias("avg_item_price")
        )
        return rate(self._start(made, out, place), w)

    def tws(self, w: Workload) -> float:
        out, place = self._place()
        frame = read_stream(self.spark, w.name.replace("_", "-"), root=self.root, boundaries="exact",
                            maxRowsPerBatch=w.rows)  # fmt: skip
        made = frame.select("item_id", "item_price", "stime").groupBy("item_id").transformWithStateInPandas(
            CountWindows(w.window.size), AVERAGES, "Append", "None"
        )  # fmt: skip
        return rate(self._start(made, out, place), w)

    def _start(self, made: Any, out: str, place: str) -> StreamingQuery:
        writer = made.writeStream.format("holdfast").options(
            root=str(self.root), checkpointLocation=place, create="true"
        )
        return writer.trigger(**NOW).start(out)

    def limit(self, w: Workload) -> tuple[float, float]:
        found = limit(self.store, w, self._place()[0])
        return found.log_to_log, found.in_memory

    def turns(self, w: Workload, peers: Sequence[Callable[[], float]], rounds: int, peer_rounds: int) -> list[float]:
        """With checkpoints, without, and the peers: in turns, the order reversed each time, after a run that warms."""
        self.ours(w, True)
        runs = [lambda: self.ours(w, True), lambda: self.ours(w, False), *peers]
        found: list[list[float]] = [[] for _ in runs]
        for n in range(rounds):
            for which in range(len(runs)) if n % 2 else range(len(runs) - 1, -1, -1):
                if which < 2 or n < peer_rounds:
                    found[which].append(runs[which]())
        return [statistics.median(rates) for rates in found]

    def windows(self, w: Workload, rounds: int) -> Rates:
        """Time windows, beside Spark's and polars."""
        stores = [lambda store=store: self.native(w, store) for store in (ROCKS, MEMORY)]
        limits = [self.limit(w) for _ in range(rounds + 1)][1:]  # The first one warms the page cache.
        log, memory = (statistics.median(rates) for rates in zip(*limits, strict=True))
        return Rates(*self.turns(w, stores, rounds, 2), log, memory)

    def backlog(self, w: Workload, rounds: int) -> tuple[float, float]:
        """Ours with checkpoints, and polars from log to log."""
        large = w._replace(name=f"{w.name}_backlog", rows=BACKLOG_ROWS, batches=5)
        fill(self.store, large)
        found = [(self.ours(large, True), self.limit(large)[0]) for _ in range(rounds + 1)][1:]
        ours, limit = (statistics.median(rates) for rates in zip(*found, strict=True))
        return ours, limit

    def counted(self, w: Workload, rounds: int) -> Rates:
        """Count windows, which Spark does not have, beside a user's operator."""
        slower = w._replace(name=f"{w.name}_tws", rows=TWS_ROWS, batches=3)
        fill(self.store, slower)
        return Rates(*self.turns(w, [lambda: self.tws(slower)], rounds, 1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.cec_throughput", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    parser.add_argument("--rounds", type=int, default=0, help="of each query (4)")
    parser.add_argument("--only", action="append", default=[], help="this workload; may be given several times")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        spark = session("bench-cec", spark_driver_memory="4g")
        spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        spark.sparkContext.setLogLevel("OFF")
        bench = Bench(spark, Path(folder).absolute())
        rounds = given.rounds or (1 if given.quick else 4)
        rows, found, backlogs = [], {}, {}
        for w in (*(windows(keys, 500_000, 7) for keys in (1_000, 100_000, 1_000_000)), *APPLICATIONS.values()):
            if given.only and w.name not in given.only:
                continue
            fill(bench.store, w)
            rates = bench.counted(w, rounds) if w.name in APPLICATIONS else bench.windows(w, rounds)
            found[w.name] = rates
            rows.append([w.name, *("" if r is None else round(r) for r in rates), round(rates.ours / rates.best, 2),
                         "" if rates.polars is None else round(rates.ours / rates.polars, 2),
                         round(100 * (1 - rates.ours / rates.unprotected), 1)])  # fmt: skip
            console.print(rows[-1])
            if w.name in BACKLOGS:
                backlogs[w.name] = bench.backlog(w, rounds)
        spark.stop()
    table("tuples per second",
          ["", "with CEC", "without checkpoints", "Spark", "Spark, in memory", "polars, log to log",
           "polars, in memory", "of Spark's best", "of polars", "cost of CEC, %"], rows)  # fmt: skip
    table(f"a backlog in batches of {BACKLOG_ROWS:,}, tuples per second",
          ["", "with CEC", "polars, log to log", "of polars"],
          [[n, round(o), round(p), round(o / p, 2)] for n, (o, p) in backlogs.items()])  # fmt: skip
    records = {}
    if not given.only:
        records = {t: counts(t) for t in SEEDS}
        table("records of the mixed application for T = H, scaled to the seeds' 524,288 windows",
              ["T, ms", "Gopen", "Gcheck", "R", "seeds' Gcheck"],
              [[str(t), *r.values(), SEEDS[t] or "not given"] for t, r in records.items()])  # fmt: skip
    ratios = {n: round(f.ours / f.peer, 2) for n, f in found.items()}
    best = {n: round(f.ours / f.best, 2) for n, f in found.items()}
    limits = {n: round(f.ours / f.polars, 2) for n, f in found.items() if f.polars}
    large = {n: round(ours / limit, 2) for n, (ours, limit) in backlogs.items()}
    tws = [ratios[n] for n in APPLICATIONS if n in ratios]
    costs = {n: round(1 - f.ours / f.unprotected, 3) for n, f in found.items()}
    finish(
        "cec_throughput", ratio_native_1k=ratios.get("time_1000"), ratio_native_100k=ratios.get("time_100000"),
        ratio_native_1m=ratios.get("time_1000000"), ratio_best_1k=best.get("time_1000"),
        ratio_best_100k=best.get("time_100000"), ratio_best_1m=best.get("time_1000000"),
        of_polars_1k=limits.get("time_1000"), of_polars_100k=limits.get("time_100000"),
        of_polars_1k_backlog=large.get("time_1000"), of_polars_100k_backlog=large.get("time_100000"),
        ratio_tws=min(tws, default=None), cec_cost=round(statistics.mean(costs.values()), 3), cec_costs=costs,
        rates={n: [r and round(r) for r in f] for n, f in found.items()},
        gcheck={t: r["GCHECK"] for t, r in records.items()}, gopen={t: r["GOPEN"] for t, r in records.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
