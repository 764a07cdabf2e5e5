"""The console as a host serves it: the page for anybody, what it shows for who may look.

    GET /console, /console/FILE                         the page, without a token
    GET /v1/console                                     everything, as JSON
    GET /v1/console/events                              the same, and then what changes, as server-sent events
    GET /v1/console/streams/NAME/events                 the picture of one stream
    GET /v1/console/streams/NAME/episodes/NUMBER        a failure of the past

What a page may do beside looking it does by the verbs that every operator has (`service`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from holdfast.console.files import HEADERS, page_files
from holdfast.console.live import LiveConsole, Status
from holdfast.host.catalog import Catalog
from holdfast.host.service import Door, Refused, anybody
from holdfast.inputs.credentials import Credential
from holdfast.stream.store import StreamStore

_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def live_console(host: str, catalog: Catalog, status: Status, store: StreamStore) -> LiveConsole:
    """The console of one host."""
    return LiveConsole(facts_of(host, catalog), status, store, recorded_on(host, catalog))


def recorded_on(host: str, catalog: Catalog) -> list[str]:
    """The streams that lie on a host."""
    return [*(node.output for node in catalog.nodes_on(host)), *catalog.sources_on(host)]


def facts_of(host: str, catalog: Catalog) -> dict[str, Any]:
    """Whatever is so as long as the host runs: who produces and reads which stream, and where."""
    diagram, sets = catalog.diagram, catalog.placement.replica_sets
    streams: dict[str, dict[str, Any]] = {
        stream: {"home": ", ".join(catalog.placement.homes[stream]), "readers": []} for stream in diagram.sources
    }
    for node in diagram.nodes:
        streams[node.output] = {"producer": node.name, "readers": []}
    for node in diagram.nodes:
        for stream in node.inputs:
            streams[stream]["readers"].append(node.name)
    nodes = {
        node.name: {
            "inputs": node.inputs, "output": node.output, "max_delay_ms": node.max_delay_us // 1000,
            "blocking": node.blocking, "during_failure": node.during_failure.value,
            "during_stabilisation": node.during_stabilisation.value, "stabilise": node.stabilise.value,
            "replicas": catalog.replicas_of(node.name), "hosts": sets[node.name],
        }
        for node in diagram.nodes
    }  # fmt: skip
    addresses = {} if catalog.deployment is None else {spec.name: spec.url for spec in catalog.deployment.hosts}
    return {"host": host, "app": diagram.app, "hosts": {name: addresses.get(name, "") for name in catalog.hosts},
            "nodes": nodes, "streams": streams}  # fmt: skip


class Console(Protocol):
    """What the doors ask: the console of one host, or of all hosts of a deployment."""

    def snapshot(self) -> bytes:
        """Everything, as JSON."""

    def follow(self, you: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Server-sent events for one page; `you` is who asks."""

    async def follow_stream(self, name: str) -> AsyncIterator[bytes]:
        """The same for the picture of one stream; `UnknownStream` if it is not to be had."""

    async def episode(self, name: str, number: int) -> bytes | None:
        """A failure of the past; None if it is not kept any more."""


def console_routes(console: Console) -> Sequence[Door]:
    """All of them."""
    at = _Doors(console)
    return [
        Door("/console", "GET", at.page, anybody),
        Door("/console/", "GET", at.page, anybody),
        Door("/console/{file}", "GET", at.file, anybody),
        Door("/v1/console", "GET", at.snapshot),
        Door("/v1/console/events", "GET", at.events),
        Door("/v1/console/streams/{name}/events", "GET", at.stream_events),
        Door("/v1/console/streams/{name}/episodes/{number:int}", "GET", at.episode),
    ]


class _Doors:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def page(self, request: Request) -> Response:
        if request.url.path.endswith("/"):
            return RedirectResponse("/console", 308)
        return _file("index.html", request)

    async def file(self, request: Request) -> Response:
        return _file(str(request.path_params["file"]), request)

    async def snapshot(self, request: Request) -> Response:
        return Response(self._console.snapshot(), media_type="application/json", headers=_NO_STORE)

    async def events(self, request: Request) -> Response:
        credential: Credential = request.scope["holdfast.credential"]
        return _stream(self._console.follow({"name": credential.name, "role": credential.role.value}))

    async def stream_events(self, request: Request) -> Response:
        return _stream(await self._console.follow_stream(str(request.path_params["name"])))

    async def episode(self, request: Request) -> Response:
        name, number = str(request.path_params["name"]), int(request.path_params["number"])
        found = await self._console.episode(name, number)
        if found is None:
            raise Refused(404, f"failure {number} of stream {name} is not kept any more; look at a later one")
        return Response(found, media_type="application/json", headers=_NO_STORE)


def _stream(events: AsyncIterator[bytes]) -> Response:
    # The last one is for proxies that would gather the answer before they hand it on.
    headers = {**_NO_STORE, "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _file(name: str, request: Request) -> Response:
    found = page_files().get(name)
    if found is None:
        raise Refused(404, "the console has no such file; open /console")
    headers = {**HEADERS, "ETag": found.tag}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=f"{found.type}; charset=utf-8", headers=headers)
