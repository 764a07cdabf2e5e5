"""Operators of a flow with `every(…)` and a store, on Spark: what is lost with a machine comes back from there.

HOLDFAST_FLOW_STORES=1 for all kinds of them, and for other numbers of partitions.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import holdfast
from holdfast.checkpoint.policy import every
from holdfast.operators.functions import count, sum_
from holdfast.operators.join_kernel import keep_time
from holdfast.operators.windows import Window, count_window, time_window
from holdfast.spark import flow
from holdfast.spark.flow import Flow
from holdfast.spark.fork import fork_checkpoint
from holdfast.spark.save_figures import saves_of
from tests.spark.conftest import fill, layout, tuples

NOW = {"availableNow": True}
AT_LENGTH = bool(os.environ.get("HOLDFAST_FLOW_STORES"))
OFTEN = every("1ms")


def rows(number: int, seed: int, begin: float = 0.0) -> list[tuple[float, str, int]]:
    chance = random.Random(seed)
    return [(begin + i * 0.01, f"k{chance.randrange(7)}", chance.randrange(1000)) for i in range(number)]


def windows(spark: SparkSession, root: Path, far: str, *, window: Window | None = None, shuffled: bool = False,
            partitions: int = 2, checkpoint: Any = OFTEN) -> Flow:  # fmt: skip
    given = flow(spark, "in", root=root, partitions=partitions, maxRowsPerBatch=100, subscriber="windows")
    given = given.filter("value >= 0") if shuffled else given
    window = window or time_window("2s", "1s")
    return given.aggregate(count(), sum_("value"), window=window, by="key", checkpoint=checkpoint, store=far)


def pairs(spark: SparkSession, root: Path, far: str) -> Flow:
    given = flow(spark, "in", "t", root=root, partitions=2, maxRowsPerBatch=100)
    return given.join("in", "t", window=keep_time("100ms"), by="key", take_left={"l": "value"},
                      take_right={"r": "value"}, checkpoint=OFTEN, store=far)  # fmt: skip


BUILDS: dict[str, Callable[..., Flow]] = {
    "reads itself": windows,
    "behind a shuffle": lambda *given: windows(*given, shuffled=True),
    "counts": lambda *given: windows(*given, window=count_window(10)),
    "exact": lambda *given: windows(*given, checkpoint=every("1h", exact=True)),
    "join": pairs,
}  # fmt: skip


def run(made: Flow, output: str, tmp_path: Path, scratch: str, **given: Any) -> StreamingQuery:
    query = made.write(
        output, checkpoint_location=tmp_path / f"c-{output}", trigger=NOW, scratch=tmp_path / scratch, **given
    )
    query.awaitTermination()
    return query


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS if AT_LENGTH else list(BUILDS)[:2])
def test_state_that_is_lost_comes_back_from_the_store(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    """C1: the same bytes as a run that lost nothing."""
    fill(store, "t", rows(600, 9))
    fill(store, "in", rows(500, 2), end=False, until=5.0)
    made = BUILDS[name](spark, store.root, f"log:{tmp_path}/far")
    query = run(made, "out", tmp_path, "first")
    (saves,) = saves_of(str(query.id))
    assert saves.operator.startswith(("aggregate", "join"))
    assert saves.durable + saves.waiting > 0
    assert saves.bytes > 0
    assert saves.last_restore_s is None
    fill(store, "in", rows(300, 3, begin=5.0))
    query = run(made, "out", tmp_path, "second")
    (saves,) = saves_of(str(query.id))
    assert saves.last_restore_s is not None, "it came from the store"
    run(BUILDS[name](spark, store.root, f"log:{tmp_path}/other"), "whole", tmp_path, "third")
    assert layout(store.open("out")) == layout(store.open("whole"))


def test_another_definition_of_the_flow_is_refused_and_nothing_in_the_store_is_touched(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """C12."""
    fill(store, "in", rows(300, 2), end=False, until=3.0)
    far = f"log:{tmp_path}/far"
    run(windows(spark, store.root, far), "out", tmp_path, "s")
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(holdfast.UsageError, match=r"must compute what the state in .* was made by"):
        run(windows(spark, store.root, far, window=time_window("3s", "1s")), "out", tmp_path, "s")
    fill(store, "in", rows(300, 3, begin=3.0))
    run(windows(spark, store.root, far), "out", tmp_path, "s")
    run(windows(spark, store.root, f"{far}2"), "whole", tmp_path, "s2")
    assert layout(store.open("out")) == layout(store.open("whole"))


@pytest.mark.slow
def test_a_fork_that_lost_scratch_has_its_own_versions_and_its_parent_goes_on_from_its_own(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    fill(store, "in", rows(500, 21), end=False, until=5.0)
    made = windows(spark, store.root, f"log:{tmp_path}/far", window=count_window(10), shuffled=True)
    run(made, "out", tmp_path, "s")
    first = len(tuples(store.open("out")))
    fork_checkpoint(tmp_path / "c-out", tmp_path / "c-forked")
    fill(store, "in", rows(200, 22, begin=5.0), end=False, until=7.0)
    shutil.rmtree(tmp_path / "s")
    run(made, "forked", tmp_path, "s", lineage="fork", fork_of="out")
    shutil.rmtree(tmp_path / "s")
    fill(store, "in", rows(200, 23, begin=7.0))
    run(made, "forked", tmp_path, "s", lineage="fork", fork_of="out")
    run(made, "out", tmp_path, "s")
    later = [t[1:] for t in tuples(store.open("out"))[first:]]
    assert [t[1:] for t in tuples(store.open("forked"))] == later
    assert later


@pytest.mark.slow
@pytest.mark.skipif(not AT_LENGTH, reason="HOLDFAST_FLOW_STORES=1 for other numbers of partitions")
@pytest.mark.parametrize("shuffled", [False, True], ids=["reads itself", "behind a shuffle"])
def test_with_another_number_of_partitions_groups_are_dealt_out_anew_from_the_store(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, shuffled: bool
) -> None:
    """C13. More than eight partitions: what reads the log itself keeps doing so, for its groups have its numbers."""
    for at, partitions in enumerate((4, 2, 9)):
        fill(store, "in", rows(200, at, begin=2.0 * at), end=at == 2, until=None if at == 2 else 2.0 * (at + 1))
        made = windows(spark, store.root, f"log:{tmp_path}/far", shuffled=shuffled, partitions=partitions)
        run(made, "out", tmp_path, f"s{at}")
    run(windows(spark, store.root, f"log:{tmp_path}/other", shuffled=shuffled), "whole", tmp_path, "whole")
    assert layout(store.open("out")) == layout(store.open("whole"))


def test_input_is_acknowledged_as_far_as_the_store_does_without(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """L8: at first nothing, and later not beyond the older of two checkpoints."""
    stream = fill(store, "in", rows(100, 2), end=False, until=1.0)
    made = windows(spark, store.root, f"log:{tmp_path}/far")
    query = made.write("out", checkpoint_location=tmp_path / "c", scratch=tmp_path / "s")
    try:
        query.processAllAvailable()
        acknowledged = [-(2**62)]
        for second in range(1, 40):
            fill(store, "in", rows(100, second, begin=second), end=False, until=second + 1.0)
            query.processAllAvailable()
            acknowledged.append(stream.acks()["windows"].until_us if "windows" in stream.acks() else -(2**62))
            if acknowledged[-1] > 0:
                break
        assert 0 < acknowledged[-1] <= round((1_700_000_000 + len(acknowledged) - 2) * 1e6)
        assert acknowledged == sorted(acknowledged)
    finally:
        query.stop()
