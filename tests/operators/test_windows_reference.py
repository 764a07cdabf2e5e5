"""Every kind of window against the reference, cut into batches at random, with and without lost state."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.footprints import blocks_of, replay, restore, save
from holdfast.operators.functions import (
    UserFunction,
    avg,
    count,
    count_distinct,
    first,
    last,
    max_,
    min_,
    sum_,
    user_defined,
)  # fmt: skip
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import Window, count_window, landmark, time_window
from holdfast.protocol.cec.policy import Shot
from tests.operators import reference as ref

BUCKET = 10
#: The end of a batch with which its streams end, as a source says it.
END = 253_402_214_400_000_000
#: More of them with HOLDFAST_EXAMPLES=200.
EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "4"))


class Joined(UserFunction):
    """Order shows in it."""

    type = "string"

    def start(self) -> str:
        return ""

    def add(self, state: str, values: Any) -> str:
        return state + "".join(f"{v}," for v in values)

    def merge(self, a: str, b: str) -> str:
        return a + b

    def result(self, state: str) -> str:
        return state


FUNCTIONS = (count(), count("v").alias("n"), sum_("v").alias("sum"), avg("v").alias("avg"), min_("v").alias("min"),
             max_("v").alias("max"), count_distinct("v").alias("distinct"), first("v").alias("first"),
             last("v").alias("last"), user_defined(Joined(), "v").alias("joined"))  # fmt: skip


#: Those that take tuples as they come; with any of the others among them, all wait until the tuples are sorted.
UNSORTED = tuple(f for f in FUNCTIONS if f.name in ("count", "n", "sum", "avg", "first", "last"))


def kernel_of(window: Window, dtype: pl.DataType, texts: bool, functions: Any = FUNCTIONS) -> tuple[Any, bool]:
    plan = Plan(functions, (None, *[0] * (len(functions) - 1)), {0: dtype})
    assert plan.scatters == (functions == UNSORTED)
    return aggregate_kernel(window, plan, ("_k0",) if texts else ("_h",))


def frame(tuples: list[Any], dtype: pl.DataType, texts: bool) -> pl.DataFrame:
    """(stime, group, value[, time]) as a stage would hand them over."""
    columns: dict[str, Any] = {"_h": [hash_of(t[1]) for t in tuples], "_t": [t[0] for t in tuples]}
    if texts:
        columns["_k0"] = [f"k{t[1]}" for t in tuples]
    if tuples and len(tuples[0]) > 3:
        columns["_a"] = [t[3] for t in tuples]
    columns["_v0"] = [t[2] for t in tuples]
    shape = {"_h": pl.Int64, "_t": pl.Int64, "_k0": pl.String, "_a": pl.Int64, "_v0": dtype}
    return pl.DataFrame(columns, schema={c: shape[c] for c in columns})


def hash_of(group: int) -> int:
    return group


def run(
    window: Window, tuples: list[Any], until: int, dtype: pl.DataType, texts: bool, chance: random.Random | None,
    lose: bool = False, ended: bool = False, functions: Any = FUNCTIONS,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """All results, with the tuples cut into batches at ends of buckets, and state lost now and then. With `ended` the
    stream ends, in the last batch with tuples or after it."""
    kernel, keeps_panes = kernel_of(window, dtype, texts, functions)
    blocks: Any = {}
    log: list[tuple[int, int, bytes]] = []
    found: list[tuple[Any, ...]] = []
    since = -(2**62)
    ends = list(range(BUCKET, until + 1, BUCKET)) + [END] * ended
    while ends:
        take = len(ends) if chance is None else chance.randint(1, min(len(ends), 4))
        end, ends = ends[take - 1], ends[take:]
        if lose and log and chance is not None and chance.random() < 0.5:
            position, oldest, _ = log[-1]
            assert position == since
            bodies = [b for p, _, b in reversed(log) if p >= oldest]
            restored = restore(bodies, "op", since, kernel.by_group)
            blocks = blocks_of(restored.table, keeps_panes)
            if restored.since_us < since:
                again = [t for t in tuples if restored.since_us <= t[0] < since]
                blocks = replay(kernel, restored, blocks, frame(again, dtype, texts) if again else
                                frame(tuples[:1], dtype, texts)[:0], since)  # fmt: skip
        mine = [t for t in tuples if since <= t[0] < end]
        rows = frame(mine, dtype, texts) if mine else frame(tuples[:1], dtype, texts)[:0]
        step = kernel.step(blocks, rows, since, end)
        if step.results is not None:
            found += step.results.rows()
        blocks = step.blocks
        if lose:
            assert chance is not None
            shot = Shot(end - chance.randrange(40), end - chance.randrange(40), chance.choice([0, 1, 3, 100]))
            blocks, saved = save(step, shot, end, "op", kernel.by_group)
            log.append((end, saved.since_us, saved.body))
        since = end
    return found


def judged(made: list[tuple[Any, ...]], timed: bool, texts: bool) -> list[tuple[Any, ...]]:
    """The reference's (stime, [start,] group, values) with every function computed."""
    rows = []
    for row in made:
        *head, group, values = row
        s = ref.summary(values)
        text = "".join(f"{v}," for v in values if v is not None)
        rows.append((*head, f"k{group}" if texts else group, s["count"], s["n"], s["sum"], s["avg"], s["min"], s["max"],
                     s["distinct"], s["first"], s["last"], text))  # fmt: skip
    return sorted(rows, key=repr)


