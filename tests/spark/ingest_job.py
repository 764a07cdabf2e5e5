"""A process that does nothing but fill two streams from sources of Spark's, to be killed.

python -m tests.spark.ingest_job ROOT FILES
"""

from __future__ import annotations

import sys
import threading

from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.spark import session


def filling(root: str, files: str) -> holdfast.App:
    """Lines of JSON files, and numbers that Spark makes as time goes by."""

    def lines(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("n bigint, ts timestamp").option("maxFilesPerTrigger", "10")
        return reader.json(files)

    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", "100").option("numPartitions", "2").load()

    app = holdfast.App("ingest", root=root)
    app.source("lines", lines, stime="ts", slack="2s", bucket="1s")
    app.source("numbers", numbers, stime="timestamp", slack="1s", bucket="100ms")
    return app


if __name__ == "__main__":
    # It is started and killed: how soon it comes up counts, not how quick it gets.
    spark = session("holdfast-ingest", master="local[2]", spark_driver_memory="512m",
                    spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    with filling(*sys.argv[1:]).start(spark=spark):
        threading.Event().wait()
