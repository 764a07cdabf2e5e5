"""Numbers of groups: 64 bits that stand for a key, and the partition that a group lives in.

Rules:
1. The number is the key itself if that is one whole number, else the first 64 bits of a BLAKE2b over the key's parts.
   Neither depends on machine, process or library version, because states and logs outlive all of these; nor on what
   the process has numbered before. Floating-point keys that count as one (0.0 and -0.0, all NaN) have one number.
2. The partition follows from the number alone, in the same way whether Spark's shuffle or a reader of the log deals the
   tuples out: so a state can be dealt out anew over another number of partitions.
3. Keys of user-defined operators have no number; Spark's shuffle deals them out by its hash of their value, which
   `hash_of` computes for all plain types.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

#: Stands for a null key among whole numbers; a real key of this value is refused.
NULL_KEY = -(2**63) + 1
#: Constants of Spark's `hash`.
_SEED, _C1, _C2 = 42, np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
#: Numbers that are hashed at a time: what some thirty passes go over stays in the nearest cache. A quarter of the time.
_AT_ONCE = 8192
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


def partition_of(numbers: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int32]:
    """What `pmod(hash(_h), partitions)` is to Spark: MurmurHash3 of 32 bits over the number's two halves."""
    if len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < len(numbers) // 2:  # They lie so close that most come again: each is hashed once.
            # Counted from 0: the number after the largest is no number of 64 bits.
            return _hashed(np.arange(high - low + 1) + low, partitions)[numbers - low]
    return _hashed(numbers, partitions)


def _hashed(numbers: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int32]:
    halves = np.ascontiguousarray(numbers).view(np.uint32).reshape(-1, 2)  # The lower one first.
    found = np.empty(len(halves), np.int32)
    hashes, room = np.empty(_AT_ONCE, np.uint32), np.empty(_AT_ONCE, np.uint32)
    for at in range(0, len(halves), _AT_ONCE):
        some = halves[at : at + _AT_ONCE]
        x, y = hashes[: len(some)], room[: len(some)]
        _hash(some, x, y)
        signed, quotient = x.view(np.int32), y.view(np.int32)
        # The remainder has the sign of the divisor, as pmod's.
        np.floor_divide(signed, np.int32(partitions), out=quotient)
        np.multiply(quotient, np.int32(partitions), out=quotient)
        np.subtract(signed, quotient, out=found[at : at + _AT_ONCE])
    return found


def _hash(halves: npt.NDArray[np.uint32], x: npt.NDArray[np.uint32], y: npt.NDArray[np.uint32]) -> None:
    """Into `x`; `y` is room to work in."""
    z = np.empty_like(y)
    x.fill(_SEED)
    for half in (halves[:, 0], halves[:, 1]):
        np.multiply(half, _C1, out=y)
        _rotate(y, 15, z)
        np.multiply(y, _C2, out=y)
        np.bitwise_xor(x, y, out=x)
        _rotate(x, 13, z)
        np.multiply(x, np.uint32(5), out=x)
        np.add(x, np.uint32(0xE6546B64), out=x)
    np.bitwise_xor(x, np.uint32(8), out=x)  # The bytes that went in.
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        np.right_shift(x, np.uint32(bits), out=y)
        np.bitwise_xor(x, y, out=x)
        np.multiply(x, np.uint32(factor), out=x)


def _rotate(x: npt.NDArray[np.uint32], bits: int, room: npt.NDArray[np.uint32]) -> None:
    np.left_shift(x, np.uint32(bits), out=room)
    np.right_shift(x, np.uint32(32 - bits), out=x)
    np.bitwise_or(x, room, out=x)


#: What the keys of a type are in Python, by Spark's name of it; and of those that are hashed as a number, its size.
_KINDS: dict[str, Any] = {
    "boolean": bool, "tinyint": int, "smallint": int, "int": int, "bigint": int, "float": float, "double": float,
    "string": str, "binary": bytes, "date": date, "timestamp": datetime, "timestamp_ntz": datetime, "decimal": Decimal,
}  # fmt: skip
_EIGHT_BYTES = ("bigint", "timestamp", "timestamp_ntz", "decimal", "double")
#: Digits up to which Spark keeps a decimal as a number of 64 bits.
_LONG_DIGITS = 18
#: Python's own context rounds to 28 digits; Spark's decimals have up to 38.
_DECIMAL = Context(prec=38)


def can_hash(kind: str) -> bool:
    """Whether `hash_of` knows the type, by Spark's short name such as `bigint` or `decimal(10,2)`."""
    return kind.partition("(")[0] in _KINDS


def hash_of(key: bytes, kind: str) -> int:
    """Spark's `hash` of a key of that type, which `encode` has made bytes of. A partition is its remainder (pmod)."""
    name, _, size = kind.partition("(")
    value = msgspec.msgpack.decode(key, type=_KINDS[name] | None)
    if value is None:
        return _SEED
    if name in ("string", "binary"):
        return _hash_of(value.encode() if name == "string" else value)
    if name == "decimal":
        digits, _, scale = size.rstrip(")").partition(",")
        value = int(value.scaleb(int(scale), _DECIMAL))
        if int(digits) > _LONG_DIGITS:  # As Java writes a large number.
            return _hash_of(
                value.to_bytes(((value if value >= 0 else ~value).bit_length()) // 8 + 1, "big", signed=True)
            )
    elif name in ("float", "double"):
        value = math.nan if math.isnan(value) else value + 0.0
        code, whole_code = ("<f", "<i") if name == "float" else ("<d", "<q")
        (value,) = struct.unpack(whole_code, struct.pack(code, value))
    elif isinstance(value, datetime):
        value = (value.replace(tzinfo=value.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
            microseconds=1
        )
    elif isinstance(value, date):
        value = (value - date(1970, 1, 1)).days
    return _hash_of(int(value).to_bytes(8 if name in _EIGHT_BYTES else 4, "little", signed=True))


def _hash_of(raw: bytes) -> int:
    """MurmurHash3 of 32 bits, with each of the last odd bytes mixed in as a word of its own, as Spark has it."""
    mask, even = 0xFFFFFFFF, len(raw) & ~3
    words = [*struct.unpack(f"<{even // 4}i", raw[:even]), *struct.unpack(f"{len(raw) - even}b", raw[even:])]
    x = _SEED
    for word in words:
        y = (word & mask) * int(_C1) & mask
        x ^= ((y << 15 | y >> 17) & mask) * int(_C2) & mask
        x = ((x << 13 | x >> 19) & mask) * 5 + 0xE6546B64 & mask
    x ^= len(raw)
    x = (x ^ x >> 16) * 0x85EBCA6B & mask
    x = (x ^ x >> 13) * 0xC2B2AE35 & mask
    x ^= x >> 16
    return x - (x >> 31 << 32)
