"""The head: what retention has removed from the front of a branch.

It is a file of its own, so that retention can run beside a living writer without touching the manifest, and it is
durable before the first segment is deleted (L8). Whoever changes it reads it under the lock that it writes it under
(`alone`): the retention of the disk runs beside that of the archive, and each must keep what the other has noted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.model.time import BEGINNING_US
from holdfast.stream.disk import Disk, file_mode
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

#: The lock, and the note of the last run of the disk's retention: its time is that of the run.
LOCK = "retention.lock"


class Head(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    first_base_seq: int = 0
    """Segments that begin before this commit are not on the disk any more."""
    removed_until_us: int = BEGINNING_US
    """Tuples before this stime may be gone."""
    archived_seq: int = 0
    """Segments that begin before this commit have left the disk for the archive: they must stand in its note."""
    removed_rows: int = 0
    removed_bytes: int = 0


_NOTHING = Head()


def read_head(folder: Path) -> Head:
    path = folder / "head"
    try:
        return unseal(path.read_bytes(), Head, str(path))
    except FileNotFoundError:
        return _NOTHING


def write_head(folder: Path, head: Head, disk: Disk) -> None:
    disk.replace_file(folder / "head", seal(head))


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[int | None]:
    """Two runs of retention would each think that the other's files are its own to count. Gives the lock's file; None
    if another run has it, and we do not wait."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        fd = -1
    try:
        yield None if fd < 0 else fd
    finally:
        if fd >= 0:
            os.close(fd)
