"""A join with one window per value of the join column, as an operator with an instance per key: that is how it runs on
Spark, where each key's tuples of both inputs meet in one task (`holdfast.spark.keyed`).

    both = a.withColumn("side", lit("left")).unionByName(b.withColumn("side", lit("right")), allowMissingColumns=True)
    pairs = udop("pairs", keyed_join(left, right, on="k"), key="k", schema="k bigint, a string, b string")
    both.transform(pairs)

Tuples of a key are taken in the order in which the task has them: by `stime` and `tuple_id`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from holdfast.operators.udop import VectorOperator
from holdfast.operators.window_join import Input, WindowJoin


class KeyedJoin(VectorOperator):
    """The two windows of one key."""

    def __init__(self, left: Input, right: Input, on: str, side: str) -> None:
        self._schemas, self._side = (left.schema, right.schema), side
        self._join = WindowJoin("join", left, right, on=on)

    def process_batch(self, rows: pa.RecordBatch) -> pa.Table:
        is_left = np.asarray(rows.column(self._side).to_pylist()) == "left"
        left, right = (
            _columns(rows.filter(pa.array(mask)), schema)
            for mask, schema in zip((is_left, ~is_left), self._schemas, strict=True)
        )
        return self._join.feed(left, right, is_left)

    def checkpoint(self) -> bytes:
        return self._join.snapshot()

    def restore(self, saved: bytes) -> None:
        self._join.load(saved)


def keyed_join(left: Input, right: Input, *, on: str, side: str = "side") -> Callable[[], KeyedJoin]:
    """A prototype for `udop` or `Instances`; `side` is the column that says "left" or "right"."""
    return functools.partial(KeyedJoin, left, right, on, side)


def _columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([rows.column(f.name).cast(f.type) for f in schema], schema=schema)
