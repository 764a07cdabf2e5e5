"""Queries with state of Spark's own, each with its checkpoint elsewhere, as a process of its own that is to be killed.

It says `NAME BATCH` of every batch that a query has committed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from holdfast.spark import read_stream, session
from holdfast.spark.ending import attend
from holdfast.spark.session import with_settings
from tests.spark.processes import say

REACH_S = 0.5
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FOR_OBJECT_STORES = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def windows(spark: SparkSession, root: str, rows: str) -> DataFrame:
    read = read_stream(spark, "a", root=root, boundaries="exact", maxRowsPerBatch=rows)
    counted = read.groupBy(F.window("stime", "1 second"), "key").agg(
        F.count("*").alias("count"), F.sum("value").alias("sum")
    )
    return counted.select(F.col("window.end").alias("stime"), "key", "count", "sum")


def pairs(spark: SparkSession, root: str, rows: str) -> DataFrame:
    """Of two streams, within half a second of each other."""
    left, right = (read_stream(spark, name, root=root, maxRowsPerBatch=rows) for name in "ab")
    near = (
        f"l.key = r.key and r.stime >= l.stime - interval {REACH_S} seconds"
        f" and r.stime <= l.stime + interval {REACH_S} seconds"
    )
    stime = F.greatest("l.stime", "r.stime").alias("stime")
    return (
        left.alias("l")
        .join(right.alias("r"), F.expr(near))
        .select(stime, "l.key", "l.value", F.col("r.value").alias("other"))
    )


QUERIES: dict[str, Callable[[SparkSession, str, str], DataFrame]] = {"windows": windows, "pairs": pairs}


def start(
    spark: SparkSession, query: str, root: str, checkpoint: str, output: str, *, rows: str = "60"
) -> StreamingQuery:
    """With the file manager that fits the place of its checkpoint."""
    if checkpoint.startswith("s3a:"):  # A session of its own: Spark looks at the settings after `start` has returned.
        spark = attend(with_settings(spark, {MANAGER: FOR_OBJECT_STORES}))
    writer = QUERIES[query](spark, root, rows).writeStream.format("holdfast")
    writer = writer.options(root=root, checkpointLocation=checkpoint, create="true", bucket="1s")
    return writer.queryName(output).start(output)


def main() -> None:
    """ROOT, the settings of the session as JSON, and as JSON a list of [query, checkpoint, output]."""
    root, settings, wanted = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    spark = session("holdfast-hadoop-job", master="local[2,4]", **{n.replace(".", "_"): v for n, v in settings.items()})
    spark.sparkContext.setLogLevel("OFF")
    queries = [start(spark, query, root, checkpoint, output) for query, checkpoint, output in wanted]
    tell(queries)


def tell(queries: list[StreamingQuery]) -> None:
    """What they commit, until they have ended."""
    told: dict[str, int] = {}
    while any(query.isActive for query in queries):
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
            # The progress of a batch is told when it is committed; that of a query at rest names the next one.
            done = [progress.batchId for progress in query.recentProgress if "addBatch" in progress.durationMs]
            name = str(query.name)
            if done and done[-1] > told.get(name, -1):
                told[name] = done[-1]
                say(f"{name} {done[-1]}")
        time.sleep(0.1)
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
