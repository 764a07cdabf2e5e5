"""A PostgreSQL server of our own, on loopback and gone when the tests are. It can be killed and started again over the
same disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.servers import free_port
from tests.spark.processes import wait_for


class Postgres:
    """One server over a folder of its own."""

    def __init__(self, programs: Path, folder: Path, **settings: str) -> None:
        self._folder, self._programs, self._settings = folder, programs, settings
        drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]  # It refuses to run as root.
        self._drop = drop if os.getuid() == 0 else []
        folder.chmod(0o777)
        self._port = free_port()
        self.url = f"postgresql://test@127.0.0.1:{self._port}/postgres"
        making = [programs / "initdb", "-D", folder / "db", "-U", "test", "-A", "trust", "-N"]
        made = subprocess.run([*self._drop, *making], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"initdb does not run here: {made.stderr[-200:]}")
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._drop, self._programs / "postgres", "-D", self._folder / "db", "-h", "127.0.0.1", "-p",
             str(self._port), "-k", self._folder,
             *(word for name, value in self._settings.items() for word in ("-c", f"{name}={value}"))],
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

    def ask_password(self, user: str) -> None:
        """From now on this user must show one."""
        import psycopg

        rules = self._folder / "db" / "pg_hba.conf"
        rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute("select pg_reload_conf()")

    def restart(self) -> None:
        """In peace, as for a new setting."""
        self.stop()
        self.start()

    def copy_disk(self) -> Path:
        """As a backup; the server must be stopped."""
        copied = self._folder / "copy"
        subprocess.run(["cp", "-a", self._folder / "db", copied], check=True)
        return copied

    def take_over(self, disk: Path | None = None) -> None:
        """Start as a standby that takes over at the end of its own log, or of that `disk`; it must be stopped and
        needs a restore_command."""
        if disk is not None:
            shutil.rmtree(self._folder / "db")
            disk.rename(self._folder / "db")
        signal_file = self._folder / "db" / "recovery.signal"
        signal_file.touch()
        signal_file.chmod(0o666)
        self.start()

    def stop(self) -> None:
        """With clients that have not left yet, too."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[Postgres]:
    """A server with these settings, as long as the machine has the programs."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found or not shutil.which("setpriv"):
        pytest.skip("needs PostgreSQL (apt-get install postgresql) and setpriv")
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    with tempfile.TemporaryDirectory(prefix="holdfast-postgres-") as folder:
        server = Postgres(found[0].parent, Path(folder), **settings)
        try:
            yield server
        finally:
            server.stop()


def answers(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
