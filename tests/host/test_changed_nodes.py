"""Nodes whose definition changes between two starts, on real Spark (C12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.host.trial import TrialOrder
from holdfast.model.errors import UsageError
from holdfast.operators.functions import count
from holdfast.operators.windows import time_window
from holdfast.spark import flow_of
from holdfast.spark.engine import SparkEngine, node_session
from holdfast.stream.changes import read_changes
from tests.cli.conftest import InsideCli
from tests.host.test_embedded import SECOND, T0, Source, reached, stable, until
from tests.host.test_trial import running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = node_session("holdfast-tests", master="local[2,4]", spark_sql_shuffle_partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def application(root: Path, window: int, **promises: Any) -> holdfast.App:
    """Counts by Spark's operators, and by Holdfast's own."""
    app = holdfast.App("counting", root=root)

    @app.node(inputs=["s"], name="counts", **promises)
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("stime", f"{window} seconds")).count()

    @app.node(inputs=["s"], name="flowing", **promises)
    def flowing(rows: DataFrame) -> Any:
        return flow_of(rows, partitions=1).aggregate(count(), window=time_window(f"{window}s"))

    return app


def ran(app: holdfast.App, spark: SparkSession, second: int) -> None:
    store = holdfast.open(app.root)
    with app.start(spark=spark) as running:
        until(lambda: running.status() and all(reached(store.open(n), second)() for n in ("counts", "flowing")), 300)


def windows(stream: holdfast.Stream) -> list[tuple[int, int]]:
    """When each window ends, in seconds, and how many it has counted."""
    return [(round(row["stime"].timestamp()) - T0, row["count"]) for row in stable(stream)]


def test_a_changed_window_is_refused_with_what_changed_and_begins_anew_where_an_operator_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """C12: four tuples a second; the window grows from 10 to 20 seconds in the middle of one."""
    store, cli = holdfast.open(tmp_path), InsideCli(tmp_path)
    source = Source(store, "s")
    source.fill(0, 35)
    ran(application(tmp_path, 10), spark, 30)
    ran(application(tmp_path, 10, max_delay="5s", convergent="60s"), spark, 30)  # A promise may change.
    source.fill(35, 50)
    with pytest.raises(UsageError, match=r"node (counts|flowing) must compute what its state was made by.*10s.*20s"):
        ran(application(tmp_path, 20), spark, 40)
    assert "goes on" not in cli.fails("upgrade", "nobody", "--compatible")
    said = {"counts", "flowing"}
    while said:  # A start ends with the first node that is refused.
        for node in sorted(said):
            if cli.run("upgrade", node, "--from", "end").returncode == 0:
                assert "stable and stay" in cli.fails("upgrade", node, "--from", "2023-11-14T22:13")
                said.remove(node)
        if said:
            with pytest.raises(UsageError, match="must compute"):
                application(tmp_path, 20).start(spark=spark)
    source.fill(50, 65)
    ran(application(tmp_path, 20), spark, 60)
    for name in ("counts", "flowing"):
        assert windows(store.open(name)) == [(10, 40), (20, 40), (30, 40), (40, 80), (60, 80)]
        (change,) = read_changes(store.open(name).folder)
        assert T0 + 30 <= change.from_us // SECOND <= T0 + 35
        assert change.what == "anew"
    assert "of another definition" in cli.ok("verify", "counts")
    source.leave()


def test_who_knows_that_a_change_is_compatible_goes_on_with_the_state(spark: SparkSession, tmp_path: Path) -> None:
    store, cli = holdfast.open(tmp_path), InsideCli(tmp_path)
    source = Source(store, "s")

    def app(least: int) -> holdfast.App:
        app = holdfast.App("changing", root=tmp_path)
        app.node(inputs=["s"], name="sums")(
            lambda rows: rows.filter(f"k >= {least}").groupBy(F.window("stime", "10 seconds")).count()
        )
        return app

    source.fill(0, 15)
    with app(0).start(spark=spark):
        until(lambda: "sums" in store.names() and reached(store.open("sums"), 14)(), 300)
    note = tmp_path / ".holdfast" / "nodes" / "sums" / "checkpoint" / "identity"
    before = note.read_bytes()
    with pytest.raises(UsageError, match="must compute"):
        app(-1).start(spark=spark)
    cli.ok("upgrade", "sums", "--compatible")
    with pytest.raises(UsageError, match="must compute"):
        app(-2).start(spark=spark)  # It was said of another change.
    cli.ok("upgrade", "sums", "--compatible")
    note.write_bytes(before)
    source.fill(15, 25)
    with app(-2).start(spark=spark):
        until(reached(store.open("sums"), 20), 300)
    assert windows(store.open("sums")) == [(10, 40), (20, 40)]
    note.unlink()  # A node from before there were notes.
    with app(-3).start(spark=spark) as running:
        running.wait_until_stable("300s")
    assert note.exists()
    source.leave()
    # The same name and columns, and none of the tuples that the state has counted.
    store.delete("s")
    Source(store, "s").leave()
    with pytest.raises(UsageError, match=r"node sums must compute .*input s: stream \w+, made anew since"):
        app(-3).start(spark=spark)
    cli.ok("upgrade", "sums", "--from", "end")


TRIED = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("tried")

@app.node(inputs=["flows"], name="counts", max_delay="20s")
def counts(rows):
    window = F.window("stime", "{seconds} seconds")
    return rows.filter("bytes >= {least}").groupBy(window, "source").count(){more}
"""


def test_a_filter_and_a_column_are_tried_on_the_live_state_and_swapped_in_and_another_window_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S1, D1, C12: four rows of each source in ten seconds; what the open window had counted is counted on."""

    def text(seconds: int = 10, least: int = 0, more: str = "") -> str:
        return TRIED.format(seconds=seconds, least=least, more=more)

    async def check() -> None:
        async with running(tmp_path, SparkEngine(lambda: spark), text()) as one:
            file = tmp_path / "app.py"
            file.write_text(text(seconds=20))
            with pytest.raises(UsageError, match=r"cannot be carried over \(.*10s.*20s.*--replay"):
                await one.trials.start("counts", TrialOrder("app.py"))
            file.write_text(text(least=-1, more='.withColumn("rate", F.col("count") / 10)'))
            trial = await one.tried(TrialOrder("app.py"))
            assert trial.differences
            await one.until(lambda: trial.status()["buckets"] >= 25 or trial.trouble is not None)
            said = trial.status()
            assert (said["why"], said["carried"], said["added"]) == (None, True, "rate double")
            assert said["equal"] == said["live"] == said["trial"] > 0, "the filter lets everything through, as before"
            swap = asyncio.ensure_future(one.trials.swap(trial))
            await one.until(swap.done)
            swap.result()
            (boundary_us,) = (change.from_us for change in read_changes(one.output.folder))
            await one.until(lambda: one.rows()[-1]["stime"].timestamp() * 1e6 > boundary_us + 20 * SECOND)
            rows = one.rows()
            ends = sorted({round(row["stime"].timestamp()) for row in rows})
            assert ends == list(range(ends[0], ends[-1] + 1, 10)), "no gap"
            assert len(rows) == 3 * len(ends), "no repetition"
            for row in rows:
                assert row["count"] in (30, 40)
                assert row["rate"] == (None if row["stime"].timestamp() * 1e6 < boundary_us else row["count"] / 10)

    asyncio.run(check())
