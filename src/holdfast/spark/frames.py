"""Streams as streaming DataFrames whose watermark follows the boundaries.

A boundary arrives as a row of its own. It must move the watermark and then vanish, whatever filters the user adds.
Spark pushes filters below the watermark, where they would remove the row too early, but not below `observe`; so the
order is watermark, observe, filter (tests/spark/test_frames.py watches that this stays so).

How a frame was read is remembered as long as the frame lives, and not for what Spark's operators make of it. Holdfast's
own operators (`flow_of`) read the streams in their own way and must know that nothing stands in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.model.tuples import TupleType
from holdfast.spark.event_time import spark_watermark, without_delay


@dataclass(frozen=True)
class Reading:
    """How a frame came about: the streams, and the reader's options."""

    streams: tuple[str, ...]
    options: Mapping[str, str]
    only: tuple[str, ...] | None = None
    """Those of the streams whose tuples the frame has, if it has not all of them."""
    whole: DataFrame | None = None
    """What the frame was taken from then."""


_readings: WeakKeyDictionary[DataFrame, Reading] = WeakKeyDictionary()


def reading_of(frame: DataFrame) -> Reading | None:
    """How the frame was read; None if something of Spark's stands between the streams and it."""
    frame = without_delay(frame)
    known = _readings.get(frame)
    return known if known is not None else _loaded(frame)


def part_of(frame: DataFrame, streams: tuple[str, ...], part: DataFrame) -> DataFrame:
    """Remember that `part` is what these streams have brought to `frame`."""
    _readings[part] = replace(_readings[frame], only=streams, whole=frame)
    return part


def _loaded(frame: DataFrame) -> Reading | None:
    """The options of a frame that is nothing but `spark.readStream.format("holdfast").load(…)`."""
    plan = frame._jdf.queryExecution().analyzed() if frame.isStreaming else None
    if plan is None or plan.nodeName() != "StreamingRelationV2" or plan.sourceName() != "holdfast":
        return None
    options = {str(k): str(v) for k, v in plan.extraOptions().asCaseSensitiveMap().items()}
    names = next((v for k, v in options.items() if k.lower() in ("path", "streams")), "")
    kept = {k: v for k, v in options.items() if k.lower() not in ("path", "streams", "boundaries")}
    return Reading(tuple(n.strip() for n in names.split(",") if n.strip()), kept)


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
    given = {k: str(v) for k, v in options.items()}
    if root is not None:
        given["root"] = str(root)
    frame = spark.readStream.format("holdfast").options(boundaries=boundaries, **given).load(",".join(streams))
    marked = spark_watermark(frame, "stime", "0 seconds").observe(
        f"holdfast_{'_'.join(streams)}", F.count(F.lit(1)).alias("rows")
    )
    tuples = marked.filter(F.col("tuple_type") != int(TupleType.BOUNDARY))
    _readings[tuples] = Reading(streams, given)
    return tuples
