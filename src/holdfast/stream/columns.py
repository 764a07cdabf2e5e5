"""Columns that were added to a stream while it was there.

Rules:
1. They come behind those that it had, and may be null. What was there stays as it is: an event from before holds the
   first columns only, and whoever decodes it finds nulls in the others.
2. Who has opened the stream before goes on with the columns that it knew: Arrow reads the first ones of an event that
   has more. So nobody has to be told. Whoever must have every value (a sink) says so, and is refused the first event
   that has more (`ColumnsAdded`): it opens the stream again.
3. Whether bodies can be understood (`wire.shape_of`) is said of the columns that the stream was created with.
"""

from __future__ import annotations

import pyarrow as pa

#: On the field of a column that was added: events without it are no damage.
ADDED = {b"holdfast": b"added"}
#: Fits behind the columns of any event that has more: of whatever type the next one is, it takes no values.
_ONE_MORE = pa.field("", pa.null())


def has_more(message: pa.Message, stored: pa.Schema) -> bool:
    """Whether an event has columns behind these."""
    try:
        pa.ipc.read_record_batch(message, stored.append(_ONE_MORE))
    except pa.ArrowInvalid:
        return False
    return True


def read_batch(message: pa.Message, stored: pa.Schema) -> pa.RecordBatch:
    """The tuples of one event as the stream's columns (rule 1)."""
    try:
        return pa.ipc.read_record_batch(message, stored)
    except pa.ArrowInvalid:
        # One with fewer columns ends too early for every schema but those that it can fill; the widest is its own.
        for width in range(len(stored) - 1, 1, -1):
            if stored.field(width).metadata != ADDED:
                raise
            try:
                batch = pa.ipc.read_record_batch(message, pa.schema(list(stored)[:width]))
            except pa.ArrowInvalid:
                continue
            return widened(batch, stored)
        raise


def widened(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """A batch that has the first columns, or all of them, with nulls in those that it lacks."""
    if batch.num_columns == len(stored):
        return batch
    nulls = [pa.nulls(batch.num_rows, field.type) for field in list(stored)[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=stored)
