"""An HDFS of one name node and one data node, on loopback and gone when the tests are.

    python -m tests.hadoop.hdfs_server --fetch

brings the servers from Maven's artifacts (`mvn` is needed) into the user's cache; what they depend on comes with
PySpark. Where they are there, the tests start them; otherwise they say what they skip.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest

from holdfast.spark.java import find_java
from tests.checkpoint.servers import free_port
from tests.maven import Artifact
from tests.spark.processes import wait_for

#: The Hadoop that PySpark brings the client of.
SERVER = Artifact("hdfs", "org.apache.hadoop", "hadoop-client-minicluster", "3.5.0", alone=True)
_CLIENT = Path(pyspark.__file__).parent / "jars"
_LOGGING = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console>
</Appenders><Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


def unavailable() -> str | None:
    """Why there can be no HDFS here."""
    if find_java() is None:
        return "HDFS needs Java"
    if SERVER.jars() is None:
        return "no HDFS here; `python -m tests.hadoop.hdfs_server --fetch` brings it from Maven"
    return None


class Hdfs:
    """`prefix`: a command in whose network it runs, at the address `host`."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self._folder, self._prefix = folder, tuple(prefix)
        self.address = f"hdfs://{host}:{free_port()}"
        (folder / "conf").mkdir(parents=True)
        ports = {f"dfs.datanode.{of}address": f"{host}:0" for of in ("", "http.", "ipc.")}
        settings = {
            "fs.defaultFS": self.address, "dfs.replication": "1", "dfs.permissions.enabled": "false",
            "dfs.namenode.name.dir": f"file://{folder}/names", "dfs.datanode.data.dir": f"file://{folder}/data",
            "dfs.namenode.http-address": f"{host}:0", **ports,
            # Nobody resolves addresses of ours.
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.hostname": host, "hadoop.security.token.service.use_ip": "true",
        }  # fmt: skip
        pairs = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        for name in ("core", "hdfs"):
            (folder / "conf" / f"{name}-site.xml").write_text(f"<configuration>{pairs}</configuration>")
        (folder / "log4j2.xml").write_text(_LOGGING)
        self._log = (folder / "log").open("ab")
        self._make_names()
        self._processes = [self._start("namenode.NameNode"), self._start("datanode.DataNode")]

    def _command(self, main: str, *rest: str) -> list[str]:
        home, lib = find_java(), SERVER.jars()
        # Startup counts here, not throughput: one compiler, one collector thread.
        java = [f"{home}/bin/java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = f"{self._folder}/conf:{lib}/*:{_CLIENT}/*"
        return [*self._prefix, *java, f"-Dlog4j2.configurationFile={self._folder}/log4j2.xml", "-cp", classes,
                f"org.apache.hadoop.hdfs.server.{main}", *rest]  # fmt: skip

    def _start(self, main: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command(main), stdout=self._log, stderr=self._log)

    def _make_names(self) -> None:
        """Once for all tests: it takes a JVM some seconds to write an empty namespace."""
        made = SERVER.cache / "names"
        if made.exists():
            shutil.copytree(made, self._folder / "names")
            return
        command = self._command("namenode.NameNode", "-format", "-nonInteractive")
        done = subprocess.run(command, stdout=self._log, stderr=self._log, check=False)
        assert done.returncode == 0, f"the name node's disk could not be made:\n{self.log()}"
        staged = made.with_name(f"names-{os.getpid()}")
        shutil.copytree(self._folder / "names", staged)
        with contextlib.suppress(OSError):  # Somebody else was quicker.
            staged.rename(made)

    def log(self) -> str:
        return Path(self._folder, "log").read_text()[-3000:]

    def wait(self) -> None:
        """Until blocks can be written."""
        joined = Path(self._folder, "data", "current", "VERSION")

        def ready() -> bool:
            assert all(process.poll() is None for process in self._processes), f"HDFS has ended:\n{self.log()}"
            return joined.exists()

        wait_for(ready, "HDFS")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._log.close()


@contextlib.contextmanager
def hdfs_server(host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[Hdfs]:
    """A server of our own, as long as the machine has the programs."""
    if (why := unavailable()) is not None:
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="holdfast-hdfs-") as folder:
        server = Hdfs(Path(folder), host, prefix)
        try:
            server.wait()
            yield server
        finally:
            server.stop()


if __name__ == "__main__":
    if sys.argv[1:] != ["--fetch"]:
        sys.exit("usage: python -m tests.hadoop.hdfs_server --fetch")
    sys.exit(None if (why := SERVER.fetch()) is None else f"no HDFS: {why}")
