"""Arrow tables and pandas frames that callers hand in, turned into record batches of the stored schema.

Rules:
1. Values keep their meaning: numbers become numbers, times times. Text is never read as anything else.
2. A cast must survive the way back; only floats may be rounded.
3. What no reader could show (a year beyond 9999, text that is not UTF-8) is refused here, whatever type it came in
   (X5): Arrow itself looks into no buffer that it is handed, and neither do readers of Parquet.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import SchemaError
from holdfast.model.schema import schema_text
from holdfast.stream.rows import Columns, first_words
from holdfast.stream.values import DAYS_MAX, DAYS_MIN, STIME_US_MAX, STIME_US_MIN, names_shown

_NO_TEXT = "got text that is not UTF-8; decode it as what it is, or give it as binary"
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def table_batch(data: Any, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """One batch with exactly the columns of `schema`, from an Arrow table or batch or a pandas frame."""
    if isinstance(data, pa.RecordBatch) and data.schema.equals(schema):
        for field, column in zip(schema, data.columns, strict=True):
            check_column(column, field, stream)
        return data
    # Loading pandas takes half a second; a caller that has a frame has loaded it already. Another thread may be about
    # to: then it is there without its classes.
    pandas = sys.modules.get("pandas")
    if isinstance(data, getattr(pandas, "DataFrame", ())):
        data = _frame_table(data, pandas, schema, stream)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise SchemaError(f"stream {stream}: a batch must be Arrow or pandas; got {type(data).__name__}")
    if sorted(data.column_names) != sorted(schema.names):
        raise SchemaError(
            f"stream {stream}: a batch must have the columns ({schema_text(schema)}); got "
            f"{names_shown(data.column_names)}"
        )
    columns = [_cast(data.column(field.name), field, stream) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _frame_table(frame: Any, pandas: Any, schema: pa.Schema, stream: str) -> pa.Table:
    """A frame as Arrow. Columns of Python objects go the way of rows: Arrow would guess what they are."""
    rows = Columns(schema, f"stream {stream}")
    arrays = []
    try:
        for name, column in frame.items():
            if column.dtype == object and name in schema.names:
                values = [None if _is_null(v, pandas) else v for v in column]
                arrays.append(rows.array(name, values))
            else:
                arrays.append(pa.array(column, from_pandas=True))
        return pa.Table.from_arrays(arrays, names=[str(name) for name in frame.columns])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"stream {stream}: the frame cannot become Arrow: {first_words(error)}") from None


def _is_null(value: Any, pandas: Any) -> bool:
    """Is it one of pandas' ways to say that there is nothing? (Its own `isna` fails on Decimal's signalling NaN.)"""
    return value is pandas.NA or value is pandas.NaT or (isinstance(value, float) and math.isnan(value))


def _cast(column: pa.ChunkedArray, field: pa.Field, stream: str) -> pa.Array:
    must = f"stream {stream}: column {field.name!r} must be {field.type}"
    try:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if not array.type.equals(field.type):
            if not _castable(array.type, field.type):
                raise SchemaError(f"{must}; got {array.type}, which does not mean the same; convert it first")
            array, before = array.cast(field.type), array
            if not _survived(before, array):
                raise SchemaError(f"{must}; got {before.type} with a value that it cannot hold")
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise SchemaError(f"{must}; {first_words(error)}") from None
    check_column(array, field, stream)
    return array


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Rule 1."""
    t = pa.types
    if source.equals(target):
        return True
    if t.is_string(target):
        return bool(t.is_large_string(source) or t.is_string_view(source))
    if t.is_binary(target):
        return bool(t.is_large_binary(source) or t.is_binary_view(source) or t.is_fixed_size_binary(source))
    if t.is_integer(target) or t.is_floating(target):
        return bool(t.is_integer(source) or t.is_floating(source))
    if t.is_decimal(target):
        # A scale that nobody can mean ends the process when Arrow works with it.
        return bool(t.is_integer(source) or (t.is_decimal(source) and 0 <= source.scale <= source.precision))
    if t.is_date(target):
        return bool(t.is_date(source) or (t.is_timestamp(source) and source.tz is None))
    if t.is_timestamp(target):
        if t.is_timestamp(source):
            return source.tz is None or target.tz is not None
        return bool(t.is_int64(source) or t.is_date(source))
    if t.is_list(target):
        return any(one(source) for one in _LISTS) and _castable(source.value_type, target.value_type)
    if t.is_map(target):
        return (
            bool(t.is_map(source))
            and _castable(source.key_type, target.key_type)
            and _castable(source.item_type, target.item_type)
        )
    if t.is_struct(target):
        return (
            bool(t.is_struct(source))
            and [f.name for f in source] == [f.name for f in target]
            and all(_castable(a.type, b.type) for a, b in zip(source, target, strict=True))
        )
    return False


