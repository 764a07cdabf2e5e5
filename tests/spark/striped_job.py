"""A query that writes to stripes, to be killed: `python -m tests.spark.striped_job ROOT CHECKPOINT`."""

from __future__ import annotations

import sys

from holdfast.spark import read_stream, session, to_stripes


def main(root: str, checkpoint: str) -> None:
    spark = session("striped-job", master="local[2,4]")
    frame = read_stream(spark, "a", root=root, maxRowsPerBatch=20).select("stime", "key", "value")
    writer = to_stripes(frame, "out", root=root).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
