"""Operators with state on Spark: right results, and the same after the state was lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import holdfast
from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.join_kernel import keep_time
from holdfast.operators.windows import Window, count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark.flow import Flow, flow
from holdfast.spark.fork import fork_checkpoint
from tests.operators.reference import bsorted, count_windows, time_windows
from tests.spark.conftest import T0, at, fill, layout, tuples

NOW = {"availableNow": True}
Row = tuple[float, str, int]


def rows(count: int, keys: int, seed: int, begin: float = 0.0) -> list[Row]:
    chance = random.Random(seed)
    return [(begin + i * 0.01, f"k{chance.randrange(keys)}", chance.randrange(1000)) for i in range(count)]


def aggregated(spark: SparkSession, store: holdfast.StreamStore, window: Window, **options: Any) -> Flow:
    frame = flow(spark, "in", root=store.root, partitions=2, maxRowsPerBatch=options.pop("rows", 200))
    if options.pop("shuffled", False):
        frame = frame.filter("value >= 0")
    return frame.aggregate(count(), sum_("value"), avg("value"), window=window, by="key", **options)


def expected(given: list[Row], window: Any) -> list[tuple[Any, ...]]:
    plain = [(round((T0 + t) * 1e6), k, v) for t, k, v in given]
    if hasattr(window, "size_us"):
        found = time_windows(plain, 2**62, window.size_us, window.advance_us)
        made = [(end, start, key, values) for end, start, key, values in found]
    else:
        made = [(stime, None, key, values) for stime, key, values in count_windows(plain, window.size, window.advance)]
    return sorted((end, key, len(v), sum(v), sum(v) / len(v)) for end, _, key, v in made)


def found(stream: holdfast.Stream, timed: bool) -> list[tuple[Any, ...]]:
    got = []
    for _, stime, *values in tuples(stream):
        key, *rest = values[1:] if timed else values
        got.append((round(stime.timestamp() * 1e6), key, *rest))
    return sorted(got)


WINDOWS = {"fast": count_window(1), "slow": count_window(50), "mixed": count_window(10), "time": time_window("2s"),
           "sliding": time_window("3s", "1s")}  # fmt: skip


def half_then_rest(
    store: holdfast.StreamStore, start: Callable[[str, Path, Path], Any], tmp_path: Path, parts: list[list[Row]],
    name: str = "in",
) -> None:  # fmt: skip
    """Two runs of one query, the second without any of the first one's state; and one that lost nothing."""
    fill(store, name, parts[0], end=False, until=5.0)
    start("out", tmp_path / "c", tmp_path / "scratch0").awaitTermination()
    fill(store, name, parts[1])
    start("out", tmp_path / "c", tmp_path / "scratch1").awaitTermination()
    start("whole", tmp_path / "w", tmp_path / "s").awaitTermination()
    assert layout(store.open("out")) == layout(store.open("whole"))


