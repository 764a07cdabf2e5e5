"""Time windows by stime, aligned to multiples of their advance: the fast and usual kind.

Whether a tuple belongs to a window follows from the tuple alone, so each pane is a block of its own, all groups of a
window close together when the boundary comes, and closing is taking a block out.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from holdfast.operators.folding import Segments, fold, merge, scattered
from holdfast.operators.plan import Plan
from holdfast.operators.state import (
    Blocks,
    Step,
    at_places,
    beginning,
    check_keys,
    find,
    segment_starts,
    upsert,
    whole_pane,
)  # fmt: skip
from holdfast.operators.windows import TimeWindow


class TimedAggregate:
    """`by_group` is False: every (group, pane) is checkpointed and restored on its own.

    A window needs no Gopen: the tuples that made it stand in the input's log, and nothing else went into it.
    """

    by_group = False

    def __init__(self, window: TimeWindow, plan: Plan, keys: tuple[str, ...]) -> None:
        assert window.by_stime
        self.window, self.plan, self.keys = window, plan, keys

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        """Take in rows that lie in [since, until), in processing order; close what the boundary `until` closes."""
        after = dict(blocks)
        for pane, mine in self.panes(rows):
            after[pane] = self._absorb(after.get(pane), mine, beginning(rows, since_us), until_us)
        return self._close(after, since_us, until_us)

    def panes(self, rows: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
        """The rows of each pane, in processing order."""
        if not len(rows):
            return []
        size, times = self.window.pane_us, rows["_t"].to_numpy()
        low, high = int(times.min()) // size, int(times.max()) // size
        if low == high:
            return [(low * size, rows)]
        panes = times // size
        order = np.argsort(panes, kind="stable")
        sorted_rows, panes = rows[order], panes[order]
        starts = segment_starts(panes)
        ends = np.append(starts[1:], len(panes))
        return [(int(panes[a]) * size, sorted_rows[int(a) : int(b)]) for a, b in zip(starts, ends, strict=True)]

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        """The `_w` of each row: what a footprint in the log is looked up by."""
        return pl.Series("_w", rows["_t"].to_numpy() // self.window.pane_us * self.window.pane_us)

    def _absorb(self, block: pl.DataFrame | None, rows: pl.DataFrame, since_us: int, until_us: int) -> pl.DataFrame:
        seg: Segments
        if self.plan.scatters:
            groups, seg = scattered(rows["_h"].to_numpy())
        else:
            rows = rows.sort("_h", maintain_order=True)
            numbers = rows["_h"].to_numpy()
            seg = Segments(segment_starts(numbers), len(rows))
            groups = numbers[seg.starts]
        heads = pl.DataFrame({"_h": groups})
        if self.keys != ("_h",):
            heads = heads.hstack(rows.select(k for k in self.keys if k != "_h")[seg.firsts])
        if self.keys != ("_h",):
            check_keys(self.keys, rows, heads[seg.ids])
        at, has = find(block, groups)
        before = None
        if block is not None and has.any():
            before = at_places(block, at, has)
            if self.keys != ("_h",):
                check_keys(self.keys, before.filter(pl.Series(has)), heads.filter(pl.Series(has)))
        states = fold(self.plan.accumulators, rows, seg, before, has)
        opened, saved = np.full(len(seg), until_us), np.full(len(seg), since_us)
        if before is not None:
            opened[has], saved[has] = before["_o"].to_numpy()[has], before["_s"].to_numpy()[has]
        entries = heads.with_columns(*states.values(), pl.Series("_o", opened), pl.Series("_s", saved))
        return upsert(block, entries, at, has)

    def _close(self, blocks: dict[int, pl.DataFrame], since_us: int, until_us: int) -> Step:
        w = self.window
        results = []
        for start in self._closing(blocks, since_us, until_us):
            mine = [blocks[p] for p in range(start, start + w.size_us, w.pane_us) if p in blocks]
            results.append(self._results(mine, start))
        closed = []
        for pane in [p for p in blocks if p // w.advance_us * w.advance_us + w.size_us <= until_us]:
            closed.append(whole_pane(blocks.pop(pane), pane))
        found = pl.concat(results) if results else None
        return Step(blocks, found, [c for c in closed if len(c)])

    def _closing(self, blocks: Blocks, since_us: int, until_us: int) -> list[int]:
        """Starts of the windows that end in (since, until] and hold a tuple."""
        w = self.window
        starts = set()
        for pane in blocks:
            last = pane // w.advance_us * w.advance_us
            starts |= set(range(last, pane - w.size_us, -w.advance_us))
        return sorted(s for s in starts if since_us < s + w.size_us <= until_us)

    def _results(self, panes: list[pl.DataFrame], start: int) -> pl.DataFrame:
        if len(panes) == 1:
            states = panes[0]
        else:
            every = pl.concat(panes).sort("_h", maintain_order=True)
            seg = Segments(segment_starts(every["_h"].to_numpy()), len(every))
            heads = every[seg.starts].select("_h", *(k for k in self.keys if k != "_h"))
            if self.keys != ("_h",):
                check_keys(self.keys, every, heads[seg.ids])
            states = heads.with_columns(*merge(self.plan.accumulators, every, seg).values())
        times = [pl.lit(start + self.window.size_us, pl.Int64).alias("stime"), pl.lit(start, pl.Int64).alias("_w")]
        return states.select(*times, *self.keys).with_columns(*self.plan.results(states).values())
