"""The live console over real HTTP: who may look, what comes, and that it stays small."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.console import feed as feeding
from holdfast.console import live
from holdfast.console.event_log import EventLog
from holdfast.console.feed import Feed
from holdfast.console.files import page_files
from holdfast.console.live import LiveConsole
from holdfast.console.live_picture import EPISODES_MAX, POINTS_MAX, LivePicture, merged
from holdfast.console.merge_patch import patch_of
from holdfast.host.catalog import HERE, Catalog
from holdfast.host.console_routes import console_routes, live_console
from holdfast.host.service import Service
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.report import ReportWriter
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.watcher import Counted
from tests.host.conftest import TOKEN, VIEW_TOKEN, hosted, until

SECOND = 1_000_000
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}


class Scripted:
    """An application of one node whose status is what the test says."""

    def __init__(self, root: Path) -> None:
        self.store = holdfast.open(root)
        self.stream = self.store.create("counts", "n bigint", bucket="1s")
        app = holdfast.App("netmon", root=root)
        app.node(inputs=["left", "right"], name="counts", max_delay="2s")(lambda rows: rows)
        self.catalog = Catalog(app.diagram())
        self.cuts: list[str] = []
        self.state, self.failing, self.fork, self.trouble = "STABLE", False, "none", False

    def status(self) -> dict[str, Any]:
        if self.trouble:
            raise RuntimeError("nobody thought of this")
        inputs = [{"stream": s, "boundary_us": 5 * SECOND, "failing": self.failing and s == "right",
                   "reading": [f"{s}@here/main"]} for s in ("left", "right")]  # fmt: skip
        replica = {"replica": "counts@here", "node": "counts", "state": self.state, "stable_until_us": 4 * SECOND,
                   "output": {"stream": "counts", "state": "STABLE", "boundary_us": 2**62},
                   "fork": {"id": 1, "state": self.fork}, "inputs": inputs}  # fmt: skip
        return {"host": HERE, "replicas": [replica], "cuts": list(self.cuts), "sources": [], "sinks": []}

    def fault(self, order: dict[str, Any]) -> dict[str, Any]:
        self.cuts = [*self.cuts, *order.get("cut", [])]
        return {"cuts": self.cuts}

    def console(self) -> LiveConsole:
        return live_console(HERE, self.catalog, self.status, self.store)


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path)


def play(scripted: Scripted, talk: Callable[[httpx.AsyncClient, LiveConsole, Service], Awaitable[None]]) -> None:
    async def run() -> None:
        console = scripted.console()
        looking = asyncio.ensure_future(console.run())
        async with (
            hosted(scripted.store, status=scripted.status, fault=scripted.fault, view_token=VIEW_TOKEN,
                   doors=console_routes(console)) as service,
            httpx.AsyncClient(base_url=service.address, timeout=30) as client,
        ):  # fmt: skip
            try:
                await talk(client, console, service)
            finally:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking

    asyncio.run(run())


async def events(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> AsyncIterator[tuple[str, Any]]:
    """Server-sent events as a page reads them."""
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])


def apply(patch: Any, target: Any) -> Any:
    """RFC 7386, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = apply(value, target.get(name))
    return target


# Who may look ---------------------------------------------------------------------------------------------------------


