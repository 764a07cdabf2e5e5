"""Operators with state on Spark: right results, and the same after the state was lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.windows import Window, count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark.flow import Flow, flow
from tests.operators.reference import count_windows, time_windows
from tests.spark.conftest import T0, fill, layout, tuples

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


@pytest.mark.parametrize("name", WINDOWS)
def test_results_are_those_of_the_reference(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    given = rows(1000, 7, 1)
    fill(store, "in", given)
    window = WINDOWS[name]
    query = aggregated(spark, store, window, checkpoint=continuous(period="1s")).write(
        "out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=tmp_path / "scratch"
    )
    query.awaitTermination()
    assert found(store.open("out"), hasattr(window, "size_us")) == expected(given, window)


@pytest.mark.parametrize("name", WINDOWS)
def test_state_that_is_lost_comes_back_from_the_log(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    """C1: the same bytes as a run that lost nothing."""
    window = WINDOWS[name]
    parts = [rows(500, 7, 2), rows(300, 9, 3, begin=5.0), rows(400, 7, 4, begin=8.0)]
    fill(store, "in", parts[0], end=False, until=5.0)
    for i, part in enumerate([*parts[1:], None]):
        flowing = aggregated(spark, store, window, checkpoint=continuous(period="500ms", slow=0))
        scratch = tmp_path / f"scratch{i}"  # A new one each time: nothing of the last run is left.
        flowing.write("out", checkpoint_location=tmp_path / "c", trigger=NOW, scratch=scratch).awaitTermination()
        if part is not None:
            fill(store, "in", part, end=i == 1, until=8.0 if i == 0 else None)
    flowing = aggregated(spark, store, window, rows=100_000)
    flowing.write("whole", checkpoint_location=tmp_path / "w", trigger=NOW, scratch=tmp_path / "s").awaitTermination()
    assert layout(store.open("out")) == layout(store.open("whole"))
    assert found(store.open("out"), hasattr(window, "size_us")) == expected([r for p in parts for r in p], window)
