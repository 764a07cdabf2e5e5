"""Folding: how the values of a window become its state, many windows at a time.

The values of all windows lie behind each other, each window's in the order of its tuples; `Segments` says where each
begins. An accumulator folds every segment into a state, from a state that is given or from none. Sorting tuples so that
they lie like that takes longer than all the rest; where every accumulator can do without (`scatters`), the tuples stay
as they came, and `Scattered` says whose each of them is.

Rules:
1. What comes out depends on the order of the values in a segment, never on how they were cut into batches: folding
   [a, b, c] equals folding [c] onto the state of [a, b], bit for bit. `numpy.bincount` adds one after the other
   (`sum` and `add.reduceat` add in pairs), so float sums go through it.
2. Panes of overlapping windows are merged in their order; that, too, is fixed by the data.
3. States are flat columns (a user's own is MessagePack): they go to the log and come back as they were.
4. A sum of whole numbers that leaves 64 bits, after whichever tuple, is refused and never wrapped around. That, too,
   does not depend on how batches were cut. Decimals are summed exactly, see `decimals`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.operators.decimals import summed
from holdfast.operators.functions import UserFunction

Ints = npt.NDArray[np.int64]
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_LOW = 2**32 - 1


class Segments:
    """Where each window's rows begin among rows that lie window by window."""

    def __init__(self, starts: Ints, rows: int) -> None:
        self.starts, self.rows = starts, rows
        self.ends: Ints = np.append(starts[1:], rows) if len(starts) else starts
        self.lengths: Ints = self.ends - starts
        self._ids: Ints | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ids(self) -> Ints:
        """The segment of each row."""
        if self._ids is None:
            self._ids = np.repeat(np.arange(len(self.starts)), self.lengths)
        return self._ids

    def at(self, index: Ints) -> Segments:
        """Only these segments: the rows must be gathered with `rows_of` first."""
        lengths = self.lengths[index]
        ends = np.cumsum(lengths)
        return Segments(ends - lengths, int(ends[-1]) if len(ends) else 0)

    def rows_of(self, index: Ints) -> Ints:
        lengths = self.lengths[index]
        total = int(lengths.sum())
        offsets = np.repeat(self.starts[index] - np.append(0, np.cumsum(lengths)[:-1]), lengths)
        return offsets + np.arange(total)

    @property
    def firsts(self) -> Ints:
        """The row with which each segment begins."""
        return self.starts

    @property
    def lasts(self) -> Ints:
        found: Ints = self.ends - 1
        return found

    def reduced(self, how: np.ufunc, numbers: Ints) -> Ints:
        """Each segment's numbers as one."""
        found: Ints = how.reduceat(numbers, self.starts)
        return found

    def together(self, numbers: Ints) -> tuple[Ints, Segments]:
        """The numbers segment by segment."""
        return numbers, self


class Scattered(Segments):
    """Segments whose rows lie anywhere, each segment's in the order of its tuples; none of them is empty."""

    def __init__(self, ids: Ints, lengths: Ints) -> None:
        self.rows, self.lengths, self._ids = len(ids), lengths, ids

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def firsts(self) -> Ints:
        found = np.empty(len(self), np.int64)
        found[self.ids[::-1]] = np.arange(self.rows - 1, -1, -1)  # Of several, the one that is written last stays.
        return found

    @property
    def lasts(self) -> Ints:
        found = np.empty(len(self), np.int64)
        found[self.ids] = np.arange(self.rows)
        return found

    def reduced(self, how: np.ufunc, numbers: Ints) -> Ints:
        found: Ints = numbers[self.firsts] if how is not np.add else np.zeros(len(self), np.int64)
        how.at(found, self.ids, numbers)
        return found

    def together(self, numbers: Ints) -> tuple[Ints, Segments]:
        ends = np.cumsum(self.lengths)
        return numbers[np.argsort(self.ids, kind="stable")], Segments(ends - self.lengths, self.rows)


