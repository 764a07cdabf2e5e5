"""Numbers of groups outlive the process that gave them, so they must not depend on what else it has seen."""

from __future__ import annotations

import polars as pl
import pytest

from holdfast.operators import numbering
from holdfast.operators.numbering import numbered

#: Columns whose values Python takes for equal.
ONES = {"whole": pl.Series([1, 0]), "real": pl.Series([1.0, 0.0]), "truth": pl.Series([True, False])}
TEXT = pl.Series(["a", "a"])


def number(kind: str) -> list[int]:
    return numbered([ONES[kind], TEXT], 0).to_list()


@pytest.mark.parametrize("before", ONES)
@pytest.mark.parametrize("kind", ONES)
def test_a_group_has_the_same_number_whatever_the_worker_has_seen_before(kind: str, before: str) -> None:
    numbering._known.clear()
    fresh = number(kind)
    numbering._known.clear()
    number(before)
    assert number(kind) == fresh
    assert (number(before) == fresh) == (kind == before)


def test_numbers_are_those_that_logs_hold_already() -> None:
    assert number("real")[0] == 6031402857889327811
    assert number("whole")[0] == 2709754766305301151


@pytest.mark.parametrize("values", [[0.0, -0.0], [float("nan"), -float("nan")]])
def test_keys_that_count_as_one_have_one_number_whichever_comes_first(values: list[float]) -> None:
    numbering._known.clear()
    first = numbered([pl.Series(values)], 0).to_list()
    numbering._known.clear()
    assert numbered([pl.Series(values[::-1])], 0).to_list() == first
    assert first[0] == first[1]
