"""Numbers of groups: 64 bits that stand for a key, and the partition that a group lives in.

Rules:
1. The number is the key itself if that is one whole number, else the first 64 bits of a BLAKE2b over the key's parts.
   Neither depends on machine, process or library version, because states and logs outlive all of these; nor on what
   the process has numbered before. Floating-point keys that count as one (0.0 and -0.0, all NaN) have one number.
2. The partition follows from the number alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

#: Stands for a null key among whole numbers; a real key of this value is refused.
NULL_KEY = -(2**63) + 1
#: Keys whose number is remembered between batches. At some 150 bytes each this is 75 MB at most.
_REMEMBERED = 500_000
#: By the columns' types, too: to Python 1, 1.0 and True are one key.
_known: dict[tuple[int, str, tuple[Any, ...]], int] = {}


def whole(dtype: pl.DataType) -> bool:
    return bool(dtype.is_integer() and dtype != pl.UInt64)


def numbered(keys: Sequence[pl.Series], salt: int) -> pl.Series:
    """The column `_h`."""
    if len(keys) == 1 and whole(keys[0].dtype):
        numbers = keys[0].cast(pl.Int64)
        return (numbers.fill_null(NULL_KEY) if numbers.null_count() else numbers).alias("_h")
    frame = pl.DataFrame([k.alias(f"_k{i}") for i, k in enumerate(keys)])
    names = frame.columns
    distinct = frame.unique(maintain_order=True)
    kinds = ", ".join(str(dtype) for dtype in distinct.dtypes)
    hashes = [_number(row, salt, kinds) for row in distinct.iter_rows()]
    table = distinct.with_columns(pl.Series("_h", hashes, dtype=pl.Int64))
    return frame.join(table, on=names, how="left", nulls_equal=True, maintain_order="left")["_h"]


def _number(key: tuple[Any, ...], salt: int, kinds: str) -> int:
    found = _known.get((salt, kinds, key))
    if found is None:
        raw = msgspec.msgpack.encode([salt, *map(_plain, key)])
        found = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little", signed=True)
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[salt, kinds, key] = found
    return found


def _plain(part: Any) -> Any:
    if isinstance(part, float):
        return math.nan if math.isnan(part) else part + 0.0
    return part if part is None or isinstance(part, bool | int | str | bytes) else repr(part)


def partition_of(numbers: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """The finaliser of MurmurHash3 spreads neighbouring numbers; without it, even keys would share a partition."""
    with np.errstate(over="ignore"):
        x = numbers.view(np.uint64)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
        return (x % np.uint64(partitions)).astype(np.int64)