def scattered(numbers: Ints) -> tuple[Ints, Scattered]:
    """The different numbers in ascending order, and whose number each row has."""
    low = int(numbers.min())
    span = int(numbers.max()) - low + 1
    if span <= 4 * len(numbers):  # They lie close: a table of all that could be there.
        places = numbers - low
        counts = np.bincount(places, minlength=span)
        known = np.flatnonzero(counts)
        if len(known) == span:
            return np.arange(span) + low, Scattered(places, counts)
        ranks = np.zeros(span, np.int64)
        ranks[known] = np.arange(len(known))
        return known + low, Scattered(ranks[places], counts[known])
    coded = pa.array(numbers).dictionary_encode()
    values, codes = np.asarray(coded.dictionary), np.asarray(coded.indices)
    order = np.argsort(values)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    ids = ranks[codes]
    return values[order], Scattered(ids, np.bincount(ids, minlength=len(values)))


class Values:
    """One column of rows, as its accumulators want it."""

    def __init__(self, series: pl.Series) -> None:
        self.series = series
        dtype = series.dtype
        self.is_float = dtype.is_float()
        self.flat = _flat(dtype)
        self._numbers: npt.NDArray[Any] | None = None
        self.nulls = series.null_count() > 0
        self.valid: npt.NDArray[np.bool_] | None = series.is_not_null().to_numpy() if self.nulls else None

    @property
    def numbers(self) -> npt.NDArray[Any]:
        """As int64 or float64; nulls are zeros."""
        if self._numbers is None:
            series = self.series.to_physical() if self.series.dtype.is_temporal() else self.series
            series = series.cast(pl.Float64 if self.is_float else pl.Int64)
            self._numbers = (series.fill_null(0) if self.nulls else series).to_numpy()
        return self._numbers


def _flat(dtype: pl.DataType) -> bool:
    """Can it be computed as int64 or float64? A decimal cannot: it would lose its fraction."""
    return (dtype.is_numeric() and not dtype.is_decimal()) or dtype.is_temporal() or dtype == pl.Boolean


def nulls(dtype: pl.DataType, count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=dtype, eager=True)


class Accumulator(ABC):
    """One column of state."""

    name: str
    value: int | None = None

    def scatters(self, dtype: pl.DataType | None) -> bool:
        """Whether it can fold values of that type that lie scattered, with the same result to the last bit."""
        return False

    @abstractmethod
    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        """The state of each segment; `before` is what it goes on from where `has` says so."""

    @abstractmethod
    def merge(self, states: pl.Series, seg: Segments) -> Any:
        """The states of neighbouring panes as one, per segment."""


def _before(before: pl.Series | None, has: npt.NDArray[np.bool_], neutral: Any, dtype: Any) -> npt.NDArray[Any]:
    found = np.full(len(has), neutral, dtype)
    if before is not None:
        found[has] = before.to_numpy()[has] if not before.null_count() else before.fill_null(neutral).to_numpy()[has]
    return found


def _reach(numbers: Ints) -> int:
    """How far from zero any of them lies."""
    return max(-int(numbers.min()), int(numbers.max())) if len(numbers) else 0


def _running(numbers: Ints, seg: Segments, first: Ints) -> Ints:
    """The sum after each row of a segment, which begins with `first`."""
    every = np.cumsum(numbers)
    found: Ints = every + (first - every[seg.starts] + numbers[seg.starts])[seg.ids]
    return found


class Count(Accumulator):
    """Tuples, or values that are not null."""

    def __init__(self, value: int | None) -> None:
        self.value, self.name = value, "c" if value is None else f"n{value}"

    def scatters(self, dtype: pl.DataType | None) -> bool:
        return True

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Ints:
        new: Ints = seg.lengths
        if values is not None and values.valid is not None:
            new = seg.reduced(np.add, values.valid.astype(np.int64))
        return new + _before(before, has, 0, np.int64) if before is not None else new

    def merge(self, states: pl.Series, seg: Segments) -> Ints:
        return np.add.reduceat(states.to_numpy(), seg.starts)  # type: ignore[no-any-return]


