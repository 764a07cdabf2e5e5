"""Checkpoints in this process's memory: for tests, and for state that may be lost with the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved


class MemoryStore(CheckpointStore):
    durability = "lost with the process"

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[int, bytes | None]] = {}
        self._mutex = threading.Lock()

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        taken = []
        with self._mutex:
            for key, version, value in entries:
                newest = version >= self._kept.get(key, (-1, None))[0]
                if newest:
                    self._kept[key] = (version, value)
                taken.append(newest)
        return taken

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        found: list[Saved | None] = []
        for key in keys:
            version, value = self._kept.get(key, (-1, None))
            found.append(None if value is None else Saved(version, value))
        return found

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        with self._mutex:
            kept = list(self._kept.items())
        return sorted((key, version) for key, (version, value) in kept if value is not None and key.startswith(prefix))

    def purge(self, prefix: bytes) -> None:
        with self._mutex:
            self._kept = {key: kept for key, kept in self._kept.items() if not key.startswith(prefix)}

    def close(self) -> None:
        pass
