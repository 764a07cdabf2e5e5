"""An operator in a fork of a node: whose state it begins with, and what it leaves alone. No Spark.

One partition runs batch by batch, as in `test_stage_state`. The oracle is the parent itself, given the same input.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable

import holdfast
from holdfast.model.errors import StateLost
from holdfast.model.tuples import TupleType
from holdfast.operators.functions import count, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import count_window
from holdfast.spark.direct import DirectStage, StageReader, encode_stage
from holdfast.spark.forked import ForkReader, ForkStageReader
from holdfast.spark.restore import Origin
from holdfast.spark.source import offset_of
from holdfast.spark.stage import Batch, Output, Stage, StagePlan
from holdfast.spark.versions import KEPT, Scratch, _memory
from holdfast.stream.control import ControlLog, operator_number
from holdfast.stream.merge import Merge
from holdfast.stream.tentative import PlannedPiece, PlanWriter
from tests.spark.test_stage_state import SCHEMA, SECOND, SLOW, Running, tuples

ROOT = 6 * SECOND


@pytest.fixture(autouse=True)
def no_memory() -> None:
    _memory.clear()


class Forked(Running):
    """The fork of a node: it has no policy, and files nothing on main."""

    def __init__(self, root: Path, given: list[tuple[int, int, int]], root_us: int = ROOT) -> None:
        super().__init__(root, "out", given, SLOW, lineage="fork-1", parents=("main",), origin=Origin("out", root_us))
        self.scratch.pin(root_us)

    def batch(self, number: int, since: int, until: int) -> None:
        read_from = self.planner.forked_us(since)
        self.again.append(since - read_from)
        names, schema = ("stime", "_h", "count", "sum"), pa.schema(list(SCHEMA)[:-1])
        plan = StagePlan("op", self.kernel, self.panes, schema, names, SECOND, self.scratch, None, self.output)

        def again(position: int) -> pl.DataFrame:
            assert position >= read_from
            return self.frame(position, since)

        for out in Stage(plan, 0, number).run(Batch(since, until, self.frame(since, until), again)):
            self.results += [tuple(row.values()) for row in out.to_pylist()]


def log_of(running: Running) -> list[Any]:
    reader = running.stream.reader()
    try:
        return [(f, b.read()) for f, b in ControlLog(reader).backwards(operator_number("op"))]
    finally:
        reader.close()


def versions(running: Running, lineage: str) -> dict[str, bytes]:
    folder = Path(running.scratch.folder, "op", lineage, "0-of-1")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_fork_gives_what_its_parent_gives_and_leaves_versions_and_checkpoints_alone(tmp_path: Path) -> None:
    """S1."""
    given = tuples(14)
    parent = Running(tmp_path, "out", given, SLOW)
    parent.run(0, 5)
    before, log = versions(parent, "main"), log_of(parent)
    fork = Forked(tmp_path, given)
    place = Path(fork.scratch.folder, "op", "fork-1", "0-of-1", f"{ROOT}.state")
    assert os.stat(place).st_nlink == 2, "the version was copied"
    fork.run(5, 9)
    assert (versions(parent, "main"), log_of(parent)) == (before, log)
    known = len(parent.results)
    parent.run(5, 9)
    assert fork.results == parent.results[known:]
    assert fork.results


def test_a_fork_that_starts_late_still_has_the_version_that_its_parent_has_forgotten(tmp_path: Path) -> None:
    given = tuples(20)
    parent = Running(tmp_path, "out", given, SLOW)
    parent.run(0, 5)
    fork = Forked(tmp_path, given)
    known = len(parent.results)
    parent.run(5, 6 + KEPT)
    assert f"{ROOT}.state" not in versions(parent, "main")
    fork.run(5, 6 + KEPT)
    assert fork.results == parent.results[known:]
    assert not any(fork.again)


def test_a_fork_whose_version_is_lost_restores_it_from_its_parents_log_up_to_its_root(tmp_path: Path) -> None:
    given = tuples(14)
    parent = Running(tmp_path, "out", given, SLOW)
    parent.run(0, 5)
    known = len(parent.results)
    parent.run(5, 9)
    parent.lose()
    fork = Forked(tmp_path, given)
    fork.run(5, 9)
    assert fork.results == parent.results[known:]
    assert [bool(span) for span in fork.again] == [True, False, False, False]


def test_a_fork_that_loses_its_own_version_says_so_and_never_takes_up_its_parents(tmp_path: Path) -> None:
    given = tuples(14)
    parent = Running(tmp_path, "out", given, SLOW)
    parent.run(0, 5)
    fork = Forked(tmp_path, given)
    fork.run(5, 7)
    parent.run(5, 7)
    fork.lose()
    with pytest.raises(StateLost, match="is lost"):
        fork.batch(7, 8 * SECOND, 9 * SECOND)


# -- what a fork reads ----------------------------------------------------------------------------------------------


@pytest.fixture
def task() -> Iterator[TaskContext]:
    """As a Python worker of Spark has one."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = 0, {"streaming.sql.batchId": "7"}
    yield context
    TaskContext._taskContext = None


