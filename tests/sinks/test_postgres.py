"""A table of a real PostgreSQL holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.sinks import Sink, postgres
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.stream.store import StreamStore
from holdfast.testing.sinks import EACH, STREAM, Script, Seen, SinkConformance
from tests.operators.test_database import answers
from tests.spark.processes import wait_for

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
pytestmark = pytest.mark.slow


class TestPostgres(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: str, request: pytest.FixtureRequest) -> Iterator[None]:
        self.url, self.schema = postgres, f"s{abs(hash(request.node.name)):x}"
        self.reader: Any = psycopg.connect(self.url, autocommit=True)
        yield
        self.reader.close()

    def start(self, folder: Path) -> None:
        self.reader.execute(f'create schema "{self.schema}"')

    def sink(self, key: Sequence[str]) -> Sink:
        return postgres(self.url, f"{self.schema}.results", key=key, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        try:
            found: list[Seen] = self.reader.execute(f"select n, v, tentative from {self.schema}.results").fetchall()
        except psycopg.errors.UndefinedTable:
            return []
        return found

    def disturb(self, chance: random.Random) -> None:
        """The database ends the sink's session: it comes back."""
        with psycopg.connect(self.url, autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast-sink'"
            )


class Server:
    """One that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found or not shutil.which("setpriv"):
            pytest.skip("needs PostgreSQL (apt-get install postgresql) and setpriv")
        self._folder, self._programs = folder, found[0].parent
        drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]  # It refuses to run as root.
        self._drop = drop if os.getuid() == 0 else []
        folder.chmod(0o777)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://test@127.0.0.1:{self._port}/postgres"
        subprocess.run([*self._drop, self._programs / "initdb", "-D", folder / "db", "-U", "test", "-A", "trust"],
                       capture_output=True, check=True)  # fmt: skip
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._drop, self._programs / "postgres", "-D", self._folder / "db", "-h", "127.0.0.1", "-p",
             str(self._port), "-k", self._folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: answers(self.url), "PostgreSQL to answer", 120)

    def kill(self) -> None:
        """All its processes at once; those that it made itself are in sessions of their own."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        # Memory that dead processes shared is let go of when the last of them is gone.
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "its processes to go", 60)


def test_a_table_is_right_after_the_database_was_killed(tmp_path: Path) -> None:
    """T1, T2: the sink backs off, says so, and goes on from what the database recovered."""
    with tempfile.TemporaryDirectory(prefix="holdfast-postgres-") as folder:
        server = Server(Path(folder))
        chance = random.Random(7)
        script = Script(tmp_path, chance)
        runner = SinkRunner("t", STREAM, LocalOrigin(StreamStore(tmp_path), STREAM),
                            postgres(server.url, "results", tentative=True)).start()  # fmt: skip
        try:
            for _ in range(2):
                for _ in range(8):
                    script.step()
                    script.renew()
                rows = runner.status()["rows"]
                server.kill()
                script.step()
                wait_for(lambda: runner.status()["state"] == "WAITING", "the sink to notice", 60)
                assert runner.status()["rows"] >= rows
                server.start()
                wait_for(lambda: runner.status()["state"] == "RUNNING", "the sink to go on", 60)
            script.end()
            wait_for(lambda: runner.ended, "the end", 60)
            with psycopg.connect(server.url) as reader:
                found = reader.execute("select n, v, tentative from results order by n").fetchall()
            assert found == [(n, n, False) for n in range(script.stable * EACH)]
        finally:
            runner.stop()
            server.kill()
