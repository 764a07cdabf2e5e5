"""The operators once more, tuple by tuple and as plainly as possible: what the fast ones are judged by.

Nothing here is imported from the code that it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: (position in processing order, stime, group, value)
Tuple = tuple[int, int, Any, Any]
Result = tuple[Any, ...]


def summary(values: Sequence[Any]) -> dict[str, Any]:
    """Every function over the values of a window."""
    given = [v for v in values if v is not None]
    total: Any = None
    for v in given:
        total = v if total is None else total + v
    return {
        "count": len(values), "n": len(given), "sum": total, "avg": None if total is None else total / len(given),
        "min": min(given, default=None), "max": max(given, default=None), "distinct": len(set(given)),
        "first": values[0], "last": values[-1],
    }  # fmt: skip


def time_windows(
    tuples: Sequence[tuple[int, Any, Any]],
    until: int,
    size: int,
    advance: int,
    anchor: Callable[[Any], int] | None = None,
) -> list[Result]:
    """(stime, group, value) tuples; results (end, start, group, values) of all windows that end by `until`."""
    windows: dict[tuple[Any, int], list[Any]] = {}
    for stime, group, value in tuples:
        base = 0 if anchor is None else anchor(group)
        start = (stime - base) // advance * advance + base
        while start > stime - size:
            if anchor is None or start >= base:
                windows.setdefault((group, start), []).append(value)
            start -= advance
    return sorted(
        ((start + size, start, group, tuple(v)) for (group, start), v in windows.items() if start + size <= until),
        key=lambda r: (r[0], r[1], repr(r[2])),
    )  # fmt: skip


def count_windows(tuples: Sequence[tuple[int, Any, Any]], size: int, advance: int) -> list[Result]:
    """Results (stime of the closing tuple, group, values)."""
    seen: dict[Any, list[Any]] = {}
    found = []
    for stime, group, value in tuples:
        mine = seen.setdefault(group, [])
        mine.append(value)
        if len(mine) >= size and (len(mine) - size) % advance == 0:
            found.append((stime, group, tuple(mine[-size:])))
    return found


def timeout_windows(
    tuples: Sequence[tuple[int, Any, Any]], boundaries: Sequence[int], size: int, timeout: int
) -> list[Result]:
    """Count windows that close early. `boundaries` are the ends of buckets, all of them."""
    open_: dict[Any, tuple[int, list[Any]]] = {}
    found = []
    ends = list(boundaries)
    for stime, group, value in tuples:
        while ends and ends[0] <= stime:
            found += _timed_out(open_, ends.pop(0), timeout)
        if group in open_ and stime >= open_[group][0] + timeout:
            begun, values = open_.pop(group)
            found.append((begun + timeout, group, tuple(values)))
        begun, values = open_.setdefault(group, (stime, []))
        values.append(value)
        if len(values) == size:
            del open_[group]
            found.append((stime, group, tuple(values)))
    for end in ends:
        found += _timed_out(open_, end, timeout)
    return found


def _timed_out(open_: dict[Any, tuple[int, list[Any]]], boundary: int, timeout: int) -> list[Result]:
    due = [g for g, (begun, _) in open_.items() if begun + timeout <= boundary]
    return [(open_[g][0] + timeout, g, tuple(open_.pop(g)[1])) for g in due]


def slack_windows(
    tuples: Sequence[tuple[int, Any, Any, int]], size: int, advance: int, slack: int, first: bool = False,
    ended: int | None = None,
) -> tuple[list[Result], int]:  # fmt: skip
    """By a column: (stime, group, value, time) tuples; results (stime, start, group, values), number of late ones.

    `ended` is the stime of what the end of the stream closes; without it the stream goes on.
    """
    open_: dict[Any, dict[int, list[Any]]] = {}
    behind: dict[Any, list[int]] = {}
    bases: dict[Any, int] = {}
    found, late = [], 0
    for stime, group, value, time in tuples:
        base = bases.setdefault(group, time) if first else 0
        mine, times = open_.setdefault(group, {}), behind.setdefault(group, [])
        start, taken = (time - base) // advance * advance + base, False
        while start > time - size:
            closed = sum(t >= start + size for t in times) > slack
            if not closed and (not first or start >= base):
                mine.setdefault(start, []).append(value)
                taken = True
            start -= advance
        late += not taken
        times.append(time)
        for start in sorted(s for s in mine if sum(t >= s + size for t in times) > slack):
            found.append((stime, start, group, tuple(mine.pop(start))))
    if ended is not None:
        found += [(ended, start, group, tuple(v)) for group, mine in open_.items() for start, v in mine.items()]
    return found, late


def landmark_results(tuples: Sequence[tuple[int, Any, Any]], start: int) -> list[Result]:
    """(stime, group, values so far) after every tuple."""
    seen: dict[Any, list[Any]] = {}
    found = []
    for stime, group, value in tuples:
        if stime >= start:
            mine = seen.setdefault(group, [])
            mine.append(value)
            found.append((stime, group, tuple(mine)))
    return found


def joined(tuples: Sequence[tuple[int, int, Any, Any]], left: tuple[str, int], right: tuple[str, int]) -> list[Result]:
    """(stime, side, group, value) tuples; windows are ("time", w) or ("count", n); results (stime, group, l, r)."""
    seen: list[tuple[int, int, Any, Any]] = []
    found = []
    for stime, side, group, value in tuples:
        kind, size = right if side == 0 else left
        others = [t for t in seen if t[1] != side and t[2] == group]
        others = [t for t in others if abs(t[0] - stime) <= size] if kind == "time" else others[-size:]
        for other_time, _, _, other in others:
            pair = (value, other) if side == 0 else (other, value)
            found.append((max(stime, other_time), group, *pair))
        seen.append((stime, side, group, value))
    return found


def bsorted(tuples: Sequence[tuple[int, Any, Any]], size: int) -> list[Result]:
    """(stime, group, value) tuples; results (stime of the tuple that pushed, group, value)."""
    buffers: dict[Any, list[Any]] = {}
    found = []
    for stime, group, value in tuples:
        buffer = buffers.setdefault(group, [])
        buffer.append(value)
        if len(buffer) > size:
            smallest = min(buffer)
            buffer.remove(smallest)
            found.append((stime, group, smallest))
    return found
