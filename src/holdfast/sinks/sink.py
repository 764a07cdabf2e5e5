"""The contract of a sink: a target outside that holds what a stream says, corrections applied in place.

Rules:
1. A sink keeps the reader's position inside its target and changes it in the same transaction as the rows. So whoever
   is killed, and whenever, `resume` says exactly what the target holds (T2).
2. `apply` is all or nothing, and nobody who looks at the target sees anything in between (T1).
3. One writer at a time: `resume` makes this sink the writer, and the one before it fails at its next `apply`.
4. What a target cannot do is refused by `resume`, with the column and the type; `apply` changes values in no way.
5. Errors say whether they may pass: `UsageError` will be the same at every attempt, all others are tried again, from
   `resume` on.
6. A target without transactions promises less and says so in `promise` (T3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import pyarrow as pa

from holdfast.model.tuples import TupleType

Promise = Literal["exactly once", "exactly once, stable rows only", "at least once"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    stream: str
    columns: pa.Schema
    """The user's own, without the header."""


class SinkSpec(NamedTuple):
    """A sink as an application declares it."""

    name: str
    stream: str
    sink: Sink
    start: str | datetime
    """Where a target begins that holds nothing yet."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one transaction does to the target, in this order."""

    undo: bool
    """Take back every tentative row that the target holds."""
    stable: pa.Table
    """Rows that stay: `tuple_id`, `stime`, then the user's columns."""
    tentative: pa.Table
    """Rows that an UNDO may take back."""
    rec_done: bool = False
    """Whether corrections were completed: nothing that was tentative before is wrong any more."""

    @property
    def rows(self) -> int:
        return int(self.stable.num_rows + self.tentative.num_rows)


def fold(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Changes:
    """The net effect of a piece of a reader's sequence: an UNDO voids whatever was tentative before it."""
    stable: list[pa.RecordBatch] = []
    tentative: list[pa.RecordBatch] = []
    undo = rec_done = False
    for batch in batches:
        kind = kind_of(batch)
        if kind is TupleType.INSERTION:
            stable.append(batch)
        elif kind is TupleType.TENTATIVE:
            tentative.append(batch)
        elif kind is TupleType.UNDO:
            undo = True
            tentative.clear()
        elif kind is TupleType.REC_DONE:
            rec_done = True
    return Changes(undo, _table(stable, schema), _table(tentative, schema), rec_done)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema).drop_columns("tuple_type")


def kind_of(batch: pa.RecordBatch) -> TupleType:
    """All tuples of a batch are of one kind."""
    return TupleType(batch.column(0)[0].as_py())


class Sink(ABC):
    """One target. What describes it is given when it is made; nothing is opened before `resume`."""

    #: What stands in names and messages.
    kind: str
    promise: Promise = "exactly once"
    #: Whether it takes tentative rows; without them it holds the stable prefix alone.
    tentative: bool = False
    #: How long to gather between two transactions, for targets where each costs something, such as a file.
    every_us: int = 0

    @property
    @abstractmethod
    def target(self) -> str:
        """What it writes to, for people; without secrets."""

    @abstractmethod
    def resume(self, source: Source) -> str | None:
        """Open the target, or open it anew; check or make its columns; become its writer. The position that it holds,
        or None if it holds nothing yet."""

    @abstractmethod
    def apply(self, changes: Changes, position: str) -> None:
        """Change rows and position in one transaction."""

    @abstractmethod
    def close(self) -> None:
        """Let go. What was not applied is forgotten; the sink may be resumed again."""
