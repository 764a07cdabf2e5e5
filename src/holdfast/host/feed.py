"""An input that lies on this host: read where it was written, without a copy.

Rules:
1. Only a stream with a single producer is read so: with several, a reader must be able to go on with another's copy.
2. What is told is what was seen: events that are durable, counted per bucket, and the boundary.
3. A fork gets the exact events of a bucket. From one that is not closed it gets the first tuples by arrival, as many
   as were counted when the bucket was planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.protocol.dpc.signals import Arrival
from holdfast.stream.reader import LogReader
from holdfast.stream.store import Stream
from holdfast.stream.tentative import ALL_ROWS, PlannedPiece


class Feed:
    """Main of one local stream, as a node with buckets of `bucket_us` sees it grow."""

    def __init__(self, stream: Stream, bucket_us: int) -> None:
        self.stream, self._size = stream, bucket_us
        self._reader = LogReader(stream.folder / "main", stream.definition.schema, stream.definition.bucket_us)
        self._told_us = BEGINNING_US
        self._fresh = True

    def first_us(self) -> int | None:
        """Where the stream begins; None while it says nothing.

        With slack, tuples may still come that are older than all that came; none older than the boundary.
        """
        self._reader.refresh()
        first = self._reader.stime_min_us
        known = [] if first is None else [first]
        if self._reader.boundary_us > BEGINNING_US:
            known.append(self._reader.closed_until_us)
        return min(known, default=None)

    def begin(self, from_us: int) -> None:
        """Tell from here on; what was told before is told again."""
        self._told_us = from_us
        self._fresh = True

    def poll(self) -> tuple[int, tuple[Arrival, ...]] | None:
        """The boundary and what has arrived since the last look; None if there is nothing new."""
        if not self._reader.refresh() and not self._fresh:
            return None
        self._fresh = False
        since, boundary = self._told_us, self._reader.boundary_us
        arrivals = count_arrivals(self._reader, since, self._size)
        if boundary < END_OF_TIME_US:
            self._told_us = max(since, boundary // self._size * self._size)
        return boundary, arrivals

    def pieces(self, source: int, start_us: int, end_us: int, tuples: int, closed: bool) -> list[PlannedPiece]:
        """Rule 3."""
        return pieces_of(self._reader, source, start_us, end_us, None if closed else tuples)

    def close(self) -> None:
        self._reader.close()


def count_arrivals(reader: LogReader, since_us: int, size_us: int) -> tuple[Arrival, ...]:
    """Tuples per bucket, of buckets that begin at `since_us` or later."""
    totals: dict[int, int] = {}
    entries = reader.entries(since_us, END_OF_TIME_US)
    buckets = entries["stime_min_us"] // size_us
    for bucket, rows in zip(buckets.tolist(), entries["rows"].tolist(), strict=True):
        totals[bucket] = totals.get(bucket, 0) + rows
    return tuple(Arrival(bucket, totals[bucket]) for bucket in sorted(totals) if bucket * size_us >= since_us)


def pieces_of(reader: LogReader, source: int, start_us: int, end_us: int, rows: int | None) -> list[PlannedPiece]:
    """The events of [start, end) in the order of a merge; the first `rows` tuples by arrival, unless all."""
    extents = reader.extents(start_us, end_us)
    if rows is None:
        return [PlannedPiece(source, str(reader.folder / e.segment), e.fields) for e in extents]
    pieces = []
    for e in sorted(extents, key=lambda extent: extent.fields.first_tuple_id):
        take = min(rows, e.fields.rows)
        if take:
            whole = take == e.fields.rows
            pieces.append(PlannedPiece(source, str(reader.folder / e.segment), e.fields, ALL_ROWS if whole else take))
        rows -= take
    return in_merge_order(pieces)


def in_merge_order(pieces: Sequence[PlannedPiece]) -> list[PlannedPiece]:
    return sorted(pieces, key=lambda piece: (piece.fields.bucket, piece.fields.first_tuple_id))
