"""From record batches to events: split by bucket and partition, encode.

Rules:
1. An event holds tuples of one bucket and one partition, in the order in which they came.
2. Without a key, a bucket lives in partition `bucket mod n`; with one, a tuple follows the CRC32C of its key's text.
   Both depend on the data alone, so replicas lay out their streams alike (D9).
3. Events are cut at a fixed number of tuples, for the same reason. Cuts are copies: a slice of an Arrow array may carry
   its neighbours' bytes along.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.schema import STIME_TYPE
from holdfast.stream.definition import Definition
from holdfast.stream.frame import crc32c
from holdfast.stream.writer import Event

#: Tuples in one event at most: bodies stay far below the frame's limit and readers' memory stays flat.
EVENT_ROWS_MAX = 65_536


def pack(batch: pa.RecordBatch, definition: Definition) -> list[Event]:
    """Events of a batch in the stored schema, ordered by bucket, then partition."""
    rows = batch.num_rows
    if rows == 0:
        return []
    stimes = np.asarray(batch.column(0).cast(pa.int64()))
    buckets = stimes // definition.bucket_us
    first = int(buckets[0])
    if definition.partition_by is None:
        if rows == 1 or bool((buckets == first).all()):
            return _events(batch, stimes, first, first % definition.partitions)
        partitions = buckets % definition.partitions
    else:
        partitions = key_partitions(batch.column(definition.partition_by), definition.partitions)
    events: list[Event] = []
    order = np.lexsort((np.arange(rows), partitions, buckets))
    cuts = np.flatnonzero((np.diff(buckets[order]) != 0) | (np.diff(partitions[order]) != 0)) + 1
    for run in np.split(order, cuts):
        lo = int(run[0])
        events += _events(batch.take(pa.array(run)), stimes[run], int(buckets[lo]), int(partitions[lo]))
    return events


def stime_array(stimes: npt.NDArray[np.int64]) -> pa.Array:
    """Microseconds as Arrow timestamps, without the copy and the ten microseconds that `pa.array` takes for it."""
    return pa.Array.from_buffers(STIME_TYPE, len(stimes), [None, pa.py_buffer(stimes)])


def pack_arrived(batch: pa.RecordBatch, stime_us: int, definition: Definition, stored: pa.Schema) -> list[Event]:
    """Events of user columns that all arrived at one moment: like `pack`, without working out the buckets."""
    rows = batch.num_rows
    stimes = pa.Array.from_buffers(
        STIME_TYPE, rows, [None, pa.py_buffer(stime_us.to_bytes(8, "little", signed=True) * rows)]
    )
    whole = pa.RecordBatch.from_arrays([stimes, *batch.columns], schema=stored)
    if definition.partition_by is not None or rows > EVENT_ROWS_MAX:
        return pack(whole, definition)
    bucket = stime_us // definition.bucket_us
    return [Event(bucket, bucket % definition.partitions, rows, stime_us, stime_us, _encode(whole))]


def _events(batch: pa.RecordBatch, stimes: npt.NDArray[np.int64], bucket: int, partition: int) -> list[Event]:
    events = []
    for at in range(0, batch.num_rows, EVENT_ROWS_MAX):
        part, times = batch, stimes
        if batch.num_rows > EVENT_ROWS_MAX:
            times = stimes[at : at + EVENT_ROWS_MAX]
            part = batch.take(pa.array(np.arange(at, at + len(times))))
        events.append(Event(bucket, partition, part.num_rows, int(times.min()), int(times.max()), _encode(part)))
    return events


def _encode(batch: pa.RecordBatch) -> bytes:
    # An Arrow buffer, not a copy of it: whatever takes bytes on the way to the disk takes a buffer as well.
    return batch.serialize()  # type: ignore[no-any-return]


def key_partitions(keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """The partition of each key; equal keys, equal partitions, in every process and version."""
    coded = keys.dictionary_encode(null_encoding="encode")
    of_key = [crc32c(repr(value).encode()) % partitions for value in coded.dictionary.to_pylist()]
    found: npt.NDArray[np.int64] = np.asarray(of_key, np.int64)[np.asarray(coded.indices)]
    return found
