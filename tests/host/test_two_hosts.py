"""Two hosts as real processes that share nothing but a port, killed and paused at random points (L1, L3, L6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.host.link import HttpLink
from holdfast.host.mirror import Advance, Mirror
from holdfast.inputs.network import Access
from holdfast.model.errors import PeerError
from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.checking.verify import verify
from tests.host.conftest import TOKEN, hosted, tuples_of

#: Raise it for a long run: HOLDFAST_KILLS=300.
KILLS = int(os.environ.get("HOLDFAST_KILLS", "14"))
ROWS = 3


async def source(root: Path, port: int) -> None:
    """Sends numbers, three at a time, for as long as nobody asks it to finish."""
    store = holdfast.open(root)
    stream = store.create("s", "n bigint", bucket="20ms", segment_bytes=1 << 16, exist_ok=True)
    async with hosted(store, Access(port=port, token=TOKEN)):
        producer = stream.producer()
        n = producer.last_seq + 1
        while not (root / "finish").exists():
            rows = [{"n": ROWS * n + k} for k in range(ROWS)]
            await asyncio.to_thread(producer.send_many, rows, seq=n)
            n += 1
        producer.close()
        await asyncio.sleep(3600)


async def reader(root: Path, port: int) -> None:
    """Mirrors the stream until its end, however often the link breaks. What it is told must be readable."""
    link = HttpLink(f"http://127.0.0.1:{port}", TOKEN)
    mirror: Mirror | None = None

    def told(advance: Advance) -> None:
        assert mirror is not None
        for arrival in advance.arrivals[-2:]:
            assert sum(place.fields.rows for place in mirror.pieces(arrival.bucket)) == arrival.tuples
        assert advance.gap_us is None
        if advance.boundary_us >= END_OF_TIME_US:
            os._exit(0)

    while True:
        try:
            mirror = mirror or Mirror(root / "s", await link.definition("s"))
            await mirror.follow(link, Lane.MAIN, 0, told, wait_s=0.3)
        except PeerError:
            await asyncio.sleep(0.005)


class Host:
    """A process that is started again and again."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run, self.pid = run, 0

    def start(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                asyncio.run(self._run())
            finally:
                os._exit(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def pause(self, seconds: float) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    def alive(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError(f"the process did not end within {seconds} s")


@contextlib.contextmanager
def hosts(root: Path) -> Iterator[tuple[Host, Host]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (root / "a").mkdir()
    (root / "b").mkdir()
    pair = Host(lambda: source(root / "a", port)), Host(lambda: reader(root / "b", port))
    try:
        yield pair
    finally:
        for host in pair:
            host.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_mirror_equals_its_origin_after_kills_of_either_side(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with hosts(tmp_path) as (origin, mirror):
        origin.start()
        mirror.start()
        time.sleep(0.5)
        for _ in range(KILLS // 2):
            victim = chance.choice((origin, mirror))
            time.sleep(chance.random() * 0.25)
            assert mirror.alive(), "the reader found something wrong"
            if chance.random() < 0.25:
                victim.pause(chance.random() * 0.1)
            else:
                victim.kill()
                victim.start()
        (tmp_path / "a" / "finish").touch()
        assert mirror.wait(60) == 0
    theirs = holdfast.open(tmp_path / "a").open("s")
    ours = holdfast.open(tmp_path / "b").open("s")
    expected = tuples_of(theirs.folder / "main", theirs.definition)
    assert tuples_of(ours.folder / "main", ours.definition) == expected
    assert [t[3] for t in sorted(expected, key=lambda t: t[1])] == list(range(len(expected)))
    assert len(expected) > 20 * ROWS, "the source got on"
    assert [f for f in verify(ours.folder) if f.severity.name == "ERROR"] == []
