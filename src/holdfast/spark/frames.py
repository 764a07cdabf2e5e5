"""Streams as streaming DataFrames whose watermark follows the boundaries.

A boundary arrives as a row of its own. It must move the watermark and then vanish, whatever filters the user adds.
Spark pushes filters below the watermark, where they would remove the row too early, but not below `observe`; so the
order is watermark, observe, filter (tests/spark/test_frames.py watches that this stays so).
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.model.tuples import TupleType


def read_stream(
    spark: SparkSession,
    *streams: str,
    root: str | os.PathLike[str] | None = None,
    boundaries: str = "before",
    **options: str | int,
) -> DataFrame:
    """The tuples of one or several streams, merged in bucket order, with a watermark on `stime`.

    `boundaries="exact"` releases a window that ends at a boundary one batch earlier; use it for windowed aggregation.
    """
    reader = spark.readStream.format("holdfast").option("boundaries", boundaries)
    if root is not None:
        reader = reader.option("root", str(root))
    frame = reader.options(**{k: str(v) for k, v in options.items()}).load(",".join(streams))
    marked = frame.withWatermark("stime", "0 seconds").observe(
        f"holdfast_{'_'.join(streams)}", F.count(F.lit(1)).alias("rows")
    )
    return marked.filter(F.col("tuple_type") != int(TupleType.BOUNDARY))