def filled(root: Path) -> holdfast.StreamStore:
    store = holdfast.open(root)
    for name, step in (("a", 1), ("b", 2)):
        producer = store.create(name, "key bigint, v bigint", bucket="1s").producer(stime="stime", slack="0s")
        producer.send_many([{"stime": t, "key": k, "v": v * step} for t, k, v in tuples(8)])
        producer.advance(9 * SECOND)
        producer.close(end=False)
    return store


def planned(store: holdfast.StreamStore, path: Path, since: int, until: int) -> None:
    """All events, as the controller would plan them."""
    merge = Merge([store.open("a"), store.open("b")])
    writer = PlanWriter(path)
    for start in range(since, until, SECOND):
        pieces = [
            PlannedPiece(p.source, str(Path(merge.sources[p.source].folder, "main", p.segment)), p.fields)
            for p in merge.pieces(start, start + SECOND)
        ]
        writer.append([(start + SECOND, tuple(pieces))])
    writer.close()
    merge.close()


def stage_of(root: Path, lineage: str, parents: tuple[str, ...] = ()) -> str:
    kernel, panes = aggregate_kernel(count_window(10), Plan((count(), sum_("v")), (None, 0), {0: pl.Int64()}), ("_h",))
    schema = pa.schema(list(SCHEMA)[:-1])
    scratch, output = Scratch(str(root / "scratch"), "op", 1, lineage, parents), Output(str(root), "out")
    names = ("stime", "_h", "count", "sum_v")
    plan = StagePlan("op", kernel, panes, schema, names, SECOND, scratch, None, output)
    return encode_stage(DirectStage(plan, 1, ("key",), ("v",)))


def run(reader: StageReader | ForkStageReader, since: int, until: int) -> list[dict[str, Any]]:
    (part,) = reader.partitions(offset_of(since), offset_of(until))
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def test_an_operator_that_reads_itself_gives_the_same_from_a_plan(tmp_path: Path, task: TaskContext) -> None:
    store = filled(tmp_path)
    options = {"root": str(tmp_path), "path": "a,b"}
    stable = StageReader({**options, "stage": stage_of(tmp_path, "main")})
    task._localProperties["streaming.sql.batchId"] = "0"
    run(stable, SECOND, 5 * SECOND)
    task._localProperties["streaming.sql.batchId"] = "7"
    planned(store, tmp_path / "plan", 5 * SECOND, 9 * SECOND)
    fork = ForkStageReader(
        {**options, "plan": str(tmp_path / "plan"), "stage": stage_of(tmp_path, "fork-1", ("main",))}
    )
    tentative = run(fork, 5 * SECOND, 9 * SECOND)
    files = len(os.listdir("/proc/self/fd"))
    assert tentative == run(stable, 5 * SECOND, 9 * SECOND)
    assert tentative == run(fork, 5 * SECOND, 9 * SECOND)
    assert tentative
    assert len(os.listdir("/proc/self/fd")) == files, "a task has left its files open"
    stable.stop()


def test_a_stage_behind_a_shuffle_gets_the_marks_of_a_planned_batch(tmp_path: Path) -> None:
    store = filled(tmp_path)
    planned(store, tmp_path / "plan", 5 * SECOND, 7 * SECOND)
    fork = ForkReader({"root": str(tmp_path), "path": "a,b", "plan": str(tmp_path / "plan"), "marks": "2"})
    (part,) = fork.partitions(offset_of(5 * SECOND), offset_of(7 * SECOND))
    rows = pa.Table.from_batches(list(fork.read(part)))
    marks = rows.filter(pa.compute.equal(rows["tuple_type"], int(TupleType.BOUNDARY)))
    assert rows.num_rows - marks.num_rows == 2 * 200
    assert marks["stime"].cast(pa.int64()).to_pylist() == [5 * SECOND, 7 * SECOND, 5 * SECOND] * 2


def test_a_fork_without_a_plan_rehearses_once_and_one_that_was_waited_for_does_not(tmp_path: Path) -> None:
    """Its first batch, the slowest of all, has no tuples then. Nothing of it shows in what follows."""
    store, start = filled(tmp_path), offset_of(5 * SECOND)
    options = {"root": str(tmp_path), "path": "a,b", "plan": str(tmp_path / "plan"), "boundaries": "exact"}
    fork, exact = ForkReader(options), [ForkReader({**options, name: "2"}) for name in ("marks", "step")]

    def asked(reader: ForkReader, at: dict[str, int], times: int) -> list[dict[str, int]]:
        return [reader.latestOffset(at, ReadAllAvailable()) for _ in range(times)]

    *before, rehearsal = asked(fork, start, 4)
    assert before == [start] * 3
    assert rehearsal != start
    (part,) = fork.partitions(start, rehearsal)
    assert list(fork.read(part)) == []
    assert asked(fork, rehearsal, 2) == [rehearsal] * 2
    assert [asked(reader, start, 5) for reader in exact] == [[start] * 5] * 2
    planned(store, tmp_path / "plan", 5 * SECOND, 7 * SECOND)
    assert asked(fork, rehearsal, 1) == [offset_of(7 * SECOND)]
    assert asked(ForkReader(options), start, 1) == [offset_of(7 * SECOND)]
    (part,) = fork.partitions(rehearsal, offset_of(7 * SECOND))
    assert sum(batch.num_rows for batch in fork.read(part)) == 2 * 200 + 1
