"""The way in for programs that are no host: the streams of a deployment, wherever they are produced.

    with holdfast.connect("netmon.yaml") as net:
        for row in net.subscribe("active_sources", tentative=True).rows():
            ...

Rules:
1. One thread with one event loop serves all subscribers of a connection. Nothing is written to the hosts, except the
   acknowledgements of subscribers with a name.
2. The application is not loaded: which hosts produce a stream is asked of them, so a client needs neither Spark nor the
   code of the nodes.
3. What was read and not taken yet lies in a temporary folder, which goes with its subscriber.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from holdfast.clock import monotonic_us
from holdfast.host.client import Client, Wish, trouble_of
from holdfast.host.client_subscriber import ClientSubscriber
from holdfast.host.link import HttpLink, Refused, Token
from holdfast.model.errors import PeerError, UnknownStream, UsageError
from holdfast.model.names import check_name
from holdfast.model.time import BEGINNING_US, duration_us, instant_us
from holdfast.stream.acks import Acknowledged, check_subscriber
from holdfast.stream.definition import Definition
from holdfast.stream.position import parse_position
from holdfast.stream.subscriber import Start, goal_of, resumed

#: How often hosts that do not answer are asked again for what a stream is.
_ASK_S = 0.25
#: How long all hosts have to say which columns a stream has, where one that has heard of more counts.
_ALL_ANSWER_S = 1.0

T = TypeVar("T")
#: By name: address, authority, and whether TLS is left to a mesh.
Addresses = Mapping[str, tuple[str, Path | None, bool]]
Where = str | os.PathLike[str] | Mapping[str, str] | Sequence[str]


class Connection:
    """Streams of several hosts. Get one from `holdfast.connect`."""

    def __init__(self, addresses: Addresses, token: Token) -> None:
        if not addresses:
            raise UsageError("a connection needs at least one host; got none; name their addresses")
        requests = logging.getLogger("httpx")
        if requests.level == logging.NOTSET:
            requests.setLevel(logging.WARNING)  # It would tell of every question, ten times a second.
        self._subscribers: list[ClientSubscriber] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()
        try:
            self._links = self._do(_link_all(addresses, token))
        except BaseException:
            self._stop()
            raise

    def subscribe(
        self,
        stream: str,
        *,
        start: Start = "beginning",
        bucket: int | None = None,
        end: Start | None = None,
        tentative: bool = False,
        boundaries: bool = False,
        name: str | None = None,
        after: str | None = None,
        resume: bool = False,
        worth: bool = False,
        gaps: Literal["refuse", "pass"] = "refuse",
        timeout: str | int | float = "10s",
        all_columns: bool = False,
    ) -> ClientSubscriber:
        """Read a stream from any point, from whichever of its producers is best; see `Subscriber` for the options.

        `gaps` says what to do where retention has removed what is asked for. `timeout` is how long to look for a host
        that knows the stream; once there is one, its going away is not an error. `resume` goes on behind the furthest
        that any host in reach was told: what was acknowledged a moment before an end may come again.
        """
        if gaps not in ("refuse", "pass"):
            raise UsageError(f"gaps must be 'refuse' or 'pass'; got {gaps!r}")
        if name is not None:
            check_subscriber(name)
        definition = self.definition(stream, timeout=timeout, all_columns=all_columns)
        if resume and after is None:
            after = self._do(self._acknowledged(definition, name, duration_us(timeout)))
        position = None if after is None else parse_position(after, stream, definition.bucket_us)
        start_us = _start_us(start, bucket, definition) if position is None else position.until_us
        goal = None if position is None else goal_of(position, definition.bucket_us)
        mends = None if position is None else position.mends
        wish = Wish(start_us, tentative, name, gaps == "pass", goal=goal, mends=mends)
        end_us = None if end is None else instant_us(end)
        subscriber = ClientSubscriber(definition, end_us=end_us, boundaries=boundaries, name=name, after=position,
                                      worth=worth, all_columns=all_columns)  # fmt: skip
        self._do(self._follow(subscriber, definition, wish))
        self._subscribers.append(subscriber)
        return subscriber

    def definition(
        self, stream: str, *, timeout: str | int | float = "10s", all_columns: bool = False
    ) -> Definition:  # fmt: skip
        """What a stream is, as the first host says that knows it; with `all_columns` as the one that knows most of
        them: replicas get a new column one after another."""
        found = self._do(self._widest(check_name(stream))) if all_columns else None
        return found or self._do(self._define(check_name(stream), duration_us(timeout)))

    def last(self, stream: str, tuples: int) -> tuple[int, int]:
        """The bucket in which the last so many stable tuples begin, and how many of its tuples come before them."""
        return self._do(self._last(stream, tuples))

    async def _define(self, stream: str, wait_us: int) -> Definition:
        """What the stream is, as the first host says that knows it."""
        until = monotonic_us() + wait_us
        while True:
            said: dict[str, PeerError] = {}
            for host, link in self._links.items():
                try:
                    return await link.definition(stream)
                except PeerError as error:
                    said[host] = error
            if all(isinstance(error, Refused) and error.status == 404 for error in said.values()):
                raise UnknownStream(f"no host produces stream {stream!r}; asked {', '.join(said)}; check the name")
            refused = next((e for e in said.values() if isinstance(e, Refused) and e.status in (401, 403)), None)
            if refused is not None:
                raise UsageError(
                    f"the token must be one of the hosts'; {refused}; use the token they were started with"
                )
            if monotonic_us() > until:
                raise PeerError(
                    f"nobody could say what stream {stream!r} is within {wait_us / 1e6:g} s: "
                    f"{'; '.join(str(error) for error in said.values())}"
                )
            await asyncio.sleep(_ASK_S)

    async def _widest(self, stream: str) -> Definition | None:
        asked = [asyncio.ensure_future(link.definition(stream)) for link in self._links.values()]
        answered, silent = await asyncio.wait(asked, timeout=_ALL_ANSWER_S)
        for one in silent:
            one.cancel()
        known = [one.result() for one in answered if one.exception() is None]
        return max(known, key=lambda definition: len(definition.schema), default=None)

    async def _acknowledged(self, definition: Definition, name: str | None, wait_us: int) -> str | None:
        """The furthest that a reader of this name acknowledged to anybody in reach."""
        until, stream = monotonic_us() + wait_us, definition.name
        while True:
            said: dict[str, PeerError] = {}
            known = [resumed(definition, name, None)]
            for host, link in self._links.items():
                try:
                    order = await link.acknowledged(stream, name or "")
                    if order is not None:
                        ack = Acknowledged(until_us=order.until_us, position=order.position)
                        known.append(resumed(definition, name, ack))
                except PeerError as error:
                    said[host] = error
            if len(said) < len(self._links):
                # Of those that are equally far, one that holds tentative tuples: to take back too much is harmless.
                found = [text for text in known if text is not None]
                return max(found, key=lambda text: parse_position(text, stream, definition.bucket_us), default=None)
            refused = next((e for e in said.values() if isinstance(e, Refused) and e.status in (400, 401, 403)), None)
            if refused is not None:
                raise UsageError(f"a subscriber must be allowed to resume under its name; {refused}")
            if monotonic_us() > until:
                raise PeerError(
                    f"nobody could say where {name!r} stands in stream {stream!r} within {wait_us / 1e6:g} s: "
                    f"{'; '.join(str(error) for error in said.values())}"
                )
            await asyncio.sleep(_ASK_S)

    async def _last(self, stream: str, tuples: int) -> tuple[int, int]:
        """Asked of those who serve it, so that a replica that recovers does not answer for the others."""
        said: dict[str, str] = {}
        for serving in (True, False):
            for host, link in self._links.items():
                try:
                    if serving:
                        await link.report(stream)
                    return await link.last(stream, tuples)
                except PeerError as error:
                    said[host] = str(error)
        raise PeerError(f"nobody could say where stream {stream!r} ends: {'; '.join(said.values())}")

    async def _follow(self, subscriber: ClientSubscriber, definition: Definition, wish: Wish) -> None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-client-"))
        client = Client(definition, self._links, folder, wish, subscriber.told, subscriber.behind)

        async def run() -> None:
            try:
                await client.run()
            except Exception as error:
                subscriber.failed(trouble_of(error))

        task = asyncio.ensure_future(run())

        def let_go() -> None:
            if not self._loop.is_closed():
                self._do(_ended(task))
            shutil.rmtree(folder, ignore_errors=True)

        subscriber.attach(client, let_go)

    def close(self) -> None:
        """End all subscribers and let go of the connections."""
        if self._loop.is_closed():
            return
        for subscriber in self._subscribers:
            subscriber.close()
        self._subscribers = []
        for link in self._links.values():
            self._do(link.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise UsageError("the connection is closed; make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _link_all(addresses: Addresses, token: Token) -> dict[str, HttpLink]:
    return {host: HttpLink(address, token, ca=ca, mesh=mesh) for host, (address, ca, mesh) in addresses.items()}


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _start_us(start: Start, bucket: int | None, definition: Definition) -> int | None:
    if bucket is not None:
        return max(bucket * definition.bucket_us, BEGINNING_US)
    if start == "beginning":
        return BEGINNING_US
    if start == "live":
        return None
    try:
        return instant_us(start)
    except UsageError:
        raise UsageError(
            f"start must be 'beginning', 'live', or a time such as '2026-03-01T12:00'; got {start!r}"
        ) from None


def connect(where: Where, *, token: str | None = None, ca: str | os.PathLike[str] | None = None) -> Connection:
    """Reach the hosts of a deployment file, or of addresses such as "https://b.example:7401", by name or in a row."""
    if isinstance(where, str) and where.startswith(("http://", "https://")):
        where = [where]
    if isinstance(where, (str, os.PathLike)):
        from holdfast.host.deployment import load_deployment

        deployment = load_deployment(where)
        addresses = {h.name: (h.url, h.tls.authority if h.tls else None, h.mesh) for h in deployment.hosts}
        return Connection(addresses, deployment.looking_file().current if token is None else token)
    if token is None:
        raise UsageError("hosts ask for a token; give token=, or name the deployment file")
    named = where if isinstance(where, Mapping) else {address: address for address in where}
    authority = None if ca is None else Path(ca)
    return Connection({name: (address, authority, False) for name, address in named.items()}, token)
