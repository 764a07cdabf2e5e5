"""`/metrics`, `/healthz` and `/readyz`: what monitors ask a host.

Rules:
1. Metrics name streams, nodes and partners: they need a token that may look, as `/v1/status` does.
2. Probes need none, and say nothing to a stranger but whether: 200, or 503 and how many nodes are not ready. Who may
   look is told which, and in what state.
3. `/healthz` asks whether restarting would help: it is answered by the loop that runs everything, and 503 if that has
   not got round to the replicas for a long time. `/readyz` asks whether readers get something: every node has started
   and serves, none has failed. One that gives tentative results is ready.
4. An application in one process may listen for the same on loopback (`LocalMetrics`), without tokens.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from holdfast.host.host import Host
from holdfast.host.measures import Measures
from holdfast.host.service import Door, Handler, anybody, may_look
from holdfast.inputs.http_server import HttpServer
from holdfast.inputs.network import Access, is_loopback
from holdfast.metrics.sheet import render

#: A loop that did not come round for so long hangs. It does so a hundred times a second; a disk may take some seconds.
_HANGS_S = 30.0


def metrics_routes(host: Host, measures: Measures) -> list[Door]:
    """For the host's service."""

    async def metrics(request: Request) -> Response:
        # Half a millisecond for each replica, which the loop has better use for.
        text, kind = await asyncio.to_thread(render, await measures.sheet(), request.headers.get("accept", ""))
        return Response(text, media_type=None, headers={"Content-Type": kind})

    async def healthz(request: Request) -> Response:
        silent_s = host.silent_s
        live = silent_s is None or silent_s < _HANGS_S
        return JSONResponse({"live": live}, 200 if live else 503)

    async def readyz(request: Request) -> Response:
        missing = host.not_ready()
        said = {"ready": not missing, "not_ready": missing if may_look(request) else len(missing)}
        return JSONResponse(said, 503 if missing else 200)

    return [
        Door("/metrics", "GET", metrics),
        Door("/healthz", "GET", healthz, anybody),
        Door("/readyz", "GET", readyz, anybody),
    ]


class LocalMetrics:
    """Rule 4. `port` is the real one, also when 0 was asked for."""

    def __init__(self, host: Host, measures: Measures, port: int) -> None:
        access, self._measures = Access(port=port), measures
        doors = metrics_routes(host, measures)
        routes = [Route(door.path, _here(door.handler), methods=[door.method]) for door in doors]
        self._server = HttpServer(Starlette(routes=routes), access, graceful_s=1)
        self._socket = access.listen()
        self.port: int = self._socket.getsockname()[1]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
        self._measures.close()


def _here(handler: Handler) -> Handler:
    """A page in somebody's browser can reach loopback, too: under another name, or from another origin."""

    async def guarded(request: Request) -> Response:
        if not is_loopback(request.url.hostname or "") or "origin" in request.headers:
            return PlainTextResponse("this is for programs of this machine\n", 403)
        request.scope["holdfast.looks"] = True
        return await handler(request)

    return guarded
