"""A place on disk that one process has at a time: a lock on a file that only the living can hold.

Rules:
1. The lock is held until its block ends, however its process ends. The file's text is for people; what counts is the
   lock, and the kernel says whose it is.
2. The kernel's locks are those of processes, so who has it within this one is noted here, with the number of the
   process: a child that was forked has none of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.model.errors import UsageError
from holdfast.stream.disk import Disk

#: `struct flock` of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_own: dict[Path, int] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def claimed(file: Path, refusal: Callable[[int], str]) -> Iterator[None]:
    """Have the place as long as the block lasts. `refusal` says what is wrong if the process of that number has it."""
    path = file.absolute()
    with _guard:
        if _own.get(path) == os.getpid():
            raise UsageError(refusal(os.getpid()))
        _own[path] = os.getpid()
    try:
        with _locked(path, refusal):
            yield
    finally:
        with _guard:
            _own.pop(path, None)


@contextlib.contextmanager
def _locked(path: Path, refusal: Callable[[int], str]) -> Iterator[None]:
    Disk().make_dir(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(refusal(_holder(fd) or 0)) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        try:
            yield
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def holder(file: Path) -> int | None:
    """The pid of the living process that has it; 0 if that cannot be seen from here; None if there is none."""
    path = file.absolute()
    with _guard:  # To close any descriptor of a file gives its locks back.
        if _own.get(path) == os.getpid():
            return os.getpid()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return _holder(fd)
        finally:
            os.close(fd)


def _holder(fd: int) -> int | None:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
