"""HTTP connections that say what they want within a bounded time.

A connection that never sends a request costs nothing but its place, and places are bounded: without a deadline, whoever
can reach the port could take all of them, token or not. The server itself bounds only the time between two requests.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: From the first moment of a connection, or the first byte of a later request, to the end of the request's head.
HEAD_S_MAX = 10.0


class ImpatientProtocol(H11Protocol):
    """The server's own protocol with a deadline for heads."""

    head_s_max = HEAD_S_MAX
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._have_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_s_max, self.transport.close)

    def _have_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
