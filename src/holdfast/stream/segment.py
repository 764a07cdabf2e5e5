"""Walking over a segment's frames.

`walk` yields whole committed units; `recover` also decides whether what it cannot read is the torn end of the last
write, which is cut (L3), or damage to something acknowledged, which is reported (L4).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import ALIGNMENT, FILE_HEADER_SIZE, HEADER_SIZE, Header, Kind, crc32c, decode_header, padded
from holdfast.stream.record import Commit, State, decode_commit, decode_state

#: Large enough to amortise a system call over many small frames, small enough not to read large bodies for their
#: headers.
_CHUNK = 1 << 16


class Frame(NamedTuple):
    """A header and the place where it stands in its segment."""

    offset: int
    header: Header

    @property
    def body_offset(self) -> int:
        return self.offset + HEADER_SIZE

    @property
    def end(self) -> int:
        return self.offset + self.header.size


class Unit(NamedTuple):
    """The frames of one commit."""

    frames: list[Frame]
    commit: Commit
    commit_at: int
    seq: int
    end: int


class Window:
    """Reads ahead in chunks, so that many small frames cost few system calls."""

    def __init__(self, fd: int, path: Path, end: int) -> None:
        self.fd, self.path, self.end = fd, path, end
        self._start, self._data = 0, b""

    def take(self, offset: int, length: int) -> bytes:
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            want = min(max(length, _CHUNK), self.end - offset)
            self._data = self.read(offset, want) if want > 0 else b""
            self._start, at = offset, 0
        return self._data[at : at + length]

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self.fd, length, offset)


def frame_at(window: Window, offset: int, kind: Kind) -> Frame:
    """The frame that was noted to begin there."""
    where = f"{window.path} at byte {offset}"
    raw = window.take(offset, HEADER_SIZE)
    header = decode_header(raw, 0, where) if len(raw) == HEADER_SIZE else None
    if header is None or header.kind != kind:
        raise CorruptLog(f"{where}: a frame of kind {kind.name} was noted there; it is another; run `holdfast verify`")
    return Frame(offset, header)


def read_body(window: Window, frame: Frame) -> bytes:
    """The frame's body, refused before anyone decodes it if a bit is wrong (L4)."""
    h = frame.header
    raw = window.take(frame.body_offset, padded(h.length))
    if len(raw) != padded(h.length) or crc32c(raw) != h.body_crc:
        raise CorruptLog(f"{window.path} at byte {frame.offset}: the body of the frame does not match its checksum")
    return raw[: h.length]


def walk(window: Window, start: int, *, bodies: bool = False) -> Iterator[Unit]:
    """Committed units from `start` on. Ends quietly at the window's end or at clean zeros, if a unit ended there.

    Headers are always checked, bodies only if asked; commits always, since they are read.
    """
    frames: list[Frame] = []
    offset = start
    while True:
        where = f"{window.path} at byte {offset}"
        raw = window.take(offset, HEADER_SIZE)
        header = decode_header(raw, 0, where) if len(raw) == HEADER_SIZE else None
        if header is None:
            if frames or 0 < len(raw) < HEADER_SIZE:
                raise CorruptLog(f"{where}: a unit begins but does not end with its commit; run `holdfast repair`")
            return
        frame = Frame(offset, header)
        offset = frame.end
        if header.kind == Kind.COMMIT:
            commit = decode_commit(read_body(window, frame), where)
            if commit.unit_bytes != frame.offset - (frames[0].offset if frames else frame.offset):
                raise CorruptLog(f"{where}: the commit covers other bytes than those before it; run `holdfast repair`")
            yield Unit(frames, commit, frame.offset, header.commit_seq, offset)
            frames = []
        else:
            if bodies:
                read_body(window, frame)
            frames.append(frame)


class LastControl(NamedTuple):
    """The newest control frame of one operator and partition in a segment."""

    operator: int
    partition: int
    position_us: int
    since_us: int
    """The oldest position of a checkpoint that its windows rely on."""
    offset: int


