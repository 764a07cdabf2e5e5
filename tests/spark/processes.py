"""Starting jobs and clusters for tests, and finding the processes that belong to them, never by name alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark

from holdfast.spark.session import quick_python

REPOSITORY = Path(__file__).parents[2]


def descendants(pid: int, *, forked: bool = False) -> list[tuple[int, str]]:
    """Every process below `pid` with its command line; with `forked`, also those that a reader server has forked for a
    JVM among them."""
    parents: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            number = int(entry.name)
            stat = (entry / "stat").read_text()
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(number)
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            commands[number] = " ".join(words)
            if forked and "holdfast.spark.reader_server" in words:
                parents.setdefault(int(words[-3]), []).append(number)  # … ADDRESS JVM LOCK
    found, queue = {}, [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            if child not in found:
                found[child] = commands.get(child, "")
                queue.append(child)
    return list(found.items())


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and all below it, and wait until they are gone."""
    victims = [pid for pid, _ in descendants(process.pid)]
    for pid in (process.pid, *victims):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(_alive(pid) for pid in victims), "the killed processes to vanish")


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)


def environment() -> dict[str, str]:
    path = os.pathsep.join(str(p) for p in (REPOSITORY / "src", REPOSITORY))
    python = quick_python()
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1"}  # fmt: skip


def wait_for_end(process: subprocess.Popen[str], what: str, seconds: float = 240) -> int:
    wait_for(lambda: process.poll() is not None, what, seconds)
    return process.wait()


def start_job(root: Path, checkpoint: Path, log: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.job", str(root), str(checkpoint), *options]
    with log.open("a") as out:
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, text=True)


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """A standalone Spark cluster on loopback: a master and workers, each with its own scratch folder."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = _free_port()
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("w") as out:
            env = {**environment(), "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(folder / name),
                   "SPARK_LOCAL_DIRS": str(folder / f"{name}-scratch")}  # fmt: skip
            started.append(subprocess.Popen([str(spark_class), *arguments], env=env, stdout=out, stderr=out, text=True))
        return log

    try:
        url = f"spark://127.0.0.1:{port}"
        log = start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
                    "--webui-port", "0")  # fmt: skip
        wait_for(lambda: "I have been elected leader" in log.read_text(), "the master to start")
        for n in range(workers):
            start(f"worker{n}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                  "--cores", "1", "--memory", "1g", url)  # fmt: skip
        wait_for(lambda: len(re.findall("Registering worker", log.read_text())) == workers, "the workers to register")
        yield url
    finally:
        for process in started:
            kill_tree(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(line: str) -> None:
    """To whoever waits for it: in one piece, also where output is not buffered, since logs come to the same file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
