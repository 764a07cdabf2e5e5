"""Checkpoints in RocksDB (the package `rocksdict`), each write synced to its log."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.checkpoint.stores.envelope import unwrap, version_of, wrap
from holdfast.model.errors import StorageError, UsageError
from holdfast.stream.disk import storage_error
from holdfast.stream.frame import crc32c

#: More than callers we expect, so that writers of different keys seldom meet.
_STRIPES = 1024


class RocksStore(CheckpointStore):
    durability = "on disk: RocksDB's log is synced before each answer"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from rocksdict import Options, Rdict, WriteBatch, WriteOptions
        except ImportError:
            raise UsageError(
                "a rocksdb store needs the package rocksdict; pip install 'holdfast-streams[rocksdb]'"
            ) from None
        self.folder = Path(folder)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error("create", self.folder, error) from error
        try:
            self._db = Rdict(str(self.folder), options)
        except Exception as error:  # The package raises plain Exceptions.
            raise StorageError(f"could not open RocksDB in {self.folder}: {error}; is another process in it?") from None
        self._durable = WriteOptions()
        self._durable.sync = True
        self._batch = WriteBatch
        self._db.set_write_options(self._durable)
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._closed = False

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self._check()
        stripes = sorted({crc32c(entry.key) % _STRIPES for entry in entries})
        with contextlib.ExitStack() as held:
            # In one order, so that two batches cannot wait for each other. Held through the sync: RocksDB lets writers
            # of other keys share it.
            for stripe in stripes:
                held.enter_context(self._stripes[stripe])
            return self._write_held(entries)

    def _write_held(self, entries: Sequence[Entry]) -> list[bool]:
        taken, batch = [], self._batch(raw_mode=True)
        versions: dict[bytes, int] = {}
        for entry in entries:
            if entry.key not in versions:
                raw = self._get(entry.key)
                versions[entry.key] = -1 if raw is None else version_of(raw)
            takes = entry.version >= versions[entry.key]
            taken.append(takes)
            if takes:
                batch.put(entry.key, wrap(entry))
                versions[entry.key] = entry.version
        try:
            if any(taken):
                self._db.write(batch, self._durable)
        except Exception as error:
            raise StorageError(f"could not write to RocksDB in {self.folder}: {error}; check the disk") from None
        return taken

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._db.get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise StorageError(f"could not read from RocksDB in {self.folder}: {error}; check the disk") from None

    def _check(self) -> None:
        if self._closed:
            raise StorageError(f"the checkpoint store {self.folder} is closed; open it again")

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        self._check()
        raws = [self._get(key) for key in keys]
        return [
            None if raw is None else unwrap(key, raw, str(self.folder)) for key, raw in zip(keys, raws, strict=True)
        ]

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        self._check()
        found = []
        for key, raw in self._db.items(from_key=prefix or None):
            if not key.startswith(prefix):
                break
            saved = unwrap(key, raw, str(self.folder))
            if saved is not None:
                found.append((key, saved.version))
        return found

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._db.close()
