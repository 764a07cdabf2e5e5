"""The batches of a query, every one of them, from Spark's listener events: those that Spark's UI is drawn from.

Rules:
1. A query is followed from when somebody first asks for its work; before that nothing is sent to Python, and a query
   nobody asks about pays nothing. What Spark still remembers of its earlier batches (the last 100) is counted as well.
2. Batches come in order and are counted once, by number: one that is told twice, by an event and as what Spark
   remembers, adds nothing, and neither does a trigger that ran none.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.engine import Work
from holdfast.spark.query_events import QueryEvents


class BatchLog:
    """What the batches of one run came to: the last of them, and all together since `before`."""

    def __init__(self, before: Work | None = None) -> None:
        self._lock = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self._work = before or Work()

    def take(self, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self._take(progress)

    def begin(self, query: StreamingQuery) -> None:
        """Rule 1. Events that come meanwhile wait, so that none overtakes an earlier batch."""
        with self._lock:
            for known in query._jsq.recentProgress():
                self._take(json.loads(known.json()))

    def _take(self, progress: Mapping[str, Any]) -> None:
        """Rule 2."""
        again = self._last is not None and progress["batchId"] <= self._last["batchId"]
        if again or "addBatch" not in progress.get("durationMs", ()):
            return
        self._last = progress
        self._work = self._work.with_batch(*work_of(progress))

    def seen(self) -> tuple[Mapping[str, Any] | None, Work]:
        """The last batch as Spark tells it, and the sum of all."""
        with self._lock:
            return self._last, self._work


def work_of(progress: Mapping[str, Any]) -> tuple[float, int, dict[str, float]]:
    """Milliseconds, rows, and milliseconds by part of one batch."""
    parts_ms = {part: float(took_ms) for part, took_ms in progress.get("durationMs", {}).items()}
    # A batch has one row more than its inputs: the boundary that drives the watermark.
    return parts_ms.pop("triggerExecution", 0.0), max(0, int(progress.get("numInputRows") or 0) - 1), parts_ms


class BatchListener(QueryEvents):
    """Tells each log of the batches of its run."""

    def __init__(self) -> None:
        self._runs: dict[str, BatchLog] = {}

    def follow(self, query: StreamingQuery, log: BatchLog) -> None:
        self._runs[str(query.runId)] = log
        log.begin(query)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        if (followed := self._runs.get(progress["runId"])) is not None:
            followed.take(progress)

    def terminated(self, query_id: str, run_id: str) -> None:
        self._runs.pop(run_id, None)


_listeners: WeakKeyDictionary[SparkSession, BatchListener] = WeakKeyDictionary()
_adding = threading.Lock()


def follow(query: StreamingQuery, session: SparkSession, log: BatchLog) -> None:
    """Count the batches of a query of that session from now on. A session tells of its own queries only."""
    with _adding:
        listener = _listeners.get(session)
        if listener is None:
            listener = BatchListener()
            listener.add_to(session)
            _listeners[session] = listener
    listener.follow(query, log)
