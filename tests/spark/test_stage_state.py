"""A stage whose state gets lost in the middle: what is restored from the log, and how much is read again. No Spark.

One partition runs batch by batch as Spark would run it: planner, stage, and the log of the results. The oracle is a
stage of its own that loses nothing.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from pyspark import TaskContext

import holdfast
from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, StateLost, UsageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import count_window
from holdfast.protocol.cec.policy import Continuous, Measured, continuous
from holdfast.spark import control
from holdfast.spark.direct import DirectStage, Rows, StageReader, encode_stage
from holdfast.spark.durable import Durable, query_name
from holdfast.spark.restore import Origin, Restore, Spec, operator_name, origin_of
from holdfast.spark.source import offset_of
from holdfast.spark.stage import Batch, Output, Stage, StagePlan, this_task
from holdfast.spark.version_store import VersionSaves
from holdfast.spark.versions import _PREFIX, KEPT, Scratch, Version, _memory, _parts, scratch_folder
from holdfast.stream.identity import Identity
from holdfast.stream.merge import Merge

SECOND = 1_000_000
SCHEMA = pa.schema([("stime", pa.int64()), ("key", pa.int64()), ("count", pa.int64()), ("sum", pa.int64()),
                    (control.COLUMN, pa.binary())])  # fmt: skip


def tuples(seconds: int, keys: int = 40, seed: int = 1) -> list[tuple[int, int, int]]:
    chance = random.Random(seed)
    return [(SECOND + i * SECOND // 100, chance.randrange(keys), chance.randrange(1000)) for i in range(seconds * 100)]


class Running:
    """One partition of an aggregate over count windows, with its planner, scratch and log."""

    def __init__(
        self, root: Path, stream: str, given: list[tuple[int, int, int]], policy: Continuous, *, lineage: str = "main",
        parents: tuple[str, ...] = (), origin: Origin | None = None, scratch: str = "scratch", window: int = 10,
    ) -> None:  # fmt: skip
        self.store, self.given, self.policy = holdfast.open(root), given, policy
        self.stream = self.store.create(stream, "key bigint, count bigint, sum bigint", bucket="1s", exist_ok=True)
        self.scratch = Scratch(str(root / scratch), "op", 1, lineage, parents)
        self.output = Output(str(root), stream, origin)
        self.spec = Spec(stream, "op", 1, self.scratch.folder, lineage, parents, origin=origin)
        self.planner = Restore(self.spec, self.store)
        plan = Plan((count(), sum_("v").alias("sum")), (None, 0), {0: pl.Int64()})
        self.kernel, self.panes = aggregate_kernel(count_window(window), plan, ("_h",))
        self.again: list[int] = []
        self.results: list[tuple[Any, ...]] = []

    def frame(self, since: int, until: int) -> pl.DataFrame:
        rows = [t for t in self.given if since <= t[0] < until]
        data = {"_h": [t[1] for t in rows], "_t": [t[0] for t in rows], "_v0": [t[2] for t in rows]}
        return pl.DataFrame(data, schema={"_h": pl.Int64, "_t": pl.Int64, "_v0": pl.Int64})

    def lose(self) -> None:
        """The machine is gone, and with it scratch and memory."""
        _memory.clear()
        shutil.rmtree(self.scratch.folder, ignore_errors=True)

    def batch(self, number: int, since: int, until: int, *, written: bool = True) -> None:
        read_from = self.planner.again_us(since)
        self.again.append(since - read_from)

        def again(position: int) -> pl.DataFrame:
            if position < read_from:
                raise StateLost(f"read from {read_from} only, needed from {position}")
            return self.frame(position, since)

        names = ("stime", "_h", "count", "sum")
        plan = StagePlan("op", self.kernel, self.panes, SCHEMA, names, SECOND, self.scratch, self.policy, self.output)
        messages = []
        for out in Stage(plan, 0, number).run(Batch(since, until, self.frame(since, until), again)):
            for row in out.to_pylist():
                raw = row.pop(control.COLUMN)
                if raw is None:
                    self.results += [tuple(row.values())] * written
                else:
                    messages.append(control.decode(raw, self.stream.folder / "staging"))
        if not written:
            return
        writer = self.stream.writer()
        writer.commit([], now_us=until, boundary_us=until, control=messages)
        writer.release(until)

    def run(self, first: int, last: int, lose_before: frozenset[int] = frozenset()) -> None:
        for number in range(first, last):
            if number in lose_before:
                self.lose()
            self.batch(number, (number + 1) * SECOND, (number + 2) * SECOND)

    @property
    def measured(self) -> Measured:
        found = self.scratch.load(0, max(int(p.stem) for p in Path(self.scratch.folder).rglob("*.state")))
        assert found is not None
        return found.measured


SLOW = continuous(period="2s", slow=0, budget=1.0)


@pytest.fixture(autouse=True)
def no_memory() -> None:
    _memory.clear()


def undisturbed(root: Path, given: list[tuple[int, int, int]], batches: int) -> list[tuple[Any, ...]]:
    whole = Running(root / "whole", "out", given, SLOW)
    whole.run(0, batches)
    assert len(whole.results) > 20
    return whole.results


def test_a_query_that_loses_its_scratch_mid_run_restores_it_and_goes_on(tmp_path: Path) -> None:
    """C1. The planner of the running query finds the loss and reads as much again as the log says."""
    given = tuples(14)
    running = Running(tmp_path, "out", given, SLOW)
    running.run(0, 14, frozenset((5, 6, 11)))
    assert running.results == undisturbed(tmp_path, given, 14)
    assert [n for n, span in enumerate(running.again) if span] == [5, 6, 11]
    assert max(running.again) <= 4 * SECOND


def test_a_batch_that_was_in_the_log_already_can_be_executed_again_with_other_checkpoints(tmp_path: Path) -> None:
    """C1, C2, L8. The driver dies between the log and Spark's own note, and the repeated task can afford more."""
    given = tuples(12)
    running = Running(tmp_path, "out", given, continuous(period="1s", slow=0, at_most=3, budget=1.0), window=25)
    running.run(0, 6)
    running.policy = continuous(period="1s", slow=0, budget=1.0)
    running.batch(5, 6 * SECOND, 7 * SECOND, written=False)
    assert running.planner.needed_us(7 * SECOND) <= 3 * SECOND
    running.policy = continuous(period="1h")
    running.run(6, 8)
    running.lose()
    running.run(8, 12)
    whole = Running(tmp_path / "whole", "out", given, SLOW, window=25)
    whole.run(0, 12)
    assert running.results == whole.results
    assert whole.results


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "older"])
def test_a_version_that_is_damaged_counts_as_lost_and_is_never_believed(tmp_path: Path, damage: str) -> None:
    given = tuples(8)
    running = Running(tmp_path, "out", given, SLOW)
    running.run(0, 6)
    _memory.clear()
    (path,) = [p for p in Path(running.scratch.folder).rglob("*.state") if int(p.stem) == 7 * SECOND]
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        length, _, body, _, _ = _parts(bytes(raw))
        for at in [*range(_PREFIX.size + length), *range(body, len(raw), 7)]:  # Padding between them means nothing.
            flipped = bytearray(raw)
            flipped[at] ^= 4
            path.write_bytes(flipped)
            assert running.scratch.load(0, 7 * SECOND) is None, at
            assert not path.exists(), "the planner must see that it is lost"
    else:
        path.write_bytes({"cut": raw[: len(raw) // 2], "empty": b"", "older": b"ARROW1"}[damage])
        assert not running.scratch.has(7 * SECOND)
    running.run(6, 8)
    assert running.results == undisturbed(tmp_path, given, 8)


def test_a_version_that_an_earlier_life_left_in_memory_is_not_taken_for_the_one_on_disk(tmp_path: Path) -> None:
    """A worker lives longer than a query; another one may have computed the partition since."""
    scratch = Scratch(str(tmp_path), "op", 1)
    old, new = (Version({0: pl.DataFrame({"_h": [number]})}, Measured()) for number in (1, 2))
    scratch.store(0, SECOND, old)
    elsewhere = dict(_memory)
    scratch.store(0, SECOND, new)
    _memory.clear()
    _memory.update(elsewhere)
    found = scratch.load(0, SECOND)
    assert found is not None
    assert found.blocks[0].equals(new.blocks[0])


def test_each_query_over_a_frame_has_its_own_state_and_uses_only_what_the_same_flow_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: nothing but the versions knows what the flow of a frame was."""
    running = Running(tmp_path, "out", tuples(12), SLOW)
    names, scratch = ("stime", "_h", "count", "sum"), Scratch(str(tmp_path), "op", 1, "frame-of-tens", per_query=True)
    plan = StagePlan("op", running.kernel, running.panes, SCHEMA, names, SECOND, scratch, made_by=frame_of(10))

    def batch(query: str, number: int, given: StagePlan = plan) -> list[dict[str, Any]]:
        said = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
        task = SimpleNamespace(getLocalProperty=said.get, partitionId=lambda: 0)
        monkeypatch.setattr(TaskContext, "get", lambda: task)
        since, until = (number + 1) * SECOND, (number + 2) * SECOND
        made = this_task(given, None).run(Batch(since, until, running.frame(since, until), lambda _: pl.DataFrame()))
        return [row for out in made for row in out.to_pylist()]

    alone = [batch("alone", number) for number in range(10)]
    batch("slow", 0)
    assert [batch("quick", number) for number in range(10)] == alone
    _memory.clear()
    assert [batch("slow", number) for number in range(1, 3)] == alone[1:3]
    with pytest.raises(UsageError, match="must compute what its state was made by; it has changed: - size: 10"):
        batch("slow", 3, replace(plan, made_by=frame_of(5)))
    assert batch("slow", 3) == alone[3]
    for query in ("nobody", "slow"):
        shutil.rmtree(tmp_path / "op" / "frame-of-tens" / query, ignore_errors=True)
        with pytest.raises(StateLost, match=r"is lost, .* another checkpointLocation; frame\(name=…\) goes on"):
            batch(query, 4)


def frame_of(size: int) -> str:
    return msgspec.json.encode(Identity(("operator aggregate", f"size: {size}"))).decode()


def test_operators_that_are_given_one_scratch_folder_do_not_take_each_others_state(tmp_path: Path) -> None:
    """They have the same name, lineage and positions; only the stream that they write tells them apart."""

    def folder(root: str, stream: str) -> Scratch:
        return Scratch(scratch_folder(root, stream, tmp_path, local=True), "aggregate", 1)

    kept = Version({0: pl.DataFrame({"_h": [1]})}, Measured())
    folder("/streams", "a").store(0, SECOND, kept)
    for root, stream in (("/streams", "b"), ("/other", "a")):
        assert folder(root, stream).load(0, SECOND) is None
    assert folder("/streams", "a").load(0, SECOND) is not None
    assert scratch_folder("/streams", "a", None, local=False) == "/streams/a/state"


def test_an_operator_that_has_numbered_its_groups_already_keeps_its_name(tmp_path: Path) -> None:
    """Names stand for the way of numbering. What was begun under the older one would not be found under the newer."""

    def name(scratch: str, stream: str = "out", lineage: str = "main") -> str:
        return operator_name(("op-nulls", "op"), holdfast.open(tmp_path), stream, str(tmp_path / scratch), (lineage,))

    assert name("scratch") == name("scratch", stream=".frames") == "op-nulls"
    running = Running(tmp_path, "out", tuples(3), SLOW)
    assert name("scratch") == "op-nulls"
    running.run(0, 2)
    assert name("scratch") == name("lost") == "op"
    assert name("lost", stream="another") == "op-nulls"
    holdfast.open(tmp_path).create("another", "key bigint", bucket="1s")
    assert name("lost", stream="another") == name("scratch", stream="another", lineage="fork") == "op-nulls"


def test_an_operator_that_has_saved_to_a_store_alone_keeps_its_name(tmp_path: Path) -> None:
    """Its scratch is lost, and the log of its results has no checkpoints."""
    stream = holdfast.open(tmp_path).create("out", "key bigint", bucket="1s")
    far = f"log:{tmp_path}/far"

    def name(lineage: str = "main") -> str:
        store = holdfast.open(tmp_path)
        queries = [query_name(stream.definition.id, lineage, "0a1b2c3d")]
        return operator_name(("op-nulls", "op"), store, "out", str(tmp_path / "scratch"), (lineage,), far, queries)

    assert name() == "op-nulls", "it has not begun"
    writer = stream.writer()
    writer.commit([], now_us=SECOND, boundary_us=SECOND)
    writer.release(SECOND)
    assert name() == "op-nulls"
    assert not (tmp_path / "far").exists(), "a look leaves nothing behind"
    empty = Version({}, Measured())
    durable = Durable("op", far, SECOND, 1, query_name(stream.definition.id, "main", "0a1b2c3d"))
    VersionSaves(durable, 0).keep(empty, 0, empty, SECOND, batch=0, begun_us=now_us())
    assert name() == "op"
    assert name("fork") == "op-nulls"


def fork(tmp_path: Path, given: list[tuple[int, int, int]]) -> Running:
    """A fork at second 6 of a parent that has gone on long enough for its versions of then to be gone."""
    parent = Running(tmp_path, "out", given, SLOW)
    parent.run(0, 5 + KEPT + 2)
    assert parent.scratch.load(0, 6 * SECOND) is None
    return Running(tmp_path, "forked", given, SLOW, lineage="fork", parents=("main",), origin=Origin("out", 6 * SECOND))


def test_a_fork_whose_parents_version_has_left_the_scratch_is_restored_from_the_parents_log(tmp_path: Path) -> None:
    """Its own log and the parent's together hold its windows; what the parent did after the fork is not its own."""
    given = tuples(14)
    forked = fork(tmp_path, given)
    forked.run(5, 14, frozenset((7, 8, 12)))
    before = Running(tmp_path / "before", "out", given, SLOW)
    before.run(0, 5)
    assert before.results + forked.results == undisturbed(tmp_path, given, 14)


def test_a_fork_that_does_not_name_its_parents_stream_is_refused_and_not_begun_empty(tmp_path: Path) -> None:
    forked = fork(tmp_path, tuples(14))
    orphan = Running(tmp_path, "orphan", forked.given, SLOW, lineage="fork", parents=("main",))
    with pytest.raises(CorruptLog, match="no checkpoint"):
        orphan.run(5, 6)


def test_a_fork_remembers_where_it_parted_from_its_parent(tmp_path: Path) -> None:
    for kind in ("offsets", "commits"):
        (tmp_path / "c" / kind).mkdir(parents=True)

    def commit(batch: int, until_us: int) -> None:
        text = f'v1\n{{}}\n{{"format": 1, "until_us": {until_us}}}\n'
        (tmp_path / "c" / "offsets" / str(batch)).write_text(text)
        (tmp_path / "c" / "commits" / str(batch)).write_text("v1\n{}\n")

    with pytest.raises(UsageError, match="needs a checkpoint that was forked"):
        origin_of(tmp_path / "c", "out")
    commit(4, 6 * SECOND)
    assert origin_of(tmp_path / "c", "out") == Origin("out", 6 * SECOND)
    commit(5, 7 * SECOND)
    assert origin_of(tmp_path / "c", "out") == Origin("out", 6 * SECOND)


def test_what_recovery_reads_again_follows_the_time_that_was_asked_for(tmp_path: Path) -> None:
    """§4.2's extent control at work: the work that a second of input is, as measured, times what is read again."""
    given = tuples(40, keys=400)
    spans = {}
    for goal in ("1us", "1h"):
        policy = continuous(recover_within=goal, budget=1.0)
        running = Running(tmp_path / goal, "out", given, policy, window=1000)
        running.run(0, 39)
        running.lose()
        running.batch(39, 40 * SECOND, 41 * SECOND)
        spans[goal] = running.again[-1]
        if goal == "1h":
            assert spans[goal] / 1e6 * running.measured.load <= 3600
    # Not even one batch can be read again in a microsecond: then every window is saved with nearly every batch.
    assert spans["1us"] <= 4 * SECOND
    assert spans["1h"] >= 30 * SECOND


def test_what_loading_a_window_costs_is_measured_when_windows_are_loaded(tmp_path: Path) -> None:
    """`recover_within` counts with it. Until the first recovery it is a guess."""
    running = Running(tmp_path, "out", tuples(8, keys=400), continuous(recover_within="2s"), window=1000)
    running.run(0, 6)
    assert running.measured.load_cost_s == Measured().load_cost_s
    running.lose()
    running.run(6, 8)
    assert 0 < running.measured.load_cost_s != Measured().load_cost_s


def test_a_column_that_one_of_the_streams_lacks_is_null_for_a_stage_that_reads_itself(tmp_path: Path) -> None:
    """As the merged schema promises. The first stream has the key alone, the second the value as well."""
    store, streams = holdfast.open(tmp_path), ("a", "b")
    for name, columns in (("a", "key bigint"), ("b", "v bigint, key bigint")):
        producer = store.create(name, columns, bucket="1s").producer(stime="stime", slack="0s")
        producer.send_many([{"stime": SECOND * i, "key": i, "v": 10 * i} for i in (1, 2)] if name == "b" else
                           [{"stime": SECOND * i, "key": i} for i in (1, 2)])  # fmt: skip
        producer.close(end=True)
    running = Running(tmp_path, "out", [], SLOW)
    plan = StagePlan("op", running.kernel, running.panes, SCHEMA, (), SECOND, running.scratch, None, running.output)
    merge = Merge([store.open(name) for name in streams])
    rows = Rows(DirectStage(plan, 1, ("key",), ("v",)), merge.sources, 0)
    read = rows.read(merge.pieces(0, 9 * SECOND), 0, 9 * SECOND)
    assert read.rows() == [(1, SECOND, None), (1, SECOND, 10), (2, 2 * SECOND, None), (2, 2 * SECOND, 20)]
    assert rows.read([], 0, SECOND).schema == read.schema


def test_what_an_open_window_relies_on_is_not_acknowledged_by_a_stage_that_reads_itself(tmp_path: Path) -> None:
    """L8: the acknowledgement of a batch is the position T of its oldest footprint, not the end of the batch."""
    given = tuples(8)
    running = Running(tmp_path, "out", given, continuous(period="1h", budget=1.0), window=1000)
    running.run(0, 6)
    inputs = running.store.create("in", "key bigint, v bigint", bucket="1s")
    plan = StagePlan("op", running.kernel, running.panes, SCHEMA, ("stime", "_h", "count", "sum"), SECOND,
                     running.scratch, running.policy, running.output)  # fmt: skip
    stage = encode_stage(DirectStage(plan, 1, ("key",), ("v",)))
    restore = msgspec.json.encode(running.spec).decode()
    options = {"root": str(tmp_path), "path": "in", "subscriber": "op", "stage": stage, "restore": restore}
    reader = StageReader(options)
    reader.commit(offset_of(7 * SECOND))
    assert inputs.acks()["op"].until_us == 2 * SECOND
    reader.stop()
