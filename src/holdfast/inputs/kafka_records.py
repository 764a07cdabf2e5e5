"""Kafka's records into rows of a stream: values by their encoding, the rest of a record into columns on request.

Rules:
1. Nothing is guessed, as for lines (`holdfast.inputs.decode`): a record that does not fit is given back and why.
2. `value="columns"` decodes nothing: columns named key, value, topic, partition, offset, timestamp and headers take the
   parts of the record, as in Spark's own source. A header may be there several times: a column array<struct<key,
   value>> has all of them in their order, a map the last of each name.
3. A record without a value (a tombstone) is a row of nulls with its key, or is skipped.
4. stime is the record's timestamp, or a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from holdfast.inputs.decode import Decoder
from holdfast.inputs.partition_merge import Chunk
from holdfast.inputs.typed_json import Misread, typed_json
from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import STIME_TYPE, schema_text
from holdfast.stream.pack import stime_array
from holdfast.stream.rows import Columns, stimes_of
from holdfast.stream.values import STIME_US_MAX

PARTS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_HEADER_MAPS = (pa.map_(pa.string(), pa.string()), pa.map_(pa.string(), pa.binary()))
#: What a client library says for a record without a timestamp.
_NO_TIMESTAMP = -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message(Protocol):
    """What a client library gives of one record."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...


class Values(Protocol):
    """One encoding of values."""

    def row(self, value: bytes, where: str) -> dict[str, Any]:
        """The columns of one value, or `SchemaError`."""


class Refused(NamedTuple):
    """A record that does not fit, and why."""

    message: Message
    why: str
    kind: type[UsageError] = SchemaError


class JsonValues:
    """A JSON object per record."""

    def __init__(self, schema: pa.Schema, stream: str, extra: bool) -> None:
        self._decoder, self._names = Decoder(schema, stream), frozenset(schema.names)
        self._extra = extra
        self.typed = typed_json(schema, forbid_unknown=not extra)

    def row(self, value: bytes, where: str) -> dict[str, Any]:
        found = self._decoder.json(value, where)
        if self._extra and isinstance(found, dict):
            found = {name: found[name] for name in found.keys() & self._names}
        return self._decoder.json_row(found, where)


class _NoValues:
    """Rule 2."""

    def row(self, value: bytes, where: str) -> dict[str, Any]:
        return {}


class Records:
    """Turns the records of one topic into chunks for one stream."""

    def __init__(
        self,
        schema: pa.Schema,
        stream: str,
        topic: str,
        *,
        values: Callable[[pa.Schema, str], Values] | None,
        parts: Mapping[str, str],
        stime: str,
        stime_unit: str,
        tombstones: str,
    ) -> None:
        self._schema, self._stream, self._topic = schema, stream, topic
        self._stime, self._unit, self._skip = stime, stime_unit, tombstones == "skip"
        if values is None:
            parts = {name: name for name in schema.names}
            _check_parts(schema, stream)
        by_column = {column: part for part, column in parts.items()}
        for part, column in parts.items():
            if part not in PARTS or column not in schema.names:
                raise UsageError(
                    f"stream {stream}: a part of a record ({', '.join(PARTS)}) must have one of the columns "
                    f"({schema_text(schema)}); got {part} for {column!r}"
                )
        if stime != "timestamp" and stime not in schema.names:
            raise UsageError(
                f"stream {stream}: stime must be 'timestamp' or one of ({schema_text(schema)}); got {stime!r}"
            )
        self._parts = {column: _part(part, schema.field(column).type, stream) for column, part in by_column.items()}
        body = pa.schema([field for field in schema if field.name not in by_column])
        self._values: Values = _NoValues() if values is None else values(body, stream)
        self._typed = self._values.typed if isinstance(self._values, JsonValues) else None
        self._columns, self._body = Columns(schema, stream), body
        self._out = pa.schema([pa.field("stime", STIME_TYPE), *schema])

    @property
    def schema(self) -> pa.Schema:
        """The columns of a chunk's rows: stime, and the stream's."""
        return self._out

    def chunk(self, messages: Sequence[Message]) -> tuple[Chunk, list[Refused]]:
        """Records of one partition in their order, and those that do not fit."""
        if self._typed is not None:
            found = self._quick(messages)
            if found is not None:
                return found, []
        rows: list[dict[str, Any]] = []
        good: list[Message] = []
        refused: list[Refused] = []
        for message in messages:
            try:
                row = self._row(message)
                if row is not None:
                    rows.append(row)
                    good.append(message)
            except SchemaError as error:
                refused.append(Refused(message, str(error)))
            # A time of Protocol Buffers' beyond all years, the name of a header that is no text: bad records, too.
            except (ValueError, OverflowError) as error:
                refused.append(Refused(message, f"{self.where(message)}: it cannot be read: {error}"))
        try:
            return self._batch(rows, good), refused
        except SchemaError:
            return self._one_by_one(rows, good, refused)

    def _one_by_one(
        self, rows: Sequence[dict[str, Any]], messages: Sequence[Message], refused: list[Refused]
    ) -> tuple[Chunk, list[Refused]]:
        """Find out whose row it was."""
        good: list[int] = []
        for n, (row, message) in enumerate(zip(rows, messages, strict=True)):
            try:
                self._batch([row], [message])
                good.append(n)
            except SchemaError as error:
                refused.append(Refused(message, str(error)))
        return self._batch([rows[n] for n in good], [messages[n] for n in good]), refused

    def _quick(self, messages: Sequence[Message]) -> Chunk | None:
        """All at once, if all are plain; one that is not is found one by one."""
        assert self._typed is not None
        texts = [message.value() for message in messages]
        if None in texts:
            return None
        try:
            body = dict(zip(self._body.names, self._typed.arrays(texts), strict=True))  # type: ignore[arg-type]
            body |= {name: self._columns.array(name, [part(m, self._topic) for m in messages])
                     for name, part in self._parts.items()}  # fmt: skip
            return self._timed(pa.RecordBatch.from_arrays([body[f.name] for f in self._schema], schema=self._schema),
                               messages)  # fmt: skip
        except (Misread, SchemaError):
            return None

    def _row(self, message: Message) -> dict[str, Any] | None:
        where = self.where(message)
        value = message.value()
        if value is not None or isinstance(self._values, _NoValues):
            row = self._values.row(value or b"", where)
        elif self._skip:
            return None
        else:
            row = {}
        return row | {name: part(message, self._topic) for name, part in self._parts.items()}

    def _batch(self, rows: Sequence[dict[str, Any]], messages: Sequence[Message]) -> Chunk:
        return self._timed(self._columns.batch(rows), messages)

    def _timed(self, batch: pa.RecordBatch, messages: Sequence[Message]) -> Chunk:
        if self._stime == "timestamp":
            times_ms = np.fromiter((m.timestamp()[1] for m in messages), np.int64, len(messages))
            if len(times_ms) and (least_ms := int(times_ms.min())) < 0:
                got = "none" if least_ms == _NO_TIMESTAMP else f"{least_ms} milliseconds since 1970"
                raise SchemaError(
                    f"stream {self._stream}: the record must have a timestamp to be its stime, 1970 or later; got {got}"
                )
            # Any number of 64 bits can stand there; as microseconds it would become another time without a word.
            if len(times_ms) and int(times_ms.max()) > STIME_US_MAX // 1000:
                raise SchemaError(f"stream {self._stream}: {_beyond(int(times_ms.max()))}")
            stimes = times_ms * 1000
        else:
            stimes = stimes_of(batch.column(self._stime), self._unit, self._stream)
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        rows = pa.RecordBatch.from_arrays([stime_array(stimes), *batch.columns], schema=self._out)
        return Chunk(offsets, stimes, rows)

    def where(self, message: Message) -> str:
        return f"topic {self._topic} partition {message.partition()} offset {message.offset()}"


