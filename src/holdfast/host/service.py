"""The door of a host: HTTP in the host's own event loop.

Rules:
1. Every request carries a token, but for what says nothing about the host (`anybody`: probes, and the files of the
   console's page). Its role says what may be asked (`credentials`): operators everything, viewers whatever only looks,
   readers the streams that are named for them, peers streams and words of replicas (X1). A stream that one may not see
   is answered like one that does not exist. Who is refused, and who changes something, is told to the audit log.
2. Loopback by default; any other address needs TLS as well. A page in somebody's browser can reach loopback too, so a
   foreign Origin or Host is refused.
3. A body, an answer, a wait and a request have bounds (X4); connections as `places` says, which keeps room for
   operators and peers whatever others do (X6).
4. A replica that recovers answers nobody (D12): pulling its stream, or asking how it does, is 503. What a stream is may
   always be asked.
5. 200 with JSON or a portion; else 400 unreadable, 401 no token, 403 not allowed, 404 no such stream, 413 too large,
   429 too many, 503 not now; each with `{"error": "one sentence"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.clock import now_us
from holdfast.host.link import MENDED, Cuts, Deliver
from holdfast.host.reader_acks import retain_soon
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import (
    MESSAGE_BYTES_MAX,
    PORTION_BYTES,
    PORTION_TYPE,
    SPANS_VERSION,
    AckOrder,
    Position,
    decode_message,
    decode_position,
    encode_ack,
    encode_definition,
    encode_last,
    encode_portion,
    encode_report,
)
from holdfast.inputs.audit import Audit
from holdfast.inputs.credentials import Credential, Keyring, Role
from holdfast.inputs.http_server import HttpServer, make_known
from holdfast.inputs.network import Access, is_loopback
from holdfast.inputs.places import Crowded
from holdfast.inputs.token_file import TOKEN_CHARS_MIN
from holdfast.model.errors import HoldfastError, Mended, PeerError, StorageError, UnknownStream, UsageError
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.acks import acknowledge, check_subscriber, read_acks
from holdfast.stream.checking.mended import read_mends
from holdfast.stream.disk import Disk
from holdfast.stream.position import parse_position

#: A waiting pull is a connection and a look every 20 ms; readers who want to wait longer ask again.
WAIT_S_MAX = 10.0
#: How long a body may take to come.
BODY_S_MAX = 5.0
_LANES = {lane.name.lower(): lane for lane in Lane}
_ACT = frozenset({Role.OPERATOR})
_LOOK = frozenset({Role.OPERATOR, Role.VIEWER})
SPEAK = frozenset({Role.OPERATOR, Role.PEER})
_READ = frozenset({Role.OPERATOR, Role.PEER, Role.VIEWER, Role.READER})
_ACKNOWLEDGE = frozenset({Role.OPERATOR, Role.PEER, Role.READER})
#: Answers that are told to the audit log; a stream that is not there (yet) is asked for again and again.
_AUDITED = frozenset({400, 401, 403, 409, 413, 429})

Handler = Callable[[Request], Awaitable[Response]]


def _unknown(stream: str) -> StreamReport | None:
    """Where nobody says who produces which stream, none is produced here."""
    raise UnknownStream(f"stream {stream} is not produced on this host; ask another one, or check the name")


class Refused(Exception):
    """Not this, or not for you; answered with the status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Admission = frozenset[Role] | Callable[[Request, str], bool]
"""Who may ask: roles, or whoever is let in by the token that he shows."""


def anybody(request: Request, token: str) -> bool:
    """Admits whoever asks, token or not: for what says nothing about the host (see `may_look`). He stays a stranger."""
    return True


class Door(NamedTuple):
    """One more thing that a host answers, for those whom `admits` lets in; None: as everything else."""

    path: str
    method: str
    handler: Handler
    admits: Admission | None = None


