"""The way to one partner: words of the load managers, parcels, and the streams of tasks that moved.

Rules:
1. Everything goes below /v1/partners/OUR-NAME of the partner's host, with the token that the two share.
2. Whatever goes wrong is a `PeerError` of one sentence; nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from holdfast.clock import monotonic_us
from holdfast.host.envelope import UNREADABLE
from holdfast.host.link import CONNECT_S, PARCEL_CHUNK, PARCEL_CHUNK_S, HttpLink, Link, Refused
from holdfast.host.parcel import PARCEL_TYPE, Unpacking
from holdfast.host.wire import (
    DEFINITION_BYTES_MAX,
    HEAD_BYTES_MAX,
    PORTION_BYTES,
    PORTION_BYTES_MAX,
    PORTION_TYPE,
    Portion,
    Position,
    decode_definition,
    decode_portion,
    encode_position,
)
from holdfast.inputs.token_file import TokenFile
from holdfast.load.contract_file import Partner
from holdfast.load.message_codec import encode_message
from holdfast.model.errors import PeerError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, StreamReport
from holdfast.protocol.dpc.messages import Message as ReplicaMessage
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.load.messages import Message
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk

_ANSWER_BYTES_MAX = 1 << 20
#: Whoever takes one makes each file durable on the way; it may take a while for a megabyte of small ones.
_TAKE_S = 120.0
_STEADILY = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=PARCEL_CHUNK_S)

T = TypeVar("T")


class GuestReport(msgspec.Struct, frozen=True):
    """What a partner says about a task of ours that it runs."""

    state: str
    boundary_us: int
    closed: bool = False


class Consent(msgspec.Struct, frozen=True):
    """The contracts between the two of us, as the partner has them."""

    contracts: tuple[str, ...]


_report = msgspec.json.Decoder(GuestReport)
_consent = msgspec.json.Decoder(Consent)


class PartnerLink(HttpLink):
    """One partner's host. `us` is our name as a participant."""

    def __init__(self, partner: Partner, us: str) -> None:
        partner.token()  # In its own words, if it cannot be used.
        super().__init__(partner.address, TokenFile(partner.token_file).current, ca=partner.ca)
        self.partner, self._us, self._token_file = partner.name, us, partner.token_file
        self._below = f"/v1/partners/{quote(us, safe='')}"

    async def tell(self, message: Message) -> None:
        """Say something to the partner's load manager."""
        content = encode_message(self._us, self.partner, message)
        await self._ask("POST", f"{self._below}/messages", 0, _ANSWER_BYTES_MAX, content=content)

    async def consent(self) -> tuple[str, ...]:
        """The ids of the contracts that the partner has with us."""
        try:
            body = await self._ask("GET", f"{self._below}/contracts", 0, _ANSWER_BYTES_MAX)
        except Refused as refusal:
            if refusal.status != 401:
                raise
            raise PeerError(
                f"{self.address} does not know us by our token; {self.partner} must name {self._us} as a partner and "
                f"have the same token as {self._token_file}"
            ) from None
        return self._read(_consent, body).contracts

    # Tasks of ours that run there -------------------------------------------------------------------------------

    async def guest(self, guest: str) -> GuestReport:
        """How a task of ours fares there."""
        return self._read(_report, await self._ask("GET", f"{self._below}/guests/{guest}", 0, _ANSWER_BYTES_MAX))

    async def output(self, guest: str, stream: str, position: Position, wait_s: float, bytes_max: int) -> Portion:
        """What it has produced."""
        return await self._portion(f"guests/{guest}/output/main", stream, Lane.MAIN, position, wait_s, bytes_max)

    async def send_parcel(self, guest: str, parcel: Path) -> None:
        """Bring a task there; returns when it is durable there."""
        path = f"{self._below}/guests/{guest}/parcel"
        headers = {"Content-Type": PARCEL_TYPE, **self._shown}
        try:
            # What aiohttp limits is how long an answer may take, and that begins when all is sent.
            async with (
                asyncio.timeout(_TAKE_S) as pace,
                self._client.post(path, data=_chunks(parcel, pace), headers=headers, timeout=_STEADILY) as answer,
            ):
                why = (await answer.content.read(500)).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PeerError(f"{self.address} broke off while it was sent a task: {_why(error)}") from error
        if answer.status != 200:
            raise PeerError(f"{self.address} did not take the task ({answer.status}): {why}")

    async def take_parcel(self, guest: str, into: Unpacking) -> None:
        """Fetch where a task of ours stands there."""
        await self._take_parcel(f"{self._below}/guests/{guest}/parcel", into)

    # Tasks of theirs that run here ------------------------------------------------------------------------------

    async def input(
        self, guest: str, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int
    ) -> Portion:
        """An input of a task of theirs."""
        path = f"inputs/{guest}/{quote(stream, safe='')}/{lane.name.lower()}"
        return await self._portion(path, stream, lane, position, wait_s, bytes_max)

    async def input_definition(self, guest: str, stream: str) -> Definition:
        path = f"{self._below}/inputs/{guest}/{quote(stream, safe='')}/definition"
        definition = decode_definition(await self._ask("GET", path, 0, DEFINITION_BYTES_MAX))
        if definition.name != stream:
            raise PeerError(f"{self.address} defined {definition.name} instead of {stream}")
        return definition

    async def _portion(
        self, path: str, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int
    ) -> Portion:
        asked = {**encode_position(position), "wait_ms": str(round(wait_s * 1000)), "bytes_max": str(bytes_max)}
        data = await self._ask("GET", f"{self._below}/{path}", wait_s, PORTION_BYTES_MAX + HEAD_BYTES_MAX,
                               params=asked, kind=PORTION_TYPE)  # fmt: skip
        portion = decode_portion(data)
        if (portion.stream, portion.lane) != (stream, lane):
            raise PeerError(f"{self.address} answered with {portion.stream} instead of {stream}")
        return portion

    def _read(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        try:
            return decoder.decode(body)
        except UNREADABLE as error:
            raise PeerError(f"{self.address} answers, but not as a partner does: {error}") from None


async def _chunks(path: Path, pace: asyncio.Timeout) -> AsyncIterator[bytes]:
    """Whoever asks for the next one has got rid of the last."""
    loop = asyncio.get_running_loop()
    with path.open("rb") as file:
        while chunk := await loop.run_in_executor(None, partial(file.read, PARCEL_CHUNK)):
            yield chunk
            if not pace.expired():
                pace.reschedule(loop.time() + _TAKE_S)


def write_parcel(path: Path, parts: Iterable[bytes], disk: Disk | None = None) -> None:
    """A parcel as a file, durable on return: its bytes, and its name in the folder."""
    disk = disk or Disk()
    temporary = path.with_name(f".{path.name}.tmp")
    disk.unlink(temporary)  # Of an earlier try that was cut short.
    fd, at = disk.create(temporary), 0
    try:
        for part in parts:
            at += disk.write(fd, temporary, at, [part])
        disk.sync(fd, temporary)
    finally:
        os.close(fd)
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


#: How often an owner that does not answer is tried again.
_PROBE_US = 500_000


class Relay(Link):
    """How a guest reaches its inputs: by way of its owner's host, which stands for all producers of a stream.

    The seeds let participants exchange streams through communicators (003 §7.4.8): the one producer of a guest's input
    is `stream@owner`. That it lives is proved by every pull; a keepalive needs no message of its own. What is relayed
    is main: a guest that misses an input longer than its delay goes on tentatively by itself.
    """

    def __init__(self, partner: PartnerLink, guest: str, heard: Callable[[str, ReplicaMessage], None]) -> None:
        self._partner, self._guest, self._heard = partner, guest, heard
        self._boundary_us: dict[str, int] = {}
        self._alive = False
        self._probed_us = 0
        self._probe: asyncio.Task[None] | None = None

    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        try:
            portion = await self._partner.input(self._guest, stream, lane, position, wait_s, bytes_max)
        except PeerError:
            self._alive = False
            raise
        self._alive = True
        self._boundary_us[stream] = max(portion.boundary_us, self._boundary_us.get(stream, BEGINNING_US))
        return portion

    async def definition(self, stream: str) -> Definition:
        return await self._partner.input_definition(self._guest, stream)

    async def say(self, sender: str, to: str, message: ReplicaMessage) -> None:
        self.hear(to, message)

    def hear(self, to: str, message: ReplicaMessage) -> None:
        """Keepalives are answered by what the pulls have seen."""
        if not isinstance(message, KeepaliveRequest):
            return
        stream = to.partition("@")[0]
        if self._alive and stream in self._boundary_us:
            report = StreamReport(stream, StreamState.STABLE, self._boundary_us[stream], False)
            asyncio.get_running_loop().call_soon(self._heard, to, KeepaliveReply((report,)))
        elif monotonic_us() - self._probed_us > _PROBE_US:
            self._probed_us = monotonic_us()
            self._probe = asyncio.ensure_future(self._ask(stream))

    async def _ask(self, stream: str) -> None:
        try:
            await self.pull(stream, Lane.MAIN, self._boundary_us.get(stream, BEGINNING_US), 0, 1)
        except PeerError:
            return

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
