"""Schemas: what the user declares, what is stored, what a reader sees.

Rules:
1. The user declares columns as an Arrow schema, a mapping of names to type words, or Spark's own text
   ("source string, bytes bigint"). Only types that Spark knows are taken; extension and dictionary types are refused.
2. Stored is `stime` and the user's columns. `tuple_type` and `tuple_id` follow from the frame and cost no disk.
3. A reader sees (tuple_type, tuple_id, stime, user columns…).
4. Types are nested `NESTING_MAX` deep at most: deeper ones no reader of Arrow would take back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from holdfast.model.errors import SchemaError
from holdfast.model.tuples import RESERVED, STREAM_COLUMN

STIME_TYPE = pa.timestamp("us", tz="UTC")
STIME = pa.field("stime", STIME_TYPE, nullable=False)

_WORDS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "bool": pa.bool_(),
    "byte": pa.int8(), "tinyint": pa.int8(), "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "long": pa.int64(), "bigint": pa.int64(),
    "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": STIME_TYPE, "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\d+|[<>(),:])")

#: Arrow's own readers stop at 64, and a map takes two of them.
NESTING_MAX = 30
#: Of a schema's text, what a message repeats.
_SHOWN_CHARS = 200

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, str | pa.DataType] | str"


def parse_schema(declared: SchemaLike) -> pa.Schema:
    """The user's columns as an Arrow schema, checked.

    >>> parse_schema("source string, bytes bigint").names
    ['source', 'bytes']
    """
    if isinstance(declared, str):
        schema = _Text(declared).columns()
    elif isinstance(declared, pa.Schema):
        schema = declared.remove_metadata()
    elif isinstance(declared, Mapping):
        try:
            schema = pa.schema([(n, _Text(t).whole_type() if isinstance(t, str) else t) for n, t in declared.items()])
        except TypeError as error:
            raise SchemaError(f"a mapping must give each column a type word or an Arrow type; {error}") from None
    else:
        raise SchemaError(
            f"a schema must be an Arrow schema, a mapping or text such as 'source string, bytes bigint'; "
            f"got {type(declared).__name__}"
        )
    return _checked(schema)


def stored_schema(user: pa.Schema) -> pa.Schema:
    """What the body of an event holds: `stime`, then the user's columns."""
    return pa.schema([STIME, *user])


def reader_schema(user: pa.Schema) -> pa.Schema:
    """What a reader sees: the header, then the user's columns."""
    header = [pa.field("tuple_type", pa.int8(), nullable=False), pa.field("tuple_id", pa.int64(), nullable=False)]
    return pa.schema([*header, STIME.with_nullable(True), *(f.with_nullable(True) for f in user)])


def result_columns(schema: pa.Schema, whose: str, *, delivered: bool = True) -> pa.Schema:
    """The columns of a result without the header that came with its inputs, `stream` among it if `delivered`.

    A frame that is passed on whole carries the header along; it is left out. A column `stream` without the rest of it
    is one that somebody wants to see; the name is taken, so that is refused instead of left out.
    """
    if STREAM_COLUMN in schema.names and not (delivered and "tuple_id" in schema.names):
        raise SchemaError(
            f"the results of {whose} must not have a column {STREAM_COLUMN!r}: readers of several streams find there "
            f"which one a tuple came from; got ({schema_text(schema)}); rename it, for example "
            f".withColumnRenamed({STREAM_COLUMN!r}, 'input')"
        )
    return pa.schema([field for field in schema if field.name not in RESERVED])


def schema_text(schema: pa.Schema) -> str:
    """A schema in the words that `parse_schema` takes, for people and messages."""
    return ", ".join(f"{_name_text(f.name)} {type_text(f.type)}" for f in schema)


def _name_text(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


def type_text(kind: pa.DataType) -> str:
    for word in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date",
                 "timestamp", "timestamp_ntz"):  # fmt: skip
        if _WORDS[word] == kind:
            return word
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_name_text(f.name)}:{type_text(f.type)}' for f in kind)}>"
    return str(kind)


