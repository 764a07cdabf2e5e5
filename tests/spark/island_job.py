"""Queries of every kind as one process, to be run on a cluster whose workers see neither streams nor checkpoints."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import holdfast
from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.join_kernel import keep_time
from holdfast.operators.windows import count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import flow_of, read_stream, session
from holdfast.spark.checkpoint_place import CHECKPOINTS
from holdfast.spark.flow import Flow, flow
from holdfast.spark.fork import fork_checkpoint, last_commit
from holdfast.spark.hadoop_path import checkpoint_folder
from holdfast.spark.session import make_active
from tests.hadoop import job, node_job
from tests.spark.processes import say

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
    rows = read_stream(spark, "a", root=root, tasks="1").select("stime", F.expr("repeat(key, 3500)").alias("text"))
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


def shared(spark: SparkSession, root: str, base: str, after: int = 1) -> None:
    """Queries whose state Spark keeps, with checkpoints that executors see, and a fork of each while it runs."""
    scheme, rows = base.partition(":")[0], "200"
    made = {f"far-{scheme}-{query}": (query, f"{base}/{query}") for query in job.QUERIES}
    running = [job.start(spark, query, root, at, name, rows=rows) for name, (query, at) in made.items()]

    def fork() -> None:
        make_active(spark)  # Spark looks formats up in the session of the thread.
        for parent, (name, (query, at)) in zip(running, made.items(), strict=True):
            while last_commit(checkpoint_folder(at)) < after and parent.isActive:
                time.sleep(0.1)
            fork_checkpoint(checkpoint_folder(at), checkpoint_folder(f"{at}-fork"))
            forks.append(job.start(spark, query, root, f"{at}-fork", f"{name}-fork", rows=rows))

    forks: list[StreamingQuery] = []
    with ThreadPoolExecutor(1) as pool:
        forking = pool.submit(fork)
        job.tell(running)
        forking.result()
    job.tell(forks)


def counted_by_holdfast(rows: DataFrame) -> Flow:
    """What `node_job.counted` gives."""
    return (
        flow_of(rows)
        .map(parity="k % 2", k="k")
        .aggregate(count().alias("n"), sum_("k").alias("sum"), window=time_window("2s"), by="parity")
    )


def node(spark: SparkSession, root: Path, place: str) -> None:
    """One that forks and corrects: with Spark's windows where these have a place that all see, else with Holdfast's."""
    spark.conf.set(CHECKPOINTS, place)
    inputs = node_job.Inputs(holdfast.open(root))
    app = node_job.application(root, node_job.counted if place else counted_by_holdfast)
    with app.start(spark=spark) as running:
        running.wait_until_stable("120s")
        node_job.cut_and_heal(running)
        inputs.end()
        running.watch()
    say(f"{root.name} counted {inputs.seconds} seconds")


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
    parser.add_argument("--shared", action="append", default=[], help="where checkpoints are that all see")
    parser.add_argument("--settings", type=json.loads, default={}, help="what it takes to reach them")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    spark = session("holdfast-islands", master=given.master, spark_driver_host=given.host,
                    spark_driver_bindAddress=given.host, spark_task_maxFailures="8", spark_executor_memory="700m",
                    spark_executor_extraJavaOptions=os.environ.get("SPARK_SUBMIT_OPTS", ""), spark_cores_max="2",
                    spark_sql_shuffle_partitions="2",
                    **{name.replace(".", "_"): value for name, value in given.settings.items()})  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    run(spark, str(given.root), given.checkpoints, "far-")
    say("queries done")
    say(f"Spark's own state: {refusal(spark, str(given.root), given.checkpoints)}")
    node(spark, given.root.parent / "node", "")
    for base in given.shared:
        node(spark, given.root.parent / f"node-{base.partition(':')[0]}", f"{base}/nodes")
        shared(spark, str(given.root), base)
        say(f"{base.partition(':')[0]} done")
    spark.stop()


if __name__ == "__main__":
    main()
