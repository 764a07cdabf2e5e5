"""Server-sent events that are made once and sent to every page that is open.

Rules:
1. Whoever begins to listen gets the whole, made at most once for each change; then what has changed since, as it comes.
2. A page that does not keep up is sent the whole again, instead of everything that it has missed (X4).
3. A stream of events ends by itself after some minutes: the page asks again, with its token, so that one which was
   taken back does not go on looking.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from holdfast.clock import monotonic_us
from holdfast.model.time import SECOND_US

#: Changes that are kept for those who are a little late.
_KEPT = 32
#: A word now and then, so that a page which has gone is noticed, and one behind a proxy is not cut off.
_QUIET_S = 10.0
#: Rule 3.
LIFE_US = 600 * SECOND_US


class Feed:
    """What pages listen to; `whole` makes the event that everything begins with."""

    def __init__(self, whole: Callable[[], tuple[str, bytes]]) -> None:
        self._whole = whole
        self._made: bytes | None = None
        self._kept: deque[bytes] = deque(maxlen=_KEPT)
        self._count = 0
        self._changed = asyncio.Event()
        self.listeners = 0
        self._ended = False

    def publish(self, event: str, change: Callable[[], bytes]) -> None:
        """One change, for all; made if somebody listens."""
        self._made = None
        if self.listeners:
            self._count += 1
            self._kept.append(framed(event, change()))
            self._wake()

    def end(self) -> None:
        """Let everybody go."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def whole(self) -> bytes:
        """Rule 1."""
        if self._made is None:
            self._made = framed(*self._whole())
        return self._made

    async def follow(self, first: bytes = b"") -> AsyncIterator[bytes]:
        """The text for one page; `first` is for it alone."""
        until_us = monotonic_us() + LIFE_US
        self.listeners += 1
        try:
            seen = self._count
            yield first + self.whole()
            while not self._ended and monotonic_us() < until_us:
                if seen == self._count and not await self._news(self._changed):
                    yield b": still here\n\n"
                    continue
                missed, seen = self._count - seen, self._count
                if missed > len(self._kept):
                    yield self.whole()
                elif missed:
                    yield b"".join(list(self._kept)[-missed:])
        finally:
            self.listeners -= 1

    async def _news(self, changed: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(_QUIET_S):
                await changed.wait()
        except TimeoutError:
            return False
        return True


def framed(event: str, data: bytes) -> bytes:
    """One event as it is sent; JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data)
