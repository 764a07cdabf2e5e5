"""Empties a host so that it can be taken down: `holdfast drain FILE HOST`. Readers are never without news.

    1. checked   every node that runs here has a twin elsewhere that serves the stable stream
    2. leaving   replicas say that their streams are in FAILURE: readers go to a twin (003 table 4.3) and can still read
                 here until they have
    3. left      nobody has pulled from them for a while, or has had long enough to go
    4. stopped   their queries have stopped; what they committed is where they go on when the host is to run them again

Rules:
1. A node without such a twin stays, and so do all others: the sentence names it. Its file can be edited to run it on
   another host as well; `holdfast up` rebuilds it there from this one.
2. What only lies here cannot leave: sources, and sinks of the application, run on until the host is stopped.
3. Drained is what the host is now, not what it is to be: its next start, and `holdfast up`, run everything again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.diagram import NodeSpec
from holdfast.host.catalog import replica_name
from holdfast.host.controller import Controller
from holdfast.host.host import Host
from holdfast.host.service import Door, Refused
from holdfast.model.errors import PeerError
from holdfast.protocol.dpc.states import StreamState

log = logging.getLogger(__name__)

#: Whoever reads pulls every two seconds at least (`mirror.WAIT_S`): one who has not for so long reads elsewhere.
_QUIET_S = 3.0
#: A reader with no other way, such as one that was cut off from the twin, is not waited for longer than this.
_LEAVE_S = 30.0
_LOOK_S = 0.1


class Drain:
    """One host on its way out."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = asyncio.Lock()

    def doors(self) -> list[Door]:
        return [Door("/v1/drain", "POST", self._drain)]

    async def _drain(self, request: Request) -> Response:
        async with self._lock:
            return JSONResponse(await self.run())

    async def run(self) -> dict[str, Any]:
        """What has left, and what stays until the host is stopped."""
        host = self._host
        nodes = [node for node in host.catalog.nodes_on(host.name) if node.name not in host.drained]
        for node in nodes:
            await self._check(node)
        leaving = {node.name: host.controllers.get(replica_name(node.name, host.name)) for node in nodes}
        for stand in leaving.values():
            if isinstance(stand, Controller):
                stand.leave()
        await asyncio.gather(*(self._left(node.output) for node in nodes))
        for node in nodes:
            await host.drain(node.name)
        log.info("host %s was drained: %s", host.name, ", ".join(leaving) or "no node ran here")
        return {
            "host": host.name, "stopped": [replica_name(node.name, host.name) for node in nodes],
            "sources": list(host.catalog.sources_on(host.name)),
        }  # fmt: skip

    async def _check(self, node: NodeSpec) -> None:
        """Rule 1."""
        here = replica_name(node.name, self._host.name)
        twins = [replica for replica in self._host.catalog.replicas_of(node.name) if replica != here]
        told = []
        for twin in twins:
            try:
                report = await self._host.link_to(twin).report(node.output)
            except PeerError as error:
                told.append(f"{twin}: {error}")
                continue
            if report.state is StreamState.STABLE:
                return
            told.append(f"{twin} is in {report.state.name}")
        raise Refused(
            409,
            f"{here} must have a twin that serves before this host can be drained; "
            f"{'; '.join(told) or 'it is the only replica'}; add a host to its list under nodes, run `holdfast up` "
            f"and drain again",
        )

    async def _left(self, stream: str) -> None:
        """Step 3."""
        loop, serving = asyncio.get_running_loop(), self._host.serving
        end = loop.time() + _LEAVE_S
        while loop.time() < end and serving.idle_s(stream) < _QUIET_S:
            await asyncio.sleep(_LOOK_S)