def _check_parts(schema: pa.Schema, stream: str) -> None:
    if unknown := [name for name in schema.names if name not in PARTS]:
        raise UsageError(
            f"stream {stream}: with value='columns' its columns must be parts of a record ({', '.join(PARTS)}); got "
            f"{', '.join(unknown)}"
        )


Part = Callable[[Message, str], Any]


def _part(part: str, kind: pa.DataType, stream: str) -> Part:
    """How a part of a record becomes a value of its column."""
    t = pa.types
    wrong = UsageError(f"stream {stream}: the column for a record's {part} must be of another type; got {kind}; ")
    if part in ("key", "value"):
        if not (t.is_string(kind) or t.is_binary(kind)):
            raise UsageError(f"{wrong}use string or binary")
        text = bool(t.is_string(kind))
        if part == "key":
            return lambda m, _: _bytes(m.key(), text, part)
        return lambda m, _: _bytes(m.value(), text, part)
    if part == "topic" and t.is_string(kind):
        return lambda _, topic: topic
    if part == "partition" and kind in (pa.int32(), pa.int64()):
        return lambda m, _: m.partition()
    if part == "offset" and kind == pa.int64():
        return lambda m, _: m.offset()
    if part == "timestamp" and t.is_timestamp(kind) and kind.tz:
        return lambda m, _: _moment(m.timestamp()[1])
    if part == "headers" and kind in _HEADER_MAPS:
        text = bool(t.is_string(kind.item_type))
        return lambda m, _: [(k, _bytes(v, text, f"header {k}")) for k, v in dict(m.headers() or ()).items()]
    if part == "headers" and (values := _header_values(kind)) is not None:
        text = bool(t.is_string(values))
        return lambda m, _: [{"key": k, "value": _bytes(v, text, f"header {k}")} for k, v in m.headers() or ()]
    wanted = {"topic": "string", "partition": "int or bigint", "offset": "bigint", "timestamp": "timestamp",
              "headers": "array<struct<key: string, value: binary>> or map<string, binary>, each also with value "
                         "string"}  # fmt: skip
    raise UsageError(f"{wrong}use {wanted[part]}")


def _header_values(kind: pa.DataType) -> pa.DataType | None:
    """Of the list that keeps every header, as in Spark's own source; None: it is another type."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return None
    found = {field.name: field.type for field in kind.value_type}
    fits = list(found) == ["key", "value"] and found["key"] == pa.string()
    return found["value"] if fits and found["value"] in (pa.string(), pa.binary()) else None


def _moment(ms: int) -> datetime | None:
    if ms == _NO_TIMESTAMP:
        return None
    if ms > STIME_US_MAX // 1000:
        raise SchemaError(_beyond(ms))
    return _EPOCH + timedelta(milliseconds=ms)


def _beyond(ms: int) -> str:
    return f"its timestamp must lie in the years 1 to 9999; got {ms} milliseconds since 1970"


def _bytes(value: bytes | str | None, text: bool, part: str) -> bytes | str | None:
    if isinstance(value, str):
        value = value.encode()
    if value is None or not text:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise SchemaError(f"its {part} must be text in UTF-8; got other bytes; make the column binary") from None
