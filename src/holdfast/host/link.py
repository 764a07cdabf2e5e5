"""How to reach one host: pull its streams, speak to its replicas.

Rules:
1. Whatever goes wrong on the way is a `PeerError` with one sentence: to the protocol it is all the same, a peer that
   does not answer. Only `Mended` says that asking again is of no use.
2. Nothing waits for long: a connection that does not come about, or an answer that stays out, is given up.
3. A token goes to loopback or through TLS, never in the clear (X1). Answers are bounded before they are read (X4).
4. `CutLink` breaks a link on purpose, at once, pending pulls included: that is how failures are rehearsed.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from holdfast.host.parcel import Unpacking
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import (
    DEFINITION_BYTES_MAX,
    HEAD_BYTES_MAX,
    INPUTS_VERSION,
    PORTION_BYTES,
    PORTION_BYTES_MAX,
    PORTION_TYPE,
    AckOrder,
    Portion,
    Position,
    decode_ack,
    decode_definition,
    decode_last,
    decode_portion,
    decode_report,
    encode_ack,
    encode_message,
    encode_position,
)
from holdfast.inputs.network import address_parts, is_loopback
from holdfast.model.errors import HoldfastError, Mended, PeerError, UsageError
from holdfast.protocol.dpc.messages import Message, StreamReport
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.definition import Definition

#: A host on the same network connects within a millisecond or two; one that takes this long is as good as gone.
CONNECT_S = 1.0
#: How long an answer may take beyond what the question allowed for.
ANSWER_S = 2.0
#: How long an answer may take as a whole, however steadily it drips.
TRANSFER_S = 30.0
#: Pulls, each for as long as it waits, and messages share the connections to one host.
_CONNECTIONS_MAX = 128
_ERROR_BYTES_MAX = 4096
#: What a host answers (Gone) to whoever stands beyond a place where the boundary of a stream was taken back.
MENDED = 410
#: A parcel may hold gigabytes; whoever sends less than this many bytes in this time has gone.
PARCEL_CHUNK, PARCEL_CHUNK_S = 1 << 20, 30.0

T = TypeVar("T")
Deliver = Callable[[str, str, Message], None]


class _Refusal(msgspec.Struct):
    error: str


class Refused(PeerError):
    """The host is there and says no."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Link(ABC):
    """The way to one host."""

    @abstractmethod
    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        """What the stream has from `position` on; waits up to `wait_s` for news, then brings a heartbeat."""

    @abstractmethod
    async def say(self, sender: str, to: str, message: Message) -> None:
        """Hand a message to a replica, source or client of that host."""

    @abstractmethod
    async def definition(self, stream: str) -> Definition:
        """What the stream is declared to be."""

    async def report(self, stream: str) -> StreamReport:
        """How the host's replica of the stream does: a keepalive for readers who are no hosts (figure 4-10)."""
        raise PeerError(f"nobody says how {stream} does by this way")

    async def take_parcel(self, node: str, into: Unpacking) -> None:
        """Fetch where the replica of a node on that host stands; it runs on."""
        raise PeerError(f"nobody hands over where {node} stands by this way")

    async def close(self) -> None:  # noqa: B027 - most have nothing to close.
        """Let go of connections."""


def everybody(stream: str) -> bool:
    """Every stream is served."""
    return True


class LocalLink(Link):
    """The way to the host itself: same calls, no network."""

    def __init__(self, serving: StreamServer, deliver: Deliver, answers: Callable[[str], bool] = everybody) -> None:
        self._serving, self._deliver, self._answers = serving, deliver, answers

    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        if not self._answers(stream):
            raise PeerError(f"this host does not serve stream {stream} yet; ask again later")
        try:
            return await self._serving.wait(stream, lane, position, wait_s, bytes_max)
        except Mended:
            raise
        except HoldfastError as error:
            raise PeerError(f"this host cannot serve stream {stream}: {error}") from error

    async def say(self, sender: str, to: str, message: Message) -> None:
        # In a turn of its own, as from any other host: whoever speaks is never interrupted by the answer.
        asyncio.get_running_loop().call_soon(self._deliver, sender, to, message)

    async def definition(self, stream: str) -> Definition:
        try:
            return self._serving.store.open(stream).definition
        except HoldfastError as error:
            raise PeerError(f"this host cannot define stream {stream}: {error}") from error


Token = str | Callable[[], str]
"""A token, or where to look it up."""


