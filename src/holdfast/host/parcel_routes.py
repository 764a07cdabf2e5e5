"""Hands over where a query stands while it runs on: to a replica that is rebuilt from its twin, and to the owner of a
guest that takes it back.

Rules:
1. A copy is made by a replica that serves its readers, in whatever state: what its stable query has committed is right,
   however late its inputs are. One that recovers is asked again (503); one that has nothing to give says so (409).
2. Of each replica there is one copy at a time on its way. It lies beside the replica and goes when its receiver does.
3. Twins are hosts of one owner: the token of a peer opens the door, no contract is needed. What is sent is the same,
   and so is the way in which it is checked (`holdfast.host.parcel`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.host.catalog import replica_name
from holdfast.host.controller import Controller, boundary_of
from holdfast.host.crash_points import reached
from holdfast.host.parcel import PARCEL_TYPE, pack
from holdfast.host.service import SPEAK, Door, Refused
from holdfast.model.errors import UnknownStream
from holdfast.model.time import BEGINNING_US

if TYPE_CHECKING:
    from holdfast.host.host import Host


class Handing:
    """Copies on their way (rule 2)."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    async def give(
        self, id: str, definition: str, controller: Controller, beside: Path, *, ids: bool = False
    ) -> Response:
        """Where the replica stands. `beside` is the folder that its copy lies in until it is sent. `ids`: to a twin."""
        if id in self._under_way:
            raise Refused(409, f"where {id} stands is just handed over by another request; ask again later")
        self._under_way.add(id)
        staging = beside / f".handing-{os.urandom(8).hex()}"
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._under_way.discard(id)
            shutil.rmtree(staging, ignore_errors=True)

        try:
            staging.mkdir()
            waiting = await loop.run_in_executor(None, controller.copy_to, staging / "checkpoint")
        except BaseException:
            ended()
            raise
        parts = pack(id, definition, controller.output.definition, waiting, staging / "checkpoint", ids=ids)

        async def send() -> AsyncIterator[bytes]:
            while (part := await loop.run_in_executor(None, next, parts, None)) is not None:
                yield part
            reached("handed")

        return _Sent(send(), ended)


class _Sent(StreamingResponse):
    """A parcel on its way; `ended` is called when it has left or its receiver has gone, even before the first byte."""

    def __init__(self, parts: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(parts, media_type=PARCEL_TYPE)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def parcel_routes(host: Host) -> list[Door]:
    """For twins of this host's replicas (rule 3)."""
    handing = Handing()

    async def parcel(request: Request) -> Response:
        name = str(request.path_params["node"])
        node = next((node for node in host.catalog.nodes_on(host.name) if node.name == name), None)
        if node is None:
            raise Refused(404, f"node {name!r} has no replica on this host; check the name, or ask another host")
        replica = replica_name(name, host.name)
        stand = host.controllers.get(replica)
        if stand is not None and not isinstance(stand, Controller):
            raise Refused(409, f"{replica} runs at another owner's; ask another replica")
        if stand is None or not stand.serves:
            begun = stand is None or stand.trouble is None
            raise Refused(503 if begun and _has_results(host, node.output) else 409, f"{replica} does not serve yet")
        if (why := stand.stays_because) is not None:
            raise Refused(409, f"{replica} cannot be copied: {why}; begin from the inputs")
        if stand.batches == 0 or stand.ended:
            raise Refused(409, f"{replica} has {'ended' if stand.ended else 'read nothing yet'}; nothing to go on with")
        return await handing.give(f"{name}:{host.name}", name, stand, host.home_of(name), ids=True)

    return [Door("/v1/replicas/{node}/parcel", "GET", parcel, SPEAK)]


def _has_results(host: Host, output: str) -> bool:
    """Whether a replica that does not serve has run before, so that it is worth waiting for."""
    try:
        return boundary_of(host.store.open(output)) > BEGINNING_US
    except UnknownStream:
        return False
