"""The producing side of streams: what a reader elsewhere gets when it asks.

Rules:
1. Nothing is kept per reader: a cursor says what it has. So a reader may come back after any break, and many may read.
2. Main and head: committed events in commit order, of closed buckets and of open ones. Branch: whatever branch the
   stream has now; its id tells the reader when it was replaced or dropped.
3. A portion's boundary holds for what was written and not sent yet as well, so a reader who is cut off in the middle
   of a catch-up never believes more than it has.
4. A reader who asks for what is no longer there is told so (`gap_us`), never silently served something later.
5. What only the archive has is read by a thread: the loop that runs everything does not wait for an object store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from holdfast.host.wire import (
    EVENTS_MAX,
    PORTION_BYTES,
    PORTION_BYTES_MAX,
    SPANS_MAX,
    WORTHS_MAX,
    Cursor,
    Portion,
    Position,
    Since,
    Span,
    mends_of,
    origin_of,
    parse_cursor,
    shape_of,
)
from holdfast.model.errors import (
    CorruptLog,
    HoldfastError,
    MendedMeanwhile,
    PeerError,
    Removed,
    StorageError,
    UnknownStream,
    UsageError,
)
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.archive.objects import OnlyArchived
from holdfast.stream.branch import BranchReader
from holdfast.stream.head import read_head
from holdfast.stream.holes import read_holes
from holdfast.stream.index import Fields
from holdfast.stream.reader import LogReader
from holdfast.stream.store import StreamStore
from holdfast.stream.worth import Worth, Worths
from holdfast.stream.writer import Event

#: How often streams that somebody waits for are looked at: at first for latency, later so that idle ones cost little.
#: All who wait share one look. `poke` makes it come at once.
_LOOK_S_MIN, _LOOK_S_MAX = 0.002, 0.01
#: How often a pull that retention or a dropped branch interferes with is begun anew.
_ATTEMPTS = 8
#: What a portion's head needs beside its bodies.
_HEADROOM_BYTES = 8 << 20

T = TypeVar("T")
Seen = tuple[str, int]
"""What a lane looked like; differs as soon as there is something new."""


class _Cut(NamedTuple):
    """What of a log goes into one portion."""

    events: tuple[Event, ...]
    next_id: int
    boundary_us: int
    whole: bool
    """Nothing that is there was left for the next portion."""


class ServedStream:
    """One stream, its branch, and what is remembered of both between pulls."""

    def __init__(self, store: StreamStore, name: str, *, waits: bool = False) -> None:
        stream = store.open(name)
        self.folder, self.definition = stream.folder, stream.definition
        self._stream, self._waits = stream, waits
        self._main = self._opened()
        self._branch = BranchReader(stream.folder, stream.definition)
        self._worth = Worths(stream.folder)
        self._shape = shape_of(stream.definition)
        self._changes = 0
        self._file = os.path.join(stream.folder, "stream")
        self._made = self._stat()

    def _opened(self) -> LogReader:
        reader = self._stream.reader()
        reader.waits = self._waits
        return reader

    def current(self) -> bool:
        """Is this still the stream of that name? It may have been removed and made anew."""
        return self._made == self._stat()

    def _stat(self) -> tuple[int, int]:
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def look(self, lane: Lane) -> Seen:
        """See what is new; the answer differs from the last one if something is."""
        if lane != Lane.BRANCH:
            try:
                self._changes += self._main.refresh()
            except MendedMeanwhile:  # Who pulls is judged one by one, by the place that he names.
                self._main.close()
                self._main = self._opened()
                self._changes += 1
            return "", self._changes
        root = self._branch.refresh()
        log = self._branch.log
        return (root.id, log.size_bytes) if root is not None and log is not None else ("", 0)

    def last(self, tuples: int) -> tuple[int, int]:
        """As `LogReader.last`."""
        self.look(Lane.MAIN)
        return self._main.last(tuples)

    def portion(self, lane: Lane, position: Position, bytes_max: int) -> Portion:
        bytes_max = max(1, min(bytes_max, PORTION_BYTES_MAX - _HEADROOM_BYTES))
        for _ in range(_ATTEMPTS):
            try:
                if lane == Lane.BRANCH:
                    return self._of_branch(position, bytes_max) or self._no_branch(position)
                return self._of_main(lane, position, bytes_max)
            except _Again:
                self.look(lane)
        raise StorageError(f"stream {self.definition.name}: it changed faster than it could be read; pull again")

    # Main and head --------------------------------------------------------------------------------------------------

    def _of_main(self, lane: Lane, position: Position, bytes_max: int) -> Portion:
        log, id = self._main, origin_of(self.definition.id, self._main.mends)
        known = self._known(position, id)
        if not known.origin.startswith(self.definition.id):
            raise UsageError(f"stream {self.definition.name}: it was made anew since; begin again from a bucket")
        reach = position.reach_us if isinstance(position, Since) else known.boundary_us
        log.check_unmended(reach, mends_of(known.origin), known.next_id)
        start, gap = self._start(known), None
        if start > log.closed_until_us:
            log.check_present(start)
        hole = next((h for h in read_holes(self.folder) if h.upto_us > start), None)
        if hole is not None and hole.first_us <= start:
            start = gap = hole.upto_us
            hole = next((h for h in read_holes(self.folder) if h.upto_us > start), None)
        upto = END_OF_TIME_US if hole is None else hole.first_us
        try:
            cut = self._cut(log, start, known, upto, bytes_max)
            removed = self._removed(start, known)  # After the look: what went before or during it is noticed.
            if removed is not None:
                start = gap = removed
                cut = self._cut(log, start, known, upto, bytes_max)
                if self._removed(start, known) is not None:
                    raise _Again
        except Removed:
            raise _Again from None
        cursor = Cursor(id, start, cut.next_id, cut.boundary_us)
        return Portion(self.definition.name, lane, id, self._shape, cursor.text, cut.boundary_us,
                       log.closed and cut.whole and hole is None, log.wall_us, cut.events, gap)  # fmt: skip

    def _known(self, position: Position, origin: str) -> Cursor:
        if isinstance(position, str):
            return parse_cursor(position)
        if isinstance(position, Since):
            origin, position = origin_of(self.definition.id, position.mends), position.from_us
        return Cursor(origin, self._bucket_begin(position), 0, BEGINNING_US)

    def _start(self, known: Cursor) -> int:
        """The beginning of the first bucket of which something may be missing."""
        return max(known.from_us, self._bucket_begin(known.boundary_us))

    def _bucket_begin(self, us: int) -> int:
        size = self.definition.bucket_us
        return us // size * size if us > BEGINNING_US else BEGINNING_US

    def _removed(self, start: int, known: Cursor) -> int | None:
        """Where the stream begins now, if something that this reader lacks was removed from its front."""
        until = read_head(self._main.folder).removed_until_us
        if not BEGINNING_US < start < until:
            return None
        for segment in self._main.segments_within(BEGINNING_US, END_OF_TIME_US):
            entries = self._main.entries_of(segment, BEGINNING_US, END_OF_TIME_US)
            if entries is not None and len(entries):
                if int(entries["first_tuple_id"][0]) <= known.next_id:
                    return None  # It was sent before it was removed.
                break
        size = self.definition.bucket_us
        return -(-until // size) * size

    # The branch -----------------------------------------------------------------------------------------------------

    def _of_branch(self, position: Position, bytes_max: int) -> Portion | None:
        root, log = self._branch.root, self._branch.log
        if root is None or log is None:
            return None
        known = self._known(position, "")
        if known.origin != root.id:
            known = Cursor(root.id, known.from_us, 0, BEGINNING_US)
        start = self._start(known)
        try:
            cut = self._cut(log, start, known, END_OF_TIME_US, bytes_max)
            worth = self._worth.read(root.id)
        except (Removed, FileNotFoundError):
            raise _Again from None  # Dropped, or cut, while we looked.
        except CorruptLog:
            if self._branch.current():
                raise
            raise _Again from None
        if not self._branch.current():
            raise _Again
        gap = cut_us if max(start, root.root_us) < (cut_us := self._branch.cut_us) and not known.next_id else None
        size = self.definition.bucket_us
        told = {e.bucket: self._worth_of(e.bucket, worth, cut.boundary_us) for e in cut.events}
        if cut.boundary_us < END_OF_TIME_US:
            # Not through all that are known: after a day of failure they are a million; a reader lacks the last few.
            last = cut.boundary_us // size
            first = max(max(start, root.root_us, gap or start) // size, last - WORTHS_MAX)
            told |= {b: worth[b] for b in range(first, last) if b in worth}
        newest = [told[bucket] for bucket in sorted(told)[-WORTHS_MAX:]]
        spans = tuple(Span(w.bucket, w.least, w.missing, w.inputs) for w in newest[-SPANS_MAX:] if w.least is not None)
        cursor = Cursor(root.id, known.from_us, cut.next_id, cut.boundary_us)
        return Portion(self.definition.name, Lane.BRANCH, self.definition.id, self._shape, cursor.text,
                       cut.boundary_us, log.closed and cut.whole, log.wall_us, cut.events, gap, root.id, root.root_us,
                       tuple((w.bucket, w.worth) for w in newest), spans)  # fmt: skip

    def _worth_of(self, bucket: int, noted: dict[int, Worth], boundary_us: int) -> Worth:
        """What some of a bucket is worth. Of one that is still open, as where results lie behind their input, nothing
        may be noted yet: until then it is taken for the newest of those before it."""
        if bucket in noted or not noted or (bucket + 1) * self.definition.bucket_us <= boundary_us:
            return noted.get(bucket, Worth(bucket, 1.0))
        return msgspec.structs.replace(next(reversed(noted.values())), bucket=bucket)

    def _no_branch(self, position: Position) -> Portion:
        cursor = Cursor("", self._known(position, "").from_us, 0, BEGINNING_US)
        return Portion(self.definition.name, Lane.BRANCH, self.definition.id, self._shape, cursor.text)

    # Both -----------------------------------------------------------------------------------------------------------

    def _cut(self, log: LogReader, start: int, known: Cursor, upto: int, bytes_max: int) -> _Cut:
        """Events with stimes in [start, upto) that were not sent yet, up to the limits, and the boundary of rule 3."""
        chosen: list[tuple[str, Fields]] = []
        next_id, taken, rest = known.next_id, 0, END_OF_TIME_US
        full = False
        for segment in log.segments_within(start, upto):
            if full and segment.stime_min_us is not None:
                rest = min(rest, segment.stime_min_us)
                continue
            entries = log.entries_of(segment, start, upto)
            if entries is None or not len(entries):
                continue
            wanted = (entries["stime_max_us"] >= start) & (entries["stime_min_us"] < upto)
            entries = entries[wanted & (entries["first_tuple_id"] >= known.next_id)]
            sizes = np.cumsum(entries["length"].astype(np.int64)) + taken
            count = 0 if full else min(int(np.searchsorted(sizes, bytes_max, "right")), EVENTS_MAX - len(chosen))
            if not full and not chosen and len(entries):
                count = max(count, 1)  # One event at least, to get on at all.
            chosen += [(segment.name, Fields(*row)) for row in entries[:count].tolist()]
            if count:
                taken = int(sizes[count - 1])
            if count < len(entries):
                full = True
                rest = min(rest, int(entries["stime_min_us"][count:].min()))
        if taken > PORTION_BYTES_MAX - _HEADROOM_BYTES:
            raise StorageError(
                f"stream {self.definition.name}: an event of {taken} bytes is too long to be sent; the limit is "
                f"{PORTION_BYTES_MAX - _HEADROOM_BYTES}; write smaller batches"
            )
        events = tuple(Event(f.bucket, f.partition, f.rows, f.stime_min_us, f.stime_max_us, log.body(name, f),
                             f.first_tuple_id) for name, f in chosen)  # fmt: skip
        if events:
            last = chosen[-1][1]
            next_id = last.first_tuple_id + last.rows
        boundary = min(log.boundary_us, upto)
        if full:
            boundary = min(boundary, max(start, self._bucket_begin(rest)))
        return _Cut(events, next_id, max(known.boundary_us, boundary), not full)

    def close(self) -> None:
        self._main.close()
        self._branch.close()


class _Again(Exception):
    """What was being read changed under our eyes."""


class _Watch:
    """A lane that is looked at for those who wait."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.changed, self.waiting = seen, asyncio.Event(), 0


