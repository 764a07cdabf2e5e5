"""Plain Spark: three file sources, each with its watermark, united, one windowed count; a trigger every second."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benches.compare.contender import ready, result
from benches.compare.workload import DISORDER_MS, INPUTS, WINDOW_MS


def counted(spark: SparkSession, root: Path) -> DataFrame:
    frames = [
        spark.readStream.schema("ts bigint, key string").json(str(root / name))
        .withColumn("time", F.timestamp_millis("ts")).withWatermark("time", f"{DISORDER_MS} milliseconds")
        for name in INPUTS
    ]  # fmt: skip
    merged = frames[0].unionByName(frames[1]).unionByName(frames[2])
    return merged.groupBy(F.window("time", f"{WINDOW_MS} milliseconds"), "key").count()


def show(batch: DataFrame, _: int) -> None:
    columns: list[Any] = [F.unix_millis("window.start").alias("start"), "key", "count"]
    for row in batch.select(*columns).collect():
        result(row["start"], row["key"], row["count"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--policy", choices=("min", "max"), required=True)
    parser.add_argument("--mode", choices=("append", "update"), default="append")
    given = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.streaming.multipleWatermarkPolicy", given.policy).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    writer = counted(spark, given.root).writeStream.outputMode(given.mode).foreachBatch(show)
    query = writer.trigger(processingTime="1 second").option("checkpointLocation", str(given.root / "spark")).start()
    ready(spark.version)
    query.awaitTermination()


if __name__ == "__main__":
    main()
