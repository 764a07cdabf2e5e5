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

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from holdfast.model.errors import UsageError
from holdfast.model.time import duration_us
from holdfast.operators.state import Blocks, Step, arrived, check_keys

_SIDES = ("_l", "_r")


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
        """Pairs of which at least one is new."""
        left, right = (every.filter(pl.col("_side") == s) for s in (0, 1))
        if not len(left) or not len(right):
            return None
        columns = ["_h", "_t", "_q", "_l", "_r"]
        lefts = left.select(*columns, *(k for k in self.keys if k != "_h"), *self.columns[0])
        keys = [k for k in self.keys if k != "_h"]
        rights = right.select(*columns, *(pl.col(k).alias(f"{k}_2") for k in keys), *self.columns[1])
        is_new = pl.col("_q") >= first_new
        pairs = [
            lefts.filter(is_new).join(rights, on="_h", suffix="_2", how="inner"),
            lefts.filter(~is_new).join(rights.filter(is_new), on="_h", suffix="_2", how="inner"),
        ]
        both = pl.concat(pairs)
        check_keys(keys, both, both.select(pl.col(f"{k}_2").alias(k) for k in keys))
        l_first = pl.col("_q") < pl.col("_q_2")
        apart = (pl.col("_t") - pl.col("_t_2")).abs()
        fits = []
        for side, name in enumerate(_SIDES):
            keep = self.sides[side]
            if keep.time_us is not None:
                fits.append(apart <= keep.time_us)
            else:
                earlier, later = (name, f"{name}_2") if side == 0 else (f"{name}_2", name)
                fits.append(pl.col(later) - pl.col(earlier) <= keep.count)
        both = both.filter(pl.when(l_first).then(fits[0]).otherwise(fits[1]))
        if not len(both):
            return None
        stime = pl.max_horizontal("_t", "_t_2").alias("stime")
        return both.select(stime, *self.keys, *self.columns[0], *self.columns[1])

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
