"""Queries of every kind as one process, to be run on a cluster whose workers see neither streams nor checkpoints."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.join_kernel import keep_time
from holdfast.operators.windows import count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import read_stream, session
from holdfast.spark.flow import flow

ONCE = {"availableNow": True}
EVERY = continuous(period="1s", slow=0)


def direct(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    """An operator that reads the log in its own tasks."""
    windows = flow(spark, "a", root=root, partitions=2, maxRowsPerBatch="100").aggregate(
        count(), sum_("value"), avg("value"), window=count_window(10), by="key", checkpoint=EVERY
    )
    windows.write(name, trigger=ONCE, bucket="1s", **place).awaitTermination()


def plain(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    rows = read_stream(spark, "a", "b", root=root, maxRowsPerBatch="400").filter("value % 3 = 0")
    _write(rows.select("stime", "key", (F.col("value") * 2).alias("twice")), root, place, name)


def large(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    """Results that are too large to go through Spark."""
    rows = read_stream(spark, "a", root=root, tasks="1").select("stime", F.expr("repeat(key, 2000)").alias("text"))
    _write(rows, root, place, name)


def shuffled(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    """Something of Spark's in front, so that rows come through a shuffle."""
    mapped = flow(spark, "a", "b", root=root, partitions=2, maxRowsPerBatch="300").map(key="key", value="value + 1")
    windows = mapped.aggregate(sum_("value"), count(), window=time_window("3s", "1s"), by="key", checkpoint=EVERY)
    windows.write(name, trigger=ONCE, bucket="1s", **place).awaitTermination()


def joined(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    pairs = flow(spark, "a", "b", root=root, partitions=2, maxRowsPerBatch="300").join(
        "a", "b", window=keep_time("500ms"), by="key", take_left={"value_a": "value"}, take_right={"value_b": "value"},
        checkpoint=EVERY,
    )  # fmt: skip
    pairs.write(name, trigger=ONCE, bucket="1s", **place).awaitTermination()


def spark_windows(spark: SparkSession, root: str, place: dict[str, str], name: str) -> None:
    rows = read_stream(spark, "a", root=root, boundaries="exact", maxRowsPerBatch="400")
    counted = rows.groupBy(F.window("stime", "3 seconds"), "key").count()
    _write(counted.select(F.col("window.end").alias("stime"), "key", "count"), root, place, name)


#: Each writes a stream of its own; what it computes is the same wherever it runs.
QUERIES = (direct, plain, large, shuffled, joined)
#: Spark keeps its state itself, in the checkpoint, which executors do not see here.
REFUSED = spark_windows


def run(spark: SparkSession, root: str, checkpoints: Path, prefix: str) -> None:
    for query in QUERIES:
        name = f"{prefix}{query.__name__}"
        query(spark, root, {"checkpoint_location": str(checkpoints / name)}, name)


def refusal(spark: SparkSession, root: str, checkpoints: Path) -> str:
    name = f"far-{REFUSED.__name__}"
    try:
        REFUSED(spark, root, {"checkpoint_location": str(checkpoints / name)}, name)
    except StreamingQueryException as error:
        known = "needs a checkpoint that executors and driver share" in str(error)
        return "refused" if known else str(error)
    return "not refused"


def _write(frame: DataFrame, root: str, place: dict[str, str], name: str) -> None:
    writer = frame.writeStream.format("holdfast").options(
        root=root, checkpointLocation=place["checkpoint_location"], create="true", bucket="1s"
    )
    writer.trigger(availableNow=True).start(name).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--master", required=True)
    parser.add_argument("--host", required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    spark = session("holdfast-islands", master=given.master, spark_driver_host=given.host,
                    spark_driver_bindAddress=given.host, spark_task_maxFailures="8", spark_executor_memory="700m",
                    spark_executor_extraJavaOptions=os.environ.get("SPARK_SUBMIT_OPTS", ""), spark_cores_max="2",
                    spark_sql_shuffle_partitions="2")  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    run(spark, str(given.root), given.checkpoints, "far-")
    print("queries done", flush=True)
    print(f"Spark's own state: {refusal(spark, str(given.root), given.checkpoints)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
