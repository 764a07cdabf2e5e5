"""Fetching whole segments from an archive: to compare them, to bring a stream back, or to mend a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.model.errors import CorruptLog
from holdfast.stream.archive.catalog import ArchivedSegment
from holdfast.stream.archive.objects import MissingObject, ObjectStore, join
from holdfast.stream.archive.ranges import side_by_side
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c_on
from holdfast.stream.index import build_entries, decode_index, write_index

#: Of one request, and how many at a time: bounds memory.
_CHUNK, _CHUNKS = 8 << 20, 4


def chunks_of(objects: ObjectStore, key: str, length: int) -> Iterator[tuple[int, bytes]]:
    """An object's bytes in order, with their places."""
    starts = list(range(0, length, _CHUNK))
    for i in range(0, len(starts), _CHUNKS):
        some = starts[i : i + _CHUNKS]
        yield from zip(some, side_by_side(lambda at: objects.get(key, at, min(at + _CHUNK, length)), some), strict=True)


def download(objects: ObjectStore, place: str, segment: ArchivedSegment, path: Path, disk: Disk) -> None:
    """Make `path` hold the segment, and its index beside it: durably, and only if every byte is right (L4)."""
    key, length, crc = join(place, segment.key), segment.entry.length or 0, 0
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    disk.unlink(temporary)
    fd = disk.create(temporary)
    try:
        for at, data in chunks_of(objects, key, length):
            crc = crc32c_on(crc, data)
            disk.write(fd, temporary, at, [data])
        if crc != segment.crc:
            raise CorruptLog(
                f"{objects.url}/{key}: the segment does not match its checksum; nothing was changed here; restore "
                f"another version of the object, if the store keeps versions"
            )
        disk.sync(fd, temporary)
    except BaseException:
        disk.unlink(temporary)
        raise
    finally:
        os.close(fd)
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)
    try:
        entries = decode_index(objects.get(join(place, segment.index_key)), length)
    except MissingObject:
        entries = None
    write_index(path, build_entries(path, length) if entries is None else entries, length, disk)
