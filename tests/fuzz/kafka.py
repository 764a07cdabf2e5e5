"""Records of Kafka in Avro and Protocol Buffers. What is taken is what the formats' own libraries read."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from holdfast.inputs.kafka import kafka
from holdfast.inputs.kafka_records import Records
from holdfast.model.schema import parse_schema
from tests.fuzz import values
from tests.fuzz.target import Target, Wrong, mutated
from tests.fuzz.types import TYPES

_ROUND = 40
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Record(NamedTuple):
    """What the client library gives, as far as it is asked for."""

    body: bytes

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.body

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def headers(self) -> Any:
        return None


class _KafkaValues(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._schemas = {word: parse_schema(f"v {word}") for word in TYPES}

    def _take(self, what: str, records: Records, body: bytes) -> Any:
        """The value that came into the column; None if the record was refused."""

        def through() -> Any:
            chunk, refused = records.chunk([Record(body)])
            for one in refused:
                if "\n" in one.why.strip() or len(one.why) > 4000:
                    raise Wrong(f"{what}: refused with more than a sentence: {one.why[:300]!r} for {body!r:.300}")
            if chunk.rows.num_rows + len(refused) != 1:
                raise Wrong(f"{what}: one record gave {chunk.rows.num_rows} rows and {len(refused)} refusals")
            chunk.rows.validate(full=True)
            return chunk.rows.column("v").to_pylist() if chunk.rows.num_rows else None

        return self.refused_or(what, through, body)

    def _judge(self, what: str, kind: pa.DataType, meant: Any, got: Any, body: bytes) -> None:
        if not values.same(kind, meant, got):
            raise Wrong(f"{what}: {meant!r:.300} ({body!r:.300}) came into a column {kind} as {got!r:.300}")

    def _records(self, word: str, **given: Any) -> Records:
        source = kafka("b:1", topic="t", **given)
        return Records(self._schemas[word], "s", "t", values=source.values, parts=source.parts, stime=source.stime,
                       stime_unit=source.stime_unit, tombstones=source.tombstones)  # fmt: skip


class Avro(_KafkaValues):
    """A schema that is nearly that of the column, or any; values of it, whole and damaged."""

    def round(self, chance: random.Random) -> None:
        word, self._names = chance.choice(TYPES), 0
        kind = self._schemas[word][0].type
        of = kind if chance.random() < 0.7 else self._schemas[chance.choice(TYPES)][0].type
        field = {"name": "v", "type": self._avro(of, chance)}
        schema = {"type": "record", "name": "Row", "fields": [field]}
        if chance.random() < 0.3:
            text = mutated(json.dumps(schema).encode(), chance, _FRAGMENTS).decode(errors="replace")
            if self.refused_or("avro schema", lambda: kafka("b:1", topic="t", value="avro", avro_schema=text), text):
                self._try(word, kind, text, of, chance)
            return
        self._try(word, kind, json.dumps(schema), of, chance)

    def _try(self, word: str, kind: pa.DataType, schema: str, of: pa.DataType, chance: random.Random) -> None:
        records = self.refused_or("avro", lambda: self._records(word, value="avro", avro_schema=schema), schema)
        if records is None:
            return
        parsed = fastavro.parse_schema(json.loads(schema))
        for _ in range(_ROUND):
            out, value = io.BytesIO(), values.any_value(chance, of)
            try:
                fastavro.schemaless_writer(out, parsed, {"v": value if values.short(value) else None})
                body = out.getvalue()
            except Exception:  # The library's: most values do not fit the schema.
                body = chance.randbytes(chance.choice([0, 1, 2, 9, 60, 3000]))
            if chance.random() < 0.4:
                body = mutated(body, chance)
            got = self._take("avro", records, body)
            if got is not None:
                meant = fastavro.schemaless_reader(io.BytesIO(body), parsed, None)
                self._judge("avro", kind, meant.get("v"), got[0], body)

    def _avro(self, kind: pa.DataType, chance: random.Random) -> Any:
        t, self._names = pa.types, self._names + 1
        found: Any = "string"
        if t.is_boolean(kind):
            found = "boolean"
        elif t.is_integer(kind):
            found = chance.choice(["int", "long"])
        elif t.is_floating(kind):
            found = chance.choice(["float", "double", "int"])
        elif t.is_decimal(kind):
            stored = chance.choice([{"type": "bytes"}, {"type": "fixed", "name": f"F{self._names}", "size": 16}])
            found = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale, **stored}
        elif t.is_binary(kind):
            found = chance.choice(["bytes", {"type": "fixed", "name": f"F{self._names}", "size": 5}])
        elif t.is_date(kind):
            found = {"type": "int", "logicalType": "date"}
        elif t.is_timestamp(kind):
            logical = ["timestamp-micros", "timestamp-millis", "local-timestamp-micros", "time-micros"]
            found = {"type": "long", "logicalType": chance.choice(logical)}
        elif t.is_list(kind):
            found = {"type": "array", "items": self._avro(kind.value_type, chance)}
        elif t.is_map(kind):
            found = {"type": "map", "values": self._avro(kind.item_type, chance)}
        elif t.is_struct(kind):
            fields = [{"name": f.name, "type": self._avro(f.type, chance)} for f in kind]
            found = {"type": "record", "name": f"R{self._names}", "fields": fields}
        elif chance.random() < 0.2:
            found = chance.choice([{"type": "enum", "name": f"E{self._names}", "symbols": ["a", "b"]},
                                   {"type": "string", "logicalType": "uuid"}])  # fmt: skip
        return ["null", found] if chance.random() < 0.3 else found


#: Put into schemas: what a schema may say of itself, of its items, and of nothing.
_FRAGMENTS = [b'"Row"', b'"null"', b'"array"', b'{"type": "array", "items": "null"}', b'["null", "Row"]', b'"bytes"',
              b'"fields": []', b'"size": 4000000000', b'"precision": 4000', b'"logicalType": "uuid"']  # fmt: skip


class Protobuf(_KafkaValues):
    """A message with one field of any type; values of it, whole and damaged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._messages = _messages()

    def round(self, chance: random.Random) -> None:
        natural = chance.choice(list(_FIELDS))
        message = self._messages[natural]
        word = natural.partition("/")[0] if chance.random() < 0.7 else chance.choice(TYPES)
        kind, of = self._schemas[word][0].type, self._schemas[natural.partition("/")[0]][0].type
        records = self.refused_or("protobuf", lambda: self._records(word, value=message), message)
        if records is None:
            return
        for _ in range(_ROUND):
            made, whole = message(), chance.random() < 0.6
            meant = _set(made, of, values.any_value(chance, of))
            body = made.SerializeToString()
            body = body if whole else mutated(body, chance, [b"\x0a\x02", b"\x0b", b"\x0c", b"\xff" * 10])
            got = self._take("protobuf", records, body)
            if got is not None and whole and meant is not _NOT_SET and natural.partition("/")[0] == word:
                pairs = pa.types.is_map(kind)  # They come in any order.
                self._judge("protobuf", kind, *(sorted(m) if pairs else m for m in (meant, got[0])), body)


