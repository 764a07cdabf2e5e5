"""Queries as one process, to be run on a cluster whose executors are killed: an operator of ours, then Spark's."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.windows import count_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import session
from holdfast.spark.flow import flow
from tests.spark import job
from tests.spark.processes import say


def aggregate(spark: SparkSession, root: str, checkpoint: str, output: str) -> None:
    flowing = flow(spark, "a", root=root, partitions=2, maxRowsPerBatch="170")
    flowing = flowing.aggregate(count(), sum_("value"), avg("value"), window=count_window(10), by="key",
                                checkpoint=continuous(period="1s", slow=0))  # fmt: skip
    query = flowing.write(output, checkpoint_location=checkpoint, trigger={"availableNow": True}, bucket="1s")
    query.awaitTermination()


def windows(spark: SparkSession, root: str, checkpoint: str, output: str) -> None:
    job.run(spark, root, checkpoint, output, "700")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--master", required=True)
    given = parser.parse_args()
    spark = session("holdfast-cluster", master=given.master, spark_task_maxFailures="8", spark_executor_memory="700m",
                    spark_executor_extraJavaOptions=os.environ.get("SPARK_SUBMIT_OPTS", ""),
                    spark_cores_max="2")  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    for query in (aggregate, windows):
        name = f"far-{query.__name__}"
        query(spark, given.root, str(given.checkpoints / name), name)
        say(f"{name} done")
    spark.stop()


if __name__ == "__main__":
    main()
