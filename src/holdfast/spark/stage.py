"""The stage: an operator in an executor, one task per partition and batch.

Rules:
1. Rows are taken in the order (begin of bucket, input, tuple_id), however Spark delivered them: replicas agree to the
   last bit, and so do batches of any size (D9).
2. The batch says where it begins and ends (marks). The stage starts from the version of its state at exactly the
   beginning: from memory, from scratch, or restored from the output's log and brought forward with the rows in front of
   the batch. It never starts from anything else; if it can do none of these, because its scratch was lost after the
   planner had seen it, it says so (`StateLost`) and the query, started again, reads what is missing. Where the policy's
   checkpoints go to a store (`every`), it is a version from there that is brought forward. Where the state was dealt
   out among another number of partitions, it takes the groups that are its own now.
3. Results, boundary and checkpoints of the batch leave together. A repeated task gives the same results again, but not
   the same checkpoints: how many there are hangs on how long it took. Only one task's are in the log. If they are not
   those that a version believes to be there, every window is saved anew, and nothing before that counts any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, StateLost, StorageError, UsageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.model.tuples import TupleType
from holdfast.operators.footprints import (
    Kernel,
    Restored,
    blocks_of,
    replay,
    restore,
    save,
    together,
)
from holdfast.operators.numbering import NULL_KEY, partition_of
from holdfast.operators.state import Blocks
from holdfast.protocol.cec.policy import EVERYTHING, Continuous, Measured
from holdfast.spark import control
from holdfast.spark.checkpoint_figures import Figures, figures
from holdfast.spark.durable import Durable
from holdfast.spark.grants import FRAME, Way, way_for
from holdfast.spark.remote_stage_files import stage_files_for
from holdfast.spark.stage_files import Output as Output
from holdfast.spark.stage_files import StageFiles, StageNote
from holdfast.spark.version_store import Found, VersionSaves, VersionStore
from holdfast.spark.versions import Scratch, Version, owned
from holdfast.stream.frame import checksum
from holdfast.stream.identity import Identity, differences, told
from holdfast.stream.merge import FOREVER_US, MARKS

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from holdfast.spark.save_figures import Savings

#: What is left to do where nothing can be restored.
_ANEW = (
    "begin anew, with another output and checkpoint folder (a node: another name= and output=); with "
    "checkpoint=continuous() it goes on after such a loss"
)
_FRAME_ANEW = (
    "start the query with another checkpointLocation; frame(name=…) goes on for as long as its scratch is there, and a "
    "flow that writes a stream with checkpoint=continuous() after the loss of that, too"
)


@dataclass(frozen=True)
class StagePlan:
    operator: str
    kernel: Kernel
    keeps_panes: bool
    """Blocks have a column `_w` of their own (general windows)."""
    schema: pa.Schema
    """What leaves the stage."""
    names: tuple[str, ...]
    """What each column of it is called in the kernel's results."""
    order_us: int
    """Size of the buckets that the inputs share."""
    scratch: Scratch
    policy: Continuous | None = None
    output: Output | None = None
    """None: a frame."""
    made_by: str = ""
    """What it computes, if its versions have to say it."""
    durable: Durable | None = None
    """Where its versions become durable; None: they do not."""
    figures: Accumulator[Savings] | None = None
    """Is told what that comes to (`holdfast.spark.save_figures`)."""

    def restores(self, position_us: int) -> bool:
        """Whether there are checkpoints: its own, or up to its root those of the query that it is a fork of."""
        origin = None if self.output is None else self.output.origin
        has_own = self.policy is not None and self.output is not None
        return has_own or (origin is not None and position_us <= origin.root_us)

    @property
    def note(self) -> StageNote:
        return StageNote(self.operator, self.scratch, self.output)

    @property
    def kernel_keys(self) -> tuple[str, ...]:
        return self.kernel.keys


@dataclass
class Batch:
    """What one task was given: new rows in [since, until), and a way to get at earlier ones."""

    since_us: int
    until_us: int
    rows: pl.DataFrame
    again: Callable[[int], pl.DataFrame]
    """The rows in [given position, since)."""


