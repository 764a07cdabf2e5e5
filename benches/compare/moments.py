"""What the client had of each window at every moment, for the picture. Pure.

A window is as good as the worst of its keys. Before it is due nobody can be blamed: only what is right or marked
tentative is shown then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from benches.compare.judge import Held, History, Line, due, histories
from benches.compare.workload import WINDOW_MS, Key, Plan, since_begin_s


class State(IntEnum):
    """From best to worst; a window takes the worst of its keys."""

    RIGHT = 0
    NOT_DUE = 1
    TENTATIVE = 2
    MISSING = 3
    WRONG = 4
    WRONG_FOR_GOOD = 5
    LOST = 6


class Span(NamedTuple):
    from_s: float
    until_s: float
    state: State


def moments(
    lines: Sequence[Line], truth: Mapping[Key, int], plan: Plan, deadline_s: float
) -> dict[int, list[Span]]:  # fmt: skip
    """By the start of the window, from its end until the contender was stopped."""
    held = histories(lines)
    windows: dict[int, list[tuple[int, History]]] = {}
    for row, count in truth.items():
        windows.setdefault(row[0], []).append((count, held.get(row, History([], []))))
    return {window: _spans(window, windows[window], plan, deadline_s) for window in sorted(windows)}


def _spans(window: int, rows: Sequence[tuple[int, History]], plan: Plan, deadline_s: float) -> list[Span]:
    begin_s, due_s = since_begin_s(window + WINDOW_MS), due((window, ""), deadline_s)
    turns = {begin_s, due_s, *(time for _, history in rows for time in history.times if time > begin_s)}
    times = [*sorted(time for time in turns if time < plan.stopped_at_s), float(plan.stopped_at_s)]
    found: list[Span] = []
    for from_s, until_s in pairwise(times):
        state = max(_state(count, history, from_s, from_s >= due_s) for count, history in rows)
        if found and found[-1].state is state:
            found[-1] = found[-1]._replace(until_s=until_s)
        else:
            found.append(Span(from_s, until_s, state))
    return found


def _state(count: int, history: History, moment_s: float, is_due: bool) -> State:
    right, now = Held(count, False), history.at(moment_s)
    end = history.values[-1] if history.values else None
    if now == right:
        return State.RIGHT
    if now is not None and now.tentative:
        return State.TENTATIVE
    if not is_due:
        return State.NOT_DUE
    if end is None:
        return State.LOST
    if now is None:
        return State.MISSING
    return State.WRONG if end == right else State.WRONG_FOR_GOOD
