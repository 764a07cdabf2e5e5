"""Any streaming source of Spark fills a stream: an ingest query with Holdfast's sink, each batch exactly once.

Rules:
1. The query's checkpoint belongs to the stream. A stream that has batches of a query whose checkpoint is gone is not
   filled again from the beginning: rows would come twice, so it is refused. Nor is one filled from the middle that
   lacks batches which the checkpoint counts as done, as a stream that was deleted does: rows would be missing.
2. The boundary trails the largest stime by the slack. Where silence means that nothing came (`idle`), it follows the
   clock once nothing has come for so long and the query has read all there is.
3. A row that is late, far ahead of the clock, without a time or with a value that no stream may hold goes to the dead
   letters (`ingest_dead_letters`); where there are none, it stops the query.
4. What Spark refuses, and such a row, will be the same at every start. What a batch dies of (a cast, a division by
   zero, a function's error) is told together with the batch: whoever starts it again counts. Everything else may pass.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from holdfast.clock import ArrivalClock, monotonic_us, now_us
from holdfast.inputs.source import DiedOfRows, EngineSource
from holdfast.model.errors import HoldfastError, PeerError, StreamBusy, UnknownStream, UsageError
from holdfast.model.time import closed_until, duration_text, instant_text
from holdfast.spark.failure import cause, is_permanent, sentence
from holdfast.spark.fork import last_commit
from holdfast.spark.ingest_dead_letters import put_aside
from holdfast.spark.node_checkpoint import query_id
from holdfast.spark.session import make_active, with_format
from holdfast.spark.sink import check_batches
from holdfast.stream.filing import file_results
from holdfast.stream.store import StreamStore
from holdfast.stream.waiting import waiting_results

#: How often the query is looked at.
_LOOK_S = 0.2


class SparkInput:
    """Runs the ingest query of one stream."""

    def __init__(
        self,
        source: EngineSource,
        stream: str,
        store: StreamStore,
        home: Path,
        spark: SparkSession,
        bucket_us: int | None,
    ) -> None:
        self._source, self._stream, self._store, self._spark = source, stream, store, spark
        self._bucket_us = bucket_us
        self._checkpoint = home / f"{stream}.checkpoint"
        self._note = home / f"{stream}.put-aside"
        beside = home / f"{stream}.dead-letters.jsonl"
        self._dead_letters = beside if source.dead_letters is True else source.dead_letters
        self._stop = threading.Event()
        self._status: dict[str, Any] = {}
        self._rows, self._batch = 0, -1
        self._data_us = monotonic_us()
        self._clock = ArrivalClock()  # The boundary must not jump with the wall clock (D19).

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> dict[str, Any]:
        return self._status

    def run(self) -> None:
        """Until `stop`, or until the query ends by itself."""
        self._check_checkpoint()
        query: StreamingQuery | None = None
        try:
            query = self._start(self._spark)
            while not self._stop.is_set() and not query.awaitTermination(_LOOK_S):
                self._look(query)
        except PySparkException as error:
            raise self._told(error) from None
        finally:
            if query is not None:
                query.stop()

    def _told(self, error: PySparkException) -> HoldfastError:
        """Rule 4."""
        why = f"the ingest query of stream {self._stream}: {sentence(error)}"
        if is_permanent(error):
            return UsageError(why)
        died_of = cause(error)
        return PeerError(why) if died_of is None else DiedOfRows(why, died_of, last_commit(self._checkpoint) + 1)

    def _check_checkpoint(self) -> None:
        """Rule 1."""
        if self._checkpoint.exists():
            self._check_batches()
            return
        try:
            writer = self._store.open(self._stream).writer(owner="spark:ingest")
        except UnknownStream:
            return
        begun = any(id.startswith("spark-") for id in writer.state.tokens)
        writer.release(now_us())
        if begun:
            raise UsageError(
                f"stream {self._stream} must be filled by the query that began it, whose checkpoint was "
                f"{self._checkpoint}; it is gone, and from its beginning rows would come twice; bring it back, or fill "
                "a new stream"
            )

    def _check_batches(self) -> None:
        last = last_commit(self._checkpoint)
        if last < 0:
            return  # Whatever it had begun comes again.
        tokens: dict[str, int] = {}
        with contextlib.suppress(UnknownStream):
            stream = self._store.open(self._stream)
            with contextlib.closing(stream.reader()) as reader:
                if reader.closed:
                    return  # What came behind its end was left out.
            found = waiting_results(stream)
            if found is None:
                return  # Somebody is just opening it: the sink will look.
            tokens = found.tokens
        check_batches(self._stream, tokens, query_id(self._checkpoint), last, self._checkpoint)

    def _start(self, session: SparkSession) -> StreamingQuery:
        with_format(session)
        make_active(session)
        frame = self._source.function(session)
        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            got = "a frame that is not streaming" if isinstance(frame, DataFrame) else type(frame).__name__
            raise UsageError(
                f"the source of stream {self._stream} must return a streaming frame (spark.readStream…); got {got}"
            )
        options = {
            "root": str(self._store.root), "create": "true", "stime": self._source.stime, "boundary": "data",
            "slack": duration_text(self._source.slack_us), "checkpointLocation": str(self._checkpoint),
            "maxAhead": "none" if self._source.max_ahead_us is None else duration_text(self._source.max_ahead_us),
            "late": self._source.late, "putAside": str(self._note.absolute()),
        }  # fmt: skip
        if self._dead_letters is not None:
            options["deadLetters"] = str(self._dead_letters.absolute())
        if self._bucket_us is not None:
            options["bucket"] = duration_text(self._bucket_us)
        writer = frame.writeStream.format("holdfast").options(**options)
        if self._source.trigger_us is not None:
            writer = writer.trigger(processingTime=f"{max(1, self._source.trigger_us // 1000)} milliseconds")
        return writer.start(self._stream)

    def _look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            # While nothing comes, Spark reports the batch that is to be the next: its rows come under the same number.
            if progress.numInputRows and progress.batchId > self._batch:
                self._batch = progress.batchId
                self._rows += progress.numInputRows
                self._data_us = monotonic_us()
        last, aside = query.lastProgress, put_aside(self._note)
        self._status = {
            "rows": self._rows, "rate": last.inputRowsPerSecond if last is not None else 0.0, "batch": self._batch,
            "doing": query.status["message"], "late": aside.late, "dead": aside.dead,
            "dead_letters": None if self._dead_letters is None else str(self._dead_letters),
        }  # fmt: skip
        idle_us = self._source.idle_us
        quiet = not query.status["isDataAvailable"] and not query.status["isTriggerActive"]
        if idle_us is not None and quiet and monotonic_us() - self._data_us >= idle_us:
            self._follow_clock()

    def _follow_clock(self) -> None:
        """Rule 2. The sink lets go of the log after each batch, and takes it from whoever has it at the next."""
        try:
            stream = self._store.open(self._stream)
            size, boundary_us = stream.definition.bucket_us, self._clock() - self._source.slack_us
            writer = stream.writer(owner="spark:ingest")
        except (UnknownStream, StreamBusy):
            return
        try:
            before_us = writer.state.boundary_us
            if closed_until(boundary_us, size) > before_us:
                filed = file_results([], writer.pending, stream.definition, before_us, boundary_us)
                writer.commit(filed.events, now_us=now_us(), boundary_us=filed.boundary_us,
                              pending=(filed.pending_rows, filed.pending))  # fmt: skip
                self._status["boundary"] = instant_text(filed.boundary_us)
        finally:
            writer.release(now_us())