def shuffled(batches: Iterable[pa.RecordBatch], order_us: int, operator: str) -> Batch:
    """A batch that came through a shuffle, with its marks among the rows."""
    rows: pl.DataFrame = pl.from_arrow(pa.Table.from_batches(list(batches)))  # type: ignore[assignment]
    is_mark = rows["tuple_type"].to_numpy() == int(TupleType.BOUNDARY)
    if not is_mark.any():
        raise StorageError("a stage got rows without the marks of their batch; read with .option('marks', …)")
    marks = rows.filter(pl.Series(is_mark))
    rows = rows.filter(pl.Series(~is_mark))
    times = dict(zip((marks["tuple_id"] % MARKS).to_list(), marks["stime"].cast(pl.Int64).to_list(), strict=True))
    since, until, read_from = times[0], times[1], times[2]
    rows = _ordered(rows.drop("tuple_type").with_columns(pl.col("stime").cast(pl.Int64).alias("_t")), order_us)
    new = rows if read_from >= since else rows.filter(pl.col("_t") >= since)

    def again(position_us: int) -> pl.DataFrame:
        if position_us < read_from:
            raise StateLost(
                f"{operator}: its state at {instant_text(since)} is not on this machine; start the query again, and it "
                f"is restored from its checkpoints"
            )
        return rows.filter((pl.col("_t") >= position_us) & (pl.col("_t") < since))

    return Batch(since, until, new, again)


def _ordered(rows: pl.DataFrame, order_us: int) -> pl.DataFrame:
    """Rule 1."""
    bucket = rows["_t"].to_numpy() // order_us
    ids = rows["tuple_id"].to_numpy()
    if "_src" in rows.columns:
        return rows.drop("stime", "tuple_id")[np.lexsort((ids, rows["_src"].to_numpy(), bucket))]
    in_order = bool((bucket[1:] >= bucket[:-1]).all() and (ids[1:] > ids[:-1]).all())
    rows = rows.drop("stime", "tuple_id")
    return rows if in_order else rows[np.lexsort((ids, bucket))]


class _Start(NamedTuple):
    """What a batch starts from."""

    blocks: Blocks
    measured: Measured
    in_log: bool = True
    """The checkpoints that it believes to be in the log are there."""
    saves: str = ""
    """What it knows of its checkpoints in a store."""
    restore_s: float | None = None
    """How long it took to come from there."""


