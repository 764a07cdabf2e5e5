"""The files of the log store: numbered segments, of which the last one grows.

Rules:
1. A unit is written and synced before the next one is begun, so only the last one can be torn.
2. A segment begins with a header that names the store and the unit before its first one.
3. After a failed write or sync nothing more is acknowledged: what the disk has cannot be known (L9).
4. Large units go past the page cache: see `log_direct`.
5. Files stay open for readers who hold them, also when they are removed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoint.stores.log_direct import Laid
from holdfast.model.errors import StorageError
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import FILE_HEADER_SIZE, FileHeader, encode_file_header

#: Small units go into space that was zeroed before (see `Disk.reserve`); larger ones would pay for it twice.
_RESERVE_BYTES = 1 << 20
_RESERVE_UNIT_MAX = 128 << 10
_NO_RESERVE = 1 << 62
#: Segments kept open for reading.
_OPEN_MAX = 64


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:010d}"


def segment_numbers(folder: Path) -> list[int]:
    return sorted(int(path.name[8:]) for path in folder.glob("segment-*") if path.name[8:].isdigit())


class Reading:
    """An open segment; closed when the last one who reads it lets go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, at: int, length: int) -> bytes:
        try:
            return os.pread(self.fd, length, at)
        except OSError as error:
            raise storage_error("read", self.path, error) from error

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


class Segments:
    """Appends to the last segment, reads from all."""

    def __init__(self, folder: Path, disk: Disk, store_id: bytes, segment_bytes: int) -> None:
        self.folder, self.disk, self._store_id, self._limit = folder, disk, store_id, segment_bytes
        self._open: OrderedDict[int, Reading] = OrderedDict()
        self._mutex = threading.Lock()
        self.sizes: dict[int, int] = {}
        """Bytes of each segment up to its last unit."""
        self.number, self.offset, self.seq = 0, 0, 0
        self._fd, self._path, self._reserved = -1, folder, 0
        self.broken: StorageError | None = None

    def go_on(self, number: int, offset: int, seq: int) -> None:
        """Continue where recovery found the end; number 0 means that nothing was written yet."""
        self.number, self.offset, self.seq = number, offset, seq
        if number:
            self._path = segment_path(self.folder, number)
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise storage_error("open", self._path, error) from error
            self._reserved = offset

    def room_for(self, length: int, now_us: int) -> None:
        """Begin the next segment if the unit does not fit this one."""
        if self.broken is not None:
            raise StorageError(f"{self.broken}; close the store and open it again")
        if self._fd >= 0 and (self.offset + length <= self._limit or self.offset == FILE_HEADER_SIZE):
            return
        try:
            self._begin(self.number + 1, now_us)
        except StorageError as error:
            self.broken = error
            raise

    def _begin(self, number: int, now_us: int) -> None:
        path = segment_path(self.folder, number)
        fd = self.disk.create(path)
        try:
            self.disk.write(fd, path, 0, [encode_file_header(FileHeader(1, now_us, self.seq, self._store_id))])
            self.disk.sync(fd, path)
            self.disk.sync_dir(self.folder)
        except BaseException:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path, self.number = fd, path, number
        self.offset = self._reserved = FILE_HEADER_SIZE
        self.sizes[number] = FILE_HEADER_SIZE

    def append(self, parts: list[bytes]) -> None:
        """Write one unit durably at `offset`."""
        length = sum(map(len, parts))
        with self._appending(length):
            self._reserve(length)
            self.disk.write(self._fd, self._path, self.offset, parts)

    def append_large(self, unit: Laid) -> None:
        """The same past the page cache."""
        with self._appending(unit.size):
            if unit.lead:
                self.disk.write(self._fd, self._path, self.offset, [unit.lead])
            self.disk.write_direct(self._fd, self._path, self.offset + len(unit.lead), unit.pages)

    @contextlib.contextmanager
    def _appending(self, length: int) -> Iterator[None]:
        try:
            yield
            self.disk.sync(self._fd, self._path)
        except StorageError as error:
            self.broken = error
            raise
        self.offset += length
        self.seq += 1
        self.sizes[self.number] = self.offset

    def _reserve(self, length: int) -> None:
        if self.offset + length <= self._reserved or length > _RESERVE_UNIT_MAX:
            return
        begin = max(self._reserved, self.offset)
        ahead = min(self.offset, _RESERVE_BYTES, self._limit - begin)
        if ahead < length:
            return
        room = self.disk.reserve(self._fd, self._path, begin, ahead)
        self._reserved = begin + ahead if room else _NO_RESERVE

    def reading(self, number: int) -> Reading:
        with self._mutex:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = Reading(segment_path(self.folder, number))
                if len(self._open) > _OPEN_MAX:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return found

    def remove(self, numbers: list[int]) -> None:
        """Remove files that nothing durable refers to any more."""
        for number in numbers:
            self.disk.unlink(segment_path(self.folder, number))
            self.sizes.pop(number, None)
            with self._mutex:
                self._open.pop(number, None)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with self._mutex:
            self._open.clear()
