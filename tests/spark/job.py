"""A query as a process of its own, to be killed: windows over two streams, written to a third, until the inputs end."""

from __future__ import annotations

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.spark import read_stream, session
from tests.spark.processes import say


def run(spark: SparkSession, root: str, checkpoint: str, output: str, rows: str) -> None:
    frame = read_stream(spark, "a", "b", root=root, boundaries="exact", maxRowsPerBatch=rows, tasks="2")
    counted = frame.groupBy(F.window("stime", "3 seconds"), "key").agg(
        F.count("*").alias("count"), F.sum("value").alias("sum")
    )
    writer = counted.writeStream.format("holdfast").options(root=root, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start(output).awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("checkpoint")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--output", default="out")
    parser.add_argument("--rows", default="400")
    given = parser.parse_args()
    spark = session("holdfast-job", master=given.master, spark_task_maxFailures="8",
                    spark_executor_memory="700m", spark_cores_max="2",
                    spark_executor_extraJavaOptions=os.environ.get("SPARK_SUBMIT_OPTS", ""))  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    say("started")
    run(spark, given.root, given.checkpoint, given.output, given.rows)
    say("finished")
    spark.stop()


if __name__ == "__main__":
    main()
