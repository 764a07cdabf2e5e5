"""The door of a host: who may come in, and with what."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.host.link import Cuts, HttpLink
from holdfast.host.service import Service
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import MESSAGE_BYTES_MAX, PORTION_BYTES, PORTION_TYPE, Span, decode_portion, encode_message
from holdfast.inputs.http_server import ImpatientProtocol
from holdfast.inputs.network import Access
from holdfast.model.errors import PeerError, UsageError
from holdfast.protocol.dpc.messages import Ack, KeepaliveRequest
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.definition import Retention
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import Removal
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.worth import Worth, note_worth
from holdfast.stream.writer import Event
from tests.host.conftest import SECOND, TOKEN, VIEW_TOKEN, Origin, hosted, linked, never, until

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}
LANE = "/v1/streams/s/main?from_us=0"
ACK = encode_message("a@b", "c@d", Ack("s", 5))


def ask(origin: Origin, talk: Callable[[httpx.AsyncClient], Awaitable[None]], **given: Any) -> None:
    async def play() -> None:
        async with (
            hosted(origin.store, **given) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            await talk(client)

    asyncio.run(play())


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    made = Origin(tmp_path / "o")
    made.fill(1, 5)
    return made


def test_without_a_token_nothing_is_said_or_done(origin: Origin) -> None:
    """X1"""

    async def talk(client: httpx.AsyncClient) -> None:
        wrong = (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": "Bearer"},
        )
        for headers in wrong:
            for path in (LANE, "/v1/status", "/v1/streams/s/definition"):
                assert (await client.get(path, headers=headers)).status_code == 401
            for path in ("/v1/messages", "/v1/faults", "/v1/stop"):
                assert (await client.post(path, headers=headers, content=ACK)).status_code == 401

    ask(origin, talk, view_token=VIEW_TOKEN)


def test_who_may_look_may_not_act(origin: Origin) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/status", headers=VIEWER)).json() == {"state": "STABLE"}
        portion = await client.get(LANE, headers=VIEWER)
        assert portion.headers["content-type"] == PORTION_TYPE
        assert len(decode_portion(portion.content).events) == 4
        for path in ("/v1/messages", "/v1/faults", "/v1/stop"):
            answer = await client.post(path, headers=VIEWER, content=ACK)
            assert answer.status_code == 403
            assert "look but not act" in answer.json()["error"]

    ask(origin, talk, view_token=VIEW_TOKEN, status=lambda: {"state": "STABLE"})


def test_a_reader_of_an_earlier_version_is_told_what_it_knows_of_what_results_are_worth(origin: Origin) -> None:
    """Whatever it does not know would be refused: the schema of a portion is closed."""
    origin.stream.create_branch(5 * SECOND)
    lines = [Worth(5, 0.5, ("a",), 0.25, ("b",)), Worth(6, 1.0, ("a", "b"), 1.0)]
    note_worth(origin.stream.folder, origin.definition, lines)
    origin.add((5.5, 55), boundary=7, writer=origin.stream.branch_writer())

    async def talk(client: httpx.AsyncClient) -> None:
        found = {}
        for asked in ("", "&spans=1", "&spans=1&portions=3", "&spans=1&portions=9"):
            answer = await client.get(f"/v1/streams/s/branch?from_us=0{asked}", headers=VIEWER)
            portion = decode_portion(answer.content)
            assert portion.worth == ((5, 0.5), (6, 1.0))
            found[asked] = answer.content[8], portion.spans
        newest = 3, (Span(5, 0.25, ("b",), ("a",)), Span(6, 1.0, (), ("a", "b")))
        assert found == {
            "": (1, ()), "&spans=1": (2, (Span(5, 0.25, ("b",)),)), "&spans=1&portions=3": newest,
            "&spans=1&portions=9": newest,
        }  # fmt: skip

    ask(origin, talk, view_token=VIEW_TOKEN)


def test_an_operator_may_act(origin: Origin) -> None:
    done: list[Any] = []

    async def talk(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/messages", headers=OPERATOR, content=ACK)).json() == {}
        said = await client.post("/v1/faults", headers=OPERATOR, json={"cut": "b"})
        assert said.json() == {"cut": ["b"]}
        assert (await client.post("/v1/stop", headers=OPERATOR)).status_code == 200
        await until(lambda: len(done) == 3)
        assert done == [("a@b", "c@d", Ack("s", 5)), {"cut": "b"}, "stop"]

    def fault(wish: dict[str, Any]) -> dict[str, Any]:
        done.append(wish)
        return {"cut": ["b"]}

    ask(origin, talk, deliver=lambda *a: done.append(a), fault=fault, stop=lambda: done.append("stop"))


def test_a_page_in_a_browser_may_not_ask(origin: Origin) -> None:
    """X1"""

    async def talk(client: httpx.AsyncClient) -> None:
        for header in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert (await client.get("/v1/status", headers={**OPERATOR, **header})).status_code == 403
            assert (await client.post("/v1/stop", headers={**OPERATOR, **header})).status_code == 403

    ask(origin, talk)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/streams/other/main?from_us=0", 404),
        ("/v1/streams/other/definition", 404),
        ("/v1/streams/s/sideways?from_us=0", 404),
        ("/v1/streams/..%2fo%2fs/main?from_us=0", 404),
        ("/v1/streams/%2e%2e/definition", 400),
        ("/v1/streams/..%5cs/main?from_us=0", 400),
        ("/v1/streams/%00/main?from_us=0", 400),
        ("/v1/streams/S/main?from_us=0", 400),
        ("/v1/streams/s/main", 400),
        ("/v1/streams/s/main?from_us=x", 400),
        ("/v1/streams/s/main?from_us=--5", 400),
        ("/v1/streams/s/main?from_us=%C2%B2", 400),
        ("/v1/streams/s/main?from_us=" + "9" * 40, 400),
        ("/v1/streams/s/main?cursor=1.zz.0.0.0", 400),
        ("/v1/streams/s/main?cursor=%2e%2e", 400),
        ("/v1/streams/s/main?from_us=0&wait_ms=-1", 400),
        ("/v1/streams/s/main?from_us=0&bytes_max=x", 400),
        ("/v1/elsewhere", 404),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(origin: Origin, path: str, status: int) -> None:
    """X2"""

    async def talk(client: httpx.AsyncClient) -> None:
        answer = await client.get(path, headers=OPERATOR)
        assert answer.status_code == status, answer.text

    ask(origin, talk)


def test_a_body_that_is_too_large_is_given_up(origin: Origin) -> None:
    """X4"""

    async def talk(client: httpx.AsyncClient) -> None:
        async def chunks() -> Any:
            for _ in range(10):
                yield b" " * (MESSAGE_BYTES_MAX // 4)

        for content in (b" " * (MESSAGE_BYTES_MAX + 1), chunks()):
            for path in ("/v1/messages", "/v1/faults"):
                with contextlib.suppress(httpx.WriteError):
                    assert (await client.post(path, headers=OPERATOR, content=content)).status_code == 413
                content = b" " * (MESSAGE_BYTES_MAX + 1)
        for content in (b"{", b"[]", b'"x"', b"\xff"):
            for path in ("/v1/messages", "/v1/faults"):
                assert (await client.post(path, headers=OPERATOR, content=content)).status_code == 400

    ask(origin, talk)


def test_an_answer_that_is_asked_to_be_huge_is_bounded(origin: Origin) -> None:
    for second in range(5, 9):
        origin.add(*[(second, n) for n in range(100_000)], boundary=second + 1)

    async def talk(client: httpx.AsyncClient) -> None:
        huge = await client.get(LANE + "&bytes_max=999999999999", headers=OPERATOR)
        assert huge.status_code == 200
        assert len(huge.content) < PORTION_BYTES + 4096
        assert len(decode_portion((await client.get(LANE + "&bytes_max=0", headers=OPERATOR)).content).events) == 1

    ask(origin, talk)


def test_a_connection_that_asks_nothing_loses_its_place(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: places are bounded, so nobody may keep one without a request, not even by a byte now and then."""
    monkeypatch.setattr(ImpatientProtocol, "head_s_max", 0.3)

    async def play() -> None:
        async with hosted(origin.store) as service:
            silent, _ = await asyncio.open_connection(service.host, service.port)
            slow, writer = await asyncio.open_connection(service.host, service.port)

            async def drip() -> None:
                for byte in b"GET /v1/status HTTP/1.1\r\n" + b"x" * 10_000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip())
            async with asyncio.timeout(30):
                for reader in (silent, slow):
                    with contextlib.suppress(ConnectionError):
                        assert await reader.read() == b""
            dripping.cancel()

    asyncio.run(play())


