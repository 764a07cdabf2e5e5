"""One local log of what was pulled from elsewhere.

Rules:
1. What a portion brings and the log holds already is left out; what contradicts it is refused. So following again, from
   the same producer or from a replica of it, after any crash, neither loses nor repeats a tuple.
2. Closed buckets are complete and alike at every producer. Of an open one the log holds a beginning: the next producer
   must begin it with the very same events. Two may be followed at once; each has to prove itself, and only itself.
3. Tuples keep the ids of their origin. Where ids are passed over, because older buckets were not asked for or are gone,
   that is noted, so that `verify` can tell it from damage.
4. What is stored was compared with its header first (X5): a producer may be another owner's, or be damaged.

`take` may run in any thread, one at a time; everything else belongs to the event loop's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.clock import Clock
from holdfast.host.wire import Portion, mends_of, shape_of
from holdfast.model.errors import PeerError, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.frame import checksum
from holdfast.stream.head import alone, read_head, write_head
from holdfast.stream.index import Fields
from holdfast.stream.losses import Loss, add_losses
from holdfast.stream.reader import LogReader
from holdfast.stream.record import State
from holdfast.stream.retention import retain
from holdfast.stream.untrusted import check_events
from holdfast.stream.writer import Event, LogWriter

#: Small enough that what was read can be let go of soon; rolling costs a few syncs, once per so many bytes.
SEGMENT_BYTES = 16 << 20
#: Under this name the host tells the log's retention what it still needs.
_READER = "holdfast-host"
_ACKNOWLEDGED = Retention(acknowledged=True)


class Place(NamedTuple):
    """Where one event lies on this machine: `read_extent` takes it from there."""

    path: str
    fields: Fields


class Held:
    """A log with one writer, its own reader, and the memory of its open buckets."""

    def __init__(
        self, folder: Path, definition: Definition, disk: Disk, clock: Clock, *, takeover: bool = False,
        begin: State | None = None,
    ) -> None:  # fmt: skip
        """`takeover`: whoever else writes there is fenced. `begin`: where a log that has nothing begins."""
        self.folder, self.definition, self._disk, self._clock = folder, definition, disk, clock
        self._shape = shape_of(definition)
        self._lock = threading.Lock()
        self._closed = False
        size = min(SEGMENT_BYTES, definition.segment_bytes)
        self._writer = LogWriter.open(folder, definition.id_bytes, now_us=clock(), disk=disk, segment_bytes=size,
                                      takeover=takeover, begin=begin)  # fmt: skip
        self.reader = LogReader(folder, definition.schema, definition.bucket_us)
        self.reader.refresh()
        self._needed_us = BEGINNING_US
        #: Events of open buckets: bucket → first tuple id → (rows, checksum).
        self._open: dict[int, dict[int, tuple[int, int]]] = {}
        for row in self.reader.entries(self.reader.closed_until_us, END_OF_TIME_US).tolist():
            f = Fields(*row)
            self._open.setdefault(f.bucket, {})[f.first_tuple_id] = (f.rows, f.body_crc)
        #: By the id of each producer's stream: open buckets that it has not begun yet (rule 2).
        self._unproven: dict[str, set[int]] = {}

    @property
    def boundary_us(self) -> int:
        return self._writer.state.boundary_us

    @property
    def closed_until_us(self) -> int:
        """Every bucket that ends here or before is complete."""
        boundary = self.boundary_us
        return boundary if abs(boundary) >= END_OF_TIME_US else closed_until(boundary, self.definition.bucket_us)

    @property
    def mends(self) -> int:
        """How often the boundary had been taken back at the origin when it last sent something."""
        return self._writer.mends

    @property
    def reach_us(self) -> int:
        """Nothing here has this stime or a later one."""
        last = max(self._open, default=None)
        return max(self.boundary_us, BEGINNING_US if last is None else (last + 1) * self.definition.bucket_us)

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return self._writer.size_bytes

    # Taking in --------------------------------------------------------------------------------------------------

    def take(self, portion: Portion, begin_us: int | None = None) -> dict[int, int]:
        """Store what is new, durably if the disk is; how many tuples each bucket has now that it speaks of or closes.

        `begin_us` comes with the first portion of a producer: where its stream was asked for from.
        """
        with self._lock:
            if self._closed:
                # A portion that was still on its way to a thread; whoever opened the log since must not be disturbed.
                raise PeerError(f"stream {portion.stream}: this log was let go while the portion came; follow again")
            self._check(portion)
            if begin_us is not None:
                self._unproven[portion.origin] = set(self._open)
                if begin_us > self.closed_until_us:
                    self._note_gap(begin_us)  # What was not asked for is not here; readers must not take it for empty.
            if portion.gap_us is not None:
                self._note_gap(portion.gap_us)
            if (mends := mends_of(portion.origin)) != self._writer.mends:
                self._writer.note_mends(mends)  # First: what is here was before the mended place, or not taken.
            try:
                unproven = self._unproven.setdefault(portion.origin, set())
                new = [event for event in portion.events if not self._held(event, unproven)]
                self._commit(new, portion)
            except UsageError as error:
                raise PeerError(f"stream {portion.stream}: what came contradicts what is here: {error}") from error
            totals = self._totals(new, portion.events)
            self._let_go()
            return totals

    def _check(self, portion: Portion) -> None:
        d = self.definition
        if portion.stream != d.name or portion.shape != self._shape:
            raise PeerError(
                f"stream {d.name}: the producer's stream {portion.stream} must have the same columns, buckets and "
                f"partitions; it has others; deploy both hosts alike"
            )
        check_events((event for event in portion.events if not self._complete(event.bucket)), d)

    def _complete(self, bucket: int) -> bool:
        return (bucket + 1) * self.definition.bucket_us <= self.boundary_us

    def _held(self, event: Event, unproven: set[int]) -> bool:
        """Rule 1 and rule 2."""
        if self._complete(event.bucket):
            return True
        here = self._open.get(event.bucket)
        if not here:
            return False
        assert event.first_tuple_id is not None
        known = here.get(event.first_tuple_id)
        if known is None and event.bucket not in unproven and event.first_tuple_id >= _end(here):
            return False
        if known != (event.rows, checksum(event.body)):
            raise PeerError(
                f"stream {self.definition.name}: bucket {event.bucket} begins with other tuples here than at the "
                f"producer; follow the one that it came from, or remove {self.folder} to begin anew"
            )
        unproven.discard(event.bucket)
        return True

    def _commit(self, new: list[Event], portion: Portion) -> None:
        state = self._writer.state
        ends = portion.closed and not state.closed
        if not new and portion.boundary_us <= state.boundary_us and not ends:
            return
        self._note_jumps(new, state.next_tuple_id)
        self._writer.commit(new, now_us=self._clock(), boundary_us=portion.boundary_us, closed=ends)

    def _totals(self, new: list[Event], seen: Iterable[Event]) -> dict[int, int]:
        for e in new:
            assert e.first_tuple_id is not None
            self._open.setdefault(e.bucket, {})[e.first_tuple_id] = (e.rows, checksum(e.body))
        size, boundary = self.definition.bucket_us, self.boundary_us
        closed = [b for b in self._open if (b + 1) * size <= boundary]
        touched = {e.bucket for e in seen if e.bucket in self._open}
        totals = {b: sum(rows for rows, _ in self._open[b].values()) for b in sorted(touched | set(closed))}
        for bucket in closed:
            del self._open[bucket]
            for unproven in self._unproven.values():
                unproven.discard(bucket)
        return totals

    def _note_gap(self, first_us: int) -> None:
        """Before anything behind the gap is stored: whoever reads across it must be told, after a crash as well."""
        with alone(self.folder):
            head = read_head(self.folder)
            if head.removed_until_us < first_us:
                write_head(self.folder, msgspec.structs.replace(head, removed_until_us=first_us), self._disk)
        size = self.definition.bucket_us
        self._unproven = {id: {b for b in open if b * size >= first_us} for id, open in self._unproven.items()}

    def _note_jumps(self, new: list[Event], expected: int) -> None:
        """Rule 3."""
        jumps = []
        for e in new:
            assert e.first_tuple_id is not None
            if e.first_tuple_id != expected:
                jumps.append(Loss("", 0, 0, expected, e.first_tuple_id))
            expected = e.first_tuple_id + e.rows
        if jumps:
            add_losses(self.folder, tuple(jumps), self._disk)

    # Reading ----------------------------------------------------------------------------------------------------

    def tuples_from(self, from_us: int) -> dict[int, int]:
        """How many tuples each bucket at or after `from_us` has."""
        self.reader.refresh()
        entries = self.reader.entries(from_us, END_OF_TIME_US)
        buckets, inverse = np.unique(entries["bucket"], return_inverse=True)
        rows = np.bincount(inverse, weights=entries["rows"], minlength=len(buckets))
        return {int(b): int(n) for b, n in zip(buckets.tolist(), rows.tolist(), strict=True)}

    def pieces(self, bucket: int, tuples: int | None = None) -> list[Place]:
        """The events of a bucket in order; enough of them for its first `tuples` tuples, if that is given."""
        self.reader.refresh()
        size = self.definition.bucket_us
        found, left = [], tuples
        for extent in self.reader.extents(bucket * size, (bucket + 1) * size, strict=False):
            if left is not None and left <= 0:
                break
            found.append(Place(str(self.folder / extent.segment), extent.fields))
            left = None if left is None else left - extent.fields.rows
        return found

    # Letting go -------------------------------------------------------------------------------------------------

    def retain(self, from_us: int) -> None:
        """Nobody needs what lies before. Done with the next portion, so that nobody waits for it."""
        self._needed_us = max(self._needed_us, from_us)

    def _let_go(self) -> None:
        first = self._writer.segments[0]
        if first.length is None or (first.stime_max_us or BEGINNING_US) >= self._needed_us:
            return
        head = read_head(self.folder)
        present = [s for s in self._writer.segments[:-1] if s.base_seq >= head.first_base_seq]
        if present and (present[0].stime_max_us or BEGINNING_US) < self._needed_us:
            now = self._clock()
            acknowledge(self.folder.parent, _READER, self._needed_us, now, self._disk)
            retain(self.folder, self.definition, now, disk=self._disk, policy=_ACKNOWLEDGED)

    def close(self) -> None:
        """Take nothing more and hold no file. What is here stays readable: whoever looks opens it again."""
        with self._lock:
            self._closed = True
            self._writer.release(self._clock())
            self.reader.close()


def _end(here: dict[int, tuple[int, int]]) -> int:
    last = max(here)
    return last + here[last][0]
