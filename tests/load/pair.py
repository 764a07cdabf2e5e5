"""Anna and Ben in this process: real hosts, managers, doors and services on loopback; the query is plain Python.

Rules:
1. A step is made to fail from outside, by replacing what the disk or a library would have refused; nothing is killed.
2. Seconds of data are made, not waited for: a bucket is a second of the stream and some hundredths of the test.
3. What is expected comes from the inputs by plain Python, as in `federation`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

import holdfast
import holdfast.load.manager
import holdfast.load.meter
import holdfast.load.outbox
import holdfast.load.remote_task
from holdfast.host.catalog import Catalog
from holdfast.host.deployed import _access
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.host.measures import Measures
from holdfast.host.metrics_routes import metrics_routes
from holdfast.host.service import Service
from holdfast.load.contract_measures import measure
from holdfast.load.host_extension import load_manager
from holdfast.load.manager import LoadManager
from holdfast.load.remote_task import AwayNote, RemoteTask, read_note
from holdfast.load.routes import doors_of
from holdfast.load.tasks import HeldTask
from tests.load.federation import SECOND, Federation, Owner, Source
from tests.load.plain_engine import PlainEngine
from tests.metrics.served import Scrape

_SETTINGS = "interval: 300ms\nanswer: 200ms\npatience: {patience}"
_BEGIN_US = 1_700_000_000 * SECOND


class Spring(Source):
    """A source that makes its own time: as many buckets as are asked for."""

    def __init__(self, stream: holdfast.Stream) -> None:
        super().__init__(stream)
        self._at_us = _BEGIN_US

    def flow(self, buckets: int = 1) -> None:
        for _ in range(buckets if self._open else 0):
            self._second()

    def _second(self) -> None:
        new = [(self._at_us + k * 100_000, f"s{k % 3}", len(self.sent) + k) for k in range(10)]
        self._producer.send_many(
            [{"stime": datetime.fromtimestamp(t / 1e6, UTC), "source": s, "bytes": b} for t, s, b in new]
        )
        self.sent += new
        self._at_us += SECOND
        self._producer.advance(self._at_us)


class Side:
    """One participant."""

    def __init__(self, federation: Federation, name: str) -> None:
        deployment = load_deployment(federation.file(name))
        spec, token = deployment.host(name), deployment.token()
        self.host = Host(name, Catalog(deployment.load_app().diagram(), deployment), spec.root, PlainEngine(), token)
        self.host.return_s = 0.2
        self.manager: LoadManager = load_manager(deployment, spec)(self.host).manager
        host = self.host
        self._measures = Measures(host, more=lambda sheet: measure(self.manager, sheet))
        self._service = Service(host.serving, _access(spec, deployment.keyring()), deliver=host.deliver,
                                status=host.status, fault=host.fault, stop=host.stop, answers=host.answers,
                                doors=[*metrics_routes(host, self._measures), *doors_of(self.manager)])  # fmt: skip
        self._token = token
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._service.start()
        self.host.attend(self.manager.run())
        self._running = asyncio.ensure_future(self.host.run())

    async def stop(self) -> None:
        """As a host that is told to end. What it ended with comes out."""
        assert self._running is not None
        self.host.stop()
        try:
            await self._running
        finally:
            await self._service.close()
            self._measures.close()
            await self.manager.close()

    async def scraped(self) -> Scrape:
        """What Prometheus would get of it."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with httpx.AsyncClient(base_url=self._service.address, headers=headers, timeout=60) as client:
            return Scrape((await client.get("/metrics")).text)

    @property
    def ended(self) -> bool:
        return self._running is not None and self._running.done()


