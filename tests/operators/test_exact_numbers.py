"""Whole sums that leave 64 bits are refused and decimals keep their fractions, in every kind of window."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from holdfast.model.errors import UsageError
from holdfast.operators.functions import avg, max_, min_, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import Window, count_window, landmark, time_window

#: Each holds the four tuples of a group at 0, 1, 2 and 3 µs, and closes before 40 µs.
WINDOWS: dict[str, Window] = {
    "time": time_window(20e-6), "sliding": time_window(20e-6, 2e-6), "count": count_window(4),
    "overlapping": count_window(4, 2), "landmark": landmark(0),
}  # fmt: skip
MOST = 2**63 - 1


def run(window: Window, functions: tuple[Any, ...], values: list[Any], dtype: Any, cuts: list[int]) -> list[Any]:
    """The last result of the one group, of time windows that from 0 on; batches end at the cuts."""
    kernel, _ = aggregate_kernel(window, Plan(functions, [0] * len(functions), {0: dtype}), ("_h",))
    shape = {"_h": pl.Int64, "_t": pl.Int64, "_v0": dtype}
    rows = [(7, t, v) for t, v in enumerate(values)]
    blocks: Any = {}
    found: list[Any] = []
    since = -(2**62)
    for end in [*cuts, 40]:
        mine = pl.DataFrame([r for r in rows if since <= r[1] < end], schema=shape, orient="row")
        step = kernel.step(blocks, mine, since, end)
        blocks, since = step.blocks, end
        if step.results is not None:
            made = step.results
            made = made.filter(pl.col("_w") == 0) if "_w" in made.columns else made
            found += made.select(*(f.name for f in functions)).rows()
    return found[-1]


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3]])
def test_the_extremes_of_decimals_keep_their_fractions(kind: str, cuts: list[int]) -> None:
    values = [Decimal("1.75"), None, Decimal("-1.25"), Decimal("1.50")]
    made = run(WINDOWS[kind], (min_("v"), max_("v")), values, pl.Decimal(10, 2), cuts)
    assert made == (Decimal("-1.25"), Decimal("1.75"))


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3]])
def test_decimals_are_summed_and_averaged_exactly(kind: str, cuts: list[int]) -> None:
    """In the types of Spark: sum decimal(p+10,s), avg decimal(p+4,s+4), rounded half up."""
    values = [Decimal("0.10"), Decimal("0.20"), None, Decimal("99999999.77")]
    made = run(WINDOWS[kind], (sum_("v").alias("s"), avg("v").alias("a")), values, pl.Decimal(10, 2), cuts)
    assert made == (Decimal("100000000.07"), Decimal("33333333.356667"))
    assert [v.as_tuple().exponent for v in made] == [-2, -6]
    assert run(WINDOWS[kind], (sum_("v"),), [None] * 4, pl.Decimal(10, 2), cuts) == (None,)
    assert run(WINDOWS[kind], (avg("v"),), [None] * 4, pl.Decimal(10, 2), cuts) == (None,)
    halves = [Decimal("-0.00001"), Decimal("0.00002"), Decimal("-0.00002"), Decimal("-0.00001")]
    assert run(WINDOWS[kind], (avg("v"),), halves, pl.Decimal(7, 5), cuts) == (Decimal("-0.000005"),)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3]])
def test_a_sum_of_decimals_with_too_many_digits_is_refused_however_batches_are_cut(kind: str, cuts: list[int]) -> None:
    big = Decimal("6" + "0" * 37)
    with pytest.raises(UsageError, match="total: the sum of a window must fit into 38 digits"):
        run(WINDOWS[kind], (sum_("v").alias("total"),), [Decimal(1), big, big, big], pl.Decimal(38, 0), cuts)
    made = run(WINDOWS[kind], (sum_("v"),), [big, -big, big, Decimal(5)], pl.Decimal(38, 0), cuts)
    assert made == (Decimal("6" + "0" * 36 + "5"),)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3]])
def test_a_sum_that_leaves_64_bits_is_refused_however_batches_are_cut(kind: str, cuts: list[int]) -> None:
    big = 2**62
    with pytest.raises(UsageError, match="total: the sum of a window must fit into 64 bits"):
        run(WINDOWS[kind], (sum_("v").alias("total"),), [1, big, big, big], pl.Int64(), cuts)
    made = run(WINDOWS[kind], (sum_("v"),), [-MOST - 1, MOST, None, -MOST], pl.Int64(), cuts)
    assert made == (-MOST - 1,)


def test_sums_are_refused_exactly_when_a_running_sum_does_not_fit() -> None:
    chance = random.Random(4)
    refused = 0
    for _ in range(300):
        values = [chance.choice([1, -1]) * chance.randrange(2 ** chance.choice([8, 40, 62, 63])) for _ in range(4)]
        running = [sum(values[:n]) for n in range(1, 5)]
        fits = all(-(2**63) <= r < 2**63 for r in running)
        refused += not fits
        cuts = chance.choice([[], [2], [1, 3]])
        try:
            made = run(count_window(4), (sum_("v"),), values, pl.Int64(), cuts)
        except UsageError:
            assert not fits, values
        else:
            assert fits
            assert made == (running[-1],)
    assert 20 < refused < 280
