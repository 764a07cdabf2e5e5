"""User-defined operators in executors: each state where its batch begins, whatever is run again or lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.checkpoint.policy import every, groups
from holdfast.operators.keyed_join import keyed_join
from holdfast.operators.window_join import Input
from holdfast.spark import read_stream
from holdfast.spark.fork import fork_checkpoint
from holdfast.spark.keyed import Keyed, barrier, forked_from, udop
from holdfast.spark.save_figures import saves_of
from tests.spark.conftest import fill
from tests.spark.summing import Summing

ROWS = [(i * 0.5, "abcd"[i * 7 % 4], i) for i in range(40)]


def make(tmp_path: Path, checkpoint: Any, fail_at: Path | None = None) -> Keyed:
    class Running(Summing):
        def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
            if fail_at is not None and row["value"] == 30 and not fail_at.exists():
                fail_at.touch()
                raise RuntimeError("planned")
            return super().process(row)

    store = None if checkpoint is None else f"log:{tmp_path}/far"
    return udop("running", Running, key="key", schema="key string, sum bigint", checkpoint=checkpoint, store=store,
                scratch=str(tmp_path / "near"))  # fmt: skip


def run(
    spark: SparkSession,
    store: holdfast.StreamStore,
    operator: Callable[[DataFrame], DataFrame],
    tmp_path: Path,
    checkpoint: str = "checkpoint",
    rows: int = 10,
) -> list[Any]:
    """What is there, in batches of some ten tuples; what came out of each."""
    found: list[list[tuple[str, int]]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        found.append([tuple(row) for row in frame.collect()])

    source = read_stream(spark, "in", root=str(store.root), maxRowsPerBatch=rows)
    query = (
        source.transform(operator)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def expected(rows: list[tuple[float, str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for _, key, value in rows:
        found.setdefault(key, []).append((found.get(key) or [0])[-1] + value)
    return found


def gathered(batches: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for batch in batches:
        for key, value in batch:
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("policy", [None, every("1ms", exact=True)])
def test_an_operator_of_ones_own_gives_each_key_its_state_over_batches_and_restarts(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, policy: Any
) -> None:
    fill(store, "in", ROWS[:20], end=False, until=10)
    operator = make(tmp_path, policy)
    first = run(spark, store, operator, tmp_path)
    assert len(first) > 1
    fill(store, "in", ROWS[20:], until=30)
    assert gathered(first + run(spark, store, operator, tmp_path)) == expected(ROWS)


def test_a_batch_that_is_run_again_begins_with_the_state_it_began_with(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """A task that fails in the middle is tried again; other tasks of its batch had saved their states already."""
    fill(store, "in", ROWS, until=30)
    operator = make(tmp_path, every("1ms", exact=True), fail_at=tmp_path / "failed")
    assert gathered(run(spark, store, operator, tmp_path)) == expected(ROWS)
    assert (tmp_path / "failed").exists()


def test_exact_survives_the_loss_of_the_machine_and_refuses_what_it_cannot_know(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    fill(store, "in", ROWS[:20], end=False, until=10)
    operator = make(tmp_path, every("1ms", exact=True))
    first = run(spark, store, operator, tmp_path)
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", ROWS[20:30], end=False, until=15)
    second = run(spark, store, operator, tmp_path)
    assert gathered(first + second) == expected(ROWS[:30])
    (saved,) = saves_of(json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"])
    assert (saved.operator, saved.dropped, saved.waiting) == ("running", 0, 0)
    assert saved.durable >= len(first) + len(second), "each batch of each partition, as its task has told"
    assert saved.bytes > 0
    assert saved.last_restore_s is not None
    shutil.rmtree(tmp_path / "near")
    shutil.rmtree(tmp_path / "far")
    fill(store, "in", ROWS[30:], until=30)
    with pytest.raises(StreamingQueryException, match="neither on this machine nor in"):
        run(spark, store, operator, tmp_path)


def test_best_effort_goes_on_from_an_earlier_state_of_each_key(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """C7: what a key goes on from is a sum that it had before."""
    fill(store, "in", ROWS[:20], end=False, until=10)
    operator = make(tmp_path, every(events=3))
    first = gathered(run(spark, store, operator, tmp_path))
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", ROWS[20:], until=30)
    second = gathered(run(spark, store, operator, tmp_path))
    for key, sums in second.items():
        added = [value for _, k, value in ROWS[20:] if k == key]
        assert sums[0] - added[0] in [0, *first[key]]
        assert sums[0] - added[0] > 0, "something had been saved"


def test_a_key_without_tuples_for_its_time_to_live_begins_anew(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """By `stime`, over batches and restarts: "d" is quiet for 8 s, "c" never for 4."""

    class Lasting(make(tmp_path, None).prototype):  # type: ignore[misc]
        time_to_live_us = 4_000_000

    rows = [(t, k, v) for t, k, v in ROWS if k != "d" or t < 5 or t >= 11]
    fill(store, "in", [r for r in rows if r[0] < 10], end=False, until=10)
    operator = replace(make(tmp_path, every("1ms", exact=True)), prototype=Lasting, time="stime")
    first = run(spark, store, operator, tmp_path)
    fill(store, "in", [r for r in rows if r[0] >= 10], until=30)
    found = gathered(first + run(spark, store, operator, tmp_path))
    early, late = ([r for r in rows if (r[0] < 10) == before and r[1] == "d"] for before in (True, False))
    assert found["d"] == expected(early)["d"] + expected(late)["d"]
    assert found["c"] == expected(rows)["c"]


def test_a_key_whose_time_to_live_is_over_goes_on_where_it_was_and_so_does_a_partition_restored_lazily(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    rows = [(t, k, v) for t, k, v in ROWS if k != "d" or t < 5 or t >= 11]
    operator = udop("running", Summing, key="key", schema="key string, sum bigint", checkpoint=every("1ms", exact=True),
                    store=f"log:{tmp_path}/far", scratch=str(tmp_path / "near"), time="stime", ttl="2s", forget=False,
                    restore="lazily")  # fmt: skip
    fill(store, "in", [r for r in rows if r[0] < 10], end=False, until=10)
    first = run(spark, store, operator, tmp_path)
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", [r for r in rows if r[0] >= 10], until=30)
    assert gathered(first + run(spark, store, operator, tmp_path)) == expected(rows)


def test_a_join_with_a_window_per_key_runs_in_executors(spark: SparkSession, tmp_path: Path) -> None:
    left = pa.schema([("k", pa.int64()), ("a", pa.string())])
    right = pa.schema([("k", pa.int64()), ("b", pa.string())])
    columns = "tuple_id long, k long, a string, b string, side string"
    a = spark.createDataFrame([(i, i % 3, f"a{i}", None, "left") for i in range(0, 40, 2)], columns)
    b = spark.createDataFrame([(i, i % 3, None, f"b{i}", "right") for i in range(1, 40, 2)], a.schema)
    pairs = udop("pairs", keyed_join(Input(left, 2), Input(right, 0), on="k"), key="k",
                 schema="k bigint, a string, b string", scratch=str(tmp_path))  # fmt: skip
    expected = set()
    for i in range(1, 40, 2):
        window = [j for j in range(0, i, 2) if j % 3 == i % 3][-2:]
        expected |= {(i % 3, f"a{j}", f"b{i}") for j in window}
    assert {tuple(row) for row in a.union(b).transform(pairs).collect()} == expected


def test_a_join_with_one_window_over_all_keys_runs_in_one_task(spark: SparkSession, tmp_path: Path) -> None:
    left = pa.schema([("k", pa.int64()), ("a", pa.string())])
    right = pa.schema([("k", pa.int64()), ("b", pa.string())])
    columns = "tuple_id long, k long, a string, b string, side string"
    a = spark.createDataFrame([(i, i % 3, f"a{i}", None, "left") for i in range(0, 40, 2)], columns)
    b = spark.createDataFrame([(i, i % 3, None, f"b{i}", "right") for i in range(1, 40, 2)], a.schema)
    pairs = udop("pairs", keyed_join(Input(left, 5), Input(right, 0), on="k"), key=None,
                 schema="k bigint, a string, b string", scratch=str(tmp_path))  # fmt: skip
    expected = [(i % 3, f"a{j}", f"b{i}") for i in range(1, 40, 2) for j in range(0, i, 2)[-5:] if j % 3 == i % 3]
    assert [tuple(row) for row in a.union(b).transform(pairs).collect()] == expected


def joined(tmp_path: Path, window: int, size: int) -> Callable[[DataFrame], DataFrame]:
    """Every third tuple meets the last ones of its key before it."""
    left, right = (pa.schema([("key", pa.string()), (side, pa.int64())]) for side in "ab")
    pairs = udop("pairs", keyed_join(Input(left, window), Input(right, 0), on="key"), key="key",
                 schema="key string, a bigint, b bigint", checkpoint=groups(size, every="1s", exact=True),
                 store=f"log:{tmp_path}/far", scratch=str(tmp_path / "near"))  # fmt: skip

    def both(frame: DataFrame) -> DataFrame:
        side = "if(value % 3 = 0, 'right', 'left') as side"
        return frame.selectExpr("*", side, "value as a", "value as b").transform(pairs)

    return both


def test_what_a_batch_of_a_join_in_groups_saves_follows_what_came_and_not_its_windows(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """Counted on disk: four windows of 1,000 tuples, in groups of 50."""

    def written() -> list[int]:
        found = ((tmp_path / where).rglob("segment-*") for where in ("near", "far"))
        return [sum(path.stat().st_size for path in paths) for paths in found]

    both = joined(tmp_path, 1_000, 50)
    fill(store, "in", [(i * 0.001, "abcd"[i % 4], i) for i in range(6_000)], end=False, until=10)
    run(spark, store, both, tmp_path, rows=10_000)
    before = written()
    fill(store, "in", [(10 + i * 0.01, "a", 6_001) for i in range(10)], until=20)
    run(spark, store, both, tmp_path)
    for whole, later in zip(before, written(), strict=True):
        assert whole > 64_000, "16 bytes for each tuple"
        assert later - whole < 8_000


def test_a_join_in_exact_groups_survives_the_loss_of_the_machine_and_is_forked(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """C1, S1: its windows come back group by group; a fork goes on from them and gives what its parent gives."""
    both = joined(tmp_path, 5, 2)
    fill(store, "in", ROWS[:25], end=False, until=12.5)
    found = run(spark, store, both, tmp_path)
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", ROWS[25:32], end=False, until=16)
    found += run(spark, store, both, tmp_path)
    forked = fork_checkpoint(tmp_path / "checkpoint", tmp_path / "forked")
    parent = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    fill(store, "in", ROWS[32:], until=30)
    with forked_from(parent, tmp_path / "operators"):
        by_fork = run(spark, store, both, tmp_path, "forked")
    by_parent = run(spark, store, both, tmp_path)
    assert sorted(p for out in by_fork for p in out) == sorted(p for out in by_parent for p in out)
    assert forked.query_id != parent
    expected = set()
    for _, key, b in ROWS:
        if b % 3 == 0:
            expected |= {(key, a, b) for a in [v for _, k, v in ROWS[:b] if k == key and v % 3][-5:]}
    assert sorted(p for out in found + by_parent for p in out) == sorted(expected)


def test_a_barrier_pairs_over_batches_restarts_and_the_loss_of_the_machine(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """004 §4: the k-th tuples of both inputs, whatever was lost between."""
    inputs = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("y", pa.int64())])}
    gate = barrier("gate", inputs, schema="x bigint, y bigint", store=f"log:{tmp_path}/far", side="key",
                   scratch=str(tmp_path / "near"))  # fmt: skip

    def both(frame: DataFrame) -> DataFrame:
        return frame.where("key in ('a', 'b')").selectExpr("*", "value as x", "value as y").transform(gate)

    fill(store, "in", ROWS[:21], end=False, until=10)
    first = run(spark, store, both, tmp_path)
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", ROWS[21:], until=30)
    found = [pair for batch in first + run(spark, store, both, tmp_path) for pair in batch]
    of = {side: [value for _, key, value in ROWS if key == side] for side in "ab"}
    assert found == list(zip(of["a"], of["b"], strict=True))
