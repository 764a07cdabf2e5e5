"""On a cluster whose workers see neither streams nor checkpoints, queries write the bytes that they write elsewhere:
executors read from the driver's host (`holdfast.spark.stream_host`), over TLS, and leave results and state there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark.fork import last_commit
from tests.hadoop import job as queries
from tests.hadoop import node_job, s3a
from tests.hadoop.hdfs_server import hdfs_server
from tests.hadoop.places import BUCKET, HDFS, S3, s3a_settings
from tests.hadoop.places import unavailable as unavailable_place
from tests.s3_server import S3Server
from tests.spark import island_job
from tests.spark.conftest import fill, layout, tuples
from tests.spark.islands import HUB, Islands, islands, kill_executor, unavailable
from tests.spark.processes import kill_tree, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(unavailable() is not None, reason=unavailable() or ""),
]


#: `make test-faults`: with checkpoints on servers as well.
LONG = "HOLDFAST_HADOOP_KILLS" in os.environ


class Job(NamedTuple):
    """One driver, which runs queries."""

    cluster: Islands
    process: subprocess.Popen[str]
    folder: Path
    shared: tuple[str, ...]
    """Schemes of the servers with checkpoints that all see."""

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def said(self, line: str) -> None:
        self.until(lambda: f"{line}\n" in self.log, line)

    def counted(self, node: str) -> bool:
        """Whether the node has ended with the right results."""
        told = re.compile(rf"^{node} counted (\d+) seconds$", re.MULTILINE)
        self.until(lambda: told.search(self.log), f"the end of {node}")
        (seconds,) = told.findall(self.log)
        results = node_job.stable(holdfast.open(self.folder / node).open("counted"))
        return bool(results) and results == node_job.expected(int(seconds))

    def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            wait_for(lambda: condition() or self.process.poll() is not None, what, 300)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-3000:]}\n{self.cluster.errors()}") from None
        assert condition(), f"{self.log[-3000:]}\n{self.cluster.errors()}"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    store = holdfast.open(folder / "streams")
    fill(store, "a", [(i * 0.02, f"k{i % 11}", i * 31 % 1000) for i in range(800)])
    fill(store, "b", [(i * 0.05, f"k{i % 5}", i) for i in range(320)])
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(islands(tmp_path_factory.mktemp("islands")))
        shared, settings = servers(cluster, stack)
        process = cluster.driver(folder / "driver.log", "-m", "tests.spark.island_job", str(store.root), str(folder),
                                 "--master", cluster.master, "--host", HUB, "--settings", json.dumps(settings),
                                 *(word for at in shared for word in ("--shared", at)))  # fmt: skip
        try:
            yield Job(cluster, process, folder, tuple(at.partition(":")[0] for at in shared))
        finally:
            kill_tree(process)


def servers(cluster: Islands, stack: contextlib.ExitStack) -> tuple[list[str], dict[str, str]]:
    """For checkpoints, in the network that all reach, and what it takes to reach them."""
    shared, settings, hub = [], {}, cluster.hub.command()
    if not LONG:
        return [], {}
    if unavailable_place(HDFS) is None:
        shared.append(f"{stack.enter_context(hdfs_server(HUB, hub)).address}/checkpoints")
    if unavailable_place(S3) is None:
        server = S3Server(host=HUB, prefix=hub)
        stack.callback(server.stop)
        server.make_bucket(BUCKET)
        shared.append(f"s3a://{BUCKET}")
        jars = s3a.JARS.jars()
        assert jars is not None
        settings = s3a_settings(server.endpoint, jars)
    return shared, settings


def test_executors_that_see_no_folder_change_no_byte_though_one_is_killed_and_a_worker_too(
    spark: SparkSession, job: Job
) -> None:
    """D9, C1: without state, with windows, with a join, with results beyond the bound."""
    store = holdfast.open(job.folder / "streams")
    first, second = job.cluster.started
    with ThreadPoolExecutor(1) as pool:
        near = pool.submit(island_job.run, spark, str(store.root), job.folder, "near-")
        job.until(lambda: last_commit(job.folder / "far-direct") >= 3, "some batches")
        kill_executor(second)
        job.until(lambda: last_commit(job.folder / "far-shuffled") >= 1, "some batches with a shuffle")
        kill_tree(first)
        job.cluster.add_worker()
        near.result()
    job.said("queries done")
    for name in (query.__name__ for query in island_job.QUERIES):
        found, far = layout(store.open(f"near-{name}")), layout(store.open(f"far-{name}"))
        assert found == far, name
        assert len(found) > 5, name
    assert f"do not see the folder of a, far-direct: they ask https://{HUB}:" in job.log
    assert not list((store.root / "far-large" / "staging").iterdir())


def test_sparks_own_state_is_refused_where_executors_see_no_checkpoint(job: Job) -> None:
    """Each would begin the next batch with the state of its own folder, and the results would be wrong."""
    job.said("Spark's own state: refused")
    assert not layout(holdfast.open(job.folder / "streams").open(f"far-{island_job.REFUSED.__name__}"))


def test_a_node_on_such_workers_forks_and_corrects(job: Job) -> None:
    """D1, D3: its state is Holdfast's, beside the driver."""
    assert job.counted("node")


@pytest.mark.skipif(not LONG, reason="takes a minute; `make test-faults` runs it")
@pytest.mark.parametrize("scheme", ["hdfs", "s3a"])
def test_sparks_own_state_on_a_server_changes_no_byte_though_an_executor_is_killed(
    spark: SparkSession, job: Job, scheme: str
) -> None:
    """D9, C1, S1: windows and a join, each forked while it runs, on workers that see neither streams nor the driver's
    checkpoints."""
    if scheme not in job.shared:
        pytest.skip(unavailable_place(S3 if scheme == "s3a" else HDFS) or "")
    store = holdfast.open(job.folder / "streams")
    job.until(lambda: f"far-{scheme}-windows 1\n" in job.log, "some batches with a checkpoint there")
    kill_executor()
    for name in queries.QUERIES:
        if f"near-{name}" not in store.names():
            near = queries.start(spark, name, str(store.root), str(job.folder / f"near-{name}"), f"near-{name}")
            assert near.awaitTermination(300)
    job.said(f"{scheme} done")
    assert job.counted(f"node-{scheme}"), "a node with Spark's windows, its checkpoint there"
    for name in queries.QUERIES:
        near_bytes = layout(store.open(f"near-{name}"))
        assert layout(store.open(f"far-{scheme}-{name}")) == near_bytes
        assert len(near_bytes) > 5
        parent, fork = (
            Counter(row[1:] for row in tuples(store.open(f"far-{scheme}-{name}{of}"))) for of in ("", "-fork")
        )
        assert fork < parent
        first = min(stime for stime, *_ in fork)
        if name == "windows":  # They come out in the order of their ends.
            assert fork == Counter({row: n for row, n in parent.items() if row[0] >= first})
