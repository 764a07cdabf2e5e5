"""`holdfast check`: what a start would refuse, without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app

PROGRAM = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("shop")

@app.node(inputs=["orders"])
def windows(orders):
    return orders.groupBy(F.window("stime", "2 seconds").alias("span")).count()

@app.node(inputs=["orders"])
def patient(orders):
    return orders.withWatermark("stime", "10 minutes").groupBy(F.window("stime", "2 seconds")).count()

@app.node(inputs=["windows"])
def latest(windows):
    return windows.select("stime", "count")

@app.node(inputs=["orders"], stime="at")
def dated(orders):
    return orders.select(F.timestamp_seconds("amount").alias("at"))

@app.node(inputs=["orders"])
def guesses(orders):
    return orders.withColumn("guess", F.rand())

@app.node(inputs=["orders"])
def clocked(orders):
    return orders.withColumn("at", F.current_timestamp())

@app.node(inputs=["orders"])
def own_stream(orders):
    return orders.sparkSession.readStream.format("rate").load().select(F.col("timestamp").alias("stime"), "value")

@app.node(inputs=["orders"])
def timed_out(orders):
    return orders.groupBy("item").applyInPandasWithState(
        lambda key, frames, state: iter([]), "stime timestamp", "n bigint", "append", "ProcessingTimeTimeout")

@app.node(inputs=["orders"])
def first_three(orders):
    return orders.limit(3)

@app.node(inputs=["orders"])
def totals(orders):
    return orders.groupBy("item").agg(F.max("stime").alias("stime"), F.sum("amount").alias("amount"))

@app.node(inputs=["guesses"])
def behind_it(guesses):
    return guesses

@app.node(inputs=["odrers"])
def misspelt(odrers):
    return odrers

if __name__ == "__main__":
    app.run()
"""


@pytest.mark.slow
def test_every_node_is_described_and_what_is_wrong_is_said(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path / "streams")
    store.create("orders", "item string, amount bigint", bucket="1s")
    (tmp_path / "shop.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "shop.py"), "--root", str(store.root), "--json"])
    said = {
        line["node"]: line for line in map(json.loads, filter(lambda t: t.startswith("{"), result.stdout.splitlines()))
    }
    assert (said["windows"]["stime"], said["windows"]["wrong"]) == ("span.end", None)
    assert said["latest"]["wrong"] is None
    (warning,) = said["patient"]["warnings"]
    assert warning.startswith(
        "boundaries say when a bucket is complete, so withWatermark('stime', '10 minutes') does not"
    )
    assert said["windows"]["warnings"] == []
    assert (said["latest"]["warnings"], said["dated"]["wrong"]) == ([], None)
    (warning,) = said["dated"]["warnings"]
    assert warning.startswith("the time of its results, at, is not derived from the inputs' time")
    assert "must give the same results for the same rows; got rand" in said["guesses"]["wrong"]
    for node, sentence in {
        "clocked": "must not look at the clock", "own_stream": "got a readStream of its own; name that stream in",
        "timed_out": "must not use processing-time timeouts", "first_three": "got a limit on a stream",
        "totals": "must be a query that Spark streams; Spark says: ",
    }.items():  # fmt: skip
        assert sentence in said[node]["wrong"]
    assert "behind_it" not in said, "its input is not known"
    assert "odrers" in said["misspelt"]["wrong"]
    assert result.exit_code == 1
    assert store.names() == ["orders"]