def test_a_connection_is_kept_for_the_next_request(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImpatientProtocol, "head_s_max", 0.3)

    async def talk(client: httpx.AsyncClient) -> None:
        ports = set()
        for _ in range(3):
            async with client.stream("GET", LANE, headers=OPERATOR) as answer:
                ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                assert (answer.status_code, len(await answer.aread()) > 0) == (200, True)
            await asyncio.sleep(0.5)
        assert len(ports) == 1

    ask(origin, talk)


def test_a_replica_that_recovers_serves_nobody_but_says_what_its_stream_is(origin: Origin) -> None:
    """D12"""
    recovering = True

    async def play() -> None:
        nonlocal recovering
        async with hosted(origin.store, answers=lambda _: not recovering) as service, linked(service) as link:
            with pytest.raises(PeerError, match="recovers"):
                await link.pull("s", Lane.MAIN, 0, 1)
            assert (await link.definition("s")).id == origin.definition.id
            recovering = False
            assert len((await link.pull("s", Lane.MAIN, 0, 1)).events) == 4

    asyncio.run(play())


def test_other_addresses_need_tls_and_a_token(origin: Origin) -> None:
    """X1"""
    calls: dict[str, Any] = {"deliver": never, "status": dict, "fault": never, "stop": never, "answers": never}
    serving = StreamServer(origin.store)
    for access in (Access("0.0.0.0", token=TOKEN), Access("0.0.0.0")):
        with pytest.raises(UsageError, match="needs a token and TLS"):
            Service(serving, access, **calls)
    with pytest.raises(UsageError, match="needs a token, on loopback as well"):
        Service(serving, Access(), **calls)
    with pytest.raises(UsageError, match="16 characters"):
        Service(serving, Access(token=TOKEN), view_token="short", **calls)
    with pytest.raises(UsageError, match="in the clear"):
        HttpLink("http://b.example:7411", TOKEN)
    with pytest.raises(UsageError, match="must look like"):
        HttpLink("b.example:7411", TOKEN)


