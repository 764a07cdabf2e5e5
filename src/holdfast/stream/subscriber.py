"""The client proxy (003 §4.10.1): follows a stream from any point, through history into the live end, without a gap.

Iterating yields Arrow batches (`for batch in subscriber`) or rows (`for row in subscriber.rows()`). Iteration waits
for more and ends when the stream was closed at its end and everything was delivered; `poll` never waits.

A range that its node could not write, because the input was gone, is passed with a warning and noted in `holes` (D14).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.clock import monotonic_us, now_us, pause
from holdfast.model.errors import CorruptLog, HoldfastError, Removed, UsageError
from holdfast.model.schema import STIME_TYPE, reader_schema
from holdfast.model.time import BEGINNING_US, duration_us, instant_text, instant_us
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import BranchView, LocalReader, View
from holdfast.protocol.dpc.sequence import Delivery
from holdfast.stream.acks import acknowledge, check_subscriber
from holdfast.stream.branch import BranchReader
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.holes import Hole, read_holes
from holdfast.stream.index import Fields
from holdfast.stream.reader import LogReader, with_header
from holdfast.stream.report import ReportReader
from holdfast.stream.worth import Worth, Worths

_logger = logging.getLogger(__name__)

#: A look costs a few microseconds; waiting starts short for latency and grows so that idle readers cost nothing.
_WAIT_US_MIN, _WAIT_US_MAX = 1_000, 20_000

Start = str | int | float | datetime


class Row(NamedTuple):
    """One tuple for people."""

    type: TupleType
    id: int
    stime: datetime | None
    values: dict[str, Any]


def control_tuple(schema: pa.Schema, kind: TupleType, tuple_id: int, stime_us: int | None) -> pa.RecordBatch:
    """A tuple that says something about the stream: header only, in a reader's schema."""
    header = [pa.array([int(kind)], pa.int8()), pa.array([tuple_id], pa.int64()), pa.array([stime_us], STIME_TYPE)]
    nothing = [pa.nulls(1, field.type) for field in list(schema)[len(header) :]]
    return pa.RecordBatch.from_arrays([*header, *nothing], schema=schema)


