"""The join: pairs of tuples, one from each side, that fall into the same window (003 §3.2.2, figure 3-3).

Rules:
1. Each side keeps a window of its latest tuples: those of the last so much time, or the last so many of each group. A
   tuple is matched with the other side's window at the moment it is processed. With windows of the same time w on both
   sides that is the band |r.time − s.time| <= w.
2. A pair's stime is the later of the two.
3. The state is the tuples in the windows. They stand in the input's log already, so they need no Gopen: a tuple's
   footprint is the batch that brought it (`_s`, position of the batch's begin), until a Gcheck copies it to the log of
   the output (`_f`). Replay starts at the oldest of these positions with the copied tuples that came before it,
   and meets all others again (the "position inside the windows" of 000 §4.2).
4. `_l` and `_r` number the tuples of a group: how many of either side came before. Only differences count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.model.errors import UsageError
from holdfast.model.time import duration_us
from holdfast.operators.state import Blocks, Step, arrived, check_groups

Ints = npt.NDArray[np.int64]
_SIDES = ("_l", "_r")
#: Pairs that are looked at together: some 30 MB, whatever becomes of them.
_PAIRS = 1 << 20


@dataclass(frozen=True)
class Keep:
    """How long a side's tuples can be matched: by time or by number, not both."""

    time_us: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if (self.time_us is None) == (self.count is None) or (self.time_us or 0) < 0 or (self.count or 1) < 1:
            raise UsageError(
                f"a side keeps tuples for a time, or a number of them; got {self.time_us} µs, {self.count}"
            )


def keep_time(time: Any) -> Keep:
    return Keep(time_us=duration_us(time))


def keep_last(count: int) -> Keep:
    return Keep(count=count)


