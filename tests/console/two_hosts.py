"""Two hosts of a deployment whose status comes from a script, and the page of both: what the tests look at."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment
from holdfast.host.merged_console import serve
from holdfast.host.service import Door
from holdfast.stream.acks import acknowledge, read_acks
from holdfast.stream.disk import Disk
from tests.host.test_merged_console import TOKEN, Site, two_hosts

OPERATOR_TOKEN = TOKEN
LOAD: dict[str, Any] = {
    "participant": "anna", "load": {"cpu": 0.5}, "capacity": {"cpu": 1.0}, "cost": 0.7, "balances": {"ben": -1.0},
    "tasks": {"counts": {"task": "counts", "owner": "anna", "at": "anna", "usage": {"cpu": 0.5}, "rows_per_s": 100.0}},
    "contracts": {"c1": {"contract": "c1", "buyer": "anna", "seller": "ben", "price_low": 1, "price_high": 2,
                         "agreed": True, "used": 0.5, "paid": 1}},
    "ledger": {"c1/7": {"contract": "c1", "payer": "anna", "payee": "ben", "entries": 4, "amount": 4.0,
                        "unconfirmed": 1, "last": {"period": 3, "price": 2, "units": 0.5, "amount": 1}}},
}  # fmt: skip


class SharingSite(Site):
    """One of them, with a contract and a reader who has fallen behind."""

    def __init__(self, deployment: Deployment, catalog: Catalog, name: str) -> None:
        super().__init__(deployment, catalog, name)
        self.moved: list[Any] = []
        self.load: dict[str, Any] | None = LOAD if name == "a" else None
        self.boundary_us = 1_700_000_000_000_000
        producer = self.stream.producer(stime="stime", slack="0s")
        producer.advance(self.boundary_us)
        producer.close(end=False)
        acknowledge(self.stream.folder, "dashboard", 1_000_000, 0, Disk())

    def acknowledged(self) -> dict[str, int]:
        return {name: ack.until_us for name, ack in read_acks(self.stream.folder).items()}

    def doors(self) -> list[Door]:
        return [*super().doors(), Door("/v1/move", "POST", self._move)]

    async def _move(self, request: Request) -> Response:
        order = await request.json()
        self.moved.append(order)
        tasks = LOAD["tasks"]
        self.load = {**LOAD, "tasks": {**tasks, order["node"]: {**tasks[order["node"]], "at": order["to"]}}}
        return JSONResponse({})


@contextlib.contextmanager
def deployed(root: Path) -> Iterator[tuple[SharingSite, SharingSite, str]]:
    """Both, and the address of their page."""
    deployment = two_hosts(root)
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    a, b = (SharingSite(deployment, catalog, name) for name in "ab")
    loop, over, told, ready = asyncio.new_event_loop(), asyncio.Event(), list[str](), threading.Event()

    def said(address: str) -> None:
        told.append(address)
        ready.set()

    async def run() -> None:
        async with a.up(), b.up():
            serving = asyncio.ensure_future(serve(deployment, 0, said))
            await over.wait()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def in_thread() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=in_thread, daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield a, b, told[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
