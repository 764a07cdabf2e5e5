"""Windows that depend on what came before in their group: overlapping counts, timeouts, first-tuple alignment, slack.

Which windows a tuple falls into is decided group by group and tuple by tuple; what happens inside the windows is folded
in columns as everywhere else. About a million tuples per second and core, where the other kinds do several.

Rules:
1. A group is restored whole (`by_group`): its windows, and its memory as a row of its own with `_w` = `MEMORY`.
2. `_x` holds what a window or a memory must know besides its values: the opening stime of a window with a timeout; the
   number of tuples so far for overlapping counts; for windows by a column, the group's first value and its largest
   `slack` + 1 values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from holdfast.operators.folding import Ints, Segments, fold
from holdfast.operators.plan import Plan
from holdfast.operators.state import ONLY, UNSAVED, Blocks, Step, check_groups, check_keys, segment_starts
from holdfast.operators.windows import CountWindow, TimeWindow
from holdfast.stream.merge import FOREVER_US

MEMORY = -(2**63) + 2
#: When the end of a stream closes a window by a column: the last moment that readers of the results see. Any earlier
#: one might lie below what the results' boundary has promised already, which differs from replica to replica.
ENDED_US = FOREVER_US - 1
_X = pl.List(pl.Int64)


class Closing(NamedTuple):
    window: int
    stime: int


class Group:
    """One group while its tuples are dealt out: windows of each tuple, closings in order."""

    def __init__(self, memory: list[int] | None, windows: dict[int, list[int]]) -> None:
        self.memory, self.windows = memory, windows
        """Open windows, each with its `_x`."""

    def take(self, stime: int, time: int) -> Iterator[int]:
        raise NotImplementedError

    def close(self, stime: int, time: int) -> Iterator[Closing]:
        """After the tuple was taken."""
        raise NotImplementedError

    def expire(self, boundary_us: int) -> Iterator[Closing]:
        """At the boundary, after all tuples."""
        return iter(())


class OverlappingCounts(Group):
    def __init__(self, spec: CountWindow, memory: list[int] | None, windows: dict[int, list[int]]) -> None:
        super().__init__(memory or [0], windows)
        self.spec = spec

    def take(self, stime: int, time: int) -> Iterator[int]:
        assert self.memory is not None
        n = self.memory[0]
        for number in range(max(0, (n - self.spec.size) // self.spec.advance + 1), n // self.spec.advance + 1):
            self.windows.setdefault(number, [])
            yield number

    def close(self, stime: int, time: int) -> Iterator[Closing]:
        assert self.memory is not None
        self.memory[0] += 1
        full = self.memory[0] - self.spec.size
        if full >= 0 and full % self.spec.advance == 0:
            del self.windows[full // self.spec.advance]
            yield Closing(full // self.spec.advance, stime)


class TimedOutCounts(Group):
    """`_x` of a window: [stime of its first tuple, tuples so far]. Numbers just count up within a batch."""

    def __init__(self, spec: CountWindow, memory: list[int] | None, windows: dict[int, list[int]]) -> None:
        super().__init__(None, windows)
        self.spec = spec
        self._next = max(windows, default=-1) + 1

    def _due(self, at: int) -> Iterator[Closing]:
        assert self.spec.timeout_us is not None
        for number, (opened, _) in list(self.windows.items()):
            if opened + self.spec.timeout_us <= at:
                del self.windows[number]
                yield Closing(number, opened + self.spec.timeout_us)

    def before(self, stime: int) -> Iterator[Closing]:
        return self._due(stime)

    def take(self, stime: int, time: int) -> Iterator[int]:
        if not self.windows:
            self.windows[self._next] = [stime, 0]
            self._next += 1
        number = next(iter(self.windows))
        self.windows[number] = [self.windows[number][0], self.windows[number][1] + 1]
        yield number

    def close(self, stime: int, time: int) -> Iterator[Closing]:
        number = next(iter(self.windows))
        if self.windows[number][1] == self.spec.size:
            del self.windows[number]
            yield Closing(number, stime)

    def expire(self, boundary_us: int) -> Iterator[Closing]:
        return self._due(boundary_us)


class ByColumn(Group):
    """Memory: [first value, largest values, the largest first]. Closes when `slack` + 1 tuples lie behind the end."""

    def __init__(self, spec: TimeWindow, memory: list[int] | None, windows: dict[int, list[int]]) -> None:
        super().__init__(memory, windows)
        self.spec = spec

    def take(self, stime: int, time: int) -> Iterator[int]:
        spec = self.spec
        if self.memory is None:
            self.memory = [time]
        base = self.memory[0] if spec.align == "first" else 0
        frontier = self.memory[spec.slack + 1] if len(self.memory) > spec.slack + 1 else None
        start = (time - base) // spec.advance_us * spec.advance_us + base
        while start > time - spec.size_us:
            in_reach = spec.align == "independent" or start >= base
            if in_reach and (frontier is None or start + spec.size_us > frontier):
                self.windows.setdefault(start, [])
                yield start
            start -= spec.advance_us

    def close(self, stime: int, time: int) -> Iterator[Closing]:
        assert self.memory is not None
        largest = sorted([*self.memory[1:], time], reverse=True)[: self.spec.slack + 1]
        self.memory = [self.memory[0], *largest]
        if len(largest) > self.spec.slack:
            for start in sorted(s for s in self.windows if s + self.spec.size_us <= largest[-1]):
                del self.windows[start]
                yield Closing(start, stime)

    def expire(self, boundary_us: int) -> Iterator[Closing]:
        """Only the end of the stream closes what no tuple of the group has closed."""
        if boundary_us >= FOREVER_US:
            for start in sorted(self.windows):
                del self.windows[start]
                yield Closing(start, ENDED_US)


class FirstAligned(ByColumn):
    """By stime, but from the group's first tuple on. No tuple is late, so closing waits for the boundary."""

    def take(self, stime: int, time: int) -> Iterator[int]:
        if self.memory is None:
            self.memory = [stime]
        return super().take(stime, stime)

    def close(self, stime: int, time: int) -> Iterator[Closing]:
        return iter(())

    def expire(self, boundary_us: int) -> Iterator[Closing]:
        for start in sorted(s for s in self.windows if s + self.spec.size_us <= boundary_us):
            del self.windows[start]
            yield Closing(start, start + self.spec.size_us)


