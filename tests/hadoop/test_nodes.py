"""A node whose checkpoint, with Spark's windows in it, lies on HDFS or on S3: it moves there, is killed, forks,
corrects and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.model.errors import UsageError
from holdfast.spark.checkpoint_place import CHECKPOINTS, spark_part
from holdfast.spark.fork import last_commit
from holdfast.spark.hadoop_path import HadoopPath, checkpoint_folder
from tests.hadoop.node_job import Inputs, application, cut_and_heal, expected, gives_tentative, reached, stable
from tests.hadoop.places import HDFS, S3, Places
from tests.spark.processes import REPOSITORY, environment, kill_tree, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: `make test-faults`: on S3 as well.
PLACES = [HDFS, S3] if "HOLDFAST_HADOOP_KILLS" in os.environ else [HDFS]


@contextlib.contextmanager
def killed(root: Path, settings: dict[str, str], log: Path) -> Iterator[Callable[[str], None]]:
    """The node in a process of its own, which is killed at the end; gives who waits for what it says."""
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "tests.hadoop.node_job", str(root), json.dumps(settings)],
                                   cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, text=True)  # fmt: skip

    def said(line: str) -> None:
        wait_for(lambda: process.poll() is not None or f"{line}\n" in log.read_text(), line, 120)
        assert process.poll() is None, log.read_text()[-3000:]

    try:
        yield said
    finally:
        kill_tree(process)


@pytest.fixture
def placed(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Names the place of checkpoints to the session of these tests."""
    yield lambda at: spark.conf.set(CHECKPOINTS, at)
    spark.conf.unset(CHECKPOINTS)


@pytest.mark.parametrize("place", PLACES)
def test_a_node_with_its_checkpoint_elsewhere_is_right_whoever_is_killed(
    spark: SparkSession, places: Places, placed: Callable[[str], None], place: str, tmp_path: Path
) -> None:
    """D1, D3, S1: begun in the host's folder, carried there after a kill, forked there and killed amid the failure."""
    at = f"{places.at(place)}/nodes"
    store, log = holdfast.open(tmp_path / "streams"), tmp_path / "log"
    inputs, checkpoint = Inputs(store), store.root / ".holdfast" / "nodes" / "counted" / "checkpoint"
    with killed(store.root, places.settings(), log) as said:
        said("STABLE")
        output = store.open("counted")
        wait_for(reached(output, 2), "results", 60)
    assert (checkpoint / "commits").is_dir()
    with killed(store.root, {**places.settings(), CHECKPOINTS: at}, log) as said:
        said("STABLE")
        tentative = gives_tentative(output)
        inputs.hold("right")
        wait_for(tentative, "tentative results", 60)
    assert not (checkpoint / "commits").exists()
    inputs.hold("")
    placed(at)
    with application(store.root).start(spark=spark) as running:
        running.wait_until_stable("120s")
        cut_and_heal(running)
        assert last_commit(spark_part(checkpoint)) > 0
        inputs.end()
        running.watch()
    assert [found.name for found in checkpoint_folder(at).iterdir()] == [cast(HadoopPath, spark_part(checkpoint)).name]
    assert stable(output) == expected(inputs.seconds)


def test_a_place_that_is_a_folder_is_refused(
    spark: SparkSession, placed: Callable[[str], None], tmp_path: Path
) -> None:
    store = holdfast.open(tmp_path / "streams")
    inputs = Inputs(store)
    placed(str(tmp_path / "checkpoints"))
    with pytest.raises(UsageError, match="must name a place on a filesystem of Hadoop's"):
        application(store.root).start(spark=spark)
    inputs.end()