class JoinKernel:
    """Rows have `_side` (0 left, 1 right) and `_w`, a number of their own. One block holds all tuples that are kept."""

    by_group = False
    implicit = True

    def __init__(self, left: Keep, right: Keep, keys: tuple[str, ...], lefts: tuple[str, ...], rights: tuple[str, ...]):
        self.sides = (left, right)
        self.keys, self.columns = keys, (lefts, rights)

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        return rows["_w"]

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        kept = blocks.get(0)
        new, base = arrived(rows, kept, since_us)
        every = self._counted(kept, new, base)
        results = self._matched(every, base)
        alive = self._alive(every, until_us)
        gone = every.filter(~alive & every["_f"])
        closed = [gone.select("_h", "_w", "_o")] if len(gone) else []
        after = every.filter(alive)
        return Step({0: after} if len(after) else {}, results, closed)

    def _counted(self, kept: pl.DataFrame | None, new: pl.DataFrame, first_new: int) -> pl.DataFrame:
        """Rule 4."""
        zero = new.with_columns(pl.lit(0, pl.Int64).alias("_l"), pl.lit(0, pl.Int64).alias("_r"))
        every = zero if kept is None or not len(kept) else pl.concat([kept, zero.select(kept.columns)])
        if all(side.count is None for side in self.sides):
            return every
        every = every.sort("_h", "_q")
        fresh = pl.col("_q") >= first_new
        for side, name in enumerate(_SIDES):
            mine = (pl.col("_side") == side).cast(pl.Int64)
            bases = pl.when(~fresh & (pl.col("_side") == side)).then(pl.col(name) + 1).otherwise(None).max().over("_h")
            before = pl.when(fresh).then(mine).otherwise(0).cum_sum().over("_h") - pl.when(fresh).then(mine).otherwise(
                0
            )
            every = every.with_columns(
                pl.when(fresh).then(bases.fill_null(0) + before).otherwise(pl.col(name)).alias(name)
            )
        return every

    def _matched(self, every: pl.DataFrame, first_new: int) -> pl.DataFrame | None:
        """Pairs of which at least one is new, in the order in which they came about.

        The later tuple of such a pair is new. It looks for partners in the window of the other side alone, so that
        memory is that of the tuples and of the pairs, however many tuples a group has.
        """
        groups = every.filter(pl.col("_h").is_in(every.filter(pl.col("_q") >= first_new)["_h"].unique().implode()))
        check_groups(self.keys, groups)
        found = [self._pairs(groups, earlier, first_new) for earlier in (0, 1)]
        left = np.concatenate([found[0][0], found[1][1]])
        right = np.concatenate([found[0][1], found[1][0]])
        if not len(left):
            return None
        numbers = groups["_q"].to_numpy()
        later, earlier = np.maximum(numbers[left], numbers[right]), np.minimum(numbers[left], numbers[right])
        order = np.lexsort((earlier, later))
        lefts, rights = groups[left[order]], groups[right[order]]
        stime = np.maximum(lefts["_t"].to_numpy(), rights["_t"].to_numpy())
        columns = [*lefts.select(*self.keys, *self.columns[0]), *rights.select(*self.columns[1])]
        return pl.DataFrame([pl.Series("stime", stime, pl.Int64), *columns])

    def _pairs(self, rows: pl.DataFrame, earlier: int, first_new: int) -> tuple[Ints, Ints]:
        """Places of tuples of the side `earlier` and of the new ones of the other side that find them."""
        sides, numbers = rows["_side"].to_numpy(), rows["_q"].to_numpy()
        there = np.flatnonzero(sides == earlier)
        new = np.flatnonzero((sides != earlier) & (numbers >= first_new))
        keep = self.sides[earlier]
        if keep.time_us is not None:
            values = rows["_t"].to_numpy()
            low, high = values[new] - keep.time_us, values[new] + keep.time_us
        else:
            assert keep.count is not None
            values = rows[_SIDES[earlier]].to_numpy()
            low, high = values[new] - keep.count, values[new] - 1
        order, begin, end = _within(rows["_h"].to_numpy(), values, there, new, low, high)
        parts: list[tuple[Ints, Ints]] = []
        counts = end - begin
        for some in _portions(counts):
            who = np.repeat(some, counts[some])
            offsets = np.arange(len(who)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
            met, by = there[order[begin[who] + offsets]], new[who]
            first = numbers[met] < numbers[by]
            parts.append((met[first], by[first]))
        return (
            np.concatenate([np.zeros(0, np.int64), *(met for met, _ in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(by for _, by in parts)]),
        )

    def _alive(self, every: pl.DataFrame, until_us: int) -> pl.Series:
        """Whether a later tuple can still be matched with it."""
        alive = np.zeros(len(every), bool)
        sides, stimes = every["_side"].to_numpy(), every["_t"].to_numpy()
        for side, name in enumerate(_SIDES):
            keep, mine = self.sides[side], sides == side
            if keep.time_us is not None:
                alive |= mine & (stimes >= until_us - keep.time_us)
            else:
                newest = every.select(pl.when(pl.col("_side") == side).then(pl.col(name)).max().over("_h")).to_series()
                assert keep.count is not None
                behind = (newest.fill_null(0) - every[name]).to_numpy()
                alive |= mine & (behind < keep.count)
        return pl.Series(alive)


def _within(groups: Ints, values: Ints, there: Ints, new: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
    """An order of the tuples `there`, and for each new one its range there: its group, a value in [low, high]."""
    _, codes = np.unique(groups, return_inverse=True)
    known = np.unique(values[there])
    stride = len(known) + 1
    keys = codes[there] * stride + np.searchsorted(known, values[there])
    order = np.argsort(keys, kind="stable")
    mine = codes[new] * stride
    begin = np.searchsorted(keys[order], mine + np.searchsorted(known, low))
    end = np.searchsorted(keys[order], mine + np.searchsorted(known, high, side="right"))
    return order, begin, np.maximum(begin, end)


def _portions(counts: Ints) -> Iterator[Ints]:
    """The places of `counts`, cut so that those of a portion add up to some `_PAIRS` at most, unless it is one."""
    total = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = int(total[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, before + _PAIRS, side="right")))
        yield np.arange(begin, end)
        begin = end
