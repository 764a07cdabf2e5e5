"""A standalone HBase with its REST gateway, both on loopback and gone when the tests are.

    python -m tests.checkpoint.hbase_server --fetch

brings the servers from Maven's artifacts (`mvn` is needed) into the user's cache. Where they are there, the tests of
the store start them; otherwise they say what they skip.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.spark.java import find_java
from tests.checkpoint.servers import free_port
from tests.maven import Artifact
from tests.suite.class_archive import SHORT_LIVED

#: Without the older servlet interface, which hides the gateway's own.
SERVER = Artifact(
    "hbase", "org.apache.hbase", "hbase-rest", "2.5.8", without=("servlet-api-2*", "jsp-api-2*")
)  # fmt: skip
#: What HBase's own start script opens on newer Javas.
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.reflect", "java.net", "java.nio", "java.util", "java.util.concurrent",
                    "java.util.concurrent.atomic", "sun.nio.ch")
] + ["--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED"]  # fmt: skip


def _java() -> str:
    home = find_java()
    if home is None:
        pytest.skip("HBase needs Java")
    return str(home / "bin" / "java")


class HBase:
    """Master, region server and ZooKeeper in one process, the gateway in another."""

    def __init__(self, lib: Path, folder: Path) -> None:
        self.port = free_port()
        (folder / "conf").mkdir(parents=True)
        settings = {
            "hbase.rootdir": f"file://{folder}/root", "hbase.tmp.dir": f"{folder}/tmp",
            "hbase.zookeeper.property.dataDir": f"{folder}/zookeeper",
            "hbase.zookeeper.property.clientPort": str(free_port()), "hbase.zookeeper.quorum": "127.0.0.1",
            "hbase.unsafe.stream.capability.enforce": "false", "hbase.wal.provider": "filesystem",
            "hbase.localcluster.assign.random.ports": "true",
            "hbase.master.port": "0", "hbase.master.info.port": "-1", "hbase.regionserver.info.port": "-1",
            "hbase.master.hostname": "localhost", "hbase.regionserver.hostname": "localhost",
            "hbase.master.ipc.address": "127.0.0.1", "hbase.regionserver.ipc.address": "127.0.0.1",
            "hbase.rest.host": "127.0.0.1", "hbase.rest.info.port": "-1",
        }  # fmt: skip
        pairs = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        (folder / "conf" / "hbase-site.xml").write_text(f"<configuration>{pairs}</configuration>")
        self._log = (folder / "log").open("wb")
        java = [_java(), "-Xmx512m", *SHORT_LIVED.split(), *_OPENS, "-cp", f"{folder}/conf:{lib}/*"]
        self._processes = [
            subprocess.Popen([*java, f"org.apache.hadoop.hbase.{what}", *rest], stdout=self._log, stderr=self._log)
            for what, rest in (("master.HMaster", ["start"]), ("rest.RESTServer", ["-p", str(self.port), "start"]))
        ]  # fmt: skip

    def ready(self, seconds: float) -> bool:
        """Can a table be made? The gateway answers long before the master can."""
        until = time.monotonic() + seconds
        table = f"http://127.0.0.1:{self.port}/ready/schema"
        schema = {"name": "ready", "ColumnSchema": [{"name": "f"}]}
        while time.monotonic() < until and all(process.poll() is None for process in self._processes):
            try:
                if httpx.put(table, json=schema, timeout=60).status_code in (200, 201, 304):
                    return True
            except httpx.HTTPError:
                pass
            time.sleep(1)
        return False

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._log.close()


@contextlib.contextmanager
def hbase() -> Iterator[str]:
    """The address of a server of our own, as long as the machine has the programs."""
    lib = SERVER.jars()
    if lib is None:
        pytest.skip("no HBase here; `python -m tests.checkpoint.hbase_server --fetch` brings it from Maven")
    with tempfile.TemporaryDirectory(prefix="holdfast-hbase-") as folder:
        server = HBase(lib, Path(folder))
        try:
            if not server.ready(240):
                raise AssertionError(f"HBase did not come up:\n{Path(folder, 'log').read_text()[-2000:]}")
            yield f"hbase://127.0.0.1:{server.port}"
        finally:
            server.stop()


if __name__ == "__main__":
    if sys.argv[1:] != ["--fetch"]:
        sys.exit("usage: python -m tests.checkpoint.hbase_server --fetch")
    sys.exit(None if (why := SERVER.fetch()) is None else f"no HBase: {why}")
