"""A reader's sequence, cut into batches that can be read again: what a query of Spark needs of it.

A subscriber hands its sequence out as it goes. A query plans a batch, notes the plan, runs it somewhere else, and after
a crash runs the same plan once more. So here the sequence is planned before it is read.

Rules:
1. A batch is one look of `LocalReader`, whose whole state stands in the offset behind the batch. The next batch is a
   function of that offset and of what the files say: a process that begins there goes on as the last one would have.
2. The offset also holds the steps of its batch: ranges of main, a range of one branch, and the control tuples. Closed
   buckets never change, and a branch has an id; so the steps are the batch, whoever reads it, and whenever.
3. Tentative tuples are the last step of a batch, at most one. So an UNDO takes back what earlier batches have brought,
   never anything of its own batch.
4. A branch may be dropped before its step is read, or read again. Then the step is left out: the batch ends a little
   earlier in the sequence. Whoever ran it before holds what the step had, whoever runs it now does not. The next batch
   begins with an UNDO, which is right for both, and tells again what is tentative from the end of main on.
5. The same holds for whatever of a dropped branch a process finds outstanding in the offset that it starts with: if
   its step was left out before, nobody remembers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.clock import monotonic_us
from holdfast.model.errors import CorruptLog, Removed, UsageError
from holdfast.model.schema import reader_schema
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import BranchView, LocalReader, ReaderState, View
from holdfast.protocol.dpc.sequence import Delivery
from holdfast.stream.look import StreamLook, earlier
from holdfast.stream.merge import FOREVER_US, admitted
from holdfast.stream.position import Position, ahead, parse_position
from holdfast.stream.reader import Extent, LogReader, cut, with_header
from holdfast.stream.store import Stream
from holdfast.stream.subscriber import Marks, control_tuple, goal_of

_FORMAT = 2  # 1 is that of queries that read main alone.
#: Planned tentative tuples travel within the plan, because the files of a branch may be gone when it is carried out.
TENTATIVE_BYTES_MAX = 16 << 20


class Step(NamedTuple):
    """A part of a batch: the tuples of a range, or one control tuple."""

    kind: int
    """A `TupleType`: INSERTION is a range of main, TENTATIVE one of the branch in the offset's state."""
    first: int
    """Where the range begins; for UNDO the last stable tuple."""
    last: int | None
    """Where the range ends; for UNDO the stime of that tuple."""


class SequenceOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a reader stands, and the steps from the offset before."""

    format: int
    stream: str
    """The stream's id: one that was made anew under the same name is another."""
    position: str
    state: ReaderState
    steps: tuple[Step, ...]
    until_us: int | None = None
    """FOREVER_US where nothing follows any more, as in offsets of queries that read main alone. Otherwise it is left
    out: whoever reads it would take what is tentative for promised."""

    def as_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class Limits(NamedTuple):
    """What a batch may hold; at least one bucket, to get on at all."""

    rows: int | None = None
    bytes: int | None = None


NO_LIMITS = Limits()


def parse_offset(offset: dict[str, Any], stream: Stream) -> SequenceOffset:
    """The offset in a checkpoint; `UsageError` unless it is one of this stream's sequence."""
    try:
        found = msgspec.convert(offset, SequenceOffset)
    except msgspec.ValidationError:
        found = None
    if found is None or found.format != _FORMAT:
        raise UsageError(
            f"a query that reads the tentative branch of {stream.name} cannot go on from the offset {offset!r:.120}, "
            "which is of a query without option tentative, or of another version; start with a new checkpoint"
        )
    if found.stream != stream.definition.id:
        raise UsageError(
            f"the checkpoint is of a stream {stream.name} that was deleted; this one was made anew under its name; "
            "start with a new checkpoint"
        )
    return found


