"""The judge: what a client held at every moment, measured against the truth. Pure: lines in, figures out.

The client keeps one value per window and key: a later line replaces an earlier one, and an UNDO takes back whatever
is marked tentative. Rules, the same for everybody:

1. A row is due `deadline_s` after its window's end.
2. Each row of the truth is exactly one of
   *on time*: from its due time to the end the client held the right count, not marked tentative;
   *late*: it was right in the end, but not all the time since it was due;
   *lost*: in the end the client has nothing for it;
   *wrong at end*: in the end it has another count, or one that is still marked tentative.
   A row that the truth does not have counts as wrong.
3. What the client had when a row was due is counted apart, and adds nothing to the above: *tentative on time* is a
   count that was marked as one that may change, right or not; *wrong unmarked* is a wrong one with nothing to say so.
4. Rows that the failure does not touch are the control: who is late with those was slow, whatever failed.
5. Silence is the longest time without a result of a window newer than all before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benches.compare.workload import DISORDER_MS, WINDOW_MS, Key, Plan, since_begin_s

#: So long after the return its backlog is a thing of the past.
_DIGESTED_S = 4


class Line(NamedTuple):
    """What a contender said, and when it came, in seconds since the feeder began. Without a window it is an UNDO."""

    at_s: float
    window_ms: int | None = None
    key: str = ""
    count: int = 0
    tentative: bool = False


class Held(NamedTuple):
    count: int
    tentative: bool


class History(NamedTuple):
    """What the client held for one row: from each time on, until the next."""

    times: list[float]
    values: list[Held | None]

    def at(self, moment_s: float) -> Held | None:
        place = bisect_right(self.times, moment_s)
        return self.values[place - 1] if place else None

    def after(self, moment_s: float) -> list[Held | None]:
        """What was held at a moment, and all that came after it."""
        return [self.at(moment_s), *self.values[bisect_right(self.times, moment_s) :]]


class Figures(NamedTuple):
    rows: int
    rows_on_time: int
    rows_late: int
    rows_lost: int
    rows_wrong_at_end: int
    rows_tentative_on_time: int
    rows_wrong_unmarked: int
    longest_silence_s: float
    corrected_s: float | None
    """After the input was back, until all that was due before was right; None if it never was."""
    calm_rows: int
    calm_rows_on_time: int
    """Of the windows that the failure does not touch."""


def histories(lines: Iterable[Line]) -> dict[Key, History]:
    found: dict[Key, History] = {}
    tentative: set[Key] = set()
    for line in lines:
        if line.window_ms is None:
            for row in tentative:
                found[row].times.append(line.at_s)
                found[row].values.append(None)
            tentative.clear()
            continue
        row = (line.window_ms, line.key)
        history = found.setdefault(row, History([], []))
        history.times.append(line.at_s)
        history.values.append(Held(line.count, line.tentative))
        (tentative.add if line.tentative else tentative.discard)(row)
    return found


def judge(lines: Sequence[Line], truth: Mapping[Key, int], plan: Plan, deadline_s: float) -> Figures:
    held = histories(lines)
    nothing = History([], [])
    kinds = {"on_time": 0, "late": 0, "lost": 0, "wrong": 0}
    tentative = unmarked = calm = calm_on_time = 0
    for row, count in truth.items():
        history, due_s = held.get(row, nothing), due(row, deadline_s)
        right = Held(count, False)
        kind = _kind(history, right, due_s)
        kinds[kind] += 1
        if untouched(row, plan):
            calm, calm_on_time = calm + 1, calm_on_time + (kind == "on_time")
        at_due = history.at(due_s)
        tentative += at_due is not None and at_due.tentative
        unmarked += at_due is not None and not at_due.tentative and at_due != right
    first, last = min(truth)[0], max(truth)[0]
    strangers = [
        row for row, history in held.items() if first <= row[0] <= last and row not in truth and history.values[-1]
    ]  # fmt: skip
    return Figures(
        rows=len(truth),
        rows_on_time=kinds["on_time"],
        rows_late=kinds["late"],
        rows_lost=kinds["lost"],
        rows_wrong_at_end=kinds["wrong"] + len(strangers),
        rows_tentative_on_time=tentative,
        rows_wrong_unmarked=unmarked,
        longest_silence_s=round(longest_silence_s(lines, plan), 1),
        corrected_s=_corrected_s(held, truth, plan),
        calm_rows=calm,
        calm_rows_on_time=calm_on_time,
    )


def due(row: Key, deadline_s: float) -> float:
    return since_begin_s(row[0] + WINDOW_MS) + deadline_s


def untouched(row: Key, plan: Plan) -> bool:
    """Whether a window was over, disorder included, before the silence, or began when its end was digested."""
    before = since_begin_s(row[0] + WINDOW_MS + DISORDER_MS) <= plan.silent_from_s
    return before or since_begin_s(row[0]) >= plan.silent_until_s + _DIGESTED_S


def _kind(history: History, right: Held, due_s: float) -> str:
    end = history.values[-1] if history.values else None
    if end is None:
        return "lost"
    if end != right:
        return "wrong"
    return "on_time" if all(value == right for value in history.after(due_s)) else "late"


def longest_silence_s(lines: Iterable[Line], plan: Plan) -> float:
    """From the first to the last second that is judged."""
    newest, last_s, longest = -1, float(plan.judged_from_s), 0.0
    for line in lines:
        if line.window_ms is not None and line.window_ms > newest:
            newest = line.window_ms
            if plan.judged_from_s <= line.at_s <= plan.judged_until_s:
                longest, last_s = max(longest, line.at_s - last_s), line.at_s
    return max(longest, plan.judged_until_s - last_s)


def _corrected_s(held: Mapping[Key, History], truth: Mapping[Key, int], plan: Plan) -> float | None:
    last_s = float(plan.silent_until_s)
    for row, count in truth.items():
        if since_begin_s(row[0] + WINDOW_MS) > plan.silent_until_s:
            continue
        history = held.get(row)
        if history is None or history.values[-1] != Held(count, False):
            return None
        since = len(history.values) - 1
        while since and history.values[since - 1] == history.values[-1]:
            since -= 1
        last_s = max(last_s, history.times[since])
    return round(last_s - plan.silent_until_s, 1)
