"""What the console costs its host, and how old a page is.

A host with so many nodes, as many streams, and pages that are open: each follows the state of everything and the
picture of one stream, over real HTTP. The replicas are scripted: they compute nothing, their positions move with every
look, and some change their state now and then and note when. Everything else of the host is real. Streams are written
by this process, so that writing is not counted.

`host_cpu`: CPU seconds of the host's process per second, all of it, with the pages open; `host_cpu_alone`: the same
before the first page came, and `host_cpu_without`: with no console at all. `update_p95_ms`: from a change of state in
the host to the moment at which a page has it, over all pages.

    python -m benches.console [--nodes 200] [--pages 20] [--seconds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

import holdfast
from benches.report import finish, table
from holdfast.clock import now_us
from holdfast.engine import Engine
from holdfast.host.catalog import HERE, Catalog
from holdfast.host.console_routes import console_routes, live_console
from holdfast.host.host import Host
from holdfast.host.service import Service
from holdfast.inputs.network import Access
from holdfast.protocol.dpc.messages import Message, StreamReport
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.store import StreamStore

#: Streams that grow while it is measured; the others are looked at and stand still.
WRITTEN = 20
SECOND = 1_000_000
_TICKS = os.sysconf("SC_CLK_TCK")


class Scripted:
    """Stands for a replica."""

    serves = True

    def __init__(self, replica: str, inputs: tuple[str, ...], output: str) -> None:
        self.replica, self._inputs, self._output = replica, inputs, output
        self.state, self.changed_us = "STABLE", now_us()

    def pulse(self) -> None:
        """Nothing to look at."""

    def deliver(self, sender: str, message: Message) -> None:
        """Nobody speaks."""

    def report(self) -> StreamReport | None:
        return None

    def status(self) -> dict[str, Any]:
        now = now_us() // SECOND * SECOND
        return {
            "replica": self.replica, "node": self.replica.partition("@")[0], "state": self.state,
            "why": f"changed {self.changed_us}", "stable_until_us": now, "frontier_us": now,
            "output": {"stream": self._output, "state": self.state, "boundary_us": now, "fresh": False,
                       "retention": "keep for ever"},
            "fork": {"id": 0, "state": "none"},
            "inputs": [{"stream": stream, "boundary_us": now, "failing": self.state != "STABLE",
                        "reading": [f"{stream}@here/main"]} for stream in self._inputs],
        }  # fmt: skip

    def stop_queries(self) -> None:
        """None run."""

    def close(self) -> None:
        """Nothing is open."""


class NoEngine(Engine):
    ended = None

    def start(self) -> None:
        """Nothing to start."""

    def queries(self, *_: object) -> Any:
        raise AssertionError("no node is set up")

    def take_up(self, *_: object) -> None:
        raise AssertionError("no node is moved")

    def renew(self, *_: object) -> None:
        raise AssertionError("no node is moved")


def application(root: Path, nodes: int) -> holdfast.App:
    """Chains of ten nodes, each of which reads a source as well."""
    app = holdfast.App("many", root=root)
    for n in range(nodes):
        before = f"counts{n - 1}" if n % 10 else f"source{n}"
        app.node(inputs=[before, f"side{n // 10}"], name=f"counts{n}", max_delay="3s")(lambda rows: rows)
    return app


async def be_host(
    root: Path, nodes: int, token: str, looks: bool, ready: Callable[[str, Host], None], changes: bool = True
) -> None:
    """The host that is measured: says its address, then runs until it is stopped."""
    app = application(root, nodes)
    host = Host(HERE, Catalog(app.diagram()), root, NoEngine())
    host.absent |= {node.name for node in app.diagram().nodes}
    stands = [Scripted(f"{node.name}@{HERE}", node.inputs, node.output) for node in app.diagram().nodes]
    for stand in stands:
        host.add(stand.replica, stand)
    console = live_console(HERE, host.catalog, host.status, host.store)
    service = Service(host.serving, Access(token=token), deliver=host.deliver, fault=host.fault, stop=host.stop,
                      status=host.status, answers=host.answers, doors=console_routes(console))  # fmt: skip
    await service.start()
    if looks:
        host.attend(console.run())
    if changes:
        host.attend(_change(stands))
    ready(service.address, host)
    await host.run()
    await service.close()


async def _change(stands: list[Scripted]) -> None:
    chance = random.Random(7)
    while True:
        await asyncio.sleep(chance.uniform(0.1, 0.4))
        one = chance.choice(stands)
        one.state, one.changed_us = "UP_FAILURE" if one.state == "STABLE" else "STABLE", now_us()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def used(pid: int, seconds: float) -> float:
    """CPU seconds per second."""
    before, began = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


class Page:
    """What an open page asks for; notes how old each change of state was when it came."""

    def __init__(self, session: aiohttp.ClientSession, stream: str) -> None:
        self._session, self._stream = session, stream
        self.delays_ms: list[float] = []
        self.bytes = self.patches = self.points = 0

    async def look(self) -> None:
        await asyncio.gather(self._state(), self._picture())

    async def _state(self) -> None:
        async for event, data in self._events("/v1/console/events"):
            came = now_us()
            if event == "patch":
                self.patches += 1
                for replica in (msgspec.json.decode(data).get("replicas") or {}).values():
                    if (why := replica.get("why")) is not None:
                        self.delays_ms.append((came - int(why.split()[1])) / 1000)

    async def _picture(self) -> None:
        async for event, _ in self._events(f"/v1/console/streams/{self._stream}/events"):
            self.points += event == "points"

    async def _events(self, path: str) -> AsyncIterator[tuple[str, bytes]]:
        async with self._session.get(path) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                self.bytes += len(chunk)
                *whole, rest = (rest + chunk).split(b"\n\n")
                for text in whole:
                    if text.startswith(b"event: "):
                        name, _, data = text.partition(b"\n")
                        yield name[7:].decode(), data[6:]


async def write(store: StreamStore, streams: list[str]) -> None:
    """Twice a second a bucket for each."""
    producers = [store.open(name).producer(boundary_every="1h") for name in streams]
    while True:
        for producer in producers:
            producer.send_many([{"n": n} for n in range(10)])
            producer.advance(now_us())
        await asyncio.sleep(0.5)


async def measure(root: Path, nodes: int, pages: int, seconds: float) -> dict[str, Any]:
    store = StreamStore(root, disk=VolatileDisk())
    outputs = [f"counts{n}" for n in range(nodes)]
    for name in outputs:
        with store.create(name, "n bigint", bucket="500ms").producer(boundary_every="1h") as producer:
            producer.send({"n": 0})
            producer.advance(now_us())
            producer.close(end=False)
    writing = asyncio.ensure_future(write(store, outputs[:WRITTEN]))
    token, found = secrets.token_urlsafe(16), {}
    try:
        async with hosted(root, nodes, token, looks=False) as (_, pid):
            found["host_cpu_without"] = await used(pid, seconds / 3)
        async with hosted(root, nodes, token, looks=True) as (address, pid):
            found["host_cpu_alone"] = await used(pid, seconds / 3)
            found |= await _with_pages(address, pid, token, pages, outputs, seconds)
    finally:
        writing.cancel()
    return found


async def _with_pages(
    address: str, pid: int, token: str, pages: int, outputs: list[str], seconds: float
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        address, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        opened = [Page(session, outputs[n % WRITTEN]) for n in range(pages)]
        looking = [asyncio.ensure_future(page.look()) for page in opened]
        await asyncio.sleep(2)
        for page in opened:
            page.delays_ms.clear()
            page.bytes = page.patches = page.points = 0
        cpu = await used(pid, seconds)
        for task in looking:
            task.cancel()
        for outcome in await asyncio.gather(*looking, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise RuntimeError(f"a page has ended: {outcome}")
    delays = np.array([delay for page in opened for delay in page.delays_ms])
    if not len(delays):
        raise SystemExit(f"no page was told anything in {seconds:g} s: the machine is too busy to measure; try later")
    return {
        "host_cpu": cpu, "updates": len(delays), "update_p50_ms": float(np.percentile(delays, 50)),
        "update_p95_ms": float(np.percentile(delays, 95)), "update_max_ms": float(delays.max()),
        "patches_per_s": sum(page.patches for page in opened) / pages / seconds,
        "points_per_s": sum(page.points for page in opened) / pages / seconds,
        "kbytes_per_s_and_page": sum(page.bytes for page in opened) / pages / seconds / 1e3,
    }  # fmt: skip


@contextlib.asynccontextmanager
async def hosted(root: Path, nodes: int, token: str, *, looks: bool) -> AsyncIterator[tuple[str, int]]:
    command = [sys.executable, "-m", "benches.console", "--host", str(root), "--nodes", str(nodes)]
    environment = {**os.environ, "BENCH_TOKEN": token}
    process = subprocess.Popen([*command, *([] if looks else ["--blind"])], stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        address = (await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)).decode().strip()
        await asyncio.sleep(2)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.console", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--host", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--blind", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.host is not None:
        token, looks = os.environ["BENCH_TOKEN"], not asked.blind
        asyncio.run(be_host(asked.host, asked.nodes, token, looks, lambda address, _: print(address, flush=True)))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-console-") as folder:
        found = asyncio.run(measure(Path(folder), asked.nodes, asked.pages, asked.seconds))
    title = f"{asked.nodes} nodes, {asked.pages} pages"
    table(title, ["figure", "value"], [(name, value) for name, value in found.items()])
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}
    finish("console", nodes=asked.nodes, pages=asked.pages, seconds=asked.seconds, **rounded)


if __name__ == "__main__":
    main()
