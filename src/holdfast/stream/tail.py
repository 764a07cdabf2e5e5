"""The tail: how far the branch is durable, for readers in other processes.

A reader may not look at bytes that are written but not yet durable: after a power cut they would be gone although
somebody had acted on them (L2). So the writer notes the durable end here after each fdatasync. The note itself is never
synced: a lost note is merely old, and the next writer brings it up to date.

Two slots are written in turn, each with its checksum, so that a reader never sees half a note. Each epoch has a file
of its own, so that a writer that was fenced cannot overwrite the note of its successor.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from holdfast.stream.disk import file_mode
from holdfast.stream.frame import crc32c

_SLOT = struct.Struct("<QQQQqqI12x")
_NOTE, _CHECKSUM = struct.Struct("<QQQQqq"), struct.Struct("<I12x")
"""The two parts of a slot."""
_SLOT_BYTES = 64
assert _SLOT.size == _SLOT_BYTES


class Tail(NamedTuple):
    counter: int
    base_seq: int
    """Names the segment."""
    offset: int
    """Everything before it is durable and committed."""
    commit_seq: int
    boundary_us: int
    wall_us: int
    """Heartbeat: when the writer was last alive."""


def tail_path(folder: Path, epoch: int) -> Path:
    return folder / f"tail-{epoch:08d}"


def writer_lives(folder: Path, epoch: int) -> bool:
    """Is the owner of the epoch alive? It keeps a lock on its tail for as long as its process lives."""
    try:
        fd = os.open(tail_path(folder, epoch), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class TailWriter:
    def __init__(self, folder: Path, epoch: int) -> None:
        self.fd = os.open(tail_path(folder, epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
        newest = _newest(os.pread(self.fd, 2 * _SLOT_BYTES, 0))
        self._counter = newest.counter if newest else 0

    def note(self, base_seq: int, offset: int, commit_seq: int, boundary_us: int, wall_us: int) -> None:
        self._counter += 1
        note = _NOTE.pack(self._counter, base_seq, offset, commit_seq, boundary_us, wall_us)
        os.pwrite(self.fd, note + _CHECKSUM.pack(crc32c(note)), self._counter % 2 * _SLOT_BYTES)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class TailReader:
    """Reads the newest note; the file may not exist before the writer's first commit."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._path, self._fd = tail_path(folder, epoch), -1

    def read(self) -> Tail | None:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return _newest(os.pread(self._fd, 2 * _SLOT_BYTES, 0))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _newest(raw: bytes) -> Tail | None:
    best: Tail | None = None
    for at in range(0, len(raw) - _SLOT_BYTES + 1, _SLOT_BYTES):
        *fields, crc = _SLOT.unpack_from(raw, at)
        if crc == crc32c(raw[at : at + 48]) and fields[0] and (best is None or fields[0] > best.counter):
            best = Tail(*fields)
    return best
