"""Real servers on loopback, started by the tests that need them and stopped by their own process handles."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A durable redis-server: every write is synced before it is answered."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        program, self._password = shutil.which("redis-server"), password
        if program is None:
            pytest.skip("redis-server is not installed; install it from the system's packages")
        self.folder, self.port = folder, free_port()
        self._command = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes",
            "--appendfsync", "always", "--save", "", *(["--requirepass", password] if password is not None else []),
        ]  # fmt: skip
        self.start()

    @property
    def address(self) -> str:
        return self.address_with(self._password)

    def address_with(self, password: str | None) -> str:
        return f"redis://{f':{password}@' if password is not None else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        import redis

        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(port=self.port, password=self._password)
        for _ in range(400):
            with contextlib.suppress(redis.RedisError):
                client.ping()
                client.close()
                return
            time.sleep(0.025)
        raise AssertionError("redis-server did not come up")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
