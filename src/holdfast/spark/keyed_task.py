"""What a user-defined operator does in a Python worker: one partition of one batch.

Rules:
1. Tuples are taken in the order of `stime` and `tuple_id`. A task starts from the state at exactly the beginning of its
   batch, or says that it cannot. State at the end of each batch goes to scratch on the machine, unsynced: it is for the
   next batch, whichever Python worker runs it. Scratch always has all keys as of its mark: where it is behind, because
   the partition ran elsewhere or scratch was lost, all states come from the store first, in bulk.
2. Of each key two versions stay, in two slots used in turn, so that a batch that is executed again finds the state it
   began with. A version is the number of the batch that it is the beginning of. Of a state in parts, a batch saves
   those that changed.
3. By the policy, states also go to the store that survives the machine (`holdfast.spark.keeping`). *Exact* saves every
   batch before its results leave the task and refuses to go on from an older state; *best effort* saves when due and
   goes on from what there is, saying so. Whoever needs the store to begin a batch waits for it (`holdfast.spark.far`).
4. What comes from scratch or store is bytes with a checksum, decoded by the operator itself; nothing is unpickled (X3).
5. A key stays in its partition: the number of partitions is part of the plan, noted with the state, and may not change.
6. Keys without tuples are forgotten after the operator's time to live, here and in the store (`holdfast.spark.quiet`).
7. State belongs to one query, in scratch and in the store. A fork takes its parent's over once and then keeps its own,
   beside its checkpoint; it never writes to what is its parent's (S1). A query over past data has no state to keep.
8. A query that goes on from a checkpoint of another host takes over the states that lie in it, once, at the batch that
   they are the beginning of: into the store, too, which knows nothing of them yet (`holdfast.spark.keyed_moves`).
9. A query that nobody will go on with leaves nothing behind, in scratch or store (`forget`).
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.checkpoint.policy import Guarantee, guarantee_of
from holdfast.checkpoint.slots import Names, Slots, key_of, part_key
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, StorageError, UsageError
from holdfast.operators.parted import sorted_out
from holdfast.operators.udop import Instances, directory_of
from holdfast.spark.far import Far, far_of, folder_of
from holdfast.spark.keeping import KEPT, Left, counts_from, keep
from holdfast.spark.quiet import Passing
from holdfast.spark.scratch import ScratchLost, of_this_boot, opened
from holdfast.spark.session import own_folder

if TYPE_CHECKING:
    from holdfast.spark.keyed import ForkOf, Keyed

#: How often a batch is begun with scratch that turns out to be damaged: once with a fork's own, once with its parent's.
_ATTEMPTS = 3


class Task:
    """Runs in a Python worker, once per partition and batch."""

    def __init__(
        self, plan: Keyed, schema: pa.Schema, partitions: int = 1, fork: ForkOf | None = None, arrived: str = ""
    ) -> None:
        self._plan, self._schema, self.partitions, self._fork = plan, schema, partitions, fork
        self._arrived = arrived
        self._exact = guarantee_of(plan.checkpoint) is Guarantee.EXACT

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def computes(self) -> tuple[Any, ...]:
        """What of it counts as its definition (`fingerprint`): not where its state goes, and how often."""
        return (self.name, self._plan.prototype, self._plan.key, self._plan.time, self._schema)

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
            yield from self._run(batches, 0, Slots(MemoryStore()), None)
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
        with self._near(self._own(query), partition) as near, far_of(self._plan, owner, partition) as far:
            if self._fork is not None:
                self._adopt(batch, partition, near, far)
            elif self._arrived:
                self._arrive(batch, partition, near, far)
            return self._run(batches, batch, near, far)

    def _run(self, batches: list[pa.RecordBatch], batch: int, near: Slots, far: Far | None) -> list[pa.RecordBatch]:
        plan, begun_us = self._plan, now_us()
        self._check_partitions(batch, near, far)
        if batch and near.mark(b"batch", batch) != b"%d" % batch:
            self._recover(batch, near, far)

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
        passing = Passing(plan.prototype, plan.time is not None, batch, near, noted)
        instances = Instances(
            plan.name, plan.prototype, plan.key, self._schema, load=load, time=plan.time, forget=True,
            now_us=passing.begin_us, load_parts=load_parts, exact=self._exact,
        )  # fmt: skip
        results = [instances.feed(rows) for rows in in_order(batches, getattr(plan.prototype, "side", None))]
        due, gone = passing.look(instances)
        states, parts = self._changes(instances, gone, batch, near)
        marks = self._marks(batch + 1, _keys_in(near, batch) + len(new) - len(gone))
        marks |= passing.marks(instances.now_us)
        left = Left(states, parts, marks, sum(rows.num_rows for rows in batches), begun_us)
        if self._exact and far is not None and self._fork is None:
            self._make_whole(batch, near, far)
        keep(plan, left, batch, near, far if self._fork is None else None)
        results += due
        return [rows for table in results for rows in table.to_batches()]

    def _make_whole(self, batch: int, near: Slots, far: Far) -> None:
        """The store of a query that was not exact until now lacks what changed since it was last saved there."""
        if batch and far.slots.mark(b"batch", batch) != b"%d" % batch:
            self._take_over(far.slots, near, batch, batch)

    def _changes(
        self, instances: Instances, gone: list[bytes], batch: int, near: Slots
    ) -> tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]:
        """The states to save, and the parts of them that changed; None where there is nothing any more."""
        states: dict[bytes, bytes | None] = {}
        parts: dict[bytes, bytes | None] = {}
        forgotten = set(gone)
        for key in instances.touched:
            if key not in forgotten:
                states[key], changed = instances.changes(key)
                parts |= {part_key(key, name): value for name, value in changed.items()}
        for key in gone:
            saved = near.read(key, batch)
            states[key] = None
            parts |= dict.fromkeys(part_key(key, name) for name in (directory_of(saved) if saved else {}))
        return states, parts

    def _marks(self, batch: int, keys: int) -> dict[bytes, bytes]:
        return {b"partitions": b"%d" % self.partitions, b"keys": b"%d" % keys, b"batch": b"%d" % batch}

    def _check_partitions(self, batch: int, near: Slots, far: Far | None) -> None:
        """Rule 5."""
        known = near.mark(b"partitions", batch)
        if known is None and batch and far is not None:
            known = far.slots.mark(b"partitions", batch)
        if known is not None and int(known) != self.partitions:
            raise UsageError(
                f"{self._plan.name}: its state lies in {int(known)} partitions, the query has {self.partitions}; "
                f"a query must keep their number for life; set spark.sql.shuffle.partitions to {int(known)}, or "
                f"start it anew"
            )

    def _recover(self, batch: int, near: Slots, far: Far | None) -> None:
        """The scratch does not have the beginning of this batch: another machine had it, or it was lost."""
        plan = self._plan
        mine = int(near.mark(b"batch", batch) or 0)
        theirs = int((far.slots.mark(b"batch", batch) if far is not None else None) or 0)
        if self._exact:
            if theirs != batch:
                raise StorageError(
                    f"{plan.name}: the state at the beginning of batch {batch} is neither on this machine nor in "
                    f"{plan.store}, whose newest is {theirs or 'none'}; start the query from that batch"
                )
        elif max(mine, theirs) != batch:
            left = max(mine, theirs)
            how = f"goes on with the state of batch {left}" if left else "begins anew, without any state,"
            warnings.warn(f"{plan.name}: {how} in batch {batch} (best effort)", RuntimeWarning, stacklevel=1)
        if far is not None and theirs >= mine:
            # What scratch has and the store has not is of a run that the store knows nothing of. So is what later
            # saves left in the store: it must be saved anew before a later mark could speak of it.
            self._take_over(near, far.slots, batch, theirs)
            pending = Names([], []) if self._exact else far.slots.leftovers(theirs)
            near.note(pending, counts_from(far.slots.mark(KEPT, theirs)))
        elif far is not None:
            # Whoever ran it meanwhile may have left a save half done, which ours must not complete.
            mine_too, others = near.pending, far.slots.leftovers(theirs)
            near.note(Names([*mine_too.states, *others.states], [*mine_too.parts, *others.parts]), {})

    def _take_over(self, near: Slots, kept: Slots, batch: int, version: int) -> None:
        """All states as of a version. One that is damaged as a whole cannot be listed, but it was counted (C11)."""
        states, known = kept.states(version), kept.mark(b"keys", version)
        if known is not None and len(states) < int(known):
            self._tell_lost(int(known) - len(states), int(known), "states")
        parts = {name: part for name, part in kept.parts(version).items() if key_of(name) in states}
        self._count_parts(states, parts)
        marks = self._marks(batch, len(states)) | Passing.taken_over(kept, version)
        before = near.names()
        near.save({**dict.fromkeys(before.states), **states}, batch, marks, {**dict.fromkeys(before.parts), **parts})

    def _count_parts(self, states: dict[bytes, bytes], parts: dict[bytes, bytes]) -> None:
        """Whether all parts that the heads name are there, as they were saved."""
        named = lost = 0
        for key, saved in states.items():
            directory = directory_of(saved)
            found = {name: parts[part] for name in directory if (part := part_key(key, name)) in parts}
            named, lost = named + len(directory), lost + len(sorted_out(directory, found)[1])
        if lost:
            self._tell_lost(lost, named, "parts of states")

    def _tell_lost(self, lost: int, known: int, what: str) -> None:
        problem = f"{self._plan.name}: {lost} of {known} {what} cannot be read any more"
        if self._exact:
            raise CorruptLog(f"{problem}; restore {self._plan.store} from a copy, or start the query anew")
        warnings.warn(f"{problem}; goes on without them (best effort)", RuntimeWarning, stacklevel=1)

    def _adopt(self, batch: int, partition: int, near: Slots, far: Far | None) -> None:
        """Rule 7: at the first batch of a fork, all states that its parent had there."""
        assert self._fork is not None
        if near.mark(b"batch", batch) is not None:
            return
        wanted = b"%d" % batch
        with self._near(self._scratch() / self._fork.query_id, partition) as elder:
            if elder.mark(b"batch", batch) == wanted:
                self._check_partitions(batch, elder, None)
                self._take_over(near, elder, batch, batch)
                return
        if far is not None and far.slots.mark(b"batch", batch) == wanted:
            self._check_partitions(batch, far.slots, None)
            self._take_over(near, far.slots, batch, batch)
            return
        if self._arrived:  # It may be forked before it has run a batch here.
            self._arrive(batch, partition, near, None)
        if batch and near.mark(b"batch", batch) is None:
            raise StorageError(
                f"{self._plan.name}: a fork needs the state of its parent at the beginning of batch {batch}, which has "
                f"gone by; it is taken anew"
            )

    def _arrive(self, batch: int, partition: int, near: Slots, far: Far | None) -> None:
        """Rule 8."""
        if near.mark(b"batch", batch) is not None:
            return
        with self._near(Path(self._arrived), partition) as came:
            if came.mark(b"batch", batch) != b"%d" % batch:
                return
            self._check_partitions(batch, came, None)
            # In the store once only: the batch that follows may have been saved there before scratch was lost.
            if far is not None and far.slots.mark(b"batch", batch) != b"%d" % batch:
                self._take_over(far.slots, came, batch, batch)
            self._take_over(near, came, batch, batch)

    def pack(self, query: str, batch: int, to: Path) -> bool:
        """Copy the states at the beginning of that batch, of all partitions; False if they are not at hand."""
        return all(self._pack(query, batch, partition, to) for partition in range(self.partitions))

    def _pack(self, query: str, batch: int, partition: int, to: Path) -> bool:
        # Whoever holds scratch is the only one in the store as well.
        with self._near(self._own(query), partition) as near, self._near(to, partition) as there:
            if near.mark(b"batch", batch) == b"%d" % batch:
                self._take_over(there, near, batch, batch)
                return True
            with far_of(self._plan, query, partition) as far:
                if far is None:
                    return False
                with far.once() as kept:  # The node can stay; that is better than to wait for a server.
                    if kept.mark(b"batch", batch) != b"%d" % batch:
                        return False
                    self._take_over(there, kept, batch, batch)
                    return True

    def forget(self, query: str) -> None:
        """Rule 9. A store whose server is away is a `PeerError`: it keeps what it has."""
        folder = folder_of(self._plan, query)
        for doomed in (self._scratch() / query, folder):
            if doomed is not None:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(doomed)
        if folder is not None:
            return
        for partition in range(self.partitions):
            with far_of(self._plan, query, partition) as far:
                if far is not None:
                    with far.once() as kept:
                        kept.clear()

    def _scratch(self) -> Path:
        given = self._plan.scratch
        return of_this_boot(Path(given) if given is not None else own_folder() / "operators")

    def _own(self, query: str) -> Path:
        return self._scratch() / query if self._fork is None else Path(self._fork.scratch)

    def _near(self, folder: Path, partition: int) -> AbstractContextManager[Slots]:
        return opened(folder / self._plan.name / str(partition))


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
    known = near.mark(b"keys", batch)
    return int(known) if known is not None else len(near.states(batch))
