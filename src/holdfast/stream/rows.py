"""Rows that callers hand in, turned into record batches of the stored schema.

A row is a mapping, or a sequence in column order. One that does not fit is refused by name; nothing is guessed or
truncated (see `values`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.errors import SchemaError
from holdfast.model.schema import STIME_TYPE, schema_text
from holdfast.stream.values import STIME_US_MAX, STIME_US_MIN, Check, Misfit, check_of, names_shown, shown

Row = Mapping[str, Any] | Sequence[Any]
_Field = tuple[pa.Field, Check | None, type | None]


class Columns:
    """The columns of a stream or of an operator's results (`whose`), prepared once: single rows are sent often."""

    def __init__(self, schema: pa.Schema, whose: str) -> None:
        self.schema, self.whose = schema, whose
        self._names = frozenset(schema.names)
        self._fields: list[_Field] = [(f, check_of(f.type), _plain_type(f.type)) for f in schema]

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """The rows as one record batch; `SchemaError` if one does not fit."""
        width = len(self._fields)
        values = [row if type(row) is tuple and len(row) == width else self._values(row) for row in rows]
        columns = zip(*values, strict=True) if values else ((),) * width
        arrays = [self._array(*field, column) for field, column in zip(self._fields, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """The values of one column."""
        field, check, plain = self._fields[self.schema.get_field_index(name)]
        return self._array(field, check, plain, values)

    def _values(self, row: Row) -> tuple[Any, ...]:
        if isinstance(row, Mapping):
            if row.keys() <= self._names:
                return tuple([row.get(field.name) for field, _, _ in self._fields])
            got = f"also {names_shown(row.keys() - self._names)}"
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == len(self._fields):
            return tuple(row)
        else:
            got = shown(row)
        raise SchemaError(f"{self.whose}: a row must have the columns ({schema_text(self.schema)}); got {got}")

    def _array(self, field: pa.Field, check: Check | None, plain: type | None, values: Sequence[Any]) -> pa.Array:
        if check is not None and not (plain is not None and set(map(type, values)) <= {plain, _NONE}):
            values = [None if v is None else self._fit(field, check, v) for v in values]
        try:
            array = pa.array(values, type=field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            raise SchemaError(
                f"{self.whose}: column {field.name!r} must be {field.type}; {first_words(error)}"
            ) from None
        if isinstance(array, pa.ChunkedArray):
            raise SchemaError(
                f"{self.whose}: the values of column {field.name!r} in one unit must have less than 2 GiB; "
                f"send smaller units"
            )
        if not field.nullable and array.null_count:
            raise SchemaError(f"{self.whose}: column {field.name!r} must not be null; got {array.null_count} nulls")
        return array

    def _fit(self, field: pa.Field, check: Check, value: Any) -> Any:
        try:
            return check(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            why = f" ({error})" if isinstance(error, Misfit) else ""
            raise SchemaError(
                f"{self.whose}: column {field.name!r} must be {field.type}; got {shown(value)}{why}"
            ) from None


_NONE = type(None)


def _plain_type(kind: pa.DataType) -> type | None:
    """Values of this very type need no check: single rows are sent often."""
    return int if pa.types.is_integer(kind) else bytes if pa.types.is_binary(kind) else None


def first_words(error: BaseException) -> str:
    """The first line of an error of Arrow's, which may repeat a whole value."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 200 else line[:197] + "..."


#: Microseconds per unit of an integer column that serves as stime.
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


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
        if low < STIME_US_MIN or high > STIME_US_MAX:
            wrong = low if low < STIME_US_MIN else high
            raise SchemaError(
                f"stream {stream}: an stime must lie in the years 1 to 9999; got {wrong} microseconds since 1970; "
                f"is the unit right (stime_unit)?"
            )
    return values * unit_us
