"""A join with one window per value of the join column, as an operator with an instance per key: that is how it runs on
Spark, where each key's tuples of both inputs meet in one task (`holdfast.spark.keyed`).

    both = a.withColumn("side", lit("left")).unionByName(b.withColumn("side", lit("right")), allowMissingColumns=True)
    pairs = udop("pairs", keyed_join(left, right, on="k"), key="k", schema="k bigint, a string, b string",
                 checkpoint=groups(512, every="1s"), store="log:/var/lib/app/pairs")
    both.transform(pairs)

Tuples of a key are taken in the order in which the task has them: by `stime` and `tuple_id`. A pair has the `stime` of
the later of its tuples, if `schema` names that column. With `groups`, the groups of its windows that changed are saved
with a batch; with `every`, its windows whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.derive import StateKind
from holdfast.checkpoint.window_parts import WindowParts
from holdfast.operators.state_parts import Changed, Parted
from holdfast.operators.udop import STIME, VectorOperator, columns_text
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
        first = self._join.position
        at, pairs = self._join.feed_at(left, right, is_left)
        if STIME in rows.schema.names and STIME not in pairs.column_names:
            pairs = pairs.append_column(STIME, rows.column(STIME).take(pa.array(at - first)))
        return pairs

    def checkpoint(self) -> bytes:
        return self._join.snapshot()

    def restore(self, saved: bytes) -> None:
        self._join.load(saved)


class GroupedJoin(KeyedJoin, Parted):
    """The same, saved in groups of `size` tuples."""

    def __init__(self, left: Input, right: Input, on: str, side: str, size: int) -> None:
        super().__init__(left, right, on, side)
        self._parts = WindowParts((left.window, right.window), size)

    def changes(self) -> Changed:
        join = self._join
        head, dirty, unused = self._parts.plan(join.held(), join.position)
        parts: dict[bytes, bytes | None] = dict.fromkeys(unused)
        encode = partial(self._parts.value, position=join.position)
        for which in (0, 1):
            mine = [part for part in dirty if part.side == which]
            rows = join.rows_of(which, [part.dirty for part in mine])
            for i, part in enumerate(mine):
                parts[part.name] = b"".join(rows.encoded(i, encode))
        return Changed(head, parts)

    def restore_parts(self, head: bytes, parts: dict[bytes, bytes], lost: list[bytes]) -> None:
        self._join.load_windows(*self._parts.restore(head, parts, self._join.saved_schemas))


@dataclass(frozen=True)
class JoinPrototype:
    """Makes the instances of a join. `holdfast.spark.keyed` tells it the policy's groups."""

    left: Input
    right: Input
    on: str
    side: str
    size: int | None = None
    #: What `holdfast explain` calls it, and what it has to lose.
    kind = "join"
    state_kind = StateKind.SLIDING

    def __call__(self) -> KeyedJoin:
        if self.size is None:
            return KeyedJoin(self.left, self.right, self.on, self.side)
        return GroupedJoin(self.left, self.right, self.on, self.side, self.size)

    @property
    def keeps_time(self) -> bool:
        """Whether results have the time of the tuple that made them, and not one that an input brings as a column."""
        return STIME not in (*self.left.schema.names, *self.right.schema.names)

    @property
    def made_of(self) -> list[str]:
        """What its state depends on (`holdfast.spark.keyed_identity`)."""
        return [f"a join on {self.on}, told apart by {self.side}",
                *(f"{which}: the last {i.window} of ({columns_text(i.schema)}){f' for each {i.per}' if i.per else ''}"
                  for which, i in (("left", self.left), ("right", self.right)))]  # fmt: skip

    def in_groups(self, size: int) -> JoinPrototype:
        """Of joins that are saved in groups of so many tuples."""
        return replace(self, size=size)


def keyed_join(left: Input, right: Input, *, on: str, side: str = "side") -> JoinPrototype:
    """A prototype for `udop` or `Instances`; `side` is the column that says "left" or "right"."""
    return JoinPrototype(left, right, on, side)


def _columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([rows.column(f.name).cast(f.type) for f in schema], schema=schema)
