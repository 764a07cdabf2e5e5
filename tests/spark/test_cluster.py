"""The same query on a standalone cluster with two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.spark.conftest import fill, layout
from tests.spark.processes import cluster, kill_tree, start_job, wait_for_end

COLUMNS = "window struct<start:timestamp,end:timestamp>, key string, count bigint, sum bigint"


@pytest.mark.slow
def test_a_cluster_with_two_workers_writes_the_same_bytes(store: holdfast.StreamStore, tmp_path: Path) -> None:
    fill(store, "a", [(i * 0.02, f"k{i % 11}", i) for i in range(2000)])
    fill(store, "b", [(i * 0.05, f"k{i % 5}", i) for i in range(800)])
    seen = []
    with cluster(tmp_path) as url:
        for name, master in (("near", "local[2,4]"), ("far", url)):
            out = store.create(name, COLUMNS, bucket="1s")
            log = tmp_path / f"{name}.log"
            job = start_job(
                store.root, tmp_path / f"ckpt-{name}", log, "--master", master, "--output", name, "--rows", "700"
            )
            try:
                ended = wait_for_end(job, f"the job on {master}")
            finally:
                kill_tree(job)
            assert ended == 0, log.read_text()[-3000:]
            seen.append(layout(out))
    assert seen[0] == seen[1]
    assert len(seen[0]) > 10
