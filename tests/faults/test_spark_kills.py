"""A query that writes to a stream is killed again and again; what it leaves is what an undisturbed run leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

import holdfast
from tests.spark.conftest import fill, layout
from tests.spark.processes import descendants, kill_tree, start_job, wait_for, wait_for_end

KILLS = int(os.environ.get("HOLDFAST_SPARK_KILLS", "20"))
SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
COLUMNS = "window struct<start:timestamp,end:timestamp>, key string, count bigint, sum bigint"


def victims(job: subprocess.Popen[str], kind: str) -> list[int]:
    """Processes of the job's own tree that play the part."""
    mark = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark.daemon"}
    return [job.pid] if kind == "driver" else [pid for pid, command in descendants(job.pid) if mark[kind] in command]


def await_victim(job: subprocess.Popen[str], kind: str, checkpoint: Path) -> int:
    """A process to kill, once the query has got on by a batch since the last one died."""
    before = done(checkpoint)
    wait_for(lambda: done(checkpoint) > before or job.poll() is not None, "a batch between two kills", 240)
    assert job.poll() is None, "the query ended before all kills; give it more rows"
    wait_for(lambda: victims(job, kind), f"a process that is the {kind}", 60)
    return victims(job, kind)[0]


def done(checkpoint: Path) -> int:
    """The last batch that Spark has committed."""
    commits = checkpoint / "commits"
    return max((int(p.name) for p in commits.iterdir() if p.name.isdigit()), default=-1) if commits.is_dir() else -1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_killed_at_random_leaves_the_bytes_of_an_undisturbed_run(
    store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """S2, L7: driver, executor and Python worker die in turn, at a random moment of a random batch."""
    rows = 4 * KILLS + 20
    fill(store, "a", [(i * 0.5, f"k{i % 11}", i) for i in range(2 * rows)])
    fill(store, "b", [(i * 0.25, f"k{i % 5}", i) for i in range(4 * rows)])
    for name in ("calm", "out"):
        store.create(name, COLUMNS, bucket="1s")
    calm = start_job(store.root, tmp_path / "calm", tmp_path / "calm.log", "--output", "calm", "--rows", "100000")
    assert wait_for_end(calm, "the undisturbed run") == 0, (tmp_path / "calm.log").read_text()[-3000:]

    chance = random.Random(SEED)
    checkpoint, log = tmp_path / "ckpt", tmp_path / "out.log"
    options = ("--master", "local-cluster[2,1,768]", "--rows", "6")
    job = start_job(store.root, checkpoint, log, *options)
    killed: dict[str, int] = {"driver": 0, "executor": 0, "worker": 0}
    try:
        for n in range(KILLS):
            kind = ("driver", "executor", "worker")[n % 3]
            victim = await_victim(job, kind, checkpoint)
            signal.sigtimedwait([], chance.random() * 0.4)
            killed[kind] += 1
            if kind == "driver":
                kill_tree(job)
                job = start_job(store.root, checkpoint, log, *options)
            else:
                os.kill(victim, signal.SIGKILL)
        while wait_for_end(job, "the end of the run", 400) != 0:
            job = start_job(store.root, checkpoint, log, *options)
    finally:
        kill_tree(job)
    print(f"killed {killed} over {done(checkpoint) + 1} batches")
    assert layout(store.open("out")) == layout(store.open("calm"))
