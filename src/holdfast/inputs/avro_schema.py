"""Avro schemas that values may be read by: those under which a value cannot be much larger than its bytes.

Rules:
1. A type that holds itself is refused. No column can hold such a value, and the library follows it as deep as a record
   says: some thousand bytes end the process.
2. Items of an array take at least a byte each. A record may claim any number of them.
3. A value that has all its fields has a bounded number of them, however often the schema names the same type.
4. A decimal has the digits that the schema declares, or the value is refused. The library rounds it, and takes minutes
   over one of a megabyte; so decimals stand as a type of our own in what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

from holdfast.model.errors import SchemaError

#: The name of a record that we have put around a schema: its field `value` is what that describes.
WHOLE = "holdfast.Whole"
_PARTS_MAX = 100_000
_DIGITS_MAX = 1000
_DECIMAL = "holdfast-decimal"
_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class _Size(NamedTuple):
    bytes: int
    """A value takes so many at least."""
    parts: int
    """A value consists of so many at most, elements of arrays and maps counted once."""


def parsed_schema(fastavro: Any, schema: Any, references: Sequence[Any] = ()) -> Any:
    """The schema as fastavro takes it; `SchemaError` unless the rules hold. `references`: schemas whose types it may
    name, each behind those that it names itself."""
    for stored in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{stored}-{_DECIMAL}"] = _decimal
    types: dict[str, Any] = {}
    before = [fastavro.parse_schema(_with_decimals(one), types) for one in references]
    if references and not isinstance(schema, Mapping):
        # The library finds types of elsewhere in a record alone. One with a single field has the bytes of that field.
        schema = {"type": "record", "name": WHOLE, "fields": [{"name": "value", "type": schema}]}
    found = fastavro.parse_schema(_with_decimals(schema), types)
    check_bounded(found, before)
    return found


def _with_decimals(schema: Any) -> Any:
    """Rule 4."""
    if isinstance(schema, list):
        return [_with_decimals(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _with_decimals(value) if key in _INNER else value for key, value in schema.items()}
    if schema.get("logicalType") == "decimal" and schema.get("type") in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        known = isinstance(precision, int) and isinstance(scale, int)
        if not known or not 0 <= int(scale) <= int(precision or 0) <= _DIGITS_MAX or not precision:
            raise SchemaError(
                f"a decimal must have a precision from 1 to {_DIGITS_MAX} and a scale from 0 to it; got {precision!r} "
                f"and {scale!r}"
            )
        found["logicalType"] = _DECIMAL
    return found


_INNER = ("type", "items", "values", "fields")


def _decimal(data: bytes, writer_schema: Mapping[str, Any], reader_schema: Any = None) -> Decimal:
    precision = writer_schema["precision"]
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= 10**precision:
        raise ValueError(f"a decimal must have {precision} digits at most")
    return Decimal(unscaled).scaleb(-writer_schema.get("scale", 0), Context(prec=precision))


def check_bounded(parsed: Any, before: Sequence[Any] = ()) -> None:
    """`SchemaError` unless the rules hold. `parsed` comes from fastavro: names are whole and stand before their use,
    there or in the schemas `before` it."""
    sizes = _Sizes()
    for one in (*before, parsed):
        sizes.of(one)


class _Sizes:
    def __init__(self) -> None:
        self._known: dict[str, _Size | None] = {}

    def of(self, kind: Any) -> _Size:
        if isinstance(kind, list):
            members = [self.of(member) for member in kind]
            return _Size(1, self._bounded(1 + max((member.parts for member in members), default=0)))
        if isinstance(kind, Mapping):
            return self._complex(kind)
        if kind in _BYTES:
            return _Size(_BYTES[kind], 1)
        size = self._known.get(kind)
        if size is None:
            raise SchemaError(f"a type must not hold itself; {kind} does: no column can have such values")
        return size

    def _complex(self, kind: Mapping[str, Any]) -> _Size:
        name = kind.get("name", "")
        match kind["type"]:
            case "record" | "error":
                self._known[name] = None
                fields = [self.of(field["type"]) for field in kind["fields"]]
                parts = self._bounded(1 + sum(field.parts for field in fields))
                size = self._known[name] = _Size(sum(field.bytes for field in fields), parts)
            case "enum":
                size = self._known[name] = _Size(1, 1)
            case "fixed":
                size = self._known[name] = _Size(kind["size"], 1)
            case "array":
                items = self.of(kind["items"])
                if not items.bytes:
                    raise SchemaError(
                        "items of an array must take a byte each; a record could claim any number of these"
                    )
                size = _Size(1, self._bounded(1 + items.parts))
            case "map":
                size = _Size(1, self._bounded(1 + self.of(kind["values"]).parts))
            case other:
                size = self.of(other)
        return size

    @staticmethod
    def _bounded(parts: int) -> int:
        if parts > _PARTS_MAX:
            raise SchemaError(f"a value must have {_PARTS_MAX} parts at most; one of this schema may have more")
        return parts