#: By column and variant: type and label of the field (descriptor.proto), and the message that it names.
_FIELDS: dict[str, tuple[int, int, str]] = {
    "boolean": (8, 1, ""), "int": (5, 1, ""), "int/sint": (17, 1, ""), "int/sfixed": (15, 1, ""),
    "int/enum": (14, 1, "E"), "bigint": (3, 1, ""), "bigint/uint": (4, 1, ""), "bigint/fixed": (6, 1, ""),
    "float": (2, 1, ""), "double": (1, 1, ""), "string": (9, 1, ""), "binary": (12, 1, ""),
    "timestamp": (11, 1, "google.protobuf.Timestamp"), "struct<p:int,q:string>": (11, 1, "P"),
    "array<bigint>": (3, 3, ""), "map<string,double>": (11, 3, "M.VEntry"), "string/self": (11, 1, "M"),
}  # fmt: skip
_NOT_SET = object()


def _messages() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto(name="google/protobuf/timestamp.proto", package="google.protobuf")
    stamp.syntax = "proto3"
    at = stamp.message_type.add(name="Timestamp")
    at.field.add(name="seconds", number=1, type=3, label=1)
    at.field.add(name="nanos", number=2, type=5, label=1)
    pool.Add(stamp)
    found = {}
    for n, (word, (type, label, name)) in enumerate(_FIELDS.items()):
        package = f"p{n}"
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3",
                                                  dependency=[stamp.name])  # fmt: skip
        message = file.message_type.add(name="M")
        field = message.field.add(name="v", number=1, type=type, label=label)
        if name:
            field.type_name = f".{name}" if "google" in name else f".{package}.{name}"
        if name == "E":
            enum = file.enum_type.add(name="E")
            enum.value.add(name="NONE", number=0)
            enum.value.add(name="ONE", number=1)
        elif name == "P":
            inner = file.message_type.add(name="P")
            inner.field.add(name="p", number=1, type=5, label=1)
            inner.field.add(name="q", number=2, type=9, label=1)
        elif name == "M.VEntry":
            entry = message.nested_type.add(name="VEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=9, label=1)
            entry.field.add(name="value", number=2, type=1, label=1)
        pool.Add(file)
        found[word] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.M"))
    return found


def _set(message: Any, kind: pa.DataType, value: Any) -> Any:
    """Put the value into the field if the library takes it; what must come of it."""
    t = pa.types
    try:
        if t.is_timestamp(kind):
            micros = (value - _EPOCH) // dt.timedelta(microseconds=1)
            message.v.seconds, message.v.nanos = micros // 1_000_000, micros % 1_000_000 * 1000
            return value
        if t.is_struct(kind):
            message.v.p, message.v.q = value["p"], value["q"]
            return {"p": value["p"], "q": value["q"]}
        if t.is_list(kind):
            message.v.extend(value)
            return value
        if t.is_map(kind):
            message.v.update(value)
            return list(message.v.items())
        message.v = value
        return value if isinstance(value, str | bytes) else message.v
    except Exception:  # The library's: it does not fit.
        message.Clear()
        return _NOT_SET
