"""Several operators with state in one query, each with its own policy, and Spark's windows behind them.

C1, C13 and S1 of a row of operators: a query that is started again, with another number of partitions, without the
scratch of one of them, and forked gives what a plain loop gives.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.model.errors import UsageError
from holdfast.operators import UserOperator, count_window, decode, encode, every, groups, sum_
from holdfast.operators.keyed_barrier import paired
from holdfast.operators.keyed_join import keyed_join
from holdfast.operators.window_join import Input
from holdfast.spark import flow, read_stream
from holdfast.spark.fork import fork_checkpoint
from holdfast.spark.keyed import check_names, forked_from, in_node, udop
from holdfast.spark.session import with_settings
from holdfast.spark.time_column import time_path
from tests.spark.conftest import T0, fill
from tests.spark.summing import Summing

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot import the tests.
ROWS = [(i * 0.5, "abcd"[i * 7 % 4], i) for i in range(48)]


class Timed(Summing):
    """The sum of a key so far, with the time of its tuple."""

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"stime": row["stime"], "third": row["value"] % 3, **super().process(row)[0]}]


class Numbered(UserOperator):
    """Numbers what it gets, whatever it is."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.count += 1
        return [{"third": row["third"], "number": self.count, "sum": row["sum"]}]

    def checkpoint(self) -> bytes:
        return encode(self.count)

    def restore(self, saved: bytes) -> None:
        self.count = decode(saved)


def run(spark: SparkSession, store: holdfast.StreamStore, build: Callable[[DataFrame], DataFrame], checkpoint: Path,
        partitions: int = 2) -> list[tuple[Any, ...]]:  # fmt: skip
    """What a query gives for what is there, in batches of some twelve tuples."""
    found: list[tuple[Any, ...]] = []
    session = with_settings(spark, {"spark.sql.shuffle.partitions": str(partitions)})
    frame = build(read_stream(session, "in", root=store.root, boundaries="exact", maxRowsPerBatch=12))
    query = frame.writeStream.foreachBatch(lambda out, _: found.extend(map(tuple, out.collect())))
    started = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    started.awaitTermination()
    return found


