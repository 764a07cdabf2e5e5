"""A host as a whole, as far as it goes without Spark."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.host.host as hosts
from holdfast.diagram import NodeSpec
from holdfast.engine import Engine, NodeQueries, create_output
from holdfast.host.catalog import Catalog, replica_name
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.host.network import SourceVoice
from holdfast.model.errors import PeerError, SchemaError, StorageError, UsageError
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import KeepaliveRequest
from holdfast.stream.store import Stream
from tests.host.conftest import until
from tests.host.scripted_engine import ScriptedEngine

APP = """
import holdfast

app = holdfast.App("two")
app.node(inputs=["fast", "slow"], name="misfit")(lambda rows: rows)
"""
OTHER = 'app.node(inputs=["late"], name="other")(lambda rows: rows)\n'


def host(tmp_path: Path, app: str, sources: str) -> Host:
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "d.yaml").write_text(
        f'app: app.py\nhosts: {{a: {{address: "127.0.0.1:7401", root: a/}}}}\nsources: {{{sources}}}\n'
    )
    deployment = load_deployment(tmp_path / "d.yaml")
    store = holdfast.open(tmp_path / "a")
    store.create("fast", "n bigint", bucket="2s")
    store.create("slow", "n bigint", bucket="3s")
    return Host("a", Catalog(deployment.load_app().diagram(), deployment), tmp_path / "a", ScriptedEngine())


def test_a_node_that_cannot_be_set_up_is_reported_and_the_others_are_not_ended(tmp_path: Path) -> None:
    async def play() -> None:
        running = host(tmp_path, APP + OTHER, "fast: a, slow: a, late: a")
        task = asyncio.ensure_future(running.run())
        await until(lambda: "FAILED" in {r["state"] for r in running.status()["replicas"]} or task.done())
        states = {r["node"]: (r["state"], r.get("why", "")) for r in running.status()["replicas"]}
        assert states["other"][0] == "WAITING"
        assert "buckets that fit into each other" in states["misfit"][1]
        running.stop()
        await task

    asyncio.run(play())


def test_a_host_whose_only_node_cannot_be_set_up_ends_with_the_reason(tmp_path: Path) -> None:
    async def play() -> None:
        with pytest.raises(UsageError, match="buckets that fit into each other"):
            await asyncio.wait_for(host(tmp_path, APP, "fast: a, slow: a").run(), 30)

    asyncio.run(play())


class RaisingEngine(ScriptedEngine):
    """The function of node `raising` raises this while `raises`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.raises = error, True

    def queries(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> NodeQueries:
        queries = super().queries(node, inputs, outputs, home)
        create = queries.create_output

        def create_output(bucket_us: int) -> Stream:
            if node.name == "raising" and self.raises:
                raise self.error
            return create(bucket_us)

        queries.create_output = create_output  # type: ignore[method-assign]
        return queries


TWO = """
import holdfast

app = holdfast.App("two")
app.node(inputs=["late"], name="raising")(lambda rows: rows)
app.node(inputs=["late"], name="other")(lambda rows: rows)
"""


def two_nodes(tmp_path: Path, engine: Engine) -> Host:
    running = host(tmp_path, TWO, "late: a")
    late = holdfast.open(tmp_path / "a").create("late", "n bigint", bucket="1s")
    late.writer().commit([], now_us=1, boundary_us=5_000_000)
    running.engine, running.return_s = engine, 0.05
    return running


def state(running: Host, node: str) -> str:
    return next(r["state"] for r in running.status()["replicas"] if r["node"] == node)


def why(running: Host, node: str) -> str:
    return next(r.get("why", "") for r in running.status()["replicas"] if r["node"] == node)


def serves(running: Host, node: str) -> bool:
    """It has been STABLE. It may suspect its input by now, to which nothing comes."""
    return replica_name(node, "a") not in running.not_ready()


@pytest.mark.parametrize("error", [KeyError("k"), SchemaError("a result needs an stime")], ids=["plain", "ours"])
def test_whatever_one_node_raises_at_its_set_up_the_others_of_its_host_go_on(tmp_path: Path, error: Exception) -> None:
    async def play() -> None:
        running = two_nodes(tmp_path, RaisingEngine(error))
        task = asyncio.ensure_future(running.run())
        await until(lambda: task.done() or (state(running, "raising") == "FAILED" and serves(running, "other")))
        said = why(running, "raising")
        assert "KeyError: 'k' (test_host.py line" in said or said == str(error)
        assert "raising@a" in running.failures()
        running.stop()
        await task

    asyncio.run(play())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PeerError("the server is away")])
def test_a_node_that_cannot_be_set_up_for_now_says_so_and_is_set_up_when_it_can_be(
    tmp_path: Path, error: Exception
) -> None:
    async def play() -> None:
        engine = RaisingEngine(error)
        running = two_nodes(tmp_path, engine)
        task = asyncio.ensure_future(running.run())
        said = f"it cannot be set up now, and is tried again: {error}"
        await until(lambda: task.done() or (why(running, "raising") == said and serves(running, "other")))
        assert state(running, "raising") == "WAITING"
        engine.raises = False
        await until(lambda: task.done() or serves(running, "raising"))
        assert not task.done()
        running.stop()
        await task

    asyncio.run(play())


@pytest.mark.parametrize("persist", ["on_demand", "never"])
def test_a_node_refuses_an_input_that_may_not_be_there_again(tmp_path: Path, persist: Any) -> None:
    async def play() -> None:
        app = 'import holdfast\napp = holdfast.App("one")\napp.node(inputs=["brief"], name="n")(lambda rows: rows)\n'
        running = host(tmp_path, app, "brief: a")
        holdfast.open(tmp_path / "a").create("brief", "n bigint", persist=persist)
        with pytest.raises(UsageError, match=r"node n, which reads it, must find every tuple of stream brief again"):
            await asyncio.wait_for(running.run(), 30)

    asyncio.run(play())