def _checked(schema: pa.Schema) -> pa.Schema:
    if not len(schema):
        raise SchemaError("a stream needs at least one column; got none; declare for example 'value double'")
    seen: set[str] = set()
    for field in schema:
        if field.name in RESERVED:
            raise SchemaError(f"the column name {field.name!r} belongs to the tuple header; choose another name")
        if field.name in seen:
            raise SchemaError(f"column names must differ; {field.name!r} came twice")
        seen.add(field.name)
        _check_type(field.name, field.type)
    return schema


def _check_type(name: str, kind: pa.DataType, depth: int = 0) -> None:
    if depth > NESTING_MAX:
        raise SchemaError(f"column {name!r:.80} must be nested {NESTING_MAX} deep at most; flatten it")
    if kind in _WORDS.values() or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
        return
    if pa.types.is_list(kind):
        return _check_type(name, kind.value_type, depth + 1)
    if pa.types.is_map(kind):
        _check_type(name, kind.key_type, depth + 1)
        return _check_type(name, kind.item_type, depth + 1)
    if pa.types.is_struct(kind):
        for field in kind:
            _check_type(f"{name}.{field.name}", field.type, depth + 1)
        return None
    raise SchemaError(f"column {name!r} must have a type that Spark knows; got {kind}; cast it, for example to string")


class _Text:
    """Reader of Spark's schema text; small because it knows types only, not expressions."""

    def __init__(self, text: str) -> None:
        self.text = text
        if not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
            raise self.error("it holds half a character")
        self.tokens: deque[str] = deque()
        self.depth = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"unexpected {text[at : at + 80].strip()[:1]!r}")
            self.tokens.append(match[1])
            at = match.end()

    def columns(self) -> pa.Schema:
        fields = []
        while self.tokens:
            fields.append(self.field())
            if self.tokens:
                self.expect(",")
        return pa.schema(fields)

    def whole_type(self) -> pa.DataType:
        kind = self.type()
        if self.tokens:
            raise self.error(f"unexpected {self.tokens[0]!r:.80}")
        return kind

    def field(self) -> pa.Field:
        name = self.next()
        if name[0] != "`" and not _PLAIN.fullmatch(name):
            raise self.error(f"{name!r:.80} is no column name")
        name = name.strip("`")
        if self.peek() == ":":
            self.next()
        return pa.field(name, self.type())

    def type(self) -> pa.DataType:
        self.depth += 1
        if self.depth > NESTING_MAX + 1:
            raise self.error(f"a type must be nested {NESTING_MAX} deep at most; flatten it")
        try:
            return self._type(self.next().lower())
        finally:
            self.depth -= 1

    def _type(self, word: str) -> pa.DataType:
        if word in ("decimal", "numeric"):
            if self.peek() != "(":
                return pa.decimal128(10, 0)
            self.expect("(")
            precision = self.number()
            self.expect(",")
            scale = self.number()
            self.expect(")")
            if not 1 <= precision <= 38 or scale > precision:
                raise self.error(f"a decimal has 1 to 38 digits, not more behind the point; got ({precision},{scale})")
            return pa.decimal128(precision, scale)
        if word == "array":
            self.expect("<")
            inner = self.type()
            self.expect(">")
            return pa.list_(inner)
        if word == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return pa.map_(key, value)
        if word == "struct":
            self.expect("<")
            fields = [self.field()]
            while self.peek() == ",":
                self.next()
                fields.append(self.field())
            self.expect(">")
            return pa.struct(fields)
        if word not in _WORDS:
            raise self.error(f"unknown type {word!r:.80}")
        return _WORDS[word]

    def next(self) -> str:
        if not self.tokens:
            raise self.error("it ends too early")
        return self.tokens.popleft()

    def peek(self) -> str | None:
        return self.tokens[0] if self.tokens else None

    def number(self) -> int:
        token = self.next()
        if not token.isdecimal() or len(token) > 2:
            raise self.error(f"expected a number of one or two digits, got {token:.80}")
        return int(token)

    def expect(self, token: str) -> None:
        got = self.next()
        if got != token:
            raise self.error(f"expected {token!r}, got {got!r:.80}")

    def error(self, why: str) -> SchemaError:
        text = self.text if len(self.text) <= _SHOWN_CHARS else self.text[: _SHOWN_CHARS - 3] + "..."
        return SchemaError(f"a schema must read like 'source string, bytes bigint'; got {text!r}: {why}")
