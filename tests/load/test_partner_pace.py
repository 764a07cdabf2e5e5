"""A partner that stands still in the middle of a parcel is given up; one that only takes its time is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import holdfast.host.link as links
import holdfast.load.partner as partners
from holdfast.host.parcel import Unpacking
from holdfast.load.contract_file import Partner
from holdfast.load.partner import PartnerLink
from holdfast.model.errors import PeerError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
LONG = 64 << 20


@contextlib.asynccontextmanager
async def link_to(folder: Path, serve: Serve) -> AsyncIterator[PartnerLink]:
    """A partner that does what `serve` does, and nothing of its own."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    token = folder / "pair.token"
    token.touch(mode=0o600)
    token.write_text("t" * 40)
    link = PartnerLink(Partner("ben", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token), "anna")
    try:
        yield link
    finally:
        await link.close()
        server.close()


def parcel(folder: Path) -> Path:
    path = folder / "parcel"
    with path.open("wb") as file:
        file.truncate(LONG)
    return path


class Taken(Unpacking):
    """Counts what came."""

    came = 0

    def feed(self, chunk: bytes) -> None:
        self.came += len(chunk)


def test_a_partner_that_takes_nothing_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "_TAKE_S", 0.3)

    async def stopped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    async def run() -> None:
        async with link_to(tmp_path, stopped) as link:
            with pytest.raises(PeerError, match="broke off while it was sent a task"):
                await asyncio.wait_for(link.send_parcel("anna.1.0", parcel(tmp_path)), 15)

    asyncio.run(run())


def test_a_partner_that_takes_its_time_with_every_chunk_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "_TAKE_S", 2.0)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came = 0
        while came < LONG:
            came += len(await reader.read(1 << 20))
            await asyncio.sleep(0.012)
        writer.write(OK % 2 + b"{}")
        await writer.drain()

    async def run() -> None:
        async with link_to(tmp_path, slow) as link:
            await link.send_parcel("anna.1.0", parcel(tmp_path))

    asyncio.run(run())


def test_a_partner_that_only_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PARCEL_CHUNK_S", 0.3)

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK % LONG)
        for _ in range(2000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with link_to(tmp_path, drips) as link:
            with pytest.raises(PeerError, match="broke off while it handed over a parcel"):
                await asyncio.wait_for(link.take_parcel("anna.1.0", Taken(tmp_path)), 15)

    asyncio.run(run())


def test_a_large_parcel_may_take_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PARCEL_CHUNK_S", 2.0)

    async def steady(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK % (16 << 20))
        for _ in range(16):
            writer.write(bytes(1 << 20))
            await writer.drain()
            await asyncio.sleep(0.2)

    async def run() -> None:
        async with link_to(tmp_path, steady) as link:
            into = Taken(tmp_path)
            await link.take_parcel("anna.1.0", into)
            assert into.came == 16 << 20

    asyncio.run(run())