class Sum(Accumulator):
    def __init__(self, value: int, function: str = "sum", decimal: pl.Decimal | None = None) -> None:
        """`decimal` is the type of the sum, of decimals."""
        self.value, self.name, self.function, self.decimal = value, f"s{value}", function, decimal

    def scatters(self, dtype: pl.DataType | None) -> bool:
        return self.decimal is None

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        assert values is not None
        if self.decimal is not None:
            given = None if before is None else before.zip_with(pl.Series(has), nulls(before.dtype, len(has)))
            return summed(values.series, seg.ids, seg.lengths, given, self.decimal, self.function)
        if not values.is_float:
            first = None if before is None else _before(before, has, 0, np.int64)
            self.check(values.numbers, seg, first)
            new = seg.reduced(np.add, values.numbers)
            return new if first is None else new + first
        if before is None:
            return np.bincount(seg.ids, values.numbers, len(seg))
        ids = np.concatenate([np.arange(len(seg)), seg.ids])
        return np.bincount(ids, np.concatenate([_before(before, has, 0.0, np.float64), values.numbers]), len(seg))

    def merge(self, states: pl.Series, seg: Segments) -> Any:
        if self.decimal is not None:
            return summed(states, seg.ids, seg.lengths, None, self.decimal, self.function)
        numbers = states.to_numpy()
        if states.dtype.is_float():
            return np.bincount(seg.ids, numbers, len(seg))
        self.check(numbers, seg, None)
        return np.add.reduceat(numbers, seg.starts)

    def check(self, numbers: Ints, seg: Segments, before: Ints | None) -> None:
        """Rule 4."""
        reach = _reach(numbers) * int(seg.lengths.max()) + (0 if before is None else _reach(before))
        if reach <= _INT_MAX:
            return
        numbers, seg = seg.together(numbers)
        # Both halves of every running sum, which fit; what carries over from the lower belongs to the upper one.
        first = np.zeros(len(seg), np.int64) if before is None else before
        high = _running(numbers >> 32, seg, first >> 32)
        low = _running(numbers & _LOW, seg, first & _LOW)
        upper = high + (low >> 32)
        if (upper >= 2**31).any() or (upper < -(2**31)).any():
            raise UsageError(
                f"{self.function}: the sum of a window must fit into 64 bits; one does not; sum a double instead, for "
                f"example col(…).cast('double')"
            )


class Extreme(Accumulator):
    """The smallest or largest value. Where there is none, the column `n` says so and this holds a neutral number."""

    def __init__(self, value: int, largest: bool) -> None:
        self.value, self.largest, self.name = value, largest, f"{'hi' if largest else 'lo'}{value}"

    def scatters(self, dtype: pl.DataType | None) -> bool:
        # Which of 0.0 and -0.0, or of two NaN, numpy takes for the larger hangs on how they lie.
        return dtype is not None and _flat(dtype) and not dtype.is_float()

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        assert values is not None
        if not values.flat:
            return self._texts(values.series, seg, before, has)
        numbers = values.numbers
        neutral = self._neutral(values.is_float)
        if values.valid is not None:
            numbers = np.where(values.valid, numbers, neutral)
        new = seg.reduced(self._least, numbers)
        return new if before is None else self._least(new, _before(before, has, neutral, new.dtype))

    def merge(self, states: pl.Series, seg: Segments) -> Any:
        if _flat(states.dtype):
            return self._least.reduceat(states.to_numpy(), seg.starts)
        return self._texts(states, seg, None, np.zeros(0, bool))

    @property
    def _least(self) -> np.ufunc:
        # NaN is larger than every number: the maximum if there is one, the minimum only if it is all there is.
        return np.maximum if self.largest else np.fmin

    def _neutral(self, is_float: bool) -> float | int:
        if is_float:
            return -np.inf if self.largest else np.nan
        return _INT_MIN if self.largest else _INT_MAX

    def _texts(self, series: pl.Series, seg: Segments, before: pl.Series | None, has: Any) -> pl.Series:
        column = pl.col("v").max() if self.largest else pl.col("v").min()
        frame = pl.DataFrame({"g": seg.ids, "v": series})
        found = frame.group_by("g", maintain_order=True).agg(column)["v"]
        if before is None:
            return found
        both = pl.DataFrame({"a": found, "b": before.zip_with(pl.Series(has), nulls(before.dtype, len(has)))})
        pick = pl.max_horizontal("a", "b") if self.largest else pl.min_horizontal("a", "b")
        return both.select(pick.alias("v"))["v"]


