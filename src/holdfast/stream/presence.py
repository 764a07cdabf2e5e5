"""Presence: is a named subscriber there? A stream that is persisted on demand keeps in memory what all of them take.

A subscriber holds a lock on its file below `readers` for as long as its process lives; the kernel lets go of it with
the process, however that ends. One that reads over the network has no process here: it is there while its
acknowledgements keep coming. A name that was used on this machine once is looked for here only: over the network it
counts as away, and the stream is persisted.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.model.names import check_name
from holdfast.stream.acks import Acknowledged
from holdfast.stream.disk import Disk, file_mode, make_private

#: How long one without a process here counts as there after its last acknowledgement.
_NETWORK_US = 2_000_000


def _path(stream_folder: Path, subscriber: str) -> Path:
    return stream_folder / "readers" / check_name(subscriber)


class Presence:
    """Shows that a subscriber is there until it is closed, or the process ends."""

    def __init__(self, stream_folder: Path, subscriber: str) -> None:
        path = _path(stream_folder, subscriber)
        make_private(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # A subscriber may be there several times.

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def is_present(stream_folder: Path, subscriber: str, acknowledged: Acknowledged, now_us: int) -> bool:
    try:
        fd = os.open(_path(stream_folder, subscriber), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return abs(now_us - acknowledged.wall_us) < _NETWORK_US
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def forget_presence(stream_folder: Path, subscriber: str, disk: Disk) -> None:
    disk.unlink(_path(stream_folder, subscriber))
