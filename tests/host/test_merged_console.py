"""One page for several hosts, over real HTTP: what each of them says, who is down, and orders that find their host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import holdfast
from holdfast.console.merge_patch import patched
from holdfast.host.catalog import Catalog
from holdfast.host.console_routes import console_routes, live_console
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.host.merged_console import serve
from holdfast.host.service import Door, Service
from holdfast.host.stream_server import StreamServer
from holdfast.inputs.network import Access
from holdfast.stream.acks import acknowledge, read_acks
from holdfast.stream.disk import Disk
from tests.cli.test_deployed import free_ports
from tests.console.test_live import events
from tests.host.conftest import never, until

TOKEN, VIEW_TOKEN = "operator-operator-operator", "viewer-viewer-viewer"
OPERATOR, VIEWER = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {VIEW_TOKEN}"}


class Site:
    """One host of the deployment; its replica does as the test says."""

    def __init__(self, deployment: Deployment, catalog: Catalog, name: str) -> None:
        self.name, self._deployment, self._catalog = name, deployment, catalog
        self.store = holdfast.open(deployment.host(name).root)
        self.stream = self.store.create("counts", "n bigint", bucket="1s")
        self.state, self.told = "STABLE", list[dict[str, Any]]()
        self.drained = False
        self.load: dict[str, Any] | None = None

    def status(self) -> dict[str, Any]:
        inputs = [{"stream": "left", "boundary_us": 1_000_000, "failing": False, "reading": ["left@a/main"]}]
        recovery = {"windows": 12, "extent_s": 4.0, "recovery_estimate_s": 0.25, "recover_within_s": 2.0}
        operator = {"name": "aggregate of left", "kind": "aggregate", "keeps": "windows", "policy": "continuous()",
                    "saves": "its open windows", "store": "the log of its results"}  # fmt: skip
        replica = {"replica": f"counts@{self.name}", "node": "counts", "state": self.state, "inputs": inputs,
                   "operators": [operator], "batch": 7, "checkpoints": recovery,
                   "saves": [{"operator": "mean", "durable": 40, "dropped": 3, "met": 9, "missed": 2, "late_s": 0.5,
                              "waiting": 1, "bytes": 4000, "last_restore_s": 1.5}]}  # fmt: skip
        outcomes = {"durable": 40, "superseded": 2, "dropped": 3, "failed": 0}
        return {
            "host": self.name, "replicas": [replica], "cuts": [cut for order in self.told for cut in order["cut"]],
            "stores": {"LogStore": {"waiting": 5, "retries": 1, "problem": None, "outcomes": outcomes}},
            "deadlines": {"words": {"met": 9, "missed": 1}}, "load": self.load,
        }  # fmt: skip

    def doors(self) -> list[Door]:
        return [Door("/v1/drain", "POST", self._drain)]

    async def _drain(self, request: Request) -> Response:
        self.drained, self.state = True, "DRAINED"
        return JSONResponse({})

    def fault(self, order: dict[str, Any]) -> dict[str, Any]:
        self.told.append(order)
        return {}

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        console = live_console(self.name, self._catalog, self.status, self.store)
        spec, serving = self._deployment.host(self.name), StreamServer(self.store)
        service = Service(serving, Access(spec.ip, spec.port, keys=self._deployment.keyring()), deliver=never,
                          status=self.status, fault=self.fault, stop=never, answers=lambda _: True,
                          doors=[*console_routes(console), *self.doors()])  # fmt: skip
        await service.start()
        looking = asyncio.ensure_future(console.run())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await service.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return two_hosts(tmp_path)


def two_hosts(tmp_path: Path) -> Deployment:
    """A node on two hosts, written down."""
    a, b = free_ports(2)
    (tmp_path / "app.py").write_text(
        "import holdfast\napp = holdfast.App('netmon')\n"
        "@app.node(inputs=['left'], replicas=2)\ndef counts(rows):\n    return rows\n"
    )
    for name, token in (("secret.token", TOKEN), ("view.token", VIEW_TOKEN)):
        (tmp_path / name).write_text(token)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "netmon.yaml").write_text(
        f"app: app.py\ntoken: secret.token\nview_token: view.token\nhosts:\n"
        f"  a: {{address: '127.0.0.1:{a}', root: a}}\n  b: {{address: '127.0.0.1:{b}', root: b}}\n"
        "sources: {left: a}\n"
    )
    return load_deployment(tmp_path / "netmon.yaml")


def test_all_hosts_are_on_one_page_and_each_is_told_what_concerns_it(deployment: Deployment) -> None:
    catalog = Catalog(deployment.load_app().diagram(), deployment)

    async def run() -> None:
        a, b = (Site(deployment, catalog, name) for name in "ab")
        a.load, b.load = ({"participant": name, "tasks": {f"{name}s": {"at": name}}} for name in ("anna", "ben"))
        address: list[str] = []
        serving = asyncio.ensure_future(serve(deployment, 0, address.append))
        async with a.up():
            async with b.up():
                await until(lambda: address)
                async with httpx.AsyncClient(base_url=address[0].removesuffix("/console"), timeout=30) as client:
                    await _talk(client, a, b)
            async with httpx.AsyncClient(base_url=address[0].removesuffix("/console"), timeout=30) as client:

                async def down() -> Any:
                    return (await client.get("/v1/console", headers=VIEWER)).json()["replicas"]["counts@b"]["state"]

                while await down() != "DOWN":
                    await asyncio.sleep(0.05)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 90))


async def _talk(client: httpx.AsyncClient, a: Site, b: Site) -> None:
    assert (await client.get("/console")).status_code == 200
    assert (await client.get("/v1/console/events")).status_code == 401
    told, happened = events(client, "/v1/console/events", VIEWER), list[Any]()
    doc: dict[str, Any] = {}

    async def until_shown(condition: Any) -> None:
        async for name, said in told:
            if name == "you":
                continue
            happened.extend(said.pop("happened", []))
            doc.update(said if name == "whole" else patched(doc, said))
            if condition():
                return

    def states() -> list[str]:
        return [doc["replicas"].get(f"counts@{name}", {}).get("state") for name in "ab"]

    await until_shown(lambda: states() == ["STABLE", "STABLE"] and "counts" in doc["live"])
    assert doc["nodes"]["counts"]["replicas"] == ["counts@a", "counts@b"]
    b.state = "UP_FAILURE"
    await until_shown(lambda: states() == ["STABLE", "UP_FAILURE"])
    assert "counts@b is UP_FAILURE" in [event["text"] for event in happened]

    refused = await client.post("/v1/faults", headers=VIEWER, json={"cut": ["left>b"]})
    assert (refused.status_code, b.told) == (403, [])
    assert (await client.post("/v1/faults", headers=OPERATOR, json={"cut": ["left>b"]})).status_code == 200
    assert (a.told, b.told) == ([], [{"cut": ["left>b"]}])
    assert (await client.post("/v1/faults", headers=OPERATOR, json={"cut": ["a-b"]})).status_code == 200
    assert [a.told[-1], b.told[-1]] == [{"cut": ["a-b"]}] * 2
    assert (await client.post("/v1/faults", headers=OPERATOR, json={"cut": ["a-nobody"]})).status_code == 400
    await until_shown(lambda: {"left>b", "a-b"} <= set(doc["cuts"]))

    acknowledge(a.stream.folder, "dashboard", 1_000_000, 0, Disk())
    picture = events(client, "/v1/console/streams/counts/events", VIEWER)
    name, said = await anext(picture)
    assert (name, said["stream"], said["points"]) == ("picture", "counts", [])
    await until_shown(lambda: doc["readers"].get("counts") == {"dashboard": 1000})
    order = {"reader": "dashboard", "until_us": 2_000_000}
    assert (await client.post("/v1/streams/counts/acks", headers=VIEWER, json=order)).status_code == 403
    assert (await client.post("/v1/streams/counts/acks", headers=OPERATOR, json=order)).status_code == 200
    assert [read_acks(site.stream.folder)["dashboard"].until_us for site in (a, b)] == [2_000_000] * 2
    assert (await client.post("/v1/streams/nobody/acks", headers=OPERATOR, json=order)).status_code == 404

    assert {name: load["tasks"] for name, load in doc["loads"].items()} == {
        "anna": {"annas": {"at": "anna"}}, "ben": {"bens": {"at": "ben"}}
    }  # fmt: skip
    assert doc["stores"].keys() == {"LogStore@a", "LogStore@b"}
    assert doc["replicas"]["counts@b"]["operators"][0]["policy"] == "continuous()"
    assert (await client.post("/v1/drain", headers=VIEWER, json={"host": "b"})).status_code == 403
    assert (await client.post("/v1/drain", headers=OPERATOR, json={"host": "c"})).status_code == 400
    assert (await client.post("/v1/drain", headers=OPERATOR, json={"host": "b"})).status_code == 200
    assert (a.drained, b.drained) == (False, True)
    await until_shown(lambda: states() == ["STABLE", "DRAINED"])
    assert (await client.get("/v1/console/streams/nobody/events", headers=VIEWER)).status_code == 404
    assert json.loads((await client.get("/v1/console", headers=VIEWER)).content)["app"] == "netmon"


def test_the_verb_says_where_and_ends_when_it_is_told_to(deployment: Deployment) -> None:
    """As a process. No host is up, and the page says so."""
    command = [sys.executable, "-m", "holdfast.cli.main", "console", str(deployment.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert str(deployment.token_file) in said
            url = said.split()[1]
            assert httpx.get(url).headers["content-type"].startswith("text/html")
            shown = httpx.get(f"{url.removesuffix('/console')}/v1/console", headers=OPERATOR).json()
            assert set(shown["down"]) == {"a", "b"}
        finally:
            process.terminate()
        assert process.wait(60) == 130
