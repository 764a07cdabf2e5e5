"""Links: every trouble is a PeerError, and a cut is felt at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.host.link import CutLink, Cuts, HttpLink, LocalLink
from holdfast.host.mirror import Mirror
from holdfast.host.parcel import Unpacking
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion, encode_portion
from holdfast.model.errors import PeerError
from holdfast.protocol.dpc.messages import Ack, Message
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.writer import Event
from tests.host.conftest import SECOND, TOKEN, Origin, following, hosted, linked, never, tuples_of, until


@contextlib.asynccontextmanager
async def answering(answer: Callable[[], bytes]) -> AsyncIterator[HttpLink]:
    """A server that says whatever it likes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    link = HttpLink(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN)
    try:
        yield link
    finally:
        await link.close()
        server.close()


def http(body: bytes, kind: str = "application/vnd.holdfast.portion", more: str = "", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


GOOD = b"".join(encode_portion(Portion("s", Lane.MAIN, "ab", 0, "c", 5, events=(Event(0, 0, 1, 0, 0, b"body", 1),))))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http(GOOD[:-1] + bytes([GOOD[-1] ^ 1])), "does not match its checksum"),
        (http(GOOD[:-1]), "announced other bodies"),
        (http(GOOD).replace(b"Length: ", b"Length: 1"), "could not be reached"),
        (http(GOOD, more="Content-Encoding: gzip\r\n"), "must not compress"),
        (http(GOOD, "text/html"), "is it a Holdfast host"),
        (http(b"no", status="500 Oops"), "with 500: no"),
        (http(b"", more="Location: http://127.0.0.1:1/\r\n", status="302 Found"), "with 302"),
        (b"SSH-2.0-OpenSSH\r\n", "could not be reached"),
        (b"", "could not be reached"),
        (http(b"".join(encode_portion(Portion("t", Lane.MAIN, "ab", 0, "c")))), "answered with t instead of s"),
    ],
)
def test_a_wrong_answer_is_a_peer_error(answer: bytes, why: str) -> None:
    async def play() -> None:
        async with answering(lambda: answer) as link:
            with pytest.raises(PeerError, match=why):
                await link.pull("s", Lane.MAIN, 0, 0.1)

    asyncio.run(play())


def test_a_good_answer_is_taken() -> None:
    async def play() -> None:
        async with answering(lambda: http(GOOD)) as link:
            assert (await link.pull("s", Lane.MAIN, 0, 0.1)).boundary_us == 5

    asyncio.run(play())


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """X4"""
    monkeypatch.setattr("holdfast.host.link.PORTION_BYTES_MAX", 1000)
    monkeypatch.setattr("holdfast.host.link.HEAD_BYTES_MAX", 0)

    async def play() -> None:
        async with answering(lambda: http(bytes(5000))) as link:
            with pytest.raises(PeerError, match="1000 bytes at most"):
                await link.pull("s", Lane.MAIN, 0, 0.1)

    asyncio.run(play())


