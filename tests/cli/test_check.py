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

@app.node(inputs=["windows"])
def latest(windows):
    return windows.select("stime", "count")

@app.node(inputs=["orders"])
def guesses(orders):
    return orders.withColumn("guess", F.rand())

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
    assert "must give the same results for the same rows; got rand" in said["guesses"]["wrong"]
    assert "behind_it" not in said, "its input is not known"
    assert "odrers" in said["misspelt"]["wrong"]
    assert result.exit_code == 1
    assert store.names() == ["orders"]
