"""What a participant must not forget, on disk: the core's records, in the order in which they became true.

    file    mark, frame*
    frame   length, CRC32C of the body, nothing, CRC32C of those three; JSON list of [kind, fields], spaces up to a
            multiple of 16; all records of one signal

Rules:
1. A frame is durable before what came with it is said or done; it is there whole, or not at all (`Effects`, rule 1).
2. A torn end is cut when the file is opened: nobody has heard of it. Damage before the end is refused: whatever cannot
   be read is a torn end only if no frame comes behind it.
3. When the file has doubled, it is replaced by the shortest list of records from which the same state comes back, in
   frames of bounded length. So what does not become shorter is written twice on average, not with every record.
4. A file of version 1, whose headers had no checksum, is read and replaced at once.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from holdfast.model.errors import CorruptLog, StorageError
from holdfast.protocol.load import records
from holdfast.protocol.load.records import Record
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c

#: Some thousand leases; read in a moment at every start.
SHORTEN_BYTES = 1 << 20
_FRAME = struct.Struct("<IIII")
_FRAME_1 = struct.Struct("<II")
#: What one signal may bring. Thousands of times more than any does: only a fault of ours would.
_FRAME_BYTES_MAX = 64 << 20
#: Records of a snapshot that go into one frame: some hundred kilobytes.
_SNAPSHOT_RECORDS = 1024
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(records.Record)}
#: Of a file that begins with something else we know nothing.
_MARK = b"HOLDBOOK\x02\x00\x00\x00\x00\x00\x00\x00"
_MARK_1 = b"HOLDBOOK\x01\x00\x00\x00\x00\x00\x00\x00"

_Header = Callable[[bytes, int], tuple[int, int] | None]


def encode_records(records_: Sequence[Record]) -> bytes:
    body = msgspec.json.encode([[type(record).__name__, record] for record in records_])
    body += b" " * (-len(body) % _FRAME.size)  # So that no header lies across two sectors: it is there, or it is not.
    if len(body) > _FRAME_BYTES_MAX:
        raise StorageError(f"records of one signal must have {_FRAME_BYTES_MAX} bytes at most; these have {len(body)}")
    said = _FRAME.pack(len(body), crc32c(body), 0, 0)[:12]
    return said + crc32c(said).to_bytes(4, "little") + body


def _header(data: bytes, at: int) -> tuple[int, int] | None:
    """Length and checksum of the body; None if there is no header."""
    length, crc, nothing, own = _FRAME.unpack_from(data, at)
    right = length and not nothing and crc32c(data[at : at + 12]) == own
    return (length, crc) if right else None


def _header_1(data: bytes, at: int) -> tuple[int, int] | None:
    """The same in version 1: only the body can prove it."""
    length, crc = _FRAME_1.unpack_from(data, at)
    start = at + _FRAME_1.size
    right = length and start + length <= len(data) and crc32c(data[start : start + length]) == crc
    return (length, crc) if right else None


def decode_records(body: bytes, where: str) -> list[Record]:
    try:
        return [msgspec.convert(fields, _KINDS[kind]) for kind, fields in msgspec.json.decode(body)]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise CorruptLog(f"{where}: a record cannot be read ({error}); it was written by another version") from error


class Journal:
    """One file, one writer. `records` is what it held when it was opened."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self._disk = path, disk or Disk()
        self._disk.make_dir(path.parent)
        if not path.exists():
            self._disk.replace_file(path, _MARK)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.records: list[Record] = []
        self._short = 0
        """How long it was when it was last shortened."""
        self._end = self._read()

    def _read(self) -> int:
        data = self.path.read_bytes()
        mark = data[: len(_MARK)]
        if mark not in (_MARK, _MARK_1):
            raise CorruptLog(f"{self.path}: this is no journal of ours, or of another version; restore it")
        size, header = (_FRAME.size, _header) if mark == _MARK else (_FRAME_1.size, _header_1)
        at = len(_MARK)
        while len(data) - at >= size:
            head = header(data, at)
            body = b"" if head is None else data[at + size : at + size + head[0]]
            if head is None or len(body) < head[0] or crc32c(body) != head[1]:
                self._check_end(data, at, size, header)
                break
            self.records += decode_records(body, str(self.path))
            at += size + len(body)
        if mark == _MARK_1:
            return self._replace(self.records)
        if at < len(data):
            self._disk.truncate(self._fd, self.path, at)
            self._disk.sync(self._fd, self.path)
        return at

    def _check_end(self, data: bytes, at: int, size: int, header: _Header) -> None:
        """Rule 2. Frames are written one after the other: behind one that is torn there is none."""
        for behind in range(at + size, len(data) - size + 1, size):
            if header(data, behind) is not None:
                raise CorruptLog(
                    f"{self.path} at byte {at}: a record that was acknowledged cannot be read; restore the file"
                )

    def append(self, new: Sequence[Record]) -> None:
        """Rule 1: returns when they are durable."""
        if self._fd < 0:
            raise StorageError(f"{self.path}: the journal has failed before; start the host again")
        fd, self._fd = self._fd, -1  # After a failed write nothing more may be promised (L9).
        self._end += self._disk.write(fd, self.path, self._end, [encode_records(new)])
        self._disk.sync(fd, self.path)
        self._fd = fd

    @property
    def long(self) -> bool:
        return self._end > max(SHORTEN_BYTES, 2 * self._short)

    def shorten(self, kept: Iterable[Record]) -> None:
        """Rule 3, whole or not at all."""
        self._end = self._short = self._replace(tuple(kept))

    def _replace(self, kept: Sequence[Record]) -> int:
        fd, self._fd = self._fd, -1  # If it fails, nobody knows which of the two files will be there (L9).
        if fd < 0:
            raise StorageError(f"{self.path}: the journal has failed before; start the host again")
        os.close(fd)
        parts = [kept[i : i + _SNAPSHOT_RECORDS] for i in range(0, len(kept), _SNAPSHOT_RECORDS)]
        self._disk.replace_file(self.path, b"".join([_MARK, *map(encode_records, parts)]))
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