def test_decimals_are_summed_and_averaged_as_spark_does(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """In Spark's types and to the last digit, also when the state comes back from the log."""
    given = rows(1000, 7, seed=5)
    price = (F.col("value") / 7).cast("decimal(12,4)")
    functions = (sum_(price).alias("total"), avg(price).alias("mean"))

    def start(output: str, checkpoint: Path, scratch: Path) -> StreamingQuery:
        source = flow(spark, "in", root=store.root, partitions=2, maxRowsPerBatch=200)
        policy = continuous(period="500ms", slow=0)
        made = source.aggregate(*functions, window=time_window("2s"), by="key", checkpoint=policy)
        return made.write(output, checkpoint_location=checkpoint, trigger=NOW, scratch=scratch)

    half_then_rest(store, start, tmp_path, [given[:500], given[500:]])
    plain = spark.read.format("holdfast").option("root", str(store.root)).load("in")
    spark_own = plain.groupBy(F.window("stime", "2 seconds"), "key").agg(
        F.sum(price).alias("total"), F.avg(price).alias("mean")
    )
    ours = spark.read.format("holdfast").option("root", str(store.root)).load("out")
    assert [ours.schema[n].dataType for n in ("total", "mean")] == [
        spark_own.schema[n].dataType for n in ("total", "mean")
    ]
    expected_rows = sorted((r.key, r.window.start, r.total, r.mean) for r in spark_own.collect())
    assert sorted((r.key, r.window_start, r.total, r.mean) for r in ours.collect()) == expected_rows


@pytest.mark.parametrize(("name", "shuffled"), [("mixed", False), ("sliding", False), ("mixed", True)])
def test_state_that_is_lost_comes_back_from_the_log(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str, shuffled: bool
) -> None:
    """C1: the same bytes as a run that lost nothing, and the reference's results."""
    window, parts = WINDOWS[name], [rows(500, 7, 2), rows(300, 9, 3, begin=5.0)]

    def start(out: str, checkpoint: Path, scratch: Path) -> StreamingQuery:
        flowing = aggregated(spark, store, window, checkpoint=continuous(period="500ms", slow=0), shuffled=shuffled)
        return flowing.write(out, checkpoint_location=checkpoint, trigger=NOW, scratch=scratch)

    half_then_rest(store, start, tmp_path, parts)
    assert found(store.open("out"), hasattr(window, "size_us")) == expected([r for p in parts for r in p], window)


def test_a_join_that_lost_its_state_gives_the_pairs_that_spark_gives(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    fill(store, "r", rows(400, 5, 7))

    def start(out: str, checkpoint: Path, scratch: Path) -> StreamingQuery:
        flowing = flow(spark, "s", "r", root=store.root, partitions=2, maxRowsPerBatch=150).join(
            "s", "r", by="key", window=keep_time("100ms"), take_left={"temperature": "value"},
            take_right={"humidity": "value"}, where="temperature > humidity",
            checkpoint=continuous(period="200ms", slow=0),
        )  # fmt: skip
        return flowing.write(out, checkpoint_location=checkpoint, trigger=NOW, scratch=scratch)

    half_then_rest(store, start, tmp_path, [rows(500, 5, 8), rows(100, 5, 9, begin=5.0)], "s")
    past = {n: spark.read.format("holdfast").option("root", str(store.root)).load(n).alias(n) for n in "sr"}
    apart = F.abs(F.unix_micros("s.stime") - F.unix_micros("r.stime")) <= 100_000
    pairs = past["s"].join(
        past["r"], (F.col("s.key") == F.col("r.key")) & apart & (F.col("s.value") > F.col("r.value"))
    )
    want = pairs.select(F.greatest("s.stime", "r.stime"), "s.key", "s.value", "r.value").collect()
    got = [tuple(t[1:]) for t in tuples(store.open("out"))]
    assert sorted((t.timestamp(), *r) for t, *r in got) == sorted((t.timestamp(), *r) for t, *r in map(tuple, want))
    assert got


def test_a_stream_that_stands_in_two_parts_of_a_union_can_be_sorted_and_restored(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """Its tuples have twins with the same tuple_id. Each is one of the sort's own, in the log as well."""
    parts = [rows(300, 1, 31), rows(100, 1, 32, begin=5.0)]

    def start(out: str, checkpoint: Path, scratch: Path) -> StreamingQuery:
        one = flow(spark, "in", root=store.root, partitions=1, maxRowsPerBatch=100)
        both = one.union(one.filter("value > 500")).union(one.filter("value > 900"))
        flowing = both.bsort("value", 60, checkpoint=continuous(period="1us", slow=0, budget=1.0))
        return flowing.write(out, checkpoint_location=checkpoint, trigger=NOW, scratch=scratch)

    half_then_rest(store, start, tmp_path, parts)
    given = [(round((T0 + t) * 1e6), "", v) for t, _, v in parts[0] + parts[1]]
    merged = []
    for bucket in sorted({t // 1_000_000 for t, _, _ in given}):
        mine = [g for g in given if g[0] // 1_000_000 == bucket]
        merged += [*mine, *(g for g in mine if g[2] > 500), *(g for g in mine if g[2] > 900)]
    want = sorted((stime, value) for stime, _, value in bsorted(merged, 60))
    assert sorted((round(t.timestamp() * 1e6), v) for _, t, _, v in tuples(store.open("out"))) == want


def test_operators_without_state_act_like_those_of_the_seeds(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """003 figure 3-1: a filter with two predicates and a rest, a map to Celsius, a union in order."""
    fill(store, "a", [(0.1, "a", 101), (0.2, "b", 99), (0.3, "c", 85)])
    fill(store, "b", [(0.15, "d", 103), (1.2, "e", 70)])
    readings = flow(spark, "a", root=store.root)
    hot, warm, rest = readings.cases("value > 100", F.col("value") > 90)
    celsius = readings.map(key="key", value=F.round((F.col("value") - 32) * 5 / 9).cast("bigint"))
    both = hot.union(flow(spark, "b", root=store.root).filter("value > 100"))
    made = {"hot": hot, "warm": warm, "rest": rest, "celsius": celsius, "both": both}

    def write(name: str) -> StreamingQuery:
        return made[name].write(name, checkpoint_location=tmp_path / name, trigger=NOW)

    with ThreadPoolExecutor(2) as several:  # As a program may; a thread of its own has no session of Spark's.
        queries = list(several.map(write, made))
    for query in queries:
        query.awaitTermination()
    got = {n: [t[2:] for t in tuples(store.open(n))] for n in made}
    assert got == {"hot": [("a", 101)], "warm": [("b", 99)], "rest": [("c", 85)],
                   "celsius": [("a", 38), ("b", 37), ("c", 29)], "both": [("a", 101), ("d", 103)]}  # fmt: skip


def test_windows_are_those_of_spark_itself(spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path) -> None:
    given = rows(600, 6, 11)
    fill(store, "in", given)
    flowing = aggregated(spark, store, time_window("2s", "1s"))
    flowing.write("out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=tmp_path / "s").awaitTermination()
    past = spark.read.format("holdfast").option("root", str(store.root)).load("in")
    want = past.groupBy(F.window("stime", "2 seconds", "1 second").alias("w"), "key").agg(
        F.count("*"), F.sum("value"), F.avg("value")
    )
    native = sorted((r[0].end.timestamp(), *r[1:]) for r in want.collect())
    assert [(t / 1e6, *rest) for t, *rest in found(store.open("out"), True)] == native


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_takes_its_parents_version_or_restores_it_from_the_parents_log(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, lost: bool
) -> None:
    fill(store, "in", rows(500, 7, 21), end=False, until=5.0)
    scratch = tmp_path / "scratch"

    def start(out: str, checkpoint: Path, **fork: Any) -> StreamingQuery:
        flowing = aggregated(spark, store, WINDOWS["mixed"], rows=10_000, checkpoint=continuous(), shuffled=lost)
        return flowing.write(out, checkpoint_location=checkpoint, trigger=NOW, scratch=scratch, **fork)

    start("out", tmp_path / "c").awaitTermination()
    first = len(tuples(store.open("out")))
    fork_checkpoint(tmp_path / "c", tmp_path / "fork")
    fill(store, "in", rows(300, 7, 22, begin=5.0))
    if lost:
        shutil.rmtree(scratch)
    start("forked", tmp_path / "fork", lineage="fork", fork_of="out").awaitTermination()
    start("out", tmp_path / "c").awaitTermination()
    later = [t[1:] for t in tuples(store.open("out"))[first:]]
    assert [t[1:] for t in tuples(store.open("forked"))] == later
    assert later
    if not lost:  # It copies nothing.
        own = {p.name for p in scratch.glob("*/aggregate-direct/fork/*/*.state")}
        assert not own & {p.name for p in scratch.glob("*/aggregate-direct/main/*/1700000005*.state")}
        assert own


@pytest.mark.parametrize("shuffled", [False, True])
def test_input_that_an_open_window_relies_on_is_not_acknowledged(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, shuffled: bool
) -> None:
    """L8: retention would remove it, and what is lost could not be restored."""
    fill(store, "in", rows(500, 7, 21), end=False, until=5.0)
    frame = flow(spark, "in", root=store.root, partitions=2, maxRowsPerBatch=200, subscriber="windows")
    frame = frame.filter("value >= 0") if shuffled else frame
    never_full = frame.aggregate(count(), window=count_window(10_000), by="key", checkpoint=continuous(period="1h"))
    never_full.write("out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=tmp_path / "s").awaitTermination()
    acknowledged = store.open("in").acks()["windows"].until_us
    assert acknowledged <= (T0 + 2) * 1_000_000, "the windows opened in the first batch and were not saved since"


def test_keys_of_several_columns_may_be_null_in_any_of_them(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """Spark's hash passes nulls over; (null, x) and (x, null) are groups of their own all the same."""
    stream = store.create("in", "a string, b string", bucket="1s")
    producer = stream.producer(stime="stime", slack="0s")
    keys = [(None, "x"), ("x", None), (None, None), ("x", "x"), (None, "x")]
    producer.send_many([{"stime": at(i * 0.1), "a": a, "b": b} for i, (a, b) in enumerate(keys)])
    producer.close(end=True)
    counted = flow(spark, "in", root=store.root, partitions=2).filter("true")
    counted = counted.aggregate(count(), window=time_window("1s"), by=["a", "b"])
    counted.write("out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=tmp_path / "s").awaitTermination()
    got = {t[3:5]: t[5] for t in tuples(store.open("out"))}
    assert got == {(None, "x"): 2, ("x", None): 1, (None, None): 1, ("x", "x"): 1}


def test_the_end_of_a_stream_closes_windows_by_a_column_whose_group_is_silent(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    stream = store.create("in", "key string, time timestamp", bucket="1s")
    producer = stream.producer(stime="stime", slack="0s")
    given = [(0, "a", 5), (1, "b", 7), (2, "a", None), (3, "a", 65)]
    producer.send_many([{"stime": at(t), "key": k, "time": None if o is None else at(o)} for t, k, o in given])
    producer.close(end=True)
    counted = flow(spark, "in", root=store.root, partitions=2, maxRowsPerBatch=2).aggregate(
        count(), window=time_window("1m", on="time", align="first"), by="key", checkpoint=continuous()
    )
    counted.write("out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=tmp_path / "s").awaitTermination()
    got = [(stime.year, key, n) for _, stime, _, key, n in tuples(store.open("out"))]
    assert sorted(got) == [(2023, "a", 1), (9999, "a", 1), (9999, "b", 1)]


def test_a_second_operator_with_state_is_refused(spark: SparkSession, store: holdfast.StreamStore) -> None:
    fill(store, "in", rows(10, 2, 1))
    with pytest.raises(holdfast.UsageError, match="one operator with state"):
        aggregated(spark, store, count_window(2)).bsort("value", 3)
