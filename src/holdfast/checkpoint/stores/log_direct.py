"""Large units on their way to the disk past the page cache.

The intuition: a checkpoint is written often and read once, after a crash. Through the page cache it costs a copy, a
page for every 4 KiB of it, and the search for these pages when its segment is collected: more processor time than
it took to make it.

1. Such a unit is laid out in a room that is aligned as the kernel wants it and stays, so that no memory has to be found
   for it. The pieces of values are copied there once; checksums are taken of what stands there.
2. It ends where a page of the file does: zeros behind the last record, which belong to its body. It may begin anywhere:
   what it has of its first page goes through the cache, like the small units before it.
3. On disk it is a unit as any other.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from holdfast.checkpoint.stores.log_unit import GONE, KIND_UNIT, ROW_SIZE, Place, Write, pack_row, place_of
from holdfast.stream.disk import PAGE
from holdfast.stream.frame import HEADER_SIZE, Header, crc32c, encode_header

#: Below this the page cache costs less than the page that is filled up.
_LARGE_BYTES = 256 << 10
#: What stays taken of memory. Larger units, of large values, take the way of the small ones.
_ROOM_BYTES = 16 << 20


class Laid(NamedTuple):
    """A unit in the room."""

    lead: bytes
    """What it has of a page that has begun before it."""
    pages: memoryview
    table: bytes
    places: list[Place]

    @property
    def size(self) -> int:
        return len(self.lead) + len(self.pages)


class Room:
    """Aligned memory for one who writes. What was laid out is to be written before the next is."""

    def __init__(self) -> None:
        self._room: mmap.mmap | None = None

    def fits(self, size: int) -> bool:
        """Is this the way for a unit whose body has that many bytes?"""
        return _LARGE_BYTES <= size <= _ROOM_BYTES - 3 * PAGE

    def lay_out(self, writes: Sequence[Write], seq: int, segment: int, offset: int) -> Laid:
        """The unit as it will stand at `offset` of the segment."""
        if self._room is None:
            self._room = mmap.mmap(-1, _ROOM_BYTES)
        room = self._room
        seen = np.frombuffer(room, np.uint8)
        begin = offset % PAGE
        body = begin + HEADER_SIZE
        shift = offset - begin  # Byte i of the room is byte shift + i of the file.
        at = body + len(writes) * ROW_SIZE
        rows, places = [], []
        for digest, key, version, value, _ in writes:
            first, at = at, at + len(key)
            room[first:at] = key
            for piece in (value,) if isinstance(value, bytes) else value or ():
                end = at + len(piece)
                room[at:end] = piece  # type: ignore[assignment]
                at = end
            length = GONE if value is None else at - first - len(key)
            crc = crc32c(seen[first:at])  # type: ignore[arg-type]
            rows.append(pack_row(digest, version, first - body, len(key), 0, length, crc))
            places.append(place_of((version, segment, shift + first, length, crc)))
        table = b"".join(rows)
        room[body : body + len(table)] = table
        end = -(-at // PAGE) * PAGE
        room[at:end] = bytes(end - at)
        header = Header(KIND_UNIT, end - body, rows=len(rows), first_tuple_id=crc32c(table), commit_seq=seq,
                        body_crc=crc32c(seen[body:end]))  # type: ignore[arg-type]  # fmt: skip
        room[begin:body] = encode_header(header)
        whole = PAGE if begin else 0
        return Laid(room[begin:whole] if begin else b"", memoryview(room)[whole:end], table, places)