KINDS: dict[str, tuple[Window, Callable[..., Any]]] = {
    "tumbling": (time_window(20e-6), lambda t, u: ref.time_windows(t, u, 20, 20)),
    "sliding": (time_window(30e-6, 10e-6), lambda t, u: ref.time_windows(t, u, 30, 10)),
    "uneven": (time_window(25e-6, 10e-6), lambda t, u: ref.time_windows(t, u, 25, 10)),
    "count1": (count_window(1), lambda t, u: ref.count_windows(t, 1, 1)),
    "count3": (count_window(3), lambda t, u: ref.count_windows(t, 3, 3)),
    "count5by2": (count_window(5, 2), lambda t, u: ref.count_windows(t, 5, 2)),
    "timeout": (count_window(4, timeout=15e-6),
                lambda t, u: ref.timeout_windows(t, range(BUCKET, u + 1, BUCKET), 4, 15)),
    "landmark": (landmark(30e-6), lambda t, u: ref.landmark_results(t, 30)),
}  # fmt: skip

groups = st.integers(0, 3)
whole = st.one_of(st.none(), st.integers(-50, 50))
real = st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False))


def drawn(values: Any) -> Any:
    return st.lists(st.tuples(st.integers(0, 59), groups, values), max_size=40).map(
        lambda rows: sorted(rows, key=lambda r: r[0] // BUCKET)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("values", "dtype", "texts"), [(whole, pl.Int64(), False), (real, pl.Float64(), True)])
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_a_window_gives_what_the_reference_gives_however_batches_are_cut(
    kind: str, values: Any, dtype: pl.DataType, texts: bool, data: Any, seed: int
) -> None:
    window, oracle = KINDS[kind]
    tuples = data.draw(drawn(values))
    if not tuples:
        return
    if kind == "uneven":
        # Such windows are made of panes shorter than a bucket, in the order of time: see `first` in docs/operators.md.
        tuples.sort(key=lambda t: t[0])
    want = judged(oracle(tuples, 60), "start" in kind, texts)
    once = sorted(run(window, tuples, 60, dtype, texts, None), key=repr)
    cut = sorted(run(window, tuples, 60, dtype, texts, random.Random(seed)), key=repr)
    lost = sorted(run(window, tuples, 60, dtype, texts, random.Random(seed), lose=True), key=repr)
    if dtype == pl.Float64() and kind in ("sliding", "uneven"):
        # Panes are summed before windows are: equal to the last bit among replicas, to rounding with the reference.
        assert [r[:5] for r in once] == [r[:5] for r in want]
    else:
        assert once == want
    assert cut == once
    assert lost == once
    plain = run(window, tuples, 60, dtype, texts, random.Random(seed), lose=True, functions=UNSORTED)
    names = [f.name for f in FUNCTIONS]
    kept = [names.index(f.name) - len(names) for f in UNSORTED]
    assert sorted(plain, key=repr) == sorted(((*r[: -len(names)], *(r[i] for i in kept)) for r in once), key=repr)


def first_of(tuples: list[Any]) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for stime, group, *_ in tuples:
        found.setdefault(group, stime)
    return found


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 59), groups, whole, st.integers(0, 80)), min_size=1, max_size=40),
       slack=st.integers(0, 3), step=st.sampled_from([(20, 20), (30, 10)]), first=st.booleans(),
       seed=st.integers(0, 2**32))  # fmt: skip
def test_windows_by_a_column_wait_as_long_as_the_slack_says(
    rows: list[Any], slack: int, step: tuple[int, int], first: bool, seed: int
) -> None:
    rows = sorted(rows, key=lambda r: r[0] // BUCKET)
    size, advance = step
    window = time_window(size / 1e6, advance / 1e6, on="time", slack=slack, align="first" if first else "independent")
    want, _ = ref.slack_windows(rows, size, advance, slack, first)
    once = sorted(run(window, rows, 60, pl.Int64(), False, None), key=repr)
    assert once == judged(want, True, False)
    ended, _ = ref.slack_windows(rows, size, advance, slack, first, ended=END - 1)
    assert sorted(run(window, rows, 60, pl.Int64(), False, None, ended=True), key=repr) == judged(ended, True, False)
    cut = run(window, rows, 60, pl.Int64(), False, random.Random(seed), lose=True, ended=True)
    assert sorted(cut, key=repr) == judged(ended, True, False)
    assert sorted(run(window, rows, 60, pl.Int64(), False, random.Random(seed), lose=True), key=repr) == once


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(rows=drawn(whole).filter(len), step=st.sampled_from([(20, 20), (30, 10)]), seed=st.integers(0, 2**32))
def test_windows_can_begin_at_each_groups_first_tuple(rows: list[Any], step: tuple[int, int], seed: int) -> None:
    size, advance = step
    window = time_window(size / 1e6, advance / 1e6, align="first")
    firsts = first_of(rows)
    want = judged(ref.time_windows(rows, 60, size, advance, lambda g: firsts[g]), True, False)
    assert sorted(run(window, rows, 60, pl.Int64(), False, None), key=repr) == want
    assert sorted(run(window, rows, 60, pl.Int64(), False, random.Random(seed), lose=True), key=repr) == want
