"""Filing results under their buckets: what a query's output needs before it can be a stream.

A query hands over its results in whatever portions it was run in. Two replicas must write the same stream all the
same, so:

1. Tuples wait until the boundary has closed their bucket. Only whole buckets are filed.
2. In a bucket, tuples are ordered by stime and then by their columns, from left to right, nulls last. Nothing about
   machines, partitions or portions enters into it (D9).
3. What waits is kept with the stream (a PENDING frame in the same unit), so a crash between two portions loses nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import LateTuple
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, instant_text
from holdfast.stream.columns import widened
from holdfast.stream.definition import Definition
from holdfast.stream.pack import pack
from holdfast.stream.writer import Event


class Filed(NamedTuple):
    events: list[Event]
    boundary_us: int
    """What the stream may promise: the end of the last closed bucket, since tuples of the next one still wait."""
    pending_rows: int
    pending: bytes


def file_results(
    results: list[pa.RecordBatch], pending: bytes, definition: Definition, before_us: int, boundary_us: int
) -> Filed:
    """Events of the buckets that `boundary_us` closes, and what has to wait.

    `before_us` is the stream's boundary so far: no result may lie below it.
    """
    if boundary_us >= END_OF_TIME_US:
        until = END_OF_TIME_US
    else:
        until = closed_until(boundary_us, definition.bucket_us) if boundary_us > BEGINNING_US else BEGINNING_US
    until = max(until, before_us)
    stored = definition.stored
    waiting = [widened(batch, stored) for batch in pa.ipc.open_stream(pa.py_buffer(pending))] if pending else []
    table = pa.Table.from_batches([*waiting, *results], schema=stored).combine_chunks()
    if not table.num_rows:
        return Filed([], until, 0, b"")
    stimes = np.asarray(table.column(0).cast(pa.int64()))
    lowest = int(stimes.min())
    if lowest < before_us:
        raise LateTuple(
            f"stream {definition.name}: a result at {instant_text(lowest)} comes after its boundary "
            f"{instant_text(before_us)}; a result must not be dated before the rows it comes from; name the column "
            f"that gives stime, keep a computed time in another column, or let the boundary follow the watermark"
        )
    ready = table.filter(pa.array(stimes < until)) if until <= int(stimes.max()) else table
    events = pack(in_order(ready), definition) if ready.num_rows else []
    if ready.num_rows == table.num_rows:
        return Filed(events, until, 0, b"")
    left = table.filter(pa.array(stimes >= until))
    return Filed(events, until, left.num_rows, _encode(left))


def in_order(table: pa.Table) -> pa.RecordBatch:
    """Rule 2, as one record batch."""
    keys: list[pa.Array] = []
    for column in table.columns:
        keys += _sortable(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    order = pc.sort_indices(
        pa.table(keys, names=[str(i) for i in range(len(keys))]),
        sort_keys=[(str(i), "ascending") for i in range(len(keys))],
    )
    batches = table.take(order).combine_chunks().to_batches()
    assert len(batches) == 1
    return batches[0]


def _sortable(column: pa.Array) -> list[pa.Array]:
    """Flat columns that order like this one. Lists and maps order by their text, which is slow but total."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_struct(column.type):
        return [key for child in column.flatten() for key in _sortable(child)]
    if pa.types.is_list(column.type) or pa.types.is_map(column.type):
        return [pa.array([None if v is None else repr(v) for v in column.to_pylist()], pa.string())]
    return [column]


def _encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))
