"""Nodes of one application share a session; each reads its own inputs all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.model.errors import UsageError
from holdfast.spark.node import SparkQueries

#: How long a function waits for the one that must not be called beside it.
_BESIDE_S = 0.5


def queries(spark: SparkSession, store: holdfast.StreamStore, stream: str, function: Callable[..., Any]) -> Any:
    """Those of a node of that name's own, over one stream."""
    app = holdfast.App("given", root=store.root)
    app.node(inputs=[stream], output=f"of-{stream}", name=f"reads-{stream}")(function)
    home = Path(store.root) / ".holdfast" / stream
    return SparkQueries(spark, app.diagram().nodes[0], [store.open(stream)], Path(store.root), home)


def columns(described: Any) -> list[str]:
    return list(described.create_output(1_000_000).definition.schema.names)


@pytest.fixture
def streams(store: holdfast.StreamStore) -> holdfast.StreamStore:
    for stream, column in (("left", "l bigint"), ("right", "r bigint")):
        store.create(stream, column, bucket="1s")
    return store


def test_two_nodes_described_at_once_that_use_one_name_for_their_view_read_their_own(
    spark: SparkSession, streams: holdfast.StreamStore
) -> None:
    spark.createDataFrame([(1, "one")], "n int, name string").createOrReplaceTempView("names_of_the_user")
    registered = {stream: threading.Event() for stream in ("left", "right")}

    def by_view(stream: str, other: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            rows.createOrReplaceTempView("events")
            registered[stream].set()
            registered[other].wait(_BESIDE_S)  # Called beside this one, it would put its own view there now.
            return spark.sql("SELECT events.*, names_of_the_user.name FROM events CROSS JOIN names_of_the_user")

        return function

    nodes = [queries(spark, streams, *names[:1], by_view(*names)) for names in (("left", "right"), ("right", "left"))]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(columns, nodes)) == [["l", "name"], ["r", "name"]]


def test_a_view_or_a_frame_of_another_node_is_refused(spark: SparkSession, streams: holdfast.StreamStore) -> None:
    """Its rows would be those of another node's inputs, as far as that one reads."""

    def registers(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("of_the_left")
        return rows

    columns(queries(spark, streams, "left", registers))
    other = queries(spark, streams, "right", lambda rows: rows.sparkSession.table("of_the_left"))
    with pytest.raises(
        UsageError, match=r"node reads-right must read only .* another node \(streams left\); name ever"
    ):
        columns(other)


def test_a_frame_of_an_earlier_call_is_refused(spark: SparkSession, streams: holdfast.StreamStore) -> None:
    """A fork would go on reading what main reads."""
    first: list[DataFrame] = []

    def remembers(rows: DataFrame) -> DataFrame:
        first.append(rows)
        return first[0].where("l > 1")

    with pytest.raises(UsageError, match="make the query anew at each call"):
        columns(queries(spark, streams, "left", remembers))


def test_a_stream_that_the_function_opens_itself_is_refused(spark: SparkSession, streams: holdfast.StreamStore) -> None:
    rate = queries(spark, streams, "left", lambda rows: rows.unionByName(_rate(spark), allowMissingColumns=True))
    with pytest.raises(UsageError, match=r"must read only the frames that it is given; got a readStream of its own"):
        columns(rate)
    own = spark.readStream.format("holdfast").option("root", str(streams.root)).load("right")
    with pytest.raises(UsageError, match=r"got a readStream of its own \(streams right\)"):
        columns(queries(spark, streams, "left", lambda rows: own))


def test_a_query_that_the_function_starts_is_refused(spark: SparkSession, streams: holdfast.StreamStore) -> None:
    """Each call would start another one, and nobody would stop them."""

    def starts(rows: DataFrame) -> DataFrame:
        rows.where("l > 1").writeStream.format("noop").start()
        return rows

    with pytest.raises(UsageError, match=r"^node reads-left must not start a query of its own: .* return that frame"):
        columns(queries(spark, streams, "left", starts))
    own = queries(spark, streams, "left", lambda rows: _rate(spark).writeStream.format("noop").start())
    with pytest.raises(UsageError, match="got writeStream"):
        columns(own)
    assert not spark.streams.active
    assert _rate(spark).writeStream.format("noop"), "outside of a node's function it must be Spark's own"


@pytest.mark.parametrize("run", [DataFrame.count, DataFrame.cache, DataFrame.collect, lambda rows: rows.rdd])
def test_a_query_that_the_function_runs_is_refused_by_the_nodes_name(
    run: Callable[[DataFrame], Any], spark: SparkSession, streams: holdfast.StreamStore
) -> None:
    """Spark's sentence says neither which node nor what to do instead."""

    def runs(rows: DataFrame) -> DataFrame:
        run(rows)
        return rows

    with pytest.raises(UsageError, match=r"^node reads-left must only describe its query: its function has run it"):
        columns(queries(spark, streams, "left", runs))


def test_what_the_function_writes_is_warned_of_once_since_each_call_writes_it(
    spark: SparkSession, streams: holdfast.StreamStore, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("holdfast.spark.given_frames._told", set())
    table = spark.createDataFrame([(1,)], "n int")

    def writes(rows: DataFrame) -> DataFrame:
        table.write.mode("append").json(str(tmp_path / "written"))
        return rows

    described = queries(spark, streams, "left", writes)
    columns(described)
    columns(described)
    (said,) = [r.message for r in caplog.records if "what it writes" in r.message]
    assert said.startswith("node reads-left: its function is called for each start and each fork, and what it writes")
    assert spark.read.json(str(tmp_path / "written")).count() > 1


def _rate(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.select(F.col("timestamp").alias("stime"), F.col("value").alias("l"))
