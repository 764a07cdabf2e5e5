"""Workers are forked from a daemon that has imported what they need, and has no thread that a fork would lose."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.spark.session import quick_python
from holdfast.spark.worker_daemon import NO_THREADS


@contextlib.contextmanager
def daemon(worker: str, **settings: str) -> Iterator[int]:
    """The daemon that Spark would start for such workers, once it says where it listens; it ends with its input."""
    process = subprocess.Popen(
        [quick_python(), "-m", "pyspark.daemon", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "SPARK_REUSE_WORKER": "1", **settings},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    assert 0 < port < 65536
    yield process.pid
    process.stdin.close()
    process.wait(60)


def has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def test_a_daemon_has_imported_arrow_and_has_no_thread() -> None:
    """Those of other workers: `test_reader_server`."""
    with daemon("pyspark.worker") as pid:
        assert has_loaded(pid, "libarrow")
        assert has_loaded(pid, "/pandas/")
        assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_if_there_is_a_thread_nevertheless_sparks_own_daemon_forks_and_its_workers_import_for_themselves() -> None:
    with daemon("pyspark.worker", JE_ARROW_MALLOC_CONF="background_thread:true") as pid:
        assert not has_loaded(pid, "libarrow")
        assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_workers_draw_numbers_of_their_own() -> None:
    """As they do where each imports numpy for itself."""
    program = """
import os, sys
from holdfast.spark.worker_daemon import import_ahead
import_ahead("pyspark.worker")
assert "numpy.random" in sys.modules
for _ in range(2):
    if os.fork() == 0:
        import numpy
        print(numpy.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""
    env = {**os.environ, **NO_THREADS}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 2
