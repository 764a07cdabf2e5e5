"""Which replica to read a stream from, and which one to get corrections from: table 4.3 (and 4.2 within it).

Rules:
1. The table chooses among *sources*: one lane of one replica. A replica with a fork offers both lanes at once, so it
   can be Curr(s) with its branch and Bck(s) with its main; in the seeds that needs two replicas.
2. A held source follows its replica: if the lane it was on dries up and another one flows, it turns to that one. That
   is what "the state of Curr(s) changes" means here, and it leads to row 8 as in the seeds.
3. Curr(s) is never further right than Bck(s) in STABLE, UP_FAILURE, STABILIZATION, FAILURE; else they change places.
4. Of several equally good sources the first in the plan's order is taken: same knowledge, same choice.

The intuition: Curr(s) is the best for being on time, Bck(s) the best for being right in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState


class Source(NamedTuple):
    """One lane of one replica."""

    replica: str
    lane: Lane


class Choice(NamedTuple):
    """What to read, and the row of table 4.3 that said so."""

    row: int
    curr: Source | None
    bck: Source | None


States = Mapping[Source, StreamState]
#: Rows in which the table says "remain".
RESTING = frozenset((1, 3, 4, 6, 11))
#: No sequence of rows in table 4.3 is longer: 10 or 9, then 5, 7 or 8, then a resting one.
_STEPS_MAX = 5


def choose(
    curr: Source | None, bck: Source | None, states: States, advance: Callable[[Source], int]
) -> tuple[Choice, tuple[int, ...]]:
    """Apply table 4.3 until a row says "remain"; also the rows taken on the way.

    `states` lists the offered sources in the order of preference; what it does not list is in FAILURE. `advance` says
    how far a source has got (row 8).
    """
    curr, bck = _follow(curr, states), _follow(bck, states)
    if bck == curr:
        bck = None
    rows: list[int] = []
    for _ in range(_STEPS_MAX):
        if _state(curr, states) > _state(bck, states):
            curr, bck = bck, curr
        choice = _row(curr, bck, states, advance)
        rows.append(choice.row)
        curr, bck = choice.curr, choice.bck
        if choice.row in RESTING:
            return choice, tuple(rows)
    raise AssertionError(f"table 4.3 did not come to rest: rows {rows}")


def _row(curr: Source | None, bck: Source | None, states: States, advance: Callable[[Source], int]) -> Choice:
    now, behind = _state(curr, states), _state(bck, states)
    if now == StreamState.STABLE:
        return Choice(1, curr, None)
    found = _first(StreamState.STABLE, curr, bck, states)
    if found is not None:
        return Choice(2, found, bck)
    if now == StreamState.UP_FAILURE:
        if behind == StreamState.STABILIZATION:
            return Choice(3, curr, bck)
        found = _first(StreamState.STABILIZATION, curr, bck, states)
        return Choice(4, curr, None) if found is None else Choice(5, curr, found)
    if now == StreamState.STABILIZATION:
        if behind == StreamState.STABILIZATION:
            assert curr is not None
            assert bck is not None
            return Choice(8, max(curr, bck, key=advance), None)
        found = _first(StreamState.UP_FAILURE, curr, bck, states)
        return Choice(6, curr, None) if found is None else Choice(7, found, curr)
    for row, wanted in ((9, StreamState.UP_FAILURE), (10, StreamState.STABILIZATION)):
        found = _first(wanted, curr, bck, states)
        if found is not None:
            return Choice(row, found, bck)
    return Choice(11, curr, None)


def _state(source: Source | None, states: States) -> StreamState:
    return states.get(source, StreamState.FAILURE) if source is not None else StreamState.FAILURE


def _first(wanted: StreamState, curr: Source | None, bck: Source | None, states: States) -> Source | None:
    for source, state in states.items():
        if state == wanted and source != curr and source != bck:
            return source
    return None


def _follow(source: Source | None, states: States) -> Source | None:
    if source is None or _state(source, states) != StreamState.FAILURE:
        return source
    others = (Source(source.replica, lane) for lane in (Lane.BRANCH, Lane.HEAD, Lane.MAIN))
    return next((other for other in others if _state(other, states) != StreamState.FAILURE), source)
