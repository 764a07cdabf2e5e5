"""Sums and averages of decimals, exact, in the types that Spark gives them.

Rules:
1. A sum of decimal(p,s) is a decimal(p+10,s), an average a decimal(p+4,s+4), each with 38 digits at most.
2. A running sum that has more digits than that, after whichever tuple, is refused; so what is refused does not depend
   on how batches were cut.
3. An average is rounded half up, away from zero, as Spark's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.model.errors import UsageError

DIGITS_MAX = 38
#: Room for any quotient: 38 digits before the point and all that can stand behind it.
_EXACT = Context(prec=2 * DIGITS_MAX + 8, rounding=ROUND_HALF_UP)


def sum_type(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of a sum.

    >>> sum_type(10, 2), avg_type(10, 2)
    ((20, 2), (14, 6))
    """
    return min(precision + 10, DIGITS_MAX), scale


def avg_type(precision: int, scale: int) -> tuple[int, int]:
    return min(precision + 4, DIGITS_MAX), min(scale + 4, DIGITS_MAX)


def summed(
    values: pl.Series, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], before: pl.Series | None,
    dtype: pl.Decimal, function: str,
) -> pl.Series:  # fmt: skip
    """The sum of each group of rows as `dtype`, on top of `before`; `ids` says whose each row is, in order."""
    most = Decimal((0, (9,) * dtype.precision, -dtype.scale))
    first = _reach(before) if before is not None else Decimal(0)
    if _EXACT.fma(_reach(values), Decimal(int(lengths.max())), first) > most:
        _check(values, lengths, before, most, function)
    wide = pl.Decimal(DIGITS_MAX, dtype.scale)
    frame = pl.DataFrame({"g": ids, "v": values.cast(wide).fill_null(0)})
    found = frame.group_by("g", maintain_order=True).agg(pl.col("v").sum())["v"]
    if before is not None:
        found = found + before.cast(wide).fill_null(0)
    return found.cast(dtype)


def _reach(values: pl.Series) -> Decimal:
    """How far from zero any of them lies."""
    low, high = values.min(), values.max()
    return max((abs(v) for v in (low, high) if isinstance(v, Decimal)), default=Decimal(0))


def _check(
    values: pl.Series, lengths: npt.NDArray[np.int64], before: pl.Series | None, most: Decimal, function: str
) -> None:
    """Rule 2, number by number: only sums that come near to the bound are looked at like this."""
    given = [v or Decimal(0) for v in values.to_list()]
    firsts = [Decimal(0)] * len(lengths) if before is None else [v or Decimal(0) for v in before.to_list()]
    at = 0
    for first, length in zip(firsts, lengths.tolist(), strict=True):
        running = accumulate(given[at : at + length], _EXACT.add, initial=first)
        at += length
        if any(abs(one) > most for one in running):
            raise UsageError(
                f"{function}: the sum of a window must fit into {len(most.as_tuple().digits)} digits; one does not; "
                f"cast to a decimal of fewer digits, or to double"
            )


def averages(sums: Sequence[Decimal | None], counts: Sequence[int], precision: int, scale: int) -> pl.Series:
    """Rule 3."""
    unit = Decimal((0, (1,), -scale))
    found = [
        None if not count or total is None else _EXACT.divide(total, Decimal(count)).quantize(unit, context=_EXACT)
        for total, count in zip(sums, counts, strict=True)
    ]
    return pl.Series(found, dtype=pl.Decimal(precision, scale))
