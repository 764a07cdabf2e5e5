"""Which segments make up a branch whose manifest is lost.

Every segment begins with a header and a STATE frame that say what it follows. Rules:
1. The newest segment is that with units of the highest epoch, and of those the one that begins last, unless it is the
   orphan of a roll that a crash cut short: it holds nothing but its beginning, and its writer's tail still speaks of
   another one. The first segment of an epoch is no orphan: what older epochs wrote after it does not count (L7). The
   epoch of the file itself says less: a repair gives an old segment a new one.
2. From the newest backwards, the predecessor is the segment with a commit of the number that the successor follows and
   with the very state that the successor says it took over. A zombie's segment does not fit into that chain.
3. A segment's commits count up to the number that its successor follows; the rest was never accepted.
4. Of two that begin after the same commit the one of the higher epoch counts: a repair wrote it from the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.checking.survey import survey
from holdfast.stream.frame import Kind
from holdfast.stream.manifest import SEGMENT_FILE, SegmentEntry
from holdfast.stream.record import State, decode_state
from holdfast.stream.segment import Extent, Frame, Window, read_body
from holdfast.stream.tail import TailReader


class _Mark(NamedTuple):
    """What a segment amounts to up to one of its commits."""

    end: int
    state: State
    rows: int
    stime_min_us: int | None
    stime_max_us: int | None


class Candidate:
    """A segment file as its own bytes describe it."""

    def __init__(self, path: Path, bases: set[int]) -> None:
        self.path = path
        self.base_seq, self.epoch = int(path.name[:16]), int(path.name[17:25])
        self.first: State | None = None
        self.marks: dict[int, _Mark] = {}
        self.last: _Mark | None = None
        self.units = 0
        self.size = 0
        self.epoch_last = 0
        self._read(bases)

    def _read(self, bases: set[int]) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            window = Window(fd, self.path, self.size)
            state, extent = State(commit_seq=self.base_seq), Extent()
            for span in survey(window):
                for frame in span.frames:
                    h = frame.header
                    if h.kind == Kind.STATE and frame is span.frames[0]:
                        state = self._first(window, span.frames[0]) or state
                    if h.kind == Kind.EVENT:
                        extent.add(h.rows, h.stime_min_us, h.stime_max_us)
                if span.commit is None or span.seq is None:
                    continue
                state = state.after(span.seq, span.commit)
                self.units += 1
                self.epoch_last = span.epoch
                self.last = _Mark(span.end, state, extent.rows, extent.stime_min_us, extent.stime_max_us)
                if span.seq in bases:
                    self.marks[span.seq] = self.last
        finally:
            os.close(fd)

    def _first(self, window: Window, frame: Frame) -> State | None:
        try:
            self.first = decode_state(read_body(window, frame), "")
        except CorruptLog:
            return None
        return self.first

    def leads_to(self, successor: Candidate) -> bool:
        mark = self.marks.get(successor.base_seq)
        return mark is not None and (successor.first is None or _alike(mark.state, successor.first))

    def entry(self, successor: Candidate | None) -> SegmentEntry:
        mark = self.last if successor is None else self.marks.get(successor.base_seq)
        if mark is None:
            # The commit that the successor follows cannot be read, so all that the file has must be looked at.
            return SegmentEntry(self.path.name, self.base_seq, self.epoch, self.size)
        return SegmentEntry(self.path.name, self.base_seq, self.epoch, mark.end, mark.rows, mark.stime_min_us,
                            mark.stime_max_us, mark.state.wall_us)  # fmt: skip


def _alike(a: State, b: State) -> bool:
    # Tokens are left out: a repair that gave up units gave up their tokens as well.
    return (a.commit_seq, a.boundary_us, a.next_tuple_id, a.closed, a.wall_us) == (
        b.commit_seq, b.boundary_us, b.next_tuple_id, b.closed, b.wall_us)  # fmt: skip


def rebuild_chain(folder: Path, first_base_seq: int) -> tuple[list[SegmentEntry], list[Path]]:
    """The segments of the branch, oldest first, all with their lengths; and the files that do not belong to it."""
    paths = sorted(folder / n for n in os.listdir(folder) if SEGMENT_FILE.fullmatch(n))
    bases = {int(p.name[:16]) for p in paths}
    present = [Candidate(p, bases) for p in paths]
    known = [c for c in present if c.base_seq >= first_base_seq and c.last is not None]
    chain: list[Candidate] = []
    current = _newest(folder, known)
    while current is not None:
        chain.append(current)
        current = _predecessor(current, known)
    chain.reverse()
    entries = [c.entry(after) for c, after in zip(chain, [*chain[1:], None], strict=True)]
    return entries, [c.path for c in present if c not in chain]


def _newest(folder: Path, known: Sequence[Candidate]) -> Candidate | None:
    """Rule 1."""
    for candidate in sorted(known, key=lambda c: (c.epoch_last, c.base_seq, c.epoch), reverse=True):
        if not _orphan(folder, candidate, known):
            return candidate
    return None


def _orphan(folder: Path, candidate: Candidate, known: Sequence[Candidate]) -> bool:
    others = [c for c in known if c.base_seq < candidate.base_seq]
    others = [c for c in others if c.epoch_last == candidate.epoch_last]
    if candidate.units > 1 or not others:
        return False
    tail = TailReader(folder, candidate.epoch_last)
    try:
        note = tail.read()
    finally:
        tail.close()
    if note is not None:
        return note.base_seq < candidate.base_seq
    return any(c.last is not None and c.last.state.commit_seq > candidate.base_seq for c in others)


def _predecessor(current: Candidate, known: Sequence[Candidate]) -> Candidate | None:
    """Rules 2 and 4; where damage broke the chain, the segment that comes closest."""
    before = [c for c in known if c.base_seq < current.base_seq]
    for fits in (
        [c for c in before if c.leads_to(current)],
        [c for c in before if current.base_seq in c.marks],
        before,
    ):
        if fits:
            return max(fits, key=lambda c: (c.base_seq, c.epoch))
    return None
