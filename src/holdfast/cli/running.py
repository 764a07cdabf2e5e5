"""Which process is a host: a pid file under a lock that only the living can hold.

Rules:
1. A host claims `.holdfast/host.pid` below its root before anything else and holds the lock until it ends, however it
   ends (`holdfast.host.process_lock`).
2. A signal goes through a pid descriptor that was opened before the lock's holder was asked for, so it cannot reach a
   process that got the number later.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from contextlib import AbstractContextManager
from pathlib import Path

from holdfast.host import process_lock
from holdfast.host.deployment import HostSpec


def pid_file(spec: HostSpec) -> Path:
    return spec.pid_file


def log_file(spec: HostSpec) -> Path:
    return spec.log_file


def claimed(spec: HostSpec) -> AbstractContextManager[None]:
    """Be the host, as long as the block lasts. Refused while another process is."""
    return process_lock.claimed(
        pid_file(spec), lambda pid: f"host {spec.name!r} is up already (pid {pid}); `holdfast down` stops it"
    )


def holder(spec: HostSpec) -> int | None:
    """The pid of the living host; 0 if it is one that cannot be seen from here; None if there is none."""
    return process_lock.holder(pid_file(spec))


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
