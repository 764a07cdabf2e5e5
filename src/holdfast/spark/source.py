"""`spark.read` and `spark.readStream` over streams.

Rules:
1. A batch is [start, end) of stime over all inputs. Complete buckets never change, so the two numbers in Spark's log
   are all that is needed to read the same batch again, after any crash, on any machine that mounts the folder.
2. The planner (one process per query) looks the events up; executors get their exact places and only read.
3. Tasks are consecutive runs of the merged order, so the concatenation of partitions is the order of rule 2 in `merge`.
4. The BOUNDARY row, if asked for, is the last row of the last task. `before` puts it a millisecond below the boundary,
   because Spark drops a row exactly at the watermark from deduplication and joins; `exact` closes a window that ends
   at the boundary one batch earlier and is right for windowed aggregation.
5. With `step`, batches are the same in every run: one step of stime each. With `timers`, a batch without tuples follows
   each of them, in which Spark calls the timers that the step's boundary has passed, before it sees later tuples.
6. Behind the end of all streams there is such a batch, too. Spark would release the last windows in a batch without
   data of its own, but not if it was stopped just before: then nothing tells it that there is something to do.
7. A query that is started again hears once more of an end that it has read before. Spark keeps one watermark over all
   sources of a query and forgets that of each: where a query joins two `read_stream`s of which one has ended, nothing
   else would ever move it again, and all later results would be kept back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)  # fmt: skip

from holdfast.clock import now_us
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, instant_text, instant_us
from holdfast.spark.archived_segments import archived_places
from holdfast.spark.grants import PROCESS, SESSION, Way, way_for
from holdfast.spark.host_client import bodies_for
from holdfast.spark.idle import IdleWait
from holdfast.spark.options import READ_OPTIONS, Options
from holdfast.spark.pushdown import narrowed
from holdfast.spark.restore import Restore
from holdfast.stream.acks import acknowledge
from holdfast.stream.decision import Decision
from holdfast.stream.disk import Disk
from holdfast.stream.merge import FOREVER_US, Merge, Piece, PieceReader, Source

#: Spark plans and starts a task in some 5 ms; a task of this size takes several times that.
TASK_BYTES = 8 << 20
TASKS_MAX = 32
#: Bounds the memory of a batch when a query starts far behind.
BATCH_BYTES_DEFAULT = 256 << 20
#: Small events are put together until a batch is worth the trip into the JVM.
ROWS_TOGETHER = 16_384


#: Control rows for a stage: for how many partitions, and their times.
Marks = tuple[int, tuple[int, ...]]


class Task(InputPartition):
    """Consecutive pieces of one batch."""

    def __init__(self, pieces: Sequence[Piece], start_us: int, end_us: int, boundary_us: int | None) -> None:
        self.pieces, self.start_us, self.end_us, self.boundary_us = pieces, start_us, end_us, boundary_us
        self.marks: Marks | None = None
        """Partitions, and the times that each of them is told."""
        self.way: Way | None = None


def split(pieces: Sequence[Piece], start_us: int, end_us: int, tasks_max: int, boundary_us: int | None) -> list[Task]:
    """Rule 3: runs of roughly equal bytes, few enough that small batches stay one task."""
    total = sum(p.fields.length for p in pieces)
    count = max(1, min(tasks_max, -(-total // TASK_BYTES)))
    tasks: list[Task] = []
    run: list[Piece] = []
    filled = 0
    for piece in pieces:
        run.append(piece)
        filled += piece.fields.length
        if filled * count >= total * (len(tasks) + 1) and len(tasks) + 1 < count:
            tasks.append(Task(run, start_us, end_us, None))
            run = []
    tasks.append(Task(run, start_us, end_us, boundary_us))
    return tasks


def read_task(task: Task, sources: Sequence[Source], stream_column: bool) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    reader = PieceReader(sources, stream_column=stream_column, bodies=bodies_for(task.way))
    try:
        rows = reader.read(task.pieces, task.start_us, task.end_us)
        yield from together(rows, reader, task.boundary_us, task.marks)
    finally:
        reader.close()


def together(
    batches: Iterator[pa.RecordBatch], reader: PieceReader, boundary_us: int | None, marks: Marks | None = None
) -> Iterator[pa.RecordBatch]:
    """Small batches put together, and the control rows behind them."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows >= ROWS_TOGETHER and not waiting:
            yield batch
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_TOGETHER:
            yield _joined(waiting)
            waiting, rows = [], 0
    if boundary_us is not None:
        waiting.append(reader.boundary(boundary_us))
    if marks is not None:
        waiting.append(reader.marks(*marks))
    if waiting:
        yield _joined(waiting)


