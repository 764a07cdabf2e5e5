"""What results are worth that cover more than one bucket: a window of an hour, of which an input was away for most
(003 §5.8.3, future work there).

Rules:
1. A result is worth the mean of the buckets that went into it. Beside that stand the least of them, the inputs of which
   something went in, and those that were missing from any.
2. Buckets that the fork was not given came from main, and are whole.
3. Which buckets of the input those of the output cover is their query's affair (`NodeQueries.coverage`). They lie
   before a result that has the time of its window's end, behind one that has the time of its beginning, and on both
   sides of a pair that has the time of its left row. An output bucket is worth what its results cover together.
4. So it is known what an output bucket is worth once the fork was given the last input bucket that it covers. That is
   before its branch can close it, since the branch promises no more than that.
5. Where it is not known how far back a result reaches, everything counts that the fork was given since something was
   missing, for its state may depend on all of it.
"""

from __future__ import annotations

from collections import Counter, deque

from holdfast.engine import Coverage
from holdfast.protocol.dpc.effects import TentativeBucket
from holdfast.stream.worth import Worth

#: Buckets that are remembered one by one. A longer span is treated as one that is not known; so memory is bounded.
_BUCKETS_MAX = 100_000


class SpanWorth:
    """One fork's buckets, as they are given to it, and what the buckets of its output are worth."""

    def __init__(self, coverage: Coverage, bucket_us: int, output_us: int) -> None:
        """`bucket_us` is the length of a bucket of the input, `output_us` that of one of the output."""
        self._size, self._output_us, self._after_us = bucket_us, output_us, coverage.after_us
        #: Whether results lie on the edges of output buckets, and cover nothing of their own instant.
        self._on_edges = coverage.step_us > 0 and coverage.step_us % output_us == 0
        span_us = None if coverage.before_us is None else coverage.before_us + coverage.after_us
        self._before_us = None if span_us is None or span_us > _BUCKETS_MAX * bucket_us else coverage.before_us
        #: The next output bucket to be told of; None: nobody sees any yet.
        self._next: int | None = None
        #: What was given and does not count yet, as it lies behind what the next output bucket covers.
        self._ahead: deque[TentativeBucket] = deque()
        self._kept: deque[TentativeBucket] = deque()
        #: The same, as far as none that came later is as bad: the first is the least.
        self._falling: deque[TentativeBucket] = deque()
        self._inputs: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        #: Of how many buckets these are, and the least of them where they are not remembered one by one.
        self._counted = 0
        self._sum = 0.0
        self._least = 1.0

    def begin(self, bucket: int) -> None:
        """From this output bucket on results are seen."""
        self._next = bucket

    def take(self, given: TentativeBucket) -> list[Worth]:
        """The next bucket that the fork is given; the output buckets of which it is now known what they are worth."""
        if self._before_us is None and not self._counted and not given.emit and not given.missing:
            return []  # One that is kept ready follows main for days: nothing is missing from that.
        self._ahead.append(given)
        until_us, found = (given.bucket + 1) * self._size, []
        if self._next is None:
            # None that is still to be seen is older than this: the output may lie a bucket further behind than it must.
            self._pass_over((until_us - self._after_us - self._size) // self._output_us - 1)
        while self._next is not None and (until := self._until(self._next)) * self._size <= until_us:
            found.append(self._of(self._next, until))
            self._next += 1
        return found

    def _from(self, output: int) -> int | None:
        """The first bucket that an output bucket covers."""
        return None if self._before_us is None else (output * self._output_us - self._before_us) // self._size

    def _until(self, output: int) -> int:
        """One past the last of them."""
        edge_us = (output if self._on_edges else output + 1) * self._output_us
        return -(-(edge_us + self._after_us) // self._size)

    def _pass_over(self, output: int) -> None:
        """Nothing counts that only earlier output buckets cover."""
        first = self._from(output)
        if first is None:
            self._count(self._until(output))
            return
        while self._ahead and self._ahead[0].bucket < first:
            self._ahead.popleft()

    def _of(self, output: int, until: int) -> Worth:
        """Rules 1 and 2."""
        self._count(until)
        first = self._from(output)
        if first is None:
            buckets, least = self._counted, self._least
        else:
            self._forget(first)
            buckets, least = until - first, self._falling[0].least if self._falling else 1.0
        whole = max(buckets - self._counted, 0)
        mean = (self._sum + whole) / buckets if buckets else 1.0
        inputs = tuple(name for name, n in self._inputs.items() if n > 0 or whole)
        missing = tuple(sorted(name for name, n in self._missing.items() if n > 0))
        return Worth(output, round(max(0.0, min(1.0, mean)), 4), inputs, round(least, 4), missing)

    def _count(self, until: int) -> None:
        while self._ahead and self._ahead[0].bucket < until:
            self._add(self._ahead.popleft(), 1)

    def _add(self, given: TentativeBucket, sign: int) -> None:
        self._counted += sign
        self._sum += sign * given.worth
        for part in given.parts:
            self._inputs[part.stream] += sign * (part.lane is not None)
        for name in given.missing:
            self._missing[name] += sign
        if sign < 0:
            return
        self._least = min(self._least, given.least)
        if self._before_us is None:
            return
        self._kept.append(given)
        while self._falling and self._falling[-1].least >= given.least:
            self._falling.pop()
        self._falling.append(given)

    def _forget(self, below: int) -> None:
        while self._kept and self._kept[0].bucket < below:
            self._add(self._kept.popleft(), -1)
        while self._falling and self._falling[0].bucket < below:
            self._falling.popleft()