def _in_thread(store: StreamStore, stream: str, work: Callable[[ServedStream], T]) -> T:
    served = ServedStream(store, stream, waits=True)
    try:
        served.look(Lane.MAIN)
        return work(served)
    finally:
        served.close()


class StreamServer:
    """Answers pulls on the streams of one store. Belongs to one event loop."""

    def __init__(self, store: StreamStore) -> None:
        self.store = store
        self._served: dict[str, ServedStream] = {}
        #: When somebody last pulled a stream.
        self._pulled_s: dict[str, float] = {}
        #: Streams as read by threads that wait for an archive, one at a time each.
        self._archived: dict[str, asyncio.Lock] = {}
        self._poked = asyncio.Event()
        #: Lanes that somebody waits for.
        self._watched: dict[tuple[str, Lane], _Watch] = {}
        self._watcher: asyncio.Task[None] | None = None
        self.ended = False

    def pull(self, stream: str, lane: Lane, position: Position, bytes_max: int = PORTION_BYTES) -> Portion:
        """What there is now from `position` on (a cursor, or the stime of the first bucket wanted)."""
        served = self._of(stream)
        try:
            served.look(lane)
            return served.portion(lane, position, bytes_max)
        except FileNotFoundError:
            raise UnknownStream(f"stream {stream} was removed while it was read; check the name") from None

    async def last(self, stream: str, tuples: int) -> tuple[int, int]:
        """Where the last tuples of a stream are, by what is remembered of it between pulls."""
        try:
            return self._of(stream).last(tuples)
        except OnlyArchived:
            return await self._from_archive(stream, partial(ServedStream.last, tuples=tuples))

    async def _from_archive(self, stream: str, work: Callable[[ServedStream], T]) -> T:
        """Rule 5."""
        async with self._archived.setdefault(stream, asyncio.Lock()):
            return await asyncio.to_thread(_in_thread, self.store, stream, work)

    def check(self, stream: str) -> None:
        """Refuse a name that is none, and a stream that is not here."""
        self._of(stream)

    async def wait(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        """Like `pull`, but waits for news up to `wait_s`; then what comes is a heartbeat."""
        loop = asyncio.get_running_loop()
        self._pulled_s[stream] = loop.time()
        end = loop.time() + wait_s
        while True:
            seen = self._of(stream).look(lane)  # Before the pull: what comes between is seen again, not missed.
            try:
                portion = self.pull(stream, lane, position, bytes_max)
            except OnlyArchived:
                work = partial(ServedStream.portion, lane=lane, position=position, bytes_max=bytes_max)
                portion = await self._from_archive(stream, work)
            left = end - loop.time()
            if left <= 0 or _news(portion, position):
                return portion
            if self.ended:
                raise PeerError("this host is about to stop; ask another one")
            await self._change(stream, lane, seen, left)

    def idle_s(self, stream: str) -> float:
        """For how long nobody has begun to pull the stream."""
        return asyncio.get_running_loop().time() - self._pulled_s.get(stream, -math.inf)

    async def _change(self, stream: str, lane: Lane, seen: Seen, wait_s: float) -> None:
        """Wait until the lane is not any more what was seen, but not for ever."""
        # Others may wait for the same lane and have seen less: the older view stays, so that they are not forgotten.
        watch = self._watched.setdefault((stream, lane), _Watch(seen))
        watch.waiting += 1
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.timeout(wait_s):
                await watch.changed.wait()
        except TimeoutError:
            pass
        finally:
            watch.waiting -= 1

    async def _watch(self) -> None:
        look = _LOOK_S_MIN
        while self._watched:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look):
                    await self._poked.wait()
            look = min(2 * look, _LOOK_S_MAX)
            for key, watch in list(self._watched.items()):
                if not watch.waiting:
                    del self._watched[key]
                elif self._differs(key, watch.seen):
                    del self._watched[key]
                    watch.changed.set()
                    look = _LOOK_S_MIN

    def _differs(self, key: tuple[str, Lane], seen: Seen) -> bool:
        try:
            return self.ended or self._of(key[0]).look(key[1]) != seen
        except (HoldfastError, OSError):
            return True  # Whoever waits shall hear of it.

    def poke(self) -> None:
        """Something was written: whoever waits shall look now."""
        self._poked.set()
        self._poked = asyncio.Event()

    def end(self) -> None:
        """Let everybody who waits go."""
        self.ended = True
        self.poke()

    def close(self) -> None:
        self.end()
        for served in self._served.values():
            served.close()
        self._served = {}

    def _of(self, stream: str) -> ServedStream:
        served = self._served.get(stream)
        if served is not None and not served.current():
            self._served.pop(stream).close()
            served = None
        if served is None:
            served = self._served[stream] = ServedStream(self.store, stream)
        return served


def _news(portion: Portion, position: Position) -> bool:
    if portion.events or portion.gap_us is not None:
        return True
    if not isinstance(position, str):
        return portion.branch is not None if portion.lane == Lane.BRANCH else portion.boundary_us > BEGINNING_US
    known = parse_cursor(position)
    if portion.lane == Lane.BRANCH and known.origin != (portion.branch or ""):
        return True
    return portion.boundary_us > known.boundary_us