def test_two_operators_with_different_policies_go_on_over_restarts_partitions_losses_and_forks(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """The first is exact and loses its scratch; the second has nothing but scratch."""
    sums = udop("sums", Timed, key="key", schema="stime timestamp, third bigint, key string, sum bigint",
                checkpoint=every("1ms", exact=True), store=f"log:{tmp_path}/far",
                scratch=str(tmp_path / "near"))  # fmt: skip
    numbers = udop("numbers", Numbered, key="third", schema="third bigint, number bigint, sum bigint",
                   scratch=str(tmp_path / "other"))  # fmt: skip

    def build(frame: DataFrame) -> DataFrame:
        return frame.transform(sums).where("sum >= 0").transform(numbers)

    fill(store, "in", ROWS[:20], end=False, until=10)
    found = run(spark, store, build, tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "near")
    fill(store, "in", ROWS[20:34], end=False, until=17)
    found += run(spark, store, build, tmp_path / "checkpoint", partitions=3)
    fork_checkpoint(tmp_path / "checkpoint", tmp_path / "forked")
    parent = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    fill(store, "in", ROWS[34:], until=30)
    with forked_from(parent, tmp_path / "operators"):
        by_fork = run(spark, store, build, tmp_path / "forked", partitions=3)
    by_parent = run(spark, store, build, tmp_path / "checkpoint", partitions=3)
    assert sorted(by_fork) == sorted(by_parent)

    so_far: Counter[str] = Counter()
    count: Counter[int] = Counter()
    expected = []
    for _, key, value in ROWS:
        so_far[key] += value
        count[value % 3] += 1
        expected.append((value % 3, count[value % 3], so_far[key]))
    assert sorted(found + by_parent) == sorted(expected)


def test_windows_of_sparks_follow_a_join(spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path) -> None:
    """Pairs have event time, as a node's results must: no stime= is needed, and a restart loses no window."""
    left, right = (pa.schema([("key", pa.string()), (side, pa.int64())]) for side in "ab")
    pairs = udop("pairs", keyed_join(Input(left, 3), Input(right, 0), on="key"), key="key",
                 schema="stime timestamp, key string, a bigint, b bigint", checkpoint=groups(2, every="1s", exact=True),
                 store=f"log:{tmp_path}/far", scratch=str(tmp_path / "near"))  # fmt: skip

    def build(frame: DataFrame) -> DataFrame:
        side = "if(value % 3 = 0, 'right', 'left') as side"
        paired = frame.selectExpr("*", side, "value as a", "value as b").transform(pairs)
        assert time_path(paired.schema, None, "pairs") == ("stime",)
        return paired.groupBy(F.window("stime", "4 seconds")).agg(F.count("*"), F.sum("a")).selectExpr(
            "unix_seconds(window.start)", "`count(1)`", "`sum(a)`"
        )  # fmt: skip

    fill(store, "in", ROWS[:25], end=False, until=12.5)
    found = run(spark, store, build, tmp_path / "checkpoint")
    assert found, "windows that have passed leave before the stream ends"
    fill(store, "in", ROWS[25:], until=30)
    found += run(spark, store, build, tmp_path / "checkpoint")
    expected: dict[int, tuple[int, int]] = {}
    for time, key, b in ROWS:
        for a in [v for _, k, v in ROWS[:b] if k == key and v % 3][-3:] if b % 3 == 0 else []:
            start = int(T0 + time) // 4 * 4
            count, total = expected.get(start, (0, 0))
            expected[start] = (count + 1, total + a)
    assert sorted(found) == sorted((start, *totals) for start, totals in expected.items())


def test_an_operator_of_the_users_follows_the_frame_of_a_flow_over_restarts(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """A named frame finds its state again. (Without scratch, or changed: test_stage_state.py.)"""
    numbers = udop("numbers", Numbered, key="third", schema="third bigint, number bigint, sum bigint",
                   scratch=str(tmp_path / "other"))  # fmt: skip

    def run_frame() -> list[tuple[Any, ...]]:
        fives = flow(spark, "in", root=store.root, partitions=2).aggregate(
            sum_("value"), window=count_window(5), by="key"
        )  # fmt: skip
        frame = fives.frame(name="fives", scratch=tmp_path / "near")
        found: list[tuple[Any, ...]] = []
        numbered = frame.selectExpr("stime", "sum_value % 3 as third", "sum_value as sum").transform(numbers)
        query = numbered.writeStream.foreachBatch(lambda out, _: found.extend(map(tuple, out.collect())))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        return found

    fill(store, "in", ROWS[:20], end=False, until=10)
    found = run_frame()
    fill(store, "in", ROWS[20:], until=30)
    found += run_frame()
    held: dict[str, list[int]] = {}
    count: Counter[int] = Counter()
    expected = []
    for _, key, value in ROWS:
        held.setdefault(key, []).append(value)
        if len(held[key]) == 5:
            total = sum(held.pop(key))
            count[total % 3] += 1
            expected.append((total % 3, count[total % 3], total))
    assert sorted(found) == sorted(expected)


def test_a_time_that_an_input_brings_is_no_event_time_of_the_results() -> None:
    """It may be that of the earlier one, behind which windows have closed."""
    schemas = [pa.schema([("key", pa.string()), (side, pa.int64())]) for side in "ab"]
    timed = schemas[0].append(pa.field("stime", pa.timestamp("us", "UTC")))
    assert keyed_join(Input(schemas[0], 3), Input(schemas[1], 0), on="key").keeps_time
    assert not keyed_join(Input(timed, 3), Input(schemas[1], 0), on="key").keeps_time
    assert paired("gate", {"a": schemas[0], "b": schemas[1]}).keeps_time
    assert not paired("gate", {"a": timed, "b": schemas[1]}).keeps_time


def test_two_operators_of_one_name_are_refused_where_they_meet(spark: SparkSession, tmp_path: Path) -> None:
    """Not where a function gives each of its outputs one, nor where the results of one are used twice."""
    frame = spark.createDataFrame([("a", 1)], "key string, value long")
    sums = udop("sums", Summing, key="key", schema="key string, sum bigint", scratch=str(tmp_path))
    with in_node(tmp_path) as tasks:
        one = frame.transform(sums)
        check_names(tasks, one.unionByName(one), "node n")
        other = frame.where("value > 0").transform(sums)
    assert len(tasks) == 2
    for output in (one, other):
        check_names(tasks, output, "node n")
    with pytest.raises(UsageError, match="node n has two operators called sums, and their states would be one"):
        check_names(tasks, one.unionByName(other), "node n")
