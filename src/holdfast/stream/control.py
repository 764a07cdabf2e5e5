"""Control frames: an operator's window checkpoints in the log of its own results (000 ch. 4).

Rules:
1. A control frame stands in the unit of the results it belongs to: both become durable together or not at all (C6).
2. It is neither an event nor in any index, so no reader of tuples ever meets one (C5).
3. They are read backwards, the newest first. A segment's headers are walked forwards once and then taken from the end;
   those of the last commit stand in the resume point as well, and most who ask want no others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import FILE_HEADER_SIZE, Header, Kind, crc32c
from holdfast.stream.reader import LogReader
from holdfast.stream.segment import Frame, Window, frame_at, read_body, walk


def operator_number(name: str) -> int:
    """What stands for an operator's name in a header; the body has the name itself."""
    return crc32c(name.encode())


class Footprint(NamedTuple):
    """The header of one control frame."""

    operator: int
    partition: int
    rows: int
    windows: int
    since_us: int
    position_us: int
    commit_seq: int


class ControlLog:
    """The control frames of one branch, newest first."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def backwards(self, operator: int, partition: int | None = None) -> Iterator[tuple[Footprint, Body]]:
        """Headers, each with a body that is read, and checked, only on demand."""
        newest = self._newest(operator)
        for path, end in reversed(self._reader.ends()):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                window = Window(fd, path, end)
                for frame in self._frames(window, newest):
                    h = frame.header
                    if h.first_tuple_id == operator and partition in (None, h.partition):
                        found = Footprint(operator, h.partition, h.rows, h.bucket, h.stime_min_us, h.stime_max_us,
                                          h.commit_seq)  # fmt: skip
                        yield found, Body(window, frame)
            finally:
                os.close(fd)
            newest = []

    def _newest(self, operator: int) -> list[int]:
        """Where the operator's frames of its last commit begin, the last first, if that can be told without a walk."""
        last = sorted((c for c in self._reader.last_controls() if c.operator == operator), key=lambda c: -c.offset)
        return [c.offset for c in last if c.position_us == last[0].position_us]

    @staticmethod
    def _frames(window: Window, newest: list[int]) -> Iterator[Frame]:
        for offset in newest:
            yield frame_at(window, offset, Kind.CONTROL)
        frames: list[Frame] = []
        for unit in walk(window, FILE_HEADER_SIZE):
            frames += [f for f in unit.frames if f.header.kind == Kind.CONTROL and f.offset not in newest]
        yield from reversed(frames)

    def latest(self, operator: int, partitions: int, position_us: int | None = None) -> dict[int, Footprint]:
        """The newest footprint of each partition, up to a position if one is given."""
        found: dict[int, Footprint] = {}
        for footprint, _ in self.backwards(operator):
            if position_us is None or footprint.position_us <= position_us:
                found.setdefault(footprint.partition, footprint)
                if len(found) == partitions:
                    break
        return found


def oldest_needed(segments: list[tuple[Path, int]]) -> int | None:
    """The oldest commit that holds a checkpoint some operator relies on (L8); None if no operator writes the stream.

    `segments` come oldest first, with their lengths. An operator writes a control frame of each partition with every
    batch, so a stream without one in its newest two segments has none, and those of its last batch say what it needs.
    """
    newest: dict[int, int] = {}
    wanted: dict[int, int] = {}
    oldest: int | None = None
    for age, (path, end) in enumerate(reversed(segments)):
        if age >= 2 and not wanted:
            return oldest
        for h in reversed(_control_headers(path, end)):
            operator = h.first_tuple_id
            if newest.setdefault(operator, h.stime_max_us) == h.stime_max_us:
                wanted[operator] = min(wanted.get(operator, h.stime_min_us), h.stime_min_us)
            if wanted[operator] <= h.stime_max_us:
                oldest = h.commit_seq if oldest is None else min(oldest, h.commit_seq)
        if oldest is not None and wanted and _reached(segments[-1 - age], wanted):
            return oldest
    return oldest


def _reached(segment: tuple[Path, int], wanted: dict[int, int]) -> bool:
    """Does this segment hold, for every operator, a checkpoint older than the oldest needed?"""
    seen = {h.first_tuple_id: h.stime_max_us for h in reversed(_control_headers(*segment))}
    return all(seen.get(operator, since) < since for operator, since in wanted.items())


def _control_headers(path: Path, end: int) -> list[Header]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    found: list[Header] = []
    try:
        with contextlib.suppress(CorruptLog):  # The end of the segment that is being written.
            for unit in walk(Window(fd, path, end), FILE_HEADER_SIZE):
                found += [f.header for f in unit.frames if f.header.kind == Kind.CONTROL]
    finally:
        os.close(fd)
    return found


class Body:
    """Valid until the scan moves on."""

    def __init__(self, window: Window, frame: Frame) -> None:
        self._window, self._frame = window, frame

    def read(self) -> bytes:
        return read_body(self._window, self._frame)


def has_frames(reader: LogReader, *kinds: Kind) -> bool:
    """Does any segment that is left hold a frame of one of these kinds?"""
    for path, end in reader.ends():
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for unit in walk(Window(fd, path, end), FILE_HEADER_SIZE):
                if any(frame.header.kind in kinds for frame in unit.frames):
                    return True
        finally:
            os.close(fd)
    return False
