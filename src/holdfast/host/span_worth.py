"""What results are worth that cover more than one bucket: a window of an hour, of which an input was away for most
(003 §5.8.3, future work there).

Rules:
1. A result is worth the mean of the buckets that went into it. Beside that stand the least of them, and the inputs that
   were missing from any.
2. Buckets that the fork was not given came from main, and are whole.
3. How far back a result reaches is its query's affair (`NodeQueries.span_us`). Where that is not known, everything
   counts that the fork was given since something was missing, for its state may depend on all of it.
4. The result of a window has the time of its end, which is where the next bucket begins: the buckets that went in are
   those before its own. Without a window it is its own.
"""

from __future__ import annotations

from collections import Counter, deque

from holdfast.protocol.dpc.effects import TentativeBucket

#: Buckets that are remembered one by one. A longer span is treated as one that is not known; so memory is bounded.
_BUCKETS_MAX = 100_000


class SpanWorth:
    """One fork's buckets, as they are given to it."""

    def __init__(self, span_us: int | None, bucket_us: int) -> None:
        buckets = None if span_us is None else -(-span_us // bucket_us)
        #: How many buckets a result covers beside its own; None: all.
        self._span = None if buckets is None or buckets > _BUCKETS_MAX else buckets
        self._whole = span_us is not None and span_us > 0 and span_us % bucket_us == 0
        self._kept: deque[TentativeBucket] = deque()
        #: The same, as far as none that came later is as bad: the first is the least.
        self._falling: deque[TentativeBucket] = deque()
        self._missing: Counter[str] = Counter()
        self._sum = 0.0
        self._given = 0
        self._least = 1.0

    def of(self, given: TentativeBucket) -> tuple[float, float, tuple[str, ...]]:
        """Mean, least and missing inputs of the results of a bucket, which is the next that the fork is given."""
        if self._span is not None and self._whole:
            self._forget(given.bucket - self._span)  # Rule 4.
            found = self._covered(self._span)
            self._add(given)
            return found
        self._add(given)
        if self._span is None:
            return self._covered(self._given)
        self._forget(given.bucket - self._span)
        return self._covered(self._span + 1)

    def _add(self, given: TentativeBucket) -> None:
        if self._span is None and not self._given and not given.emit and not given.missing:
            return  # One that is kept ready follows main for days: nothing is missing from that.
        self._given += 1
        self._sum += given.worth
        self._missing.update(given.missing)
        self._least = min(self._least, given.least)
        if self._span is None:
            return
        self._kept.append(given)
        while self._falling and self._falling[-1].least >= given.least:
            self._falling.pop()
        self._falling.append(given)

    def _forget(self, below: int) -> None:
        while self._kept and self._kept[0].bucket < below:
            gone = self._kept.popleft()
            self._sum -= gone.worth
            self._missing.subtract(gone.missing)
        while self._falling and self._falling[0].bucket < below:
            self._falling.popleft()

    def _covered(self, buckets: int) -> tuple[float, float, tuple[str, ...]]:
        """Rules 1 and 2."""
        known = self._given if self._span is None else len(self._kept)
        mean = (self._sum + max(buckets - known, 0)) / max(buckets, 1)
        least = self._least if self._span is None else min((b.least for b in list(self._falling)[:1]), default=1.0)
        return max(0.0, min(1.0, mean)), least, tuple(sorted(name for name, n in self._missing.items() if n > 0))
