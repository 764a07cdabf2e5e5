"""`holdfast try` against a host of this process, the plain engine in Spark's place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

import holdfast
from holdfast.cli.hosts import HostClient
from holdfast.cli.main import app
from holdfast.host.deployed import _run
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import PeerError
from tests.faults.deployment import free_ports
from tests.faults.test_trial import application
from tests.host.test_trial import FILE
from tests.load.pair import Spring
from tests.load.plain_engine import PlainEngine


def test_it_shows_what_differs_refuses_what_cannot_be_and_swaps_what_the_deployment_names(tmp_path: Path) -> None:
    file, (port,) = tmp_path / "net.yaml", free_ports(1)
    file.write_text(FILE.replace("7999", str(port)))
    (tmp_path / "app.py").write_text(application())
    deployment = load_deployment(file)
    deployment.make_token()
    spring = Spring(holdfast.open(tmp_path / "a").create("flows", "source string, bytes bigint", bucket="1s"))
    client = HostClient(deployment.host("a"), deployment.token())

    async def flow() -> None:
        while True:
            spring.flow()
            await asyncio.sleep(0.1)

    async def told(code: int, text: str, *words: str, name: str = "new.py") -> str:
        (tmp_path / name).write_text(text)
        command = ["try", str(tmp_path / name), "--node", "counts", "-d", str(file), "--for", "1", *words]
        done: Result = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert done.exit_code == code, done.output
        return done.output

    def serves() -> bool:
        try:
            (replica,) = client.status().replicas
        except PeerError:
            return False
        return replica.state == "STABLE" and "counts" in holdfast.open(tmp_path / "a").names() and len(rows()) > 3

    def rows() -> list[dict[str, Any]]:
        reader = holdfast.open(tmp_path / "a").open("counts").reader()
        found = [row for _, batch in reader.scan(0, 2**61) for row in batch.to_pylist()]
        reader.close()
        return found

    async def check() -> None:
        host, flowing = asyncio.ensure_future(_run(deployment, "a", None, PlainEngine())), asyncio.ensure_future(flow())
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(serves):
                await asyncio.sleep(0.1)
            shown = await told(0, application(scale=2, without="s2", rate=True))
            assert "runs beside it with its live state" in shown
            assert " 0 equal, " in shown
            assert "new columns: rate double" in shown
            assert "  only live   stime=" in shown
            assert "source=s2" in shown
            assert "n: 4 -> 8" in shown
            said = msgspec.json.decode((await told(0, application(), "--json")).splitlines()[-1])
            assert said["equal"] == said["live"] == said["trial"] > 0
            assert "cannot be carried over" in await told(1, application(window=2))
            assert "with a fresh state, made of 3s" in await told(0, application(window=2), "--replay", "3s")
            assert "other options" in await told(1, application(", retain='acknowledged'"))
            assert "made of columns of" in await told(1, application(), "--key", "nobody")
            assert "cannot be run: NameError" in await told(1, "unknown")
            assert "names, app.py" in await told(1, application(scale=2), "--swap")
            (tmp_path / "there").mkdir()
            assert "beside the application" in await told(1, application(), name="there/new.py")
            status = await asyncio.to_thread(client.status)
            assert [replica.replica for replica in status.replicas] == ["counts@a"]
            assert "counts: swapped in; results from " in await told(0, application(scale=3), "--swap", name="app.py")
            while rows()[-1]["n"] not in (9, 12):
                await asyncio.sleep(0.1)
        flowing.cancel()
        await asyncio.to_thread(client.stop)
        await host

    asyncio.run(check())
    spring.close()
