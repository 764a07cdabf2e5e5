"""The only module that reads the wall clock. Those that read a steady one for themselves stand in tests/test_map.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Clock = Callable[[], int]


def now_us() -> int:
    """Wall-clock time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def monotonic_us() -> int:
    """Time that never goes back, for measuring how long something took."""
    return time.monotonic_ns() // 1000


class ArrivalClock:
    """Times of arrival: the pace of the steady clock, led back to the wall clock little by little (D19).

    Rules:
    1. It never goes back, and it never stands still while time passes.
    2. Where the two clocks differ, it runs at twice the pace or at half of it until they agree. So a wall clock that is
       wrong for a second moves a time by a second at most, whatever it says; and one that was put right is followed.
    """

    def __init__(self, wall: Clock = now_us, steady: Clock | None = None) -> None:
        self._wall = wall
        self._mutex = threading.Lock()
        # A clock that somebody hands in is taken for a steady one.
        self._steady = steady or (monotonic_us if wall is now_us else wall)
        self._steady_us = self._steady()
        self._at_us = wall()

    def __call__(self) -> int:
        with self._mutex:
            steady_us = self._steady()
            passed, self._steady_us = max(0, steady_us - self._steady_us), steady_us
            self._at_us += passed + min(max(self._wall() - self._at_us - passed, -(passed // 2)), passed)
            return self._at_us

    def not_before(self, us: int) -> None:
        """Go on from `us` at least: somebody was promised that nothing comes before it."""
        with self._mutex:
            self._at_us = max(self._at_us, us)


def pause(us: int) -> None:
    time.sleep(us / 1e6)