class Extent:
    """Rows, the range of stime and the newest checkpoints of a segment, summed up while walking."""

    def __init__(
        self,
        rows: int = 0,
        stime_min_us: int | None = None,
        stime_max_us: int | None = None,
        controls: Iterable[LastControl] = (),
    ) -> None:
        self.rows, self.stime_min_us, self.stime_max_us = rows, stime_min_us, stime_max_us
        self._controls = {(c.operator, c.partition): c for c in controls}

    @property
    def controls(self) -> tuple[LastControl, ...]:
        return tuple(self._controls.values())

    def copy(self) -> Extent:
        twin = Extent.__new__(Extent)
        twin.rows, twin.stime_min_us, twin.stime_max_us = self.rows, self.stime_min_us, self.stime_max_us
        twin._controls = self._controls.copy()
        return twin

    def add(self, rows: int, low: int, high: int) -> None:
        self.rows += rows
        self.stime_min_us = low if self.stime_min_us is None else min(low, self.stime_min_us)
        self.stime_max_us = high if self.stime_max_us is None else max(high, self.stime_max_us)

    def add_control(self, last: LastControl) -> None:
        self._controls[last.operator, last.partition] = last


class Recovered(NamedTuple):
    """What a walk over a segment with an uncertain end found."""

    state: State
    end: int
    """Where the last whole unit ends."""
    extent: Extent
    pending: tuple[int, bytes]
    """Rows and body of the newest pending frame."""
    problem: str | None
    """Why the walk stopped, if it was not at clean zeros or the end of the file."""
    rot: bool
    """Something valid and later stands behind the problem: this is damage, not the torn end of the last write."""
    commit_at: int = 0
    """Where the last unit's commit frame begins."""
    pending_at: int = 0
    """Where the newest pending frame begins; 0 if there is none."""


_NOTHING = Recovered(State(), FILE_HEADER_SIZE, Extent(), (0, b""), None, False)


def recover(
    fd: int,
    path: Path,
    end: int,
    *,
    seq_max: int | None = None,
    bodies: bool = True,
    since: Recovered | None = None,
) -> Recovered:
    """Every whole unit up to the first thing that is not one; `since` says what is known, so that only the rest is
    walked over.

    `seq_max` bounds the sequence numbers that count: what a fenced writer added behind its successor's back does not.
    """
    window = Window(fd, path, end)
    state, good, extent, pending, _, _, commit_at, pending_at = since or _NOTHING
    extent = extent.copy()
    problem: str | None = None
    try:
        for unit in walk(window, good, bodies=bodies):
            if seq_max is not None and unit.seq > seq_max:
                break
            for frame in unit.frames:
                h = frame.header
                if h.kind == Kind.STATE:
                    state = decode_state(read_body(window, frame), str(path))
                elif h.kind == Kind.PENDING:
                    pending, pending_at = (h.rows, read_body(window, frame)), frame.offset
                elif h.kind == Kind.EVENT:
                    extent.add(h.rows, h.stime_min_us, h.stime_max_us)
                elif h.kind == Kind.CONTROL:
                    extent.add_control(
                        LastControl(h.first_tuple_id, h.partition, h.stime_max_us, h.stime_min_us, frame.offset)
                    )
            state = state.after(unit.seq, unit.commit)
            good, commit_at = unit.end, unit.commit_at
    except CorruptLog as error:
        problem = str(error)
    # Zeros in front of later units are not the end: a lost page reads as zeros, too.
    rot = (problem is not None or seq_max is None) and _later_unit_follows(window, good, state.commit_seq)
    return Recovered(state, good, extent, pending, problem, rot, commit_at, pending_at)


def _later_unit_follows(window: Window, offset: int, seq: int) -> bool:
    """Is there a frame of the unit after the next one? A writer begins a unit only when the one before is durable."""
    while offset + HEADER_SIZE <= window.end:
        raw = window.take(offset, HEADER_SIZE)
        if len(raw) < HEADER_SIZE:
            return False  # Shorter than it was: whoever took over has cut it at its last unit.
        try:
            header = decode_header(raw, 0, "")
        except CorruptLog:
            header = None
        if header is not None and header.commit_seq > seq + 1:
            return True
        offset += ALIGNMENT
    return False
