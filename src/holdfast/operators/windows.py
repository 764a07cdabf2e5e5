"""Windows: which tuples are computed together (003 §3.2.2).

Users describe a window with `time_window`, `count_window` or `landmark`; the descriptions are frozen values.

Rules:
1. A time window is [start, start + size). With `align="independent"` starts are multiples of the advance, whatever the
   data; with `align="first"` each group's windows begin at its first tuple.
2. By default time is `stime`. No tuple is late then, and a window closes when the boundary reaches its end. With `on=`
   time is a column of yours: a group's window closes when `slack` + 1 of its tuples lie at or behind the window's end,
   and a tuple that comes for a closed window, or has no time, is dropped. The end of the stream closes all of them.
3. A count window holds `size` tuples of its group; the next one begins `advance` tuples after it.
4. A landmark window begins once and never ends; every tuple gives a result.
5. `timeout` closes a count window that stays open that long. It counts in stime, not by a machine's clock, so replicas
   agree (003 §4.3.1 rules out anything else).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, duration_us, instant_us

Duration = str | int | float | timedelta
Align = Literal["independent", "first"]


@dataclass(frozen=True)
class TimeWindow:
    size_us: int
    advance_us: int
    align: Align = "independent"
    on: str | None = None
    slack: int = 0

    @property
    def pane_us(self) -> int:
        """Overlapping windows share panes: each tuple is computed once, not once per window."""
        return math.gcd(self.size_us, self.advance_us) if self.by_stime else self.size_us

    @property
    def by_stime(self) -> bool:
        return self.on is None and self.align == "independent"


@dataclass(frozen=True)
class CountWindow:
    size: int
    advance: int
    timeout_us: int | None = None

    @property
    def pane(self) -> int:
        return math.gcd(self.size, self.advance)


@dataclass(frozen=True)
class Landmark:
    start_us: int = BEGINNING_US


Window = TimeWindow | CountWindow | Landmark


def time_window(
    size: Duration, advance: Duration | None = None, *, align: Align = "independent", on: str | None = None,
    slack: int = 0,
) -> TimeWindow:  # fmt: skip
    """Windows of `size`, one every `advance` (default: back to back).

    >>> time_window("10m").advance_us == time_window("10m", "10m").size_us
    True
    """
    size_us = duration_us(size)
    advance_us = size_us if advance is None else duration_us(advance)
    if not 0 < advance_us <= size_us:
        raise UsageError(f"a window must last, and advance by 1us up to its size; got size {size!r}, {advance!r}")
    if align not in ("independent", "first"):
        raise UsageError(f"align must be 'independent' or 'first'; got {align!r}")
    if slack < 0 or (slack and on is None):
        raise UsageError(
            f"slack is a number of tuples to wait for, and needs on=<column>, because by stime no tuple is late; "
            f"got slack {slack}, on {on!r}"
        )
    return TimeWindow(size_us, advance_us, align, on, slack)


def count_window(size: int, advance: int | None = None, *, timeout: Duration | None = None) -> CountWindow:
    """Windows of `size` tuples of a group, one every `advance` tuples (default: back to back)."""
    advance = size if advance is None else advance
    if not 1 <= advance <= size:
        raise UsageError(f"a window must hold 1 tuple or more, and advance by 1 up to its size; got {size}, {advance}")
    timeout_us = None if timeout is None else duration_us(timeout)
    if timeout_us is not None and (advance != size or timeout_us < 1):
        raise UsageError(f"a timeout must be positive and needs windows back to back; got {timeout!r}")
    return CountWindow(size, advance, timeout_us)


def landmark(start: str | int | float | datetime | None = None) -> Landmark:
    """One window from `start` (default: the first tuple) on, with a result for every tuple."""
    return Landmark(BEGINNING_US if start is None else instant_us(start))
