"""Units: what one durable write of the log store puts on disk.

A unit is one frame (see `holdfast.stream.frame`) whose body is a table of fixed rows, one per record, followed by the
records, each a key and its value. Rules:

1. The table tells everything an index must know, so an index is rebuilt from tables alone, column by column, without
   reading values or looping over records (002 §3.4 promises the rebuild; figure 4.2 measures it).
2. Keys stand beside their values, so the records are the truth and every index can be lost (L5).
3. Each row has the checksum of its record: one value can be read and checked without its neighbours (L4). The table
   has one, too, in a field of the frame header that streams use for tuple ids; the frame's own covers all.
4. A key is known by its 128-bit BLAKE2b digest. Two keys with one digest are not to be expected in the lifetime of the
   universe, and a read compares the key itself as well.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.store import Pieces
from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import (
    ALIGNMENT,
    HEADER_SIZE,
    Header,
    crc32c,
    crc32c_on,
    decode_header,
    encode_frame,
    encode_frame_of,
    padded,
)  # fmt: skip

#: Frame kinds of checkpoint logs. Streams count from 1; these begin far above, so that neither is taken for the other.
KIND_UNIT = 33
KIND_INDEX = 34
#: `value_len` of a deletion.
GONE = 0xFFFFFFFF

_ROW = struct.Struct("<16sqIHHII")
ROW = np.dtype([("h1", "<u8"), ("h2", "<u8"), ("version", "<i8"), ("at", "<u4"), ("key_len", "<u2"), ("spare", "<u2"),
                ("value_len", "<u4"), ("crc", "<u4")])  # fmt: skip
ROW_SIZE = _ROW.size
pack_row: Callable[..., bytes] = _ROW.pack
#: Where the kind stands in a frame header: what may be one is found without decoding everything.
_KIND_BYTE = 9
#: Small units are joined before they are written, large ones are written piece by piece: from here on the copy costs
#: more than the pieces. More pieces than these would be joined for the system call anyhow.
_JOIN_BYTES = 256 << 10
_PIECES_MAX = 1000
assert ROW.itemsize == ROW_SIZE


class Place(NamedTuple):
    """Where a key's newest record stands."""

    version: int
    segment: int
    at: int
    """First byte of the key in the segment's file; the value follows it."""
    value_len: int
    crc: int


#: A `Place` of a tuple of its fields, a third of the time that calling the class takes: it is made for every record.
place_of: Callable[[tuple[int, int, int, int, int]], Place] = functools.partial(tuple.__new__, Place)


class Write(NamedTuple):
    """One record that wants to be written. With a source, it is a copy, taken only if the original is still current."""

    digest: bytes
    key: bytes
    version: int
    value: bytes | Pieces | None
    source: Place | None = None

    @property
    def size(self) -> int:
        """Bytes of it in a unit."""
        return ROW_SIZE + len(self.key) + (0 if self.value is None else length_of(self.value))


class Unit(NamedTuple):
    """A unit found in a segment."""

    offset: int
    header: Header
    rows: npt.NDArray[np.void]

    @property
    def body_at(self) -> int:
        return self.offset + HEADER_SIZE

    @property
    def end(self) -> int:
        return self.offset + self.header.size


def length_of(value: bytes | Pieces) -> int:
    return len(value) if isinstance(value, bytes) else sum(map(len, value))


