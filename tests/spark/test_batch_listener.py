"""Batches are heard of from Spark's listener events: every one, once, with the numbers that its progress has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.clock import monotonic_us, pause
from holdfast.engine import Work
from holdfast.model.time import SECOND_US
from holdfast.spark.batch_listener import BatchLog, follow, work_of
from holdfast.spark.node import SparkQuery


def until(done: Callable[[], bool]) -> None:
    deadline = monotonic_us() + 60 * SECOND_US
    while not done():
        assert monotonic_us() < deadline, "it did not come about within a minute"
        pause(20_000)


def started(spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def told(query: StreamingQuery) -> Work:
    """What Spark remembers of a run, which has fewer than 100 batches here."""
    work = Work()
    for progress in query.recentProgress:
        if "addBatch" in progress.durationMs:
            work = work.with_batch(*work_of(progress))
    return work


def test_events_and_progress_agree_on_every_batch_also_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    first = started(spark, tmp_path / "c")
    until(lambda: len(first.recentProgress) >= 2)
    query = SparkQuery(first, spark)
    assert query.work is None, "nobody has asked yet, so nothing is sent"
    until(lambda: (reading := query.reading()) is not None and reading.batch_id >= 5)
    first.stop()
    until(lambda: query.work is not None and query.work.batches >= told(first).batches)
    assert query.work == told(first), "those before the first look included"
    reading, last = query.reading(), first.recentProgress[-1]
    assert reading is not None
    assert (reading.batch_id, reading.busy_ms) == (last.batchId, last.durationMs["triggerExecution"])

    second = started(spark, tmp_path / "c")
    again = SparkQuery(second, spark, query.work)
    until(lambda: (reading := again.reading()) is not None and reading.batch_id >= last.batchId + 3)
    second.stop()
    assert query.work is not None
    whole = query.work.batches + told(second).batches
    until(lambda: again.work is not None and again.work.batches >= whole)
    assert again.work is not None
    assert (again.work.batches, again.work.rows) == (whole, query.work.rows + told(second).rows)


def test_a_batch_that_is_told_twice_or_cannot_be_read_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log = BatchLog()
    batch = {"batchId": 3, "numInputRows": 11, "durationMs": {"triggerExecution": 7, "addBatch": 5}}
    for _ in range(2):
        log.take(batch)
    log.take({**batch, "batchId": 2})
    log.take({"batchId": 4, "numInputRows": 0, "durationMs": {"triggerExecution": 1}})
    assert log.seen() == (batch, Work(1, 7.0, 10, {"addBatch": 5.0}))

    query = started(spark, tmp_path / "c")
    broken, sound = BatchLog(), BatchLog()
    follow(query, spark, broken)
    broken.take = None  # type: ignore[method-assign,assignment]
    other = started(spark, tmp_path / "d")
    follow(other, spark, sound)
    until(lambda: sound.seen()[1].batches >= 3)
    for one in (query, other):
        assert one.isActive
        one.stop()
