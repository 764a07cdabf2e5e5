"""Latency histograms: how long things took, in buckets that grow by a fifth, in constant memory."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

#: Ratio of neighbouring buckets: a percentile is off by a tenth at most, and 128 buckets reach from 1 µs to 3 hours.
_GROWTH = 1.2
_BUCKETS = 128
_BOUNDS = [_GROWTH**i for i in range(_BUCKETS - 1)]


class Summary(NamedTuple):
    times: int
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: int


class Histogram:
    """Counts of durations. Any thread may add."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total, self._count, self._max = 0, 0, 0
        self._mutex = threading.Lock()

    def add(self, us: int) -> None:
        self.add_all((us,))

    def add_all(self, durations: Sequence[int]) -> None:
        """Several at once."""
        with self._mutex:
            for us in durations:
                self._counts[bisect_right(_BOUNDS, us) if us > 1 else 0] += 1
            self._count += len(durations)
            self._total += sum(durations)
            self._max = max(self._max, *durations, 0)

    def quantile(self, q: float) -> float:
        """The duration that a share `q` of all did not exceed, to within a bucket."""
        with self._mutex:
            wanted, seen = q * self._count, 0
            for bucket, count in enumerate(self._counts):
                seen += count
                if seen and seen >= wanted:
                    return float(min(_GROWTH**bucket, self._max))
        return 0.0

    def summary(self) -> Summary:
        mean = self._total / self._count if self._count else 0.0
        return Summary(self._count, mean, self.quantile(0.5), self.quantile(0.99), self._max)
