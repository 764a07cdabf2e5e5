"""A barrier over one stream of several inputs: that is how it runs on Spark, in one task (`holdfast.spark.keyed`).

    both = a.withColumn("side", lit("a")).unionByName(b.withColumn("side", lit("b")), allowMissingColumns=True)
    gate = barrier("gate", {"a": a_schema, "b": b_schema}, schema="x bigint, y bigint", store="log:/var/lib/app/gate")
    both.transform(gate)

A barrier has no state but the tuples that wait for their partners (004 §4). Those are what is saved here, with each
batch and before its results leave: a barrier is exact or it is wrong. Rules:

1. The tuples of an input that come with one batch and stay in flight are one part of the state. They are saved once,
   and the part is removed when all of them are paired.
2. The head says how many tuples are paired for good, and for each input which numbers stand in which part.
3. A result has the `stime` of the last of its tuples, if `schema` names that column. That one came with the batch, so
   no time is kept with the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.checkpoint.derive import StateKind
from holdfast.model.errors import CorruptLog
from holdfast.operators.barrier import Barrier
from holdfast.operators.state_parts import Changed, Parted
from holdfast.operators.udop import STIME, VectorOperator, columns_text, decode, encode


class _Arrived(msgspec.Struct, array_like=True, frozen=True):
    """Tuples `first` … `end`-1 of an input, in the part of that number."""

    part: int
    first: int
    end: int


class _Head(msgspec.Struct, array_like=True, frozen=True):
    consumed: int
    arrived: list[list[_Arrived]]
    """Of each input, in order."""


_decode = msgspec.msgpack.Decoder(_Head).decode


class Paired(VectorOperator, Parted):
    """All inputs of a barrier; `side` is the column that names the input of a tuple."""

    def __init__(self, name: str, inputs: Mapping[str, pa.Schema], side: str) -> None:
        self._name, self._inputs, self._side = name, dict(inputs), side
        self._barrier = Barrier(name, list(inputs.values()))
        self._arrived: list[list[_Arrived]] = [[] for _ in inputs]
        """What is saved."""

    def process_batch(self, rows: pa.RecordBatch) -> pa.Table:
        sides = np.asarray(rows.column(self._side).to_pylist())
        parts, consumed = [], self._barrier.consumed
        came = [(self._barrier.taken(which), sides == side) for which, side in enumerate(self._inputs)]
        for which, (side, schema) in enumerate(self._inputs.items()):
            mine = rows.filter(pa.array(sides == side))
            columns = [mine.column(field.name).cast(field.type) for field in schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            parts.append(self._barrier.feed(which, self._barrier.taken(which), batch))
        results = pa.concat_tables(parts)
        if STIME in rows.schema.names and STIME not in results.column_names:
            results = results.append_column(STIME, _last(rows.column(STIME), came, consumed, results.num_rows))
        return results

    def changes(self) -> Changed:
        consumed = self._barrier.consumed
        parts: dict[bytes, bytes | None] = {}
        for which, arrived in enumerate(self._arrived):
            parts |= dict.fromkeys(_part(a.part) for a in arrived if a.end <= consumed)
            self._arrived[which] = [a for a in arrived if a.end > consumed]
        taken = {a.part for arrived in self._arrived for a in arrived}
        free = (number for number in itertools.count() if number not in taken)
        for which, waiting in enumerate(self._barrier.in_flight()):
            arrived = self._arrived[which]
            first, end = max(consumed, arrived[-1].end if arrived else 0), self._barrier.taken(which)
            if first < end:
                new = _Arrived(next(free), first, end)
                parts[_part(new.part)] = _bytes(waiting.slice(first - consumed))
                arrived.append(new)
        return Changed(encode(_Head(consumed, self._arrived)), parts)

    def restore_parts(self, head: bytes, parts: dict[bytes, bytes], lost: list[bytes]) -> None:
        assert not lost, "a barrier is exact"
        try:
            known = _decode(head)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"{self._name}: its state cannot be read ({error}); restore an earlier one") from error
        self._begin(known.consumed)
        self._arrived = known.arrived
        for which, arrived in enumerate(known.arrived):
            for a in arrived:
                for batch in _table(parts[_part(a.part)]).slice(max(0, known.consumed - a.first)).to_batches():
                    self._barrier.feed(which, self._barrier.taken(which), batch)

    def checkpoint(self) -> bytes:
        return encode([self._barrier.consumed, [_bytes(table) for table in self._barrier.in_flight()]])

    def restore(self, saved: bytes) -> None:
        consumed, waiting = decode(saved)
        self._begin(consumed)
        for which, raw in enumerate(waiting):
            for batch in _table(raw).to_batches():
                self._barrier.feed(which, self._barrier.taken(which), batch)

    def _begin(self, consumed: int) -> None:
        self._barrier = Barrier(self._name, list(self._inputs.values()), resume_at=consumed)
        self._arrived = [[] for _ in self._inputs]


@dataclass(frozen=True)
class PairedPrototype:
    """Makes the one instance of a barrier."""

    name: str
    inputs: Mapping[str, pa.Schema]
    side: str
    #: What `holdfast explain` calls it, and what it has to lose.
    kind = "barrier"
    state_kind = StateKind.IN_FLIGHT

    @property
    def keeps_time(self) -> bool:
        """Whether results have the time of the tuple that made them, and not one that an input brings as a column."""
        return all(STIME not in schema.names for schema in self.inputs.values())

    @property
    def made_of(self) -> list[str]:
        """What its state depends on (`holdfast.spark.keyed_identity`)."""
        inputs = (f"input {side}: ({columns_text(schema)})" for side, schema in self.inputs.items())
        return [f"a barrier, told apart by {self.side}", *inputs]

    def __call__(self) -> Paired:
        return Paired(self.name, self.inputs, self.side)


def paired(name: str, inputs: Mapping[str, pa.Schema], *, side: str = "side") -> PairedPrototype:
    """A prototype for `udop` without a key, or for `Instances`."""
    return PairedPrototype(name, dict(inputs), side)


def _last(stime: pa.Array, came: list[tuple[int, npt.NDArray[np.bool_]]], consumed: int, count: int) -> pa.Array:
    """Rule 3, for results number `consumed` and following: of each input, what came begins with that number."""
    times = np.asarray(stime.cast(pa.int64()))
    latest = np.full(count, np.iinfo(np.int64).min)
    for first, mine in came:
        paired = times[mine][: max(0, consumed + count - first)]
        np.maximum.at(latest, first - consumed + np.arange(len(paired)), paired)
    return pa.array(latest).cast(stime.type)


def _part(number: int) -> bytes:
    return b"%d" % number


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def _table(raw: bytes) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(raw)).read_all()
    table.validate(full=True)  # It may have come from another owner's host (X3).
    return table