def boundary_row(boundaries: str | None, since_us: int, until_us: int) -> int | None:
    """Rule 4: where the BOUNDARY row of a batch stands, if there is one."""
    if boundaries is None or until_us <= since_us:
        return None
    return until_us if boundaries == "exact" or until_us >= FOREVER_US else until_us - 1000


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class SourceReading:
    """What batch and streaming reads share."""

    def __init__(self, given: dict[str, str]) -> None:
        self._options = Options(given, READ_OPTIONS)
        self._merge = Merge(self._options.streams)
        self._sources = self._merge.sources
        self._stream_column = self._options.flag("streamcolumn", len(self._sources) > 1)
        self._tasks_max = self._options.integer("tasks", TASKS_MAX) or TASKS_MAX
        self._way: Way | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get a copy of the reader: they need the sources, not open files.
        return {"_sources": self._sources, "_stream_column": self._stream_column}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_task(partition, self._sources, self._stream_column)

    def _sent(self, tasks: list[Task], ends: str) -> list[Task]:
        """Tasks that know their way to the streams."""
        if self._way is None:
            self._way = way_for([source.folder for source in self._sources], ends)
        for task in tasks:
            task.way = self._way and self._way._replace(archived=archived_places(self._sources, task.pieces))
        return tasks

    def _bucket_us(self, option: str) -> int | None:
        bucket = self._options.integer(option)
        if bucket is None:
            return None
        sizes = set(self._merge.bucket_us)
        if len(sizes) > 1:
            raise UsageError(
                f"option {option} needs streams with equal buckets; got sizes {sorted(sizes)} µs; use times"
            )
        return bucket * sizes.pop()


class RangeReader(SourceReading, DataSourceReader):
    """Past data as a plain DataFrame: complete buckets only, so that the same range gives the same rows for ever."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        start, end = self._bucket_us("startbucket"), self._bucket_us("endbucket")
        if start is None and self._options.get("start") != "beginning":
            start = self._options.instant("start")
        if end is None:
            end = self._options.instant("end")
        self._asked_us = self._start_us = BEGINNING_US if start is None else start
        self._end_us = END_OF_TIME_US if end is None else end

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Comparisons with stime narrow the range; Spark still applies every filter itself."""
        self._start_us, self._end_us = narrowed(filters, self._start_us, self._end_us)
        yield from filters

    def partitions(self) -> Sequence[InputPartition]:
        end = min(self._end_us, self._merge.complete_until_us)
        pieces = self._merge.pieces(self._start_us, end, strict=False)
        # A range that was asked for must be there; a filter takes what there is.
        self._merge.check_present(self._asked_us)
        return self._sent(split(pieces, self._start_us, end, self._tasks_max, None), SESSION)


