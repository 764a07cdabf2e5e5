"""Types of PostgreSQL and those of a stream: which column becomes which, and how a value is read.

Rules:
1. Values keep their meaning exactly. A type that streams do not have comes as PostgreSQL writes it as text (uuid, json,
   enums, ranges, intervals, a numeric without a declared size …); so does any other where the stream's column is a
   string.
2. A value that the column cannot hold (infinity, a year beyond 9999, NaN in a numeric, an array of arrays) is refused
   with the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.inputs.pgoutput import Column, not_text
from holdfast.model.schema import STIME_TYPE, type_text

#: PostgreSQL's numbers for its own types; they are part of its promises and never change.
_NUMERIC, _NUMERIC_ARRAY = 1700, 1231
_PLAIN: dict[int, pa.DataType] = {
    16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 26: pa.int64(),
    700: pa.float32(), 701: pa.float64(), 1082: pa.date32(), 1114: pa.timestamp("us"), 1184: STIME_TYPE,
    18: pa.string(), 19: pa.string(), 25: pa.string(), 1042: pa.string(), 1043: pa.string(),
    114: pa.string(), 3802: pa.string(), 2950: pa.string(),
}  # fmt: skip
#: Arrays and what is in them.
_ARRAYS: dict[int, int] = {
    1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1028: 26, 1021: 700, 1022: 701, 1182: 1082, 1115: 1114,
    1185: 1184, 1002: 18, 1003: 19, 1009: 25, 1014: 1042, 1015: 1043, 199: 114, 3807: 3802, 2951: 2950,
    _NUMERIC_ARRAY: _NUMERIC,
}  # fmt: skip
_DIGITS_MAX = 38
#: A modifier counts from here.
_MODIFIER_BASE = 4

Read = Callable[[str], Any]


def type_of(column: Column) -> pa.DataType:
    """The type that a column of a table has in a stream, unless the stream says otherwise."""
    if column.type in _ARRAYS:
        return pa.list_(_element(_ARRAYS[column.type], column.modifier))
    return _element(column.type, column.modifier)


def _element(type: int, modifier: int) -> pa.DataType:
    if type == _NUMERIC:
        return _decimal(modifier) or pa.string()
    return _PLAIN.get(type, pa.string())


def _decimal(modifier: int) -> pa.DataType | None:
    if modifier < _MODIFIER_BASE:
        return None  # Any number of digits: text has them all.
    precision, scale = (modifier - _MODIFIER_BASE) >> 16 & 0xFFFF, (modifier - _MODIFIER_BASE) & 0x7FF
    fits = precision <= _DIGITS_MAX and scale <= precision  # A negative scale is a large number here.
    return pa.decimal128(precision, scale) if fits else None


def reads(column: Column, kind: pa.DataType) -> Read | None:
    """How values of a column are read into a stream's column; None: they do not fit."""
    if pa.types.is_string(kind):
        return str
    if pa.types.is_list(kind) and column.type in _ARRAYS:
        element = Column(column.name, _ARRAYS[column.type], column.modifier, column.key)
        read = reads(element, kind.value_type)
        return None if read is None else lambda text: [None if v is None else read(v) for v in array_values(text)]
    if column.type == _NUMERIC and pa.types.is_decimal128(kind):
        declared = _decimal(column.modifier)
        wide = declared is None or (
            kind.scale >= declared.scale and kind.precision - kind.scale >= declared.precision - declared.scale
        )
        return Decimal if wide else None
    return _READS[kind] if _PLAIN.get(column.type) == kind else None


def column_text(column: Column, kind: pa.DataType) -> str:
    """What a column must be in the stream, for messages."""
    natural = type_text(type_of(column))
    return natural if natural == "string" else f"{natural} or string"


def _bool(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _binary(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("it must be hexadecimal")
    return bytes.fromhex(text[2:])


_READS: dict[pa.DataType, Read] = {
    pa.bool_(): _bool, pa.binary(): _binary, pa.int16(): int, pa.int32(): int, pa.int64(): int,
    pa.float32(): float, pa.float64(): float, pa.date32(): date.fromisoformat,
    pa.timestamp("us"): datetime.fromisoformat, STIME_TYPE: datetime.fromisoformat,
}  # fmt: skip

_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)


def array_values(text: str) -> list[str | None]:
    """The elements of an array of one dimension, as PostgreSQL writes it.

    >>> array_values('{1,NULL,"a \\\\"b\\\\""}')
    ['1', None, 'a "b"']
    """
    if not (text.startswith("{") and text.endswith("}")) or text.startswith("{{"):
        raise ValueError("an array must have one dimension and begin at 1")
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        match = _ELEMENT.match(text, at, end)
        if match is None or (match.end() < end and text[match.end()] != ","):
            raise ValueError("an array must have one dimension")
        quoted, bare = match.groups()
        found.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None
                     else None if bare.upper() == "NULL" else bare)  # fmt: skip
        at = match.end() + 1
    return found


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def copied_row(line: bytes) -> tuple[str | None, ...]:
    r"""The values of a line that COPY wrote as text.

    >>> copied_row(b'1\t\\N\ta\\tb\n')
    ('1', None, 'a\tb')
    """
    try:
        parts = line.removesuffix(b"\n").decode().split("\t")
    except UnicodeDecodeError as error:
        raise not_text(error) from None
    return tuple(None if part == "\\N" else _unescaped(part) if "\\" in part else part for part in parts)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text, flags=re.DOTALL)
