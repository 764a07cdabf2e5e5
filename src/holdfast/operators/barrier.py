"""Barrier: emits the k-th tuples of all inputs together, as soon as each input has one (004 §4).

Rules:
1. The k-th result is made of the k-th tuple of every input. A lost tuple would shift every later pairing, so in-flight
   tuples are kept upstream (upstream backup is enforced, `derive`), and no state of the barrier is saved.
2. `consumed` tells how many tuples of every input are paired for good: upstream may let go of those and of no others.
3. After a failure the barrier resumes at that number and is fed again from the next tuple of each input. Tuples that
   came before are not taken twice: each carries its number.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.policy import Upstream
from holdfast.model.errors import UsageError


class Barrier:
    """Pairs the tuples of `inputs`. Columns of the result are those of all inputs, in their order."""

    def __init__(
        self, name: str, inputs: Sequence[pa.Schema], *, checkpoint: Upstream | None = None, resume_at: int = 0
    ) -> None:
        names = [column for schema in inputs for column in schema.names]
        if len(inputs) < 2 or len(set(names)) != len(names):
            raise UsageError(f"{name}: a barrier needs two inputs or more that share no column; got {names}")
        self.name, self.schema = name, pa.schema([f for schema in inputs for f in schema])
        self.protection: Protection = derive(name, "barrier", StateKind.IN_FLIGHT, checkpoint)
        self._waiting: list[pa.Table] = [schema.empty_table() for schema in inputs]
        self._next = [resume_at] * len(inputs)
        self.consumed = resume_at

    def taken(self, which: int) -> int:
        """The number of the tuple with which an input goes on."""
        return self._next[which]

    def in_flight(self) -> list[pa.Table]:
        """The tuples of each input that wait for their partners: number `consumed` and following."""
        return list(self._waiting)

    def feed(self, which: int, first: int, rows: pa.RecordBatch) -> pa.Table:
        """Take tuples number `first` and following of one input; the results that they complete."""
        skip = self._next[which] - first
        if skip < 0:
            raise UsageError(
                f"{self.name}: input {which} must go on with tuple {self._next[which]}; got {first}; replay the tuples "
                f"between from upstream"
            )
        new = rows.slice(min(skip, rows.num_rows))
        self._next[which] += new.num_rows
        self._waiting[which] = pa.concat_tables([self._waiting[which], pa.Table.from_batches([new])])
        ready = min(table.num_rows for table in self._waiting)
        columns = [column for table in self._waiting for column in table.slice(0, ready).columns]
        self._waiting = [table.slice(ready) for table in self._waiting]
        self.consumed += ready
        return pa.Table.from_arrays(columns, schema=self.schema)