def _survived(before: pa.Array, after: pa.Array) -> bool:
    """Rule 2. A float may be rounded, but a finite one must not become infinite."""
    if any(pa.types.is_floating(leaf.type) for leaf in _leaves(after)):
        return _infinite(before) == _infinite(after)
    return bool(after.cast(before.type).equals(before))


def _infinite(array: pa.Array) -> int:
    return sum(pc.sum(pc.is_inf(leaf)).as_py() or 0 for leaf in _leaves(array) if pa.types.is_floating(leaf.type))


def check_column(array: pa.Array, field: pa.Field, stream: str) -> None:
    """`SchemaError` unless the values, already of the column's type, may be stored (rule 3)."""
    must = f"stream {stream}: column {field.name!r} must be {field.type}"
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        told = first_words(error)
        raise SchemaError(f"{must}; {_NO_TEXT if 'UTF8' in told else told}") from None
    if not field.nullable and array.null_count:
        raise SchemaError(f"stream {stream}: column {field.name!r} must not be null; got {array.null_count} nulls")
    if any(_outside(leaf) for leaf in _leaves(array)):
        raise SchemaError(f"{must} in the years 1 to 9999; got a time outside; correct it, or leave such rows out")


def unfit_rows(batch: pa.RecordBatch, stream: str) -> dict[int, str]:
    """Rows of a batch in the stored schema that no stream may hold, by their number, and why."""
    found: dict[int, str] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        _seek_unfit(column, field, stream, 0, found)
    return found


def _seek_unfit(array: pa.Array, field: pa.Field, stream: str, first: int, found: dict[int, str]) -> None:
    """By halves: as a rule, none of a hundred thousand is unfit, or one."""
    try:
        check_column(array, field, stream)
    except SchemaError as error:
        if len(array) == 1:
            found.setdefault(first, str(error))
            return
        middle = len(array) // 2
        for begin, end in ((0, middle), (middle, len(array))):
            # Taken, not sliced: the values of a slice of lists are those of the whole array.
            _seek_unfit(array.take(pa.array(range(begin, end))), field, stream, first + begin, found)


def _outside(leaf: pa.Array) -> bool:
    """Rule 3."""
    if pa.types.is_date32(leaf.type):
        low, high, whole = DAYS_MIN, DAYS_MAX, pa.int32()
    elif pa.types.is_timestamp(leaf.type):
        low, high, whole = STIME_US_MIN, STIME_US_MAX, pa.int64()
    else:
        return False
    found = pc.min_max(leaf.view(whole))
    return bool(found["min"].is_valid and (found["min"].as_py() < low or found["max"].as_py() > high))


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of plain values that a nested array consists of, without those that no row shows."""
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_map(array.type):
        # Arrow has no kernel to flatten a map; as a list of structs it can be.
        kind = array.type
        yield from _leaves(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))).flatten())
    elif any(one(array.type) for one in _LISTS):
        yield from _leaves(array.flatten())
    else:
        yield array
