"""Count windows back to back: each closes on its own when it is full.

Each group has at most one open window, so the whole state is one block. A group's windows lie behind each other in the
order of its tuples; which one a tuple falls into follows from how many came before it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from holdfast.operators.folding import Segments, fold
from holdfast.operators.plan import Plan
from holdfast.operators.state import (
    ONLY,
    UNSAVED,
    Blocks,
    Step,
    check_keys,
    find,
    footprints_of,
    segment_starts,
    upsert,
    without,
)  # fmt: skip
from holdfast.operators.windows import CountWindow


class CountedAggregate:
    """`by_group` is True: what a tuple does depends on those of its group before it, so a group is restored whole."""

    by_group = True

    def __init__(self, window: CountWindow, plan: Plan, keys: tuple[str, ...]) -> None:
        assert window.advance == window.size
        assert window.timeout_us is None
        self.window, self.plan, self.keys = window, plan, keys

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        raise AssertionError("groups are restored whole")

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        block = blocks.get(ONLY)
        if not len(rows):
            return Step(blocks, None, [])
        size = self.window.size
        rows = rows.sort("_h", maintain_order=True)
        numbers = rows["_h"].to_numpy()
        groups = Segments(segment_starts(numbers), len(rows))
        heads = rows.select("_h", *(k for k in self.keys if k != "_h"))[groups.starts]
        if self.keys != ("_h",):
            check_keys(self.keys, rows, heads[groups.ids])
        at, has = find(block, numbers[groups.starts])
        before = block[at] if block is not None and has.any() else None
        if before is not None and self.keys != ("_h",):
            check_keys(self.keys, before.filter(pl.Series(has)), heads.filter(pl.Series(has)))
        base = np.where(has, before["c"].to_numpy(), 0) if before is not None else np.zeros(len(groups), np.int64)
        # The tuple's number in its group modulo the size says whether it begins a window.
        order = np.arange(len(rows)) - np.repeat(groups.starts - base, groups.lengths)
        begins = order % size == 0
        begins[groups.starts] = True
        seg = Segments(np.flatnonzero(begins), len(rows))
        owner = groups.ids[seg.starts]
        leads = np.zeros(len(seg), bool)
        leads[np.searchsorted(seg.starts, groups.starts)] = True
        goes_on = leads & (base[owner] > 0)
        given = before[owner] if before is not None else None
        states = fold(self.plan.accumulators, rows, seg, given, goes_on)
        entries = heads[owner].with_columns(*states.values())
        full = states["c"].to_numpy() == size
        results = self._results(entries, rows, seg, full) if full.any() else None
        return self._keep(blocks, entries, given, goes_on, full, owner, at, has, results, until_us)

    def _results(self, entries: pl.DataFrame, rows: pl.DataFrame, seg: Segments, full: np.ndarray) -> pl.DataFrame:
        done = entries.filter(pl.Series(full))
        stimes = rows["_t"].gather(seg.ends[full] - 1).alias("stime")
        return done.select(*self.keys).with_columns(*self.plan.results(done).values()).insert_column(0, stimes)

    def _keep(
        self, blocks: Blocks, entries: pl.DataFrame, given: pl.DataFrame | None, goes_on: np.ndarray, full: np.ndarray,
        owner: np.ndarray, at: np.ndarray, has: np.ndarray, results: pl.DataFrame | None, until_us: int,
    ) -> Step:  # fmt: skip
        """Each group's last window stays if it is not full."""
        block = blocks.get(ONLY)
        last = np.append(owner[1:] != owner[:-1], True)
        opened, saved = np.full(len(entries), until_us), np.full(len(entries), UNSAVED)
        if given is not None:
            opened[goes_on] = given["_o"].to_numpy()[goes_on]
            saved[goes_on] = given["_s"].to_numpy()[goes_on]
        stays = last & ~full
        entries = entries.with_columns(pl.Series("_o", opened), pl.Series("_s", saved)).filter(pl.Series(stays))
        groups = owner[stays]
        closed = []
        gone = np.ones(len(has), bool)
        gone[groups] = False
        gone &= has
        # A window that closed while its group goes on with a new one needs no R: the new one's Gopen takes its place.
        if block is not None and gone.any():
            places = at[gone]
            closed.append(footprints_of(block[places], ONLY))
        after = upsert(block, entries, at[groups], has[groups]) if len(entries) else block
        if gone.any():
            assert after is not None
            where, _ = find(after, np.sort(block["_h"].to_numpy()[at[gone]]))  # type: ignore[index]
            after = without(after, where)
        result = {} if after is None or not len(after) else {ONLY: after}
        return Step(result, results, [c for c in closed if len(c)])
