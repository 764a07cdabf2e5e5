"""Does what a sound unit says agree with what came before it and with the stream's definition?

Checksums show that bytes are what was written; an audit shows that what was written makes sense: buckets, partitions
and stimes of each event, consecutive tuple ids and commits, boundaries that never go back and tuples that never fall
below one (D10). After damage that was reported already it goes on from the next sound unit without blaming it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.model.errors import CorruptLog
from holdfast.model.time import instant_text
from holdfast.stream.checking.finding import Finding, Severity
from holdfast.stream.checking.survey import Span
from holdfast.stream.definition import Definition
from holdfast.stream.frame import Kind, padded
from holdfast.stream.index import Fields, fields_of
from holdfast.stream.losses import Loss
from holdfast.stream.pack import key_partitions
from holdfast.stream.reader import decode_body
from holdfast.stream.record import Commit, State, decode_state
from holdfast.stream.segment import Extent, Frame, Window, read_body

_ADVICE = "compare with a replica; `holdfast repair` shows what can be saved"


class Auditor:
    """Carries the state from unit to unit and from segment to segment of one branch."""

    def __init__(self, definition: Definition | None, losses: tuple[Loss, ...] = ()) -> None:
        self._definition, self._losses = definition, losses
        self._stored = definition.stored if definition is not None else None
        self._state: State | None = None
        self._epoch = 0
        self._path = Path()
        self.extent = Extent()
        self.fields: list[Fields] = []
        self.seq = 0

    def begin(self, path: Path, base_seq: int) -> Iterator[Finding]:
        """A new segment, which claims to follow the commit `base_seq`."""
        self._path, self.extent, self.fields = path, Extent(), []
        if self._state is not None and self._state.commit_seq != base_seq:
            at = self._state.commit_seq
            if not any(loss.seq_first <= at + 1 and base_seq <= loss.seq_last for loss in self._losses):
                yield self._wrong(0, 64, f"it follows commit {base_seq}, but the segment before it ends with {at}")
            self._state = None
        self.seq = base_seq

    def lost_track(self) -> None:
        """Something was damaged and reported: what comes next cannot be compared with it."""
        self._state = None

    def unit(self, span: Span, window: Window) -> Iterator[Finding]:
        """Check one sound unit."""
        assert span.commit is not None
        assert span.seq is not None
        for frame in span.frames:
            if frame.header.kind == Kind.STATE:
                yield from self._state_frame(frame, window)
        state = self._state
        next_id = state.next_tuple_id if state is not None else None
        for frame in span.frames:
            h = frame.header
            yield from self._epochs(frame)
            if h.commit_seq != span.seq:
                yield self._wrong(frame.offset, 64, f"a frame of commit {h.commit_seq} stands in commit {span.seq}")
            if h.kind == Kind.EVENT:
                if next_id is not None and h.first_tuple_id != next_id:
                    yield self._gap(frame.offset, next_id, h.first_tuple_id)
                next_id = h.first_tuple_id + h.rows
                yield from self._event(frame, window, state)
                self.extent.add(h.rows, h.stime_min_us, h.stime_max_us)
                self.fields.append(fields_of(frame))
        yield from self._commit(span, span.commit, span.seq, next_id)
        self._state = (state or State()).after(span.seq, span.commit)
        self.seq = span.seq

    def _state_frame(self, frame: Frame, window: Window) -> Iterator[Finding]:
        try:
            stated = decode_state(read_body(window, frame), "")
        except CorruptLog as error:
            yield self._wrong(frame.offset, frame.header.size, str(error).removeprefix(": "))
            return
        carried = self._state
        if carried is not None:
            for name in ("commit_seq", "boundary_us", "next_tuple_id", "closed"):
                have, want = getattr(stated, name), getattr(carried, name)
                if have != want:
                    what = f"the segment begins with {name} {have}, but the one before it ends with {want}"
                    yield self._wrong(frame.offset, frame.header.size, what)
        self._state = stated

    def _epochs(self, frame: Frame) -> Iterator[Finding]:
        if frame.header.epoch < self._epoch:
            yield self._wrong(
                frame.offset, 64, f"epoch {frame.header.epoch} wrote after epoch {self._epoch} was granted (L7)"
            )
        self._epoch = max(self._epoch, frame.header.epoch)

    def _event(self, frame: Frame, window: Window, state: State | None) -> Iterator[Finding]:
        h, d = frame.header, self._definition
        if state is not None and h.stime_min_us < state.boundary_us:
            at, bound = instant_text(h.stime_min_us), instant_text(state.boundary_us)
            yield self._wrong(frame.offset, 64, f"a tuple at {at} lies below the boundary {bound} before it (D10)")
        if state is not None and state.closed:
            yield self._wrong(frame.offset, 64, "the event comes after the end of the stream")
        if d is None or self._stored is None:
            return
        low, high = h.bucket * d.bucket_us, (h.bucket + 1) * d.bucket_us
        if not low <= h.stime_min_us <= h.stime_max_us < high:
            what = f"stimes {h.stime_min_us} to {h.stime_max_us} are not within bucket {h.bucket} ({low} to {high})"
            yield self._wrong(frame.offset, 64, what)
        if h.partition >= d.partitions:
            yield self._wrong(frame.offset, 64, f"partition {h.partition} of {d.partitions}")
        try:
            raw = window.take(frame.body_offset, padded(h.length))
            batch = decode_body(raw, fields_of(frame), self._stored, "")
            batch.validate(full=True)
        except (CorruptLog, pa.ArrowInvalid) as error:
            yield self._wrong(frame.offset, h.size, str(error).removeprefix(": "))
            return
        yield from self._tuples(frame, batch, d)

    def _tuples(self, frame: Frame, batch: pa.RecordBatch, d: Definition) -> Iterator[Finding]:
        h = frame.header
        if batch.num_rows != h.rows or not h.rows:
            yield self._wrong(frame.offset, h.size, f"{h.rows} tuples are announced, {batch.num_rows} are there")
            return
        stimes = np.asarray(batch.column(0).cast(pa.int64()))
        if (int(stimes.min()), int(stimes.max())) != (h.stime_min_us, h.stime_max_us):
            what = f"stimes are announced as {h.stime_min_us} to {h.stime_max_us}, but are {stimes.min()} to"
            yield self._wrong(frame.offset, h.size, f"{what} {stimes.max()}")
        if d.partition_by is None:
            right = h.partition == h.bucket % d.partitions
        else:
            right = bool((key_partitions(batch.column(d.partition_by), d.partitions) == h.partition).all())
        if not right:
            yield self._wrong(frame.offset, h.size, f"its tuples do not belong to partition {h.partition}")

    def _commit(self, span: Span, commit: Commit, seq: int, next_id: int | None) -> Iterator[Finding]:
        at = span.end - 64  # Within the commit frame, which is the last of the span.
        if self._state is None:
            return
        before = self._state
        if seq != before.commit_seq + 1 and not self._known(before.commit_seq + 1, seq - 1):
            yield self._wrong(at, 64, f"commit {seq} follows commit {before.commit_seq}")
        if commit.boundary_us < before.boundary_us:
            what = f"the boundary goes back from {instant_text(before.boundary_us)}"
            yield self._wrong(at, 64, f"{what} to {instant_text(commit.boundary_us)} (D10)")
        if next_id is not None and commit.next_tuple_id != next_id:
            yield self._gap(at, next_id, commit.next_tuple_id)
        if before.closed and not commit.closed:
            yield self._wrong(at, 64, "the stream goes on after its end")

    def _known(self, first: int, last: int) -> bool:
        return any(loss.seq_first <= first and last <= loss.seq_last for loss in self._losses)

    def _gap(self, offset: int, expected: int, got: int) -> Finding:
        if any(loss.id_first == expected and loss.id_next == got for loss in self._losses):
            return Finding(Severity.NOTE, self._path, offset, 64, f"tuples {expected} to {got - 1} are missing",
                           "an earlier repair gave them up")  # fmt: skip
        return self._wrong(offset, 64, f"the next tuple id must be {expected}; got {got}")

    def _wrong(self, offset: int, length: int, what: str) -> Finding:
        return Finding(Severity.ERROR, self._path, offset, length, what, _ADVICE)
