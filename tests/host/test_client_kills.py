"""A client of two hosts as real processes, which are killed and paused at random (D1)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.host.conftest import SECOND, TOKEN, Origin

#: Raise it for a long run: HOLDFAST_KILLS=300.
KILLS = int(os.environ.get("HOLDFAST_KILLS", "14")) // 2


class Process:
    """One host, started again and again at the same address."""

    def __init__(self, root: Path) -> None:
        self.origin, self._root = Origin(root), root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.host.replica_process", str(self._root), str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_until_up(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "up\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_a_client_loses_and_repeats_nothing_while_hosts_are_killed_and_paused(tmp_path: Path) -> None:
    chance = random.Random(7)
    hosts = [Process(tmp_path / name) for name in "ab"]
    bucket = 1
    try:
        for host in hosts:
            host.start()
        with holdfast.connect([host.address for host in hosts], token=TOKEN) as net:
            for host in hosts:
                host.wait_until_up()
                host.origin.fill(1, 2)
            subscriber = net.subscribe("s", tentative=True)
            ids: list[int] = []

            def reach(upto: int) -> None:
                """Whoever lives writes on; the client must get there by whoever it can."""
                nonlocal bucket
                for replica in hosts:
                    replica.origin.fill(bucket + 1, upto)
                bucket = upto - 1
                end = time.monotonic() + 60
                while subscriber.position_us < upto * SECOND:
                    assert time.monotonic() < end, f"{subscriber.reading()} at {subscriber.position_us}"
                    ids.extend(row.id for batch in subscriber.poll() for row in subscriber.rows_of(batch))
                    time.sleep(0.005)

            for _ in range(KILLS):
                victim = chance.choice(hosts)
                reach(bucket + 1 + chance.randrange(2, 40))
                if chance.random() < 0.3:
                    with victim.paused():
                        reach(bucket + 1 + chance.randrange(2, 40))
                else:
                    victim.kill()
                    reach(bucket + 1 + chance.randrange(2, 40))
                    victim.start()
                    victim.wait_until_up()
            reach(bucket + 20)
    finally:
        for host in hosts:
            host.kill()
    assert ids == [id for _, id, _, _ in hosts[0].origin.tuples()]
    assert len(ids) > 20 * KILLS
