"""What `read_stream` relies on in Spark's optimizer; a new Spark that plans otherwise fails here first."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.spark import read_stream
from tests.spark.conftest import fill


def windows_after(spark: SparkSession, frame: DataFrame, checkpoint: Path) -> list[int]:
    """Counts of the windows that come out while the input is still open."""
    got: list[int] = []
    counted = frame.groupBy(F.window("stime", "2 seconds")).count()
    query = counted.writeStream.foreachBatch(lambda b, _: got.extend(r["count"] for r in b.collect()))
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return got


@pytest.mark.parametrize("condition", ["true", "value > 1 and value < 100", "key = 'k1'", "stream = 'a'"])
def test_a_boundary_moves_the_watermark_whatever_the_user_filters(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, condition: str
) -> None:
    rows = [(i * 0.5, f"k{i % 2}", i) for i in range(8)]
    fill(store, "a", rows, end=False, until=6)
    fill(store, "b", [], end=False, until=6)
    frame = read_stream(spark, "a", "b", root=store.root, boundaries="exact").filter(condition)
    got = windows_after(spark, frame, tmp_path / "ckpt")
    keep = {"true": lambda k, v: True, "value > 1 and value < 100": lambda k, v: 1 < v < 100,
            "key = 'k1'": lambda k, v: k == "k1", "stream = 'a'": lambda k, v: True}[condition]  # fmt: skip
    expected = [sum(keep(k, v) for t, k, v in rows if w <= t < w + 2) for w in (0, 2)]
    assert sorted(got) == sorted(n for n in expected if n)


def test_a_boundary_alone_closes_a_window(spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path) -> None:
    fill(store, "a", [(0.5, "k", 1)], end=False, until=1)
    frame = read_stream(spark, "a", root=store.root, boundaries="exact")
    assert windows_after(spark, frame, tmp_path / "ckpt") == []
    fill(store, "a", [], end=False, until=2)
    assert windows_after(spark, frame, tmp_path / "ckpt") == [1]


def test_a_tuple_exactly_at_the_boundary_is_not_late(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """The watermark stands a millisecond below the boundary, because Spark drops rows at the watermark itself."""
    fill(store, "a", [(0.5, "k", 1)], end=False, until=2)
    frame = read_stream(spark, "a", root=store.root).dropDuplicates(["stime", "key"])
    seen: list[int] = []

    def run() -> None:
        query = frame.writeStream.foreachBatch(lambda b, _: seen.extend(r["value"] for r in b.collect()))
        query.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()

    run()
    fill(store, "a", [(2.0, "k", 2)], end=False, until=4)
    run()
    assert seen == [1, 2]
