"""The index of a segment: which frame holds which bucket.

Only a convenience (L5): it is checked by its checksum when read, and built again from the segment's headers when it is
missing or wrong. A version and the length that it describes stand in it, so an index of another time is not mistaken
for this one's. A writer that lets go of a segment adds what is new to it, so that opening and letting go cost the same
however long the segment is; it is made durable when the segment is sealed.
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
from holdfast.stream.frame import FILE_HEADER_SIZE, FORMAT_VERSION, Kind, crc32c, crc32c_on
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
    return _encode_header(len(entries), segment_length, crc32c(body)) + body


def _encode_header(count: int, segment_length: int, body_crc: int) -> bytes:
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, ENTRY.itemsize, count, segment_length, 0, body_crc)
    return head + crc32c(head).to_bytes(4, "little")


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
        return build_window(Window(fd, segment, length))
    finally:
        os.close(fd)


def build_window(window: Window) -> Entries:
    """The same of a segment that is open already, up to the window's end."""
    end, fields = FILE_HEADER_SIZE, []
    for unit in walk(window, FILE_HEADER_SIZE):
        fields += [fields_of(f) for f in unit.frames if f.header.kind == Kind.EVENT]
        end = unit.end
    if end != window.end:
        raise CorruptLog(f"{window.path} at byte {end}: {window.end} bytes were committed, the rest is not there")
    return make_entries(fields)


def load_entries(segment: Path, length: int) -> Entries:
    """The index of a sealed segment, from its file if that is sound, from the segment otherwise."""
    try:
        found = decode_index(index_path(segment).read_bytes(), length)
    except OSError:
        found = None
    return found if found is not None else build_entries(segment, length)


def load_prefix(window: Window) -> Entries:
    """The entries of a segment that is open, up to the window's end: its index may have been extended since."""
    try:
        data = index_path(window.path).read_bytes()
        # A branch may have been dropped and another begun: then the index of that name is not this segment's.
        if os.stat(window.path).st_ino != os.fstat(window.fd).st_ino:
            data = b""
    except OSError:
        data = b""
    # Whoever extends an index writes the entries first: those that the header does not count are not yet part of it.
    found = decode_index(data[: _stated_size(data)], stated_length(data))
    if found is None or stated_length(data) < window.end:
        return build_window(window)
    return found[found["offset"] < window.end]


def _stated_size(data: bytes) -> int:
    return _HEADER.size + 4 + _HEADER.unpack_from(data)[3] * ENTRY.itemsize if len(data) >= _HEADER.size else 0


def extend_index(segment: Path, entries: bytes, since: int, length: int, disk: Disk) -> bool:
    """Add the entries of the bytes from `since` (0: all) to `length` of the segment. Not synced, and not whole or
    nothing: a torn one does not match its checksum. False if the file is not the index of the first `since` bytes."""
    path = index_path(segment)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        if since:
            return False
        fd = disk.create(path)
    try:
        count, crc = 0, 0
        if since:
            head = os.pread(fd, _HEADER.size + 4, 0)
            if len(head) != _HEADER.size + 4 or crc32c(head[:-4]) != int.from_bytes(head[-4:], "little"):
                return False
            magic, version, item, count, stated, _, crc = _HEADER.unpack_from(head)
            if (magic, version, item, stated) != (_MAGIC, FORMAT_VERSION, ENTRY.itemsize, since):
                return False
        at, count = _HEADER.size + 4 + count * ENTRY.itemsize, count + len(entries) // ENTRY.itemsize
        if entries:
            disk.write(fd, path, at, [entries])
        disk.truncate(fd, path, at + len(entries))
        disk.write(fd, path, 0, [_encode_header(count, length, crc32c_on(crc, entries))])
    finally:
        os.close(fd)
    return True


def write_index(segment: Path, entries: Entries, length: int, disk: Disk) -> None:
    disk.replace_file(index_path(segment), encode_index(entries, length))


def sync_index(segment: Path, disk: Disk) -> None:
    """Make an index durable that was extended."""
    path = index_path(segment)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync(fd, path)
    finally:
        os.close(fd)