class SequencePlan:
    """Plans the batches of one reader of one stream, and reads what is tentative in them."""

    def __init__(self, stream: Stream, *, end_us: int | None = None) -> None:
        self.stream, self._definition, self._end_us = stream, stream.definition, end_us
        self.schema = reader_schema(self._definition.schema)
        self._look = StreamLook(stream.folder, self._definition, tentative=True)
        self.main = self._look.main
        self.main.refresh()
        self._until: tuple[int, BranchView | None] | None = None
        #: Rules 4 and 5: whether outstanding tuples of a branch that is gone may have been left out.
        self._doubt = True

    def close(self) -> None:
        self._look.close()

    def begin(self, start_us: int) -> SequenceOffset:
        """The offset of a reader that wants what is stable from `start_us` on."""
        core = LocalReader(start_us // self._definition.bucket_us)
        return self._offset(Position(start_us, mends=self.main.mends), core, ())

    def freeze(self) -> None:
        """Plan nothing beyond what is there now."""
        view = self._look.view(-(2**63))
        self._until = (view.main, view.branch)

    def after(self, offset: SequenceOffset, limits: Limits = NO_LIMITS) -> SequenceOffset:
        """The end of the next batch; the same offset if there is nothing new."""
        branch = self._look.branch
        assert branch is not None
        while True:
            try:
                return self._after(offset, limits)
            except (Removed, CorruptLog):
                if branch.root is None or branch.current():
                    raise  # Otherwise the branch was dropped while we looked at it: look again.

    def _after(self, offset: SequenceOffset, limits: Limits) -> SequenceOffset:
        position = self.position_of(offset)
        view = self._frozen(self._look.view(position.until_us, self._end_us))
        self.check_unmended(offset)
        self._check_reach(position)
        position = position._replace(mends=self.main.mends)
        view = self._within(view, position, limits)
        core, deliveries = self._looked(offset, position, view)
        if deliveries and deliveries[-1].kind is TupleType.TENTATIVE:
            less = self._fewer(deliveries[-1], position, limits)
            if less is not None:
                assert view.branch is not None
                view = replace(view, branch=replace(view.branch, end=less))
                core, deliveries = self._looked(offset, position, view)
        marks = Marks(self.schema, self._definition, position)
        steps = []
        if self._lost(offset, position):
            steps += _controls(marks.resume())
        for delivery in deliveries:
            steps += self._planned(delivery, marks)
        self._doubt = False
        until_us = FOREVER_US if view.ended and not marks.position.tentative else None
        if not steps and core.state == offset.state and until_us in (None, offset.until_us):
            return offset
        return self._offset(marks.position, core, tuple(steps), until_us)

    def position_of(self, offset: SequenceOffset) -> Position:
        return parse_position(offset.position, self._definition.name, self._definition.bucket_us)

    def check_unmended(self, offset: SequenceOffset) -> None:
        """Refuse an offset beyond a place where the boundary was taken back since."""
        position = self.position_of(offset)
        self.main.check_unmended(position.reach_us, position.mends)

    def holds(self, offset: SequenceOffset) -> bool:
        """Is the branch still there of which the reader has tentative tuples, if it has any?"""
        branch = self._look.branch
        assert branch is not None
        there = branch.root is not None and branch.root.id == offset.state.branch and branch.current()
        return there or not self.position_of(offset).tentative

    # -- planning ----------------------------------------------------------------------------------------------------

    def _offset(
        self, position: Position, core: LocalReader, steps: tuple[Step, ...], until_us: int | None = None
    ) -> SequenceOffset:
        text = position.text(self._definition.name, self._definition.bucket_us)
        return SequenceOffset(_FORMAT, self._definition.id, text, core.state, steps, until_us)

    def _check_reach(self, position: Position) -> None:
        closed_us = self.main.closed_until_us
        if position.until_us > closed_us:
            self.main.check_present(position.until_us)  # A boundary that was taken back: do not wait for it.
            if position.last_id and not self.main.closed:
                raise ahead(self._definition.name, position, closed_us)

    def _frozen(self, view: View) -> View:
        if self._until is None:
            return view
        main, seen = self._until
        branch = view.branch
        if branch is not None and seen is not None and branch.id == seen.id:
            branch = replace(branch, end=min(branch.end, seen.end))
        else:
            branch = None
        return replace(view, main=min(view.main, main), ended=view.ended and main >= view.main, branch=branch)

    def _within(self, view: View, position: Position, limits: Limits) -> View:
        """As much of main as fits into a batch; no branch before main was told to its end."""
        size = self._definition.bucket_us
        until_us = self._admitted(self.main, position.until_us, view.main * size, limits)
        main = -(-until_us // size)
        return view if main >= view.main else replace(view, main=main, ended=False, branch=None)

    def _fewer(self, delivery: Delivery, position: Position, limits: Limits) -> int | None:
        """The bucket to which tentative tuples fit into a batch; None if all do."""
        assert self._look.branch is not None
        size, log = self._definition.bucket_us, self._look.branch.log
        if log is None:
            return None
        limits = limits._replace(bytes=min(limits.bytes or TENTATIVE_BYTES_MAX, TENTATIVE_BYTES_MAX))
        start_us = max(delivery.bucket * size, position.until_us)
        end = -(-self._admitted(log, start_us, delivery.end * size, limits) // size)
        return None if end >= delivery.end else end

    def _admitted(self, log: LogReader, start_us: int, end_us: int, limits: Limits) -> int:
        if end_us <= start_us:
            return end_us
        sizes = [self._definition.bucket_us]
        return admitted([log], sizes, start_us, end_us, rows_max=limits.rows, bytes_max=limits.bytes)

    def _looked(
        self, offset: SequenceOffset, position: Position, view: View
    ) -> tuple[LocalReader, tuple[Delivery, ...]]:
        """Rule 1; rules 4 and 5 go on as a subscriber that resumes."""
        if self._lost(offset, position):
            core = LocalReader(offset.state.sequence.next, goal=goal_of(position, self._definition.bucket_us))
        else:
            core = LocalReader.of(offset.state)
        return core, core.look(view, monotonic_us())

    def _lost(self, offset: SequenceOffset, position: Position) -> bool:
        assert self._look.branch is not None
        root = self._look.branch.root
        return self._doubt and position.tentative and (root is None or root.id != offset.state.branch)

    def _planned(self, delivery: Delivery, marks: Marks) -> list[Step]:
        if delivery.kind is TupleType.UNDO:
            return _controls(marks.undo())
        if delivery.kind is TupleType.REC_DONE:
            return _controls(marks.rec_done())
        size = self._definition.bucket_us
        end_us = earlier(delivery.end * size, self._end_us)
        start_us = marks.position.until_us
        if delivery.kind is TupleType.TENTATIVE:
            start_us = max(delivery.bucket * size, start_us)
            assert self._look.branch is not None
            assert self._look.branch.log is not None
            extents = self._look.branch.log.extents(start_us, end_us)
            if extents:
                marks.held(extents[-1].fields.bucket)
        else:
            extents = self.main.extents(start_us, end_us)
            if extents:
                self._note_last(extents[-1], start_us, end_us, marks)
            marks.passed(end_us)
        return [Step(int(delivery.kind), start_us, end_us)] if extents else []

    def _note_last(self, extent: Extent, start_us: int, end_us: int, marks: Marks) -> None:
        """An UNDO names the last stable tuple, with its stime."""
        for fields, batch in cut(extent.fields, self.main.read(extent), start_us, end_us):
            for _ in marks.stable(fields, batch):
                pass

    # -- reading -----------------------------------------------------------------------------------------------------

    def stable(self, step: Step) -> list[Extent]:
        """Where the tuples of a range of main lie."""
        assert step.last is not None
        if step.last > self.main.closed_until_us:
            self.main.refresh()
            if step.last > self.main.closed_until_us and not self.main.closed:
                raise ahead(self._definition.name, Position(step.last), self.main.closed_until_us)
        return self.main.extents(step.first, step.last)

    def others(self, step: Step, offset: SequenceOffset) -> list[pa.RecordBatch]:
        """The tuples of any other step, as a reader sees them."""
        if step.kind == TupleType.TENTATIVE:
            return self._tentative(step, offset.state.branch)
        return [control_tuple(self.schema, TupleType(step.kind), step.first, step.last)]

    def _tentative(self, step: Step, id: str | None) -> list[pa.RecordBatch]:
        branch = self._look.branch
        assert branch is not None
        assert step.last is not None
        root = branch.refresh()
        if root is not None and root.id == id and branch.log is not None and branch.cut_us <= step.first:
            try:
                rows = list(branch.log.scan(step.first, step.last))
            except (Removed, CorruptLog):
                if branch.current() and branch.cut_us <= step.first:
                    raise
            else:
                return [with_header(fields, batch, TupleType.TENTATIVE, self.schema) for fields, batch in rows]
        self._doubt = True  # Rule 4.
        return []


def _controls(tuples: Iterator[pa.RecordBatch]) -> list[Step]:
    """The control tuples as steps."""
    steps = []
    for batch in tuples:
        kind, id, stime = (batch.column(i).cast(pa.int64())[0].as_py() for i in range(3))
        steps.append(Step(kind, id, stime))
    return steps
