"""One file per key, as the seeds' first backend (002 §3.1) and SPADE's OPState (004 §4.2) did it.

Rules:
1. A checkpoint is written to a temporary file, synced, and renamed over the old one; then the folder is synced. So a
   file holds one whole checkpoint or another, never parts of two (C6).
2. The last `keep` versions stay: before the rename, the current file becomes `.1`, that one `.2`, and so on. When the
   newest does not match its checksum, the one before is returned and the skip is counted; never silently nothing.
3. A file's name is the BLAKE2b digest of its key, so no key can reach outside the folder (X2); the key stands inside.

Simple, needs nothing, and reads back without an index. It pays two syncs per checkpoint: see `log` for many keys.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.checkpoint.stores.envelope import unwrap, version_of, wrap
from holdfast.checkpoint.stores.owner import Owner
from holdfast.model.errors import CorruptLog, UsageError
from holdfast.stream.disk import Disk, storage_error

#: Writers of different keys go on side by side; more stripes than callers we expect keep them from meeting by chance.
_STRIPES = 256


class FilesStore(CheckpointStore):
    durability = "on disk: file and folder synced before each answer"

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2, disk: Disk | None = None) -> None:
        if keep < 1:
            raise UsageError(f"a files store must keep at least 1 version; got {keep}")
        self.folder, self.keep, self._disk = Path(folder), keep, disk or Disk()
        self._disk.make_dir(self.folder)
        self._owner = Owner(self.folder)
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        for path in self.folder.glob(".*.tmp"):
            self._disk.unlink(path)  # Of a write that a crash came between.

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self._owner.check()
        return [self._write_one(entry) for entry in entries]

    def _write_one(self, entry: Entry) -> bool:
        name = _name(entry.key)
        with self._stripes[int(name[:2], 16)]:
            if self._newest_version(name) > entry.version:
                return False
            temporary = self.folder / f".{name}.tmp"
            self._store(temporary, [len(entry.key).to_bytes(2, "little") + entry.key, wrap(entry)])
            for age in range(self.keep - 1, 0, -1):
                older, newer = self._path(name, age), self._path(name, age - 1)
                if newer.exists():
                    self._disk.rename(newer, older)
            self._disk.rename(temporary, self._path(name, 0))
        self._disk.sync_dir(self.folder)  # Outside the stripe: the names are in place, and syncs of many overlap.
        return True

    def _store(self, path: Path, parts: list[bytes]) -> None:
        if path.exists():
            self._disk.unlink(path)  # A write that failed half-way.
        fd = self._disk.create(path)
        try:
            self._disk.write(fd, path, 0, parts)
            self._disk.sync(fd, path)
        finally:
            os.close(fd)

    def _newest_version(self, name: str) -> int:
        for age in range(self.keep):
            raw = self._content(self._path(name, age))
            if raw is not None:
                try:
                    key, wrapped = _split(raw)
                    unwrap(key, wrapped, str(self._path(name, age)))
                    return version_of(wrapped)
                except (CorruptLog, ValueError):
                    continue  # Damaged: what it was cannot be told; the version before decides.
        return -1

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        return [self._read_one(key) for key in keys]

    def _read_one(self, key: bytes) -> Saved | None:
        name = _name(key)
        problem: CorruptLog | None = None
        with self._stripes[int(name[:2], 16)]:
            passed = 0
            for age in range(self.keep):
                path = self._path(name, age)
                raw = self._content(path)
                if raw is None:
                    continue
                try:
                    saved = unwrap(key, _split(raw)[1], str(path))
                except CorruptLog as error:
                    problem, passed = error, passed + 1
                    continue
                return saved and saved._replace(passed_over=passed)
        if problem is not None:
            raise problem
        return None

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        names = {
            path.name.partition(".")[0] for path in self.folder.iterdir() if len(path.name.partition(".")[0]) == 32
        }
        found = []
        for name in sorted(names):
            for age in range(self.keep):
                raw = self._content(self._path(name, age))
                if raw is None:
                    continue
                try:
                    key, wrapped = _split(raw)
                    saved = unwrap(key, wrapped, name)
                except CorruptLog:
                    continue
                if saved is not None and key.startswith(prefix):
                    found.append((key, saved.version))
                break
        return sorted(found)

    def close(self) -> None:
        self._owner.release()

    def _path(self, name: str, age: int) -> Path:
        return self.folder / (f"{name}.{age}" if age else name)

    def _content(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error


def _name(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def _split(raw: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(raw[:2], "little")
    if len(raw) < 2 + length:
        raise CorruptLog("the file is shorter than its key; restore an earlier one")
    return raw[2 : 2 + length], raw[2 + length :]
