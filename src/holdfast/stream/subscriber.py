"""The client proxy (003 §4.10.1): follows a stream from any point, through history into the live end, without a gap.

Iterating yields Arrow batches (`for batch in subscriber`) or rows (`for row in subscriber.rows()`). Iteration waits
for more and ends when the stream was closed at its end and everything was delivered; `poll` never waits.

A range that its node could not write, because the input was gone, is passed with a warning and noted in `holes` (D14).

Whoever keeps `position` beside its own data goes on exactly behind it (`subscribe(after=…)`); a name keeps the position
of its last `ack` for those who have no better place (`subscribe(name=…, resume=True)`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import pyarrow as pa

from holdfast.clock import monotonic_us, now_us, pause
from holdfast.model.errors import CorruptLog, HoldfastError, Removed, UsageError
from holdfast.model.schema import STIME_TYPE, reader_schema
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, duration_us, instant_text, instant_us
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import LocalReader
from holdfast.protocol.dpc.sequence import Delivery
from holdfast.stream.acks import Acknowledged, acknowledge, check_subscriber, read_acks
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.head import read_head
from holdfast.stream.holes import Hole, read_holes
from holdfast.stream.index import Fields
from holdfast.stream.look import StreamLook, earlier
from holdfast.stream.position import Position, ahead, parse_position, unknown
from holdfast.stream.presence import Presence
from holdfast.stream.reader import with_header
from holdfast.stream.worth import WORTH_COLUMNS, Worth, Worths

_logger = logging.getLogger(__name__)

#: A look costs a few microseconds; waiting starts short for latency and grows so that idle readers cost nothing.
_WAIT_US_MIN, _WAIT_US_MAX = 1_000, 20_000

Start = str | int | float | datetime
T = TypeVar("T")


class Row(NamedTuple):
    """One tuple for people."""

    type: TupleType
    id: int
    stime: datetime | None
    values: dict[str, Any]
    position: str = ""
    """Where a consumer goes on that has taken this tuple and all before it; only `rows()` knows it."""


def control_tuple(schema: pa.Schema, kind: TupleType, tuple_id: int, stime_us: int | None) -> pa.RecordBatch:
    """A tuple that says something about the stream: header only, in a reader's schema."""
    header = [pa.array([int(kind)], pa.int8()), pa.array([tuple_id], pa.int64()), pa.array([stime_us], STIME_TYPE)]
    nothing = [pa.nulls(1, field.type) for field in list(schema)[len(header) :]]
    return pa.RecordBatch.from_arrays([*header, *nothing], schema=schema)


WorthOf = Callable[[int], Worth | None]


def asked_schema(definition: Definition, worth: bool) -> pa.Schema:
    """The columns of a reader; with `worth`, those behind them that say what tentative tuples are worth."""
    schema = reader_schema(definition.schema)
    if not worth:
        return schema
    if own := [name for name in WORTH_COLUMNS.names if name in schema.names]:
        raise UsageError(f"stream {definition.name} has a column {own[0]} of its own; read it without worth=True")
    return pa.schema([*schema, *WORTH_COLUMNS])


