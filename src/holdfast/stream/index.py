"""The index of a segment: which frame holds which bucket.

Only a convenience (L5): it is written when a segment is sealed, checked by its checksum when read, and built again from
the segment's headers when it is missing or wrong. A version and the segment's length stand in it, so an index of
another time is not mistaken for this one's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import CorruptLog
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FILE_HEADER_SIZE, FORMAT_VERSION, Kind, crc32c
from holdfast.stream.segment import Frame, Window, walk

_HEADER = struct.Struct("<8sHHIQQI")
_MAGIC = b"HOLDFIDX"
ENTRY = np.dtype([
    ("bucket", "<i8"), ("offset", "<u8"), ("length", "<u4"), ("rows", "<u4"), ("first_tuple_id", "<i8"),
    ("stime_min_us", "<i8"), ("stime_max_us", "<i8"), ("body_crc", "<u4"), ("partition", "<u2"), ("reserved", "<u2"),
])  # fmt: skip
#: The same layout for one entry at a time: numpy takes ten times as long to make one.
_PACKED = struct.Struct("<qQIIqqqIHH")
assert _PACKED.size == ENTRY.itemsize
pack_entry: Callable[..., bytes] = _PACKED.pack
Entries = npt.NDArray[np.void]
EMPTY: Entries = np.zeros(0, ENTRY)


class Fields(NamedTuple):
    """One entry as plain numbers."""

    bucket: int
    offset: int
    length: int
    rows: int
    first_tuple_id: int
    stime_min_us: int
    stime_max_us: int
    body_crc: int
    partition: int
    reserved: int = 0


def fields_of(frame: Frame) -> Fields:
    h = frame.header
    return Fields(h.bucket, frame.offset, h.length, h.rows, h.first_tuple_id, h.stime_min_us, h.stime_max_us,
                  h.body_crc, h.partition)  # fmt: skip


def make_entries(fields: Iterable[Fields]) -> Entries:
    return np.array(list(fields), ENTRY)


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".idx")


def encode_index(entries: Entries, segment_length: int) -> bytes:
    body: bytes = entries.tobytes()
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, ENTRY.itemsize, len(entries), segment_length, 0, crc32c(body))
    return head + crc32c(head).to_bytes(4, "little") + body


def decode_index(data: bytes, segment_length: int) -> Entries | None:
    """The entries, or None if this is not a sound index of a segment of that length."""
    size = _HEADER.size
    if len(data) < size + 4 or crc32c(data[:size]) != int.from_bytes(data[size : size + 4], "little"):
        return None
    magic, version, item, count, length, _, crc = _HEADER.unpack_from(data)
    body = data[size + 4 :]
    if (magic, version, item, length) != (_MAGIC, FORMAT_VERSION, ENTRY.itemsize, segment_length):
        return None
    if len(body) != count * item or crc32c(body) != crc:
        return None
    return np.frombuffer(body, ENTRY)


def stated_length(data: bytes) -> int:
    """The length of the segment that an index says it describes; -1 if it is too short to say anything."""
    return int(_HEADER.unpack_from(data)[4]) if len(data) >= _HEADER.size else -1


def build_entries(segment: Path, length: int) -> Entries:
    """The index as the segment's own headers tell it."""
    fd = os.open(segment, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end, fields = FILE_HEADER_SIZE, []
        for unit in walk(Window(fd, segment, length), FILE_HEADER_SIZE):
            fields += [fields_of(f) for f in unit.frames if f.header.kind == Kind.EVENT]
            end = unit.end
        if end != length:
            raise CorruptLog(f"{segment} at byte {end}: {length} bytes were committed, the rest is not there")
        return make_entries(fields)
    finally:
        os.close(fd)


def load_entries(segment: Path, length: int) -> Entries:
    """The index of a sealed segment, from its file if that is sound, from the segment otherwise."""
    try:
        found = decode_index(index_path(segment).read_bytes(), length)
    except OSError:
        found = None
    return found if found is not None else build_entries(segment, length)


def write_index(segment: Path, entries: Entries, length: int, disk: Disk) -> None:
    disk.replace_file(index_path(segment), encode_index(entries, length))
