"""Time as Holdfast counts it: integer microseconds since the Unix epoch, in half-open buckets.

Rules:
1. Inside, every duration and every `stime` is an `int` of microseconds. Text such as "3s" and `timedelta` live at the
   public edge only.
2. Bucket `b` of size `s` holds the stimes in [b·s, (b+1)·s). A boundary `B` closes every bucket with (b+1)·s <= B.
3. This module does not read the clock; callers pass the time in.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from holdfast.model.errors import UsageError

SECOND_US = 1_000_000
#: Boundary of a stream that was closed: no tuple will ever follow. Fits an Arrow timestamp and leaves room to add to.
END_OF_TIME_US = 2**62
#: Boundary of a stream on which nothing was promised yet.
BEGINNING_US = -(2**62)
#: How far ahead of the clock a tuple's own stime may lie. Clocks of machines differ by less; a wrong year does not.
MAX_AHEAD = "1h"

_UNITS = {"us": 1, "µs": 1, "ms": 1_000, "s": SECOND_US, "m": 60 * SECOND_US, "min": 60 * SECOND_US,
          "h": 3600 * SECOND_US, "d": 86400 * SECOND_US}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")
_NUMBER = re.compile(r"\s*-?\d+(\.\d+)?\s*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration_us(value: str | int | float | timedelta) -> int:
    """A duration in microseconds from "3s", "250ms", a timedelta, or a number of seconds.

    >>> duration_us("250ms"), duration_us(2), duration_us(timedelta(minutes=1))
    (250000, 2000000, 60000000)
    """
    if isinstance(value, timedelta):
        return round(value / timedelta(microseconds=1))
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return round(value * SECOND_US)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"a duration must look like '250ms', '3s', '5m', '2h' or '1d'; got {value!r}")
    return round(float(match[1]) * _UNITS[match[2]])


def duration_text(us: int) -> str:
    """The shortest exact way to write a duration.

    >>> duration_text(250_000), duration_text(60_000_000)
    ('250ms', '1m')
    """
    for unit in ("d", "h", "m", "s", "ms"):
        if us and us % _UNITS[unit] == 0:
            return f"{us // _UNITS[unit]}{unit}"
    return f"{us}us"


def duration_shown(us: int) -> str:
    """A duration for people: its two largest units.

    >>> duration_shown(90_000_000), duration_shown(86_400_000_000 * 3653)
    ('1m 30s', '3653d')
    """
    parts: list[str] = []
    rest = abs(us)
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0s"


def instant_us(value: str | int | float | datetime) -> int:
    """A point in time in microseconds from ISO text, a datetime (naive means UTC), or seconds since the epoch.

    >>> instant_us("1970-01-01T00:00:01"), instant_us(1.5)
    (1000000, 1500000)
    """
    try:
        if isinstance(value, str):
            value = float(value) if _NUMBER.fullmatch(value) else datetime.fromisoformat(value)
        if not isinstance(value, datetime) and not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"a time must look like '2026-03-01T12:00:00Z' or be seconds since 1970; got {value!r}"
        ) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return (value - _EPOCH) // timedelta(microseconds=1)
    return round(value * SECOND_US)


def instant_text(us: int) -> str:
    """A time for people, in UTC; the two ends of time have names.

    >>> instant_text(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    """
    if us >= END_OF_TIME_US:
        return "end of stream"
    if us <= BEGINNING_US:
        return "beginning"
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us} µs"  # Beyond the years 1 to 9999; a message must not fail on what it speaks of.


def early_text(stream: str, stime_us: int, ahead_us: int) -> str:
    """Why a tuple that lies further ahead of the clock than `MAX_AHEAD` is refused."""
    return (
        f"stream {stream}: a tuple at {instant_text(stime_us)} lies {duration_shown(ahead_us)} ahead of the clock, and "
        f"every tuple after it would be late; correct its time, or allow more (max_ahead)"
    )


def early_boundary_text(stream: str, boundary_us: int, ahead_us: int) -> str:
    """The same of a boundary that somebody promises."""
    return (
        f"stream {stream}: a boundary at {instant_text(boundary_us)} lies {duration_shown(ahead_us)} ahead of the "
        f"clock, and every tuple before it would be late; correct it, or allow more (max_ahead)"
    )


def bucket_of(stime_us: int, size_us: int) -> int:
    """The bucket that holds `stime_us`."""
    return stime_us // size_us


def closed_until(boundary_us: int, size_us: int) -> int:
    """The end (exclusive, in microseconds) of the last bucket that a boundary closes.

    >>> closed_until(2_500_000, 1_000_000)
    2000000
    """
    return boundary_us // size_us * size_us
