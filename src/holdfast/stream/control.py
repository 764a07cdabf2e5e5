"""Control frames: an operator's window checkpoints in the log of its own results (000 ch. 4).

Rules:
1. A control frame stands in the unit of the results it belongs to: both become durable together or not at all (C6).
2. It is neither an event nor in any index, so no reader of tuples ever meets one (C5).
3. They are read backwards, the newest first. A segment's headers are walked forwards once and then taken from the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.stream.frame import FILE_HEADER_SIZE, Kind, crc32c
from holdfast.stream.reader import LogReader
from holdfast.stream.segment import Frame, Window, read_body, walk


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

    def backwards(self, operator: int, partition: int | None = None) -> Iterator[tuple[Footprint, _Body]]:
        """Headers, each with a body that is read, and checked, only on demand."""
        for path, end in reversed(self._reader.ends()):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                window = Window(fd, path, end)
                frames: list[Frame] = []
                for unit in walk(window, FILE_HEADER_SIZE):
                    frames += [f for f in unit.frames if f.header.kind == Kind.CONTROL]
                for frame in reversed(frames):
                    h = frame.header
                    if h.first_tuple_id == operator and partition in (None, h.partition):
                        found = Footprint(operator, h.partition, h.rows, h.bucket, h.stime_min_us, h.stime_max_us,
                                          h.commit_seq)  # fmt: skip
                        yield found, _Body(window, frame)
            finally:
                os.close(fd)

    def latest(self, operator: int, partitions: int, position_us: int | None = None) -> dict[int, Footprint]:
        """The newest footprint of each partition, up to a position if one is given."""
        found: dict[int, Footprint] = {}
        for footprint, _ in self.backwards(operator):
            if position_us is None or footprint.position_us <= position_us:
                found.setdefault(footprint.partition, footprint)
                if len(found) == partitions:
                    break
        return found


class _Body:
    """Valid until the scan moves on."""

    def __init__(self, window: Window, frame: Frame) -> None:
        self._window, self._frame = window, frame

    def read(self) -> bytes:
        return read_body(self._window, self._frame)
