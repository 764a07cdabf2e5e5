"""A query that writes to a stream is killed again and again; what it leaves is what an undisturbed run leaves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from tests.spark.conftest import fill, layout
from tests.spark.processes import descendants, kill_tree, start_job, wait_for, wait_for_end

#: Three are one of each kind, and take four minutes; `make test-faults` does twenty.
KILLS = int(os.environ.get("HOLDFAST_SPARK_KILLS", "0"))
SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
COLUMNS = "window struct<start:timestamp,end:timestamp>, key string, count bigint, sum bigint"


def victims(job: subprocess.Popen[str], kind: str) -> list[int]:
    """Processes of the job's own tree that play the part."""
    mark = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark.daemon"}
    return [job.pid] if kind == "driver" else [pid for pid, command in descendants(job.pid) if mark[kind] in command]


class Query:
    """The query under attack: started again whenever it dies, as an operator would."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._checkpoint, self._log = root, folder / "ckpt", folder / "out.log"
        self.restarts = -1
        self._start()

    def _start(self) -> None:
        self.restarts += 1
        self.job = start_job(
            self._root, self._checkpoint, self._log, "--master", "local-cluster[2,1,768]", "--rows", "6"
        )

    @property
    def batches(self) -> int:
        """How many batches Spark has committed."""
        commits = self._checkpoint / "commits"
        return len([p for p in commits.iterdir() if p.name.isdigit()]) if commits.is_dir() else 0

    def kill(self, kind: str, chance: random.Random) -> str:
        """Let it get on by a batch, then kill one of its processes at a random moment."""
        before = self.batches
        while self.batches == before:
            wait_for(lambda: self.batches > before or self.job.poll() is not None, f"batch {before + 1}", 240)
            self._start_again_if_dead()
        wait_for(lambda: victims(self.job, kind) or self.job.poll() is not None, f"a process that is the {kind}", 60)
        found = victims(self.job, kind)
        signal.sigtimedwait([], chance.random() * 0.4)
        if kind == "driver" or not found:
            kill_tree(self.job)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
        self._start_again_if_dead()
        return kind

    def _start_again_if_dead(self) -> None:
        ended = self.job.poll()
        assert ended != 0, f"the query ended before all kills, after {self.batches} batches; give it more rows"
        if ended is not None:
            self._start()

    def finish(self) -> None:
        while wait_for_end(self.job, "the end of the run", 400) != 0:
            assert self.restarts < 3 * KILLS, self._log.read_text()[-3000:]
            self._start()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not KILLS, reason="test_any_query kills drivers; `make test-faults` kills executors and workers, too"
)
def test_a_query_killed_at_random_leaves_the_bytes_of_an_undisturbed_run(
    store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """S2, L7: driver, executor and Python worker die in turn, at a random moment of a random batch."""
    rows = 4 * KILLS + 8
    fill(store, "a", [(i * 0.5, f"k{i % 11}", i) for i in range(2 * rows)])
    fill(store, "b", [(i * 0.25, f"k{i % 5}", i) for i in range(4 * rows)])
    for name in ("calm", "out"):
        store.create(name, COLUMNS, bucket="1s")
    calm = start_job(store.root, tmp_path / "calm", tmp_path / "calm.log", "--output", "calm", "--rows", "100000")
    assert wait_for_end(calm, "the undisturbed run") == 0, (tmp_path / "calm.log").read_text()[-3000:]

    query = Query(store.root, tmp_path)
    try:
        killed = Counter(
            query.kill(("driver", "executor", "worker")[n % 3], random.Random(SEED + n)) for n in range(KILLS)
        )
        query.finish()
    finally:
        kill_tree(query.job)
    print(f"killed {dict(killed)} over {query.batches} batches with {query.restarts} restarts")
    assert layout(store.open("out")) == layout(store.open("calm"))
