"""The tasks of a query append to the stripes of a stream themselves; the driver lets readers see a batch, once.

Rules:
1. The rows were dealt before they come here (`to_stripes`): task i has the rows of stripe i, and checks that. Tasks
   write below the folder of the streams, so each must see it, and Spark's record of the batch in the checkpoint.
2. A task files its rows with those that wait in its stripe, as the driver does for other streams (`sink`, rules 2 to
   6), and appends one unit with the token (query id, batch id), but no boundary: the batch is prepared. It is durable,
   and nobody sees it, since no bucket of it is complete. A task that is executed again finds its token and adds
   nothing (S2).
3. When all tasks are done, the driver lets the boundary of every stripe go on to where the batch ends. Readers wait for
   the stripe that is behind the most, so they get the batch when the last one has it. A driver that is killed before
   that has not committed the batch: Spark executes it again, its tasks add nothing, and every boundary is where it was
   to be.
4. Both come from Spark's record of the batch: what a batch executed again prepares is what it prepared before, as far
   as the query is deterministic. What a batch has prepared stays, whatever the query is changed to before it is
   executed again.
5. A stripe that no task came for (Spark leaves out tasks without rows where it can) is filed by the driver, without
   rows: what waited there may be complete now.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.clock import now_us
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, duration_us
from holdfast.spark import control
from holdfast.spark.grants import RUN
from holdfast.spark.hadoop_path import local_path
from holdfast.spark.host_client import goes_by_folder
from holdfast.spark.options import WRITE_OPTIONS, Options
from holdfast.spark.sink import Rows, Target
from holdfast.spark.wal import batch_boundary, keep_wal
from holdfast.stream.disk import Disk
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.stripes import Stripes

#: The column that says which stripe a row goes to.
STRIPE = "holdfast_stripe"
#: What the driver judges or keeps for a whole batch, and has no part in here.
_REFUSED = ("branch", "waiting", "putaside", "deadletters", "from", "create", "bucket", "slack", "maxahead")


@dataclass
class Prepared(WriterCommitMessage):
    """What one task has appended."""

    query_id: str
    run_id: str
    stripe: int
    rows: int
    record: int | None
    """See `Target._record`."""


class StripeTarget(Target):
    """One stripe, and the rows of a task."""

    _promises = False
    _rows: list[pa.RecordBatch] | None = None

    def collected(self, messages: list[Rows]) -> list[pa.RecordBatch]:
        return [] if self._rows is None else self._rows

    def prepare(self, rows: list[pa.RecordBatch], boundary_us: int, query_id: str, run_id: str, batch_id: int) -> None:
        """Rule 2."""
        self._rows = rows
        try:
            self.append([], boundary_us, query_id, run_id, batch_id)
        finally:
            self._rows = None

    def promise(self, boundary_us: int, query_id: str, run_id: str, batch_id: int) -> None:
        """Rule 3."""
        closed = boundary_us >= FOREVER_US
        until = BEGINNING_US
        if boundary_us > BEGINNING_US:
            until = END_OF_TIME_US if closed else closed_until(boundary_us, self.stream.definition.bucket_us)
        writer = self._writer(f"spark:{query_id}:{run_id}")
        try:
            if writer.state.tokens.get(f"spark-{query_id}", -1) < batch_id and not writer.state.closed:
                raise StorageError(
                    f"stream {self.stream.name}: batch {batch_id} of the query was prepared in it and is not there any "
                    f"more; nothing was promised; was the stream deleted, or an older copy brought back?"
                )
            if until > writer.state.boundary_us:
                writer.commit((), now_us=now_us(), boundary_us=until, closed=closed)
        finally:
            writer.release(now_us())

    def check_folder(self) -> None:
        """Rule 1."""
        if self._way is not None and not goes_by_folder(self._way):
            raise UsageError(
                f"stream {self.stream.name}: tasks append to stripes themselves, so executors must see the folder of "
                f"the streams ({self.stream.folder.parent}); mount it there, or write to a stream without stripes"
            )


class StripedSink(DataSourceStreamArrowWriter):
    """Results of a streaming query, by stripes."""

    def __init__(self, dealing: Stripes, given: dict[str, str], schema: pa.Schema) -> None:
        options = Options(given, WRITE_OPTIONS)
        self._dealing = dealing
        if STRIPE not in schema.names:
            raise UsageError(
                f"stream {dealing.name} is striped ({dealing.text}): its rows must be dealt to tasks; write "
                f"holdfast.spark.to_stripes(frame, {dealing.name!r}, root=…) instead of frame.writeStream"
            )
        if control.COLUMN in schema.names:
            raise UsageError(
                f"stream {dealing.name} is striped, and the checkpoints of an operator go into the log of its results; "
                f"write a flow with state to a stream without stripes"
            )
        refused = [name for name in _REFUSED if options.get(name) is not None]
        if refused or options.choice("late", "refuse", "drop", "lift") not in (None, "refuse"):
            raise UsageError(
                f"a query that writes stripes goes without the options {', '.join((*_REFUSED, 'late'))}; got "
                f"{', '.join(refused) or 'late'}; write to a stream without stripes"
            )
        self._mode = options.choice("boundary", "auto", "input", "watermark", "data") or "auto"
        self._lag_us = duration_us(options.get("lag") or "0s")
        checkpoint = options.get("checkpointlocation")
        if checkpoint is None or local_path(checkpoint) is None:
            raise UsageError(
                f"a query that writes stripes needs .option('checkpointLocation', …) on the query itself, with a "
                f"folder that driver and executors see; got {checkpoint!r}"
            )
        self._checkpoint = checkpoint
        rest = pa.schema([field for field in schema if field.name != STRIPE])
        base = {k: v for k, v in given.items() if k not in ("path", "stream")}
        self._targets = [StripeTarget({**base, "stream": name}, rest, RUN) for name in dealing.names]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        run_id = context.getLocalProperty("spark.jobGroup.id") or ""
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or "0")
        stripe = context.partitionId()
        if stripe >= len(self._targets):
            raise self._not_dealt(f"a task {stripe}")
        target = self._targets[stripe]
        target.check_folder()
        rows = [target.stored(self._own(batch, stripe)) for batch in iterator if batch.num_rows]
        keep_wal(self._checkpoint, batch_id, Disk())
        target.prepare(rows, self._boundary(batch_id), query_id, run_id, batch_id)
        return Prepared(query_id, run_id, stripe, sum(b.num_rows for b in rows), target._record(str(batch_id)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        done = {m.stripe: m for m in messages if isinstance(m, Prepared)}
        query_id, run_id = next(((m.query_id, m.run_id) for m in done.values()), ("", ""))
        self._targets[0].check_record([Rows("", "", 0, 0, record=m.record) for m in done.values()], batchId)
        boundary = self._boundary(batchId)
        keep_wal(self._checkpoint, batchId, Disk())

        def finish(stripe: int) -> None:
            if stripe not in done:  # Rule 5.
                self._targets[stripe].prepare([], boundary, query_id, run_id, batchId)
            self._targets[stripe].promise(boundary, query_id, run_id, batchId)

        with ThreadPoolExecutor(len(self._targets)) as pool:
            list(pool.map(finish, range(len(self._targets))))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was prepared stays; the batch finds it when it is executed again."""

    def _boundary(self, batch_id: int) -> int:
        return batch_boundary(self._checkpoint, batch_id, self._mode, self._no_rows, self._lag_us)

    def _no_rows(self) -> int:
        raise UsageError(
            f"stream {self._dealing.name} is striped: no task knows all rows of a batch, so its boundary cannot follow "
            f"them; read streams of Holdfast, keep state with a watermark, or write to a stream without stripes"
        )

    def _own(self, batch: pa.RecordBatch, stripe: int) -> pa.RecordBatch:
        """The rows without the column that says that they are of this stripe."""
        if not pc.all(pc.equal(batch.column(STRIPE), stripe)).as_py():
            raise self._not_dealt("rows of several stripes in one task")
        return batch.drop_columns([STRIPE])

    def _not_dealt(self, got: str) -> UsageError:
        return UsageError(
            f"stream {self._dealing.name} has {self._dealing.text}, with one task each; got {got}; start the writer "
            f"that to_stripes gives, and put nothing behind it"
        )
