"""What a user-defined operator does in a Python worker: one partition of one batch.

Rules:
1. Tuples are taken in the order of `stime` and `tuple_id`. A task starts from the state at exactly the beginning of its
   batch, or says that it cannot. State at the end of each batch goes to scratch on the machine, unsynced: it is for the
   next batch, whichever Python worker runs it. Scratch always has all keys as of its mark: where it is behind, because
   the partition ran elsewhere or scratch was lost, all states come from the store first, in bulk.
2. Of each key two versions stay, in two slots used in turn, so that a batch that is executed again finds the state it
   began with. A version is the number of the batch that it is the beginning of.
3. By the policy, states also go to the store that survives the machine. *Exact* saves every batch before its results
   leave the task and refuses to go on from an older state; *best effort* saves when due and goes on from what there is,
   saying so.
4. What comes from scratch or store is bytes with a checksum, decoded by the operator itself; nothing is unpickled (X3).
5. A key stays in its partition: the number of partitions is part of the plan, noted with the state, and may not change.
6. Keys without tuples are forgotten after the operator's time to live, here and in the store (`holdfast.spark.quiet`).
7. State belongs to one query, in scratch and in the store. A fork takes its parent's over once and then keeps its own,
   beside its checkpoint; it never writes to what is its parent's (S1). A query over past data has no state to keep.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast.checkpoint.policy import Every, NoCheckpoint
from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, StorageError, UsageError
from holdfast.operators.udop import Instances
from holdfast.spark.quiet import Passing
from holdfast.spark.scratch import ScratchLost, of_this_boot, opened
from holdfast.spark.session import own_folder

if TYPE_CHECKING:
    from holdfast.spark.keyed import ForkOf, Keyed

#: How often a batch is begun with scratch that turns out to be damaged: once with a fork's own, once with its parent's.
_ATTEMPTS = 3


class Task:
    """Runs in a Python worker, once per partition and batch."""

    def __init__(self, plan: Keyed, schema: pa.Schema, partitions: int = 1, fork: ForkOf | None = None) -> None:
        self._plan, self._schema, self._partitions, self._fork = plan, schema, partitions, fork

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
        with self._near(self._own(query), partition) as near, self._far(owner, partition) as far:
            if self._fork is not None:
                self._adopt(batch, partition, near, far)
            return self._run(batches, batch, near, far)

    def _run(self, batches: list[pa.RecordBatch], batch: int, near: Slots, far: Slots | None) -> list[pa.RecordBatch]:
        plan = self._plan
        self._check_partitions(batch, near, far)
        if batch and near.mark(b"batch", batch) != b"%d" % batch:
            self._recover(batch, near, far)

        new: set[bytes] = set()

        def load(key: bytes) -> bytes | None:
            found = near.read(key, batch)
            if found is None:
                new.add(key)
            return found

        passing = Passing(plan.prototype, plan.time is not None, batch, near, far)
        instances = Instances(
            plan.name, plan.prototype, plan.key, self._schema, load=load, time=plan.time, forget=True,
            now_us=passing.begin_us,
        )  # fmt: skip
        results = [instances.feed(rows) for rows in _in_order(batches)]
        due, gone = passing.look(instances)
        states: dict[bytes, bytes | None] = {key: instances.snapshot(key)[1] for key in instances.touched}
        states |= dict.fromkeys(gone)
        marks = self._marks(batch + 1, _keys_in(near, batch) + len(new) - len(gone))
        marks |= passing.marks(instances.now_us)
        self._save(states, marks, sum(rows.num_rows for rows in batches), batch, near, far)
        results += due
        return [rows for table in results for rows in table.to_batches()]

    def _marks(self, batch: int, keys: int) -> dict[bytes, bytes]:
        return {b"partitions": b"%d" % self._partitions, b"keys": b"%d" % keys, b"batch": b"%d" % batch}

    def _save(
        self, states: dict[bytes, bytes | None], marks: dict[bytes, bytes], rows: int, batch: int, near: Slots,
        far: Slots | None,
    ) -> None:  # fmt: skip
        policy = self._plan.checkpoint
        if far is None or self._fork is not None or not isinstance(policy, Every):
            near.save(states, batch + 1, marks)
            return
        if policy.exact:
            # First, so that whatever is in scratch is in the store as well: whoever executes the batch elsewhere must
            # find what this execution noted.
            far.save(states, batch + 1, marks)
            near.save(states, batch + 1, marks)
            return
        near.save(states, batch + 1, marks)
        # What is due is judged over all keys of the partition: their states of this moment belong together.
        pending = near.pending | dict.fromkeys(states)
        events = near.number(b"events") + rows
        since = near.number(b"saved_us") or now_us()
        due = now_us() - since >= policy.us if policy.us is not None else events >= (policy.events or 1)
        if due:
            everything = {key: near.read(key, batch + 1) for key in pending}
            far.save(everything, batch + 1, marks)
            pending, events, since = {}, 0, now_us()
        near.note(pending, {b"events": b"%d" % events, b"saved_us": b"%d" % since})

    def _check_partitions(self, batch: int, near: Slots, far: Slots | None) -> None:
        """Rule 5."""
        for kept in (near, far):
            known = None if kept is None else kept.mark(b"partitions", batch)
            if known is not None and int(known) != self._partitions:
                raise UsageError(
                    f"{self._plan.name}: its state lies in {int(known)} partitions, the query has {self._partitions}; "
                    f"a query must keep their number for life; set spark.sql.shuffle.partitions to {int(known)}, or "
                    f"start it anew"
                )

    def _recover(self, batch: int, near: Slots, far: Slots | None) -> None:
        """The scratch does not have the beginning of this batch: another machine had it, or it was lost."""
        plan = self._plan
        mine = int(near.mark(b"batch", batch) or 0)
        theirs = int((far.mark(b"batch", batch) if far is not None else None) or 0)
        if isinstance(plan.checkpoint, Every) and plan.checkpoint.exact:
            if theirs != batch:
                raise StorageError(
                    f"{plan.name}: the state at the beginning of batch {batch} is neither on this machine nor in "
                    f"{plan.store}, whose newest is {theirs or 'none'}; start the query from that batch"
                )
        else:
            warnings.warn(
                f"{plan.name}: goes on with the state of batch {max(mine, theirs)} in batch {batch} (best effort)",
                RuntimeWarning, stacklevel=1,
            )  # fmt: skip
        if far is not None and theirs > mine:
            # What scratch has and the store has not is of a run that the store knows nothing of.
            self._take_over(near, far, batch)
            near.note((), {})

    def _take_over(self, near: Slots, kept: Slots, batch: int) -> None:
        """All states. One that is damaged as a whole cannot even be listed, but it was counted (C11)."""
        states, known = kept.states(batch), kept.mark(b"keys", batch)
        if known is not None and len(states) < int(known):
            problem = f"{self._plan.name}: {int(known) - len(states)} of {int(known)} states cannot be read any more"
            if isinstance(self._plan.checkpoint, Every) and self._plan.checkpoint.exact:
                raise CorruptLog(f"{problem}; restore {self._plan.store} from a copy, or start the query anew")
            warnings.warn(f"{problem}; goes on without them (best effort)", RuntimeWarning, stacklevel=1)
        marks = self._marks(batch, len(states)) | Passing.taken_over(kept, batch)
        near.save({**dict.fromkeys(near.states(batch)), **states}, batch, marks)

    def _adopt(self, batch: int, partition: int, near: Slots, far: Slots | None) -> None:
        """Rule 7: at the first batch of a fork, all states that its parent had there."""
        assert self._fork is not None
        if near.mark(b"batch", batch) is not None:
            return
        wanted = b"%d" % batch
        with self._near(self._scratch() / self._fork.query_id, partition) as elder:
            for parent in (elder, far):
                if parent is not None and parent.mark(b"batch", batch) == wanted:
                    self._take_over(near, parent, batch)
                    return

    def _scratch(self) -> Path:
        given = self._plan.scratch
        return of_this_boot(Path(given) if given is not None else own_folder() / "operators")

    def _own(self, query: str) -> Path:
        return self._scratch() / query if self._fork is None else Path(self._fork.scratch)

    def _near(self, folder: Path, partition: int) -> AbstractContextManager[Slots]:
        return opened(folder / self._plan.name / str(partition))

    @contextlib.contextmanager
    def _far(self, query: str, partition: int) -> Iterator[Slots | None]:
        plan = self._plan
        if plan.store is None or isinstance(plan.checkpoint, NoCheckpoint):
            yield None
            return
        kind = plan.store.partition(":")[0]
        local = kind in ("log", "files", "rocksdb")
        address = f"{plan.store}/{plan.name}/{query}/{partition}" if local else plan.store
        with open_store(address) as store:
            prefix = b"" if local else f"{plan.name}/{query}/{partition}/".encode()
            yield Slots(store, prefix, exact=isinstance(plan.checkpoint, Every) and plan.checkpoint.exact)


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The tuples of a task in the order of their streams, however the shuffle delivered them (D9)."""
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return []
    table = pa.Table.from_batches(rows)
    keys = [(name, "ascending") for name in ("stime", "stream", "tuple_id") if name in table.column_names]
    return (table.sort_by(keys) if keys else table).combine_chunks().to_batches()  # type: ignore[no-any-return]


def _keys_in(near: Slots, batch: int) -> int:
    known = near.mark(b"keys", batch)
    return int(known) if known is not None else len(near.states(batch))
