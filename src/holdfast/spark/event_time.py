"""What a user's own watermark means over streams with boundaries.

Rules:
1. Streams come with exact boundaries: nothing is late, so there is nothing to wait for. `withWatermark(…, delay)` on
   their time is taken and its delay is not waited for. It keeps its meaning where it is one: as the time within which
   `dropDuplicatesWithinWatermark` looks for duplicates. It goes with the column, as Spark's own does: each side of a
   join has the one that was written for it, and a frame for which none was written has none.
2. A watermark on another column would drop rows that lie behind it, differently from run to run, and hold up the
   others: it is refused where it is written. The order is made at the source (`stime=`, `slack=`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic import dataframe as classic

from holdfast.model.errors import UsageError
from holdfast.model.time import duration_text
from holdfast.spark.plan_tree import each
from holdfast.spark.time_column import DELAY

log = logging.getLogger(__name__)

#: Rule 1: the key in a column's metadata of what the user has said, beside Spark's note of what is waited for.
_WITHIN = "holdfast.withinMs"
#: Names what stands below the projection that puts the note there, so that it is known for no part of what the node
#: computes (`holdfast.spark.plan_identity`).
WITHIN_ALIAS = "holdfast_within"

_inside: ContextVar[str | None] = ContextVar("holdfast_event_time", default=None)
#: Delays that were said not to be waited for. A node is described again whenever it starts or forks; once is enough.
_told: set[tuple[str, str, str]] = set()
#: Frames with a delay, and those of which they were made: the rows are the same.
_marked: WeakKeyDictionary[DataFrame, DataFrame] = WeakKeyDictionary()
#: Spark's own, for whoever sets a watermark on purpose.
spark_watermark = classic.DataFrame.withWatermark
_within_watermark = classic.DataFrame.dropDuplicatesWithinWatermark


@contextlib.contextmanager
def boundaries_instead_of_watermarks(node: str) -> Iterator[None]:
    """While the function of a node describes its query, rules 1 and 2 hold in this thread."""
    # Frames are made by Spark's own methods, at any depth; so the two methods themselves must know.
    classic.DataFrame.withWatermark = _watermark_taken
    classic.DataFrame.dropDuplicatesWithinWatermark = _deduplicated
    token = _inside.set(node)
    try:
        yield
    finally:
        _inside.reset(token)


def without_delay(frame: DataFrame) -> DataFrame:
    """A frame as it was before `withWatermark`."""
    while (before := _marked.get(frame)) is not None:
        frame = before
    return frame


def _watermark_taken(frame: DataFrame, eventTime: str, delayThreshold: str) -> DataFrame:
    node = _inside.get()
    if node is None or not frame.isStreaming:
        return spark_watermark(frame, eventTime, delayThreshold)
    if DELAY not in (frame.select(F.col(eventTime)).schema[0].metadata or {}):
        raise UsageError(
            f"node {node}: withWatermark must be on the time of the inputs, `stime` or what it was renamed "
            f"to; got {eventTime!r}; let that column give the order where the stream is filled: "
            f"producer(stime={eventTime!r}, slack=…) or holdfast send --stime {eventTime} --slack …; or, if a function "
            f"of this node computes it (mapInPandas, say), return that frame from a node of its own with "
            f"stime={eventTime!r}, and go on in the next one"
        )
    delay_ms = _delay_ms(frame, eventTime, delayThreshold)
    if delay_ms and (taken := (node, eventTime, delayThreshold)) not in _told:
        _told.add(taken)
        log.warning("node %s: boundaries say when a bucket is complete, so withWatermark(%r, %r) does not wait %s; "
                    "leave it out, unless dropDuplicatesWithinWatermark takes that time from it",
                    node, eventTime, delayThreshold, duration_text(delay_ms * 1000))  # fmt: skip
    marked = _with_delay(frame, eventTime, delay_ms)
    _marked[marked] = frame
    return marked


def _delay_ms(frame: DataFrame, event_time: str, threshold: str) -> int:
    """The delay as Spark reads it; what Spark refuses is refused."""
    marked = spark_watermark(frame.select(F.col(event_time).alias("t")), "t", threshold)
    return int(marked.schema["t"].metadata[DELAY])


def _with_delay(frame: DataFrame, event_time: str, delay_ms: int) -> DataFrame:
    """The same frame with a note at its time. The column stays the one that it was, as behind Spark's withWatermark:
    `withMetadata` would make another one, and `rows["stime"]` of the frame before would not be found in it."""
    session = frame.sparkSession
    jvm: Any = session._jvm
    wanted = frame.select(F.col(event_time))._jdf.queryExecution().analyzed().output().apply(0).exprId()
    named = frame.alias(WITHIN_ALIAS)._jdf.queryExecution().analyzed()
    columns = []
    for column in each(frame._jdf.queryExecution().analyzed().output()):
        if column.exprId().equals(wanted):
            note = jvm.org.apache.spark.sql.types.MetadataBuilder().withMetadata(column.metadata())
            column = column.withMetadata(note.putLong(_WITHIN, delay_ms).build())
        columns.append(column)
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(columns), named)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, project), session)


def _deduplicated(frame: DataFrame, subset: list[str] | None = None) -> DataFrame:
    node = _inside.get()
    if node is None or not frame.isStreaming:
        return _within_watermark(frame, subset)
    delays_ms = {c.name: c.metadata[_WITHIN] for c in frame.schema if _WITHIN in (c.metadata or {})}
    if not delays_ms:
        raise UsageError(
            f"node {node}: dropDuplicatesWithinWatermark must be told within which time; got a frame without "
            f"withWatermark; write .withWatermark('stime', '10 minutes') in front of it, on this frame itself where "
            f"there are several"
        )
    for column in frame.schema:
        if column.name in delays_ms:
            frame = frame.withMetadata(column.name, {**column.metadata, DELAY: delays_ms[column.name]})
    return _within_watermark(frame, subset)
