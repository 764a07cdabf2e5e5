"""HTTP connections that are counted when they are accepted and say what they want within a bounded time.

The server that we use counts a connection when its TLS handshake is over, answers 503 to everybody when there are too
many, and bounds only the time between two requests. Whoever can reach the port could take all places, token or not.

Rules (X4, X6):
1. Each phase has a deadline as a whole, so that a byte now and then keeps nothing alive: the handshake, the head of a
   request, its body, and an answer that nobody takes. Whoever takes larger bodies in says so (`give_body`).
2. Who may hold how many places is said in `places`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO

import h11
import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.inputs.network import Access
from holdfast.inputs.places import Place, Places

#: From the first moment of a connection, or the first byte of a later request, to the end of the request's head; the
#: handshake before it has as long again.
HEAD_S_MAX = 10.0
#: Of the head of a request, as long as it has not come whole.
HEAD_BYTES_MAX = 16 << 10
#: From the end of the head to the end of the body: 16 MB over a slow line.
BODY_S_MAX = 30.0
#: How long an answer may lie in the buffers without any of it being taken.
ANSWER_S_MAX = 30.0
_SHUTDOWN_S = 2.0
#: When the process has no file numbers left, accepting is tried again after this long.
_PAUSE_S = 0.1


class _Span:
    """Stands for bytes that go another way, where they are only counted."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class ImpatientProtocol(H11Protocol):
    """The server's own protocol with deadlines (rule 1)."""

    head_s_max, body_s_max, answer_s_max = HEAD_S_MAX, BODY_S_MAX, ANSWER_S_MAX

    def __init__(self, place: Place, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place = place
        self.app_state = {"connection": self}
        self._phase: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.place.end = partial(self.loop.call_soon_threadsafe, transport.abort)
        self._enter(h11.IDLE, self.head_s_max)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            self._follow()

    def _follow(self) -> None:
        """Which phase the client is in now; each has its time from when it began."""
        state = self.conn.their_state
        if state is h11.IDLE:
            self._enter(state, self.head_s_max)
        elif state is h11.SEND_BODY:
            self._enter(state, self.body_s_max)
        else:
            self._enter(state, None)

    def _enter(self, phase: object, within_s: float | None) -> None:
        if phase is self._phase:
            return
        self._phase = phase
        self._set(within_s)

    def _set(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self.transport.abort)

    def give_body(self, within_s: float | None) -> None:
        """The body that is coming may take so much longer from now on; None: whoever takes it looks after that."""
        if self._phase is h11.SEND_BODY:
            self._set(within_s)

    async def send_range(self, file: BinaryIO, begin: int, length: int) -> None:
        """Send a part of a file as a part of the body that is being answered. Without TLS the bytes never come here:
        the kernel takes them from the file. Whoever takes none of them in time is gone (rule 1)."""
        self.conn.send_with_data_passthrough(h11.Data(data=_Span(length)))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(self.answer_s_max):
                sent = await self.loop.sendfile(self.transport, file, begin, length, fallback=True)
        except (TimeoutError, OSError, RuntimeError):  # The last one: the connection is closing.
            sent = -1
        if sent != length:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.answer_s_max, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unstall()

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._set(None)
        self._unstall()
        self.place.leave()
        super().connection_lost(exc)


def connection_of(request: Request) -> ImpatientProtocol | None:
    """The connection that a request came by; None where somebody else's server runs the application."""
    found = request.scope.get("state", {}).get("connection")
    return found if isinstance(found, ImpatientProtocol) else None


def make_known(request: Request, token: str, *, kept: bool = False) -> None:
    """Rule 2: the token of the request was compared; `Crowded` if it holds all places that it may."""
    connection = connection_of(request)
    if connection is not None:
        connection.place.known(token, kept=kept)


class _Reception:
    """Accepts on one socket; what the server expects of one of its own."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self._server, self._socket = server, sock
        self._places = Places()
        self._greeting: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            place = self._places.enter(str(address[0]), _nothing)
            task = loop.create_task(self._greet(sock, place))
            place.end = partial(loop.call_soon_threadsafe, task.cancel)
            self._greeting.add(task)
            task.add_done_callback(partial(self._greeted, sock, place))

    async def _greet(self, sock: socket.socket, place: Place) -> None:
        loop, tls, within_s = asyncio.get_running_loop(), self._server.tls, ImpatientProtocol.head_s_max
        bounds = {"ssl_handshake_timeout": within_s, "ssl_shutdown_timeout": _SHUTDOWN_S} if tls else {}
        await loop.connect_accepted_socket(lambda: self._server.protocol(place, loop), sock, ssl=tls, **bounds)

    def _greeted(self, sock: socket.socket, place: Place, task: asyncio.Task[None]) -> None:
        self._greeting.discard(task)
        if task.cancelled() or task.exception() is not None:  # A handshake that failed is no news.
            place.leave()
            sock.close()

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting
        await asyncio.gather(*self._greeting, return_exceptions=True)


def _nothing() -> None:
    """Nothing to end yet."""


class HttpServer(uvicorn.Server):
    """Runs an application on the socket of an `Access`. Signals belong to the program that it is part of."""

    def __init__(self, app: Any, access: Access, *, graceful_s: int, head_bytes_max: int = HEAD_BYTES_MAX) -> None:
        self.tls = access.tls()
        super().__init__(uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http=ImpatientProtocol,
            timeout_keep_alive=30, timeout_graceful_shutdown=graceful_s, server_header=False, date_header=False,
            h11_max_incomplete_event_size=head_bytes_max,
        ))  # fmt: skip

    def protocol(self, place: Place, loop: asyncio.AbstractEventLoop) -> ImpatientProtocol:
        return ImpatientProtocol(place, self.config, self.server_state, {}, loop)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        self.servers = [_Reception(self, sock) for sock in sockets]  # type: ignore[misc]
        self.started = True

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
