"""What PostgreSQL sends: messages of pgoutput and lines of COPY, whole and damaged, into the columns of a stream."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.inputs.change_position import Place
from holdfast.inputs.change_rows import ChangeRows, Placed, stream_schema
from holdfast.inputs.pgoutput import Change, Piece, Relation, decode, unwrap
from holdfast.inputs.postgres_types import copied_row
from holdfast.model.schema import schema_text
from tests.fuzz import values
from tests.fuzz.target import Target, Wrong, mutated

#: PostgreSQL's number of a type, a modifier, and the type of the values that it is tried with.
_TYPES: list[tuple[int, int, pa.DataType]] = [
    (16, -1, pa.bool_()), (17, -1, pa.binary()), (20, -1, pa.int64()), (21, -1, pa.int16()), (23, -1, pa.int32()),
    (26, -1, pa.int64()), (700, -1, pa.float32()), (701, -1, pa.float64()), (1082, -1, pa.date32()),
    (1114, -1, pa.timestamp("us")), (1184, -1, pa.timestamp("us", "UTC")), (25, -1, pa.string()),
    (1043, 24, pa.string()), (2950, -1, pa.string()), (1700, -1, pa.string()), (600, -1, pa.string()),
    (1700, (10 << 16 | 2) + 4, pa.decimal128(10, 2)), (1700, (38 << 16 | 18) + 4, pa.decimal128(38, 18)),
    (1016, -1, pa.list_(pa.int64())), (1009, -1, pa.list_(pa.string())), (1001, -1, pa.list_(pa.binary())),
    (1231, (10 << 16 | 2) + 4, pa.list_(pa.decimal128(10, 2))), (1115, -1, pa.list_(pa.timestamp("us"))),
    (1000, -1, pa.list_(pa.bool_())),
]  # fmt: skip
_ROUND = 25
_NO_TEXT = object()


class Postgres(Target):
    """A table of a key and one value, its changes, and its first copy."""

    def round(self, chance: random.Random) -> None:
        number, modifier, kind = chance.choice(_TYPES)
        described = _relation(number, modifier, chance.choice([b"d", b"f", b"n"]))
        relation = decode(described)
        assert isinstance(relation, Relation)
        rows = ChangeRows(stream_schema(relation, None), "s", "t", columns=None, stime=None, stime_unit="us")
        rows.use(relation)
        for _ in range(_ROUND):
            self._message(chance, mutated(described, chance), rows)
            value = values.any_value(chance, kind)
            text = written(kind, value)
            if text is _NO_TEXT:
                text, value = values.text(chance).encode("utf-8", "replace"), _NO_TEXT
            assert text is None or isinstance(text, bytes)
            message = chance.choice([_insert, _update, _delete])(chance, text)
            if chance.random() < 0.3:
                self._message(chance, mutated(message, chance), rows)
            else:
                self._whole(message, rows, kind, value)
            self._copy(chance, text)

    def _whole(self, message: bytes, rows: ChangeRows, kind: pa.DataType, value: Any) -> None:
        batch = self.refused_or("pgoutput", lambda: _taken(rows, decode(message)), message)
        if batch is None or not batch.num_rows or value is _NO_TEXT:
            return
        got = batch.column("v").to_pylist()[0]
        if not values.same(kind, value, got):
            raise Wrong(
                f"pgoutput: {value!r:.300} ({message!r:.300}) came into ({schema_text(rows.schema)}) as {got!r}"
            )

    def _message(self, chance: random.Random, message: bytes, rows: ChangeRows) -> None:
        wrapped = b"w" + struct.pack(">qqq", 1, 2, 3) + message
        if chance.random() < 0.2:
            wrapped = mutated(wrapped, chance)

        def through() -> None:
            piece = unwrap(wrapped)
            if isinstance(piece, Piece):
                found = decode(piece.message)
                if isinstance(found, Relation):
                    own = stream_schema(found, None)
                    ChangeRows(own, "s", "t", columns=None, stime=None, stime_unit="us").use(found)
                _taken(rows, found)

        self.refused_or("pgoutput", through, wrapped)

    def _copy(self, chance: random.Random, text: bytes | None) -> None:
        fields: list[bytes | None] = [b"1", text]
        line = b"\t".join(b"\\N" if f is None else _escaped(f) for f in fields) + b"\n"
        meant = tuple(None if f is None else f.decode() for f in fields)
        got = self.refused_or("copy", lambda: copied_row(line), line)
        if got != meant:
            raise Wrong(f"copy: {meant!r:.300} came back as {got!r:.300}")
        self.refused_or("copy", lambda: copied_row(mutated(line, chance)), line)


def _taken(rows: ChangeRows, found: Any) -> pa.RecordBatch | None:
    if not isinstance(found, Change):
        return None
    batch, good, refused = rows.batch([Placed(found, Place(1, 1, 1), 1, 1_700_000_000_000_000)], 0)
    if len(good) + len(refused) != 1 or batch.num_rows != len(good):
        raise Wrong(f"pgoutput: one change gave {batch.num_rows} rows and {len(refused)} refusals")
    for one in refused:
        if "\n" in one.why or len(one.why) > 4000:
            raise Wrong(f"pgoutput: refused with more than a sentence: {one.why[:300]!r}")
    batch.validate(full=True)
    return batch


def _relation(number: int, modifier: int, identity: bytes) -> bytes:
    head = b"R" + struct.pack(">I", 7) + b"public\0t\0" + identity + struct.pack(">H", 2)
    return head + b"\1id\0" + struct.pack(">Ii", 23, -1) + b"\0v\0" + struct.pack(">Ii", number, modifier)


def _row(text: bytes | None) -> bytes:
    value = b"n" if text is None else b"t" + struct.pack(">i", len(text)) + text
    return struct.pack(">H", 2) + b"t" + struct.pack(">i", 1) + b"1" + value


def _insert(chance: random.Random, text: bytes | None) -> bytes:
    return b"I" + struct.pack(">I", 7) + b"N" + _row(text)


def _update(chance: random.Random, text: bytes | None) -> bytes:
    old = chance.choice([b"", b"K" + _row(None), b"O" + _row(text)])
    return b"U" + struct.pack(">I", 7) + old + b"N" + _row(text)


def _delete(chance: random.Random, text: bytes | None) -> bytes:
    return b"D" + struct.pack(">I", 7) + chance.choice([b"K", b"O"]) + _row(text)


def _escaped(text: bytes) -> bytes:
    for plain, escape in ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\v", b"\\v")):
        text = text.replace(plain, escape)
    return text


def written(kind: pa.DataType, value: Any) -> Any:
    """The value as PostgreSQL writes it; `_NO_TEXT` if it cannot hold it."""
    t = pa.types
    if value is None:
        return None
    try:
        if t.is_boolean(kind):
            return {True: b"t", False: b"f"}[value]
        if t.is_binary(kind):
            return b"\\x" + bytes.hex(value).encode()
        if t.is_string(kind):
            return value.encode() if isinstance(value, str) else _NO_TEXT
        if t.is_timestamp(kind) and isinstance(value, dt.datetime):
            if (value.tzinfo is None) != (kind.tz is None):
                return _NO_TEXT
            text = value.isoformat(" ").encode()
            return text.removesuffix(b":00") if kind.tz is not None else text
        if t.is_date(kind) and type(value) is dt.date:
            return value.isoformat().encode()
        if t.is_list(kind) and isinstance(value, list):
            return b"{" + b",".join(_element(written(kind.value_type, one)) for one in value) + b"}"
        fits = t.is_integer(kind) and type(value) is int
        fits |= t.is_floating(kind) and isinstance(value, float)
        fits |= t.is_decimal(kind) and isinstance(value, Decimal) and value.is_finite() and values.short(value)
        return f"{value:f}".encode() if fits and t.is_decimal(kind) else repr(value).encode() if fits else _NO_TEXT
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return _NO_TEXT


def _element(text: Any) -> bytes:
    if text is None:
        return b"NULL"
    if text is _NO_TEXT:
        raise TypeError
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