class Marks:
    """Tuples with their header, and UNDO and REC_DONE between them: only where there is something to take back. Buckets
    without tuples leave nothing (D2)."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._last_stable: tuple[int, int | None] = (0, None)
        self._tentative = False
        #: Whether an UNDO was handed out that waits for its REC_DONE.
        self.undone = False

    def stable(self, fields: Fields, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._last_stable = fields.first_tuple_id + batch.num_rows - 1, batch.column(0)[-1].value
        return with_header(fields, batch, TupleType.INSERTION, self._schema)

    def tentative(self, fields: Fields, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._tentative = True
        return with_header(fields, batch, TupleType.TENTATIVE, self._schema)

    def undo(self) -> Iterator[pa.RecordBatch]:
        if self._tentative:
            self._tentative, self.undone = False, True
            yield control_tuple(self._schema, TupleType.UNDO, *self._last_stable)

    def rec_done(self) -> Iterator[pa.RecordBatch]:
        if self.undone:
            self.undone = False
            yield control_tuple(self._schema, TupleType.REC_DONE, 0, None)


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
    ) -> None:
        self.definition, self.folder, self.name = definition, folder, name
        self.schema = reader_schema(definition.schema)
        self._main = LogReader(folder / "main", definition.schema, definition.bucket_us)
        self._branch = BranchReader(folder, definition) if tentative else None
        self._report = ReportReader(folder)
        self._worths = Worths(folder)
        self._boundaries = boundaries
        self._main.refresh()
        self._end_us = None if end is None else instant_us(end)
        self._delivered_us = start_us = self._start_us(start, bucket)
        self._core = LocalReader(start_us // definition.bucket_us)
        self._marks = Marks(self.schema)
        self._under_way: Iterator[pa.RecordBatch] | None = None
        self._trouble: HoldfastError | None = None
        self._main.check_present(start_us)
        if name is not None:
            # Known from now on: retention waits for what it has not acknowledged yet.
            acknowledge(folder, check_subscriber(name), start_us, now_us(), Disk())
        #: Ranges that were passed and never written.
        self.holes: list[Hole] = []

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
    def finished(self) -> bool:
        """Nothing can follow: the stream is closed, or the end that was asked for is reached."""
        if self._core.sequence.outstanding or self._under_way is not None:
            return False
        if self._end_us is not None and self.position_us >= self._end_us:
            return True
        return self._main.closed and self.position_us >= self._main.closed_until_us

    def poll(self) -> Iterator[pa.RecordBatch]:
        """What is there now, without waiting. Whoever stops half-way finds the rest at the next call."""
        if self._trouble is not None:
            raise self._trouble  # What could not be read is not passed over.
        if self._under_way is None:
            self._under_way = self._deliver(self._core.look(self._look(), monotonic_us()))
        try:
            for batch in self._under_way:  # noqa: UP028 - `yield from` would close it with us.
                yield batch
        except HoldfastError as error:
            self._trouble = error
            raise
        self._under_way = None

    def _look(self) -> View:
        """In this order: see `local`, rule 2."""
        if self._branch is not None:
            self._report.refresh()
        self._main.refresh()
        until_us = self._until(self._main.closed_until_us)
        main = -(-until_us // self.definition.bucket_us) if until_us > self._delivered_us else BEGINNING_US
        ended = self._main.closed or (self._end_us is not None and until_us >= self._end_us)
        return View(self._report.report, self._report.renewed_us, main, ended, self._branch_view())

    def _until(self, until_us: int) -> int:
        return until_us if self._end_us is None else min(until_us, self._end_us)

    def _deliver(self, steps: tuple[Delivery, ...]) -> Iterator[pa.RecordBatch]:
        before = self._delivered_us
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
        start_us, end_us = self._delivered_us, self._until(step.end * self.definition.bucket_us)
        for fields, batch in self._main.scan(start_us, end_us):
            yield self._marks.stable(fields, batch)
        self._pass_holes(start_us, end_us)
        self._delivered_us = end_us

    def _tentative(self, step: Delivery) -> Iterator[pa.RecordBatch]:
        size = self.definition.bucket_us
        assert self._branch is not None
        assert self._branch.log is not None
        try:
            for fields, batch in self._branch.log.scan(
                max(step.bucket * size, self._delivered_us), self._until(step.end * size)
            ):
                yield self._marks.tentative(fields, batch)
        except (Removed, CorruptLog):
            # A branch may be dropped while it is read; what was delivered of it is taken back by the UNDO to come.
            if self._branch.current():
                raise

    def _pass_holes(self, start_us: int, end_us: int) -> None:
        for hole in read_holes(self.folder):
            if hole.first_us < end_us and hole.upto_us > start_us and hole not in self.holes:
                self.holes.append(hole)
                first, upto = instant_text(hole.first_us), instant_text(hole.upto_us)
                _logger.warning(
                    "stream %s has no tuples from %s to %s: the input for them was gone",
                    self.definition.name,
                    first,
                    upto,
                )

    def _branch_view(self) -> BranchView | None:
        root = self._branch.refresh() if self._branch is not None else None
        if self._branch is None or root is None or self._branch.log is None:
            return None
        size = self.definition.bucket_us
        return BranchView(root.id, root.root_us // size, -(-self._until(self._branch.log.closed_until_us) // size))

    def worth(self, stime: datetime | None) -> Worth | None:
        """What the tentative bucket of this stime is worth; None if nobody said so, or the branch is gone."""
        if self._branch is None or self._branch.root is None or stime is None:
            return None
        return self._worths.read(self._branch.root.id).get(instant_us(stime) // self.definition.bucket_us)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, *, timeout: str | int | float | None = None) -> Iterator[pa.RecordBatch]:
        """Batches as they come; ends at the end of the stream, or when nothing came for `timeout`."""
        limit = None if timeout is None else duration_us(timeout)
        wait, quiet_since = _WAIT_US_MIN, monotonic_us()
        while True:
            some = False
            for batch in self.poll():
                some = True
                yield batch
            if self.finished:
                return
            if some:
                wait, quiet_since = _WAIT_US_MIN, monotonic_us()
                continue
            if limit is not None and monotonic_us() - quiet_since >= limit:
                return
            pause(wait)
            wait = min(2 * wait, _WAIT_US_MAX)

    def rows(self, *, timeout: str | int | float | None = None) -> Iterator[Row]:
        """Tuples one by one, for people and small programs."""
        for batch in self.batches(timeout=timeout):
            yield from self.rows_of(batch)

    @staticmethod
    def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
        """The tuples of one batch."""
        for record in batch.to_pylist():
            kind, id, stime = TupleType(record.pop("tuple_type")), record.pop("tuple_id"), record.pop("stime")
            yield Row(kind, id, stime, record if kind in (TupleType.INSERTION, TupleType.TENTATIVE) else {})

    def ack(self) -> None:
        """Retention may remove what was delivered so far. Only a subscriber with a name can say so."""
        if self.name is None:
            raise UsageError("only a named subscriber can acknowledge; give it a name: subscribe(name='dashboard')")
        acknowledge(self.folder, self.name, self.position_us, now_us(), Disk())

    def close(self) -> None:
        self._main.close()
        if self._branch is not None:
            self._branch.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
