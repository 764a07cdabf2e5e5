"""A query as a process of its own, to be killed: windows over two streams, written to a third, until the inputs end."""

from __future__ import annotations

import argparse
import os

from pyspark.sql import functions as F

from holdfast.spark import read_stream, session


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
    frame = read_stream(spark, "a", "b", root=given.root, boundaries="exact", maxRowsPerBatch=given.rows, tasks="2")
    counted = frame.groupBy(F.window("stime", "3 seconds"), "key").agg(
        F.count("*").alias("count"), F.sum("value").alias("sum")
    )
    writer = counted.writeStream.format("holdfast").options(root=given.root, checkpointLocation=given.checkpoint)
    print("started", flush=True)
    writer.trigger(availableNow=True).start(given.output).awaitTermination()
    print("finished", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