def test_a_wait_is_bounded_and_ends_when_the_host_stops(origin: Origin) -> None:
    async def play() -> None:
        async with hosted(origin.store) as service, linked(service) as link:
            first = await link.pull("s", Lane.MAIN, 0, 5)
            waiting = asyncio.ensure_future(link.pull("s", Lane.MAIN, first.cursor, 9))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await service.close()
            with pytest.raises(PeerError):
                await waiting

    asyncio.run(play())


def test_a_host_that_is_cut_off_reaches_nobody_here(origin: Origin) -> None:
    """Both directions: what comes from there is refused as well, and its waiting pulls end."""
    cuts, heard = Cuts(), []

    async def play() -> None:
        calls: dict[str, Any] = {"cuts": cuts, "deliver": lambda *a: heard.append(a)}
        async with hosted(origin.store, **calls) as service, linked(service, name="b") as link:
            first = await link.pull("s", Lane.MAIN, 0, 5)
            waiting = asyncio.ensure_future(link.pull("s", Lane.MAIN, first.cursor, 9))
            await asyncio.sleep(0.1)
            cuts.cut("b")
            with pytest.raises(PeerError, match="cut off on purpose"):
                await waiting
            with pytest.raises(PeerError, match="cut off on purpose"):
                await link.say("n@b", "m@a", KeepaliveRequest())
            assert heard == []
            cuts.heal("b")
            await link.say("n@b", "m@a", KeepaliveRequest())
            assert heard == [("n@b", "m@a", KeepaliveRequest())]
            cuts.cut("s")
            with pytest.raises(PeerError, match="cut off on purpose"):
                await link.pull("s", Lane.MAIN, 0, 5)

    asyncio.run(play())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs openssl")
    made, key = tmp_path / "host.pem", tmp_path / "host.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=holdfast", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
               "-out", str(made)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@pytest.mark.parametrize("tls", [False, True])
def test_silent_connections_and_handshakes_keep_no_operator_out(
    origin: Origin, certificate: tuple[Path, Path], tls: bool
) -> None:
    """X6: 256 of them made an operator's status 503, and handshakes were not counted at all."""
    access = Access(token=TOKEN, certificate=certificate[0], key=certificate[1]) if tls else Access(token=TOKEN)
    trusted = ssl.create_default_context(cafile=str(certificate[0])) if tls else False

    async def play() -> None:
        async with hosted(origin.store, access, status=lambda: {"fine": True}) as service:
            silent = [await asyncio.open_connection(service.host, service.port) for _ in range(300)]
            async with httpx.AsyncClient(base_url=service.address, timeout=20, verify=trusted) as client:
                answer = await client.get("/v1/status", headers=OPERATOR)
                assert (answer.status_code, answer.json()) == (200, {"fine": True})
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    assert await silent[0][0].read() == b"", "the first that came goes first"
            for _, writer in silent:
                writer.close()

    asyncio.run(play())


