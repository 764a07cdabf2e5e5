"""What monitors ask: numbers for who may look, probes for anybody, and to strangers no name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.host.host import Host
from holdfast.host.measures import Measures
from holdfast.host.metrics_routes import metrics_routes
from holdfast.inputs.credentials import Credential, Keyring, Role
from holdfast.inputs.network import Access
from holdfast.model.errors import StorageError
from tests.host.conftest import TOKEN, VIEW_TOKEN, hosted, until
from tests.host.test_host import APP, OTHER, host
from tests.metrics.served import Scrape

VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}
READER = {"Authorization": "Bearer a reader's own token"}
PROBES = ("/healthz", "/readyz")


def keys() -> Access:
    return Access(keys=Keyring([
        (Credential("operator", Role.OPERATOR), TOKEN), (Credential("viewer", Role.VIEWER), VIEW_TOKEN),
        (Credential("dash", Role.READER, frozenset({"fast"})), "a reader's own token"),
    ]))  # fmt: skip


def play(running: Host, talk: Callable[[httpx.AsyncClient, asyncio.Task[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        measures = Measures(running)
        task = asyncio.ensure_future(running.run())
        doors = metrics_routes(running, measures)
        async with (
            hosted(running.store, keys(), doors=doors) as service,
            httpx.AsyncClient(base_url=service.address, timeout=60) as client,
        ):
            await talk(client, task)
        running.stop()
        await task
        measures.close()

    asyncio.run(run())


@pytest.fixture
def running(tmp_path: Path) -> Host:
    """A host whose node `misfit` cannot be set up and whose node `other` waits for a stream."""
    return host(tmp_path, APP + OTHER, "fast: a, slow: a, late: a")


def test_numbers_need_a_token_that_may_look_and_probes_need_none(running: Host) -> None:
    """X1"""

    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=READER)).status_code == 403
        assert (await client.get("/metrics", headers=VIEWER)).status_code == 200
        assert (await client.get("/healthz")).json() == {"live": True}
        for path in PROBES:
            for strange in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
                assert (await client.get(path, headers=strange)).status_code == 403
            assert (await client.post(path)).status_code == 405

    play(running, talk)


def test_a_host_is_ready_when_all_nodes_serve_and_only_who_may_look_is_told_which_do_not(running: Host) -> None:
    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        await until(lambda: running.states()["misfit@a"] == "FAILED")
        for headers in ({}, READER, {"Authorization": "Bearer wrong"}):
            stranger = await client.get("/readyz", headers=headers)
            assert stranger.status_code == 503
            assert stranger.json() == {"ready": False, "not_ready": 2}
            assert "misfit" not in stranger.text
        known = await client.get("/readyz", headers=VIEWER)
        assert known.json() == {"ready": False, "not_ready": {"misfit@a": "FAILED", "other@a": "WAITING"}}
        scraped = Scrape((await client.get("/metrics", headers=VIEWER)).text)
        assert scraped("host_ready") == 0
        assert scraped.states("replica_state", node="misfit") == ["FAILED"]
        assert scraped.states("replica_state", node="other") == ["WAITING"]

    play(running, talk)


def test_a_host_that_no_longer_looks_after_its_replicas_is_not_alive(
    running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        await until(lambda: running.silent_s is not None)
        assert (await client.get("/healthz")).status_code == 200
        monkeypatch.setattr(Host, "silent_s", 31.0)
        dead = await client.get("/healthz")
        assert (dead.status_code, dead.json()) == (503, {"live": False})

    play(running, talk)


def test_a_log_that_cannot_be_read_costs_nobody_the_other_numbers(
    running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = holdfast.StreamStore.open

    def damaged(store: holdfast.StreamStore, name: str) -> holdfast.Stream:
        if name == "slow":
            raise StorageError("the disk refuses")
        return real(store, name)

    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        monkeypatch.setattr(holdfast.StreamStore, "open", damaged)
        scraped = Scrape((await client.get("/metrics", headers=VIEWER)).text)
        assert scraped("stream_unreadable", stream="slow") == 1
        assert scraped("stream_bytes", stream="slow") is None
        assert scraped("stream_tuples", stream="fast") == 0

    play(running, talk)


def test_a_query_that_hangs_in_the_engine_holds_no_scrape_up(running: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look on the thread is waited for, but not for long."""
    import threading

    import holdfast.host.measures as measures

    hangs = threading.Event()
    monkeypatch.setattr(measures, "_LOOK_S", 0.1)
    monkeypatch.setattr(measures, "_disk", lambda root: hangs.wait(60) and None)

    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        try:
            for _ in range(2):
                scraped = Scrape((await client.get("/metrics", headers=VIEWER)).text)
                assert scraped("host_ready") == 0
                assert scraped("stream_bytes", stream="fast") is None
        finally:
            hangs.set()

        async def seen() -> bool:
            return Scrape((await client.get("/metrics", headers=VIEWER)).text)("stream_bytes", stream="fast") == 0

        async with asyncio.timeout(60):
            while not await seen():
                await asyncio.sleep(0.05)

    play(running, talk)


def test_who_speaks_openmetrics_gets_it(running: Host) -> None:
    async def talk(client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer = await client.get("/metrics", headers={**VIEWER, **accept})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        plain = await client.get("/metrics", headers=VIEWER)
        assert list(text_string_to_metric_families(plain.text))

    play(running, talk)
