"""What a participant must not forget, on disk: the core's records, in the order in which they became true.

    file    frame*
    frame   length, CRC32C, JSON list of [kind, fields], spaces up to a multiple of 8; all records of one signal

Rules:
1. A frame is durable before what came with it is said or done; it is there whole, or not at all (`Effects`, rule 1).
2. A torn end is cut when the file is opened: nobody has heard of it. Damage before the end is refused.
3. When the file has grown, it is replaced by the shortest list of records from which the same state comes back.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
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
_FRAME = struct.Struct("<II")
_FRAME_BYTES_MAX = 64 << 20
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(records.Record)}
#: Of a file that begins with something else we know nothing.
_MARK = b"HOLDBOOK\x01\x00\x00\x00\x00\x00\x00\x00"


def encode_records(records_: Sequence[Record]) -> bytes:
    body = msgspec.json.encode([[type(record).__name__, record] for record in records_])
    body += b" " * (-len(body) % _FRAME.size)  # So that no header lies across two sectors: it is there, or it is not.
    return _FRAME.pack(len(body), crc32c(body)) + body


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
        self._end = self._read()

    def _read(self) -> int:
        data = self.path.read_bytes()
        if data[: len(_MARK)] != _MARK:
            raise CorruptLog(f"{self.path}: this is no journal of ours, or of another version; restore it")
        at = len(_MARK)
        while at < len(data):
            if len(data) - at < _FRAME.size:
                break
            length, crc = _FRAME.unpack_from(data, at)
            if not length:
                break  # Zeros: space that was given to the file and never written.
            body = data[at + _FRAME.size : at + _FRAME.size + length]
            if length > _FRAME_BYTES_MAX or len(body) < length or crc32c(body) != crc:
                if at + _FRAME.size + length < len(data) and length <= _FRAME_BYTES_MAX:
                    raise CorruptLog(
                        f"{self.path} at byte {at}: a record that was acknowledged cannot be read; restore the file"
                    )
                break
            self.records += decode_records(body, str(self.path))
            at += _FRAME.size + length
        if at < len(data):
            self._disk.truncate(self._fd, self.path, at)
            self._disk.sync(self._fd, self.path)
        return at

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
        return self._end > SHORTEN_BYTES

    def shorten(self, kept: Iterable[Record]) -> None:
        """Rule 3, whole or not at all."""
        self._disk.replace_file(self.path, _MARK + encode_records(tuple(kept)))
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._end = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
