"""What a user's own watermark means over streams with boundaries.

Rules:
1. Streams come with exact boundaries: nothing is late, so there is nothing to wait for. `withWatermark(…, delay)` on
   their time is taken and its delay is not waited for. It keeps its meaning where it is one: as the time within which
   `dropDuplicatesWithinWatermark` looks for duplicates.
2. A watermark on another column would drop rows that lie behind it, differently from run to run, and hold up the
   others: it is refused where it is written. The order is made at the source (`stime=`, `slack=`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic import dataframe as classic

from holdfast.model.errors import UsageError
from holdfast.model.time import duration_text
from holdfast.spark.time_column import DELAY

log = logging.getLogger(__name__)


@dataclass
class _Declared:
    """What the function of a node has said of watermarks so far."""

    node: str
    delays_ms: set[int] = field(default_factory=set)


_inside: ContextVar[_Declared | None] = ContextVar("holdfast_event_time", default=None)
#: Delays that were said not to be waited for. A node is described again whenever it starts or forks; once is enough.
_told: set[tuple[str, str, str]] = set()
#: Spark's own, for whoever sets a watermark on purpose.
spark_watermark = classic.DataFrame.withWatermark
_within_watermark = classic.DataFrame.dropDuplicatesWithinWatermark


@contextlib.contextmanager
def boundaries_instead_of_watermarks(node: str) -> Iterator[None]:
    """While the function of a node describes its query, rules 1 and 2 hold in this thread."""
    # Frames are made by Spark's own methods, at any depth; so the two methods themselves must know.
    classic.DataFrame.withWatermark = _watermark_taken
    classic.DataFrame.dropDuplicatesWithinWatermark = _deduplicated
    token = _inside.set(_Declared(node))
    try:
        yield
    finally:
        _inside.reset(token)


def _watermark_taken(frame: DataFrame, eventTime: str, delayThreshold: str) -> DataFrame:
    declared = _inside.get()
    if declared is None or not frame.isStreaming:
        return spark_watermark(frame, eventTime, delayThreshold)
    if DELAY not in (frame.select(F.col(eventTime)).schema[0].metadata or {}):
        raise UsageError(
            f"node {declared.node}: withWatermark must be on the time of the inputs, `stime` or what it was renamed "
            f"to; got {eventTime!r}; let that column give the order where the stream is filled: "
            f"producer(stime={eventTime!r}, slack=…) or holdfast send --stime {eventTime} --slack …; or, if a function "
            f"of this node computes it (mapInPandas, say), return that frame from a node of its own with "
            f"stime={eventTime!r}, and go on in the next one"
        )
    delay_ms = _delay_ms(frame, eventTime, delayThreshold)
    if delay_ms and (taken := (declared.node, eventTime, delayThreshold)) not in _told:
        _told.add(taken)
        log.warning("node %s: boundaries say when a bucket is complete, so withWatermark(%r, %r) does not wait %s; "
                    "leave it out, unless dropDuplicatesWithinWatermark takes that time from it",
                    declared.node, eventTime, delayThreshold, duration_text(delay_ms * 1000))  # fmt: skip
    declared.delays_ms.add(delay_ms)
    return frame


def _delay_ms(frame: DataFrame, event_time: str, threshold: str) -> int:
    """The delay as Spark reads it; what Spark refuses is refused."""
    marked = spark_watermark(frame.select(F.col(event_time).alias("t")), "t", threshold)
    return int(marked.schema["t"].metadata[DELAY])


def _deduplicated(frame: DataFrame, subset: list[str] | None = None) -> DataFrame:
    declared = _inside.get()
    if declared is None or not frame.isStreaming:
        return _within_watermark(frame, subset)
    if len(declared.delays_ms) != 1:
        raise UsageError(
            f"node {declared.node}: dropDuplicatesWithinWatermark must be told within which time, once; got "
            f"{len(declared.delays_ms) or 'no'} delays; write .withWatermark('stime', '10 minutes') in front of it"
        )
    (delay_ms,) = declared.delays_ms
    for column in frame.schema:
        if DELAY in (column.metadata or {}):
            frame = frame.withMetadata(column.name, {**column.metadata, DELAY: delay_ms})
    return _within_watermark(frame, subset)
