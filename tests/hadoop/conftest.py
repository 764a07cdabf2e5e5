"""One session for all tests of this folder, which reaches every place; another folder's ends before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.spark import session
from tests.hadoop import places as made
from tests.hadoop.places import Places


@pytest.fixture(scope="package")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with made.places(tmp_path_factory.mktemp("places")) as found:
        yield found


@pytest.fixture(scope="package")
def spark(places: Places) -> Iterator[SparkSession]:
    settings = {name.replace(".", "_"): value for name, value in places.settings().items()}
    _end_jvm()
    spark = session("holdfast-hadoop", master="local[2,4]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()
    _end_jvm()


def _end_jvm() -> None:
    """A JVM has the jars and the settings that it was started with, for all sessions that follow.

    Whoever left a session open, an application that was not stopped for one, has no use for it any more.
    """
    if (left := SparkSession._instantiatedSession) is not None:
        with contextlib.suppress(Exception):  # Its JVM may be gone.
            left.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = SparkContext._active_spark_context = None
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
