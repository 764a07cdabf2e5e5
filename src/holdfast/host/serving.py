"""The producing side of streams: what a reader elsewhere gets when it asks.

Rules:
1. Nothing is kept per reader: a cursor says what it has. So a reader may come back after any break, and many may read.
2. Main and head: committed events in commit order, of closed buckets and of open ones. Branch: whatever branch the
   stream has now; its id tells the reader when it was replaced or dropped.
3. A portion's boundary holds for what was written and not sent yet as well, so a reader who is cut off in the middle
   of a catch-up never believes more than it has.
4. A reader who asks for what is no longer there is told so (`gap_us`), never silently served something later.
"""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.host.served import Seen, Served
from holdfast.host.wire import PORTION_BYTES, Portion, Position, parse_cursor
from holdfast.model.errors import HoldfastError, PeerError, UnknownStream
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.store import StreamStore

#: How often streams that somebody waits for are looked at: at first for latency, later so that idle ones cost little.
#: All who wait share one look. `poke` makes it come at once.
_LOOK_S_MIN, _LOOK_S_MAX = 0.002, 0.01


class _Watch:
    """A lane that is looked at for those who wait."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.changed, self.waiting = seen, asyncio.Event(), 0


class Serving:
    """Answers pulls on the streams of one store. Belongs to one event loop."""

    def __init__(self, store: StreamStore) -> None:
        self.store = store
        self._served: dict[str, Served] = {}
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

    def last(self, stream: str, tuples: int) -> tuple[int, int]:
        """Where the last tuples of a stream are, by what is remembered of it between pulls."""
        return self._of(stream).last(tuples)

    def check(self, stream: str) -> None:
        """Refuse a name that is none, and a stream that is not here."""
        self._of(stream)

    async def wait(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        """Like `pull`, but waits for news up to `wait_s`; then what comes is a heartbeat."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while True:
            seen = self._of(stream).look(lane)  # Before the pull: what comes between is seen again, not missed.
            portion = self.pull(stream, lane, position, bytes_max)
            left = end - loop.time()
            if left <= 0 or _news(portion, position):
                return portion
            if self.ended:
                raise PeerError("this host is about to stop; ask another one")
            await self._change(stream, lane, seen, left)

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

    def _of(self, stream: str) -> Served:
        served = self._served.get(stream)
        if served is not None and not served.current():
            self._served.pop(stream).close()
            served = None
        if served is None:
            served = self._served[stream] = Served(self.store, stream)
        return served


def _news(portion: Portion, position: Position) -> bool:
    if portion.events or portion.gap_us is not None:
        return True
    if isinstance(position, int):
        return portion.branch is not None if portion.lane == Lane.BRANCH else portion.boundary_us > BEGINNING_US
    known = parse_cursor(position)
    if portion.lane == Lane.BRANCH and known.origin != (portion.branch or ""):
        return True
    return portion.boundary_us > known.boundary_us
