"""How far a stable query may read: told by the replica's controller, obeyed by the source of the query.

The two live in different processes. The decision is one number in a small file that is overwritten in place: it is
looked at a hundred times a second, and after a crash the controller decides anew. A checksum tells half a write from a
whole one; a reader that meets half a write keeps what it knew.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from holdfast.model.time import BEGINNING_US
from holdfast.stream.disk import file_mode
from holdfast.stream.frame import crc32c

_FORMAT = 1
_NUMBER = struct.Struct("<qqI")
_CHECKED = _NUMBER.size - 4


class Decision:
    """One file, for the side that decides (`decide`) and the side that obeys (`until_us`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._until_us = BEGINNING_US

    def decide(self, until_us: int) -> None:
        """Everything before this stime may be read."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
        number = _NUMBER.pack(_FORMAT, until_us, 0)[:_CHECKED]
        os.pwrite(self._fd, number + crc32c(number).to_bytes(4, "little"), 0)
        self._until_us = until_us

    @property
    def until_us(self) -> int:
        """The last decision; the beginning of time as long as there was none."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return self._until_us
        raw = os.pread(self._fd, _NUMBER.size, 0)
        if len(raw) == _NUMBER.size:
            version, until_us, crc = _NUMBER.unpack(raw)
            if crc == crc32c(raw[:_CHECKED]) and version == _FORMAT:
                self._until_us = until_us
        return self._until_us

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