class Edge(Accumulator):
    """The first or the last tuple's value, as it is."""

    def __init__(self, value: int, latest: bool) -> None:
        self.value, self.latest, self.name = value, latest, f"{'l' if latest else 'f'}{value}"

    def scatters(self, dtype: pl.DataType | None) -> bool:
        return True

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        assert values is not None
        new = values.series.gather(seg.lasts if self.latest else seg.firsts)
        if self.latest or before is None:
            return new
        return before.zip_with(pl.Series(has), new)

    def merge(self, states: pl.Series, seg: Segments) -> Any:
        return states.gather(seg.lasts if self.latest else seg.firsts)


class Distinct(Accumulator):
    """The different values, in order."""

    def __init__(self, value: int) -> None:
        self.value, self.name = value, f"d{value}"

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        assert values is not None
        parts = [pl.DataFrame({"g": seg.ids, "v": values.series})]
        if before is not None:
            old = pl.DataFrame({"g": np.flatnonzero(has), "v": before.filter(pl.Series(has))}).explode("v")
            parts.append(old.cast({"v": values.series.dtype}))
        return self._collected(pl.concat(parts), len(seg))

    def merge(self, states: pl.Series, seg: Segments) -> Any:
        return self._collected(pl.DataFrame({"g": seg.ids, "v": states}).explode("v"), len(seg))

    @staticmethod
    def _collected(pairs: pl.DataFrame, count: int) -> pl.Series:
        lists = pairs.drop_nulls("v").unique().sort("g", "v").group_by("g", maintain_order=True).agg("v")
        every = pl.DataFrame({"g": np.arange(count)}).join(lists, on="g", how="left", maintain_order="left")
        return every["v"].fill_null([])


class User(Accumulator):
    """A function of the user's own, one call per window."""

    def __init__(self, index: int, value: int, function: UserFunction) -> None:
        self.value, self.name, self.function = value, f"u{index}", function

    def fold(self, values: Values | None, seg: Segments, before: pl.Series | None, has: npt.NDArray[np.bool_]) -> Any:
        assert values is not None
        found = []
        for i, (start, end) in enumerate(zip(seg.starts.tolist(), seg.ends.tolist(), strict=True)):
            state = msgspec.msgpack.decode(before[i]) if before is not None and has[i] else self.function.start()
            mine = values.series[start:end].drop_nulls().to_list()
            found.append(msgspec.msgpack.encode(self.function.add(state, mine)))
        return pl.Series(found, dtype=pl.Binary)

    def merge(self, states: pl.Series, seg: Segments) -> Any:
        found = []
        for start, end in zip(seg.starts.tolist(), seg.ends.tolist(), strict=True):
            state, *others = [msgspec.msgpack.decode(s) for s in states[start:end]]
            for other in others:
                state = self.function.merge(state, other)
            found.append(msgspec.msgpack.encode(state))
        return pl.Series(found, dtype=pl.Binary)

    def results(self, states: pl.Series) -> list[Any]:
        return [self.function.result(msgspec.msgpack.decode(state)) for state in states]


def fold(
    accumulators: Sequence[Accumulator], rows: pl.DataFrame, seg: Segments, before: pl.DataFrame | None,
    has: npt.NDArray[np.bool_],
) -> dict[str, pl.Series]:  # fmt: skip
    """Every accumulator over every segment. `before` has a row per segment, of use where `has` is true."""
    values = {a.value: Values(rows[f"_v{a.value}"]) for a in accumulators if a.value is not None}
    found = {}
    for a in accumulators:
        given = None if before is None else before[a.name]
        found[a.name] = pl.Series(a.name, a.fold(None if a.value is None else values[a.value], seg, given, has))
    return found


def merge(accumulators: Sequence[Accumulator], states: pl.DataFrame, seg: Segments) -> dict[str, pl.Series]:
    return {a.name: pl.Series(a.name, a.merge(states[a.name], seg)) for a in accumulators}
