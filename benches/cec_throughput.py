"""Operators with continuous checkpoints, without any, and Spark's own: tuples per second.

The seeds' fast, slow and mixed applications (000 §4.2: average price by item, windows of 1, 1,000 and 10 tuples) beside
`transformWithStateInPandas`, and time windows over 1,000, 100,000 and 1,000,000 keys beside Spark's windowed aggregates
(RocksDB, changelog checkpoints). All read the same streams and write through the same sink. The first batch of a query
warms it up and is not counted.

    python -m benches.cec_throughput [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import holdfast
from benches.cec_counts import SEEDS, counts
from benches.cec_workloads import APPLICATIONS, Workload, fill, windows
from benches.report import console, finish, table
from benches.tws import AVERAGES, CountWindows
from holdfast.operators.functions import avg, count
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import read_stream, session
from holdfast.spark.flow import flow

NOW = {"availableNow": True}
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: Tuples in a batch of transformWithStateInPandas: what it does in some seconds.
TWS_ROWS = 50_000


def rate(query: StreamingQuery, w: Workload) -> float:
    """Tuples per second over all batches but the first. An operator that reads for itself shows Spark its results only,
    so the tuples are counted from the workload."""
    query.awaitTermination()
    taken = [p.durationMs["triggerExecution"] for p in query.recentProgress if "addBatch" in p.durationMs][
        1 : w.batches
    ]
    assert len(taken) == w.batches - 1, f"{len(taken)} batches instead of {w.batches - 1}"
    return w.rows * len(taken) / (sum(taken) / 1e3)


class Rates(NamedTuple):
    """Tuples per second."""

    ours: float
    unprotected: float
    peer: float


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

    def native(self, w: Workload) -> float:
        out, place = self._place()
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

    def turns(self, w: Workload, peer: Callable[[], float], rounds: int, peer_rounds: int) -> Rates:
        """With checkpoints, without, and the peer: in turns, the order reversed each time, after a run that warms."""
        self.ours(w, True)
        runs = [lambda: self.ours(w, True), lambda: self.ours(w, False), peer]
        found: list[list[float]] = [[], [], []]
        for n in range(rounds):
            for which in range(3) if n % 2 else range(2, -1, -1):
                if which < 2 or n < peer_rounds:
                    found[which].append(runs[which]())
        return Rates(*(statistics.median(rates) for rates in found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.cec_throughput", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    parser.add_argument("--only", default="", help="one workload")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        spark = session("bench-cec", spark_sql_streaming_stateStore_providerClass=ROCKS,
                        spark_driver_memory="4g")  # fmt: skip
        spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        spark.sparkContext.setLogLevel("OFF")
        bench = Bench(spark, Path(folder).absolute())
        rounds = 1 if given.quick else 4
        rows, found = [], {}
        for w in (*(windows(keys, 500_000, 7) for keys in (1_000, 100_000, 1_000_000)), *APPLICATIONS.values()):
            if given.only not in w.name:
                continue
            fill(bench.store, w)
            if w.name in APPLICATIONS:
                slower = w._replace(name=f"{w.name}_tws", rows=TWS_ROWS, batches=3)
                fill(bench.store, slower)
                rates = bench.turns(w, lambda slower=slower: bench.tws(slower), rounds, 1)
            else:
                rates = bench.turns(w, lambda w=w: bench.native(w), rounds, 2)
            found[w.name] = rates
            rows.append([w.name, *(round(r) for r in rates), round(rates.ours / rates.peer, 2),
                         round(100 * (1 - rates.ours / rates.unprotected), 1)])  # fmt: skip
            console.print(rows[-1])
        spark.stop()
    table("tuples per second", ["", "with CEC", "without checkpoints", "Spark", "ratio", "cost of CEC, %"], rows)
    records = {}
    if not given.only:
        records = {t: counts(t) for t in SEEDS}
        table("records of the mixed application for T = H, scaled to the seeds' 524,288 windows",
              ["T, ms", "Gopen", "Gcheck", "R", "seeds' Gcheck"],
              [[str(t), *r.values(), SEEDS[t] or "not given"] for t, r in records.items()])  # fmt: skip
    ratios = {n: round(o / p, 2) for n, (o, _, p) in found.items()}
    tws = [ratios[n] for n in APPLICATIONS if n in ratios]
    costs = {n: round(1 - o / u, 3) for n, (o, u, _) in found.items()}
    finish(
        "cec_throughput", ratio_native_1k=ratios.get("time_1000"), ratio_native_100k=ratios.get("time_100000"),
        ratio_native_1m=ratios.get("time_1000000"), ratio_tws=min(tws, default=None),
        cec_cost=round(statistics.mean(costs.values()), 3), cec_costs=costs,
        rates={n: [round(r) for r in f] for n, f in found.items()},
        gcheck={t: r["GCHECK"] for t, r in records.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
