"""Text into rows of a stream's schema: JSON objects, or CSV records on one line each.

Rules:
1. Nothing is guessed: a number in quotes is text, 1.5 is not a bigint, an unknown column is refused. A missing column
   is null. In CSV, where everything is text, an empty cell is null unless the column is a string.
2. Times are ISO text ("2026-03-01T12:00:00Z", without zone meaning UTC) or seconds since 1970; dates ISO text; binary
   is base64; decimals are numbers or text.
3. A refusal names the place, the column, what it must be and what came.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa

from holdfast.model.errors import SchemaError
from holdfast.model.schema import schema_text, type_text
from holdfast.stream.values import FLOAT32_OVER, Misfit, exact_decimal, names_shown, shown

Format = Literal["json", "csv"]
Convert = Callable[[Any], Any]

_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Decoder:
    """Turns lines into rows for one stream.

    >>> Decoder(pa.schema([("n", pa.int64())]), "s").row(b'{"n": 1}', "line 1")
    {'n': 1}
    """

    def __init__(
        self, schema: pa.Schema, stream: str, format: Format = "json", *, header: Sequence[str] | None = None
    ) -> None:
        self.schema, self.stream, self.format = schema, stream, format
        self._columns = {f.name: _Column(f, self) for f in schema}
        self._json = msgspec.json.Decoder(float_hook=_number if any(_holds_decimal(f.type) for f in schema) else None)
        self._header: list[str] | None = None
        self.header_in_text = format == "csv" and header is None
        """CSV says its columns in its first line, unless they were given."""
        if header is not None:
            self._take_header(list(header), "the given header")

    def header(self, text: bytes, where: str) -> None:
        self._take_header(_cells(text, where), where)

    def row(self, text: bytes, where: str) -> dict[str, Any] | None:
        """The row in one line; None if the line is blank."""
        if not text.strip():
            return None
        if self.format == "csv":
            return self._csv_row(text, where)
        return self.json_row(self.json(text, where), where)

    def json(self, text: bytes, where: str) -> Any:
        """JSON as Python values; numbers with a point are exact where the stream has decimals."""
        return _parsed(self._json, text, where)

    def json_row(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise SchemaError(f"{where}: a row must be a JSON object with ({self._text}); got {shown(value)}")
        extra = value.keys() - self._columns.keys()
        if extra:
            raise SchemaError(f"{where}: a row must have the columns ({self._text}); got also {names_shown(extra)}")
        return {name: self._columns[name].json(v, where) for name, v in value.items()}

    def json_rows(self, value: Any, where: str) -> list[dict[str, Any]]:
        """A JSON object, or an array of them."""
        if isinstance(value, list):
            return [self.json_row(v, f"{where}, row {i}") for i, v in enumerate(value, 1)]
        return [self.json_row(value, where)]

    def _csv_row(self, text: bytes, where: str) -> dict[str, Any]:
        if self._header is None:
            raise SchemaError(f"{where}: CSV needs a first line with the names of its columns")
        cells = _cells(text, where)
        if len(cells) != len(self._header):
            raise SchemaError(f"{where}: a record must have {len(self._header)} cells; got {len(cells)}")
        return {n: self._columns[n].csv(c, where) for n, c in zip(self._header, cells, strict=True)}

    def _take_header(self, names: list[str], where: str) -> None:
        names = [n.strip() for n in names]
        unknown = [n for n in names if n not in self._columns]
        if unknown or len(set(names)) != len(names):
            raise SchemaError(
                f"{where}: the first line of CSV must name columns of ({self._text}); got ({', '.join(names)})"
            )
        self._header = names

    @property
    def _text(self) -> str:
        return schema_text(self.schema)


class _Column:
    """How the values of one column are read."""

    def __init__(self, field: pa.Field, decoder: Decoder) -> None:
        self._field, self._decoder, self._convert = field, decoder, _converter(field.type)

    def json(self, value: Any, where: str) -> Any:
        if value is None:
            if not self._field.nullable:
                raise SchemaError(f"{where}: column {self._field.name!r} must not be null")
            return None
        try:
            return self._convert(value)
        except (ValueError, TypeError, ArithmeticError, OSError) as error:
            why = f" ({error})" if isinstance(error, Misfit) else ""
            kind = type_text(self._field.type)
            raise SchemaError(f"{where}: column {self._field.name!r} must be {kind}; got {shown(value)}{why}") from None

    def csv(self, cell: str, where: str) -> Any:
        kind = self._field.type
        if pa.types.is_string(kind):
            return cell
        if cell == "":
            return self.json(None, where)
        value: Any = cell
        if pa.types.is_nested(kind):
            value = self._decoder.json(cell.encode(), where)
        elif pa.types.is_boolean(kind):
            value = {"true": True, "false": False}.get(cell.lower(), cell)
        elif "_" in cell:
            pass  # Python would read 1_000 as a number.
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind):
            with contextlib.suppress(ValueError):
                value = int(cell) if pa.types.is_integer(kind) else float(cell)
            if isinstance(value, float) and math.isinf(value) and any(map(str.isdigit, cell)):
                value = cell  # A number, but not one that a float can be near to.
        return self.json(value, where)


def _converter(kind: pa.DataType) -> Convert:
    t = pa.types
    if kind in _BITS:
        return _integer(_BITS[kind])
    if t.is_list(kind):
        inner = _nullable(_converter(kind.value_type))
        return lambda v: [inner(x) for x in _must(v, list)]
    if t.is_map(kind):
        item = _nullable(_converter(kind.item_type))
        key = _converter(kind.key_type)
        return lambda v: [(key(k), item(x)) for k, x in _must(v, dict).items()]
    if t.is_struct(kind):
        fields = {f.name: _nullable(_converter(f.type)) for f in kind}
        return lambda v: {k: _known(fields, k)(x) for k, x in _must(v, dict).items()}
    if t.is_decimal(kind):
        return lambda v: exact_decimal(_decimal(v), kind)
    simple: list[tuple[Callable[[pa.DataType], bool], Convert]] = [
        (t.is_boolean, lambda v: _must(v, bool)),
        (t.is_float32, lambda v: _float(v, FLOAT32_OVER)),
        (t.is_floating, _float),
        (t.is_string, lambda v: _must(v, str)),
        (t.is_binary, _binary),
        (t.is_date, lambda v: date.fromisoformat(_must(v, str))),
        (t.is_timestamp, _instant if kind.tz else _local) if t.is_timestamp(kind) else (t.is_null, lambda v: v),
    ]
    return next(convert for test, convert in simple if test(kind))


def _must(value: Any, kind: type | tuple[type, ...]) -> Any:
    wanted = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise ValueError
    return value


def _known(fields: dict[str, Convert], name: str) -> Convert:
    if name not in fields:
        raise Misfit(f"it has no field {name!r}")
    return fields[name]


def _nullable(convert: Convert) -> Convert:
    return lambda v: None if v is None else convert(v)


def _integer(bits: int) -> Convert:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError
        if not low <= value <= high:
            raise Misfit(f"it must lie between {low} and {high}")
        return value

    return convert


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(_must(value, str), validate=True)
    except binascii.Error:
        raise Misfit("it must be base64") from None


def _float(value: Any, over: float = math.inf) -> float:
    found = float(_must(value, (int, float, Decimal)))
    if abs(found) >= over and not (isinstance(value, float) and math.isinf(value)):
        raise Misfit("it is too large")
    return found


def _decimal(value: Any) -> Decimal | int:
    _must(value, (str, int, float, Decimal))
    if isinstance(value, int | Decimal):
        return value
    text = value if isinstance(value, str) else repr(value)
    if "_" in text:  # Python would read 1_000 as a number.
        raise ValueError
    return Decimal(text)


def _instant(value: Any) -> datetime:
    if isinstance(value, Decimal):
        value = _float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    found = datetime.fromisoformat(_must(value, str))
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    found.astimezone(UTC)  # In the first and the last year a zone can lead out of the years that there are.
    return found


def _local(value: Any) -> datetime:
    found = datetime.fromisoformat(_must(value, str))
    if found.tzinfo is not None:
        raise Misfit("it must have no time zone")
    return found


def parse_json(text: bytes, where: str) -> Any:
    """JSON of no stream's in particular."""
    return _parsed(_PLAIN_JSON, text, where)


_PLAIN_JSON = msgspec.json.Decoder()


def _parsed(decoder: msgspec.json.Decoder[Any], text: bytes, where: str) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise SchemaError(f"{where}: it must be JSON that is not nested so deep; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError) as error:
        raise SchemaError(f"{where}: it must be JSON; {error}") from None


def _number(text: str) -> Decimal:
    """A number with a point or an exponent, to the last digit: a float would keep sixteen of them."""
    return Decimal(text)


def _holds_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_holds_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _cells(text: bytes, where: str) -> list[str]:
    try:
        reader: Iterator[list[str]] = csv.reader([text.decode("utf-8").rstrip("\r\n")], strict=True)
        return next(reader, [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise SchemaError(f"{where}: it must be one CSV record on one line in UTF-8; {error}") from None
