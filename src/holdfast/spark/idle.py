"""Lets a query that has nothing to read wait in its reader, instead of asking a hundred times a second.

Spark asks a source for news every 10 ms, which takes JVM and reader 2 ms of a core each time: a query that waits, such
as a fork that is kept ready, would take a fifth of one. A reader that knows where its news come from looks there itself
and answers when there are some: that costs a tenth, and is sooner.

1. Between two batches with tuples Spark may want some without, which release what a watermark has passed, and it asks
   for news before each: so the first answers behind a batch come at once.
2. No answer takes longer than `ANSWER_US`: a query that is stopped waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.clock import monotonic_us, pause

ANSWER_US = 200_000
#: How often the reader looks: a look takes some microseconds, and adds half of this to the latency of a bucket.
_LOOK_US = 5_000
#: Answers behind a batch that come at once (rule 1).
_PROMPT = 3


class IdleWait:
    """The waits of one reader."""

    def __init__(self) -> None:
        self._start: Any = None
        self._asked = 0

    def until(self, start: Any, news: Callable[[], bool]) -> None:
        """Spark has asked what there is behind `start`: return when there is something, or for other reasons."""
        if start != self._start:
            self._start, self._asked = start, 0
        self._asked += 1
        if self._asked <= _PROMPT:
            return
        deadline_us = monotonic_us() + ANSWER_US
        while not news() and monotonic_us() < deadline_us:
            pause(_LOOK_US)
