"""Queries and operators on a standalone cluster with two workers write the bytes that they write on one machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark.fork import last_commit
from tests.spark import cluster_job
from tests.spark.conftest import fill, layout
from tests.spark.processes import REPOSITORY, cluster, descendants, environment, kill_tree, wait_for

COLUMNS = "window struct<start:timestamp,end:timestamp>, key string, count bigint, sum bigint"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Job(NamedTuple):
    """One driver on the cluster, which runs the queries of both tests: starting JVMs takes longer than these."""

    store: holdfast.StreamStore
    folder: Path
    process: subprocess.Popen[str]

    def done(self, name: str) -> None:
        def said() -> str:
            return (self.folder / "far.log").read_text()

        wait_for(lambda: f"{name} done\n" in said() or self.process.poll() is not None, name, 300)
        assert f"{name} done\n" in said(), said()[-3000:]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    store = holdfast.open(folder / "streams")
    fill(store, "a", [(i * 0.02, f"k{i % 11}", i * 31 % 1000) for i in range(1000)])
    fill(store, "b", [(i * 0.05, f"k{i % 5}", i) for i in range(400)])
    for output in ("near-windows", "far-windows"):
        store.create(output, COLUMNS, bucket="1s")
    with cluster(tmp_path_factory.mktemp("cluster")) as master:
        command = [sys.executable, "-m", "tests.spark.cluster_job", str(store.root), str(folder), "--master", master]
        with (folder / "far.log").open("w") as out:
            process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, text=True)
        try:
            yield Job(store, folder, process)
        finally:
            kill_tree(process)


def test_a_killed_executor_and_its_lost_state_change_no_byte(spark: SparkSession, far: Job) -> None:
    """An operator's partition moves to another machine of the cluster."""
    store = far.store
    wait_for(lambda: last_commit(far.folder / "far-aggregate") >= 2, "some batches", 300)
    kill_one_executor()
    # The dead machine's scratch is gone as well: only the output's log is left to start from.
    shutil.rmtree(store.root / "far-aggregate" / "state", ignore_errors=True)
    cluster_job.aggregate(spark, str(store.root), str(far.folder / "near-aggregate"), "near-aggregate")
    far.done("far-aggregate")
    assert layout(store.open("near-aggregate")) == layout(store.open("far-aggregate"))
    assert len(layout(store.open("near-aggregate"))) > 5


def test_a_cluster_with_two_workers_writes_the_same_bytes(spark: SparkSession, far: Job) -> None:
    cluster_job.windows(spark, str(far.store.root), str(far.folder / "near-windows"), "near-windows")
    far.done("far-windows")
    near, there = layout(far.store.open("near-windows")), layout(far.store.open("far-windows"))
    assert near == there
    assert len(near) > 5


def kill_one_executor() -> None:
    executors = [pid for pid, command in descendants(os.getpid()) if "CoarseGrainedExecutorBackend" in command]
    assert executors, "no executor is running"
    with contextlib.suppress(ProcessLookupError):
        os.kill(executors[0], signal.SIGKILL)