class GeneralAggregate:
    """Blocks have a row per window with `_w`, and one per memory."""

    by_group = True

    def __init__(self, window: CountWindow | TimeWindow, plan: Plan, keys: tuple[str, ...]) -> None:
        self.window, self.plan, self.keys = window, plan, keys
        self.timed = isinstance(window, TimeWindow)

    def _group(self, memory: list[int] | None, windows: dict[int, list[int]]) -> Group:
        w = self.window
        if isinstance(w, TimeWindow):
            return (FirstAligned if w.on is None else ByColumn)(w, memory, windows)
        return (OverlappingCounts if w.timeout_us is None else TimedOutCounts)(w, memory, windows)

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        raise AssertionError("groups are restored whole")

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        block = blocks.get(ONLY)
        rows = rows.sort("_h", maintain_order=True)
        numbers = rows["_h"].to_numpy()
        groups = Segments(segment_starts(numbers), len(rows))
        if self.keys != ("_h",) and len(rows):
            heads = rows[groups.starts]
            check_keys(self.keys, rows, heads[groups.ids])
            if block is not None:
                check_groups(self.keys, pl.concat([block.select("_h", *self.keys), heads.select("_h", *self.keys)]))
        known = _known(block)
        dealt = self._deal(rows, numbers, groups, known, until_us)
        return self._folded(block, rows, dealt, until_us)

    def _deal(
        self, rows: pl.DataFrame, numbers: Ints, groups: Segments, known: dict[int, Any], until_us: int
    ) -> _Dealt:
        """Each tuple to its windows."""
        stimes = rows["_t"].to_list()
        times = rows["_a"].to_list() if "_a" in rows.columns else stimes
        dealt = _Dealt()
        starts, ends = groups.starts.tolist(), groups.ends.tolist()
        touched = {}
        for start, end in zip(starts, ends, strict=True):
            number = int(numbers[start])
            memory, windows = known.get(number, (None, {}))
            group = self._group(memory, dict(windows))
            touched[number] = group
            for i in range(start, end):
                if times[i] is None:  # It belongs to no window, now or later: like one that comes too late.
                    dealt.late += 1
                    continue
                if isinstance(group, TimedOutCounts):
                    dealt.closings += [(number, c) for c in group.before(stimes[i])]
                taken = False
                for window in group.take(stimes[i], times[i]):
                    dealt.add(i, number, window)
                    taken = True
                dealt.late += not taken
                dealt.closings += [(number, c) for c in group.close(stimes[i], times[i])]
        for number, (memory, windows) in known.items():
            if number not in touched:
                touched[number] = self._group(memory, dict(windows))
        for number, group in touched.items():
            dealt.closings += [(number, c) for c in group.expire(until_us)]
        dealt.groups = touched
        return dealt

    def _folded(self, block: pl.DataFrame | None, rows: pl.DataFrame, dealt: _Dealt, until_us: int) -> Step:
        entries = self._entries(block, rows, dealt)
        closed = {(number, c.window): c.stime for number, c in dealt.closings}
        keys = list(zip(entries["_h"].to_list(), entries["_w"].to_list(), strict=True))
        stimes = [closed.get(k) for k in keys]
        done = pl.Series([s is not None for s in stimes], dtype=pl.Boolean)
        results = None
        if done.any():
            ready = entries.filter(done)
            times = [pl.Series("stime", [s for s in stimes if s is not None], dtype=pl.Int64)]
            times += [ready["_w"]] if self.timed else []
            results = pl.DataFrame([*times, *(ready[k] for k in self.keys), *self.plan.results(ready).values()])
        return self._kept(block, rows, entries.filter(~done), dealt, results, until_us)

    def _entries(self, block: pl.DataFrame | None, rows: pl.DataFrame, dealt: _Dealt) -> pl.DataFrame:
        """Every window that is open or was touched, with its state; memories are not among them."""
        names = ["_h", *(k for k in self.keys if k != "_h"), "_w", *(a.name for a in self.plan.accumulators)]
        old = None if block is None else block.filter(pl.col("_w") != MEMORY).select(names)
        if not dealt.rows:
            return old if old is not None else _empty(rows, self.keys, names)
        order = np.lexsort((np.arange(len(dealt.rows)), np.asarray(dealt.windows), np.asarray(dealt.numbers)))
        members = rows[np.asarray(dealt.rows)[order]]
        windows = np.asarray(dealt.windows, np.int64)[order]
        numbers = members["_h"].to_numpy()
        changed = (numbers[1:] != numbers[:-1]) | (windows[1:] != windows[:-1])
        seg = Segments(np.concatenate([[0], np.flatnonzero(changed) + 1]), len(members))
        heads = members[seg.starts].select("_h", *(k for k in self.keys if k != "_h"))
        heads = heads.with_columns(pl.Series("_w", windows[seg.starts]))
        has = np.zeros(len(seg), bool)
        before = None
        if old is not None and len(old):
            known = old.with_columns(pl.lit(True).alias("_had"))
            both = heads.select("_h", "_w").join(known, on=["_h", "_w"], how="left", maintain_order="left")
            has = both["_had"].fill_null(False).to_numpy()
            before = both if has.any() else None
        states = fold(self.plan.accumulators, members, seg, before, has)
        new = heads.with_columns(*states.values()).select(names)
        if old is None or not len(old):
            return new
        untouched = old.join(heads.select("_h", "_w"), on=["_h", "_w"], how="anti", maintain_order="left")
        return pl.concat([untouched, new.cast(dict(old.schema))])  # type: ignore[arg-type]

    def _kept(
        self, block: pl.DataFrame | None, rows: pl.DataFrame, entries: pl.DataFrame, dealt: _Dealt,
        results: pl.DataFrame | None, until_us: int,
    ) -> Step:  # fmt: skip
        """Open windows and memories, with the group's own bookkeeping."""
        infos = [dealt.groups[h].windows.get(w, []) for h, w in zip(entries["_h"], entries["_w"], strict=True)]
        kept = entries.with_columns(pl.Series("_x", infos, dtype=_X))
        memories = [(h, g.memory) for h, g in dealt.groups.items() if g.memory is not None]
        if memories:
            kept = pl.concat([kept, self._memories(memories, block, rows, kept)])
        marks: dict[int, tuple[int, int]] = {}
        if block is not None:
            marks = dict(zip(block["_h"], zip(block["_o"], block["_s"], strict=True), strict=True))
        both = [marks.get(h, (until_us, UNSAVED)) for h in kept["_h"]]
        kept = kept.with_columns(pl.Series("_o", [o for o, _ in both], dtype=pl.Int64),
                                 pl.Series("_s", [s for _, s in both], dtype=pl.Int64)).sort("_h", "_w")  # fmt: skip
        alive = set(kept["_h"].to_list())
        gone = [h for h, (_, s) in marks.items() if h not in alive and s != UNSAVED]
        closed = []
        if gone:
            closed = [pl.DataFrame({"_h": gone, "_w": [ONLY] * len(gone), "_o": [marks[h][0] for h in gone]},
                                   schema={"_h": pl.Int64, "_w": pl.Int64, "_o": pl.Int64})]  # fmt: skip
        return Step({ONLY: kept} if len(kept) else {}, results, closed, dealt.late)

    def _memories(self, memories: list[Any], block: pl.DataFrame | None, rows: pl.DataFrame, like: pl.DataFrame) -> Any:
        """Rows of the same shape whose accumulators are empty."""
        names = [k for k in self.keys if k != "_h"]
        found = pl.DataFrame({"_h": [h for h, _ in memories]}, schema={"_h": pl.Int64})
        heads = [f.select("_h", *names) for f in (block, rows) if f is not None and len(f)]
        if names:
            every = pl.concat(heads).unique("_h", keep="first")
            found = found.join(every, on="_h", how="left", maintain_order="left")
        found = found.with_columns(pl.lit(MEMORY, pl.Int64).alias("_w"),
                                   pl.Series("_x", [m for _, m in memories], dtype=_X))  # fmt: skip
        blank = [pl.repeat(None, len(found), dtype=like.schema[c], eager=True).alias(c)
                 for c in like.columns if c not in found.columns]  # fmt: skip
        return found.with_columns(*blank).select(like.columns)


class _Dealt:
    """Which tuple went into which window."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.numbers: list[int] = []
        self.windows: list[int] = []
        self.closings: list[tuple[int, Closing]] = []
        self.groups: dict[int, Group] = {}
        self.late = 0

    def add(self, row: int, number: int, window: int) -> None:
        self.rows.append(row)
        self.numbers.append(number)
        self.windows.append(window)


def _known(block: pl.DataFrame | None) -> dict[int, tuple[list[int] | None, dict[int, list[int]]]]:
    """Memory and open windows of each group."""
    found: dict[int, tuple[list[int] | None, dict[int, list[int]]]] = {}
    if block is not None:
        for number, window, info in block.select("_h", "_w", "_x").iter_rows():
            memory, windows = found.get(number, (None, {}))
            if window == MEMORY:
                found[number] = (list(info), windows)
            else:
                windows[window] = list(info)
                found[number] = (memory, windows)
    return found


def _empty(rows: pl.DataFrame, keys: tuple[str, ...], names: list[str]) -> pl.DataFrame:
    shape = {n: rows.schema.get(n, pl.Int64()) for n in names}
    return pl.DataFrame(schema=shape)
