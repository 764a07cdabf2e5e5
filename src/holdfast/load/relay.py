"""How a guest reaches its inputs: through the host of its owner, which stands for all producers of a stream.

The seeds let participants exchange streams through communicators (003 §7.4.8): the one producer of a guest's input is
`stream@owner`. That it lives is proved by every pull; a keepalive needs no message of its own. What is relayed is main:
a guest that misses an input longer than its delay goes on tentatively by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.clock import monotonic_us
from holdfast.host.link import Link
from holdfast.host.wire import PORTION_BYTES, Portion, Position
from holdfast.load.partner import PartnerLink
from holdfast.model.errors import PeerError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, Message, StreamReport
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.definition import Definition

#: How often an owner that does not answer is tried again.
_PROBE_US = 500_000


class Relay(Link):
    """The inputs of one guest, by way of its owner."""

    def __init__(self, partner: PartnerLink, guest: str, heard: Callable[[str, Message], None]) -> None:
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

    async def say(self, sender: str, to: str, message: Message) -> None:
        self.hear(to, message)

    def hear(self, to: str, message: Message) -> None:
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