class HttpLink(Link):
    """The way to a host with an address, such as `https://b.example:7411`."""

    def __init__(
        self, address: str, token: Token, *, ca: Path | None = None, name: str = "", mesh: bool = False
    ) -> None:
        parts = address_parts(address, "http", "https")
        if parts is None:
            raise UsageError(f"a host's address must look like https://name:port; got {address!r}")
        if parts.scheme == "http" and not mesh and not is_loopback(parts.hostname or ""):
            raise UsageError(f"the token must not travel in the clear: {address} needs https, or must be loopback")
        self.address = address.rstrip("/")
        self._token = token
        self._headers = {"Accept-Encoding": "identity"}
        if name:
            self._headers["Holdfast-Host"] = name
        self._trusted = trust(ca) if parts.scheme == "https" and ca is not None else True
        self._vouches = str(ca or "an authority that this machine trusts")
        self._session: aiohttp.ClientSession | None = None

    @property
    def _client(self) -> aiohttp.ClientSession:
        """Made by the first who asks: it belongs to the loop that it is made in."""
        if self._session is not None and self._session.closed:
            raise PeerError(f"the link to {self.address} was closed; the host has another address now, or is gone")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS_MAX, ssl=self._trusted, keepalive_timeout=20)
            self._session = aiohttp.ClientSession(
                self.address, headers=self._headers, connector=connector, trust_env=False, auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )  # fmt: skip
        return self._session

    @property
    def _shown(self) -> dict[str, str]:
        """Looked up for every request: a token may change while the link lives."""
        return {"Authorization": f"Bearer {self._token if isinstance(self._token, str) else self._token()}"}

    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        limits = {"wait_ms": str(round(wait_s * 1000)), "bytes_max": str(bytes_max)}
        known = {"spans": "1", "portions": str(INPUTS_VERSION)}  # Hosts of an earlier version know the former alone.
        asked, path = {**encode_position(position), **limits, **known}, f"{_path(stream)}/{lane.name.lower()}"
        data = await self._ask("GET", path, wait_s, PORTION_BYTES_MAX + HEAD_BYTES_MAX, params=asked, kind=PORTION_TYPE)
        portion = decode_portion(data)
        if (portion.stream, portion.lane) != (stream, lane):
            raise PeerError(f"{self.address} answered with {portion.stream} instead of {stream}; check its address")
        return portion

    async def say(self, sender: str, to: str, message: Message) -> None:
        content = encode_message(sender, to, message)
        await self._ask("POST", "/v1/messages", 0, _ERROR_BYTES_MAX, content=content)

    async def definition(self, stream: str) -> Definition:
        definition = decode_definition(await self._ask("GET", f"{_path(stream)}/definition", 0, DEFINITION_BYTES_MAX))
        if definition.name != stream:
            raise PeerError(f"{self.address} defined {definition.name} instead of {stream}; check its address")
        return definition

    async def take_parcel(self, node: str, into: Unpacking) -> None:
        await self._take_parcel(f"/v1/replicas/{quote(node, safe='')}/parcel", into)

    async def _take_parcel(self, path: str, into: Unpacking) -> None:
        loop, came = asyncio.get_running_loop(), 0
        steadily = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=PARCEL_CHUNK_S)
        try:
            async with (
                asyncio.timeout(PARCEL_CHUNK_S) as pace,
                self._client.get(path, headers=self._shown, timeout=steadily, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    why = _said(await answer.content.read(_ERROR_BYTES_MAX))
                    raise Refused(answer.status, f"{self.address} hands nothing over ({answer.status}): {why}")
                async for chunk in answer.content.iter_any():
                    left_s = (pace.when() or 0.0) - loop.time()
                    pace.reschedule(None)  # Our own disk may take its time.
                    await loop.run_in_executor(None, into.feed, chunk)
                    came += len(chunk)
                    whole, came = came >= PARCEL_CHUNK, came % PARCEL_CHUNK
                    pace.reschedule(loop.time() + (PARCEL_CHUNK_S if whole else left_s))
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise PeerError(f"{self.address} broke off while it handed over a parcel: {why}") from error

    async def report(self, stream: str) -> StreamReport:
        report = decode_report(await self._ask("GET", f"{_path(stream)}/report", 0, _ERROR_BYTES_MAX))
        if report.stream != stream:
            raise PeerError(f"{self.address} reported on {report.stream} instead of {stream}; check its address")
        return report

    async def last(self, stream: str, tuples: int) -> tuple[int, int]:
        """The bucket in which the last so many tuples begin, and how many of its tuples come before them."""
        asked = {"tuples": str(tuples)}
        return decode_last(await self._ask("GET", f"{_path(stream)}/last", 0, _ERROR_BYTES_MAX, params=asked))

    async def acknowledge(self, stream: str, reader: str, until_us: int, position: str | None = None) -> None:
        """The named reader needs nothing before `until_us` any more, and goes on at `position` if it resumes."""
        content = encode_ack(reader, until_us, position)
        await self._ask("POST", f"{_path(stream)}/acks", 0, _ERROR_BYTES_MAX, content=content)

    async def acknowledged(self, stream: str, reader: str) -> AckOrder | None:
        """What the named reader last acknowledged to this host; None if nothing."""
        asked = {"reader": reader}
        return decode_ack(await self._ask("GET", f"{_path(stream)}/acks", 0, _ERROR_BYTES_MAX, params=asked))

    async def _ask(
        self,
        method: str,
        path: str,
        wait_s: float,
        bytes_max: int,
        *,
        params: dict[str, str] | None = None,
        content: bytes | None = None,
        kind: str = "application/json",
    ) -> bytes:
        """The body of a good answer; every other outcome is a `PeerError`, but one (rule 1)."""
        timeout = aiohttp.ClientTimeout(wait_s + TRANSFER_S, connect=CONNECT_S, sock_read=wait_s + ANSWER_S)
        headers = {"Content-Type": "application/json", **self._shown} if content is not None else self._shown
        try:
            async with self._client.request(
                method, path, params=params, data=content, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                good = answer.status == 200
                body = await _bounded(answer, bytes_max if good else _ERROR_BYTES_MAX, self.address)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreached(error) from error
        if not good:
            why, code = _said(body), answer.status
            if code == MENDED:
                raise Mended(why)
            raise Refused(code, f"{self.address} refused {method} {path} with {code}: {why}")
        if answer.headers.get("content-type", "").partition(";")[0] != kind:
            raise PeerError(f"{self.address} must answer with {kind}; is it a Holdfast host?")
        return body

    def _unreached(self, error: Exception) -> PeerError:
        reason = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or reason
            return PeerError(
                f"{self.address} could not be reached safely: it must show a certificate for this address that "
                f"{self._vouches} vouches for, and does not ({why}); check both, and that it is the right host"
            )
        if isinstance(error, aiohttp.ClientSSLError):
            return PeerError(f"{self.address} could not be reached safely: it does not answer with TLS ({reason})")
        return PeerError(f"{self.address} could not be reached ({_reason(error)}); is the host up?")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}"


async def _bounded(answer: aiohttp.ClientResponse, bytes_max: int, address: str) -> bytes:
    """The raw body, given up as soon as it is too long, whatever its length claims to be."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise PeerError(f"{address} must not compress its answers; it did")
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        size += len(chunk)
        if size > bytes_max:
            raise PeerError(f"{address} may answer with {bytes_max} bytes at most; more came")
        parts.append(chunk)
    return b"".join(parts)


def trust(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificates in {ca} cannot be used to check hosts: {error}") from None


class Cuts:
    """Which hosts and streams are out of reach on purpose (`holdfast fail`, `holdfast heal`)."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._changed = asyncio.Event()

    def cut(self, name: str) -> None:
        """From now on nothing comes from, or goes to, this host or stream."""
        self._names.add(name)
        self._changed.set()
        self._changed = asyncio.Event()

    def heal(self, name: str) -> None:
        """It may be reached again. One that was not cut is fine."""
        self._names.discard(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._names))

    def check(self, *names: str) -> None:
        for name in names:
            if name in self._names:
                raise PeerError(f"{name} was cut off on purpose; heal it to go on")

    async def guard(self, work: Coroutine[Any, Any, T], *names: str) -> T:
        """Do the work unless one of these is cut, or until one is."""
        try:
            self.check(*names)
        except PeerError:
            work.close()
            raise
        task = asyncio.ensure_future(work)
        task.add_done_callback(_retrieved)
        change: asyncio.Future[Any] | None = None
        try:
            while not task.done():
                change = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                self.check(*names)
            return task.result()
        finally:
            task.cancel()
            if change is not None:
                change.cancel()


def _retrieved(task: asyncio.Future[Any]) -> None:
    """How work that was cut off ends interests nobody."""
    if not task.cancelled():
        task.exception()


class CutLink(Link):
    """A link that `Cuts` can break: for the host as a whole, or for single streams of it."""

    def __init__(self, link: Link, cuts: Cuts, host: str) -> None:
        self._link, self._cuts, self.host = link, cuts, host

    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        work = self._link.pull(stream, lane, position, wait_s, bytes_max)
        return await self._cuts.guard(work, self.host, stream)

    async def say(self, sender: str, to: str, message: Message) -> None:
        await self._cuts.guard(self._link.say(sender, to, message), self.host)

    async def definition(self, stream: str) -> Definition:
        return await self._cuts.guard(self._link.definition(stream), self.host, stream)

    async def report(self, stream: str) -> StreamReport:
        return await self._cuts.guard(self._link.report(stream), self.host, stream)

    async def take_parcel(self, node: str, into: Unpacking) -> None:
        await self._cuts.guard(self._link.take_parcel(node, into), self.host)

    async def close(self) -> None:
        await self._link.close()


def _reason(error: Exception) -> str:
    """Why there was no answer, in the words of the system where it has some."""
    if isinstance(error, aiohttp.ClientConnectorError) and (error.os_error.errno or 0) > 0:
        return os.strerror(error.os_error.errno or 0)
    return str(error) or type(error).__name__


def _said(body: bytes) -> str:
    """What a host says when it refuses; the text as it is if it is not a host's."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except msgspec.MsgspecError:
        return body.decode(errors="replace")