def digest_of(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def encode_unit(writes: list[Write], seq: int, segment: int, offset: int) -> tuple[list[bytes], bytes, list[Place]]:
    """The parts to write at `offset`, the table, and where each record will stand."""
    rows, pieces, places = [], [], []
    at = len(writes) * ROW_SIZE
    body_at = offset + HEADER_SIZE
    for digest, key, version, value, _ in writes:
        crc, length = crc32c(key), GONE
        pieces.append(key)
        if value is not None:
            raw = value if isinstance(value, bytes) else b"".join(value)
            crc, length = crc32c_on(crc, raw), len(raw)
            pieces.append(raw)
        rows.append(pack_row(digest, version, at, len(key), 0, length, crc))
        places.append(place_of((version, segment, body_at + at, length, crc)))
        at += len(key) + (0 if value is None else length)
    table = b"".join(rows)
    header = Header(KIND_UNIT, 0, rows=len(writes), first_tuple_id=crc32c(table), commit_seq=seq)
    if at < _JOIN_BYTES or len(pieces) > _PIECES_MAX:
        return encode_frame(header, b"".join((table, *pieces))), table, places
    return encode_frame_of(header, (table, *pieces)), table, places


def rows_of(table: bytes) -> npt.NDArray[np.void]:
    return np.frombuffer(table, ROW)


class Walk:
    """Iterate for the units of a mapped segment from `start` on; afterwards the attributes say how it ended.

    `seq` is the number of the unit before the first one wanted: units are numbered without gaps. A unit is begun only
    when the one before it is durable. So bytes that do not fit are the torn end of the last write if nothing later
    follows them, and otherwise damage to something acknowledged: that is noted, and the walk goes on behind it.
    """

    def __init__(self, data: mmap.mmap | bytes, path: Path, start: int, seq: int) -> None:
        self._data, self._path = data, path
        self.end, self.seq = start, seq
        """Where the last unit ends, and its number."""
        self.torn = self.littered = False
        self.damage: list[str] = []

    def __iter__(self) -> Iterator[Unit]:
        size = len(self._data)
        offset = self.end
        while offset + HEADER_SIZE <= size:
            unit, problem = None, None
            try:
                unit = self._unit(offset, size)
            except CorruptLog as error:
                problem = str(error)
            if unit is not None and unit.header.commit_seq == self.seq + 1:
                yield unit
                offset = self.end = unit.end
                self.seq += 1
                continue
            later = self._later(offset)
            if later is None:
                self.torn = unit is not None or problem is not None
                # Behind a head that never came there may be pages of the unit that did.
                self.littered = bool(np.frombuffer(self._data, np.uint8, offset=offset).any())
                return
            missing = f"{self._path} at byte {offset}: units {self.seq + 1} to {later[1] - 1} are missing or damaged"
            self.damage.append(problem or missing)
            offset, self.seq = later[0], later[1] - 1
        self.torn = offset < size and any(self._data[offset:])

    def _later(self, offset: int) -> tuple[int, int] | None:
        """Place and number of the first unit after the next one."""
        count = (len(self._data) - offset) // ALIGNMENT
        heads = np.frombuffer(self._data, np.uint8, count * ALIGNMENT, offset).reshape(count, ALIGNMENT)
        for i in np.flatnonzero(heads[:, _KIND_BYTE] == KIND_UNIT):
            at = offset + int(i) * ALIGNMENT
            try:
                header = decode_header(self._data, at, "")  # type: ignore[arg-type]
            except CorruptLog:
                continue
            if header is not None and header.commit_seq > self.seq + 1:
                return at, header.commit_seq
        return None

    def _unit(self, offset: int, size: int) -> Unit | None:
        where = f"{self._path} at byte {offset}"
        header = decode_header(self._data, offset, where)  # type: ignore[arg-type]
        if header is None:
            return None
        end = header.rows * ROW_SIZE
        if header.kind != KIND_UNIT or end > header.length or offset + header.size > size:
            raise CorruptLog(f"{where}: the unit does not fit its file")
        rows = np.frombuffer(self._data, ROW, header.rows, offset + HEADER_SIZE)
        if crc32c(rows.view(np.uint8)) != header.first_tuple_id:  # type: ignore[arg-type]
            raise CorruptLog(f"{where}: the table of the unit does not match its checksum")
        return Unit(offset, header, rows)


def whole(data: mmap.mmap | bytes, unit: Unit) -> bool:
    """Do all bytes of the unit match its checksum?"""
    body = np.frombuffer(data, np.uint8, padded(unit.header.length), unit.body_at)
    return crc32c(body) == unit.header.body_crc  # type: ignore[arg-type]
