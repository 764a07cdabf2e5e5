"""On a cluster whose workers see neither streams nor checkpoints, queries write the bytes that they write elsewhere:
executors read from the driver's host (`holdfast.spark.stream_host`), over TLS, and leave results and state there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark.fork import last_commit
from tests.spark import island_job
from tests.spark.conftest import fill, layout
from tests.spark.islands import HUB, Islands, islands, kill_executor, unavailable
from tests.spark.processes import kill_tree, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(unavailable() is not None, reason=unavailable() or ""),
]


class Job(NamedTuple):
    """One driver, which runs queries."""

    cluster: Islands
    process: subprocess.Popen[str]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def said(self, line: str) -> None:
        self.until(lambda: f"{line}\n" in self.log, line)

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
    fill(store, "a", [(i * 0.02, f"k{i % 11}", i * 31 % 1000) for i in range(1200)])
    fill(store, "b", [(i * 0.05, f"k{i % 5}", i) for i in range(480)])
    with islands(tmp_path_factory.mktemp("islands")) as cluster:
        process = cluster.driver(folder / "driver.log", "-m", "tests.spark.island_job", str(store.root), str(folder),
                                 "--master", cluster.master, "--host", HUB)  # fmt: skip
        try:
            yield Job(cluster, process, folder)
        finally:
            kill_tree(process)


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
