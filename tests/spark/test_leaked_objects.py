"""Queries that have stopped leave nothing in the JVM's heap that grows with their number."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.spark import leaked_references
from holdfast.spark.leaked_references import collect_references, count_references, let_go
from holdfast.spark.node import SparkQuery
from tests.spark.processes import wait_for


@pytest.fixture(autouse=True)
def _a_host_at_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's collector does not come by on its own."""
    monkeypatch.setattr(leaked_references, "_left", 0)
    gc.disable()
    yield
    gc.enable()


def run(spark: SparkSession, checkpoint: Path) -> Any:
    """A query with state, stopped after a batch: what the JVM has of it, as long as it has it."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = rows.groupBy(F.col("value") % 2).count()
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    started = writer.start()
    query, jvm = SparkQuery(started, spark), spark._jvm
    assert jvm is not None
    try:
        wait_for(lambda: (checkpoint / "commits" / "0").exists(), "a batch")
        execution = started._jsq.streamingQuery()
        found = jvm.java.lang.ref.WeakReference(execution)
        let_go(execution)  # py4j has looked for a method of what it was given.
        return found
    finally:
        query.stop()


def listeners(spark: SparkSession) -> int:
    """On the bus that all sessions share."""
    context = spark.sparkContext._jsc
    assert context is not None
    return int(context.sc().listenerBus().listeners().size())


@pytest.mark.slow
def test_the_listener_of_a_query_goes_with_it(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path / "first")  # With it comes that of the session.
    before = listeners(spark)
    run(spark, tmp_path / "second")
    assert listeners(spark) == before
    assert spark.range(5).count() == 5


@pytest.mark.slow
def test_queries_that_have_stopped_are_let_go_of(spark: SparkSession, tmp_path: Path) -> None:
    jvm = spark._jvm
    assert jvm is not None
    stopped = [run(spark, tmp_path / name) for name in ("first", "second")]

    def gone() -> bool:
        jvm.java.lang.System.gc()
        return all(query.refersTo(None) for query in stopped)

    wait_for(gone, "queries to go", 30)


def test_references_are_looked_at_when_there_are_some_more_than_were_left(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaked_references, "REFERENCES_MORE", 20)
    jvm = spark._jvm
    assert jvm is not None

    def cycles(number: int) -> None:
        for value in range(number):
            jvm.java.util.ArrayList().add(value)

    gc.collect()
    monkeypatch.setattr(leaked_references, "_left", count_references())
    cycles(15)
    assert collect_references() == 0
    cycles(15)
    assert collect_references() >= 30
    cycles(15)
    assert collect_references() == 0, "counted from what was left"
