"""Newline-delimited JSON over TCP; each line is answered with a line once it is durable.

    → {"source": "10.0.0.1", "bytes": 512}
    ← {"ok":true,"rows":1,"duplicate":false}

Rules:
1. A line is a row, an array of rows (one atomic unit), or `{"holdfast": {"producer": "p1", "seq": 7}, "rows": […]}`,
   which has a sequence number, so that it can be sent again after a broken connection without being stored twice.
2. Answers come in the order of the lines. Lines that arrive together share one commit; a refused one refuses itself
   only. Where the producer drops late tuples, `dropped` counts those of all lines that share the commit.
3. With a token, the first line must be `{"token": "…"}`; anything else closes the connection.
4. A line that is no JSON is not one of ours: it closes the connection, and nothing behind it is looked at. So a request
   that a page in somebody's browser sends here stores nothing (X1).
5. Connections are bounded as `places` says; the handshake, the token and a line have deadlines as a whole, so that a
   byte now and then keeps nothing alive (X4).
6. What is refused is told to the audit log; what is stored stands in the stream, and what waits for the stream or the
   disk is not refused.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
import time
from typing import Any, NamedTuple

import msgspec

from holdfast.inputs.audit import Audit
from holdfast.inputs.credentials import ANYBODY, Credential, ProducerIds
from holdfast.inputs.decode import Decoder, parse_json
from holdfast.inputs.network import BACKLOG, Access
from holdfast.inputs.places import Crowded, Place, Places
from holdfast.model.errors import (
    EarlyTuple,
    HoldfastError,
    LateTuple,
    SchemaError,
    StorageError,
    StreamFull,
    UsageError,
)
from holdfast.stream.producer import Ack
from holdfast.stream.striped_producer import AnyProducer

LINE_BYTES_MAX = 4 << 20
#: A peer that is silent this long is gone; it may connect again, and sequence numbers make that harmless.
IDLE_S_MAX = 300
#: Within this time the handshake must be over, and then the token have come; an open socket costs a thread.
TOKEN_S_MAX = 5.0
#: From the first byte of a line to its end: four megabytes over a slow line.
LINE_S_MAX = 60.0
_LINES_MAX = 1000
#: How long, and for how many bytes, a peer that is sent away may go on speaking: a page's request fits in.
_LINGER_S = 0.5
_LINGER_BYTES = 1 << 20


class _Request(NamedTuple):
    rows: list[dict[str, Any]]
    producer: str | None = None
    seq: int | None = None


class TcpInput:
    """Listens and feeds one producer. `port` is the real one, also when 0 was asked for."""

    def __init__(self, producer: AnyProducer, access: Access | None = None) -> None:
        self.access = (access or Access()).check()
        self._server = _Server(producer, self.access)
        self.host, self.port = str(self._server.server_address[0]), int(self._server.server_address[1])

    def run(self) -> None:
        """Serve until `stop`."""
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        """End all connections and let `run` return. Call it from another thread than `run`'s."""
        self._server.shutdown()

    def close(self) -> None:
        self._server.end_connections()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = BACKLOG

    def __init__(self, producer: AnyProducer, access: Access) -> None:
        self.producer, self.access, self._tls = producer, access, access.tls()
        self.decoder = Decoder(producer.row_schema, producer.definition.name)
        self._places, self.ids, self.audit = Places(), ProducerIds(access.keys), Audit("tcp input")
        self._open: dict[socket.socket, Place] = {}
        self._mutex = threading.Lock()
        super().__init__((access.host, access.port), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = access.listen()
        self.server_address = self.socket.getsockname()
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Rule 5: counted here, before it has a thread of its own that could be waited for."""
        place = self._places.enter(str(client_address[0]), lambda: _shut(request))
        with self._mutex:
            self._open[request] = place
        super().process_request(request, client_address)

    def place_of(self, sock: socket.socket) -> Place:
        return self._open[sock]

    def enter(self, sock: socket.socket) -> socket.socket:
        """TLS, if asked for, in the connection's own thread: a slow handshake must not keep others waiting."""
        if self._tls is None:
            return sock
        place = self._open[sock]
        wrapped = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        place.end = lambda: _shut(wrapped)  # The one that came has given its descriptor away.
        wrapped.settimeout(TOKEN_S_MAX)  # For a handshake Python takes it as the time of the whole.
        wrapped.do_handshake()
        return wrapped

    def shutdown_request(self, request: Any) -> None:
        with self._mutex:
            place = self._open.pop(request, None)
        if place is not None:
            place.leave()
        super().shutdown_request(request)

    def end_connections(self) -> None:
        with self._mutex:
            for place in self._open.values():
                place.end()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no news."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Server
    _sender: Credential = ANYBODY

    def handle(self) -> None:
        self._place = self.server.place_of(self.request)
        # A connection that was ended, also by `end_connections`, and one that breaks: no news.
        with contextlib.suppress(OSError, ssl.SSLError), self.server.enter(self.request) as sock:
            self._talk(sock)

    def _talk(self, sock: socket.socket) -> None:
        arrivals = _Arrivals(sock)
        waiting: list[bytes] = []
        try:
            if self.server.access.asks:
                waiting = arrivals.next(TOKEN_S_MAX, TOKEN_S_MAX)
                sender = self._admitted(waiting.pop(0)) if waiting else None
                if sender is None:
                    raise UsageError('the first line must be the right {"token": …}')
                self._sender = sender
                self._enter()
                sock.sendall(msgspec.json.encode({"ok": True}) + b"\n")
            number = 0
            while waiting or (waiting := arrivals.next(IDLE_S_MAX, LINE_S_MAX)):
                lines, waiting = waiting[:_LINES_MAX], waiting[_LINES_MAX:]
                answers, foreign = self._lines(lines, number)
                number += len(lines)
                said = b"".join(map(_answer, answers))
                if foreign:
                    return _last_word(sock, said)
                sock.sendall(said)
        except (UsageError, SchemaError, Crowded) as error:
            self._refused("a connection", error)
            _last_word(sock, _answer(error))

    def _refused(self, what: str, why: object) -> None:
        stranger = self.server.access.asks and self._sender is ANYBODY
        self.server.audit.refused(None if stranger else self._sender.name, self.client_address[0], what, str(why))

    def _admitted(self, line: bytes) -> Credential | None:
        try:
            said = parse_json(line, "")
        except SchemaError:
            return None
        token = said.get("token") if isinstance(said, dict) else None
        return self.server.access.who(token) if isinstance(token, str) else None

    def _enter(self) -> None:
        # Where all have one token, or none, all places are theirs.
        self._place.known(self._sender.name, kept=self.server.access.keys is None)

    def _lines(self, lines: list[bytes], number: int) -> tuple[list[Ack | HoldfastError | None], bool]:
        """The answers, and whether rule 4 ends the connection after them."""
        answers, foreign = self._stored(lines, number)
        for i, answer in enumerate(answers):
            if isinstance(answer, HoldfastError) and not isinstance(answer, StreamFull | StorageError):
                self._refused(f"line {number + i + 1}", answer)
        return answers, foreign

    def _stored(self, lines: list[bytes], number: int) -> tuple[list[Ack | HoldfastError | None], bool]:
        """Rule 2: rows without a sequence number go together; the others one by one, in order."""
        answers: list[Ack | HoldfastError | None] = []
        group: list[tuple[int, _Request]] = []
        for i, line in enumerate(lines):
            answers.append(None)
            if not line.strip():
                continue
            where = f"line {number + i + 1}"
            try:
                value = self.server.decoder.json(line, where)
            except HoldfastError as error:
                answers[i] = SchemaError(f"{error}; the connection is closed")
                self._send_group(group, answers)
                return answers, True
            self._enter()
            try:
                request = self._request(value, where)
            except HoldfastError as error:
                answers[i] = error
                continue
            if request.seq is None and len(request.rows) == 1:
                group.append((i, request))
                continue
            self._send_group(group, answers)
            group = []
            answers[i] = self._send(request)
        self._send_group(group, answers)
        return answers, False

    def _send_group(self, group: list[tuple[int, _Request]], answers: list[Ack | HoldfastError | None]) -> None:
        if len(group) > 1:
            ack = self._send(_Request([row for _, request in group for row in request.rows]))
            if isinstance(ack, Ack):
                for i, _ in group:
                    answers[i] = ack._replace(rows=1)
                return
            if not isinstance(ack, SchemaError | LateTuple | EarlyTuple):
                # Not one line's fault: to send each again would wait, or write, as often as there are lines.
                for i, _ in group:
                    answers[i] = ack
                return
        for i, request in group:
            answers[i] = self._send(request)

    def _send(self, request: _Request) -> Ack | HoldfastError:
        try:
            return self.server.producer.send_many(request.rows, seq=request.seq, producer_id=request.producer)
        except HoldfastError as error:
            return error

    def _request(self, value: Any, where: str) -> _Request:
        decoder = self.server.decoder
        if isinstance(value, dict) and value.keys() == {"holdfast", "rows"} and isinstance(value["holdfast"], dict):
            about = value["holdfast"]
            producer, seq = about.get("producer"), about.get("seq")
            whole = isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq < 1 << 63
            if not isinstance(producer, str) or not whole:
                raise SchemaError(f'{where}: "holdfast" must be {{"producer": a name, "seq": a number from 0 on}}')
            self.server.ids.check(self._sender, producer, self.server.producer.last_seq_of(producer) >= 0)
            return _Request(decoder.json_rows(value["rows"], where), producer, seq)
        return _Request(decoder.json_rows(value, where))


class _Arrivals:
    """The lines of a connection as they come. What has no end yet is kept without copying it for each piece."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._rest = sock, bytearray()
        self._begun_s = 0.0

    def next(self, idle_s: float, line_s: float) -> list[bytes]:
        """Whole lines, at least one; none at the end of the connection.

        `TimeoutError` after `idle_s` without a byte, and where a line takes longer than `line_s` from its first one.
        """
        begun_s = time.monotonic()
        while True:
            end_s = self._begun_s + line_s if self._rest else begun_s + idle_s
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)
            data = self._sock.recv(1 << 16)
            if not data:
                return []
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                if not self._rest:
                    self._begun_s = time.monotonic()
                self._rest += data
                if len(self._rest) > LINE_BYTES_MAX:
                    raise SchemaError(f"a line must end within {LINE_BYTES_MAX} bytes; send smaller units")
                continue
            self._rest += head
            lines = bytes(self._rest).split(b"\n")
            self._rest, self._begun_s = bytearray(tail), time.monotonic()
            self._sock.settimeout(idle_s)  # For the answers.
            return lines


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _last_word(sock: socket.socket, said: bytes) -> None:
    """Say it and close. A connection that is closed with bytes unread is reset, and what was said last may never be
    heard: so what the peer still sends is read for a moment, and dropped."""
    sock.sendall(said)
    sock.shutdown(socket.SHUT_WR)
    end_s, left = time.monotonic() + _LINGER_S, _LINGER_BYTES
    while left > 0 and (left_s := end_s - time.monotonic()) > 0:
        sock.settimeout(left_s)
        data = sock.recv(1 << 16)
        if not data:
            return
        left -= len(data)


def _answer(answer: Ack | HoldfastError | None) -> bytes:
    if answer is None:
        return b""
    if isinstance(answer, HoldfastError):
        said: dict[str, Any] = {"ok": False, "error": str(answer)}
    else:
        said = {"ok": True, "rows": answer.rows, "duplicate": answer.duplicate}
        if answer.dropped:
            said["dropped"] = answer.dropped
    return msgspec.json.encode(said) + b"\n"