def test_the_page_needs_no_token_and_allows_nothing_but_this_host(scripted: Scripted) -> None:
    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        for name in ("", *(f"/{name}" for name in page_files())):
            answer = await client.get(f"/console{name}")
            assert answer.status_code == 200
            policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await client.get(f"/console{name}", headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304
        for name in ("other.js", "..%2f__init__.py", "%2e%2e"):
            assert (await client.get(f"/console/{name}")).status_code in (404, 308)

    play(scripted, talk)


def test_the_page_has_neither_script_nor_style_of_its_own() -> None:
    page = page_files()["index.html"].content.decode()
    assert "<style" not in page
    assert " style=" not in page
    assert "<script>" not in page
    assert " onclick" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "uplot-license.txt" in page_files()


def test_what_the_page_shows_needs_a_token(scripted: Scripted) -> None:
    """X1"""

    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        paths = ("/v1/console", "/v1/console/events", "/v1/console/streams/counts/events",
                 "/v1/console/streams/counts/episodes/1")  # fmt: skip
        for path in paths:
            assert (await client.get(path)).status_code == 401
            assert (await client.get(f"{path}?token={TOKEN}")).status_code == 401
        assert (await client.get("/v1/console", headers=VIEWER)).json()["app"] == "netmon"
        missing = await client.get("/v1/console/streams/counts/episodes/1", headers=VIEWER)
        assert missing.status_code == 404
        assert (await client.get("/v1/console/streams/nobody/events", headers=VIEWER)).status_code == 404

    play(scripted, talk)


def test_a_viewer_sees_what_an_operator_cuts_and_cannot_cut(scripted: Scripted) -> None:
    """X1"""

    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        refused = await client.post("/v1/faults", headers=VIEWER, json={"cut": ["right>here"]})
        assert refused.status_code == 403
        assert (await client.post("/v1/faults", json={"cut": ["right>here"]})).status_code == 401
        told = events(client, "/v1/console/events", VIEWER)
        assert await anext(told) == ("you", {"name": "viewer", "role": "viewer"})
        name, doc = await anext(told)
        assert (name, doc["cuts"], doc["events"]) == ("whole", [], [])
        assert (await client.post("/v1/faults", headers=OPERATOR, json={"cut": ["right>here"]})).status_code == 200
        async for _, patch in told:
            doc = apply(patch, doc)
            if doc["cuts"]:
                break
        assert [event["text"] for event in doc["happened"]] == ["right>here was cut"]

    play(scripted, talk)


# What comes -----------------------------------------------------------------------------------------------------------


def test_a_failure_is_told_as_patches_and_in_the_log(scripted: Scripted) -> None:
    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        told = events(client, "/v1/console/events", VIEWER)
        await anext(told)
        _, doc = await anext(told)
        scripted.state, scripted.failing, scripted.fork = "UP_FAILURE", True, "running"
        happened: list[Any] = []
        async for _, patch in told:
            happened += patch.pop("happened", [])
            doc = apply(patch, doc)
            if doc["replicas"]["counts@here"]["state"] == "UP_FAILURE":
                assert "nodes" not in patch, "what has not changed is not sent again"
                break
        assert [(event["kind"], event["text"]) for event in happened] == [
            ("failure", "counts@here is UP_FAILURE"), ("fork", "counts@here: fork 1 is running"),
            ("failure", "counts@here: right is missing"),
        ]  # fmt: skip
        assert doc["nodes"]["counts"]["max_delay_ms"] == 2000
        assert doc["streams"]["left"]["readers"] == ["counts"]
        replica = doc["replicas"]["counts@here"]
        assert replica["inputs"]["right"] == {"boundary_ms": 5000, "failing": True, "reading": ["right@here/main"]}
        assert replica["output"].get("boundary_ms") is None, "an end of time is not a time"
        later = (await client.get("/v1/console", headers=VIEWER)).json()
        assert [event["id"] for event in later["events"]] == [1, 2, 3]

    play(scripted, talk)


def test_a_console_that_cannot_look_neither_ends_its_host_nor_stays_away(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        told = events(client, "/v1/console/events", VIEWER)
        await anext(told)
        await anext(told)
        scripted.trouble = True
        await until(lambda: "the console could not look" in caplog.text)
        scripted.trouble = False
        assert (await anext(told))[0] == "patch"

    play(scripted, talk)


def test_a_log_that_takes_long_to_open_holds_up_neither_its_host_nor_the_other_pictures(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a `kill -9` a long segment is walked there."""
    asked, free = threading.Event(), threading.Event()

    def slowly(stream: Stream) -> LivePicture:
        if stream.name == "counts":
            asked.set()
            assert free.wait(20), "whoever would set it waits for this"
        return LivePicture(stream)

    scripted.store.create("left", "n bigint", bucket="1s")
    monkeypatch.setattr(live, "LivePicture", slowly)

    async def talk(client: httpx.AsyncClient, console: LiveConsole, service: Service) -> None:
        page = events(client, "/v1/console/streams/counts/events", VIEWER)
        first = asyncio.ensure_future(anext(page))
        await until(asked.is_set)
        other = events(client, "/v1/console/streams/left/events", VIEWER)
        assert (await anext(other))[1]["stream"] == "left"
        assert (await client.get("/v1/console", headers=VIEWER)).status_code == 200
        free.set()
        assert (await first)[1]["stream"] == "counts"

    play(scripted, talk)


def test_a_stream_beyond_those_that_are_watched_has_its_picture_once_a_page_asks(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown as lying elsewhere, and no page asked."""
    monkeypatch.setattr(live, "RECORDED_MAX", 0)

    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        told = events(client, "/v1/console/events", VIEWER)
        await anext(told)
        _, doc = await anext(told)
        assert doc["live"]["counts"] == {"state": live.NOT_WATCHED}
        picture = events(client, "/v1/console/streams/counts/events", VIEWER)
        assert (await anext(picture))[1]["stream"] == "counts"
        async for _, patch in told:
            doc = apply(patch, doc)
            if doc["live"]["counts"]["state"] != live.NOT_WATCHED:
                break
        assert doc["live"]["counts"]["standing"] == 0

    play(scripted, talk)


def test_a_stream_beyond_those_that_are_watched_is_told_once_it_is_there(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page asked for its picture before, and got 404."""
    monkeypatch.setattr(live, "RECORDED_MAX", 0)

    async def talk(client: httpx.AsyncClient, *_: object) -> None:
        told = events(client, "/v1/console/events", VIEWER)
        await anext(told)
        _, doc = await anext(told)
        assert "left" not in doc["live"]
        scripted.store.create("left", "n bigint", bucket="1s")
        async for _, patch in told:
            doc = apply(patch, doc)
            if "left" in doc["live"]:
                break
        assert doc["live"]["left"] == {"state": live.NOT_WATCHED}

    play(scripted, talk)


def test_pages_end_with_their_host(scripted: Scripted) -> None:
    async def talk(client: httpx.AsyncClient, console: LiveConsole, service: Service) -> None:
        told = [events(client, "/v1/console/events", VIEWER) for _ in range(3)]
        for one in told:
            await anext(one)
        await until(lambda: console.pages == 3)
        console.end()
        for one in told:
            assert [name async for name, _ in one][-1:] != ["you"]
        await until(lambda: console.pages == 0)

    play(scripted, talk)


def test_all_pages_are_sent_the_same_text_made_once() -> None:
    async def run() -> None:
        wholes = changes = 0

        def whole() -> tuple[str, bytes]:
            nonlocal wholes
            wholes += 1
            return "whole", b"{}"

        def change() -> bytes:
            nonlocal changes
            changes += 1
            return b'{"n":%d}' % changes

        feed = Feed(whole)
        feed.publish("patch", change)
        assert changes == 0, "nobody listens"
        pages = [feed.follow(b"hello ") for _ in range(20)]
        assert {await anext(page) for page in pages} == {b"hello event: whole\ndata: {}\n\n"}
        feed.publish("patch", change)
        assert {await anext(page) for page in pages} == {b'event: patch\ndata: {"n":1}\n\n'}
        assert (wholes, changes) == (1, 1)
        for _ in range(3):
            feed.publish("patch", change)
        assert (await anext(pages[0])).count(b"event: patch") == 3, "what was missed comes in order"
        for _ in range(100):
            feed.publish("patch", change)
        assert await anext(pages[0]) == b"event: whole\ndata: {}\n\n", "who is far behind begins anew (X4)"
        feed.end()
        assert [part async for part in pages[0]] == []

    asyncio.run(run())


def test_a_page_asks_again_after_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was taken back does not go on looking."""

    async def run() -> None:
        monkeypatch.setattr(feeding, "LIFE_US", 0)
        page = Feed(lambda: ("whole", b"{}")).follow()
        assert len([part async for part in page]) == 1

    asyncio.run(run())


PLAIN = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), PLAIN, max_size=4)


@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_makes_the_second_of_the_first(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert apply(patch_of(before, after), before) == after
    assert patch_of(before, before) == {}


# What is kept ---------------------------------------------------------------------------------------------------------


def document(at_ms: int, state: str) -> dict[str, Any]:
    replica = {"state": state, "inputs": {}, "output": {"stream": "s"}}
    return {"at_ms": at_ms, "cuts": [], "replicas": {"n@a": replica}, "sources": {}, "sinks": {}, "streams": {"s": {}}}


def test_the_log_is_bounded_and_its_numbers_go_on() -> None:
    log = EventLog(events_max=50)
    for number in range(0, 400, 2):
        log.compare(document(number, "STABLE"), document(number + 1, "UP_FAILURE"))
        log.compare(document(number + 1, "UP_FAILURE"), document(number + 2, "STABLE"))
    assert [event.id for event in log.events] == list(range(351, 401))


NODES = {"counts": {"inputs": ["left", "right"], "output": "counted", "replicas": ["counts@a", "counts@b"]}}


def test_a_movement_is_told_with_the_results_that_show_it() -> None:
    before, after = ({**document(at, "STABLE"), "nodes": NODES, "loads": {"anna": {"tasks": {"counts": {"at": who}}}}}
                     for at, who in ((1, "ann"), (2, "ben")))  # fmt: skip
    assert [(e.kind, e.text, e.stream) for e in EventLog().compare(before, after)] == [
        ("movement", "counts moved from ann to ben", "counted")
    ]


def test_cuts_missing_inputs_and_forks_lead_to_the_results_that_they_concern() -> None:
    """The picture of an input shows nothing of its being cut off."""
    before = {**document(1, "STABLE"), "nodes": NODES}
    after = {**document(2, "STABLE"), "nodes": NODES, "cuts": ["right>b", "a-c", "right>c", "s>c"]}
    for doc, failing, fork in ((before, False, "prepared"), (after, True, "running")):
        doc["replicas"] = {"counts@b": {"state": "STABLE", "output": {"stream": "counted"},
                                        "fork": {"id": 1, "state": fork},
                                        "inputs": {"right": {"failing": failing}}}}  # fmt: skip
    told = {e.text: e.stream for e in EventLog().compare(before, after)}
    assert told == {"right>b was cut": "counted", "a-c was cut": "counted", "right>c was cut": None, "s>c was cut": "s",
                    "counts@b: fork 1 is running": "counted", "counts@b: right is missing": "counted"}  # fmt: skip


class Failing:
    """A stream that fails again and again, by hand."""

    def __init__(self, root: Path) -> None:
        self.stream: Stream = StreamStore(root).create("s", "n bigint", bucket="1s")
        self._report = ReportWriter(self.stream.folder)
        self.next = 0

    def say(self, state: StreamState) -> None:
        self._report.publish(StreamReport("s", state, self.next * SECOND, state is not StreamState.STABLE))

    def stable(self, buckets: int) -> None:
        with self.stream.producer(stime="stime", boundary_every="1h") as producer:
            for n in range(self.next, self.next + buckets):
                producer.send({"n": n, "stime": n * SECOND})
            self.next += buckets
            producer.advance(self.next * SECOND)
            producer.close(end=False)

    def fail(self, buckets: int) -> None:
        self.say(StreamState.UP_FAILURE)
        self.stream.create_branch(self.next * SECOND)
        writer = self.stream.branch_writer()
        producer = holdfast.Producer(self.stream.definition, writer, stime="stime", boundary_every="1h")
        for n in range(self.next, self.next + buckets):
            producer.send({"n": n, "stime": n * SECOND})
        producer.advance((self.next + buckets) * SECOND)
        producer.close(end=False)

    def correct(self, buckets: int) -> None:
        self.say(StreamState.STABILIZATION)
        self.stable(buckets)
        self.stream.drop_branch()
        self.say(StreamState.STABLE)


def test_a_failure_of_the_past_can_be_looked_at_and_all_of_it_is_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        failing = Failing(tmp_path)
        failing.say(StreamState.STABLE)
        picture = LivePicture(failing.stream)
        wall = 1_000 * SECOND

        def look() -> list[tuple[TupleType, int]]:
            nonlocal wall
            wall += SECOND
            return picture.look(wall)

        for number in range(1, EPISODES_MAX + 4):
            failing.stable(3)
            assert look() == []
            failing.fail(4)
            assert look() == [(TupleType.TENTATIVE, number)]
            assert (picture.state, picture.standing) == ("TENTATIVE", 4)
            failing.correct(4)
            assert look() == [(TupleType.UNDO, number), (TupleType.REC_DONE, number)]
            assert (picture.state, picture.standing) == ("STABLE", 0)
            wall += 60 * SECOND
            assert look() == []
        facts = picture.facts()
        assert (facts["stable"], facts["tentative"], facts["undos"]) == (failing.next, 4 * number, number)
        assert [n for n, _, _ in facts["episodes"]] == list(range(4, number + 1))
        _, from_ms, until_ms = facts["episodes"][-1]
        began_ms = json.loads(picture.episode(number) or b"")["began_ms"]
        assert until_ms is not None
        assert from_ms < began_ms < until_ms, "a cut comes before what it makes tentative"
        assert picture.episode(3) is None
        kept = json.loads(picture.episode(number) or b"")
        kinds = [point[1] for point in kept["points"]]
        assert kinds == [1] * 3 + [2] * 4 + [4] + [1] * 4 + [5]
        new = [point[4] is not None for point in kept["points"] if point[2] is not None]
        assert new == [True] * 7 + [False] * 4, "corrections are not new"
        picture.close()

    asyncio.run(run())


def test_a_replay_of_many_buckets_leaves_room_for_what_was_there(tmp_path: Path) -> None:
    many = [Counted(TupleType.INSERTION, 2, n, n) for n in range(POINTS_MAX)]
    parts = merged([*many, Counted(TupleType.UNDO), *many])
    assert len(parts) < 300
    assert sum(part.tuples for part in parts if part.stime_min_us is not None) == 4 * POINTS_MAX
    assert [part.kind for part in parts].count(TupleType.UNDO) == 1
    undo = next(n for n, part in enumerate(parts) if part.kind is TupleType.UNDO)
    assert sum(part.tuples for part in parts[:undo]) == 2 * POINTS_MAX
