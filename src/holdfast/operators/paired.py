"""A barrier over one stream of several inputs: that is how it runs on Spark, in one task (`holdfast.spark.keyed`).

    both = a.withColumn("side", lit("a")).unionByName(b.withColumn("side", lit("b")), allowMissingColumns=True)
    gate = barrier("gate", {"a": a_schema, "b": b_schema}, schema="x bigint, y bigint", store="log:/var/lib/app/gate")
    both.transform(gate)

A barrier has no state but the tuples that wait for their partners (004 §4). Those are what is saved here, with each
batch and before its results leave: a barrier is exact or it is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from holdfast.operators.barrier import Barrier
from holdfast.operators.udop import VectorOperator, decode, encode


class Paired(VectorOperator):
    """All inputs of a barrier; `side` is the column that names the input of a tuple."""

    def __init__(self, name: str, inputs: Mapping[str, pa.Schema], side: str) -> None:
        self._name, self._inputs, self._side = name, dict(inputs), side
        self._barrier = Barrier(name, list(inputs.values()))

    def process_batch(self, rows: pa.RecordBatch) -> pa.Table:
        sides = np.asarray(rows.column(self._side).to_pylist())
        parts = []
        for which, (side, schema) in enumerate(self._inputs.items()):
            mine = rows.filter(pa.array(sides == side))
            columns = [mine.column(field.name).cast(field.type) for field in schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            parts.append(self._barrier.feed(which, self._barrier.taken(which), batch))
        return pa.concat_tables(parts)

    def checkpoint(self) -> bytes:
        return encode([self._barrier.consumed, [_bytes(table) for table in self._barrier.in_flight()]])

    def restore(self, saved: bytes) -> None:
        consumed, waiting = decode(saved)
        self._barrier = Barrier(self._name, list(self._inputs.values()), resume_at=consumed)
        for which, raw in enumerate(waiting):
            for batch in pa.ipc.open_stream(pa.py_buffer(raw)).read_all().to_batches():
                self._barrier.feed(which, self._barrier.taken(which), batch)


def paired(name: str, inputs: Mapping[str, pa.Schema], *, side: str = "side") -> Callable[[], Paired]:
    """A prototype for `udop` without a key, or for `Instances`."""
    return functools.partial(Paired, name, inputs, side)


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    raw: bytes = sink.getvalue().to_pybytes()
    return raw