@pytest.mark.parametrize("limit", ["ANSWER_S", "TRANSFER_S"])
def test_a_host_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A gray failure: the connection stays, nothing comes; or a drop comes now and then."""
    monkeypatch.setattr(f"holdfast.host.link.{limit}", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" if limit == "TRANSFER_S" else b"")
            while limit == "TRANSFER_S" and not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
            await reader.read()

    async def play() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        link = HttpLink(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN)
        with pytest.raises(PeerError, match="could not be reached"):
            await link.pull("s", Lane.MAIN, 0, 0.1)
        await link.close()
        server.close()

    asyncio.run(play())


def test_a_link_that_was_closed_is_a_peer_error(tmp_path: Path) -> None:
    """A host that has read its deployment again closes links; who is just being rebuilt by one must not end it."""

    async def play() -> None:
        async with answering(lambda: http(GOOD)) as link:
            await link.pull("s", Lane.MAIN, 0, 1)
            await link.close()
            for work in (link.pull("s", Lane.MAIN, 0, 1), link.take_parcel("n", Unpacking(tmp_path))):
                with pytest.raises(PeerError, match="was closed"):
                    await work

    asyncio.run(play())


def test_a_host_that_is_not_there_is_a_peer_error() -> None:
    async def play() -> None:
        link = HttpLink("http://127.0.0.1:1", TOKEN)
        for work in (link.pull("s", Lane.MAIN, 0, 1), link.say("a@b", "c@d", Ack("s", 1)), link.definition("s")):
            with pytest.raises(PeerError, match="is the host up"):
                await work
        await link.close()

    asyncio.run(play())


def test_a_wrong_token_and_an_unknown_stream_are_peer_errors(tmp_path: Path) -> None:
    origin = Origin(tmp_path)

    async def play() -> None:
        async with hosted(origin.store) as service:
            async with linked(service, "not-the-right-token") as link:
                with pytest.raises(PeerError, match="with 401"):
                    await link.pull("s", Lane.MAIN, 0, 1)
            async with linked(service) as link:
                for name in ("other", "../s", "s/../s", "s?x=1", "%2e%2e"):
                    with pytest.raises(PeerError, match=r"refused|is it a Holdfast host"):
                        await link.pull(name, Lane.MAIN, 0, 1)
                    with pytest.raises(PeerError):
                        await link.definition(name)

    asyncio.run(play())


def test_a_message_reaches_a_replica_here_in_a_turn_of_its_own(tmp_path: Path) -> None:
    heard: list[tuple[str, str, Message]] = []

    async def play() -> None:
        link = LocalLink(StreamServer(Origin(tmp_path).store), lambda *a: heard.append(a))
        await link.say("a@h", "b@h", Ack("s", 1))
        assert heard == []
        await asyncio.sleep(0)
        assert heard == [("a@h", "b@h", Ack("s", 1))]

    asyncio.run(play())


def test_a_local_link_refuses_as_a_remote_one_does(tmp_path: Path) -> None:
    """D12"""
    serving = StreamServer(Origin(tmp_path).store)

    async def play() -> None:
        for link in (LocalLink(serving, never, lambda _: False), LocalLink(serving, never)):
            with pytest.raises(PeerError):
                await link.pull("s" if link._answers("s") is False else "other", Lane.MAIN, 0, 0)
        with pytest.raises(PeerError):
            await link.definition("other")
        assert (await link.definition("s")).name == "s"

    asyncio.run(play())


def test_a_cut_ends_pulls_at_once_and_healing_lets_the_mirror_catch_up(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 5)
    cuts = Cuts()

    async def play() -> None:
        async with hosted(origin.store) as service, linked(service) as plain:
            link = CutLink(plain, cuts, "b")
            mirror = Mirror(tmp_path / "m" / "s", await link.definition("s"))
            for name in ("b", "s"):
                task = asyncio.ensure_future(mirror.follow(link, wait_s=9))
                await asyncio.sleep(0.2)
                cuts.cut(name)
                with pytest.raises(PeerError, match=f"{name} was cut off on purpose"):
                    await task
                with pytest.raises(PeerError, match=f"{name} was cut off on purpose"):
                    await mirror.follow(link)
                if name == "b":
                    with pytest.raises(PeerError):
                        await link.say("x@a", "y@b", Ack("s", 1))
                cuts.cut("unrelated")
                origin.fill(mirror.boundary_us // SECOND, mirror.boundary_us // SECOND + 3)
                cuts.heal(name)
                assert cuts.names == ("unrelated",)
                cuts.heal("unrelated")
            async with following(mirror, link) as told:
                await until(lambda: told and told[-1].boundary_us == 11 * SECOND)
            assert tuples_of(mirror.folder / "main", mirror.definition) == origin.tuples()

    asyncio.run(play())
