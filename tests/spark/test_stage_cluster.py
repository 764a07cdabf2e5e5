"""An operator's partition moves to another machine of a cluster when an executor is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.spark.fork import last_commit
from tests.spark.conftest import fill, layout
from tests.spark.processes import REPOSITORY, cluster, descendants, environment, kill_tree, wait_for, wait_for_end


def start(root: Path, checkpoint: Path, log: Path, master: str, output: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.stage_job", str(root), str(checkpoint), "--master", master,
               "--output", output]  # fmt: skip
    with log.open("a") as out:
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, text=True)


@pytest.mark.slow
def test_a_killed_executor_and_its_lost_state_change_no_byte(store: holdfast.StreamStore, tmp_path: Path) -> None:
    fill(store, "a", [(i * 0.02, f"k{i % 11}", i * 31 % 1000) for i in range(1200)])
    seen = []
    with cluster(tmp_path) as url:
        for name, master in (("near", "local[2,4]"), ("far", url)):
            log = tmp_path / f"{name}.log"
            job = start(store.root, tmp_path / f"ckpt-{name}", log, master, name)
            try:
                if name == "far":
                    wait_for(lambda: last_commit(tmp_path / "ckpt-far") >= 3, "some batches")
                    kill_one_executor()
                    # The dead machine's scratch is gone as well: only the output's log is left to start from.
                    shutil.rmtree(store.root / "far" / "state", ignore_errors=True)
                ended = wait_for_end(job, f"the job on {master}")
            finally:
                kill_tree(job)
            assert ended == 0, log.read_text()[-3000:]
            seen.append(layout(store.open(name)))
    assert seen[0] == seen[1]
    assert len(seen[0]) > 5


def kill_one_executor() -> None:
    executors = [pid for pid, command in descendants(os.getpid()) if "CoarseGrainedExecutorBackend" in command]
    assert executors, "no executor is running"
    with contextlib.suppress(ProcessLookupError):
        os.kill(executors[0], signal.SIGKILL)
