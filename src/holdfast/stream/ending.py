"""How far the last segment of a branch is committed, without changing anything.

With a living writer its tail says so. Without one, the rule of the next writer decides (`segment.recover`): every whole
unit counts, the torn end of the last write does not, and what the tail had promised must be there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.stream.checking.finding import Finding, Severity
from holdfast.stream.manifest import Manifest
from holdfast.stream.segment import recover
from holdfast.stream.tail import TailReader, writer_lives


class Unsettled(Exception):
    """The writer is between two steps; look again."""


class Ended(NamedTuple):
    """The end of a segment that nobody sealed yet."""

    end: int
    known: int
    """The end that the tail promised; 0 if it says nothing of this segment."""
    alive: bool
    rot: bool = False
    problem: str | None = None

    @property
    def damaged(self) -> bool:
        """Something that may have been acknowledged cannot be read."""
        return self.rot or self.end < self.known

    def findings(self, path: Path, size: int) -> Iterator[Finding]:
        if self.problem is not None and not self.damaged:
            what = f"{size - self.end} bytes of a write that was never acknowledged follow"
            yield Finding(Severity.NOTE, path, self.end, size - self.end, what, "the next writer leaves them out")


def committed_end(folder: Path, manifest: Manifest) -> Ended:
    """Where the last segment's committed units end. Raises `Unsettled` while a writer rolls or opens the branch."""
    last = manifest.segments[-1]
    if last.length is not None:
        return Ended(last.length, last.length, False)
    tail = TailReader(folder, last.epoch)
    try:
        note = tail.read()
    finally:
        tail.close()
    known = note.offset if note is not None and note.base_seq == last.base_seq else 0
    if writer_lives(folder, last.epoch):
        if not known:
            raise Unsettled
        return Ended(known, known, True)
    if last.epoch < manifest.epoch and writer_lives(folder, manifest.epoch):
        raise Unsettled
    path = folder / last.name
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = recover(fd, path, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    if found.rot or found.end < known:
        # The survey has to look behind the damage, so that it can be told how far it reaches.
        return Ended(max(known, os.stat(path).st_size if found.rot else 0), known, False, True, found.problem)
    return Ended(found.end, known, False, False, found.problem)
