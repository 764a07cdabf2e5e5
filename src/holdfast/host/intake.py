"""How one input of a replica comes in: the lanes that the core asks for, and what has arrived on them.

Rules:
1. The core subscribes and unsubscribes; the intake does as told and reports what is readable, never more.
2. A cut input (see `link.Cuts`) is silent: nothing arrives and nobody answers for it. What was readable stays readable.
3. Pieces are exact: whoever reads them again reads the same tuples. From a bucket that is not closed a fork gets the
   first tuples by arrival, as many as were counted when the bucket was planned.
4. A stream of this host with a single producer is read where it was written, without a copy (`DirectIntake`). With
   several, a reader must be able to go on with another's (`holdfast.host.mirrored_intake`).
5. What is told is what was seen: events that are durable, counted per bucket, and the boundary.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.clock import monotonic_us
from holdfast.host.link import Cuts
from holdfast.host.network import severed
from holdfast.model.errors import StorageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US
from holdfast.protocol.dpc.effects import Part
from holdfast.protocol.dpc.signals import Arrival, Disconnected, InputAdvanced, InputGap, Lane
from holdfast.stream.archive.objects import OnlyArchived
from holdfast.stream.head import read_head
from holdfast.stream.reader import LogReader
from holdfast.stream.store import Stream
from holdfast.stream.tentative import ALL_ROWS, PlannedPiece

log = logging.getLogger(__name__)

#: An archive that is away is asked again after so long.
_AGAIN_US = 5 * SECOND_US
#: Threads are made when they are first needed.
_threads = ThreadPoolExecutor(2, "holdfast-past")

InputSignal = InputAdvanced | InputGap | Disconnected


class Intake(ABC):
    """One input of one replica."""

    #: Whether it is read where its producer wrote it: then what a fork still reads must not go there either.
    in_place = False

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """Where the stable query reads it."""

    @abstractmethod
    def first_us(self) -> int | None:
        """Where the stream begins; None while that is not known."""

    @abstractmethod
    def lost_until_us(self) -> int:
        """What lies before it is gone from where the stream comes from, for whoever begins now; known with
        `first_us`."""

    def began_under(self, mends: int) -> None:  # noqa: B027 - a stream in place is compared with the checkpoint itself.
        """Whoever reads has read before, when the boundary of the stream had been taken back so often."""

    @abstractmethod
    def subscribe(self, replica: str, lane: Lane, from_us: int) -> None:
        """Begin to read this lane."""

    @abstractmethod
    def unsubscribe(self, replica: str, lane: Lane) -> None:
        """Stop reading this lane."""

    @abstractmethod
    def poll(self) -> list[InputSignal]:
        """What has arrived since the last look, and which connections broke."""

    @abstractmethod
    def pieces(self, source: int, start_us: int, end_us: int, part: Part) -> list[PlannedPiece]:
        """The events of one tentative bucket; `source` is the number of this input."""

    @abstractmethod
    def retain(self, from_us: int) -> None:
        """What lies before is not needed any more."""

    def removed_until_us(self) -> int:
        """What lies before it is gone from where the stable query reads."""
        return read_head(self.stream.folder / "main").removed_until_us

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""


class DirectIntake(Intake):
    """An input that lies on this host and has one producer."""

    in_place = True

    def __init__(self, stream: Stream, producer: str, bucket_us: int, cuts: Cuts) -> None:
        self._stream, self._producer, self._cuts = stream, producer, cuts
        self._feed = Feed(stream, bucket_us)
        self._subscribed = False

    @property
    def stream(self) -> Stream:
        return self._stream

    def first_us(self) -> int | None:
        return self._feed.first_us()

    def lost_until_us(self) -> int:
        return self.removed_until_us()

    def subscribe(self, replica: str, lane: Lane, from_us: int) -> None:
        if lane == Lane.MAIN:
            self._feed.begin(from_us)
            self._subscribed = True

    def unsubscribe(self, replica: str, lane: Lane) -> None:
        if lane == Lane.MAIN:
            self._subscribed = False

    def poll(self) -> list[InputSignal]:
        if not self._subscribed or severed(self._cuts, self._producer):
            return []
        seen = self._feed.poll()
        return [] if seen is None else [InputAdvanced(self._stream.name, self._producer, Lane.MAIN, *seen)]

    def pieces(self, source: int, start_us: int, end_us: int, part: Part) -> list[PlannedPiece]:
        return self._feed.pieces(source, start_us, end_us, part.tuples, part.closed)

    def retain(self, from_us: int) -> None:
        """The stream belongs to its producer, who keeps what its retention says."""

    def close(self) -> None:
        self._feed.close()


class Feed:
    """Main of one local stream, as a node with buckets of `bucket_us` sees it grow."""

    def __init__(self, stream: Stream, bucket_us: int) -> None:
        self.stream, self._size = stream, bucket_us
        self._reader = LogReader(stream.folder / "main", stream.definition.schema, stream.definition.bucket_us)
        self._told_us = BEGINNING_US
        self._fresh = True
        self._counting: Future[tuple[int, tuple[Arrival, ...]]] | None = None
        """A thread that counts what only the archive knows: the loop does not wait for an object store."""
        self._again_us = 0

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
        self._counting = None  # It counts from where the last one began.

    def poll(self) -> tuple[int, tuple[Arrival, ...]] | None:
        """The boundary and what has arrived since the last look; None if there is nothing new."""
        if not self._reader.refresh() and not self._fresh:
            return None
        since, boundary = self._told_us, self._reader.boundary_us
        self._reader.waits = False
        try:
            arrivals = count_arrivals(self._reader, since, self._size)
        except OnlyArchived:
            counted = self._counted(since)
            if counted is None:
                self._fresh = True
                return None
            boundary, arrivals = counted
        finally:
            self._reader.waits = True
        self._fresh = False
        if boundary < END_OF_TIME_US:
            self._told_us = max(since, boundary // self._size * self._size)
        return boundary, arrivals

    def _counted(self, since_us: int) -> tuple[int, tuple[Arrival, ...]] | None:
        """The boundary and arrivals as a thread has found them; None while it is at it, or the archive is away."""
        if self._counting is None:
            if monotonic_us() < self._again_us:
                return None
            self._counting = _threads.submit(_count_apart, self.stream, since_us, self._size)
        if not self._counting.done():
            return None
        done, self._counting = self._counting, None
        try:
            return done.result()
        except StorageError as error:
            log.warning("stream %s: its past cannot be read for now: %s", self.stream.name, error)
            self._again_us = monotonic_us() + _AGAIN_US
            return None

    def pieces(self, source: int, start_us: int, end_us: int, tuples: int, closed: bool) -> list[PlannedPiece]:
        """Rule 3."""
        return pieces_of(self._reader, source, start_us, end_us, None if closed else tuples)

    def close(self) -> None:
        self._reader.close()


def _count_apart(stream: Stream, since_us: int, size_us: int) -> tuple[int, tuple[Arrival, ...]]:
    reader = stream.reader()
    try:
        return reader.boundary_us, count_arrivals(reader, since_us, size_us)
    finally:
        reader.close()


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
