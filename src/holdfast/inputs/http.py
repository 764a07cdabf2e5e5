"""Rows by HTTP: `POST /{stream}` with JSON, JSON lines or an Arrow IPC stream; answered when they are durable.

Rules:
1. One request is one atomic unit. `Holdfast-Producer` and `Holdfast-Sequence` make it safe to repeat.
2. 200 stored (or stored before), 400 unreadable, 401 no token, 404 no such stream, 413 too large, 415 unknown type,
   422 rows that do not fit or come too late, 429 the stream is full, 503 the disk or the writer cannot. Each with
   `{"error": "one sentence"}`.
3. A page in somebody's browser can reach loopback as well: requests with a foreign Origin or Host are refused (X1).
4. A sender writes under the producer ids that are its own (`credentials`). What is refused is told to the audit log;
   what is stored stands in the stream, and what waits for the stream or the disk is not refused.
5. Connections, heads and bodies are bounded in number and time (`http_server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.inputs.audit import Audit
from holdfast.inputs.credentials import Credential, NotYours, ProducerIds
from holdfast.inputs.decode import Decoder
from holdfast.inputs.http_server import HttpServer, make_known
from holdfast.inputs.network import Access, is_loopback
from holdfast.inputs.places import Crowded
from holdfast.model.errors import HoldfastError, SchemaError, StorageError, StreamFull, UsageError
from holdfast.stream.producer import Ack
from holdfast.stream.striped_producer import AnyProducer
from holdfast.stream.untrusted import read_arrow

#: A body is held in memory whole while it is decoded; larger units belong in several requests.
BODY_BYTES_MAX = 16 << 20
_JSON = ("application/json",)
_LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
_ARROW = ("application/vnd.apache.arrow.stream",)


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def http_app(producers: Mapping[str, AnyProducer], access: Access | None = None) -> Starlette:
    """The endpoint as an ASGI application, for any server."""
    endpoint = _Endpoint(producers, access or Access())
    return Starlette(routes=[Route("/{stream}", endpoint.post, methods=["POST"])])


class _Endpoint:
    def __init__(self, producers: Mapping[str, AnyProducer], access: Access) -> None:
        self._access = access
        self._producers = producers
        self._ids, self._audit = ProducerIds(access.keys), Audit("http input")
        self._decoders = {name: Decoder(p.row_schema, name) for name, p in producers.items()}

    async def post(self, request: Request) -> Response:
        try:
            sender = self._admit(request)
            producer, decoder = self._of(request.path_params["stream"])
            source, seq = _sequence(request)
            if source is not None:
                self._ids.check(sender, source, producer.last_seq_of(source) >= 0)
            body = await _body(request)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            ack = await run_in_threadpool(_store, producer, decoder, kind, body, source, seq)
        except NotYours as error:
            return self._refused(request, 403, error)
        except _Refused as error:
            return self._refused(request, error.status, error)
        except Crowded as error:
            return self._refused(request, 429, error, {"Retry-After": "1"})
        except StreamFull as error:
            return _error(429, str(error), {"Retry-After": "1"})
        except (StorageError, MemoryError) as error:
            return _error(503, str(error), {"Retry-After": "5"})
        except HoldfastError as error:
            return self._refused(request, 422, error)
        except ClientDisconnect:
            return self._refused(request, 400, "the request did not come whole")
        said = {"rows": ack.rows, "duplicate": ack.duplicate, "dropped": ack.dropped, "commit": ack.commit_seq}
        return JSONResponse(said)

    def _refused(
        self, request: Request, status: int, why: object, headers: Mapping[str, str] | None = None
    ) -> Response:
        address = request.client.host if request.client else "?"
        who = request.scope.get("holdfast.who")
        self._audit.refused(who, address, f"{request.method} {request.url.path}", str(why))
        return _error(status, str(why), headers)

    def _admit(self, request: Request) -> Credential:
        """Rule 3, and the token."""
        if not self._access.asks:
            host = request.url.hostname or ""
            if not is_loopback(host):
                raise _Refused(403, f"without a token only this machine may send; the request was for {host}")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise _Refused(403, f"a page of {origin} may not send here")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        sender = self._access.who(token if scheme.lower() == "bearer" else None)
        if sender is None:
            raise _Refused(401, "the header 'Authorization: Bearer …' must carry the token of this input")
        request.scope["holdfast.who"] = sender.name
        # Where all have one token, all places are theirs.
        make_known(request, sender.name, kept=self._access.keys is None)
        return sender

    def _of(self, stream: str) -> tuple[AnyProducer, Decoder]:
        producer = self._producers.get(stream)
        if producer is None:
            raise _Refused(404, f"no stream {stream!r} is fed here; check the name")
        return producer, self._decoders[stream]


def _sequence(request: Request) -> tuple[str | None, int | None]:
    source, text = request.headers.get("holdfast-producer"), request.headers.get("holdfast-sequence")
    if text is None:
        return None, None  # Without a number nothing is remembered of the id.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _Refused(400, f"Holdfast-Sequence must be a number from 0 on; got {text!r}")
    if source is None:
        raise _Refused(400, "Holdfast-Sequence counts per sender: send Holdfast-Producer with it")
    return source, int(text)


async def _body(request: Request) -> bytes:
    """The body, given up as soon as it is too long, whatever its length claims to be."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise _Refused(415, "the body must not be compressed; compress Arrow buffers instead")
    too_long = _Refused(413, f"a body may have {BODY_BYTES_MAX} bytes at most; send several")
    claimed = request.headers.get("content-length", "0")
    if claimed.isdigit() and int(claimed) > BODY_BYTES_MAX:
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise too_long
    return bytes(body)


def _store(producer: AnyProducer, decoder: Decoder, kind: str, body: bytes, source: str | None, seq: int | None) -> Ack:
    if kind in _ARROW:
        table = _readable(read_arrow, body, "body")
        return producer.send_batch(table, seq=seq, producer_id=source)
    if kind in _JSON:
        rows = decoder.json_rows(_readable(decoder.json, body, "body"), "body")
    elif kind in _LINES:
        values = [(n, _readable(decoder.json, t, f"line {n}")) for n, t in enumerate(body.split(b"\n"), 1) if t.strip()]
        rows = [decoder.json_row(value, f"line {n}") for n, value in values]
    else:
        raise _Refused(415, f"Content-Type must be one of {', '.join((*_JSON, _LINES[0], *_ARROW))}; got {kind!r}")
    return producer.send_many(rows, seq=seq, producer_id=source)


def _readable(read: Any, body: bytes, where: str) -> Any:
    """What cannot even be read is 400; what can be read and does not fit is 422."""
    try:
        return read(body, where)
    except SchemaError as error:
        raise _Refused(400, str(error)) from None


def _error(status: int, why: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": why}, status, dict(headers or {}))


class HttpInput:
    """Serves `http_app` on a socket of its own. `port` is the real one, also when 0 was asked for."""

    def __init__(self, producers: Mapping[str, AnyProducer], access: Access | None = None) -> None:
        self.access = (access or Access()).check()
        if not producers:
            raise UsageError("an HTTP input needs at least one stream to feed; got none")
        # A bad certificate is the caller's mistake: said before anything listens.
        self._server = HttpServer(http_app(producers, self.access), self.access, graceful_s=5)
        self._socket = self.access.listen()
        self.host, self.port = self._socket.getsockname()[:2]

    def run(self) -> None:
        """Serve until `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    def close(self) -> None:
        self._socket.close()
