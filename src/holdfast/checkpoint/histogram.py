"""Latency histograms: how long things took, in buckets that grow by a fifth, in constant memory."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

#: Ratio of neighbouring buckets: a percentile is off by a tenth at most, and 128 buckets reach from 1 µs to 3 hours.
_GROWTH = 1.2
_BUCKETS = 128
_LOG = math.log(_GROWTH)


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
        bucket = 0 if us <= 1 else min(_BUCKETS - 1, int(math.log(us) / _LOG) + 1)
        with self._mutex:
            self._counts[bucket] += 1
            self._count += 1
            self._total += us
            self._max = max(self._max, us)

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
