"""`spark.read` and `spark.readStream` with the option `tentative`: the sequence of a subscriber, as rows.

Rules:
1. A streaming query gets what `stream.subscribe(tentative=True)` gives, in the same order: `tuple_type` tells stable
   from tentative tuples, UNDO and REC_DONE are rows of their own. `sequence_plan` says how it is cut into batches.
2. Stable tuples are read by the executors. Tentative ones are read by the planner and travel in the task: the files of
   a branch may vanish at any moment, and a task that is tried again must have the same rows.
3. `spark.read` gives what a subscriber that begins now would hold: the stable prefix, and what is tentative behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.clock import now_us
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, instant_us
from holdfast.model.tuples import STREAM_COLUMN, TupleType
from holdfast.spark.grants import PROCESS, SESSION
from holdfast.spark.source import BATCH_BYTES_DEFAULT, RangeReader, SourceReading, split
from holdfast.stream.acks import acknowledge
from holdfast.stream.disk import Disk
from holdfast.stream.merge import Piece
from holdfast.stream.sequence_plan import Limits, SequenceOffset, SequencePlan, Step, parse_offset

#: The others are about how a node reads its inputs.
_TAKEN = (
    "root", "path", "streams", "start", "end", "startbucket", "endbucket", "maxrowsperbatch", "maxbytesperbatch",
    "tasks", "streamcolumn", "subscriber", "tentative",
)  # fmt: skip
#: The tasks of a batch without rows: Spark wants one.
_NOTHING = split([], 0, 0, 1, None)


class RowsTask(InputPartition):
    """Rows that the planner has read, as an Arrow stream."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self.stream = sink.getvalue().to_pybytes()


class _SequenceReading(SourceReading):
    """What batch and streaming reads share."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        more = sorted({name.lower() for name in given}.difference(_TAKEN))
        if more:
            raise UsageError(f"option tentative goes with {', '.join(_TAKEN[:-1])}; got also {', '.join(more)}")
        streams = self._options.streams
        if len(streams) != 1:
            names = ", ".join(s.name for s in streams)
            raise UsageError(f"option tentative reads one stream: an UNDO is about one; got {names}; read them apart")
        self._stream = streams[0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsTask):
            yield from super().read(partition)
            return
        for batch in pa.ipc.open_stream(partition.stream):
            if self._stream_column:
                batch = batch.append_column(STREAM_COLUMN, pa.repeat(self._sources[0].name, batch.num_rows))
            yield batch

    def _tasks(self, plan: SequencePlan, offset: SequenceOffset) -> list[InputPartition]:
        """The batch that ends at the offset, in order."""
        tasks: list[InputPartition] = []
        for step in offset.steps:
            if step.kind == TupleType.INSERTION:
                tasks += self._stable(plan, step)
            else:
                rows = plan.others(step, offset)
                tasks += [RowsTask(rows)] if rows else []
        return tasks

    def _stable(self, plan: SequencePlan, step: Step) -> list[InputPartition]:
        assert step.last is not None
        pieces = [Piece(0, extent.segment, extent.fields) for extent in plan.stable(step)]
        ends = PROCESS if isinstance(self, DataSourceStreamReader) else SESSION
        return list(self._sent(split(pieces, step.first, step.last, self._tasks_max, None), ends))


class SequenceRangeReader(_SequenceReading, RangeReader):
    """Rule 3."""

    def partitions(self) -> Sequence[InputPartition]:
        plan = SequencePlan(self._stream, end_us=self._end_us if self._end_us < END_OF_TIME_US else None)
        try:
            plan.main.check_present(self._asked_us)
            while (tasks := self._all(plan)) is None:
                pass  # What was tentative is so no more: look again.
            return tasks or _NOTHING
        finally:
            plan.close()

    def _all(self, plan: SequencePlan) -> list[InputPartition] | None:
        """What is there now, in as many batches as it takes; None if some of it was taken back meanwhile."""
        plan.freeze()
        tasks: list[InputPartition] = []
        offset = plan.begin(self._start_us)
        while (after := plan.after(offset)) is not offset:
            if any(step.kind == TupleType.UNDO for step in after.steps):
                return None
            tasks += self._tasks(plan, after)
            offset = after
        return tasks if plan.holds(offset) else None


class SequenceReader(_SequenceReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rule 1."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self._stream.definition.require_replay("a streaming query of Spark that reads it")
        self._plan = SequencePlan(self._stream)
        self._subscriber = self._options.get("subscriber")
        self._rows_max = self._options.integer("maxrowsperbatch")
        self._bytes_max = self._options.integer("maxbytesperbatch", BATCH_BYTES_DEFAULT)
        self._initial: SequenceOffset | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._plan.begin(self._start_us())
        return self._initial.as_json()

    def _start_us(self) -> int:
        start, bucket_us = self._options.get("start", "beginning"), self._bucket_us("startbucket")
        if bucket_us is not None:
            return bucket_us
        if start == "beginning":
            return BEGINNING_US
        return self._plan.main.closed_until_us if start == "live" else instant_us(start or "")

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._rows_max is not None:
            return ReadMaxRows(self._rows_max)
        assert self._bytes_max is not None
        return ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        limits = Limits(
            rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        since = parse_offset(start, self._stream)
        until = self._plan.after(since, limits)
        return start if until is since else until.as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offset = parse_offset(end, self._stream)
        if start == end:  # Spark runs a first batch even if there is nothing new.
            offset = msgspec.structs.replace(offset, steps=())
        self._plan.check_unmended(offset)
        return self._tasks(self._plan, offset) or _NOTHING

    def commit(self, end: dict[str, Any]) -> None:
        if self._subscriber is not None:
            offset = parse_offset(end, self._stream)
            until_us = self._plan.position_of(offset).until_us
            acknowledge(self._stream.folder, self._subscriber, until_us, now_us(), Disk(), offset.position)

    def stop(self) -> None:
        self._plan.close()
