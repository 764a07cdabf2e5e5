"""Reads a stream whose past is in S3 with a Spark of its own, as a table and as a query, and prints what it got.

python -m tests.spark.archived_job ROOT CHECKPOINT
"""

from __future__ import annotations

import json
import sys

from holdfast.spark import session


def main(root: str, checkpoint: str) -> None:
    spark = session("archived", master="local[2]")
    try:
        frame = spark.read.format("holdfast").option("root", root).load("s")
        table = sorted(row.n for row in frame.select("n").collect())
        stream = spark.readStream.format("holdfast").option("root", root).option("maxRowsPerBatch", 150).load("s")
        query = (
            stream.select("n").writeStream.format("memory").queryName("got").option("checkpointLocation", checkpoint)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        streamed = sorted(row.n for row in spark.sql("select n from got").collect())
        print(json.dumps({"table": table, "streamed": streamed}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
