"""One process at a time in a store's folder.

Two processes that write the same files would overwrite each other's newer checkpoints. The lock is the kernel's, so it
goes with the process that held it, however that ended.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.model.errors import StorageError, StreamBusy
from holdfast.stream.disk import file_mode, storage_error


class Owner:
    """Holds `folder/lock` from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / "lock"
        try:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
        except OSError as error:
            raise storage_error("lock", path, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            self._fd = None
            raise StreamBusy(
                f"the checkpoint store {folder} must have one process at a time; another one holds it; "
                f"close it there or choose another folder"
            ) from None

    def check(self) -> None:
        if self._fd is None:
            raise StorageError(f"the checkpoint store {self._folder} is closed; open it again")

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
