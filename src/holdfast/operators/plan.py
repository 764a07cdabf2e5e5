"""An aggregate as it runs: its functions as accumulators, and their results.

Several functions over one column share what they can: `avg` and `sum` one sum, all of them one count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from holdfast.model.errors import UsageError
from holdfast.operators.decimals import averages, avg_type, sum_type
from holdfast.operators.folding import Accumulator, Count, Distinct, Edge, Extreme, Sum, User, nulls
from holdfast.operators.functions import Function


class Plan:
    """`values[i]` is the number of the value column of function i (None for `count()`), `made[i]` what the user's own
    function i declares to give."""

    def __init__(
        self, functions: Sequence[Function], values: Sequence[int | None], types: Mapping[int, pl.DataType],
        made: Mapping[int, pl.DataType] | None = None,
    ) -> None:  # fmt: skip
        self.functions, self.values, self.types, self.made = functions, values, types, made or {}
        names = [f.name for f in functions]
        if not functions or len(set(names)) != len(names):
            raise UsageError(f"an aggregate needs one or more functions with different names; got {names or 'none'}")
        found: dict[str, Accumulator] = {"c": Count(None)}
        for i, (function, value) in enumerate(zip(functions, values, strict=True)):
            for accumulator in self._needed(i, function, value):
                found.setdefault(accumulator.name, accumulator)
        self.accumulators: tuple[Accumulator, ...] = tuple(found.values())
        self.scatters = all(a.scatters(None if a.value is None else types[a.value]) for a in self.accumulators)
        """Whether tuples can be folded as they came, without being sorted by group."""

    def _needed(self, i: int, function: Function, value: int | None) -> list[Accumulator]:
        kind = function.kind
        if value is None:
            return []
        if kind in ("sum", "avg"):
            given = self.types[value]
            if not given.is_numeric():
                raise UsageError(f"{kind} needs numbers; got {given}; cast it")
            total = pl.Decimal(*sum_type(given.precision, given.scale)) if isinstance(given, pl.Decimal) else None
            return [Count(value), Sum(value, function.name, total)]
        if kind in ("min", "max"):
            return [Count(value), Extreme(value, kind == "max")]
        if kind == "count":
            return [Count(value)]
        if kind in ("first", "last"):
            return [Edge(value, kind == "last")]
        if kind == "count_distinct":
            return [Distinct(value)]
        assert function.user is not None
        return [User(i, value, function.user)]

    def results(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        """What each function gives for each state."""
        return {f.name: self._result(i, f, states).alias(f.name) for i, f in enumerate(self.functions)}

    def _result(self, i: int, function: Function, states: pl.DataFrame) -> pl.Series:
        value, kind = self.values[i], function.kind
        if value is None:
            return states["c"].cast(pl.Int64)
        if kind == "count":
            return states[f"n{value}"].cast(pl.Int64)
        if kind in ("first", "last"):
            return states[f"{'l' if kind == 'last' else 'f'}{value}"]
        if kind == "count_distinct":
            return states[f"d{value}"].list.len().cast(pl.Int64)
        if kind == "user":
            accumulator = next(a for a in self.accumulators if a.name == f"u{i}")
            assert isinstance(accumulator, User)
            return self._declared(i, function, accumulator.results(states[f"u{i}"]))
        some = states[f"n{value}"] > 0
        if kind in ("min", "max"):
            column = states[f"{'hi' if kind == 'max' else 'lo'}{value}"]
            found = column if column.dtype == self.types[value] else _restored(column, self.types[value])
        elif kind == "sum":
            found = states[f"s{value}"]
        elif isinstance(given := self.types[value], pl.Decimal):
            total, counted = states[f"s{value}"].to_list(), states[f"n{value}"].to_list()
            return averages(total, counted, *avg_type(given.precision, given.scale))
        else:
            with np.errstate(invalid="ignore", divide="ignore"):
                found = pl.Series(states[f"s{value}"].to_numpy() / states[f"n{value}"].to_numpy())
        return found if some.all() else found.zip_with(some, nulls(found.dtype, len(found)))

    def _declared(self, i: int, function: Function, results: list[Any]) -> pl.Series:
        """In the declared type, whatever some of the results look like: all of a window's may be null, or whole."""
        found = pl.Series(function.name, results, strict=False)
        if i not in self.made or found.dtype == self.made[i]:
            return found
        try:
            return found.cast(self.made[i])
        except pl.exceptions.PolarsError as error:
            assert function.user is not None
            raise UsageError(
                f"{function.name}: result() must give what `type` declares, {function.user.type}; got {found.dtype} "
                f"({error}); change one of them"
            ) from error


def _restored(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Physical numbers as the type that they stand for."""
    if dtype.is_temporal() and dtype != pl.Date:
        return column.cast(dtype)
    if dtype == pl.Date:
        return column.cast(pl.Int32).cast(pl.Date)
    return column.cast(dtype, strict=False)
