"""`df.writeStream.format("holdfast")`: results of a query become a stream, each batch exactly once.

Rules:
1. Executors hand their rows to the driver: small ones inside the commit message, large ones in a staged file below the
   stream's folder, which goes to the driver's host if they do not see that (`stream_host`). Only the driver appends, so
   a task that ran twice, or ran on after the query was stopped, has no effect.
2. A batch is one unit of the log with the token (query id, batch id). The last batch, executed again, adds nothing
   (S2). Which input it stands for is in Spark's own log, which Spark does not sync: it is made durable before the unit.
   Otherwise a power cut could lose it, and the next batch of that number, which takes in more, would be left out. A
   query that goes back further than its last batch has lost its checkpoint, and is told so.
3. The boundary is taken from Spark's own log of the batch (offsets/<batch>), so a repeated batch promises the same: the
   watermark if the query keeps state, the end of the inputs' range if it does not (then it cannot keep rows back).
4. `filing` orders the rows: the stream does not depend on how Spark cut the batches (D9).
5. Of two drivers on one checkpoint, the later one wins and the earlier one fails (L7). Each run of a query notes itself
   in the log with the number after the last run's; a run that finds a later one there gives up.
6. Rows are checked as those of every other intake (`tables`): nobody could read text that is not UTF-8, which Spark's
   casts make, or years beyond 9999. One that does not fit stops the query, and would at every start. An ingest query
   puts rows aside that the stream cannot take (`ingest_dead_letters`), settled by the batch's unit. Its stream has all
   its batches from the first one on: a gap before this one would stay one, as the source is read once.
7. A fork writes to the tentative branch, and only what lies behind the branch's root. Until it has one, it files
   nothing: what would wait for its bucket to be complete is kept in a file, and is the branch's when that begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, EarlyTuple, Fenced, SchemaError, StorageError, UnknownStream, UsageError
from holdfast.model.schema import STIME_TYPE, result_columns, schema_text, type_text
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, MAX_AHEAD, duration_us, early_text
from holdfast.spark import control
from holdfast.spark.grants import RUN, SESSION, way_for
from holdfast.spark.hadoop_path import local_path
from holdfast.spark.host_client import goes_by_folder, stage_results
from holdfast.spark.options import WRITE_OPTIONS, Options
from holdfast.spark.time_column import time_path
from holdfast.spark.wal import batch_boundary, keep_wal
from holdfast.stream.definition import BUCKET_DEFAULT
from holdfast.stream.disk import Disk
from holdfast.stream.filing import file_results
from holdfast.stream.frame import crc32c
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.prepared import refuse_prepared
from holdfast.stream.record import FORGET
from holdfast.stream.store import Stream
from holdfast.stream.tables import check_column
from holdfast.stream.values import STIME_US_MAX
from holdfast.stream.waiting import Waiting, keep_waiting, kept_waiting
from holdfast.stream.writer import LogWriter

if TYPE_CHECKING:
    from holdfast.spark.ingest_dead_letters import IngestDeadLetters

#: Larger results go by file: commit messages pass through the driver's JVM heap.
INLINE_BYTES = 4 << 20
#: Runs of a query whose names the log remembers (rule 5). A driver that slept through more of them has long lost its
#: place: the stream has later batches of the query, and refuses its own.
RUNS_KEPT = 16


@dataclass
class Rows(WriterCommitMessage):
    """One task's rows in the stream's stored schema, as an Arrow IPC stream."""

    query_id: str
    run_id: str
    rows: int
    stime_max_us: int
    inline: bytes = b""
    staged: str = ""
    crc: int = 0
    control: tuple[bytes, ...] = ()
    """Checkpoints of the operator that the rows come from."""
    record: int | None = None
    """See `Target._record`."""


class Target:
    """The stream that a query writes to, and how its rows fit."""

    #: A unit of results lets the stream's boundary go on.
    _promises = True

    def __init__(self, given: dict[str, str], schema: pa.Schema, ends: str = SESSION) -> None:
        self.options = Options(given, WRITE_OPTIONS)
        names = self.options.names("stream")
        if len(names) != 1:
            raise UsageError(f"name the one stream to write to, for example .start('results'); got {names or 'none'}")
        self.stime = time_path(from_arrow_schema(schema), self.options.get("stime"), f"the query of {names[0]}")
        columns = [f for f in result_columns(schema, f"the query of {names[0]}") if f.name != control.COLUMN]
        self._controlled = control.COLUMN in schema.names
        self._late = self.options.choice("late", "refuse", "drop", "lift") or "refuse"
        if self.options.get("putaside") is None and (self._late == "drop" or self.options.get("deadletters")):
            raise UsageError("the options deadLetters and late='drop' need putAside, the file that counts such rows")
        # Of a frame nobody judges the rows: there, as without dead letters, one that does not fit stops the job.
        self._judges = self.options.get("deadletters") is not None and ends == RUN
        self.stream = self._open(names[0], pa.schema(columns))
        self.stream.definition.require_replay("a query of Spark that writes it")
        self._way = way_for((), ends, results=str(self.stream.folder))
        self._checkpoint = local_path(self.options.get("checkpointlocation") or "")
        wanted = self.stream.definition.schema
        if {f.name: type_text(f.type) for f in wanted} != {f.name: type_text(f.type) for f in columns}:
            raise SchemaError(
                f"stream {names[0]} has the columns ({schema_text(wanted)}); the query gives "
                f"({schema_text(pa.schema(columns))}); select and cast to fit"
            )

    def _open(self, name: str, columns: pa.Schema) -> Stream:
        store = self.options.store
        try:
            return store.open(name)
        except UnknownStream as error:
            if not self.options.flag("create", False):
                raise UnknownStream(f"{error}, or let the query create it: .option('create', 'true')") from None
            return store.create(name, columns, exist_ok=True, bucket=self.options.get("bucket") or BUCKET_DEFAULT)

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        stimes = batch.column(self.stime[0])
        for step in self.stime[1:]:
            stimes = stimes.field(step)
        if stimes.null_count and not self._judges:
            raise SchemaError(
                f"stream {self.stream.name}: stime must not be null; got {stimes.null_count} rows without one"
            )
        schema = self.stream.definition.stored
        columns = [stimes.cast(STIME_TYPE), *(batch.column(f.name).cast(f.type) for f in list(schema)[1:])]
        if not self._judges:
            for column, field in zip(columns, schema, strict=True):
                check_column(column, field, self.stream.name)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def take(self, iterator: Iterator[pa.RecordBatch], query_id: str, run_id: str, batch_id: str) -> Rows:
        """Rule 1, in an executor."""
        sink = pa.BufferOutputStream()
        rows, high = 0, BEGINNING_US
        found: list[bytes] = []
        with pa.ipc.new_stream(sink, self.stream.definition.stored) as writer:
            for batch in iterator:
                if self._controlled:
                    batch = self._without_control(batch, found)
                if batch.num_rows:
                    stored = self.stored(batch)
                    writer.write_batch(stored)
                    rows += stored.num_rows
                    high = max(high, _high(stored, STIME_US_MAX))
        record = self._record(batch_id)
        data = bytes(memoryview(sink.getvalue())) if rows else b""
        if len(data) <= INLINE_BYTES:
            return Rows(query_id, run_id, rows, high, inline=data, control=tuple(found), record=record)
        if self._way is None or goes_by_folder(self._way):
            disk = Disk()
            disk.make_dir(self.staging)
            name = f"{query_id}.{batch_id}.{os.urandom(8).hex()}.arrow"
            disk.replace_file(self.staging / name, data)
        else:
            name = stage_results(self._way, query_id, batch_id, data)
        return Rows(query_id, run_id, rows, high, staged=name, crc=crc32c(data), control=tuple(found),
                    record=record)  # fmt: skip

    def _record(self, batch_id: str) -> int | None:
        """The checksum of Spark's own record of the batch, as this executor sees it; None where the query keeps no
        state of Spark's.

        Spark's state stores write into the checkpoint from the executors. Where they do not see that of the driver,
        each has one of its own, and the next batch would begin with the wrong state or none. The driver has written
        the record there just now, with the time: no other folder has it, whatever its path."""
        if self._checkpoint is None or not (self._checkpoint / "state").is_dir():
            return None
        try:
            return crc32c((self._checkpoint / "offsets" / batch_id).read_bytes())
        except OSError:
            raise self._another_checkpoint() from None

    def check_record(self, messages: list[Rows], batch_id: int) -> None:
        """In the driver: the executors saw the record that is here."""
        seen = {m.record for m in messages if m.record is not None}
        if seen and seen != {self._record(str(batch_id))}:
            raise self._another_checkpoint()

    def _another_checkpoint(self) -> UsageError:
        return UsageError(
            f"a query with state of Spark's own needs a checkpoint that executors and driver share; {self._checkpoint} "
            f"is another folder on an executor; put it on HDFS or an object store, or use Holdfast's own operators "
            f"(flow)"
        )

    @staticmethod
    def _without_control(batch: pa.RecordBatch, found: list[bytes]) -> pa.RecordBatch:
        messages = batch.column(control.COLUMN)
        if messages.null_count == batch.num_rows:
            return batch
        found += [m for m in messages.to_pylist() if m is not None]
        return batch.filter(messages.is_null())

    @property
    def staging(self) -> Path:
        return self.stream.folder / "staging"

    def collected(self, messages: list[Rows]) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        for message in messages:
            data = message.inline
            if message.staged:
                data = (self.staging / message.staged).read_bytes()
                if crc32c(data) != message.crc:
                    raise CorruptLog(f"{self.staging / message.staged}: the staged rows do not match their checksum")
            if data:
                found += list(pa.ipc.open_stream(pa.py_buffer(data)))
        return found

    def _wanted(self, messages: list[Rows], begun_us: int) -> list[pa.RecordBatch]:
        """Rule 7: a fork repeats results that main has or will have; a query that lost input begins with wrong ones."""
        first_us = begun_us if self.options.get("branch") is not None else self.options.instant("from")
        batches = self.collected(messages)
        return batches if first_us is None else _since(first_us, batches)

    def _timely(self, batches: list[pa.RecordBatch], before_us: int) -> list[pa.RecordBatch]:
        """A function of the user's may date its results as it likes; what lies below the promise is filed at it.
        Batches of such a query are the same in every run, so this is, too."""
        if self._late != "lift":
            return batches
        lifted = [pc.max_element_wise(b.column(0).cast(pa.int64()), before_us).cast(STIME_TYPE) for b in batches]
        return [b.set_column(0, b.schema.field(0), stimes) for b, stimes in zip(batches, lifted, strict=True)]

    def highest(self, messages: list[Rows]) -> tuple[int, int | None]:
        """The largest stime that the boundary may follow, and beyond which one is too far ahead of the clock: it would
        make all others late (D19). Where there are dead letters, such rows go there."""
        high = max((m.stime_max_us for m in messages), default=BEGINNING_US)
        allowed, now = self.options.get("maxahead") or MAX_AHEAD, now_us()
        if allowed == "none":
            return high, None
        early_us = now + duration_us(allowed)
        if high > early_us:
            if not self._judges:
                raise EarlyTuple(early_text(self.stream.name, high, high - now))
            until_us = min(early_us, STIME_US_MAX)
            high = max((_high(batch, until_us) for batch in self.collected(messages)), default=BEGINNING_US)
        return high, early_us

    @cached_property
    def _dead_letters(self) -> IngestDeadLetters | None:
        """Rule 6."""
        note, letters = self.options.get("putaside"), self.options.get("deadletters")
        if note is None:
            return None
        from holdfast.spark.ingest_dead_letters import IngestDeadLetters  # In the driver alone.

        path = None if letters is None else Path(letters)
        return IngestDeadLetters(self.stream.name, Path(note), path, drop_late=self._late == "drop")

    def discard(self, query_id: str, batch: str) -> None:
        """Remove what the tasks of this batch, and of earlier ones that were killed, have staged."""
        if not self.staging.is_dir():
            return
        for path in self.staging.iterdir():
            # With a point in front: half of a file, of whoever was killed while it wrote.
            owner, number, *_ = [*path.name.removeprefix(".").split("."), "", ""]
            if owner == query_id and number.isdigit() and batch.isdigit() and int(number) <= int(batch):
                Disk().unlink(path)

    def append(
        self,
        messages: list[Rows],
        boundary_us: int,
        query_id: str,
        run_id: str,
        batch_id: int,
        early_us: int | None = None,
    ) -> None:
        """Rules 2 to 7, in the driver. The log is let go after each batch: the next may be another process's."""
        if self._unbranched(messages, boundary_us):
            return
        writer = self._writer(f"spark:{query_id}:{run_id}")
        try:
            self._append(writer, messages, boundary_us, query_id, run_id, batch_id, early_us)
            if self._dead_letters is not None:
                self._dead_letters.append(query_id, batch_id)
        finally:
            writer.release(now_us())

    def _unbranched(self, messages: list[Rows], boundary_us: int) -> bool:
        """Rule 7: whether the batch is one of a fork without a branch, and done."""
        path = self.options.get("waiting")
        known = None if path is None else kept_waiting(Path(path))
        if path is None or known is None:
            return False
        root = self.stream.branch()
        if root is not None and root.id == self.options.get("branch"):
            return False
        before_us = known.boundary_us
        results = _since(before_us, self._timely(self.collected(messages), before_us))
        until_us = END_OF_TIME_US if boundary_us >= FOREVER_US else boundary_us
        filed = file_results(results, known.body, self.stream.definition, before_us, until_us)
        keep_waiting(Path(path), Waiting({}, filed.pending_rows, filed.pending, filed.boundary_us))
        return True

    def _pending(self, writer: LogWriter) -> bytes:
        """What waits in front of this batch. A branch that nobody has written to yet begins with what the fork kept."""
        path = self.options.get("waiting")
        known = None if path is None or writer.state.tokens else kept_waiting(Path(path))
        return writer.pending if known is None else known.since(writer.state.boundary_us)[1]

    def _writer(self, owner: str) -> LogWriter:
        branch = self.options.get("branch")
        if branch is None:
            return self.stream.writer(takeover=True, owner=owner)
        return self.stream.branch_writer(id=branch, takeover=True)

    def _append(
        self,
        writer: LogWriter,
        messages: list[Rows],
        boundary_us: int,
        query_id: str,
        run_id: str,
        batch_id: int,
        early_us: int | None,
    ) -> None:
        known = writer.state.tokens
        runs = self._runs(known, query_id, run_id)
        last, mine = max(runs.values(), default=0), f"run-{query_id}-{run_id}"
        done = known.get(f"spark-{query_id}", -1)
        if done > batch_id and query_id:  # A batch without tasks does not know whose it is.
            raise StorageError(
                f"stream {self.stream.name}: the query executes batch {batch_id}, but the stream has its batch {done} "
                f"already: the checkpoint has gone back; nothing was added; restore the later checkpoint, or start "
                f"with a new one and a new stream"
            )
        if done >= batch_id:
            self._check_again(known, boundary_us, query_id, batch_id)
            return
        refuse_prepared(self.stream.definition, known, writer.state.boundary_us, query_id)
        if query_id and self.options.get("putaside") is not None and not writer.state.closed:
            check_batches(self.stream.name, known, query_id, batch_id - 1, self.options.get("checkpointlocation") or "")
        closed = boundary_us >= FOREVER_US
        before_us = writer.state.boundary_us
        results = self._timely(self._wanted(messages, before_us), before_us)
        if self._dead_letters is not None and not writer.state.closed:  # Nothing is late behind the end of a stream.
            results = self._dead_letters.judge(results, before_us, early_us, query_id, batch_id)
        filed = file_results(
            results, self._pending(writer), self.stream.definition, before_us,
            END_OF_TIME_US if closed else boundary_us,
        )  # fmt: skip
        if writer.state.closed and not filed.events:
            return
        old = {id: FORGET for id, n in runs.items() if n <= last - RUNS_KEPT}
        if self.options.get("from") is not None:  # Begun anew: so have those before it, and none of them comes back.
            others = [id for id in known if id.startswith(("spark-", "run-")) and query_id not in id]
            old |= dict.fromkeys(others[:-RUNS_KEPT], FORGET)
        tokens = {f"spark-{query_id}": batch_id} | self._more_tokens(boundary_us, query_id, batch_id) | old
        if run_id:
            tokens[mine] = runs.get(mine, last + 1)
        checkpoints = [control.decode(raw, self.staging) for m in messages for raw in m.control]
        checkpoints.sort(key=lambda c: (c.operator, c.partition))
        writer.commit(filed.events, now_us=now_us(), boundary_us=filed.boundary_us if self._promises else None,
                      tokens=tokens, closed=closed and self._promises,
                      pending=(filed.pending_rows, filed.pending), control=checkpoints)  # fmt: skip
        if checkpoints:
            control.discard(self.staging, max(c.position_us for c in checkpoints))
        if (path := self.options.get("waiting")) is not None:
            Path(path).unlink(missing_ok=True)

    def _runs(self, known: Mapping[str, int], query_id: str, run_id: str) -> dict[str, int]:
        """Rule 5: the runs of the query that are noted, of which this one must be the last."""
        runs = {id: n for id, n in known.items() if id.startswith(f"run-{query_id}-")}
        last = max(runs.values(), default=0)
        if runs.get(f"run-{query_id}-{run_id}", last) < last:
            raise Fenced(
                f"stream {self.stream.name}: a later run of this query writes to it; nothing of this batch was added; "
                f"stop this driver"
            )
        return runs

    def _check_again(self, known: Mapping[str, int], boundary_us: int, query_id: str, batch_id: int) -> None:
        """The stream has this batch; may it be executed again?"""

    def _more_tokens(self, boundary_us: int, query_id: str, batch_id: int) -> dict[str, int]:
        """What a unit says beside its batch."""
        return {}