def test_a_node_refuses_an_output_that_may_not_be_there_again(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    schema = store.create("results", "n bigint", persist="on_demand").definition.schema
    app = holdfast.App("one", root=tmp_path)
    app.node(inputs=["fast"], output="results", name="n")(lambda rows: rows)
    (node,) = app.diagram().nodes
    with pytest.raises(UsageError, match=r"node n, which writes it, .* create it with persist='always'"):
        create_output(store, node, schema, 1_000_000)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(60)
def test_an_application_that_was_stopped_says_so_and_holds_no_file(tmp_path: Path) -> None:
    """It used to wait for ever for an answer of a loop that had ended, and kept that loop's files."""
    app = holdfast.App("none", root=tmp_path)
    app.start().stop()
    before = open_files()
    for _ in range(3):
        running = app.start()
        assert running.status()["replicas"] == []
        running.stop()
        with pytest.raises(UsageError, match="was stopped"):
            running.status()
    assert open_files() <= before


def test_a_fault_that_cannot_be_understood_changes_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        running = host(tmp_path, APP + OTHER, "fast: a, slow: a, late: a")
        for order in ({"cut": 5}, {"cut": "fast>a"}, {"break": []}, {"cut": ["fast>a", "nowhere"]}):
            with pytest.raises(UsageError):
                running.fault(order)
        assert running.fault({"cut": ["fast>a"]}) == {"cuts": ["fast>a"]}
        assert running.fault({"heal": ["fast>a"]}) == {"cuts": []}

    asyncio.run(play())


def test_an_answer_to_somebody_whom_nobody_knows_is_dropped(tmp_path: Path) -> None:
    """A keepalive from another deployment must not become the trouble of the replica that answers it."""

    async def play() -> None:
        running = host(tmp_path, APP + OTHER, "fast: a, slow: a, late: a")
        running._network.add_source("fast@a", SourceVoice(running.store, "fast"))
        running.deliver("stranger@elsewhere", "fast@a", KeepaliveRequest())
        assert running._under_way == {}

    asyncio.run(play())


@pytest.mark.parametrize("stuck", [False, True])
def test_a_replica_that_a_full_disk_has_stopped_comes_back_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """`stuck`: not even what it leaves behind can be removed until then."""
    full, drop = True, Stream.drop_branch
    running: Any = None

    def drop_branch(stream: Stream) -> None:
        if full and stuck and running.controllers:
            raise StorageError("could not rename: No space left on device")
        drop(stream)

    monkeypatch.setattr(Stream, "drop_branch", drop_branch)

    async def play() -> None:
        nonlocal full, running
        (tmp_path / "app.py").write_text("import holdfast\n\napp = holdfast.App('one')\n" + OTHER)
        (tmp_path / "d.yaml").write_text(
            'app: app.py\nhosts: {a: {address: "127.0.0.1:7401", root: a/}}\nsources: {late: a}\n'
        )
        deployment = load_deployment(tmp_path / "d.yaml")
        late = holdfast.open(tmp_path / "a").create("late", "n bigint", bucket="1s")
        late.writer().commit([], now_us=1, boundary_us=5_000_000)
        catalog = Catalog(deployment.load_app().diagram(), deployment)
        running = Host("a", catalog, tmp_path / "a", ScriptedEngine())
        running.return_s = 0.05
        say = running._network.say

        def out_of_room(sender: str, send: Send) -> None:
            if full:
                raise OSError(28, "No space left on device")
            say(sender, send)

        running._network.say = out_of_room  # type: ignore[method-assign]
        seen: list[str] = []
        task = asyncio.ensure_future(running.run())
        for wanted in ("FAILED", "STABLE") if stuck else ("FAILED", "FAILED", "STABLE"):
            before = running.controllers.get("other@a")
            full = wanted != "STABLE"

            def there(wanted: str = wanted, before: Any = before) -> bool:
                seen.append(running.status()["replicas"][0]["state"])
                return task.done() or (seen[-1] == wanted and running.controllers["other@a"] is not before)

            await until(there)
            assert seen[-1] == wanted
        assert len(running.status()["replicas"]) == 1
        running.stop()
        await task

    asyncio.run(play())


def test_a_host_whose_engine_has_ended_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queries can never be started again, and whoever watches the process can do so."""
    monkeypatch.setattr(hosts, "HEALTH_US", 10_000)

    async def play() -> None:
        running = host(tmp_path, APP + OTHER, "fast: a, slow: a, late: a")
        task = asyncio.ensure_future(running.run())
        await until(lambda: running._looked_us)
        assert not task.done()
        running.engine.ended = "the script is over"  # type: ignore[misc]
        with pytest.raises(PeerError, match="host 'a' ends: the script is over"):
            await asyncio.wait_for(task, 30)

    asyncio.run(play())


def test_an_application_that_ends_after_its_start_says_so_although_nobody_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = holdfast.App("broken", root=tmp_path)
    app.node(inputs=["s"], name="n")(lambda rows: rows)

    class Broken(ScriptedEngine):
        def queries(self, *given: Any) -> Any:
            raise AttributeError("the first thing that the node asks of it, it does not have")

    running = app.start(engine=Broken())
    holdfast.open(tmp_path).create("s", "n bigint", bucket="1s")
    running._thread.join(30)
    assert "application broken has ended: " in caplog.text
    with pytest.raises(AttributeError):
        running.status()
