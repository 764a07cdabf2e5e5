"""Monte Carlo on Spark: many points, hundreds of thousands of runs each, summed where they are made.

Rules:
1. A point is a kernel with its settings; each of its shares has its own seed, so results do not depend on how Spark
   places or repeats them.
2. Workers send sums, a row per number of contracts; Spark adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.load.contract_value import Sums

_SCHEMA = "point int, contracts int, runs bigint, overloaded double, overload double, moved double, saved double"


@dataclass(frozen=True, slots=True)
class Point:
    """One curve of a figure: runs the kernel for so many runs with a generator."""

    name: str
    kernel: Callable[[int, np.random.Generator], Sums]


def run_points(spark: SparkSession, points: list[Point], runs: int, shares: int = 8, seed: int = 0) -> dict[str, Sums]:
    """Every point with so many runs, spread over the cluster.

    `kernel` must be a function that Spark can pickle, such as `functools.partial` of one of `contract_value`.
    """
    each = -(-runs // shares)
    kernels = [point.kernel for point in points]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                rng = np.random.default_rng((seed, row["point"], row["share"]))
                yield _rows(row["point"], kernels[row["point"]](row["runs"], rng))

    jobs = [(p, s, min(each, runs - s * each)) for p in range(len(points)) for s in range(shares) if runs > s * each]
    # A task costs more than a share of runs does: as many as keep all cores busy, and no more.
    tasks = 2 * spark.sparkContext.defaultParallelism
    frame = spark.createDataFrame(jobs, "point int, share int, runs int").repartition(tasks)
    added = frame.mapInArrow(work, _SCHEMA).groupBy("point", "contracts").agg(
        *(F.sum(name).alias(name) for name in ("runs", "overloaded", "overload", "moved", "saved"))
    )  # fmt: skip
    rows = added.orderBy("point", "contracts").toPandas()
    found = {}
    for number, point in enumerate(points):
        mine = rows[rows["point"] == number]
        columns = [mine[name].to_numpy() for name in ("overloaded", "overload", "moved", "saved")]
        found[point.name] = Sums(int(mine["runs"].iloc[0]), *columns)
    return found


def _rows(point: int, sums: Sums) -> pa.RecordBatch:
    count = len(sums.moved)
    return pa.RecordBatch.from_pydict({
        "point": pa.array([point] * count, pa.int32()),
        "contracts": pa.array(range(count), pa.int32()),
        "runs": pa.array([sums.runs] * count, pa.int64()),
        "overloaded": sums.overloaded, "overload": sums.overload, "moved": sums.moved, "saved": sums.saved,
    })  # fmt: skip
