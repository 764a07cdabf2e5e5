"""Opening a log store: the index from its flush and the tail of the log behind it (002 §3.4, figure 3.3).

Rules:
1. The flush gives the index up to a position; the tables of the units behind it give the rest. Without a usable flush
   every segment is walked: the result is the same (L5).
2. Only the last unit can be torn, and it was never acknowledged: it is cut (L3, C6). Anything else that does not fit is
   damage to something acknowledged: it is reported, and the store opens only for a caller who accepts that (L4).
3. Segments that neither the flush nor the tail refers to are left from a collection that a crash came between. They go.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.stores.log_flush import Position, read_flush
from holdfast.checkpoint.stores.log_index import Base, Chunk
from holdfast.checkpoint.stores.log_segments import segment_numbers, segment_path
from holdfast.checkpoint.stores.log_unit import Unit, Walk, whole
from holdfast.model.errors import CorruptLog
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import FILE_HEADER_SIZE, decode_file_header


class Recovered(NamedTuple):
    base: Base
    end: Position
    sizes: dict[int, int]
    """Segments that stay, with their bytes."""
    flushed: Position | None
    """Up to where the flush knew everything."""
    tail_units: int
    damage: list[str]


def recover(folder: Path, disk: Disk, store_id: bytes) -> Recovered:
    """The state of the store, with the torn end of the log cut off."""
    damage: list[str] = []
    try:
        flushed = read_flush(folder, store_id)
    except CorruptLog:
        flushed = None  # L5: the log itself says the same.
    numbers = segment_numbers(folder)
    base, start = Base(), Position(0, 0, 0)
    if flushed is not None:
        base, start = flushed.base, flushed.position
        needed = {*flushed.segments, start.segment} - {0}
        for missing in sorted(needed - set(numbers)):
            damage.append(f"{segment_path(folder, missing)} is gone although checkpoints are in it")
    sizes, tail = {}, _Tail(folder, disk, store_id, start, damage, flushed is not None)
    for number in numbers:
        path = segment_path(folder, number)
        if flushed is not None and number < start.segment:
            if number in flushed.segments:
                sizes[number] = path.stat().st_size
            else:
                disk.unlink(path)
        else:
            tail.take(number, last=number == numbers[-1])
    sizes |= tail.sizes
    return Recovered(base.merged(tail.chunks), tail.end, sizes, flushed and flushed.position, len(tail.chunks), damage)


class _Tail:
    """Walks segments in order and gathers their tables."""

    def __init__(
        self, folder: Path, disk: Disk, store_id: bytes, start: Position, damage: list[str], chained: bool
    ) -> None:
        self._folder, self._disk, self._store_id, self._damage, self._chained = folder, disk, store_id, damage, chained
        self.end = start
        self.chunks: list[Chunk] = []
        self.sizes: dict[int, int] = {}

    def take(self, number: int, last: bool) -> None:
        path = segment_path(self._folder, number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error("open", path, error) from error
        try:
            base_seq = self._begin(fd, path, number, last)
            if base_seq is not None:
                self._walk(fd, path, number, base_seq, last)
        finally:
            os.close(fd)

    def _begin(self, fd: int, path: Path, number: int, last: bool) -> int | None:
        """The number of the unit before the segment's first one; None if there is no such segment after all."""
        try:
            header = decode_file_header(os.pread(fd, FILE_HEADER_SIZE, 0), str(path))
        except CorruptLog as error:
            if last and number > self.end.segment and not any(os.pread(fd, 4096, FILE_HEADER_SIZE)):
                self._disk.unlink(path)  # Cut off while it was begun: nothing in it was ever acknowledged.
            else:
                self._damage.append(str(error))
            return None
        if header.stream_id != self._store_id:
            self._damage.append(f"{path}: the segment belongs to another store")
            return None
        # Without a flush, segments that were collected leave gaps; with one, everything behind it must be there.
        if self._chained and number > self.end.segment and header.base_seq != self.end.seq:
            self._damage.append(
                f"{path}: begins after unit {header.base_seq}, but {self.end.seq} is the last one known"
            )
        return header.base_seq

    def _walk(self, fd: int, path: Path, number: int, base_seq: int, last: bool) -> None:
        size = os.fstat(fd).st_size
        start, seq = (self.end.offset, self.end.seq) if number == self.end.segment else (FILE_HEADER_SIZE, base_seq)
        if start > size:
            self._damage.append(f"{path}: {size} bytes are left of at least {start}")
        data = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        walk = Walk(data, path, min(start, size), seq)
        units = list(walk)
        end, seq, torn = walk.end, walk.seq, walk.torn
        self._damage += walk.damage
        if not last and torn:
            self._damage.append(f"{path} at byte {end}: the rest cannot be read although a later segment was begun")
        elif last and units and not whole(data, units[-1]):
            cut = units.pop()
            end, seq, torn = cut.offset, seq - 1, True
        self.chunks += [_chunk(number, unit) for unit in units]
        if last and (torn or walk.littered):
            self._disk.truncate(fd, path, end)
            self._disk.sync(fd, path)
        self.sizes[number] = end
        self.end = Position(number, end, seq)


def _chunk(number: int, unit: Unit) -> Chunk:
    return Chunk(number, unit.body_at, unit.rows)