class Pair:
    """Two sides, one node of Anna's, and its data."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, patience: str, period: str, kind: str, tls: bool,
        spoil: Callable[[Federation], None], delay: str,
    ) -> None:  # fmt: skip
        self.node = f"{kind}-m1"
        monkeypatch.setattr(holdfast.load.outbox, "_CONSENT_S", 0.1)
        monkeypatch.setattr(holdfast.load.remote_task, "WAIT_S", 0.2)
        monkeypatch.setattr(holdfast.load.meter, "_KNOWN_AFTER_US", 200_000)
        monkeypatch.setattr(holdfast.load.manager, "_MEASURE_US", 100_000)
        clauses, settings = f"price: 0.1 to 5.0, period: {period}", _SETTINGS.format(patience=patience)
        owners = [
            Owner("anna", ["m1"], [f"to: ben, {clauses}"], settings),
            Owner("ben", [], [f"from: anna, {clauses}"], settings),
        ]
        self.federation = Federation(folder, owners, plain=True, kind=kind, tls=tls, delay=delay)
        spoil(self.federation)
        self.federation.sources["m1"].close()
        self.spring = self.federation.sources["m1"] = Spring(self.federation.store("anna").open("m1"))
        self.anna, self.ben = Side(self.federation, "anna"), Side(self.federation, "ben")
        self.flows = True

    async def _flow(self) -> None:
        while True:
            if self.flows:
                self.spring.flow()
            await asyncio.sleep(0.1)

    @property
    def task(self) -> HeldTask:
        return self.anna.manager.tasks[self.node]

    @property
    def away(self) -> RemoteTask | None:
        return self.anna.manager.mover.away(self.task)

    @property
    def note(self) -> AwayNote | None:
        return read_note(self.task.home)

    @property
    def boundary_us(self) -> int:
        """What Anna's stream promises."""
        reader = self.federation.reader("anna", self.node)
        reader.close()
        return reader.boundary_us

    async def until(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await asyncio.sleep(0.02)
                return
        raise AssertionError(f"waited {seconds} s in vain for {what}")

    async def at_home(self) -> None:
        def runs() -> bool:
            controller = self.task.controller
            return self.note is None and controller is not None and controller.movable

        await self.until(runs, "the node to run at home")

    async def results_come(self, seconds: int = 3) -> None:
        """So many more seconds of results are in Anna's stream."""
        upto_us = max(self.boundary_us, 0) + seconds * SECOND
        await self.until(lambda: self.boundary_us >= upto_us, "more results")

    async def to_ben(self) -> None:
        await self.order("ben")
        await self.until(lambda: self.away is not None, "the node to run at ben's")
        await self.results_come()

    async def order(self, where: str) -> None:
        """By hand."""
        await self.at_home() if where == "ben" else None
        await self.agreed()
        self.anna.manager.place(self.node, where)

    async def agreed(self) -> None:
        """Ben has signed, and both have looked at what runs."""
        manager = self.anna.manager
        await self.until(lambda: isinstance(manager.outbox.agreed.get("ben"), tuple), "ben's consent")
        await self.until(lambda: manager.core._measured, "anna to look at what runs")
        await self.until(lambda: self.ben.manager.core._measured, "ben to look at what runs")

    async def finish(self) -> None:
        """No more data; every tuple was counted once, in the one order."""
        self.flows = False
        self.spring.finish()
        await self.until(lambda: self.federation._ended("anna", self.node), "the end of the node's stream")
        self.federation.check("anna", "m1")


@contextlib.asynccontextmanager
async def pair(
    folder: Path, monkeypatch: pytest.MonkeyPatch, patience: str = "60s", period: str = "1s", kind: str = "counts",
    tls: bool = False, spoil: Callable[[Federation], None] = lambda federation: None, delay: str = "20s",
) -> AsyncIterator[Pair]:  # fmt: skip
    """Both run, and the node with them. `spoil` may change their files before."""
    two = Pair(folder, monkeypatch, patience, period, kind, tls, spoil, delay)
    flowing = asyncio.ensure_future(two._flow())
    try:
        await two.ben.start()
        await two.anna.start()
        await two.at_home()
        yield two
    finally:
        flowing.cancel()
        for side in (two.anna, two.ben):
            with contextlib.suppress(Exception):
                await side.stop()
        two.spring.close()


class Once:
    """Stands for a function that fails a number of times and then does what it always did."""

    def __init__(self, real: Callable[..., object], error: Exception, times: int = 1, after: bool = False) -> None:
        self._real, self._error, self.left, self._after = real, error, times, after

    def __call__(self, *args: object, **more: object) -> object:
        if self.left:
            self.left -= 1
            if self._after:
                self._real(*args, **more)
            raise self._error
        return self._real(*args, **more)
