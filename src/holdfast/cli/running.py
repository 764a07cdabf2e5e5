"""Which process is a host: a pid file under a lock that only the living can hold.

Rules:
1. A host claims `.holdfast/host.pid` below its root before anything else and holds the lock until it ends, however it
   ends. The file's text is for people; what counts is the lock, and the kernel says whose it is.
2. A signal goes through a pid descriptor that was opened before the lock's holder was asked for, so it cannot reach a
   process that got the number later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

from holdfast.host.deployment import HostSpec
from holdfast.model.errors import UsageError
from holdfast.stream.disk import Disk

#: `struct flock` of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def pid_file(spec: HostSpec) -> Path:
    return spec.own / "host.pid"


def log_file(spec: HostSpec) -> Path:
    return spec.log_file


@contextlib.contextmanager
def claimed(spec: HostSpec) -> Iterator[None]:
    """Be the host, as long as the block lasts. Refused while another process is."""
    Disk().make_dir(spec.own)
    fd = os.open(pid_file(spec), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"host {spec.name!r} is up already (pid {_holder(fd)}); `holdfast down` stops it"
            ) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        try:
            yield
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def holder(spec: HostSpec) -> int | None:
    """The pid of the living host; 0 if it is one that cannot be seen from here; None if there is none."""
    try:
        fd = os.open(pid_file(spec), os.O_RDWR | os.O_CLOEXEC)
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


class Running:
    """A living host process, held by a pid descriptor."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid, self._descriptor = pid, descriptor

    @classmethod
    def find(cls, spec: HostSpec) -> Running | None:
        pid = holder(spec)
        if not pid:
            return None
        try:
            running = cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        if holder(spec) != pid:  # It ended between the two questions, and the number may be somebody else's by now.
            running.close()
            return None
        return running

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def ended(self, within_us: int) -> bool:
        """Wait for the end of the process, at most so long."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(within_us / 1000))

    def close(self) -> None:
        os.close(self._descriptor)
