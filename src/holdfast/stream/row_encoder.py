"""One row straight into the bytes of an Arrow record batch: for callers that send rows one by one.

To build arrays, a batch and its message for one row costs as much processor time as half a sync. A message of one row
without nulls is always the same but for its values and the lengths of texts; so a message that Arrow has made serves as
a pattern, and only those are put in. Rules:

1. The bytes are those that Arrow itself would write for the row: there is no second format. Some rows of every encoder
   are compared with Arrow's when it is made; one that differs anywhere is not used.
2. Values of the very types in `_FIXED` and `_TEXTS` only, and none that is null. Whatever else there is (another type,
   a number out of range, text that is no UTF-8) is left to `rows.Columns`, which checks and says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

#: Arrow's columns of fixed width: the type of their values, and how one is laid out.
_FIXED: dict[pa.DataType, tuple[type, str]] = {
    pa.int8(): (int, "<b"), pa.int16(): (int, "<h"), pa.int32(): (int, "<i"), pa.int64(): (int, "<q"),
    pa.float64(): (float, "<d"), pa.bool_(): (bool, "<?"),
}  # fmt: skip
_TEXTS: dict[pa.DataType, type] = {pa.string(): str, pa.binary(): bytes}
#: Longer values gain nothing by this way.
_TEXT_MAX = 1 << 16
#: Buffers begin at multiples of this.
_ALIGNMENT = 8
_ZEROS = bytes(_ALIGNMENT)
#: In a message: the mark and the length of what describes the body.
_PREFIX = struct.Struct("<iI")
_STIME, _LENGTH = struct.Struct("<q").pack, struct.Struct("<q").pack_into
#: Where a text begins and ends in its column's buffer.
_OFFSETS = struct.Struct("<ii").pack


def row_encoder(stored: pa.Schema) -> RowEncoder | None:
    """The encoder of a stream whose stored columns are these, `stime` first; None if they are not all plain."""
    kinds = [field.type for field in stored][1:]
    if not all(kind in _FIXED or kind in _TEXTS for kind in kinds):
        return None
    encoder = RowEncoder(stored)
    return encoder if all(encoder.is_exact(row) for row in _samples(kinds)) else None


class RowEncoder:
    """Made by `row_encoder`, which tries it first."""

    def __init__(self, stored: pa.Schema) -> None:
        self._stored, self._order = stored, tuple(stored.names[1:])
        self._names = frozenset(self._order)
        kinds = [field.type for field in stored][1:]
        self._types = tuple(_FIXED[kind][0] if kind in _FIXED else _TEXTS[kind] for kind in kinds)
        self._fixed = tuple(struct.Struct(_FIXED[kind][1]).pack if kind in _FIXED else None for kind in kinds)
        pattern = bytes(self._of_arrow(0, next(_samples(kinds))))
        self._head = bytearray(pattern[: _PREFIX.size + _PREFIX.unpack_from(pattern)[1]])
        self._length_at, buffers_at, count = _places(self._head)
        self._buffers = struct.Struct(f"<{2 * count}q")
        self._buffers_at = buffers_at

    def encode(self, stime_us: int, row: Mapping[str, Any] | Sequence[Any]) -> bytes | None:
        """The event's body; None if the row is not plain (rule 2)."""
        if type(row) is dict:
            if row.keys() != self._names:
                return None
            row = [row[name] for name in self._order]
        elif type(row) is not tuple:
            return None
        if tuple(map(type, row)) != self._types:
            return None
        parts: list[bytes] = [_STIME(stime_us)]
        places = [0, 0, 0, 8]  # Where the buffers of a column begin, and their lengths: nulls, values.
        at = 8
        try:
            for value, fixed in zip(row, self._fixed, strict=True):
                if fixed is None:
                    data = value.encode() if type(value) is str else value
                    length = len(data)
                    if length > _TEXT_MAX:
                        return None
                    parts.append(_OFFSETS(0, length))
                    places += (at, 0, at, 8, at + 8, length)
                    at += 8
                else:
                    data = fixed(value)
                    length = len(data)
                    places += (at, 0, at, length)
                parts.append(data)
                if padding := -length % _ALIGNMENT:
                    parts.append(_ZEROS[:padding])
                at += length + padding
        except (struct.error, UnicodeEncodeError):
            return None
        head = self._head.copy()
        self._buffers.pack_into(head, self._buffers_at, *places)
        _LENGTH(head, self._length_at, at)
        return b"".join((head, *parts))

    def is_exact(self, row: Sequence[Any]) -> bool:
        """Rule 1, for one row."""
        return self.encode(1_700_000_000_000_000, row) == bytes(self._of_arrow(1_700_000_000_000_000, row))

    def _of_arrow(self, stime_us: int, row: Sequence[Any]) -> pa.Buffer:
        arrays = [pa.array([value], field.type) for value, field in zip((stime_us, *row), self._stored, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._stored).serialize()


def _samples(kinds: Sequence[pa.DataType]) -> Iterator[tuple[Any, ...]]:
    """Rows with texts of such lengths that padding and offsets differ."""
    for length in (3, 0, 8, 1025):
        yield tuple(
            "é" * length
            if kind == pa.string()
            else b"\0" * length
            if kind == pa.binary()
            else _FIXED[kind][0](length % 3)
            for kind in kinds
        )


def _places(head: bytes | bytearray) -> tuple[int, int, int]:
    """Where in a message stand the body's length, and the places of its buffers; and how many those are.

    A message is a table of FlatBuffers (Arrow's Message.fbs): bodyLength is its field 3, and its field 2 a table
    RecordBatch, whose field 2 is the vector of buffers.
    """
    message = _followed(head, _PREFIX.size)
    batch = _followed(head, _field(head, message, 2))
    buffers = _followed(head, _field(head, batch, 2))
    return _field(head, message, 3), buffers + 4, int.from_bytes(head[buffers : buffers + 4], "little")


def _followed(data: bytes | bytearray, at: int) -> int:
    return at + int.from_bytes(data[at : at + 4], "little")


def _field(data: bytes | bytearray, table: int, number: int) -> int:
    fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    return table + int.from_bytes(data[fields + 4 + 2 * number : fields + 6 + 2 * number], "little")