def test_a_viewer_who_takes_all_it_may_leaves_room_for_operators(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6"""
    monkeypatch.setattr("holdfast.inputs.places.TOKEN_MAX", 5)

    async def play() -> None:
        async with hosted(origin.store, view_token=VIEW_TOKEN) as service, contextlib.AsyncExitStack() as stack:
            said = []
            for _ in range(6):
                client = await stack.enter_async_context(httpx.AsyncClient(base_url=service.address, timeout=20))
                said.append((await client.get("/v1/status", headers=VIEWER)).status_code)
            assert said == [200] * 5 + [429]
            async with httpx.AsyncClient(base_url=service.address, timeout=20) as client:
                assert (await client.get("/v1/status", headers=OPERATOR)).status_code == 200

    asyncio.run(play())


def test_a_body_that_drips_has_a_deadline_as_a_whole_whether_it_is_wanted_or_not(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: after its refusal, a request could go on for ever with a byte now and then."""
    monkeypatch.setattr(ImpatientProtocol, "body_s_max", 0.3)

    async def play() -> None:
        async with hosted(origin.store) as service:
            for token in (TOKEN, "wrong"):
                reader, writer = await asyncio.open_connection(service.host, service.port)
                writer.write(
                    f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
                    "Content-Length: 60000\r\n\r\n".encode()
                )

                async def drip(writer: asyncio.StreamWriter = writer) -> None:
                    while True:
                        writer.write(b" ")
                        await asyncio.sleep(0.02)

                dripping = asyncio.ensure_future(drip())
                async with asyncio.timeout(30):
                    with contextlib.suppress(ConnectionError):
                        await reader.read()
                dripping.cancel()

    asyncio.run(play())


def test_an_answer_that_nobody_takes_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X4"""
    monkeypatch.setattr(ImpatientProtocol, "answer_s_max", 0.3)
    wide = Origin(tmp_path / "wide")
    wide.fill(1, 3, each=400_000)

    async def play() -> None:
        async with hosted(wide.store) as service:
            _, writer = await asyncio.open_connection(service.host, service.port, limit=1024)
            head = f"GET {LANE} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            writer.write(head.encode() * 20)
            await until(lambda: service.connections == 1)
            await until(lambda: service.connections == 0)
            writer.close()

    asyncio.run(play())


def test_where_the_last_tuples_are_is_said_without_building_the_history(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: it took 1.25 s of the event loop at 100,000 events, and a viewer may ask."""
    many = [Event(b, 0, 3, b * SECOND, b * SECOND + 2, b"x" * 8) for b in range(5, 50_005)]
    origin.writer.commit(many, now_us=1, boundary_us=50_005 * SECOND)

    async def talk(client: httpx.AsyncClient) -> None:
        path = "/v1/streams/s/last?tuples=4"
        assert (await client.get(path, headers=OPERATOR)).json() == {"bucket": 50_003, "skip": 2}
        monkeypatch.setattr(LogReader, "extents", never)
        begun = time.process_time()
        for _ in range(10):
            assert (await client.get(path, headers=OPERATOR)).json() == {"bucket": 50_003, "skip": 2}
        assert time.process_time() - begun < 5
        assert (await client.get("/v1/streams/s/last?tuples=0", headers=OPERATOR)).json()["bucket"] == 50_005

    ask(origin, talk)


def test_tls_works_with_a_certificate_of_ones_own(origin: Origin, certificate: tuple[Path, Path]) -> None:
    access = Access("0.0.0.0", token=TOKEN, certificate=certificate[0], key=certificate[1])

    async def play() -> None:
        async with hosted(origin.store, access, deliver=never) as service:
            service.address = f"https://127.0.0.1:{service.port}"
            async with linked(service, ca=certificate[0]) as link:
                assert (await link.pull("s", Lane.MAIN, SECOND, 5)).boundary_us == 5 * SECOND
            async with linked(service) as link:
                with pytest.raises(PeerError, match="could not be reached"):
                    await link.pull("s", Lane.MAIN, SECOND, 5)
            async with linked(service, "wrong-wrong-wrong-wrong", ca=certificate[0]) as link:
                with pytest.raises(PeerError, match="401"):
                    await link.pull("s", Lane.MAIN, SECOND, 5)
            with pytest.raises((httpx.HTTPError, ssl.SSLError)):
                async with httpx.AsyncClient() as plain:
                    await plain.get(f"http://127.0.0.1:{service.port}/v1/status")

    asyncio.run(play())


def test_removing_what_was_acknowledged_holds_up_no_other_request_and_runs_once_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14"""
    store = StreamStore(tmp_path)
    store.create("s", "n bigint", bucket="1s", retention=Retention(acknowledged=True))
    free, runs = threading.Event(), list[str]()
    plain = Stream.retain

    def slowly(stream: Stream) -> Removal:
        runs.append(threading.current_thread().name)
        assert free.wait(20), "whoever would set it waits for this"
        return plain(stream)

    monkeypatch.setattr(Stream, "retain", slowly)

    async def play() -> None:
        async with (
            hosted(store) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            for n in range(1, 21):
                body = {"reader": "r", "until_us": n * SECOND}
                assert (await client.post("/v1/streams/s/acks", json=body, headers=OPERATOR)).status_code == 200
            await until(lambda: len(runs) == 1)
            free.set()
            await until(lambda: len(runs) == 2)

    asyncio.run(play())
    assert threading.current_thread().name not in runs
    assert len(runs) == 2, "one that was under way, and one for all that came meanwhile"
