"""The clock of Kafka's brokers, as far as its records show it.

A record with LogAppendTime tells what the broker's clock was when it was written. Whoever has read it knows that the
broker's clock is at least there, plus what has passed since. So hosts whose own clocks differ close the same buckets
without asking anybody for the time, and never before the broker's clock has passed them. Between brokers the clocks may
differ by the slack.
"""

from __future__ import annotations

from holdfast.clock import monotonic_us
from holdfast.model.time import BEGINNING_US

#: Records have whole milliseconds: a later one may show that much less than an earlier estimate.
_STAMP_US = 1000


class BrokerClock:
    """A lower bound of the time at the brokers; the beginning of time before the first record."""

    def __init__(self) -> None:
        self._ahead_us: int | None = None

    def saw(self, stamp_us: int) -> None:
        """A record of that time was read just now, or before."""
        ahead_us = stamp_us - _STAMP_US - monotonic_us()
        self._ahead_us = ahead_us if self._ahead_us is None else max(self._ahead_us, ahead_us)

    def now_us(self) -> int:
        return BEGINNING_US if self._ahead_us is None else monotonic_us() + self._ahead_us