class Service:
    """Serves one host. `address` is the real one, also when port 0 was asked for."""

    def __init__(
        self,
        serving: StreamServer,
        access: Access,
        *,
        deliver: Deliver,
        status: Callable[[], dict[str, Any]],
        fault: Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]] | None],
        stop: Callable[[], None],
        answers: Callable[[str], bool],
        report: Callable[[str], StreamReport | None] = _unknown,
        view_token: str | None = None,
        cuts: Cuts | None = None,
        doors: Sequence[Door] = (),
    ) -> None:
        self.access = access.check()
        if not access.asks:
            raise UsageError("a host's service needs a token, on loopback as well; give one, or let one be made")
        if view_token is not None and len(view_token) < TOKEN_CHARS_MIN:
            raise UsageError(f"a token must have {TOKEN_CHARS_MIN} characters or more; got {len(view_token)}")
        self._serving, self._cuts = serving, cuts or Cuts()
        self._keys, self._audit = access.keys or _keyring(access, view_token), Audit("host")
        self._doors = tuple(doors)
        self._deliver, self._status, self._fault, self._stop, self._answers = deliver, status, fault, stop, answers
        self._report = report
        # A bad certificate is the caller's mistake: said before anything listens.
        self._server = HttpServer(self.app(), self.access, graceful_s=2)
        self._socket = self.access.listen()
        host, port = self._socket.getsockname()[:2]
        self.host, self.port = host, port
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if access.certificate else 'http'}://{shown}:{port}"
        self._task: asyncio.Task[None] | None = None

    def app(self) -> Starlette:
        """The routes as an ASGI application."""

        def route(path: str, handler: Handler, method: str, who: Admission) -> Route:
            # Words of replicas and load managers come ten times a second and are told elsewhere.
            changes = method in ("POST", "DELETE") and not path.endswith("/messages")
            return Route(path, self._guarded(handler, who, changes), methods=[method])

        return Starlette(routes=[
            # First: the console of a deployment acknowledges on hosts what it does not have itself.
            *(route(door.path, door.handler, door.method,
                    door.admits or (_LOOK if door.method == "GET" else _ACT)) for door in self._doors),
            route("/v1/messages", self._post_message, "POST", SPEAK),
            route("/v1/streams/{name}/definition", self._get_definition, "GET", _READ),
            route("/v1/streams/{name}/report", self._get_report, "GET", _READ),
            route("/v1/streams/{name}/last", self._get_last, "GET", _READ),
            route("/v1/streams/{name}/acks", self._post_ack, "POST", _ACKNOWLEDGE),
            route("/v1/streams/{name}/acks", self._get_ack, "GET", _READ),
            route("/v1/streams/{name}/{lane}", self._get_lane, "GET", _READ),
            route("/v1/status", self._get_status, "GET", _LOOK),
            route("/v1/faults", self._post_fault, "POST", _ACT),
            route("/v1/stop", self._post_stop, "POST", _ACT),
        ])  # fmt: skip

    async def start(self) -> None:
        """Begin to answer; returns when requests are accepted."""
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)
        if self._task.done():
            await self._task

    async def close(self) -> None:
        """Answer no more; what is under way is finished, waits end."""
        self._serving.end()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()

    @property
    def connections(self) -> int:
        """How many are open now, handshakes left out."""
        return len(self._server.server_state.connections)

    # Who may --------------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler, who: Admission, changes: bool) -> Handler:
        async def guarded(request: Request) -> Response:
            answer = await self._answer(request, handler, who)
            name, what = request.scope.get("holdfast.who"), f"{request.method} {request.url.path}"
            address = request.client.host if request.client else "?"
            if answer.status_code in _AUDITED or request.scope.get("holdfast.hidden"):
                self._audit.refused(name, address, what, bytes(answer.body).decode(errors="replace"))
            elif changes and answer.status_code == 200:
                self._audit.changed(name or "?", address, what)
            return answer

        return guarded

    async def _answer(self, request: Request, handler: Handler, who: Admission) -> Response:
        try:
            self._admit(request, who)
            return await handler(request)
        except Refused as error:
            return self._error(error.status, error)
        except Crowded as error:
            return self._error(429, error, {"Retry-After": "5", "Connection": "close"})
        except UnknownStream:
            name = request.path_params.get("name", "")
            return self._error(404, f"stream {name!r} is not here; check the name, or ask another host")
        except (StorageError, PeerError) as error:
            return self._error(503, error)
        except Mended as error:
            return self._error(MENDED, error)
        except HoldfastError as error:
            return self._error(400, error)
        except (ClientDisconnect, TimeoutError):
            return self._error(400, "the request did not come whole and in time")

    def _error(self, status: int, why: object, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """Where the streams lie on this machine is nobody's business."""
        text = str(why).replace(f"{self._serving.store.root}/", "").replace(str(self._serving.store.root), "")
        return JSONResponse({"error": text}, status, dict(headers or {}))

    def _admit(self, request: Request, who: Admission) -> None:
        """Rules 1 and 2."""
        host = request.url.hostname or ""
        if is_loopback(self.host) and not is_loopback(host):
            raise Refused(403, f"this host listens on this machine only; the request was for {host}")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise Refused(403, f"a page of {origin} may not ask here")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else ""
        if who is anybody:
            credential = self._keys.who(token)
            request.scope["holdfast.looks"] = credential is not None and credential.role in _LOOK
            return
        if not isinstance(who, frozenset):
            if not who(request, token):
                raise Refused(401, "the header 'Authorization: Bearer …' must carry the token of one who may ask this")
            name = f"partner {request.path_params.get('partner', '')}"
            request.scope["holdfast.who"] = name
            make_known(request, name)
            return
        credential = self._keys.who(token)
        if credential is None:
            raise Refused(401, "the header 'Authorization: Bearer …' must carry a token of this host")
        request.scope["holdfast.who"] = credential.name
        make_known(request, credential.name, kept=credential.kept)
        if credential.role not in who:
            may = "look but not act" if credential.role is Role.VIEWER else f"do what a {credential.role.value} needs"
            raise Refused(403, f"this token may {may}; use the operator's")
        stream = request.path_params.get("name")
        if stream is not None and not credential.sees(stream):
            request.scope["holdfast.hidden"] = True
            raise UnknownStream(stream)
        request.scope["holdfast.credential"] = credential

    # What they may ask ----------------------------------------------------------------------------------------------

    async def _post_message(self, request: Request) -> Response:
        data = await body_of(request)
        try:
            sender, to, message = decode_message(data)
        except PeerError as error:
            raise Refused(400, str(error)) from None
        self._cuts.check(*_hosts(request), sender.rpartition("@")[2])
        self._deliver(sender, to, message)
        return JSONResponse({})

    async def _get_definition(self, request: Request) -> Response:
        stream = stream_of(request)
        self._cuts.check(*_hosts(request))
        try:
            definition = self._serving.store.open(stream).definition
        except UnknownStream:
            self._report(stream)  # Says so if the stream is none of this host's; else it is not there yet.
            raise Refused(503, f"stream {stream} is not there yet; ask again later") from None
        return Response(encode_definition(definition), media_type="application/json")

    async def _get_report(self, request: Request) -> Response:
        """How the stream does, for a reader who is no host; silence, told as 503, while the replica recovers (D12)."""
        stream = stream_of(request)
        self._cuts.check(stream, *_hosts(request))
        report = self._report(stream)
        if report is None:
            raise Refused(503, f"stream {stream} is not served yet: its replica recovers; ask again later")
        return Response(encode_report(report), media_type="application/json")

    async def _get_last(self, request: Request) -> Response:
        self._cuts.check(stream_of(request), *_hosts(request))
        bucket, skip = await self._serving.last(stream_of(request), number_of(request, "tuples", 1))
        return Response(encode_last(bucket, skip), media_type="application/json")

    async def _post_ack(self, request: Request) -> Response:
        stream = self._serving.store.open(stream_of(request))
        self._cuts.check(stream.name, *_hosts(request))
        try:
            said = msgspec.json.decode(await body_of(request), type=AckOrder)
        except msgspec.MsgspecError as error:
            raise Refused(400, f"an acknowledgement must name reader and until_us; {error}") from None
        credential: Credential = request.scope["holdfast.credential"]
        if credential.role is Role.READER and said.reader != credential.name:
            raise Refused(403, f"{credential.name} may acknowledge under its own name; got {said.reader!r}")
        if said.position is not None and read_mends(stream.folder):
            position = parse_position(said.position, stream.name, stream.definition.bucket_us)
            with contextlib.closing(stream.reader()) as reader:
                reader.check_unmended(position.reach_us, position.mends)
        acknowledge(stream.folder, check_subscriber(said.reader), said.until_us, now_us(), Disk(), said.position)
        if stream.definition.retention.acknowledged:
            retain_soon(stream)
        return JSONResponse({})

    async def _get_ack(self, request: Request) -> Response:
        """Where a named reader stands, for itself to resume."""
        stream, reader = self._serving.store.open(stream_of(request)), request.query_params.get("reader", "")
        self._cuts.check(stream.name, *_hosts(request))
        credential: Credential = request.scope["holdfast.credential"]
        if credential.role is Role.READER and reader != credential.name:
            raise Refused(403, f"{credential.name} may ask for its own position; got {reader[:128]!r}")
        known = read_acks(stream.folder).get(check_subscriber(reader))
        body = b"null" if known is None else encode_ack(reader, known.until_us, known.position)
        return Response(body, media_type="application/json")

    async def _get_lane(self, request: Request) -> Response:
        lane, stream = _LANES.get(request.path_params["lane"]), stream_of(request)
        if lane is None:
            raise Refused(404, f"a stream is read as one of {', '.join(_LANES)}")
        self._serving.check(stream)
        if not self._answers(stream):
            raise Refused(503, f"stream {stream} is not served yet: its replica recovers; ask again later")
        position = position_of(request)
        wait_s = min(number_of(request, "wait_ms", 0) / 1000, WAIT_S_MAX)
        # Read, checked and sent by the one loop that all replicas share: more than this would hold them up.
        bytes_max = min(number_of(request, "bytes_max", PORTION_BYTES), PORTION_BYTES)
        work = self._serving.wait(stream, lane, position, wait_s, bytes_max)
        portion = await self._cuts.guard(work, stream, *_hosts(request))
        # Who asks for `spans` alone is of a version that knows no later ones.
        version = number_of(request, "portions", SPANS_VERSION if request.query_params.get("spans") == "1" else 1)
        return Response(b"".join(encode_portion(portion, version)), media_type=PORTION_TYPE)

    async def _get_status(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self._status()), media_type="application/json")

    async def _post_fault(self, request: Request) -> Response:
        try:
            said = msgspec.json.decode(await body_of(request), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise Refused(400, f"a fault must be a JSON object; {error}") from None
        done = self._fault(said)
        return JSONResponse((await done if isinstance(done, Awaitable) else done) or {})

    async def _post_stop(self, request: Request) -> Response:
        asyncio.get_running_loop().call_soon(self._stop)
        return JSONResponse({})


def may_look(request: Request) -> bool:
    """Whether he whom `anybody` admitted has shown a token with which he may see everything."""
    return bool(request.scope.get("holdfast.looks"))


def stream_of(request: Request) -> str:
    return str(request.path_params["name"])


def _hosts(request: Request) -> tuple[str, ...]:
    """Which host asks, as it says itself: only for rehearsing failures."""
    name = request.headers.get("holdfast-host")
    return (name,) if name else ()


def position_of(request: Request) -> Position:
    return decode_position(request.query_params)


def number_of(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Refused(400, f"{name} must be a number from 0 on; got {text[:40]!r}")
    return int(text)


async def body_of(request: Request, bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """The body, given up as soon as it is too long or takes too long, whatever it claims to be."""
    body = bytearray()
    async with asyncio.timeout(BODY_S_MAX):
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise Refused(413, f"a body may have {bytes_max} bytes at most")
    return bytes(body)


def _keyring(access: Access, view_token: str | None) -> Keyring:
    assert access.token is not None
    operator = (Credential("operator", Role.OPERATOR), access.token)
    return Keyring([operator] if view_token is None else [operator, (Credential("viewer", Role.VIEWER), view_token)])
