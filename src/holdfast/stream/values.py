"""Python values, made fit for an Arrow type before Arrow sees them.

Arrow trusts what it is handed: a decimal with ten million digits behind the point ends the process, 1.5 in a list of
whole numbers becomes 1, fields that a struct does not have are dropped, a year beyond 9999 is stored and no reader can
show it. Rules:

1. A value is taken exactly or refused with a reason (X5); what an IEEE float rounds is the one exception.
2. Decimals come out with the scale of their column, so the number of digits is bounded whatever came in.
3. No check takes longer or more memory than the value itself has bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

Check = Callable[[Any], Any]

#: 0001-01-01 and the last microsecond of 9999: what lies outside could be stored but not shown to anybody.
STIME_US_MIN, STIME_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
#: The same as days since 1970.
DAYS_MIN, DAYS_MAX = -719_162, 2_932_896
#: A finite number from here on becomes infinite as a float of 32 bits.
FLOAT32_OVER = float(2**128 - 2**103)
#: NumPy's units below the microsecond.
_FINER = ("ns", "ps", "fs", "as")
#: Digits of the largest bigint.
_INTEGER_DIGITS = 19
_SHOWN_CHARS = 80


class Misfit(ValueError):
    """A value that its column cannot hold, with a reason worth telling."""


def check_of(kind: pa.DataType) -> Check | None:
    """How values of `kind` (not None themselves) are made fit; None where Arrow may be trusted with any of them.

    >>> check_of(pa.decimal128(5, 2))(Decimal("1.5"))
    Decimal('1.50')
    """
    t = pa.types
    if t.is_integer(kind):
        return _whole
    if t.is_float32(kind):
        return _single
    if t.is_decimal(kind):
        return lambda value: exact_decimal(value, kind)
    if t.is_binary(kind):
        return _bytes
    if t.is_date(kind):
        return _day
    if t.is_timestamp(kind):
        return _zoned if kind.tz else _unzoned
    if t.is_list(kind):
        return _list_of(_nullable(check_of(kind.value_type)))
    if t.is_map(kind):
        return _map_of(_nullable(check_of(kind.key_type)), _nullable(check_of(kind.item_type)))
    if t.is_struct(kind):
        return _struct_of({f.name: _nullable(check_of(f.type)) for f in kind})
    return None


def exact_decimal(value: Any, kind: pa.DataType) -> Decimal:
    """A whole number or a Decimal with the scale of `kind`; refused if a digit would be lost on either side."""
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 128:
            raise Misfit(f"it must have {kind.precision} digits at most")
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise Misfit("it must be a Decimal or a whole number")
    if not value.is_finite():
        raise Misfit("it must be finite")
    try:
        # Decided from exponent and length before any digit is moved: also 1e-10000000 takes no time.
        return value.quantize(Decimal((0, (1,), -kind.scale)), context=_exact(kind.precision))
    except (Inexact, InvalidOperation):
        raise Misfit(f"it must have {kind.precision} digits at most, {kind.scale} of them behind the point") from None


def _exact(precision: int) -> Context:
    return Context(prec=precision, Emin=-999_999, Emax=999_999, traps=[Inexact, InvalidOperation])


def _whole(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, Decimal):
        if not value.is_finite() or (value and value.adjusted() >= _INTEGER_DIGITS) or value != int(value):
            raise Misfit("it must be a whole number of 64 bits at most")
        return int(value)
    if isinstance(value, float | np.floating):
        if not value.is_integer():
            raise Misfit("it must be whole")
    elif not isinstance(value, int | np.integer):  # NumPy's times would become numbers.
        raise Misfit("it must be a whole number")
    return value


def _single(value: Any) -> Any:
    if isinstance(value, float | np.floating) and FLOAT32_OVER <= abs(float(value)) < float("inf"):
        raise Misfit("it is too large for 32 bits")
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, str):  # Arrow would choose an encoding for it.
        raise Misfit("it must be bytes; encode the text")
    return value


def _day(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None or value != datetime(value.year, value.month, value.day):
            raise Misfit("it must be a date without a time of day")
        return value.date()
    if isinstance(value, date):
        return value
    return _count(value, DAYS_MIN, DAYS_MAX, "days")


def _zoned(value: Any) -> Any:
    if isinstance(value, datetime):
        _whole_microseconds(value)
        # Only in the first and the last year a zone can lead out of the years that Python knows.
        if value.tzinfo is not None and value.year in (1, 9999):
            value.astimezone(UTC)
        return value
    return _moment(value)


def _unzoned(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            raise Misfit("it must have no time zone")
        return _whole_microseconds(value)
    return _moment(value)


def _whole_microseconds(value: datetime) -> datetime:
    if getattr(value, "nanosecond", 0):  # Pandas' own datetime.
        raise Misfit("it must be whole microseconds")
    return value


def _moment(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        rounded = value.astype("datetime64[us]")
        # NumPy's own comparison would turn both into microseconds, where years far off have wrapped around.
        if np.isnat(value) or rounded.astype(value.dtype) != value:
            finer = np.isnat(value) or np.datetime_data(value.dtype)[0] in _FINER
            raise Misfit("it must be whole microseconds" if finer else "it must lie in the years 1 to 9999")
        value = int(rounded.astype(np.int64))
    return _count(value, STIME_US_MIN, STIME_US_MAX, "microseconds")


def _count(value: Any, low: int, high: int, unit: str) -> Any:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise Misfit(f"it must be a time, or a whole number of {unit} since 1970")
    if not low <= value <= high:
        raise Misfit("it must lie in the years 1 to 9999")
    return int(value)


def _nullable(check: Check | None) -> Check | None:
    return None if check is None else lambda value: None if value is None else check(value)


def _list_of(item: Check | None) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple | np.ndarray):
            raise Misfit("it must be a list")
        return value if item is None else [item(v) for v in value]

    return check


def _map_of(key: Check | None, item: Check | None) -> Check:
    def check(value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list | tuple) or not all(
            isinstance(p, tuple) and len(p) == 2 for p in pairs
        ):
            raise Misfit("it must be a mapping or a list of pairs")
        return [(key(k) if key else k, item(v) if item else v) for k, v in pairs]

    return check


def _struct_of(fields: dict[str, Check | None]) -> Check:
    names = list(fields)

    def check(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(names):
            value = dict(zip(names, value, strict=True))
        if not isinstance(value, Mapping):
            raise Misfit("it must be a mapping, or a tuple of all its fields")
        unknown = value.keys() - fields.keys()
        if unknown:
            raise Misfit(f"it has no field {shown(min(unknown, key=str))}")
        return {name: one(v) if (one := fields[name]) else v for name, v in value.items()}

    return check


def shown(value: Any) -> str:
    """A value for a message: as JSON where it can be, cut short, whatever its size and depth.

    >>> shown([1, "two", None])
    '[1, "two", null]'
    """
    parts: list[str] = []
    _show(value, parts, _SHOWN_CHARS + 1)
    text = "".join(parts)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def names_shown(names: Iterable[Any]) -> str:
    """Names for a message, sorted, cut short."""
    text = ", ".join(sorted(str(name)[: _SHOWN_CHARS + 1] for name in names))
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _show(value: Any, parts: list[str], room: int) -> int:
    """Append the text of `value` and return the room that is left; every level of nesting takes some of it."""
    if room <= 0:
        return room
    if isinstance(value, list | tuple | dict):
        pairs = value.items() if isinstance(value, dict) else ((None, v) for v in value)
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        parts.append(opening)
        room -= 1
        for i, (key, inner) in enumerate(pairs):
            if i:
                parts.append(", ")
                room -= 2
            if isinstance(value, dict):
                room = _show(key, parts, room)
                parts.append(": ")
                room -= 2
            room = _show(inner, parts, room)
            if room <= 0:
                return room
        parts.append(closing)
        return room - 1
    text = _atom(value, room)
    parts.append(text)
    return room - len(text)


def _atom(value: Any, room: int) -> str:
    if isinstance(value, str):
        return json.dumps(value[:room], ensure_ascii=False)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 400:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, bytes | bytearray):
        return repr(bytes(value[:room]))
    try:
        return str(value) if isinstance(value, Decimal) else repr(value)
    except Exception:  # The repr of somebody's class may fail in any way; a message must not.
        return f"a {type(value).__name__}"
