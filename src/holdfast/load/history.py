"""Loads and movements over time, for pictures: lines of JSON in the host's own folder.

It is for people and promises nothing: it is not synced, and when it has grown its older half goes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.stream.disk import Disk

log = logging.getLogger(__name__)

#: A sample a second is some 100 bytes: about six hours.
_BYTES_MAX = 2 << 20


class Sample(msgspec.Struct, frozen=True, tag="load"):
    """One look at one participant."""

    at_us: int
    participant: str
    cpu: float
    capacity: float
    tasks: dict[str, float]
    """CPU of each task that runs here, guests by their lease."""


class Movement(msgspec.Struct, frozen=True, tag="move"):
    """A task changed hands, as its buyer saw it."""

    at_us: int
    task: str
    source: str
    target: str
    price: float
    took_us: int
    back: bool = False


_line = msgspec.json.Decoder(Sample | Movement)


class History:
    """One file, one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failing = False
        Disk().make_dir(path.parent)

    def add(self, line: Sample | Movement) -> None:
        """A picture with a hole, where the disk is full, and no reason to stop anything else."""
        try:
            self._add(line)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("%s: loads and movements are not noted for pictures: %s", self.path, error)
            self._failing = True

    def _add(self, line: Sample | Movement) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            size = file.tell()
        if size > _BYTES_MAX:
            lines = self.path.read_bytes().splitlines(keepends=True)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_bytes(b"".join(lines[len(lines) // 2 :]))
            os.replace(temporary, self.path)

    def lines(self, since_us: int = 0) -> list[Sample | Movement]:
        return [line for line in read_lines(self.path) if line.at_us >= since_us]


def read_lines(path: Path) -> Sequence[Sample | Movement]:
    """All that can be read; a line that a crash has cut is left out."""
    found: list[Sample | Movement] = []
    if path.exists():
        for raw in path.read_bytes().splitlines():
            try:
                found.append(_line.decode(raw))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
    return found
