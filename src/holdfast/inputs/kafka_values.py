"""Values of Kafka's records that are no JSON: Avro, with a schema of one's own or of a registry, and Protocol Buffers.

A record has exactly the stream's columns, by name; a field that the stream has no column for is refused, or ignored
where that was asked for. A field that is not set is null.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.inputs.avro_schema import WHOLE, parsed_schema
from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import schema_text
from holdfast.stream.values import names_shown, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AvroSchema = Callable[[bytes, str], tuple[Any, bytes]]


class _Fields:
    """The columns of a record."""

    def __init__(self, schema: pa.Schema, extra: bool) -> None:
        self._names, self._text, self._extra = frozenset(schema.names), schema_text(schema), extra

    def row(self, found: Any, where: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise SchemaError(f"{where}: a value must be a record with ({self._text}); got {shown(found)}")
        unknown = found.keys() - self._names
        if unknown and not self._extra:
            raise SchemaError(f"{where}: a value must have the columns ({self._text}); got also {names_shown(unknown)}")
        return {name: value for name, value in found.items() if name in self._names}


class AvroValues:
    """An Avro record per value. `schema_of` finds its schema and where its bytes begin."""

    def __init__(self, schema: pa.Schema, extra: bool, schema_of: AvroSchema) -> None:
        self._fields, self._schema_of = _Fields(schema, extra), schema_of
        self._read = _fastavro().schemaless_reader

    def row(self, value: bytes, where: str) -> dict[str, Any]:
        schema, body = self._schema_of(value, where)
        source = io.BytesIO(body)
        try:
            found = self._read(source, schema, None)
        # The library raises whatever its reader trips over.
        except Exception as error:
            raise SchemaError(f"{where}: it must be Avro of the schema; {type(error).__name__}: {error}") from None
        if rest := len(body) - source.tell():
            raise SchemaError(f"{where}: it must be Avro of the schema; got {rest} bytes behind its end")
        if isinstance(schema, dict) and schema.get("name") == WHOLE:
            found = found["value"]
        return self._fields.row(found, where)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise UsageError("reading Avro needs the package fastavro; install holdfast-streams[kafka]") from None
    return fastavro


def _parsed(schema: Any) -> Any:
    return parsed_schema(_fastavro(), schema)


def given_schema(schema: str | Path | Mapping[str, Any]) -> AvroSchema:
    """One schema for all values: a file, its JSON, or what that says."""
    if isinstance(schema, Path) or (isinstance(schema, str) and not schema.lstrip().startswith(("{", "["))):
        try:
            schema = Path(schema).read_text()
        except (OSError, ValueError) as error:  # ValueError: no name of a file, or no text in it.
            raise UsageError(f"the Avro schema must be a file or JSON; {error}") from None
    try:
        parsed = _parsed(json.loads(schema) if isinstance(schema, str) else dict(schema))
    except SchemaError as error:
        raise UsageError(f"the Avro schema cannot be used: {error}") from None
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the Avro schema cannot be read: {error}") from None
    return lambda value, where: (parsed, value)


class ProtobufValues:
    """A message per value. `message` is the class that was generated for it."""

    def __init__(self, schema: pa.Schema, extra: bool, message: Any) -> None:
        self._fields, self._message = _Fields(schema, extra), message

    def row(self, value: bytes, where: str) -> dict[str, Any]:
        name = self._message.DESCRIPTOR.full_name
        try:
            found = self._message.FromString(value)
        # The runtime's own error: no module of ours imports it, the user's does.
        except Exception as error:
            raise SchemaError(f"{where}: it must be a message {name}; {error}") from None
        return self._fields.row(_plain(found), where)


@dataclass(frozen=True, slots=True)
class ProtobufClass:
    """Makes `ProtobufValues` of a class that is told by its name, as a file does: `shop_pb2:Order`. It is imported when
    it is needed: tools that only look at a deployment need not have it."""

    name: str
    folder: Path
    """Where modules are looked for as well."""
    extra: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", self.name):
            raise UsageError(f"a class of Protocol Buffers must be told as module:Class; got {self.name!r}")

    def __call__(self, schema: pa.Schema, stream: str) -> ProtobufValues:
        return ProtobufValues(schema, self.extra, self.load())

    def load(self) -> Any:
        module, _, name = self.name.partition(":")
        if (place := str(self.folder.resolve())) not in sys.path:
            sys.path.append(place)
        try:
            found = attrgetter(name)(importlib.import_module(module))
        except Exception as error:  # The module's own code may raise anything.
            raise UsageError(
                f"the class {self.name} of Protocol Buffers must be there for import, from {place} or Python's path: "
                f"{type(error).__name__}: {error}; generate its module with protoc, or correct the name"
            ) from error
        if not is_message(found):
            raise UsageError(f"{self.name} must be a class generated by Protocol Buffers; it is {found!r:.100}")
        return found


def is_message(found: Any) -> bool:
    """Whether it is a class of messages, by what every runtime of Protocol Buffers gives it."""
    return hasattr(found, "FromString") and hasattr(found, "DESCRIPTOR")


def _plain(message: Any) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {key: _one(item, inner) for key, item in value.items()}
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    if repeated:
        return [_one(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(value, field)


def _one(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
