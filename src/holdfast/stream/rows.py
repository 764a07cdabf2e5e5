"""What callers hand in, turned into record batches of the stored schema.

Rows are mappings or sequences in column order; tables are Arrow or pandas. A row that does not fit is refused by name;
nothing is guessed or truncated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.errors import SchemaError
from holdfast.model.schema import STIME_TYPE, schema_text

Row = Mapping[str, Any] | Sequence[Any]


class Columns:
    """The columns of a stream, prepared once: single rows are sent often."""

    def __init__(self, schema: pa.Schema, stream: str) -> None:
        self.schema, self.stream = schema, stream
        self._names = frozenset(schema.names)
        self._fields = [(f, f.type, pa.types.is_integer(f.type) or pa.types.is_temporal(f.type)) for f in schema]

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """The rows as one record batch; `SchemaError` if one does not fit."""
        width = len(self._fields)
        values = [row if type(row) is tuple and len(row) == width else self._values(row) for row in rows]
        columns = zip(*values, strict=True) if values else ((),) * width
        arrays = [self._array(*field, column) for field, column in zip(self._fields, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _values(self, row: Row) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            if row.keys() <= self._names:
                return tuple([row.get(field.name) for field, _, _ in self._fields])
            got = f"also {', '.join(sorted(map(str, row.keys() - self._names)))}"
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == len(self._fields):
            return tuple(row)
        else:
            got = f"{row!r:.120}"
        raise SchemaError(f"stream {self.stream}: a row must have the columns ({schema_text(self.schema)}); got {got}")

    def _array(self, field: pa.Field, kind: pa.DataType, whole: bool, values: Sequence[Any]) -> pa.Array:
        try:
            if whole:
                _refuse_fractions(values, kind)
            array = pa.array(values, type=kind)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
            OverflowError,
            ValueError,
            TypeError,
        ) as error:
            raise SchemaError(f"stream {self.stream}: column {field.name!r} must be {kind}; {error}") from None
        if not field.nullable and array.null_count:
            raise SchemaError(
                f"stream {self.stream}: column {field.name!r} must not be null; got {array.null_count} nulls"
            )
        return array


def _refuse_fractions(values: Sequence[Any], kind: pa.DataType) -> None:
    """Arrow would cut 1.5 down to 1 without a word."""
    if set(map(type, values)) <= {int, type(None)}:
        return
    for value in values:
        if isinstance(value, float | np.floating | Decimal) and (pa.types.is_temporal(kind) or value % 1 != 0):
            raise ValueError(f"got {value!r}")


def table_batch(data: Any, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """One batch with exactly the columns of `schema`, from an Arrow table or batch or a pandas frame."""
    if (
        isinstance(data, pa.RecordBatch)
        and data.schema.equals(schema)
        and not any(column.null_count for field, column in zip(schema, data.columns, strict=True) if not field.nullable)
    ):
        return data
    try:
        # Loading pandas takes half a second; a caller that has a frame has loaded it already.
        pandas = sys.modules.get("pandas")
        if pandas is not None and isinstance(data, pandas.DataFrame):
            data = pa.Table.from_pandas(data, preserve_index=False)
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"stream {stream}: the frame cannot become Arrow: {error}") from None
    if not isinstance(data, pa.Table):
        raise SchemaError(f"stream {stream}: a batch must be Arrow or pandas; got {type(data).__name__}")
    if sorted(data.column_names) != sorted(schema.names):
        raise SchemaError(
            f"stream {stream}: a batch must have the columns ({schema_text(schema)}); got ({schema_text(data.schema)})"
        )
    columns = []
    for field in schema:
        try:
            column = data.column(field.name).cast(field.type).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"stream {stream}: column {field.name!r} must be {field.type}; {error}") from None
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type)
        if not field.nullable and column.null_count:
            raise SchemaError(f"stream {stream}: column {field.name!r} must not be null; got {column.null_count} nulls")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


#: Microseconds per unit of an integer column that serves as stime.
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
#: 0001-01-01 and the last microsecond of 9999: what lies outside could be stored but not shown to anybody.
_STIME_US_MIN, _STIME_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999


def stimes_of(column: pa.Array, unit: str, stream: str) -> npt.NDArray[np.int64]:
    """A user's time column as microseconds."""
    if column.null_count:
        raise SchemaError(
            f"stream {stream}: the column that gives stime must not be null; got {column.null_count} nulls"
        )
    if pa.types.is_timestamp(column.type):
        return _within(np.asarray(column.cast(STIME_TYPE, safe=False).cast(pa.int64())), 1, stream)
    if pa.types.is_integer(column.type):
        return _within(np.asarray(column.cast(pa.int64())), UNITS_US[unit], stream)
    raise SchemaError(f"stream {stream}: the column that gives stime must be timestamp or integer; got {column.type}")


def _within(values: npt.NDArray[np.int64], unit_us: int, stream: str) -> npt.NDArray[np.int64]:
    """Microseconds, refused outside the years that Python and Spark can show."""
    if len(values):
        low, high = int(values.min()) * unit_us, int(values.max()) * unit_us
        if low < _STIME_US_MIN or high > _STIME_US_MAX:
            wrong = low if low < _STIME_US_MIN else high
            raise SchemaError(
                f"stream {stream}: an stime must lie in the years 1 to 9999; got {wrong} microseconds since 1970; "
                f"is the unit right (stime_unit)?"
            )
    return values * unit_us
