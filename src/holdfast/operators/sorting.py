"""BSort: an approximate sort with a buffer (003 §3.2.1).

The buffer of a group holds n tuples. When one more comes, the one with the smallest value leaves, with the stime of the
tuple that pushed it out; of equal ones the oldest leaves first. At the end of the stream nothing is flushed: what is in
the buffer is in the state. As in a join, the tuples stand in the input's log, so they need no Gopen.
"""

from __future__ import annotations

import heapq

import numpy as np
import polars as pl

from holdfast.operators.state import Blocks, Step, arrived, check_groups


class SortKernel:
    """Rows have `_v0`, the value, further columns, and `_w`, a number of their own."""

    by_group = False
    implicit = True

    def __init__(self, size: int, keys: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self.size, self.keys, self.columns = size, keys, columns

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        return rows["_w"]

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        kept = blocks.get(0)
        new, _ = arrived(rows, kept, since_us)
        every = new if kept is None or not len(kept) else pl.concat([kept, new.select(kept.columns)])
        check_groups(self.keys, every)
        held = len(every) - len(new)
        values, numbers, order = every["_v0"].to_list(), every["_h"].to_list(), every["_q"].to_list()
        stimes = every["_t"].to_list()
        buffers: dict[int, list[tuple[object, int, int]]] = {}
        out: list[int] = []
        pushed_by: list[int] = []
        for i in range(len(every)):
            buffer = buffers.setdefault(numbers[i], [])
            # A null sorts before every value.
            rank = (False, 0) if values[i] is None else (True, values[i])
            heapq.heappush(buffer, (rank, order[i], i))
            if i >= held and len(buffer) > self.size:
                out.append(heapq.heappop(buffer)[2])
                pushed_by.append(stimes[i])
        results = None
        if out:
            left = every[np.asarray(out)]
            results = left.select(*self.keys, *self.columns).insert_column(0, pl.Series("stime", pushed_by))
        alive = np.ones(len(every), bool)
        alive[out] = False
        gone = every.filter(pl.Series(~alive) & every["_f"])
        closed = [gone.select("_h", "_w", "_o")] if len(gone) else []
        after = every.filter(pl.Series(alive))
        return Step({0: after} if len(after) else {}, results, closed)
