"""The tasks of a query append to the stripes of a stream themselves; the driver lets readers see a batch, once.

Rules:
1. The rows were dealt before they come here (`to_stripes`): task i has the rows of stripe i, and checks that. Tasks
   write below the folder of the streams, so each must see it, and Spark's record of the batch in the checkpoint.
2. A task files its rows with those that wait in its stripe, as the driver does for other streams (`sink`, rules 2 to
   6), and appends one unit with the token (query id, batch id), but no boundary: the batch is prepared. It is durable,
   and nobody sees it, since no bucket of it is complete. A task that is executed again finds its token and adds
   nothing (S2); it looks for it before it takes the stripe from anybody. The unit says how far the batch goes and what
   it read (`stream.prepared`): a batch of that number that is another one is refused, and until a stripe has
   promised it nobody else may write there.
3. When all tasks are done, the driver lets the boundary of every stripe go on to where the batch ends. Readers wait for
   the stripe that is behind the most, so they get the batch when the last one has it. A driver that is killed before
   that has not committed the batch: Spark executes it again, its tasks add nothing, and every boundary is where it was
   to be.
4. Both come from Spark's record of the batch, which driver and tasks must see alike, and the id of the query from its
   checkpoint, since a batch without tasks brings none: what a batch executed again prepares is what it prepared before,
   as far as the query is deterministic. What a batch has prepared stays, whatever the query is changed to before it is
   executed again.
5. A query does not start where another one has prepared a batch that is not in all stripes, or not complete: nobody
   would add the rest of it. This is looked at before the first row moves, so that the other one can still go on.
6. A stripe that no task came for (Spark leaves out tasks without rows where it can) is filed by the driver, without
   rows: what waited there may be complete now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.clock import now_us
from holdfast.model.errors import Fenced, StorageError, StreamBusy, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, duration_us, instant_text
from holdfast.spark import control
from holdfast.spark.grants import RUN
from holdfast.spark.hadoop_path import local_path
from holdfast.spark.host_client import goes_by_folder
from holdfast.spark.options import WRITE_OPTIONS, Options
from holdfast.spark.sink import Rows, Target
from holdfast.spark.wal import batch_boundary, keep_wal, read_lines
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.prepared import prepared_until, preparing, refuse_prepared, until_token
from holdfast.stream.record import PRODUCERS_MAX
from holdfast.stream.stripes import Stripes
from holdfast.stream.waiting import Waiting, waiting_results

#: The column that says which stripe a row goes to.
STRIPE = "holdfast_stripe"
#: Between tries to take a stripe that somebody else has taken; a task that comes late lets go within one unit.
_PAUSES_S = (0.02, 0.1, 0.5)
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
        there = self.look()
        if there is not None and there.tokens.get(f"spark-{query_id}", -1) == batch_id:
            self._check_again(there.tokens, boundary_us, query_id, batch_id)
            return
        self._rows = rows
        try:
            self._patiently(lambda: self.append([], boundary_us, query_id, run_id, batch_id))
        finally:
            self._rows = None

    def look(self) -> Waiting | None:
        """What the stripe has, without taking it from anybody; None where it is just being opened, or where it cannot
        be read: whoever takes it is told why."""
        try:
            return waiting_results(self.stream)
        except OSError:
            return None

    def promise(self, boundary_us: int, query_id: str, run_id: str, batch_id: int) -> None:
        """Rule 3."""
        self._patiently(lambda: self._promise(boundary_us, query_id, run_id, batch_id))

    def _promise(self, boundary_us: int, query_id: str, run_id: str, batch_id: int) -> None:
        closed = boundary_us >= FOREVER_US
        until = BEGINNING_US
        if boundary_us > BEGINNING_US:
            until = END_OF_TIME_US if closed else closed_until(boundary_us, self.stream.definition.bucket_us)
        writer = self._writer(f"spark:{query_id}:{run_id}")
        try:
            known, done = writer.state.tokens, writer.state.closed
            self._runs(known, query_id, run_id)
            if known.get(f"spark-{query_id}", -1) < batch_id and not done:
                raise StorageError(
                    f"stream {self.stream.name}: batch {batch_id} of the query was prepared in it and is not there any "
                    f"more; nothing was promised; was the stream deleted, or an older copy brought back?"
                )
            if known.get(f"spark-{query_id}") == batch_id:
                self._check_again(known, boundary_us, query_id, batch_id)
            if until > writer.state.boundary_us:
                writer.commit((), now_us=now_us(), boundary_us=until, closed=closed)
        finally:
            writer.release(now_us())

    @staticmethod
    def _patiently(act: Callable[[], None]) -> None:
        """An attempt at a task that comes late may take the stripe from us; what we do can be done again (rule 2)."""
        for pause_s in _PAUSES_S:
            try:
                return act()
            except (Fenced, StreamBusy):
                time.sleep(pause_s)
        return act()

    def _check_again(self, known: Mapping[str, int], boundary_us: int, query_id: str, batch_id: int) -> None:
        """Rule 2."""
        now, there = self._more_tokens(boundary_us, query_id, batch_id), prepared_until(known, query_id)
        if all(known.get(id, value) == value for id, value in now.items()):
            return
        raise StorageError(
            f"stream {self.stream.name}: batch {batch_id} of the query was prepared in it up to "
            f"{instant_text(there or BEGINNING_US)}; executed again it goes up to {instant_text(boundary_us)} or reads "
            f"other input; nothing was added or promised; bring back the checkpoint and the query as they were, or "
            f"start with a new checkpoint and a new stream"
        )

    def _more_tokens(self, boundary_us: int, query_id: str, batch_id: int) -> dict[str, int]:
        read = None if self._checkpoint is None else read_lines(self._checkpoint, batch_id)
        return until_token(query_id, boundary_us) | ({} if read is None else {f"/read/{query_id}": crc32c(read)})

    def _record(self, batch_id: str) -> int | None:
        """Of every query: boundaries come from that record."""
        if self._checkpoint is None:
            return None
        try:
            return crc32c((self._checkpoint / "offsets" / batch_id).read_bytes())
        except OSError:
            raise self._another_checkpoint() from None

    def _another_checkpoint(self) -> UsageError:
        return UsageError(
            f"a query that writes stripes needs a checkpoint in a folder that executors and driver share; "
            f"{self._checkpoint} is another folder on an executor; mount one there, or write to a stream without "
            f"stripes"
        )

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
        folder = None if checkpoint is None else local_path(checkpoint)
        if checkpoint is None or folder is None:
            raise UsageError(
                f"a query that writes stripes needs .option('checkpointLocation', …) on the query itself, with a "
                f"folder that driver and executors see; got {checkpoint!r}"
            )
        self._checkpoint, self._metadata = checkpoint, folder / "metadata"
        rest = pa.schema([field for field in schema if field.name != STRIPE])
        base = {k: v for k, v in given.items() if k not in ("path", "stream")}
        self._targets = [StripeTarget({**base, "stream": name}, rest, RUN) for name in dealing.names]
        self._refuse_halves()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId") or self._query_id()
        run_id = context.getLocalProperty("spark.jobGroup.id") or ""
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or "0")
        stripe = context.partitionId()
        if stripe >= len(self._targets):
            raise self._not_dealt(f"a task {stripe}")
        target = self._targets[stripe]
        target.check_folder()
        rows = [target.stored(self._own(batch, stripe)) for batch in iterator if batch.num_rows]
        keep_wal(self._checkpoint, batch_id, Disk())
        record = target._record(str(batch_id))
        target.prepare(rows, self._boundary(batch_id), query_id, run_id, batch_id)
        return Prepared(query_id, run_id, stripe, sum(b.num_rows for b in rows), record)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        done = {m.stripe: m for m in messages if isinstance(m, Prepared)}
        run_id = next((m.run_id for m in done.values()), "")
        query_id = self._query_id()
        self._targets[0].check_record([Rows("", "", 0, 0, record=m.record) for m in done.values()], batchId)
        boundary = self._boundary(batchId)
        keep_wal(self._checkpoint, batchId, Disk())

        def finish(stripe: int) -> None:
            if stripe not in done:  # Rule 6.
                self._targets[stripe].prepare([], boundary, query_id, run_id, batchId)
            self._targets[stripe].promise(boundary, query_id, run_id, batchId)

        with ThreadPoolExecutor(len(self._targets)) as pool:
            list(pool.map(finish, range(len(self._targets))))

    def _query_id(self) -> str:
        """As the tasks of the query know it, where there are any."""
        try:
            return str(json.loads(self._metadata.read_text())["id"])
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(
                f"the sink reads the id of the query from {self._metadata}: {error}; restore the checkpoint, or start "
                f"with a new one and a new stream"
            ) from error

    def _refuse_halves(self) -> None:
        """Rule 5."""
        own = self._query_id() if self._metadata.exists() else ""
        known: list[Waiting] = []
        for target in self._targets:
            there = target.look()
            if there is None:
                continue
            refuse_prepared(target.stream.definition, there.tokens, there.boundary_us, own)
            # One that was ended notes no batches any more, and one with so many tokens has forgotten some.
            if there.boundary_us < END_OF_TIME_US and len(there.tokens) < PRODUCERS_MAX:
                known.append(there)
        for query_id in {id for there in known for id in preparing(there.tokens, own)}:
            found = {there.tokens.get(f"spark-{query_id}", -1) for there in known}
            if len(found) > 1:
                raise UsageError(
                    f"stream {self._dealing.name} holds batch {max(found)} of query {query_id} in some of its stripes "
                    f"only; start that query again with its checkpoint, as it was, until the batch is done, or write "
                    f"to a new stream"
                )

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
