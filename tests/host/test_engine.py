"""Both engines that there are, put to the suite of engines; and a host on the quick one, through a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.clock import monotonic_us, pause
from holdfast.engine import Engine
from holdfast.spark.engine import SparkEngine, node_session
from holdfast.testing.engines import EngineConformance
from tests.load.plain_engine import PlainEngine

SECOND = 1_000_000


class TestPlain(EngineConformance):
    def engine(self) -> Engine:
        return PlainEngine()

    def counts(self, rows: Any) -> Any:
        """The plain engine has one query, which is this one."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = node_session("holdfast-tests", master="local[2,4]", spark_sql_shuffle_partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestSpark(EngineConformance):
    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        self._spark = spark

    def engine(self) -> Engine:
        return SparkEngine(lambda: self._spark)

    def counts(self, rows: Any) -> Any:
        windows = rows.groupBy(F.window("stime", "1 second"), "source")
        return windows.agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))


def until(condition: Callable[[], object]) -> None:
    deadline = monotonic_us() + 60 * SECOND
    while not condition():
        assert monotonic_us() < deadline, "it did not come true"
        pause(50_000)


MISSPELT = """
import sys, holdfast
from tests.load.plain_engine import PlainEngine
app = holdfast.App("plain", root=sys.argv[1])
app.node(inputs=["salse"], name="counts")(lambda rows: rows)
app.run(engine=PlainEngine())
"""


@pytest.mark.timeout(120)
def test_run_itself_says_which_stream_is_not_there(tmp_path: Path) -> None:
    """In a program that has set up no logging: whoever misspelt a name must not wait in silence."""
    holdfast.open(tmp_path).create("sales", "n bigint", bucket="1s")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", MISSPELT, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stderr is not None
            said = next((line for line in child.stderr if "salse" in line), "")
        finally:
            child.kill()
    assert "stream salse is not there yet" in said
    assert "sales" in said, "the streams that there are"


def test_an_application_on_an_engine_of_ones_own_goes_through_a_failure_and_its_corrections(tmp_path: Path) -> None:
    """D1, D3, with everything real but Spark."""
    app = holdfast.App("plain", root=tmp_path)
    app.node(inputs=["s", "t"], name="counts", max_delay="200ms", keepalive="50ms")(lambda rows: rows)
    store = holdfast.open(tmp_path)
    producers = [
        store.create(name, "source string, bytes bigint", bucket="1s").producer(id="test", stime="stime", slack="1h")
        for name in ("s", "t")
    ]

    sent = 0

    def feed() -> None:
        """A second of data, some hundredths of a second of the test."""
        nonlocal sent
        for producer in producers:
            stime = datetime.fromtimestamp(1_700_000_000 + sent, UTC)
            producer.send_many([{"stime": stime, "source": "a", "bytes": sent}])
            producer.advance((1_700_000_000 + sent + 1) * SECOND)
        sent += 1

    with app.start(engine=PlainEngine()) as running:
        reader, got = running.streams.open("counts").subscribe(tentative=True), []

        def read(kind: str) -> Callable[[], bool]:
            def seen() -> bool:
                got.extend(row for batch in reader.poll() for row in reader.rows_of(batch))
                feed()
                return any(row.type.name == kind for row in got)

            return seen

        until(read("INSERTION"))
        running.fail("t")
        until(read("TENTATIVE"))
        running.heal("t")
        until(read("REC_DONE"))
        for producer in producers:
            producer.close(end=True)
        running.watch()
    stable = [row.values["bytes"] for row in store.open("counts").subscribe().rows() if row.values]
    assert stable == [2 * second for second in range(sent)]
