"""The only module that reads the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def now_us() -> int:
    """Wall-clock time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def monotonic_us() -> int:
    """Time that never goes back, for measuring how long something took."""
    return time.monotonic_ns() // 1000


def pause(us: int) -> None:
    time.sleep(us / 1e6)
