"""Queries over streams that have ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.spark import read_stream, register
from tests.spark.conftest import fill, tuples

pytestmark = pytest.mark.slow


def test_a_query_finishes_when_its_streams_have_ended_and_all_of_its_results_are_there(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """With and without state; `awaitTermination` returns."""
    fill(store, "s", [(i, "a", i) for i in range(6)])
    rows = read_stream(spark, "s", root=store.root)
    queries: dict[str, DataFrame] = {
        "plain": rows.select("stime", "value"), "windows": rows.groupBy(F.window("stime", "4 seconds")).count(),
    }  # fmt: skip
    started = [
        frame.writeStream.format("holdfast").option("root", str(store.root)).option("create", "true")
        .option("checkpointLocation", str(tmp_path / name)).start(name)
        for name, frame in queries.items()
    ]  # fmt: skip
    assert [query.awaitTermination(120) for query in started] == [True, True]
    assert [query.exception() for query in started] == [None, None]
    assert all(store.open(name).reader().closed for name in queries)
    assert [row[-1] for row in tuples(store.open("plain"))] == list(range(6))
    assert sum(row[-1] for row in tuples(store.open("windows"))) == 6


def test_a_query_of_a_session_of_ones_own_finishes_as_well(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    own = register(spark.newSession())
    fill(store, "s", [(i, "a", i) for i in range(3)])
    frame = read_stream(own, "s", root=store.root).select("stime", "value")
    writer = frame.writeStream.format("holdfast").option("root", str(store.root)).option("create", "true")
    query = writer.option("checkpointLocation", str(tmp_path / "own")).start("own")
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


def test_a_query_that_is_started_again_after_its_streams_have_ended_finishes_too(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """A driver that was killed behind its last batch, or a job that runs once more: nothing is left to be read."""
    fill(store, "s", [(i, "a", i) for i in range(3)])
    for _ in range(2):
        frame = read_stream(spark, "s", root=store.root).select("stime", "value")
        writer = frame.writeStream.format("holdfast").option("root", str(store.root)).option("create", "true")
        query = writer.option("checkpointLocation", str(tmp_path / "again")).start("again")
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
