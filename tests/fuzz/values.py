"""Values for every column type, and what must come back for each. Nothing here calls the code that it judges."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import math
import random
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

_EXPONENTS = [0, 1, 2, 3, 10, 18, 19, 37, 38, 39, 308, 400, 5000, 999_999, 10_000_000, 999_999_999]
_ZONES = [dt.UTC, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-12, minutes=-1)), None]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def any_value(chance: random.Random, kind: pa.DataType) -> Any:
    """A Python value that may or may not fit `kind`; mostly one that is nearly right."""
    if chance.random() < 0.15:
        return odd(chance)
    t = pa.types
    if t.is_boolean(kind):
        return chance.random() < 0.5
    if t.is_integer(kind):
        return _near_integer(chance, kind.bit_width)
    if t.is_floating(kind):
        return _near_float(chance)
    if t.is_decimal(kind):
        return _near_decimal(chance, kind)
    if t.is_string(kind):
        return text(chance)
    if t.is_binary(kind):
        return chance.randbytes(chance.choice([0, 1, 5, 200]))
    if t.is_date(kind):
        return _near_date(chance)
    if t.is_timestamp(kind):
        return _near_moment(chance)
    if t.is_list(kind):
        return [inner(chance, kind.value_type) for _ in range(chance.choice([0, 1, 3]))]
    if t.is_map(kind):
        pairs = [
            (any_value(chance, kind.key_type), inner(chance, kind.item_type)) for _ in range(chance.choice([0, 1, 3]))
        ]
        try:
            return dict(pairs) if chance.random() < 0.5 else pairs
        except TypeError:
            return pairs
    found = {f.name: inner(chance, f.type) for f in kind if chance.random() < 0.9}
    if chance.random() < 0.05:
        found["unknown"] = 1
    return found if chance.random() < 0.8 else tuple(found.values())


def inner(chance: random.Random, kind: pa.DataType) -> Any:
    return None if chance.random() < 0.1 else any_value(chance, kind)


def odd(chance: random.Random) -> Any:
    """A value that fits nothing in particular."""
    return chance.choice(
        [
            lambda: None,
            lambda: _near_integer(chance, 64),
            lambda: _near_float(chance),
            lambda: text(chance),
            lambda: _near_decimal(chance, pa.decimal128(38, 10)),
            lambda: _near_date(chance),
            lambda: _near_moment(chance),
            lambda: _deep(chance.choice([5, 100, 990])),
            lambda: 10 ** chance.choice(_EXPONENTS[:12]),
            lambda: chance.randbytes(9),
            lambda: {"a": 1, "b": [2]},
            lambda: [(1, 2)],
            lambda: [("k", 1, 2)],
            lambda: object(),
            lambda: {1, 2},
            lambda: np.int64(-7),
            lambda: np.float32(1.5),
            lambda: np.array([1.5, 2]),
            lambda: np.datetime64("2026-03-01T00:00:00.000000001"),
            lambda: np.datetime64("NaT"),
            lambda: np.datetime64(
                chance.getrandbits(chance.choice([14, 40, 62])), chance.choice(["Y", "D", "s", "ms"])
            ),
            lambda: complex(1, 1),
            lambda: range(3),
            lambda: True,
            lambda: memoryview(b"abc"),
            lambda: bytearray(b"\xff"),
            lambda: dt.timedelta(1),
            lambda: dt.time(1),
            lambda: float,
            lambda: "x" * chance.choice([100, 100_000]),
        ]
    )()


def _deep(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def text(chance: random.Random) -> str:
    letters = ["a", "é", "\0", "\n", '"', ",", "\\", "𝄞", "\ud800", "1", "e", "-", "_", ".", "‏", "\r", "{", "["]
    if chance.random() < 0.2:
        return chance.choice(["", "null", "NaN", "true", "1_000", "1e-10000000", "١٢", "2026-03-01", "0x10", "-0"])
    return "".join(chance.choices(letters, k=chance.choice([1, 3, 20])))


def _near_integer(chance: random.Random, bits: int) -> Any:
    edge = chance.choice([0, 1, 2 ** (bits - 1), 2**31, 2**53, 2**63, 2**64, 10**30]) * chance.choice([1, -1])
    number = edge + chance.choice([-1, 0, 1, chance.randrange(1000)])
    return chance.choice(
        [number] * 6 + [Decimal(number), Decimal(number) / 3, number + 0.5, np.int64(chance.randrange(99))]
    )


def _near_float(chance: random.Random) -> Any:
    return chance.choice(
        [
            chance.random(),
            chance.gauss(0, 1e10),
            -0.0,
            math.inf,
            -math.inf,
            math.nan,
            1e300,
            3.4028235677973366e38,
            3.4e38,
            5e-324,
            1e-50,
            2.0**53 + 2,
            chance.randrange(-(2**60), 2**60),
            np.float32(0.1),
            np.float64(0.1),
            True,
        ]
    )


def _near_decimal(chance: random.Random, kind: pa.DataType) -> Any:
    digits = "".join(
        chance.choices(
            "0123456789",
            k=chance.choice([1, 2, kind.precision, kind.precision + 1, 60, chance.choice([61, 61, 61, 5000])]),
        )
    )
    exponent = chance.choice([-kind.scale, -kind.scale - 1, 0, *_EXPONENTS, *(-e for e in _EXPONENTS)])
    made = Decimal(chance.choice([0, 1])).scaleb(0)
    with contextlib.suppress(InvalidOperation):
        made = Decimal(f"{chance.choice('+-')}{digits}e{exponent}")
    whole = chance.randrange(-(10**kind.precision), 10**kind.precision)
    fits = Decimal(whole).scaleb(-kind.scale, None) if kind.precision <= 28 else Decimal(f"{whole}e-{kind.scale}")
    return chance.choice(
        [
            made,
            made,
            fits,
            fits,
            fits,
            Decimal("NaN"),
            Decimal("sNaN"),
            Decimal("-Infinity"),
            whole,
            Decimal("0e-10000000"),
            Decimal("1." + "0" * 5000),
            0.5,
        ]
    )


def _near_date(chance: random.Random) -> Any:
    day = dt.date.fromordinal(chance.choice([1, 2, 719163, 3652059, chance.randrange(1, 3652060)]))
    return chance.choice(
        [
            day,
            day,
            day,
            dt.datetime(day.year, day.month, day.day, chance.choice([0, 5])),
            chance.choice([-719163, -719162, 2932896, 2932897, 2**31 - 1, 2**31, 5]),
        ]
    )


def _near_moment(chance: random.Random) -> Any:
    year = chance.choice([1, 2, 1969, 1970, 2026, 2262, 9998, 9999])
    edge = chance.choice([dt.datetime(year, 1, 1), dt.datetime(year, 12, 31, 23, 59, 59, 999_999)])
    moment = edge.replace(tzinfo=chance.choice(_ZONES))
    numbers = [-62_135_596_800_000_001, 253_402_300_799_999_999, 253_402_300_800_000_000, 2**62, 2**63, 0, 1.5]
    return chance.choice([moment, moment, moment, chance.choice(numbers), np.datetime64(edge)])


def same(kind: pa.DataType, sent: Any, got: Any) -> bool:
    """Is `got` what a column of `kind` must give back for `sent`?"""
    t = pa.types
    if sent is None or got is None:
        return sent is None and got is None
    if t.is_string(kind):
        return bool((bytes(sent).decode() if isinstance(sent, bytes | bytearray | memoryview) else str(sent)) == got)
    if t.is_binary(kind):
        return not isinstance(sent, str) and bool(bytes(sent) == got)
    if t.is_floating(kind):
        number = np.float32(sent) if t.is_float32(kind) else float(sent)
        return bool(number == got or (math.isnan(number) and math.isnan(got)))
    if t.is_integer(kind) or t.is_decimal(kind) or t.is_boolean(kind):
        return bool(sent == got)
    if t.is_date(kind):
        return _day(sent) == got
    if t.is_timestamp(kind):
        zoned = got if got.tzinfo is not None else got.replace(tzinfo=dt.UTC)
        return _moment(sent) == (zoned - _EPOCH) // dt.timedelta(microseconds=1)
    if t.is_list(kind):
        return len(sent) == len(got) and all(same(kind.value_type, a, b) for a, b in zip(sent, got, strict=True))
    if t.is_map(kind):
        pairs = list(sent.items()) if isinstance(sent, dict) else list(sent)
        return len(pairs) == len(got) and all(
            same(kind.key_type, a, c) and same(kind.item_type, b, d) for (a, b), (c, d) in zip(pairs, got, strict=True)
        )
    fields = dict(zip([f.name for f in kind], sent, strict=True)) if isinstance(sent, tuple) else sent
    return set(fields) <= {f.name for f in kind} and all(same(f.type, fields.get(f.name), got[f.name]) for f in kind)


def _day(sent: Any) -> dt.date:
    if isinstance(sent, dt.datetime):
        return sent.date() if sent.time() == dt.time() else dt.date.min
    return sent if isinstance(sent, dt.date) else dt.date(1970, 1, 1) + dt.timedelta(days=int(sent))


def _moment(sent: Any) -> int:
    if isinstance(sent, dt.date) and not isinstance(sent, dt.datetime):
        sent = dt.datetime(sent.year, sent.month, sent.day)
    if isinstance(sent, dt.datetime):
        aware = sent if sent.tzinfo is not None else sent.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1)
    if not isinstance(sent, np.datetime64):
        return int(sent)
    year = 1970 + int(sent.astype("datetime64[Y]").astype(np.int64))
    return int(sent.astype("datetime64[us]").astype(np.int64)) if 1 <= year <= 9999 else 2**80


def json_text(chance: random.Random, kind: pa.DataType) -> str:
    """JSON for a value of `kind`, mostly."""
    return _json(any_value(chance, kind), chance)


def _json(value: Any, chance: random.Random) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(k))}:{_json(v, chance)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple | set | np.ndarray) and _depth(value) < 100:
        return "[" + ",".join(_json(v, chance) for v in value) + "]"
    if isinstance(value, list | tuple):
        return "[" * 990 + "]" * 990
    if isinstance(value, Decimal):
        plain = str(value) if value.is_finite() else "1e999999999999999999999"
        return plain.lstrip("+") if chance.random() < 0.6 else json.dumps(str(value))
    if isinstance(value, dt.datetime | dt.date):
        return json.dumps(value.isoformat())
    if isinstance(value, bytes | bytearray | memoryview):
        return json.dumps(base64.b64encode(bytes(value)).decode())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**4000 else "1" * 5000
    if isinstance(value, float) and math.isfinite(value):
        return chance.choice([repr(value), f"{value:.20e}", json.dumps(str(value))])
    return json.dumps(str(value))


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, list | tuple) and value:
        value, depth = value[0], depth + 1
    return depth


def short(value: Any) -> bool:
    """Whether a library that writes all digits of a decimal can write the value in no time."""
    if isinstance(value, dict):
        return all(short(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set):
        return _depth(value) > 100 or all(short(one) for one in value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return True
    return all(abs(exponent) < 10_000 for exponent in (value.adjusted(), int(value.as_tuple().exponent)))


def meant_by_json(kind: pa.DataType, said: Any) -> Any:
    """What the documentation promises for a JSON value that was taken (floats were read as Decimal)."""
    t = pa.types
    if said is None:
        return None
    if t.is_decimal(kind):
        return Decimal(said)
    if t.is_floating(kind):
        return float(said)
    if t.is_binary(kind):
        return base64.b64decode(said)
    if t.is_date(kind):
        return dt.date.fromisoformat(said)
    if t.is_timestamp(kind):
        if isinstance(said, str):
            return dt.datetime.fromisoformat(said)
        return dt.datetime.fromtimestamp(float(said), dt.UTC)
    if t.is_list(kind):
        return [meant_by_json(kind.value_type, v) for v in said]
    if t.is_map(kind):
        return [(meant_by_json(kind.key_type, k), meant_by_json(kind.item_type, v)) for k, v in said.items()]
    if t.is_struct(kind):
        return {f.name: meant_by_json(f.type, said[f.name]) for f in kind if f.name in said}
    return said


def meant_by_cell(kind: pa.DataType, cell: str) -> Any:
    """The same for a cell of CSV."""
    t = pa.types
    if t.is_string(kind):
        return cell
    if cell == "":
        return None
    if t.is_nested(kind):
        return meant_by_json(kind, json.loads(cell, parse_float=Decimal))
    if t.is_boolean(kind):
        return {"true": True, "false": False}[cell.lower()]
    if t.is_integer(kind):
        return int(cell)
    if t.is_floating(kind):
        return float(cell)
    if t.is_timestamp(kind):
        try:
            return dt.datetime.fromtimestamp(float(cell), dt.UTC)
        except ValueError:
            return dt.datetime.fromisoformat(cell)
    return meant_by_json(kind, cell)
