"""Tuples as they arrived, counted in cells of (wall time, stime), in bounded memory.

Rules:
1. A cell counts the tuples of one type that arrived within the same slot of wall time and lie within the same slot of
   stime. When there are too many cells, slots double in size.
2. Counts and the largest latency are exact at any size; where a cell lies is known to one slot.
3. An *era* is the time between two UNDOs: an UNDO takes back every tentative tuple of the era that it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from holdfast.model.tuples import TupleType

#: Finer than any picture: 50 ms is half a column of a terminal that shows ten seconds.
SLOT_US = 50_000
#: A minute of failure makes about 2,000 cells; so many take some 30 ms to draw, and they are drawn four times a second.
CELLS_MAX = 20_000
#: Eras that stay apart when cells are merged. Older ones share one number, or many failures could fill the room alone.
_ERAS_KEPT = 64
#: Slots of 36 years hold everything; doubling must end somewhere.
_SLOT_US_MAX = 2**50


class Cell(NamedTuple):
    """Tuples of one type that arrived at about the same time with about the same stime."""

    era: int
    wall_us: int
    type: int
    stime_us: int
    tuples: int
    new: int
    latency_us_max: int


class Held(NamedTuple):
    """What a client holds of one slot of stime, and how many tuples are known or expected to belong there."""

    stime_us: int
    until_us: int
    type: TupleType
    tuples: int
    expected: int

    def full(self, rows: int) -> int:
        """How many of so many rows are filled; what is there at all shows."""
        return max(round(self.tuples * rows / max(1, self.expected)), 1 if self.tuples else 0)


class Latency(NamedTuple):
    """The latency of new tuples. The largest is exact, the others are never understated."""

    tuples: int
    us_median: int
    us_p99: int
    us_max: int


class Arrivals:
    """The cells. Not safe for threads by itself."""

    def __init__(self, slot_us: int = SLOT_US, cells_max: int = CELLS_MAX) -> None:
        self.slot_us, self._cells_max = slot_us, cells_max
        self._cells: dict[tuple[int, int, int, int], list[int]] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def count(self, stimes: np.ndarray, kind: TupleType, era: int, wall_us: int, new_from_us: int | None) -> None:
        """Tuples with these stimes arrived; those from `new_from_us` on are new."""
        slots, where, counts = np.unique(stimes // self.slot_us, return_inverse=True, return_counts=True)
        new = np.ones(len(stimes), bool) if new_from_us is None else stimes >= new_from_us
        news = np.bincount(where, weights=new, minlength=len(slots)).astype(np.int64)
        oldest = np.full(len(slots), np.iinfo(np.int64).max)
        np.minimum.at(oldest, where[new], stimes[new])
        wall_slot = wall_us // self.slot_us
        for slot, count, n, stime in zip(slots.tolist(), counts.tolist(), news.tolist(), oldest.tolist(), strict=True):
            _add(self._cells, (era, wall_slot, int(kind), slot), count, n, wall_us - stime)
        if len(self._cells) > self._cells_max:
            self._merge(era)

    def _merge(self, era_now: int) -> None:
        """Double the slots until half of the room is free, so that this happens seldom."""
        while len(self._cells) > self._cells_max // 2 and self.slot_us < _SLOT_US_MAX:
            self.slot_us *= 2
            merged: dict[tuple[int, int, int, int], list[int]] = {}
            for (era, wall, kind, stime), cell in self._cells.items():
                _add(merged, (era if era > era_now - _ERAS_KEPT else -1, wall // 2, kind, stime // 2), *cell)
            self._cells = merged

    def cells(self) -> list[Cell]:
        """All of them, in order of time."""
        size = self.slot_us
        cells = [Cell(k[0], k[1] * size, k[2], k[3] * size, *v) for k, v in sorted(self._cells.items())]
        return sorted(cells, key=lambda cell: (cell.wall_us, cell.era))

    def rows(self) -> list[tuple[int, int, int, int, int, int, int]]:
        """What `restore` takes."""
        return [(*key, cell[0], cell[1], cell[2]) for key, cell in self._cells.items()]

    def restore(self, rows: Iterable[tuple[int, int, int, int, int, int, int]]) -> None:
        """Put back what `rows` gave, with the same size of slots."""
        self._cells = {row[:4]: list(row[4:]) for row in rows}


def _add(
    cells: dict[tuple[int, int, int, int], list[int]],
    key: tuple[int, int, int, int],
    count: int,
    new: int,
    latency: int,
) -> None:
    cell = cells.setdefault(key, [0, 0, 0])
    if new:  # A clock that is ahead makes negative latencies: the first one counts whatever it is.
        cell[2] = max(cell[2], latency) if cell[1] else latency
    cell[0] += count
    cell[1] += new


def latency_of(cells: Iterable[Cell]) -> Latency | None:
    """The latency of the new tuples among them; None if there are none."""
    known = sorted((cell for cell in cells if cell.new), key=lambda cell: cell.latency_us_max)
    if not known:
        return None
    reached = np.cumsum([cell.new for cell in known])
    total = int(reached[-1])

    def at(share: float) -> int:
        return known[int(np.searchsorted(reached, share * total))].latency_us_max

    return Latency(total, at(0.5), at(0.99), known[-1].latency_us_max)


def held_of(cells: Iterable[Cell], at_us: int, era: int, width_us: int) -> list[Held]:
    """What a client held at that time, which lies in that era, slot of stime by slot of stime."""
    in_the_end: Counter[int] = Counter()
    stable: Counter[int] = Counter()
    tentative: Counter[int] = Counter()
    for cell in cells:
        slot = cell.stime_us // width_us * width_us
        here = cell.wall_us <= at_us and cell.era <= era
        if cell.type == TupleType.INSERTION:
            in_the_end[slot] += cell.tuples
            stable[slot] += cell.tuples if here else 0
        elif here and cell.era == era:
            tentative[slot] += cell.tuples
    usual = int(np.median(list(in_the_end.values()))) if in_the_end else 0
    held = [
        Held(slot, slot + width_us, TupleType.INSERTION, n, n)
        for slot, n in stable.items()
        if n and slot not in tentative
    ]
    first, last = min(tentative, default=0), max(tentative, default=0)
    for slot in sorted({*tentative, *(slot for slot in in_the_end if first < slot < last)}):
        count = tentative[slot] + stable[slot]
        if slot in tentative or not count:
            # The newest slot is still growing: nothing is missed there yet.
            expected = count if slot == last else in_the_end.get(slot) or usual
            held.append(Held(slot, slot + width_us, TupleType.TENTATIVE, count, max(expected, count)))
    return sorted(held)