class BucketReader(SourceReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's inputs, as one source with one offset."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        for stream in self._options.streams:
            stream.definition.require_replay("a streaming query of Spark that reads it")
        self._boundaries = self._options.choice("boundaries", "before", "exact")
        self._subscriber = self._options.get("subscriber")
        self._rows_max = self._options.integer("maxrowsperbatch")
        self._bytes_max = self._options.integer("maxbytesperbatch", BATCH_BYTES_DEFAULT)
        decision, restore = self._options.get("decision"), self._options.get("restore")
        self._decision = None if decision is None else Decision(Path(decision))
        self._marks = self._options.integer("marks")
        self._step_us, self._timers = self._options.integer("step"), self._options.flag("timers", False)
        self._restore = None if restore is None else Restore.of(restore, self._options.store)
        start = self._options.get("start", "beginning")
        self._told_us = None if start in ("beginning", "live") else instant_us(start or "")
        self._initial: int | None = None
        self._last: int | None = None
        self._end_told = False
        self._idle = IdleWait()

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            start = self._options.get("start", "beginning")
            bucket = self._bucket_us("startbucket")
            if bucket is not None:
                self._initial = bucket
            elif start == "beginning":
                self._initial = BEGINNING_US
            elif self._told_us is None:
                self._initial = self._merge.complete_until_us
            else:
                self._initial = self._told_us
        return self._offset(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._rows_max is not None:
            return ReadMaxRows(self._rows_max)
        assert self._bytes_max is not None
        return ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        since = until_of(start)
        self._check_unmended(start)  # Before it waits for somebody who may wait for it.
        settles = self._settles(since) and not settled(start)
        if (decision := self._decision) is not None and not settles:
            self._idle.until(start, lambda: decision.until_us > since)
        if self._last is None:
            self._merge.refresh()
            self._check_unmended(start)
        until = self._last if self._last is not None else self._merge.complete_until_us
        if self._decision is not None:
            until = min(until, self._decision.until_us)
        if settles:
            self._end_told = since >= FOREVER_US
            return {**self._offset(since), **settled_at(since)}
        if self._ends_again(start):
            self._end_told = True
            return {**self._offset(since), **settled_at(since, int(start["settled"]) + 1)}
        if until <= since:
            if until < since:
                self._merge.check_present(since)  # A boundary that was taken back, for instance: do not wait for it.
            return start
        if self._step_us is not None:
            return self._offset(self._merge.step(since, until, self._step_us, begins=since == self._told_us))
        if isinstance(limit, ReadMaxRows):
            until = self._merge.admit(since, until, rows_max=limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            until = self._merge.admit(since, until, bytes_max=limit.max_bytes)
        elif not isinstance(limit, ReadAllAvailable):
            raise UsageError(f"format holdfast reads by maxRowsPerBatch or maxBytesPerBatch; got {limit!r}")
        return self._offset(until)

    def _offset(self, until_us: int) -> dict[str, Any]:
        """With how often the boundaries were taken back, where they were: see `mended`."""
        mends = self._merge.mends
        return {**offset_of(until_us), **({"mends": mends} if mends else {})}

    def _check_unmended(self, offset: dict[str, Any]) -> None:
        self._merge.check_unmended(until_of(offset), mends_of(offset))

    def _settles(self, since: int) -> bool:
        """Rules 5 and 6."""
        return self._timers or (since >= FOREVER_US and self._boundaries is not None and self._marks is None)

    def _ends_again(self, start: dict[str, Any]) -> bool:
        """Rule 7. Hosts read all inputs of a query as one source."""
        return (
            until_of(start) >= FOREVER_US
            and settled(start)
            and self._settles(FOREVER_US)
            and not (self._timers or self._decision is not None or self._end_told)
        )

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._offset(self._merge.complete_until_us)

    def prepareForTriggerAvailableNow(self) -> None:
        self._merge.refresh()
        self._last = self._merge.complete_until_us

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        since, until = until_of(start), until_of(end)
        self._check_unmended(end)  # A batch that is done again.
        if until > since:  # A query that begins anew behind a gap may be ahead of an input that is away.
            self._check_reach(until)
        # A first batch without tuples still has a state at its end, which the next one begins with.
        if self._marks is not None and until > BEGINNING_US:
            return self._marked(self._marks, since, until)
        boundary = boundary_row(self._boundaries, since, until)
        if since >= FOREVER_US and not self._timers and self._boundaries is not None:
            boundary = FOREVER_US  # Rule 7.
        tasks = split(self._merge.pieces(since, until), since, until, self._tasks_max, boundary)
        return self._sent(tasks, PROCESS)

    def _check_reach(self, until: int) -> None:
        if until > self._merge.complete_until_us:
            self._merge.refresh()
            if until > self._merge.complete_until_us:
                raise StorageError(
                    f"the checkpoint says that {', '.join(s.name for s in self._sources)} were read up to "
                    f"{instant_text(until)}, the streams reach only to {instant_text(self._merge.complete_until_us)}; "
                    f"restore the streams, or start with a new checkpoint"
                )

    def _marked(self, partitions: int, since: int, until: int) -> list[Task]:
        """A batch for a stage, with what a stage that lost its state must read again in front of it."""
        again = since
        # Where the query was told to begin there is no state; checkpoints of an earlier beginning are not its own.
        if self._restore is not None and since != self._told_us:
            again = self._restore.again_us(since)
        tasks = split(self._merge.pieces(again, until), again, until, self._tasks_max, None)
        tasks[-1].marks = (partitions, (since, until, again))
        return self._sent(tasks, PROCESS)

    def commit(self, end: dict[str, Any]) -> None:
        if self._subscriber is not None:
            for source in self._sources:
                until = until_of(end)
                if self._restore is not None:
                    until = self._restore.needed_by_now_us(until)
                acknowledge(Path(source.folder), self._subscriber, until, now_us(), Disk())

    def stop(self) -> None:
        self._merge.close()


def offset_of(until_us: int) -> dict[str, int]:
    return {"format": 1, "until_us": until_us}


def settled_at(until_us: int, times: int = 1) -> dict[str, int]:
    """Rules 5 and 7: the position behind the batch without tuples."""
    return {**offset_of(until_us), "settled": times}


def settled(offset: dict[str, Any]) -> bool:
    return until_of(offset) <= BEGINNING_US or bool(offset.get("settled"))


def until_of(offset: dict[str, Any]) -> int:
    if offset.get("format") != 1:
        raise UsageError(f"the checkpoint holds the offset {offset!r} of another version; start with a new checkpoint")
    return int(offset["until_us"])


def mends_of(offset: dict[str, Any]) -> dict[str, int]:
    """How often the boundary of each stream had been taken back; streams that are not named: never."""
    return dict(offset.get("mends") or {})
