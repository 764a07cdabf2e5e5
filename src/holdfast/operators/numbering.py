"""Numbers of groups: 64 bits that stand for a key, and the partition that a group lives in.

Rules:
1. The number is the key itself if that is one whole number, else the first 64 bits of a BLAKE2b over the key's parts.
   Neither depends on machine, process or library version, because states and logs outlive all of these; nor on what
   the process has numbered before. Floating-point keys that count as one (0.0 and -0.0, all NaN) have one number.
2. The partition follows from the number alone, in the same way whether Spark's shuffle or a reader of the log deals the
   tuples out: so a state can be dealt out anew over another number of partitions.
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
#: Constants of Spark's `hash`.
_SEED, _C1, _C2 = 42, np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
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
    """What `pmod(hash(_h), partitions)` is to Spark: MurmurHash3 of 32 bits over the number's two halves."""
    halves = np.ascontiguousarray(numbers).view(np.uint64)
    low, high = halves.astype(np.uint32), (halves >> np.uint64(32)).astype(np.uint32)
    with np.errstate(over="ignore"):
        x = np.full(len(low), _SEED, np.uint32)
        for half in (low, high):
            x ^= _rotated(half * _C1, 15) * _C2
            x = _rotated(x, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        x ^= np.uint32(8)  # The bytes that went in.
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        x ^= x >> np.uint32(16)
    return x.view(np.int32).astype(np.int64) % partitions  # numpy's remainder has the sign of the divisor, as pmod's.


def _rotated(x: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))