class Stage:
    def __init__(
        self, plan: StagePlan, partition: int, batch_id: int, files: StageFiles | None = None, query: str = ""
    ) -> None:
        self.plan, self.partition, self.batch_id, self._query = plan, partition, batch_id, query
        self._files = files or StageFiles(plan.note)

    def run(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        began, begun_us = time.perf_counter(), now_us()
        if hasattr(self.plan.kernel, "partition"):
            self.plan.kernel.partition = self.partition
        start = self._state(batch)
        blocks, measured, in_log = start.blocks, start.measured, start.in_log
        step = self.plan.kernel.step(blocks, batch.rows, batch.since_us, batch.until_us)
        if step.results is not None:
            yield from self._shaped(step.results)
        after: Blocks = step.blocks
        mark = None
        span = batch.until_us - batch.since_us if batch.since_us > BEGINNING_US and batch.until_us < FOREVER_US else 0
        if self.plan.policy is not None:
            busy, began_saving = time.perf_counter() - began, time.perf_counter()
            policy = self.plan.policy
            count = sum(map(len, after.values()))
            period_us = policy.in_force(span, count, measured).period_us
            shot = policy.shot(batch.until_us, span, count, busy, measured)
            shot = shot if in_log else EVERYTHING
            plan, partitions = self.plan, self.plan.scratch.partitions
            after, saved = save(step, shot, batch.until_us, plan.operator, plan.kernel.by_group, partitions)
            message = control.Message(self.plan.operator, self.partition, saved.rows, saved.windows, saved.since_us,
                                      batch.until_us)  # fmt: skip
            control_message = self._files.stage(message, saved.body)
            mark = checksum(saved.body)
            measured = measured.after(
                busy_s=busy, span_us=span, saved=saved.opened + saved.checked,
                saving_s=time.perf_counter() - began_saving,
            )  # fmt: skip
            yield self._control(control_message, figures(saved, batch.until_us, policy, period_us, measured))
        if not getattr(self.plan.kernel, "stateless", False):
            version = Version(after, measured, mark, self.plan.made_by)
            self._files.store(self.partition, batch.until_us, self._saved(start, batch, version, begun_us))

    def _saved(self, start: _Start, batch: Batch, version: Version, begun_us: int) -> Version:
        """With what has become of its checkpoints in a store, if it has any."""
        plan = self.plan
        if plan.durable is None or plan.durable.own is None:
            return version
        began = Version(start.blocks, start.measured, saves=start.saves)
        saves = VersionSaves(plan.durable, self.partition)
        version, saving = saves.keep(
            began, batch.since_us, version, batch.until_us, batch=self.batch_id, begun_us=begun_us
        )
        if plan.figures is not None:
            told_of = self._query, plan.operator, self.partition
            plan.figures.add({told_of: saving._replace(restore_s=start.restore_s)})
        return version

    # -- state -------------------------------------------------------------------------------------------------------

    def _state(self, batch: Batch) -> _Start:
        """Rules 2 and 3."""
        if getattr(self.plan.kernel, "stateless", False):
            return _Start({}, Measured())
        if self.batch_id == 0 or batch.since_us == BEGINNING_US:
            return _Start({}, Measured())
        found = self._files.load(self.partition, batch.since_us)
        if found is not None:
            self._check_made_by(found)
            return _Start(found.blocks, found.measured, self._in_log(found, batch.since_us), found.saves)
        durable = self.plan.durable
        if durable is not None and durable.restores(batch.since_us):
            return self._from_store(batch, durable)
        if not self.plan.restores(batch.since_us):
            raise StateLost(
                f"{self.plan.operator}: the state of partition {self.partition} at {instant_text(batch.since_us)} is "
                f"lost, and it has no checkpoints there; {_ANEW if self.plan.output is not None else _FRAME_ANEW}"
            )
        return self._restored(batch)

    def _check_made_by(self, found: Version) -> None:
        """Of a frame; for streams the checkpoint's note decides."""
        if not found.made_by or found.made_by == self.plan.made_by:
            return
        before, now = (msgspec.json.decode(text, type=Identity) for text in (found.made_by, self.plan.made_by))
        if changes := differences(before, now):
            raise UsageError(
                f"{self.plan.operator}: the flow of a frame must compute what its state was made by; it has changed: "
                f"{told(changes)}; change it back, or start the query with another checkpointLocation; two flows in "
                f"one query need two names, frame(name=…)"
            )

    def _in_log(self, version: Version, position_us: int) -> bool:
        plan = self.plan
        if plan.policy is None or plan.output is None or version.mark is None:
            return plan.policy is None
        return version.mark == self._files.mark(self.partition, position_us)

    def _restored(self, batch: Batch) -> _Start:
        plan, began = self.plan, time.perf_counter()
        count, as_here = self._dealt_out(batch.since_us)
        if as_here:
            restored = self._logged(self.partition, batch.since_us)
        else:
            restored = together([self._logged(p, batch.since_us) for p in range(count)], self._owns)
        blocks: Blocks = blocks_of(restored.table, plan.keeps_panes)
        loading_s, began = time.perf_counter() - began, time.perf_counter()
        if restored.since_us < batch.since_us:
            blocks = replay(plan.kernel, restored, blocks, batch.again(restored.since_us), batch.since_us)
        replaying_s = time.perf_counter() - began
        measured = Measured().restored(windows=len(restored.table), loading_s=loading_s, replaying_s=replaying_s)
        return _Start(blocks, measured, in_log=as_here)

    def _from_store(self, batch: Batch, durable: Durable) -> _Start:
        """From the versions there, and the input behind each of them."""
        began = time.perf_counter()
        found = VersionStore(durable).find(self.partition, batch.since_us)
        if not found:
            raise StateLost(
                f"{self.plan.operator}: the state of partition {self.partition} at {instant_text(batch.since_us)} is "
                f"lost, and {durable.shown} has no checkpoint that it could be made of again; {_ANEW}"
            )
        version = owned([self._forward(part, len(found), batch) for part in found], self.partition, durable.partitions)
        if durable.own is not None:
            version = VersionSaves(durable, self.partition).restored(found, version)
        return _Start(version.blocks, version.measured, saves=version.saves, restore_s=time.perf_counter() - began)

    def _forward(self, found: Found, partitions: int, batch: Batch) -> Version:
        """The version at the batch's beginning that follows from one that was saved, of one of so many partitions."""
        if found.position_us >= batch.since_us:
            return found.version
        rows = batch.again(found.position_us)
        if found.of is not None:
            numbers = np.ascontiguousarray(rows["_h"].to_numpy())
            rows = rows.filter(pl.Series(partition_of(numbers, partitions) == found.of))
        step = self.plan.kernel.step(found.version.blocks, rows, found.position_us, batch.since_us)
        return found.version._replace(blocks=step.blocks)

    def _dealt_out(self, position_us: int) -> tuple[int, bool]:
        """Among how many partitions the groups were dealt out at that position, and whether that is so here."""
        plan, (said, numbers) = self.plan, self._files.dealt(position_us)
        count = len(numbers) if said is None else said
        if numbers and numbers != tuple(range(count)):
            raise CorruptLog(
                f"{plan.operator}: the log must have checkpoints of {count} partitions at {instant_text(position_us)}; "
                f"it has those of {list(numbers)}; nothing was restored; run `holdfast verify`"
            )
        return count, not numbers or said == plan.scratch.partitions

    def _logged(self, partition: int, position_us: int) -> Restored:
        """The checkpoints of one partition, among however many it was."""
        bodies, plan = self._files.bodies(partition, position_us), self.plan
        return restore(bodies, plan.operator, position_us, plan.kernel.by_group)

    def _owns(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        owned: npt.NDArray[np.bool_] = partition_of(numbers, self.plan.scratch.partitions) == self.partition
        return owned

    # -- what leaves -------------------------------------------------------------------------------------------------

    def _shaped(self, results: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        table = results.to_arrow()
        columns: list[Any] = []
        for field, name in zip(self.plan.schema, self.plan.names, strict=False):
            column = table.column(name).combine_chunks()
            if name == "_h":
                column = pc.if_else(pc.equal(column, NULL_KEY), pa.scalar(None, column.type), column)
            columns.append(column if column.type == field.type else column.cast(field.type))
        columns += [pa.nulls(table.num_rows, hidden.type) for hidden in list(self.plan.schema)[len(columns) :]]
        yield from pa.Table.from_arrays(columns, schema=self.plan.schema).to_batches(max_chunksize=64 << 10)

    def _control(self, message: bytes, said: Figures) -> pa.RecordBatch:
        hidden = {control.COLUMN: message, control.FIGURES: said._asdict()}
        arrays = [pa.array([hidden.get(f.name)], f.type) for f in self.plan.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.plan.schema)


def mapped(plan: StagePlan) -> Any:
    """The function that Spark maps over the partitions of a shuffle."""
    way = way_of(plan, (), FRAME)

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if sum(b.num_rows for b in given):
            yield from this_task(plan, way).run(shuffled(given, plan.order_us, plan.operator))

    return stage


def way_of(plan: StagePlan, streams: Sequence[str], ends: str) -> Way | None:
    """The way for tasks of a stage that read these folders of streams."""
    folder = "" if plan.output is None else str(plan.output.folder)
    scratch = plan.scratch.folder if plan.scratch.shared else ""
    return way_for(streams, ends, results=folder, stage=plan.note.encode(), scratch=scratch)


def this_task(plan: StagePlan, way: Way | None, partition: int | None = None) -> Stage:
    context = TaskContext.get()
    assert context is not None
    batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    if plan.scratch.per_query and (query := context.getLocalProperty("sql.streaming.queryId")):
        plan = replace(plan, scratch=plan.scratch.of_query(query))
    files = stage_files_for(way, plan.note)
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    return Stage(plan, context.partitionId() if partition is None else partition, batch_id, files, query)
