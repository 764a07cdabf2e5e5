"""A standalone cluster whose workers are islands: each has a network and a filesystem of its own.

Everything is made inside of namespaces, held by processes that do nothing else, and vanishes with them: a bridge with
addresses of our own for the master and the driver, a pair of interfaces to each worker, and in each worker an empty
folder where the streams and the checkpoints lie. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.spark.processes import REPOSITORY, descendants, kill_tree, wait_for

HUB = "10.77.0.1"
SECRET = "a-secret-of-this-cluster-alone"
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def unavailable() -> str | None:
    """Why there can be no islands here."""
    if os.geteuid() != 0:
        return "namespaces with a network of their own need root"
    if Path(tempfile.gettempdir()) in REPOSITORY.parents:
        return "islands do not see the folder of temporary files, and the repository lies in it"
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount", "openssl") if shutil.which(tool) is None]
    if missing:
        return f"namespaces need {', '.join(missing)}"
    tried = subprocess.run(["unshare", "-n", "-m", "ip", "link", "add", "x0", "type", "bridge"], capture_output=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


class Island:
    """A namespace. `hides`: it sees an empty folder there."""

    def __init__(self, *hides: Path) -> None:
        self._hides = hides
        mount = ["-m"] if hides else []
        self.holder = subprocess.Popen(["unshare", "-n", *mount, "sleep", "infinity"])
        ours = os.readlink("/proc/self/ns/net")
        wait_for(lambda: _network(self.holder.pid) not in (ours, ""), "a namespace")
        for folder in hides:
            self.run("mount", "-t", "tmpfs", "none", str(folder))
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> tuple[str, ...]:
        mount = ["-m"] if self._hides else []
        return ("nsenter", "-t", str(self.holder.pid), "-n", *mount, "--", *words)

    def run(self, *words: str) -> None:
        subprocess.run(self.command(*words), check=True)

    def start(self, log: Path, env: dict[str, str], *words: str) -> subprocess.Popen[str]:
        with log.open("a") as out:
            return subprocess.Popen(self.command(*words), env=env, stdout=out, stderr=out, text=True, cwd=REPOSITORY)


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class Islands:
    """The cluster. `folder` is seen by master and driver alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[subprocess.Popen[str]] = []
        self.started: list[subprocess.Popen[str]] = []
        """The workers."""
        self.master = f"spark://{HUB}:7077"
        conf = folder / "conf"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text(
            f"spark.authenticate true\nspark.authenticate.secret {SECRET}\nspark.network.crypto.enabled true\n"
        )
        path = os.pathsep.join(str(p) for p in (REPOSITORY / "src", REPOSITORY))
        self.env = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HUB,
                    "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_CONF_DIR": str(conf)}  # fmt: skip
        self.hub = Island()
        self.hub.run("ip", "link", "add", "br0", "type", "bridge")
        self.hub.run("ip", "addr", "add", f"{HUB}/24", "dev", "br0")
        self.hub.run("ip", "link", "set", "br0", "up")
        self.workers: list[Island] = []
        self._log = folder / "master.log"
        self._servers.append(self.hub.start(
            self._log, self.env, str(_SPARK_CLASS), "org.apache.spark.deploy.master.Master", "--host", HUB, "--port",
            "7077", "--webui-port", "0",
        ))  # fmt: skip
        wait_for(lambda: "I have been elected leader" in self._log.read_text(), "the master to start")

    def add_worker(self) -> None:
        number = len(self.workers)
        # The folder of temporary files hides those of all tests as well, where they lie below.
        hidden = {Path(tempfile.gettempdir()), self._folder.parent}
        island = Island(*sorted(h for h in hidden if not any(o in h.parents for o in hidden)))
        self.workers.append(island)
        address, name = f"10.77.0.{10 + number}", f"w{number}"
        self.hub.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(island.holder.pid))
        self.hub.run("ip", "link", "set", name, "master", "br0", "up")
        island.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        island.run("ip", "link", "set", "eth0", "up")
        own = Path(tempfile.gettempdir())
        conf = (self._folder / "conf" / "spark-defaults.conf").read_text()
        island.run("sh", "-c", f"mkdir {own}/conf && printf '%s' '{conf}' > {own}/conf/spark-defaults.conf")
        env = {**self.env, "SPARK_LOCAL_IP": address, "SPARK_WORKER_DIR": f"{own}/work",
               "SPARK_CONF_DIR": f"{own}/conf", "SPARK_LOCAL_DIRS": f"{own}/local"}  # fmt: skip
        worker = island.start(
            self._folder / f"worker{number}.log", env, str(_SPARK_CLASS), "org.apache.spark.deploy.worker.Worker",
            "--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g", self.master,
        )  # fmt: skip
        self.started.append(worker)

    def wait_for_workers(self) -> None:
        known = len(self.started)
        wait_for(lambda: len(re.findall("Registering worker", self._log.read_text())) >= known, "workers to register")

    def driver(self, log: Path, *words: str) -> subprocess.Popen[str]:
        return self.hub.start(log, self.env, sys.executable, *words)

    def errors(self) -> str:
        """The ends of what executors have written."""
        command = f"tail -n 25 {tempfile.gettempdir()}/work/*/*/stderr"
        return "\n".join(
            subprocess.run(island.command("sh", "-c", command), capture_output=True, text=True).stdout
            for island in self.workers
        )

    def close(self) -> None:
        for process in (*self.started, *self._servers):
            kill_tree(process)
        for island in (*self.workers, self.hub):
            island.holder.kill()
            island.holder.wait()


@contextlib.contextmanager
def islands(folder: Path) -> Iterator[Islands]:
    made = Islands(folder)
    try:
        made.add_worker()
        made.add_worker()
        made.wait_for_workers()
        yield made
    finally:
        made.close()


def kill_executor(worker: subprocess.Popen[str] | None = None) -> None:
    """One of those that run now, of that worker if it is named."""
    below = os.getpid() if worker is None else worker.pid
    found = [pid for pid, command in descendants(below) if "CoarseGrainedExecutorBackend" in command]
    assert found, "no executor is running"
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[0], signal.SIGKILL)
