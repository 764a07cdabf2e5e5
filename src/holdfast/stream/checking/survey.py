"""Walking over a segment that may be damaged: what can be read, what cannot, and where it goes on.

`segment.walk` stops at the first wrong bit, as a reader must. A survey goes on behind it. Rules:
1. A body that does not match its checksum costs itself only: its header says where the next frame begins.
2. After a header that does not match, the next commit that does match is looked for. A commit says how many bytes its
   unit has, so the beginning of the first sound unit follows from it, however long the damage is. A header-like
   pattern inside a user's bytes is not mistaken for a frame unless it is a whole commit that fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import ALIGNMENT, FILE_HEADER_SIZE, HEADER_SIZE, Kind, decode_header
from holdfast.stream.record import Commit, decode_commit
from holdfast.stream.segment import Frame, Window, read_body

_KINDS = frozenset(int(kind) for kind in Kind)
#: A commit holds numbers and at most `GROUP_MAX` tokens of a name and a number; longer ones are not commits.
_COMMIT_MAX = 1 << 20


class Fault(NamedTuple):
    """Bytes that are not what was written."""

    offset: int
    length: int
    what: str


class Span(NamedTuple):
    """One unit, or the bytes of what was one or several before they were damaged."""

    start: int
    end: int
    frames: list[Frame]
    """Those whose headers can be read, without the commit."""
    commit: Commit | None
    seq: int | None
    """None where the commit's header is lost."""
    faults: list[Fault]
    epoch: int = 0
    """Of the writer that committed it; 0 where the commit's header is lost."""

    @property
    def sound(self) -> bool:
        return not self.faults and self.commit is not None


def survey(window: Window, start: int = FILE_HEADER_SIZE) -> Iterator[Span]:
    """Everything from `start` to the window's end, which must be the end of what was committed."""
    while start < window.end:
        span = _unit(window, start)
        if span.end == start:  # The unit's frames could not be followed to its commit.
            span = _resume(window, span)
        yield span
        start = span.end


def _unit(window: Window, start: int) -> Span:
    """The unit at `start`; one that cannot be followed to its commit has no length and one fault at its end."""
    frames: list[Frame] = []
    faults: list[Fault] = []
    offset = start
    while True:
        found = _header(window, offset)
        if isinstance(found, Fault):
            return Span(start, start, frames, None, None, [*faults, found])
        offset = found.end
        if found.header.kind == Kind.COMMIT:
            commit = _commit(window, found)
            if isinstance(commit, Fault):
                return Span(start, offset, frames, None, found.header.commit_seq, [*faults, commit], found.header.epoch)
            if commit.unit_bytes != found.offset - start:
                wrong = Fault(found.offset, found.header.size, "the commit covers other bytes than those before it")
                faults.append(wrong)
            return Span(start, offset, frames, commit, found.header.commit_seq, faults, found.header.epoch)
        frames.append(found)
        try:
            read_body(window, found)
        except CorruptLog:
            kind = Kind(found.header.kind).name.lower()
            faults.append(Fault(found.body_offset, found.end - found.body_offset,
                                f"the body of the {kind} frame does not match its checksum"))  # fmt: skip


def _header(window: Window, offset: int) -> Frame | Fault:
    raw = window.take(offset, HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        return Fault(offset, max(len(raw), 1), "a unit begins but does not end with its commit")
    try:
        header = decode_header(raw, 0, "")
    except CorruptLog as error:
        return Fault(offset, HEADER_SIZE, str(error).removeprefix(": ").partition(";")[0])
    if header is None:
        return Fault(offset, HEADER_SIZE, "there are zeros where a frame was committed")
    frame = Frame(offset, header)
    if header.kind not in _KINDS:
        return Fault(offset, HEADER_SIZE, f"the frame is of the unknown kind {header.kind}")
    if frame.end > window.end:
        return Fault(offset, window.end - offset, "the frame reaches beyond the end of what was committed")
    return frame


def _commit(window: Window, frame: Frame) -> Commit | Fault:
    try:
        return decode_commit(read_body(window, frame), "")
    except CorruptLog:
        return Fault(frame.body_offset, frame.end - frame.body_offset,
                     "the body of the commit does not match its checksum")  # fmt: skip


def _resume(window: Window, broken: Span) -> Span:
    """Rule 2: the broken unit up to where the next sound one begins."""
    offset = broken.faults[-1].offset
    while offset + HEADER_SIZE <= window.end:
        frame = _header(window, offset)
        if isinstance(frame, Frame) and frame.header.kind == Kind.COMMIT and frame.header.length <= _COMMIT_MAX:
            commit = _commit(window, frame)
            if isinstance(commit, Commit):
                begin = frame.offset - commit.unit_bytes
                if begin == broken.start:
                    h = frame.header
                    return broken._replace(end=frame.end, commit=commit, seq=h.commit_seq, epoch=h.epoch)
                if begin > broken.start:
                    return broken._replace(end=begin)
        offset += ALIGNMENT
    return broken._replace(end=window.end)
