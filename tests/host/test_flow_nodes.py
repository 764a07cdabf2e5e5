"""Holdfast's own operators inside nodes, on real Spark: failures, corrections, kills.

HOLDFAST_FLOW_STORES=1: hosts are killed also where the operators save to a store.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.clock import monotonic_us, pause
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.spark import Flow, flow_of, read_stream
from holdfast.spark.node import SparkQueries
from holdfast.spark.wal import read_wal
from holdfast.stream.branch import BranchReader
from holdfast.stream.control import ControlLog, operator_number
from tests.host.flow_nodes import OUTPUTS, SECOND, T0, TUPLES, Source, application, finished, spark_session
from tests.spark.conftest import layout
from tests.spark.processes import REPOSITORY, environment, kill_tree, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = spark_session()
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the nodes make of the sources when nothing fails."""
    root = tmp_path_factory.mktemp("undisturbed")
    for name in ("left", "right"):
        Source(root, name).end()
    with application(root).start(spark=spark):
        until(lambda: finished(root))
    made = layouts(root)
    rows = [row for batch in holdfast.open(root).open("counts").subscribe().poll() for row in batch.to_pylist()]
    assert sum(row["count"] for row in rows) == 2 * TUPLES
    assert sum(row["sum_k"] for row in rows) == 3 * sum(range(TUPLES))
    return made


def layouts(root: Path) -> dict[str, list[Any]]:
    store = holdfast.open(root)
    return {name: layout(store.open(name)) for name in OUTPUTS}


def until(condition: Callable[[], Any], seconds: float = 180) -> None:
    deadline = monotonic_us() + round(seconds * SECOND)
    while not condition():
        assert monotonic_us() < deadline, "it did not come true"
        pause(20_000)


class Watching:
    """One output as a subscriber sees it."""

    def __init__(self, store: holdfast.StreamStore, name: str) -> None:
        self.stream = store.open(name)
        self._subscriber = self.stream.subscribe(tentative=True)
        self.got: list[pa.RecordBatch] = []

    def seen(self, kind: TupleType) -> int:
        self.got.extend(self._subscriber.poll())
        return sum(batch.column("tuple_type").to_pylist().count(int(kind)) for batch in self.got)


