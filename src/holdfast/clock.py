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


def steady_us() -> int:
    """Time that never goes back and goes on while the machine sleeps, where the system has such a clock: a laptop that
    was asleep for a night must not take the whole day to find back to the wall clock."""
    return time.clock_gettime_ns(_STEADY) // 1000


_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


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
        self._steady = steady or (steady_us if wall is now_us else wall)
        self._steady_us = self._steady()
        self._at_us = wall()

    def __call__(self) -> int:
        with self._mutex:
            # Every tuple that is sent alone comes by here twice: comparisons are quicker than min and max.
            steady_us = self._steady()
            passed, self._steady_us = steady_us - self._steady_us, steady_us
            if passed <= 0:
                return self._at_us
            at_us = self._at_us + passed
            behind = self._wall() - at_us
            if behind > 0:
                at_us += behind if behind < passed else passed
            elif behind < 0:
                at_us += behind if behind > -(passed // 2) else -(passed // 2)
            self._at_us = at_us
            return at_us

    @property
    def strayed_us(self) -> int:
        """How far the wall clock lies ahead of these times; below zero: behind them."""
        return self._wall() - self()

    def not_before(self, us: int) -> None:
        """Go on from `us` at least: somebody was promised that nothing comes before it."""
        with self._mutex:
            self._at_us = max(self._at_us, us)


def pause(us: int) -> None:
    time.sleep(us / 1e6)