class Marks:
    """Tuples with their header, and UNDO and REC_DONE between them: only where there is something to take back. Buckets
    without tuples leave nothing (D2). It knows the position of whoever was handed all this."""

    def __init__(
        self, schema: pa.Schema, definition: Definition, position: Position, worth: WorthOf | None = None
    ) -> None:
        """`worth` says what a tentative bucket is worth, where the schema has columns for it."""
        self._schema, self._definition, self._worth = schema, definition, worth
        self._begun, self._holds = position, position.tentative
        #: After what was last handed out.
        self.position = position

    def resume(self) -> Iterator[pa.RecordBatch]:
        """Ahead of everything else: what is held from before is taken back."""
        if self._holds:
            self._holds = False
            yield from self.undo()

    def stable(self, fields: Fields, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        seen, size = self._begun.partial_id, self._definition.bucket_us
        if seen is not None and fields.bucket == self._begun.until_us // size:
            known = max(0, min(seen + 1 - fields.first_tuple_id, batch.num_rows))
            fields = fields._replace(first_tuple_id=fields.first_tuple_id + known, rows=batch.num_rows - known)
            batch = batch.slice(known)
        if batch.num_rows:
            self.position = self.position._replace(
                until_us=max(self.position.until_us, fields.bucket * size),
                last_id=fields.first_tuple_id + batch.num_rows - 1,
                last_stime_us=batch.column(0)[-1].value,
            )
            yield self._headed(fields, batch, TupleType.INSERTION, None)

    def under(self, mends: int) -> None:
        """What comes from now on is as it has been since the mend of this number."""
        self.position = self.position._replace(mends=mends)

    def passed(self, until_us: int) -> None:
        """Everything stable before this was handed out."""
        self.position = self.position._replace(until_us=max(self.position.until_us, until_us))

    def tentative(self, fields: Fields, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.held(fields.bucket)
        worth = None if self._worth is None else self._worth(fields.bucket)
        return self._headed(fields, batch, TupleType.TENTATIVE, worth)

    def _headed(self, fields: Fields, batch: pa.RecordBatch, kind: TupleType, worth: Worth | None) -> pa.RecordBatch:
        if self._worth is not None:
            values = (None,) * len(WORTH_COLUMNS) if worth is None else worth.values
            for column, value in zip(WORTH_COLUMNS, values, strict=True):
                batch = batch.append_column(column, pa.repeat(pa.scalar(value, column.type), batch.num_rows))
        return with_header(fields, batch, kind, self._schema)

    def held(self, bucket: int) -> None:
        """Tentative tuples of this bucket were handed out."""
        end_us = (bucket + 1) * self._definition.bucket_us
        self.position = self.position._replace(tentative=True, goal_us=max(self.position.goal_us, end_us))

    def undo(self) -> Iterator[pa.RecordBatch]:
        if self.position.tentative:
            self.position = self.position._replace(tentative=False, undone=True)
            last_id, last_us = self.position.last_id, self.position.last_stime_us
            yield control_tuple(self._schema, TupleType.UNDO, last_id, last_us if last_id else None)

    def rec_done(self) -> Iterator[pa.RecordBatch]:
        if self.position.undone:
            self.position = self.position._replace(undone=False, goal_us=BEGINNING_US)
            yield control_tuple(self._schema, TupleType.REC_DONE, 0, None)

    def rows(self, batch: pa.RecordBatch, before: Position) -> Iterator[tuple[Row, Position]]:
        """The tuples of a batch, each with its position; `before` is the position ahead of the batch."""
        name, size = self._definition.name, self._definition.bucket_us
        after = self.position
        before = before._replace(mends=after.mends)
        for row, stime in zip(rows_of(batch), batch.column(2).cast(pa.int64()).to_pylist(), strict=True):
            at = after
            if row.type is TupleType.INSERTION:
                until_us = max(before.until_us, stime // size * size)
                at = before = before._replace(until_us=until_us, last_id=row.id, last_stime_us=stime)
            yield row._replace(position=at.text(name, size)), at


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The tuples of one batch."""
    for record in batch.to_pylist():
        kind, id, stime = TupleType(record.pop("tuple_type")), record.pop("tuple_id"), record.pop("stime")
        yield Row(kind, id, stime, record if kind in (TupleType.INSERTION, TupleType.TENTATIVE) else {})


def goal_of(position: Position, bucket_us: int) -> int | None:
    """Up to which bucket corrections are outstanding; None if none are."""
    return -(-position.goal_us // bucket_us) if position.tentative or position.undone else None


def resumed(definition: Definition, name: str | None, known: Acknowledged | None) -> str | None:
    """The position at which a subscriber of this name goes on; None: it never acknowledged anything."""
    if name is None:
        raise UsageError("resume needs the name under which it acknowledges; write subscribe(name='db', resume=True)")
    if known is None or known.position is not None:
        return None if known is None else known.position
    # Acknowledged before positions were kept.
    return Position(known.until_us).text(definition.name, definition.bucket_us)


def polled(
    poll: Callable[[], Iterator[T]], finished: Callable[[], bool], timeout: str | int | float | None
) -> Iterator[T]:
    """What is there, again and again, until it is finished or nothing came for `timeout`."""
    limit = None if timeout is None else duration_us(timeout)
    wait, quiet_since = _WAIT_US_MIN, monotonic_us()
    while True:
        some = False
        for found in poll():
            some = True
            yield found
        if finished():
            return
        if some:
            wait, quiet_since = _WAIT_US_MIN, monotonic_us()
            continue
        if limit is not None and monotonic_us() - quiet_since >= limit:
            return
        pause(wait)
        wait = min(2 * wait, _WAIT_US_MAX)


class SubscriberOptions(TypedDict, total=False):
    """What `Stream.subscribe` takes."""

    start: Start
    bucket: int | None
    """Begin with this bucket, whatever `start` says."""
    end: Start | None
    tentative: bool
    boundaries: bool
    name: str | None
    """Under which it acknowledges."""
    after: str | None
    """A position to go on behind."""
    resume: bool
    worth: bool
    """More columns, null for stable tuples: what tentative ones are worth, 0 to 1 (`worth`), the least of the buckets
    that they cover (`worth_least`), and the names of the inputs that they lack (`worth_missing`)."""
    all_columns: bool
    """Tuples with columns that the stream has got since it was opened are `ColumnsAdded`; otherwise they come without
    those."""


class Subscriber:
    """Reads one stream. Get one from `Stream.subscribe`."""

    def __init__(
        self,
        folder: Path,
        definition: Definition,
        *,
        start: Start = "beginning",
        bucket: int | None = None,
        end: Start | None = None,
        tentative: bool = False,
        boundaries: bool = False,
        name: str | None = None,
        after: str | None = None,
        resume: bool = False,
        worth: bool = False,
        all_columns: bool = False,
    ) -> None:
        """`after` is a position that a subscriber gave: go on behind it, whatever `start` says. `resume` does so behind
        what a subscriber of this name last acknowledged, if there was one."""
        self.definition, self.folder, self.name = definition, folder, name
        self.schema = asked_schema(definition, worth)
        self._look = StreamLook(folder, definition, tentative=tentative, all_columns=all_columns)
        self._main, self._branch = self._look.main, self._look.branch
        self._worths = Worths(folder)
        self._boundaries = boundaries
        self._main.refresh()
        self._end_us = None if end is None else instant_us(end)
        if resume and after is None:
            after = resumed(definition, name, read_acks(folder).get(name or ""))
        position = self._begin_at(start, bucket, after)
        self._delivered_us = start_us = position.until_us
        self._core = LocalReader(start_us // definition.bucket_us, goal=goal_of(position, definition.bucket_us))
        self._marks = Marks(self.schema, definition, position, self._worth_of if worth else None)
        self._position = position
        self._under_way: Iterator[pa.RecordBatch] | None = None
        self._trouble: HoldfastError | None = None
        self._main.check_present(start_us)
        self._presence: Presence | None = None
        self._begun_us = read_head(self._main.folder).removed_until_us
        if name is not None:
            if definition.persist == "on_demand":
                # Its producer keeps in memory what we have not acknowledged, as long as we are there.
                self._presence = Presence(folder, check_subscriber(name))
            # Known from now on: retention waits for what it has not acknowledged yet.
            acknowledge(folder, check_subscriber(name), start_us, now_us(), Disk(), self.position)
        #: Ranges that were passed and never written.
        self.holes: list[Hole] = []

    def _begin_at(self, start: Start, bucket: int | None, after: str | None) -> Position:
        if after is None:
            return Position(self._start_us(start, bucket), mends=self._main.mends)
        position = parse_position(after, self.definition.name, self.definition.bucket_us)
        self._main.check_unmended(position.reach_us, position.mends)
        self._main.check_present(position.until_us)
        closed_us = self._main.closed_until_us
        # A closed stream ends with its last bucket, which may lie before what it had promised to be complete.
        beyond = position.until_us > closed_us and not self._main.closed
        if beyond or (position.partial_id and position.last_stime_us >= closed_us):
            raise ahead(self.definition.name, position, closed_us)
        lasts = self.definition.persist == "always"
        if lasts and position.last_id and self._main.has_tuple(position.last_id, position.last_stime_us) is False:
            raise unknown(self.definition.name, position)
        return position._replace(mends=self._main.mends)

    def _start_us(self, start: Start, bucket: int | None) -> int:
        if bucket is not None:
            return bucket * self.definition.bucket_us
        if start == "beginning":
            return BEGINNING_US
        if start == "live":
            return self._main.closed_until_us
        try:
            return instant_us(start)
        except UsageError:
            raise UsageError(
                f"start must be 'beginning', 'live', or a time such as '2026-03-01T12:00'; got {start!r}"
            ) from None

    @property
    def position_us(self) -> int:
        """Everything stable before this stime was delivered."""
        return self._delivered_us

    @property
    def reach_us(self) -> int:
        """How far the stream was complete at the last look."""
        return self._main.closed_until_us

    @property
    def removed_us(self) -> int:
        """Tuples before this had been removed by retention when it was made; BEGINNING_US: none."""
        return self._begun_us

    @property
    def position(self) -> str:
        """Where a consumer goes on that has taken every batch, or row, that came so far: `subscribe(after=…)`."""
        return self._position.text(self.definition.name, self.definition.bucket_us)

    @property
    def finished(self) -> bool:
        """Nothing can follow: the stream is closed, or the end that was asked for is reached."""
        at = self._marks.position
        if self._core.sequence.outstanding or self._under_way is not None or at.tentative or at.undone:
            return False
        if self._end_us is not None and self.position_us >= self._end_us:
            return True
        return self._main.closed and self.position_us >= self._main.closed_until_us

    def look_up(self) -> int:
        """How far the stream is complete now; END_OF_TIME_US if it was closed at its end."""
        self._main.refresh()
        return END_OF_TIME_US if self._main.closed else self._main.closed_until_us

    def poll(self, limit_us: int | None = None) -> Iterator[pa.RecordBatch]:
        """What is there now, without waiting. Whoever stops half-way finds the rest at the next call. With `limit_us`
        nothing stable from there on yet: other streams are not complete so far."""
        if self._trouble is not None:
            raise self._trouble  # What could not be read is not passed over.
        if self._under_way is None:
            view = self._look.view(self._delivered_us, self._end_us, limit_us)
            self._marks.under(self._main.mends)  # It would have refused a mend of what it has seen.
            self._under_way = self._deliver(self._core.look(view, monotonic_us()))
        try:
            for batch in self._under_way:
                self._position = self._marks.position
                yield batch
        except HoldfastError as error:
            self._trouble = error
            raise
        self._under_way, self._position = None, self._marks.position

    def _deliver(self, steps: tuple[Delivery, ...]) -> Iterator[pa.RecordBatch]:
        before = self._delivered_us
        yield from self._marks.resume()
        for step in steps:
            if step.kind is TupleType.INSERTION:
                yield from self._stable(step)
            elif step.kind is TupleType.TENTATIVE:
                yield from self._tentative(step)
            elif step.kind is TupleType.UNDO:
                yield from self._marks.undo()
            else:
                yield from self._marks.rec_done()
        if self._boundaries and self._delivered_us > before:
            yield control_tuple(self.schema, TupleType.BOUNDARY, 0, self._delivered_us)

    def _stable(self, step: Delivery) -> Iterator[pa.RecordBatch]:
        start_us, end_us = self._delivered_us, earlier(step.end * self.definition.bucket_us, self._end_us)
        self._check_dropped(start_us)
        for fields, batch in self._main.scan(start_us, end_us):
            yield from self._marks.stable(fields, batch)
        self._check_dropped(start_us)  # Or while we looked.
        self._pass_holes(start_us, end_us)
        self._delivered_us = end_us
        self._marks.passed(end_us)

    def _tentative(self, step: Delivery) -> Iterator[pa.RecordBatch]:
        size = self.definition.bucket_us
        assert self._branch is not None
        assert self._branch.log is not None
        try:
            for fields, batch in self._branch.scan(
                max(step.bucket * size, self._delivered_us), earlier(step.end * size, self._end_us)
            ):
                yield self._marks.tentative(fields, batch)
        except (Removed, CorruptLog):
            # A branch may be dropped while it is read; what was delivered of it is taken back by the UNDO to come.
            if self._branch.current():
                raise

    def _check_dropped(self, start_us: int) -> None:
        """One with a name that begins at the beginning was promised all that was there then: a full stream may have
        dropped it all the same."""
        if self.name is None or start_us > BEGINNING_US:
            return
        dropped_us = read_head(self._main.folder).removed_until_us
        if dropped_us > self._begun_us:
            raise Removed(
                f"stream {self.definition.name}: tuples before {instant_text(dropped_us)} were removed before "
                f"{self.name} had read them; start at {instant_text(dropped_us)}, or subscribe anew"
            )

    def _pass_holes(self, start_us: int, end_us: int) -> None:
        for hole in read_holes(self.folder):
            if hole.first_us < end_us and hole.upto_us > start_us and hole not in self.holes:
                self.holes.append(hole)
                first, upto = instant_text(hole.first_us), instant_text(hole.upto_us)
                _logger.warning(
                    "stream %s has no tuples from %s to %s: %s", self.definition.name, first, upto, hole.why
                )

    def worth(self, stime: datetime | None) -> Worth | None:
        """What the tentative results of this stime are worth: the mean over all that they cover, the least, and the
        inputs that are missing; None if nobody said so, or the branch is gone."""
        return None if stime is None else self._worth_of(instant_us(stime) // self.definition.bucket_us)

    def _worth_of(self, bucket: int) -> Worth | None:
        if self._branch is None or self._branch.root is None:
            return None
        return self._worths.read(self._branch.root.id).get(bucket)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, *, timeout: str | int | float | None = None) -> Iterator[pa.RecordBatch]:
        """Batches as they come; ends at the end of the stream, or when nothing came for `timeout`."""
        return polled(self.poll, lambda: self.finished, timeout)

    def rows(self, *, timeout: str | int | float | None = None) -> Iterator[Row]:
        """Tuples one by one, for people and small programs."""
        before = self._marks.position
        for batch in self.batches(timeout=timeout):
            for row, position in self._marks.rows(batch, before):
                self._position = position
                yield row
            before = self._marks.position

    rows_of = staticmethod(rows_of)

    def ack(self) -> None:
        """Everything that came so far is taken: retention may remove it, and `resume` goes on behind it. Only a
        subscriber with a name can say so."""
        if self.name is None:
            raise UsageError("only a named subscriber can acknowledge; give it a name: subscribe(name='dashboard')")
        self.ack_at(self._position)

    def ack_at(self, position: Position) -> None:
        """The same up to a position that it has passed."""
        assert self.name is not None
        self._main.refresh()  # A boundary that was taken back behind what it has read refuses it here.
        text = position.text(self.definition.name, self.definition.bucket_us)
        acknowledge(self.folder, self.name, position.until_us, now_us(), Disk(), text)

    @property
    def at(self) -> Position:
        """After the batch that was last taken from it."""
        return self._marks.position

    def positioned_rows(self, batch: pa.RecordBatch, before: Position) -> Iterator[tuple[Row, Position]]:
        """The tuples of a batch, each with its position; `before` is the position ahead of the batch."""
        return self._marks.rows(batch, before)

    def close(self) -> None:
        if self._presence is not None:
            self._presence.close()
        self._look.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