def batch_ends(checkpoint: Path) -> dict[int, int]:
    """Up to where each batch has read."""
    batches = [int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    return {batch: ends[0] for batch in batches if (ends := read_wal(checkpoint, batch)[1])}


def checkpoints(reader: holdfast.stream.reader.LogReader, operator: str) -> int:
    return sum(1 for _ in ControlLog(reader).backwards(operator_number(operator)))


@pytest.mark.parametrize("stored", [False, True], ids=["continuous", "every"])
def test_operators_in_nodes_go_on_without_an_input_and_are_corrected_to_the_byte(
    spark: SparkSession, tmp_path: Path, undisturbed: dict[str, list[Any]], stored: bool
) -> None:
    """D1, D3, D8, D9, C5: an aggregate, a join, and a node without state behind the aggregate."""
    store = holdfast.open(tmp_path)
    far = f"log:{tmp_path}/far" if stored else None
    sources = [Source(tmp_path, name).live() for name in ("left", "right")]
    with application(tmp_path, far).start(spark=spark) as running:
        running.wait_until_stable("180s")
        watched = [Watching(store, name) for name in OUTPUTS]
        until(lambda: all(w.seen(TupleType.INSERTION) for w in watched))
        running.fail("right")
        until(lambda: all(w.seen(TupleType.TENTATIVE) for w in watched))
        branch = BranchReader(store.open("counts").folder, store.open("counts").definition)
        assert branch.refresh() is not None
        assert branch.log is not None
        assert checkpoints(branch.log, "aggregate-direct") == 0, "a fork writes no checkpoints"
        branch.close()
        running.heal("right")
        until(lambda: all(w.seen(TupleType.REC_DONE) for w in watched))
        for w in watched:
            assert {kind for b in w.got for kind in b.column("tuple_type").to_pylist()} <= {
                TupleType.INSERTION, TupleType.TENTATIVE, TupleType.UNDO, TupleType.REC_DONE, TupleType.BOUNDARY
            }  # fmt: skip
            assert "_control" not in {name for batch in w.got for name in batch.schema.names}
        for source in sources:
            source.end()
        until(lambda: finished(tmp_path))
    assert layouts(tmp_path) == undisturbed
    assert store.open("counts").definition.schema.names == ["window_start", "g", "count", "sum_k"]
    assert (checkpoints(store.open("counts").reader(), "aggregate-direct") > 0) == (not stored)
    assert (checkpoints(store.open("pairs").reader(), "join") > 0) == (not stored)
    saved = {path.parents[0].name.rpartition(".")[0] for path in (tmp_path / "far").glob("*/*/*-of-*")}
    assert saved == ({f"{store.open(name).definition.id}.main" for name in ("counts", "pairs")} if stored else set())
    for name in ("counts", "pairs"):
        home = tmp_path / ".holdfast" / "nodes" / name
        ends = [end for _, end in sorted(batch_ends(home / "checkpoint").items())][1:]
        assert ends == sorted(set(ends)), "a batch without input: what the one before has closed came late"
        # A task that outlives its query may write the last fork's folder again; it goes with the next fork or start.
        left = {path.name for path in (home / "versions").glob("*/*")} - {"main"}
        assert len({name.split("-")[1] for name in left}) <= 1, "forks have left their state"


@pytest.mark.parametrize("stored", [False, True] if os.environ.get("HOLDFAST_FLOW_STORES") else [False])
def test_a_host_that_is_killed_goes_on_from_its_versions_and_without_them_from_the_log_or_a_store(
    tmp_path: Path, undisturbed: dict[str, list[Any]], stored: bool
) -> None:
    """C1 in a node."""
    sources = [Source(tmp_path, name) for name in ("left", "right")]
    log = tmp_path / "host.log"

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.host.flow_nodes", str(tmp_path)]
        command += [f"log:{tmp_path}/far"] if stored else []
        with log.open("a") as out:
            return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, text=True)

    for source in sources:
        source.fill(TUPLES // 2 + 5)
    reached_us = (T0 + TUPLES // 20) * SECOND
    store = holdfast.open(tmp_path)
    process = start()
    try:
        for name in OUTPUTS[:2]:
            wait_for(
                lambda name=name: name in store.names() and store.open(name).reader().boundary_us >= reached_us, name
            )
    finally:
        kill_tree(process)
    kept, lost = (tmp_path / ".holdfast" / "nodes" / name / "versions" for name in ("pairs", "counts"))
    assert list(kept.rglob("*.state"))
    assert list(lost.rglob("*.state"))
    shutil.rmtree(lost)
    for source in sources:
        source.end()
    process = start()
    try:
        wait_for(lambda: process.poll() is not None, "the outputs to end")
    finally:
        kill_tree(process)
    assert layouts(tmp_path) == undisturbed


def test_what_does_not_fit_into_a_node_is_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    Source(tmp_path, "left").leave()
    stream = holdfast.open(tmp_path).open("left")

    def queries(function: Callable[[DataFrame], Any]) -> None:
        app = holdfast.App("refused", root=tmp_path)
        app.node(inputs=["left"], name="n")(function)
        SparkQueries(spark, app.diagram().nodes[0], [stream], tmp_path, tmp_path).create_output(1_000_000)

    def updated(rows: DataFrame) -> Flow:
        return flow_of(rows).update("insert into t values (:k)", database="sqlite:///t.db")

    def written(rows: DataFrame) -> Any:
        return flow_of(rows).filter("k > 1").write("elsewhere", checkpoint_location=tmp_path / "c")

    def elsewhere(rows: DataFrame) -> Flow:
        return flow_of(read_stream(spark, "left", root=tmp_path))

    with pytest.raises(UsageError, match="must not use update"):
        queries(updated)
    with pytest.raises(UsageError, match="return the flow itself"):
        queries(written)
    with pytest.raises(UsageError, match="a flow over its inputs"):
        queries(elsewhere)
    with pytest.raises(UsageError, match="operators of Spark stand in between"):
        queries(lambda rows: flow_of(rows.filter("k > 1")))


def test_a_streaming_frame_becomes_a_flow_however_it_was_read(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path, "left")
    source.end()
    loaded = spark.readStream.format("holdfast").option("root", str(tmp_path)).load("left")
    for number, frame in enumerate((loaded, read_stream(spark, "left", root=tmp_path))):
        kept = flow_of(frame, partitions=1).filter("k % 2 = 0").map(half="k / 2")
        query = kept.write(f"out{number}", checkpoint_location=tmp_path / f"c{number}", trigger={"availableNow": True})
        query.awaitTermination()
        rows = [r for b in holdfast.open(tmp_path).open(f"out{number}").subscribe().poll() for r in b.to_pylist()]
        assert [row["half"] for row in rows] == list(range(TUPLES // 2))
