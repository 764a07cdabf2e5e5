"""The tuples of a group as bytes, column by column, as they stand in memory.

The intuition: at a high rate a window is new from one checkpoint to the next, so the cost of a checkpoint is how often
its tuples are copied. A group is a stretch of rows, so it is a stretch of each column's memory; a list of those is what
the store needs to write it.

1. Numbers, times, texts and bytes, without missing values, are written so. The ends of texts are written as they stand
   and brought to begin at zero when they are read.
2. A group with a column of another kind, or with missing values, is an Arrow message as a whole. So were all groups
   in earlier versions: a head without lengths says so.
3. Nothing that was read is used before all lengths and ends fit.
4. Names and types of columns are not among the bytes; a digest of them goes with each stretch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import crc32c


class Stretch(NamedTuple):
    """Some rows: how many, and their bytes; of each piece its length, or nothing if it is one Arrow message."""

    rows: int
    pieces: tuple[memoryview, ...]
    lengths: tuple[int, ...]
    digest: int = 0
    """Rule 4; 0 where it was not saved."""


class _Column(NamedTuple):
    """A column's memory. With `ends`, `values` are the ends of its texts."""

    values: memoryview
    width: int
    offset: int
    ends: npt.NDArray[np.int32] | None = None
    data: memoryview = memoryview(b"")


class Columns:
    """Rows of which stretches are wanted."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self._digest = batch, digest_of(batch.schema)
        plain = [_plain(column) for column in batch.columns]
        self._plain = [column for column in plain if column is not None]
        self._all_plain = bool(plain) and len(plain) == len(self._plain)

    def stretch(self, first: int, end: int) -> Stretch:
        """Rows `first` … `end`-1."""
        if not 0 <= first <= end <= self._batch.num_rows:
            raise IndexError(f"rows {first} to {end} of {self._batch.num_rows}")  # Slices of memory would wrap round.
        rows = end - first
        if not self._all_plain:
            return Stretch(rows, (memoryview(self._batch.slice(first, rows).serialize()),), (), self._digest)
        pieces: list[memoryview] = []
        for values, width, offset, ends, data in self._plain:
            begin = (first + offset) * width
            if ends is None:
                pieces.append(values[begin : begin + rows * width])
            else:
                pieces.append(values[begin : begin + (rows + 1) * width])
                pieces.append(data[int(ends[first + offset]) : int(ends[end + offset])])
        return Stretch(rows, tuple(pieces), tuple(map(len, pieces)), self._digest)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a value of fixed width, or of an end of a text; None where rule 2 holds."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    return kind.bit_width // 8 if pa.types.is_primitive(kind) and kind.bit_width % 8 == 0 else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _plain(column: pa.Array) -> _Column | None:
    width = _width(column.type)
    if width is None or column.null_count or not len(column):
        return None
    if not _is_text(column.type):
        return _Column(memoryview(column.buffers()[1]), width, column.offset)
    _, ends, data = column.buffers()
    values = memoryview(ends), width, column.offset, np.frombuffer(ends, np.int32)
    return _Column(*values) if data is None else _Column(*values, memoryview(data))


def read_stretch(body: bytes, rows: int, lengths: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    """The rows that `body` holds: what `Columns.stretch` made of them."""
    if not lengths:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate(full=True)  # It may have come from another owner's host (X3).
        return batch
    wanted = [n for kind in schema.types for n in _lengths_of(kind, rows)]
    fits = len(wanted) == len(lengths) and all(w is None or w == n for w, n in zip(wanted, lengths, strict=True))
    if not fits or rows < 1 or sum(lengths) != len(body) or min(lengths) < 0:
        raise CorruptLog(f"a group of {rows} tuples has columns of {list(lengths)} bytes, which do not fit its schema")
    starts = np.cumsum([0, *lengths]).tolist()
    pieces = iter([body[a:b] for a, b in itertools.pairwise(starts)])
    columns = [_read(kind, rows, next(pieces), next(pieces) if _is_text(kind) else None) for kind in schema.types]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _lengths_of(kind: pa.DataType, rows: int) -> list[int | None]:
    width = _width(kind)
    if width is None:
        return []  # Such a column is never written so; then the count of lengths does not fit.
    return [(rows + 1) * width, None] if _is_text(kind) else [rows * width]


def _read(kind: pa.DataType, rows: int, values: bytes, data: bytes | None) -> pa.Array:
    if data is None:
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
    ends = np.frombuffer(values, np.int32).astype(np.int64)
    ends -= ends[0]
    if ends[-1] != len(data) or bool(np.any(ends[1:] < ends[:-1])):
        raise CorruptLog(f"the texts of a group do not end where its {len(data)} bytes of text do")
    column = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)])
    column.validate(full=True)  # Bytes that are no text are an error, as they are in an Arrow message.
    return column


def columns_text(schema: pa.Schema) -> str:
    """Names and types."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@functools.lru_cache(maxsize=64)
def digest_of(schema: pa.Schema) -> int:
    """Rule 4."""
    return crc32c(columns_text(schema).encode()) or 1
