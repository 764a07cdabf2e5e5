"""What each task uses, measured from Spark's own progress (003 §7.2.2).

Rules:
1. CPU is the share of time that batches take (`busy`), or rows times what a row costs (`rows`), in cores; bandwidth is
   what the output grows by, in MB/s; memory is what Spark says its state holds, in GiB.
2. CPU is counted per second of input, not of the clock: a task that has just moved makes up for lost time, and would
   else look like an overload, and be sent back.
3. Averages are exponential: a spike shorter than the time constant moves nothing.
4. What has not been watched for long enough is not known yet; whoever needs a number takes the one from the bargain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.protocol.load.usage import Usage
from holdfast.spark.source import until_of
from holdfast.stream.merge import FOREVER_US

#: Shorter follows noise, longer comes too late for a spike. The seeds look every ten seconds at larger loads.
SMOOTHING_S = 4.0
#: Before this the first batches, which compile, would be taken for the rule.
_KNOWN_AFTER_US = 4 * SECOND_US
#: A query without a batch for so long is not between two batches: it does nothing.
_QUIET_S = 20.0


@dataclass(slots=True)
class Reading:
    """What one look at a query has shown."""

    batch_id: int
    busy_ms: float
    rows: int
    state_bytes: int
    span_us: int | None = None
    """How much of the input's time the batch has read; 0 if that says nothing, None if Spark does not say."""


@dataclass(slots=True)
class _Average:
    begun_us: int
    at_us: int
    batch_id: int
    out_bytes: int
    busy: float = 0.0
    rows: float = 0.0
    bytes: float = 0.0
    memory: float = 0.0


class Meter:
    """Averages of all tasks of one host."""

    def __init__(self, measure: Literal["busy", "rows"], us_per_row: float) -> None:
        self._measure, self._us_per_row = measure, us_per_row
        self._tasks: dict[str, _Average] = {}

    def take(self, task_id: str, reading: Reading, out_bytes: int, now_us: int) -> None:
        """One more look; `out_bytes` counts what the output has grown by since it was first looked at."""
        known = self._tasks.get(task_id)
        if known is None or reading.batch_id < known.batch_id:
            self._tasks[task_id] = _Average(now_us, now_us, reading.batch_id, out_bytes)
            return
        dt = (now_us - known.at_us) / SECOND_US
        # Only the last batch is told; those between two looks are taken to be like it.
        batches = reading.batch_id - known.batch_id
        if dt <= 0 or (batches == 0 and dt < _QUIET_S):
            return
        share = 1.0 - math.exp(-dt / SMOOTHING_S)
        if reading.span_us != 0 or batches == 0:
            a_second = batches / dt if reading.span_us is None else bool(batches) * SECOND_US / reading.span_us
            known.busy += share * (reading.busy_ms / 1000 * a_second - known.busy)
            known.rows += share * (reading.rows * a_second - known.rows)
        known.bytes += share * (max(0, out_bytes - known.out_bytes) / dt - known.bytes)
        known.memory = reading.state_bytes / (1 << 30)
        known.at_us, known.batch_id, known.out_bytes = now_us, reading.batch_id, out_bytes

    def forget(self, task_id: str) -> None:
        """It does not run here any more."""
        self._tasks.pop(task_id, None)

    def rows_per_s(self, task_id: str) -> float:
        known = self._tasks.get(task_id)
        return 0.0 if known is None else known.rows

    def usage(self, task_id: str, now_us: int) -> Usage | None:
        """Rule 4."""
        known = self._tasks.get(task_id)
        if known is None or now_us - known.begun_us < _KNOWN_AFTER_US:
            return None
        cpu = known.busy if self._measure == "busy" else known.rows * self._us_per_row / SECOND_US
        return Usage(cpu, known.bytes / 1e6, known.memory)


def read_progress(query: StreamingQuery) -> Reading | None:
    """The last batch of a query; None before the first. Asks the JVM, so not in the loop's thread."""
    progress: Any = query.lastProgress
    if progress is None:
        return None
    # A batch has one row more than its inputs: the boundary that drives the watermark.
    rows = max(0, int(progress["numInputRows"]) - 1)
    state = sum(int(operator["memoryUsedBytes"]) for operator in progress["stateOperators"])
    busy_ms = float(progress["durationMs"].get("triggerExecution", 0))
    return Reading(int(progress["batchId"]), busy_ms, rows, state, _span_us(progress.get("sources", [])))


def _span_us(sources: Sequence[Mapping[str, str]]) -> int | None:
    """The first batch has no beginning, and the last no end: those say nothing. Inputs move on together."""
    spans = []
    for source in sources:
        try:
            begin, end = (until_of(json.loads(source[which])) for which in ("startOffset", "endOffset"))
        except (ValueError, TypeError, KeyError, AttributeError, UsageError):
            return 0 if source.get("startOffset") in (None, "null", "None") else None
        spans.append(max(0, end - begin) if begin > BEGINNING_US and end < FOREVER_US else 0)
    return max(spans, default=None)
