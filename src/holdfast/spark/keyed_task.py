"""What a user-defined operator does in a Python worker: one partition of one batch.

Rules:
1. Tuples are taken in the order of `stime` and `tuple_id`. A task starts from the state at exactly the beginning of its
   batch, or says that it cannot. State at the end of each batch goes to scratch on the machine, unsynced: it is for the
   next batch, whichever Python worker runs it. Scratch always has all keys as of its mark: where it is behind, because
   the partition ran elsewhere or scratch was lost, all states come from the store first, in bulk.
2. Of each key two versions stay, in two slots used in turn, so that a batch that is executed again finds the state it
   began with. A version is the number of the batch that it is the beginning of. Of a state in parts, a batch saves
   those that changed.
3. By the policy, states also go to the store that survives the machine (`holdfast.spark.save_policy`). *Exact* saves
   every batch before its results leave the task and refuses to go on from an older state; *best effort* saves when due
   and goes on from what there is, saying so. Whoever needs the store to begin a batch waits for it
   (`holdfast.spark.durable_state`).
4. What comes from scratch or store is bytes with a checksum, decoded by the operator itself; nothing is unpickled (X3).
5. Where the states at the beginning of a batch come from, after a loss, in a fork, after a movement, and with another
   number of partitions than before, is in `holdfast.spark.keyed_state`.
6. Keys without tuples are forgotten after the operator's time to live, here and in the store, or, with `forget=False`,
   leave scratch for the store (`holdfast.spark.expiry`). A fork keeps what it has: its state is nowhere else.
7. State belongs to one query, in scratch and in the store. A query over past data has no state to keep.
8. A query that nobody will go on with leaves nothing behind, in scratch or store (`forget`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.checkpoint.derive import Protection
from holdfast.checkpoint.slots import Away, Names, Slots, part_key
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.clock import monotonic_us, now_us
from holdfast.model.errors import PeerError
from holdfast.operators.udop import Instances, directory_of, settled, unsaved_since
from holdfast.spark.durable_state import Far, far_of
from holdfast.spark.expiry import Passing
from holdfast.spark.keyed_identity import made_by
from holdfast.spark.keyed_state import KeyedStates
from holdfast.spark.save_figures import forget
from holdfast.spark.save_policy import KEYS, Left, Unsaved, events_per_key, keep, wanted
from holdfast.spark.scratch import ScratchLost
from holdfast.stream.frame import crc32c

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from holdfast.spark.keyed import ForkOf, Keyed
    from holdfast.spark.save_figures import Saving, Savings

#: How often a batch is begun with scratch that turns out to be damaged: once with a fork's own, once with its parent's.
_ATTEMPTS = 3


class Task:
    """Runs in a Python worker, once per partition and batch. `key_type` is Spark's short name of it; `figures` is told
    what its policy has come to (`holdfast.spark.save_figures`)."""

    def __init__(
        self, plan: Keyed, schema: pa.Schema, partitions: int = 1, fork: ForkOf | None = None, arrived: str = "",
        key_type: str = "", figures: Accumulator[Savings] | None = None, *, in_node: bool = False,
    ) -> None:  # fmt: skip
        self._figures = figures
        self._plan, self._schema, self.partitions, self._fork = plan, schema, partitions, fork
        self._states = KeyedStates(plan, partitions, fork, arrived, key_type, made_by(plan, key_type, schema), in_node)
        self._exact = plan.exact

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def protection(self) -> Protection:
        return self._plan.protection

    @property
    def computes(self) -> tuple[Any, ...]:
        """What of it counts as its definition (`fingerprint`): not where its state goes, and how often."""
        plan = self._plan
        lasts = () if plan.time_to_live_us is None and plan.forget else (plan.time_to_live_us, plan.forget)
        return (self.name, plan.prototype, plan.key, plan.time, self._schema, *lasts)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        yield from self.run(list(batches), query, batch, context.partitionId())

    def run(
        self, batches: list[pa.RecordBatch], query: str | None, batch: int, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """The results of one batch of one partition."""
        if query is None:
            yield from self._run(batches, 0, Slots(MemoryStore()), None, Path())[0]
            return
        owner = self._fork.query_id if self._fork is not None else query
        yield from self._tried(batches, query, owner, batch, partition)

    def _tried(self, *what: Any) -> list[pa.RecordBatch]:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(ScratchLost):
                return self._attempt(*what)
        return self._attempt(*what)

    def _attempt(
        self, batches: list[pa.RecordBatch], query: str, owner: str, batch: int, partition: int
    ) -> list[pa.RecordBatch]:
        name = self._states.own_name(partition)
        with self._states.near(self._states.own(query), name) as near, far_of(self._plan, owner, name) as far:
            near.beyond = None if far is None else far.slots
            asked_us = monotonic_us()
            came = self._states.begin(owner, batch, partition, near, far)
            restore_s = (monotonic_us() - asked_us) / 1e6 if came else None
            told = self._states.own(query) / self._plan.name / f"{name}.saved"
            others = self._states.forget_others(owner, batch, partition, near, far)
            results, saving = self._run(batches, batch, near, far, told, others)
        if self._figures is not None and saving is not None:
            told_of = query, self._plan.name, partition
            self._figures.add({told_of: saving._replace(partitions=self.partitions, restore_s=restore_s)})
        return results

    def _run(
        self, batches: list[pa.RecordBatch], batch: int, near: Slots, far: Far | None, told: Path,
        also: Mapping[bytes, bytes] | None = None,
    ) -> tuple[list[pa.RecordBatch], Saving | None]:  # fmt: skip
        plan, begun_us = self._plan, now_us()

        new: set[bytes] = set()

        def load(key: bytes) -> bytes | None:
            found = near.read(key, batch)
            if found is None:
                new.add(key)
            return found

        def load_parts(key: bytes, names: list[bytes]) -> dict[bytes, bytes]:
            found = near.read_parts([part_key(key, name) for name in names], batch)
            return {name: found[part] for name in names if (part := part_key(key, name)) in found}

        # Not in a fork: it would wait for the store that its parent holds.
        noted = far.slots if far is not None and self._exact and self._fork is None else None
        passing = Passing(plan.prototype, plan.time is not None, batch, near, noted, plan.time_to_live_us)
        instances = Instances(
            plan.name, plan.prototype, plan.key, self._schema, load=load, time=plan.time, forget=plan.forget,
            now_us=passing.begin_us, load_parts=load_parts, exact=self._exact, time_to_live_us=plan.time_to_live_us,
        )  # fmt: skip
        results = [instances.feed(rows) for rows in in_order(batches, getattr(plan.prototype, "side", None))]
        due, over = passing.look(instances)
        gone, leaving = (over, []) if plan.forget else ([], over)
        keys = _keys_in(near, batch) + len(new) - len(gone)
        marks = {**self._states.marks(batch + 1, keys), **passing.marks(instances.now_us), **(also or {})}
        left = self._left(instances, gone, batch, near, marks, begun_us)
        if far is not None and self._fork is None:
            left = self._bring_back(self._send_away(leaving, left, batch, near), batch, near, far)
            if self._exact:
                self._states.make_whole(batch, near, far)
        saving = keep(plan, left, batch, near, far if self._fork is None else None, told)
        results += due
        return [rows for table in results for rows in table.to_batches()], saving

    def _send_away(self, leaving: list[bytes], left: Left, batch: int, near: Slots) -> Left:
        """Of the quiet keys, those whose state the store has leave scratch; the others are due, and leave later."""
        away: dict[bytes, Away] = {}
        parts, states, due, unsaved = [], dict(left.states), list(left.due.states), left.unsaved
        pending = frozenset() if self._exact else frozenset(near.pending.states)
        for key in leaving:
            saved = None if key in states or key in pending else near.read(key, batch)
            if saved is None:
                continue
            if unsaved is not None and unsaved_since(saved) is not None:
                states[key], unsaved = settled(saved), unsaved.and_of(saved, -1)
                due.append(key)
            else:
                away[key] = Away(batch, crc32c(saved))
                parts += [part_key(key, name) for name in directory_of(saved)]
        due_names = Names(due, left.due.parts)
        return replace(left, states=states, due=due_names, unsaved=unsaved, away=away, away_parts=parts)

    def _bring_back(self, left: Left, batch: int, near: Slots, far: Far) -> Left:
        """What the next checkpoint waits for, and some of what a lazy restore has left in the store."""
        lost: list[bytes] = []
        with contextlib.suppress(PeerError), far.once():
            # What is not in the store either is of a run that was given up.
            lost += [key for key in wanted(near) if near.read(key, batch) is None and key not in left.states]
        marks = self._states.bring_more(batch, near, far)
        return replace(left, states={**left.states, **dict.fromkeys(lost)}, scratch_marks=marks)

    def pack(self, query: str, batch: int, to: Path) -> bool:
        """Copy the states at the beginning of that batch, of all partitions; False if they are not at hand."""
        return self._states.pack(query, batch, to)

    def forget(self, query: str) -> None:
        """Rule 8. A store whose server is away is a `PeerError`: it keeps what it has."""
        forget(query)
        self._states.forget(query)

    def _left(
        self, instances: Instances, gone: list[bytes], batch: int, near: Slots, marks: Mapping[bytes, bytes],
        begun_us: int,
    ) -> Left:  # fmt: skip
        """The states to save, and the parts of them that changed; None where there is nothing any more."""
        states: dict[bytes, bytes | None] = {}
        parts: dict[bytes, bytes | None] = {}
        forgotten, touched = set(gone), dict(instances.touched)
        events = events_per_key(self._plan.checkpoint)
        instances.settle(instances.due(events or 0))
        before = Unsaved.at(near, batch)
        unsaved = before if events is not None or before.keys else None
        due = []
        for key in touched:
            if key not in forgotten:
                states[key], changed = instances.changes(key)
                parts |= {part_key(key, name): value for name, value in changed.items()}
                if key not in instances.touched:
                    due.append(key)
            if unsaved is not None:
                unsaved = unsaved.and_of(near.read(key, batch), -1).and_of(states.get(key))
        for key in gone:
            saved = near.read(key, batch)
            states[key] = None
            parts |= dict.fromkeys(part_key(key, name) for name in (directory_of(saved) if saved else {}))
            if unsaved is not None and key not in touched:
                unsaved = unsaved.and_of(saved, -1)
            if saved is not None and unsaved_since(saved) != 0:
                due.append(key)
        if events is None and before.keys:  # The policy was another one: what was not due goes now.
            for some in near.here(batch):
                states |= {key: settled(state) for key, state in some.items()
                           if key not in states and unsaved_since(state) is not None}  # fmt: skip
            due, unsaved = list(states), Unsaved()
        return Left(states, parts, marks, begun_us, Names(due, list(parts)), unsaved)


def in_order(batches: list[pa.RecordBatch], side: str | None = None) -> list[pa.RecordBatch]:
    """The tuples of a task in the order of their streams, however the shuffle delivered them (D9).

    Where the header leaves a tie (tuples of two streams without the column `stream`), the column `side` decides, then
    all other columns: tuples that tie in everything are the same.
    """
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return []
    table = pa.Table.from_batches(rows)
    header = [name for name in ("stime", "stream", "tuple_id") if name in table.column_names]
    if header:
        table = table.sort_by([(name, "ascending") for name in header])
        if _has_ties(table.select(header)):
            rest = [name for name in table.column_names if name not in header]
            table = table.take(_sorted_by(table, [*header, *sorted(rest, key=lambda name: name != side)]))
    return table.combine_chunks().to_batches()  # type: ignore[no-any-return]


def _has_ties(header: pa.Table) -> bool:
    same = None
    for column in header.columns:
        column = column.combine_chunks()
        equal = pc.fill_null(pc.equal(column.slice(1), column.slice(0, len(column) - 1)), True)
        same = equal if same is None else pc.and_(same, equal)
    return bool(pc.any(same).as_py())


def _sorted_by(table: pa.Table, names: list[str]) -> pa.Array:
    keys = {}
    for i, name in enumerate(names):
        column = table.column(name)
        if pa.types.is_nested(column.type):  # Arrow sorts by plain values only.
            column = pa.array([repr(value) for value in column.to_pylist()], pa.string())
        keys[str(i)] = column
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])


def _keys_in(near: Slots, batch: int) -> int:
    known = near.mark(KEYS, batch)
    return int(known) if known is not None else len(near.states(batch))
