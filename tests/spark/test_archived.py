"""Spark reads what the disk has no longer straight from the archive: planner and tasks, as a table and as a query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.clock import pause
from holdfast.stream.archive.archiver import archive_lag, archive_once
from tests.s3_server import s3_server
from tests.spark.conftest import T0, at

COUNT = 400


def archived(root: Path, url: str) -> holdfast.Stream:
    """Most of it is only in the archive."""
    stream = holdfast.open(root).create("s", "n bigint, text string", bucket="1s", archive=url, segment_bytes=4096)
    with stream.producer(stime="stime", slack="0s") as producer:
        for n in range(COUNT):
            producer.send({"stime": at(n), "n": n, "text": "x" * 100})
        producer.close()
    while archive_lag(stream.folder / "main").segments:  # The producer's own thread may be at it.
        archive_once(stream.folder / "main", stream.definition)
        pause(5_000)
    assert stream.retain(holdfast.Retention(size_bytes=1)).segments > 5
    assert len(list((stream.folder / "main").glob("*.seg"))) == 1
    return stream


def test_spark_reads_what_left_the_disk(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "archive").mkdir()
    archived(tmp_path / "streams", f"file://{tmp_path}/archive")
    frame = spark.read.format("holdfast").option("root", str(tmp_path / "streams")).load("s")
    assert sorted(row.n for row in frame.select("n").collect()) == list(range(COUNT))
    some = frame.where(f"stime >= timestamp_seconds({T0 + 10}) and stime < timestamp_seconds({T0 + 20})")
    assert sorted(row.n for row in some.select("n").collect()) == list(range(10, 20))


@pytest.mark.slow
def test_tasks_ask_s3_themselves(tmp_path: Path) -> None:
    with s3_server() as server:
        server.make_bucket("streams")
        environment = {**os.environ, **server.environment}
        for name, value in server.environment.items():
            os.environ[name] = value
        try:
            archived(tmp_path / "streams", "s3://streams/of/us")
        finally:
            for name in server.environment:
                os.environ.pop(name)
        job = subprocess.run(
            [sys.executable, "-m", "tests.spark.archived_job", str(tmp_path / "streams"), str(tmp_path / "checkpoint")],
            env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert job.returncode == 0, job.stderr[-3000:]
    got = json.loads(job.stdout.splitlines()[-1])
    assert got == {"table": list(range(COUNT)), "streamed": list(range(COUNT))}
