"""Landmark windows: one per group, from the landmark on, with a result for every tuple (003 §3.2.2, output 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.operators.folding import Accumulator, Count, Edge, Extreme, Segments, Sum, Values
from holdfast.operators.plan import Plan
from holdfast.operators.state import ONLY, UNSAVED, Blocks, Step, check_keys, find, segment_starts, upsert
from holdfast.operators.windows import Landmark


class LandmarkAggregate:
    by_group = True

    def __init__(self, window: Landmark, plan: Plan, keys: tuple[str, ...]) -> None:
        self.window, self.plan, self.keys = window, plan, keys

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        raise AssertionError("groups are restored whole")

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        block = blocks.get(ONLY)
        rows = rows.filter(pl.col("_t") >= self.window.start_us).sort("_h", maintain_order=True)
        if not len(rows):
            return Step(blocks, None, [])
        numbers = rows["_h"].to_numpy()
        seg = Segments(segment_starts(numbers), len(rows))
        heads = rows.select("_h", *(k for k in self.keys if k != "_h"))[seg.starts]
        if self.keys != ("_h",):
            check_keys(self.keys, rows, heads[seg.ids])
        at, has = find(block, numbers[seg.starts])
        before = block[at] if block is not None and has.any() else None
        if before is not None and self.keys != ("_h",):
            check_keys(self.keys, before.filter(pl.Series(has)), heads.filter(pl.Series(has)))
        running = {a.name: pl.Series(a.name, self._running(a, rows, seg, before, has)) for a in self.plan.accumulators}
        every = rows.select("_t", "_h", *(k for k in self.keys if k != "_h")).with_columns(*running.values())
        results = every.select(pl.col("_t").alias("stime"), *self.keys).with_columns(*self.plan.results(every).values())
        opened, saved = np.full(len(seg), until_us), np.full(len(seg), UNSAVED)
        if before is not None:
            opened[has], saved[has] = before["_o"].to_numpy()[has], before["_s"].to_numpy()[has]
        entries = every[seg.ends - 1].drop("_t").with_columns(pl.Series("_o", opened), pl.Series("_s", saved))
        return Step({ONLY: upsert(block, entries, at, has)}, results, [])

    def _running(
        self, a: Accumulator, rows: pl.DataFrame, seg: Segments, before: pl.DataFrame | None, has: npt.NDArray[np.bool_]
    ) -> Any:
        """The state after each tuple."""
        values = None if a.value is None else Values(rows[f"_v{a.value}"])
        given = None if before is None else before[a.name]
        if isinstance(a, Count) and (values is None or values.valid is None):
            base = np.where(has, given.to_numpy(), 0) if given is not None else np.zeros(len(seg), np.int64)
            return np.arange(1, len(rows) + 1) - np.repeat(seg.starts - base, seg.lengths)
        if isinstance(a, Edge) and a.latest:
            assert values is not None
            return values.series
        if values is not None and values.flat and isinstance(a, Count | Sum | Extreme):
            return self._accumulated(a, values, seg, given, has)
        return self._one_by_one(a, values, seg, given, has)

    def _accumulated(
        self, a: Accumulator, values: Values, seg: Segments, given: pl.Series | None, has: npt.NDArray[np.bool_]
    ) -> npt.NDArray[Any]:
        """numpy's running sums and extremes, group by group; they go strictly from left to right."""
        if isinstance(a, Extreme):
            step, numbers = a._least, values.numbers
            if values.valid is not None:
                numbers = np.where(values.valid, numbers, a._neutral(values.is_float))
        else:
            step = np.add
            numbers = values.numbers
            if isinstance(a, Count):
                assert values.valid is not None
                numbers = values.valid.astype(np.int64)
            elif not values.is_float:
                assert isinstance(a, Sum)
                a.check(numbers, seg, None if given is None else np.where(has, given.to_numpy(), 0))
        found = numbers.copy()
        first = given.to_numpy() if given is not None else None
        for i, (start, end) in enumerate(zip(seg.starts.tolist(), seg.ends.tolist(), strict=True)):
            if first is not None and has[i]:
                found[start] = step(first[i], found[start])
            step.accumulate(found[start:end], out=found[start:end])
        return found

    def _one_by_one(
        self, a: Accumulator, values: Values | None, seg: Segments, given: pl.Series | None, has: npt.NDArray[np.bool_]
    ) -> pl.Series:
        """The r-th tuple of every group at once, for r = 0, 1, …"""
        parts, places = [], []
        state, had = given, has
        assert values is not None
        alive = np.arange(len(seg))
        for r in range(int(seg.lengths.max())):
            keep = seg.lengths[alive] > r
            alive = alive[keep]
            state = None if state is None else state.filter(pl.Series(keep))
            had = had[keep]
            at = seg.starts[alive] + r
            one = Segments(np.arange(len(alive)), len(alive))
            state = pl.Series(a.name, a.fold(Values(values.series.gather(at)), one, state, had))
            had = np.ones(len(alive), bool)
            parts.append(state)
            places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pl.concat(parts).gather(order)
