"""One odd tuple, or one odd result, must not stop a query: it would come again with every restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from holdfast.model.errors import UsageError
from holdfast.operators.functions import UserFunction, count, user_defined
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import count_window, landmark, time_window

SHAPE = {"_h": pl.Int64, "_t": pl.Int64, "_a": pl.Int64, "_v0": pl.Int64}


@pytest.mark.parametrize("align", ["independent", "first"])
def test_a_tuple_without_a_time_is_dropped_and_counted_as_late(align: Any) -> None:
    window = time_window(10e-6, on="time", align=align)
    kernel, _ = aggregate_kernel(window, Plan((count(),), (None,), {}), ("_h",))
    rows = [(1, 0, None, 0), (1, 1, 0, 0), (1, 2, None, 0), (2, 3, None, 0), (1, 4, 12, 0)]
    step = kernel.step({}, pl.DataFrame(rows, schema=SHAPE, orient="row"), 0, 10)
    assert step.late == 3
    assert step.results is not None
    assert step.results.rows() == [(4, 0, 1, 1)]
    assert set(step.blocks[0]["_h"]) == {1}, "a group that never had a time leaves nothing behind"


class Mean(UserFunction):
    """Of the values behind a threshold; none of them may be there. Some means are whole."""

    type = "double"

    def start(self) -> list[int]:
        return []

    def add(self, state: list[int], values: Sequence[int]) -> list[int]:
        return state + [v for v in values if v > 0]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, state: list[int]) -> Any:
        mean = sum(state) / len(state) if state else None
        return int(mean) if mean is not None and mean == int(mean) else mean


class Word(Mean):
    def result(self, state: list[int]) -> Any:
        return "no number"


@pytest.mark.parametrize("window", [time_window(10e-6), time_window(20e-6, 10e-6), count_window(2), landmark(0)])
def test_a_result_has_the_declared_type_also_where_all_are_null_or_whole(window: Any) -> None:
    plan = Plan((user_defined(Mean(), "v").alias("mean"),), (0,), {0: pl.Int64()}, {0: pl.Float64()})
    kernel, _ = aggregate_kernel(window, plan, ("_h",))
    # Windows from 0, 10 and 20 on: nulls alone, whole means alone, a mean with a fraction.
    rows = [(1, 0, 0, -1), (1, 1, 0, -1), (1, 10, 0, 2), (1, 11, 0, 4), (1, 20, 0, 2), (1, 21, 0, 3)]
    step = kernel.step({}, pl.DataFrame(rows, schema=SHAPE, orient="row").drop("_a"), -(2**62), 100)
    assert step.results is not None
    assert step.results["mean"].dtype == pl.Float64
    assert {None, 2.5} <= set(step.results["mean"]) or {None, 11 / 4} <= set(step.results["mean"])


def test_a_result_that_does_not_fit_its_declared_type_is_refused_in_one_sentence() -> None:
    plan = Plan((user_defined(Word(), "v").alias("mean"),), (0,), {0: pl.Int64()}, {0: pl.Float64()})
    kernel, _ = aggregate_kernel(count_window(1), plan, ("_h",))
    with pytest.raises(UsageError, match=r"mean: result\(\) must give what `type` declares, double"):
        kernel.step({}, pl.DataFrame([(1, 0, 0, 1)], schema=SHAPE, orient="row").drop("_a"), 0, 10)
