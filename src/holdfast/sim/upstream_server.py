"""The producing side of a stream: who reads it, from where, and what they are sent.

Rules:
1. A subscription lives as long as its connection: after a break nothing is sent until the reader subscribes again.
2. Main: contiguous buckets from the reader's position. Branch: what the fork has written. Head: main from a later
   position.
3. A reader who asks for what is no longer there is told so, never silently served something later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.protocol.dpc.effects import Subscribe, Unsubscribe
from holdfast.protocol.dpc.signals import Lane
from holdfast.sim.query import Rows
from holdfast.sim.world import World

Item = tuple[int, Rows, float]


@dataclass(frozen=True, slots=True)
class Push:
    """Tuples on their way: whole buckets and the boundary that closes them."""

    stream: str
    lane: Lane
    items: tuple[Item, ...]
    closed: int
    """First bucket that is not closed."""
    gap: int = 0
    """If not 0, everything before this bucket is gone for ever."""


class _Reader:
    __slots__ = ("epoch", "lane", "name", "next", "sent")

    def __init__(self, name: str, lane: Lane, start: int, epoch: int) -> None:
        self.name = name
        self.lane = lane
        self.next = start
        self.epoch = epoch
        #: One past the newest bucket sent, closed or not.
        self.sent = start


class MainLog:
    """Stable output on disk: buckets [kept, next), except for declared holes."""

    __slots__ = ("holes", "kept", "next", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Rows] = {}
        self.next = 0
        self.kept = 0
        self.holes: list[tuple[int, int]] = []

    def copy(self, other: MainLog) -> None:
        """Hold what another one does."""
        self.rows, self.next, self.kept, self.holes = dict(other.rows), other.next, other.kept, list(other.holes)

    def append(self, rows: Rows) -> None:
        """One more bucket."""
        self.rows[self.next] = rows
        self.next += 1

    def skip(self, upto: int) -> None:
        """The buckets before `upto` will never be there."""
        if upto > self.next:
            self.holes.append((self.next, upto))
            self.next = upto

    def truncate(self, upto: int) -> None:
        """Forget what lies before."""
        for bucket in range(self.kept, upto):
            self.rows.pop(bucket, None)
        self.kept = max(self.kept, upto)

    def first_from(self, bucket: int) -> int:
        """The first bucket at or after `bucket` that can still be had."""
        bucket = max(bucket, self.kept)
        for first, upto in self.holes:
            if first <= bucket < upto:
                bucket = upto
        return bucket


class StreamServer:
    """All readers of one stream at one host."""

    __slots__ = ("_branch", "_name", "_readers", "_size", "_stream", "_world", "log", "open_rows", "state_name")

    def __init__(
        self,
        world: World,
        name: str,
        stream: str,
        size: int,
        log: MainLog,
        branch: Callable[[], tuple[dict[int, tuple[Rows, float]], int]],
        state_name: Callable[[], str],
    ) -> None:
        self._world = world
        self._name = name
        self._stream = stream
        self._size = size
        self.log = log
        #: The tentative branch now: bucket → (rows, worth), and the first bucket it has not closed.
        self._branch = branch
        #: Rows that were sent without a boundary (a source that went silent).
        self.open_rows: dict[int, Rows] = {}
        self.state_name = state_name
        self._readers: dict[tuple[str, Lane], _Reader] = {}

    def clear(self) -> None:
        """The process died."""
        self._readers.clear()

    def subscribe(self, reader: str, order: Subscribe) -> None:
        """A reader asks for a lane from a position on."""
        epoch = self._world.links[(self._name, reader)].epoch
        start = -(-order.from_us // self._size)
        self._readers[(reader, order.lane)] = _Reader(reader, order.lane, start, epoch)
        self.flush()

    def unsubscribe(self, reader: str, order: Unsubscribe) -> None:
        """A reader no longer wants a lane."""
        self._readers.pop((reader, order.lane), None)

    def flush(self) -> None:
        """Send every reader what is new to it."""
        for key, reader in list(self._readers.items()):
            if self._world.links[(self._name, reader.name)].epoch != reader.epoch:
                del self._readers[key]
                continue
            push = self._main(reader) if reader.lane == Lane.MAIN else self._news(reader)
            if push is not None:
                for hook in self._world.observers.push:
                    hook(self._world.now_us, self._name, reader.name, push, self.state_name())
                self._world.send(self._name, reader.name, push, data=True)

    def _main(self, reader: _Reader) -> Push | None:
        log = self.log
        first = log.first_from(reader.next)
        gap = first if first > reader.next and first <= log.next else 0
        if gap:
            reader.next = first
        upto = reader.next
        while upto < log.next and upto in log.rows:
            upto += 1
        items = [(b, log.rows[b], 1.0) for b in range(reader.next, upto)]
        items += [(b, rows, 1.0) for b, rows in self.open_rows.items() if b >= max(upto, reader.sent)]
        if not items and not gap and upto == reader.next:
            return None
        reader.next = upto
        reader.sent = max(reader.sent, items[-1][0] + 1 if items else upto)
        return Push(self._stream, Lane.MAIN, tuple(items), upto, gap)

    def _news(self, reader: _Reader) -> Push | None:
        items: list[Item] = []
        if reader.lane == Lane.HEAD:
            closed = self.log.next
            items = [(b, self.log.rows[b], 1.0) for b in range(reader.next, closed) if b in self.log.rows]
        else:
            branch, closed = self._branch()
            items = [(b, *branch[b]) for b in range(reader.next, closed) if b in branch]
        if closed <= reader.next:
            return None
        reader.next = closed
        return Push(self._stream, reader.lane, tuple(items), closed)
