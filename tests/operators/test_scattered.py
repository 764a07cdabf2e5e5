"""Tuples that are folded as they came give the state of tuples that were sorted by group, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from holdfast.model.errors import UsageError
from holdfast.operators.folding import scattered
from holdfast.operators.functions import avg, count, first, last, max_, min_, sum_
from holdfast.operators.plan import Plan
from holdfast.operators.time_windows import TimedAggregate
from holdfast.operators.windows import time_window

WINDOW = time_window("10s", "5s")
SECOND = 1_000_000
FUNCTIONS = (count(), count("v").alias("n"), sum_("v").alias("sum"), avg("v").alias("avg"), first("v").alias("first"),
             last("v").alias("last"))  # fmt: skip
EXTREMES = (min_("v").alias("min"), max_("v").alias("max"))
KEYS = {"close": (0, 50), "with gaps": (0, 900), "far": (-(2**63) + 2, 2**63 - 1)}


def kernel(dtype: pl.DataType, *, is_sorted: bool, keys: tuple[str, ...] = ("_h",)) -> TimedAggregate:
    functions = FUNCTIONS if dtype.is_float() else (*FUNCTIONS, *EXTREMES)
    plan = Plan(functions, (None, *[0] * (len(functions) - 1)), {0: dtype})
    assert plan.scatters
    plan.scatters = not is_sorted
    return TimedAggregate(WINDOW, plan, keys)


def tuples(seed: int, keys: tuple[int, int], dtype: pl.DataType, second: int) -> pl.DataFrame:
    random = np.random.default_rng([seed, second])
    count = int(random.integers(1, 400))
    some = random.integers(*keys, size=60) if keys[1] > 10_000 else np.arange(*keys)
    values: Any = random.integers(-50, 50, count)
    if dtype.is_float():
        values = random.choice([1e300, -1e300, 0.1, -0.0, np.nan, 3.3], count) * random.random(count)
    texts = random.choice(some, count)
    frame = pl.DataFrame({"_h": texts, "_t": second * SECOND + random.integers(0, 4 * SECOND, count),
                          "_k0": [f"k{t}" for t in texts.tolist()], "_v0": values})  # fmt: skip
    gone = pl.Series(random.random(count) < 0.1)
    return frame.with_columns(pl.when(gone).then(None).otherwise(pl.col("_v0")).cast(dtype).alias("_v0"))


def bits(frame: pl.DataFrame | None) -> Any:
    """So that 0.0 differs from -0.0 and NaN equals itself."""
    if frame is None:
        return None
    found = []
    for series in frame:
        plain = series.to_physical() if series.dtype.is_temporal() else series
        plain = plain.cast(pl.Int8) if plain.dtype == pl.Boolean else plain
        whole = plain.to_list() if plain.dtype == pl.String else plain.fill_null(0).to_numpy().tobytes()
        found.append((series.name, series.dtype, series.is_null().to_list(), whole))
    return found


@pytest.mark.parametrize("dtype", [pl.Int64(), pl.Float64(), pl.Int16(), pl.Boolean(), pl.Datetime("us", "UTC")])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("seed", range(3))
def test_unsorted_tuples_make_the_same_state(dtype: pl.DataType, keys: str, seed: int) -> None:
    if dtype in (pl.Boolean(), pl.Datetime("us", "UTC")):
        functions = (count(), count("v").alias("n"), *EXTREMES, first("v").alias("first"), last("v").alias("last"))
        plans = [Plan(functions, (None, *[0] * 5), {0: dtype}) for _ in range(2)]
        assert plans[0].scatters
        plans[1].scatters = False
        ours, theirs = (TimedAggregate(WINDOW, plan, ("_k0",)) for plan in plans)
    else:
        ours, theirs = (kernel(dtype, is_sorted=s, keys=("_h",) if seed else ("_k0",)) for s in (False, True))
    states: list[Any] = [{}, {}]
    for second in range(0, 40, 4):
        rows = tuples(seed, KEYS[keys], dtype, second)
        steps = [k.step(b, rows, second * SECOND, (second + 4) * SECOND)
                 for k, b in zip((ours, theirs), states, strict=True)]  # fmt: skip
        states = [s.blocks for s in steps]
        assert {n: bits(b) for n, b in states[0].items()} == {n: bits(b) for n, b in states[1].items()}
        assert bits(steps[0].results) == bits(steps[1].results)


@pytest.mark.parametrize("keys", [[7] * 3, [7, 2**62, 7]])
def test_a_sum_that_leaves_64_bits_is_refused_unsorted_as_well(keys: list[int]) -> None:
    rows = pl.DataFrame({"_h": keys, "_t": [1, 2, 3], "_v0": [2**62, 5, 2**62]})
    with pytest.raises(UsageError, match="64 bits"):
        kernel(pl.Int64(), is_sorted=False).step({}, rows, 0, SECOND)
    fits = rows.with_columns(pl.Series("_v0", [2**62, -5, 2**61]))
    step = kernel(pl.Int64(), is_sorted=False).step({}, fits, 0, SECOND)
    assert step.blocks[0].filter(pl.col("_h") == 7)["c"].to_list() == [keys.count(7)]


def test_the_largest_and_the_smallest_numbers_are_two_groups() -> None:
    groups, seg = scattered(np.array([2**63 - 1, -(2**63), 2**63 - 1]))
    assert (groups.tolist(), seg.ids.tolist(), seg.lengths.tolist()) == ([-(2**63), 2**63 - 1], [1, 0, 1], [1, 2])
    assert (seg.firsts.tolist(), seg.lasts.tolist()) == ([1, 0], [1, 2])


def test_the_largest_number_alone_is_itself() -> None:
    groups, _ = scattered(np.array([2**63 - 1] * 3))
    assert (groups.dtype, groups.tolist()) == (np.int64, [2**63 - 1])