def check_batches(stream: str, tokens: Mapping[str, int], query_id: str, last: int, checkpoint: str | Path) -> None:
    """Refuse a stream that lacks batches of its ingest query up to `last`, which the query will not read again."""
    # A batch without tasks does not know whose it is.
    has = max(tokens.get(f"spark-{query_id}", -1), tokens.get("spark-", -1))
    if has >= last:
        return
    if has < 0:
        found = "it has none of them: it was removed, or lost; bring it back, or remove that folder as well"
    else:
        found = f"it has them up to {has}: an older copy was brought back; bring the later one, or remove both"
    raise UsageError(
        f"stream {stream} must have the batches of the query that fills it up to {last}, which are done by its "
        f"checkpoint {checkpoint}; {found}, to fill it from the beginning of the source, or fill a new stream"
    )


def _since(first_us: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [b.filter(pc.greater_equal(b.column(0).cast(pa.int64()), first_us)) for b in batches]


def _high(batch: pa.RecordBatch, until_us: int) -> int:
    """The largest stime, of those up to `until_us`; rows without one do not count."""
    stimes = batch.column(0).cast(pa.int64())
    found = pc.max(stimes.filter(pc.less_equal(stimes, until_us))).as_py()
    return BEGINNING_US if found is None else int(found)


class StreamSink(DataSourceStreamArrowWriter):
    """Results of a streaming query."""

    def __init__(self, given: dict[str, str], schema: pa.Schema) -> None:
        # Made when the query is planned, so that what does not fit is said before the first row moves.
        self._target = Target(dict(given), schema, RUN)
        self._boundary = self._target.options.choice("boundary", "auto", "input", "watermark", "data") or "auto"
        self._slack_us = duration_us(self._target.options.get("slack") or "0s")
        self._lag_us = duration_us(self._target.options.get("lag") or "0s")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        # Spark runs all jobs of a query's run in a job group that is named after the run.
        run_id = context.getLocalProperty("spark.jobGroup.id") or ""
        return self._target.take(iterator, query_id, run_id, context.getLocalProperty("streaming.sql.batchId") or "0")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        target = self._target
        rows = [m for m in messages if isinstance(m, Rows)]
        query_id, run_id = (rows[0].query_id, rows[0].run_id) if rows else ("", "")
        early_us: int | None = None

        def behind() -> int:
            """The boundary where it follows the rows: the largest stime less the slack."""
            nonlocal early_us
            high, early_us = target.highest(rows)
            return high - self._slack_us if high > BEGINNING_US else BEGINNING_US

        target.check_record(rows, batchId)
        checkpoint = target.options.get("checkpointlocation")
        boundary = batch_boundary(checkpoint, batchId, self._boundary, behind, self._lag_us)
        if checkpoint is not None and target.options.get("branch") is None:
            keep_wal(checkpoint, batchId, Disk())
        target.append(rows, boundary, query_id, run_id, batchId, early_us)
        target.discard(query_id, str(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, Rows):
                self._target.discard(message.query_id, str(batchId))


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("holdfast").mode("append")`: a frame is appended as one unit."""

    def __init__(self, given: dict[str, str], schema: pa.Schema) -> None:
        self._target = Target(dict(given), schema)
        self._id = f"frame-{os.urandom(8).hex()}"  # Made when the write is planned; comes back with the rows.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        return self._target.take(iterator, self._id, "", "0")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        target = self._target
        rows = [m for m in messages if isinstance(m, Rows)]
        high, _ = target.highest(rows)
        writer = target.stream.writer(owner="spark:batch")
        try:
            refuse_prepared(target.stream.definition, writer.state.tokens, writer.state.boundary_us)
            # A frame is all there will be of its time: the next one begins behind it.
            end = (high // target.stream.definition.bucket_us + 1) * target.stream.definition.bucket_us
            boundary = end if high > BEGINNING_US else BEGINNING_US
            filed = file_results(target.collected(rows), writer.pending, target.stream.definition,
                                 writer.state.boundary_us, boundary)  # fmt: skip
            writer.commit(filed.events, now_us=now_us(), boundary_us=filed.boundary_us,
                          pending=(filed.pending_rows, filed.pending))  # fmt: skip
        finally:
            writer.release(now_us())
            self.abort(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, Rows):
                self._target.discard(message.query_id, "0")
