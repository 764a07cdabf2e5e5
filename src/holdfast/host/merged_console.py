"""One console for all hosts of a deployment: `holdfast console` serves it where somebody sits.

Rules:
1. It follows every host as a page does, and makes one document of what they say; a host that does not answer is shown
   as down, with the reason, and its replicas with it.
2. Pictures come from a host that has the stream: the bytes are handed on as they are.
3. Whoever may act here acts on the hosts, with the operator's token; each is told the links that it has an end of.
4. What comes from a host is bounded before it is read (X4).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.clock import now_us
from holdfast.console.event_log import EventLog, Happened
from holdfast.console.feed import Feed, framed
from holdfast.console.merge_patch import patch_of, patched
from holdfast.host.console_routes import console_routes
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.link import trust
from holdfast.host.service import Door, Service, body_of
from holdfast.host.stream_server import StreamServer
from holdfast.inputs.credentials import Credential, Keyring, Role
from holdfast.inputs.network import Access
from holdfast.model.errors import PeerError, UnknownStream, UsageError
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: What came in the meantime is told together.
_TELL_S = 0.5
_RETRY_S = 1.0
#: A host says something every second; its looks may take a while on a busy machine.
_QUIET_S = 20.0
#: A host lets its readers go before it answers (`drain`).
_DRAIN_S = 120.0
#: The document of some ten thousand replicas (rule 4).
_EVENT_BYTES_MAX = 32 << 20
_ANSWER_BYTES_MAX = 4 << 20
_EMPTY: Mapping[str, Any] = {
    "app": "", "nodes": {}, "streams": {}, "live": {}, "replicas": {}, "cuts": [], "sources": {}, "sinks": {},
    "stores": {}, "deadlines": {}, "readers": {}, "loads": {},
}  # fmt: skip


class MergedConsole:
    """Follows the hosts of a deployment. `token` lets it look, `acting` act, if somebody may; both may change."""

    def __init__(self, deployment: Deployment, token: Callable[[], str], acting: Callable[[], str] | None) -> None:
        self._hosts = {spec.name: spec for spec in deployment.hosts}
        self._names = list(self._hosts)
        self._token, self._acting = token, acting
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._down: dict[str, tuple[str, int]] = dict.fromkeys(self._names, ("not asked yet", now_us() // 1000))
        self._last: dict[str, tuple[int, int]] = {}
        self._log, self._untold = EventLog(), list[Happened]()
        self._document: dict[str, Any] = self._merged()
        self.feed = Feed(lambda: ("whole", self.snapshot()))

    # Life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        following = [asyncio.ensure_future(self._follow(spec)) for spec in self._hosts.values()]
        try:
            while True:
                await asyncio.sleep(_TELL_S)
                self._tell()
        finally:
            self.feed.end()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            for session in self._sessions.values():
                await session.close()

    def _tell(self) -> None:
        before, self._document = self._document, self._merged()
        happened, self._untold = sorted(self._untold, key=lambda event: event.id), []

        def change() -> bytes:
            patch = patch_of(before, self._document)
            return msgspec.json.encode({**patch, "happened": happened} if happened else patch)

        self.feed.publish("patch", change)

    # Hosts ----------------------------------------------------------------------------------------------------------

    def _session(self, spec: HostSpec) -> aiohttp.ClientSession:
        if spec.name not in self._sessions:
            authority = spec.tls.authority if spec.tls else None
            connector = aiohttp.TCPConnector(limit=64, ssl=True if authority is None else trust(authority))
            self._sessions[spec.name] = aiohttp.ClientSession(
                spec.url, connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=_QUIET_S),
            )  # fmt: skip
        return self._sessions[spec.name]

    async def _follow(self, spec: HostSpec) -> None:
        """Rule 1."""
        while True:
            try:
                async for event, data in self._events(spec, "/v1/console/events"):
                    self._take(spec.name, event, msgspec.json.decode(data))
                why = "it has ended"
            except Exception as error:  # Whatever a host of another version says must not end the following of it.
                why = str(error) or type(error).__name__
            self._said.pop(spec.name, None)
            if spec.name not in self._down:
                log.warning("host %s does not answer: %s", spec.name, why)
            self._down[spec.name] = why, self._down.get(spec.name, ("", now_us() // 1000))[1]
            await asyncio.sleep(_RETRY_S)

    async def _events(self, spec: HostSpec, path: str) -> AsyncIterator[tuple[str, bytes]]:
        async for frame in _frames(self._raw(spec, path)):
            name, _, data = frame.partition(b"\n")
            if name.startswith(b"event: ") and data.startswith(b"data: "):
                yield name[7:].decode(), data[6:]

    async def _raw(self, spec: HostSpec, path: str) -> AsyncIterator[bytes]:
        headers = {"Authorization": f"Bearer {self._token()}"}
        async with self._session(spec).get(path, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise PeerError(f"host {spec.name!r} refused {path} with {answer.status}")
            async for chunk in answer.content.iter_any():
                yield chunk

    def _take(self, host: str, event: str, said: dict[str, Any]) -> None:
        if event == "whole":
            self._down.pop(host, None)
            self._hear(host, said.pop("events", []))
            self._said[host] = said
        elif event == "patch" and host in self._said:
            self._hear(host, said.pop("happened", []))
            self._said[host] = patched(self._said[host], said)

    def _hear(self, host: str, events: list[Any]) -> None:
        """Events that were not heard yet: a host that we ask again tells the old ones, too."""
        for event in msgspec.convert(events, list[Happened]):
            if (event.at_ms, event.id) > self._last.get(host, (0, 0)):
                self._last[host] = event.at_ms, event.id
                text = event.text if f"@{host}" in event.text else f"{host}: {event.text}"
                number = None if event.episode is None else self._numbered(host, event.episode)
                told = Happened(event.id, event.at_ms, event.kind, text, event.stream)
                self._untold.append(self._log.take_over(told, number))

    def _merged(self) -> dict[str, Any]:
        said = [self._said[name] for name in self._names if name in self._said]
        first = said[0] if said else _EMPTY
        merged: dict[str, Any] = {
            "host": f"{len(self._names)} hosts", "app": first["app"], "nodes": first["nodes"],
            "streams": first["streams"], "hosts": {name: spec.url for name, spec in self._hosts.items()},
            "at_ms": now_us() // 1000, "cuts": list(dict.fromkeys(cut for one in said for cut in one["cuts"])),
            "down": {name: why for name, (why, _) in self._down.items()},
        }  # fmt: skip
        for part in ("live", "replicas", "sources", "sinks", "stores", "deadlines", "readers", "loads"):
            merged[part] = {}
            for one in reversed(said):  # Of a stream with several producers, the first host's counts are shown.
                merged[part] |= one.get(part, {})  # A host of an earlier version may not tell of it.
        for stream, live in merged["live"].items():
            if spans := self._episodes(stream):
                merged["live"][stream] = {**live, "episodes": spans}
        for name, node in merged["nodes"].items():
            for replica in node["replicas"]:
                host = replica.rpartition("@")[2]
                if host in self._down:
                    why, since_ms = self._down[host]
                    merged["replicas"][replica] = {
                        "node": name, "state": "DOWN", "why": why, "since_ms": since_ms, "inputs": {},
                    }  # fmt: skip
        return merged

    def _episodes(self, stream: str) -> list[list[Any]]:
        """The failures of a stream as each host saw them, in order, under the numbers that `episode` takes."""
        spans = [
            [self._numbered(name, number), *span]
            for name, said in self._said.items()
            for number, *span in said["live"].get(stream, {}).get("episodes", ())
        ]
        return sorted(spans, key=lambda span: span[1])

    def _numbered(self, host: str, episode: int) -> int:
        return episode * len(self._names) + self._names.index(host)

    # What pages ask for ---------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything, as JSON."""
        return msgspec.json.encode({**self._document, "events": list(self._log.events)})

    def follow(self, you: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Server-sent events for one page."""
        return self.feed.follow(framed("you", msgspec.json.encode(you)))

    async def follow_stream(self, name: str) -> AsyncIterator[bytes]:
        """Rule 2."""
        host = next((host for host in self._names if name in self._said.get(host, _EMPTY)["live"]), None)
        if host is None:
            raise UnknownStream(f"no host in reach has stream {name}; `holdfast status` shows which are up")
        return self._raw(self._hosts[host], f"/v1/console/streams/{quote(name, safe='')}/events")

    async def episode(self, name: str, number: int) -> bytes | None:
        """Rule 2: the number tells the host as well."""
        own, at = divmod(number, len(self._names))
        body = bytearray()
        try:
            path = f"/v1/console/streams/{quote(name, safe='')}/episodes/{own}"
            async for chunk in self._raw(self._hosts[self._names[at]], path):
                body += chunk
                if len(body) > _ANSWER_BYTES_MAX:
                    raise PeerError(f"host {self._names[at]!r} answers with more than {_ANSWER_BYTES_MAX} bytes")
        except (aiohttp.ClientError, PeerError, TimeoutError):
            return None
        return bytes(body)

    # What may be done -----------------------------------------------------------------------------------------------

    async def fault(self, order: dict[str, Any]) -> dict[str, Any]:
        """Rule 3."""
        told = False
        for name, spec in self._hosts.items():
            mine = {verb: [link for link in links if name in self._ends(link)] for verb, links in order.items()}
            if any(mine.values()):
                await self._order(spec, "/v1/faults", mine)
                told = True
        if not told:
            raise UsageError(f"a link must be HOST-HOST or STREAM>HOST of {', '.join(self._names)}; got {order}")
        return {}

    def _ends(self, link: str) -> tuple[str, ...]:
        if ">" in link:
            return (link.rpartition(">")[2],)
        return next(((a, b) for a in self._names for b in self._names if a != b and link == f"{a}-{b}"), ())

    def doors(self) -> list[Door]:
        """Beside those of every console."""
        return [
            Door("/v1/move", "POST", self._move),
            Door("/v1/drain", "POST", self._drain),
            Door("/v1/streams/{name}/acks", "POST", self._acknowledge),
        ]

    async def _drain(self, request: Request) -> Response:
        order = msgspec.json.decode(await body_of(request))
        host = order.get("host") if isinstance(order, dict) else None
        if host not in self._hosts:
            raise UsageError(f"drain must name a host of {', '.join(self._names)}; got {host!r}")
        await self._order(self._hosts[host], "/v1/drain", {}, _DRAIN_S)
        return JSONResponse({})

    async def _acknowledge(self, request: Request) -> Response:
        """On every host that has the stream: each removes what its own readers have acknowledged."""
        name, order = str(request.path_params["name"]), msgspec.json.decode(await body_of(request))
        having = [host for host in self._names if name in self._said.get(host, _EMPTY)["live"]]
        if not having:
            raise UnknownStream(f"no host in reach has stream {name}; `holdfast status` shows which are up")
        for host in having:
            await self._order(self._hosts[host], f"/v1/streams/{quote(name, safe='')}/acks", order)
        return JSONResponse({})

    async def _move(self, request: Request) -> Response:
        order = msgspec.json.decode(await body_of(request))
        task = order.get("node") if isinstance(order, dict) else None
        for name, said in self._said.items():
            if any(task in (load.get("tasks") or {}) for load in said.get("loads", {}).values()):
                await self._order(self._hosts[name], "/v1/move", order)
                return JSONResponse({})
        raise UsageError(f"no host in reach shares the load of {task!r}; check the name")

    async def _order(self, spec: HostSpec, path: str, order: Any, wait_s: float = _QUIET_S) -> None:
        headers = {"Authorization": f"Bearer {self._acting() if self._acting else ''}"}
        limit = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=wait_s)
        try:
            async with self._session(spec).post(
                path, json=order, headers=headers, allow_redirects=False, timeout=limit
            ) as answer:
                body = await answer.content.read(64 << 10)
                if answer.status != 200:
                    raise PeerError(f"host {spec.name!r} refused: {body.decode(errors='replace')[:500]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PeerError(f"host {spec.name!r} does not answer: {error or type(error).__name__}") from None


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Server-sent events, one by one."""
    rest = b""
    async for chunk in chunks:
        rest += chunk
        if len(rest) > _EVENT_BYTES_MAX:
            raise PeerError(f"a host tells more than {_EVENT_BYTES_MAX} bytes at once; it cannot be one of ours")
        *whole, rest = rest.split(b"\n\n")
        for frame in whole:
            yield frame


async def serve(deployment: Deployment, port: int, ready: Callable[[str], None]) -> None:
    """Serve the console of a deployment on this machine until cancelled; `ready` is told where."""
    looks = deployment.looking_file()
    acting = deployment.token if looks.path == deployment.token_file else None
    # Whoever could not act from the command line cannot act from here.
    keys = deployment.keyring() if acting else Keyring([(Credential("viewer", Role.VIEWER), looks)])
    console, stopping = MergedConsole(deployment, looks.current, acting), asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="holdfast-console-") as nothing:
        service = Service(
            StreamServer(StreamStore(nothing)), Access(port=port, keys=keys), deliver=lambda *_: None, status=dict,
            fault=console.fault, stop=stopping.set, answers=lambda _: False,
            doors=(*console_routes(console), *console.doors()),
        )  # fmt: skip
        await service.start()
        following = asyncio.ensure_future(console.run())
        try:
            ready(f"{service.address}/console")
            stopped = asyncio.ensure_future(stopping.wait())
            await asyncio.wait({stopped, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()  # What ended it is said.
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await service.close()
