"""Newline-delimited JSON over TCP; each line is answered with a line once it is durable.

    → {"source": "10.0.0.1", "bytes": 512}
    ← {"ok":true,"rows":1,"duplicate":false}

Rules:
1. A line is a row, an array of rows (one atomic unit), or `{"holdfast": {"producer": "p1", "seq": 7}, "rows": […]}`,
   which has a sequence number, so that it can be sent again after a broken connection without being stored twice.
2. Answers come in the order of the lines. Lines that arrive together share one commit; a refused one refuses itself
   only. Where the producer drops late tuples, `dropped` counts those of all lines that share the commit.
3. With a token, the first line must be `{"token": "…"}`; anything else closes the connection.
4. Connections, lines and waiting are bounded (X4).
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.inputs.decode import Decoder, parse_json
from holdfast.inputs.network import Access
from holdfast.model.errors import EarlyTuple, HoldfastError, LateTuple, SchemaError, UsageError
from holdfast.stream.producer import Ack, Producer

CONNECTIONS_MAX = 256
LINE_BYTES_MAX = 4 << 20
#: A peer that is silent this long is gone; it may connect again, and sequence numbers make that harmless.
IDLE_S_MAX = 300
#: Within this time the token must have come; an open socket costs a thread.
_TOKEN_S_MAX = 5
_LINES_MAX = 1000


class _Request(NamedTuple):
    rows: list[dict[str, Any]]
    producer: str | None = None
    seq: int | None = None


class TcpInput:
    """Listens and feeds one producer. `port` is the real one, also when 0 was asked for."""

    def __init__(self, producer: Producer, access: Access | None = None) -> None:
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

    def __init__(self, producer: Producer, access: Access) -> None:
        self.producer, self.access, self._tls = producer, access, access.tls()
        self.decoder = Decoder(producer.row_schema, producer.definition.name)
        self._open: set[socket.socket] = set()
        self._mutex = threading.Lock()
        super().__init__((access.host, access.port), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = access.listen()
        self.server_address = self.socket.getsockname()
        self.server_activate()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._open) < CONNECTIONS_MAX

    def enter(self, sock: socket.socket) -> socket.socket:
        """TLS, if asked for, in the connection's own thread: a slow handshake must not keep others waiting."""
        sock.settimeout(_TOKEN_S_MAX)
        with self._mutex:
            self._open.add(sock)
        if self._tls is None:
            return sock
        wrapped = self._tls.wrap_socket(sock, server_side=True)
        with self._mutex:
            self._open.add(wrapped)
        return wrapped

    def leave(self, *socks: socket.socket) -> None:
        with self._mutex:
            self._open -= set(socks)

    def end_connections(self) -> None:
        with self._mutex:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no news."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        sock = self.request
        try:
            sock = self.server.enter(self.request)
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
                self._talk(sock)
        except (OSError, ssl.SSLError):
            return
        finally:
            self.server.leave(self.request, sock)
            with contextlib.suppress(OSError):
                sock.close()

    def _talk(self, sock: socket.socket) -> None:
        arrivals = _arrivals(sock)
        waiting: list[bytes] = []
        if self.server.access.token is not None:
            waiting = next(arrivals, [])
            if not waiting or not self._admitted(waiting.pop(0)):
                sock.sendall(_answer(UsageError('the first line must be the right {"token": …}')))
                return
            sock.sendall(msgspec.json.encode({"ok": True}) + b"\n")
        sock.settimeout(IDLE_S_MAX)
        number = 0
        while waiting or (waiting := next(arrivals, [])):
            lines, waiting = waiting[:_LINES_MAX], waiting[_LINES_MAX:]
            answers = self._lines(lines, number)
            number += len(lines)
            sock.sendall(b"".join(map(_answer, answers)))

    def _admitted(self, line: bytes) -> bool:
        try:
            said = parse_json(line, "")
        except SchemaError:
            return False
        token = said.get("token") if isinstance(said, dict) else None
        return isinstance(token, str) and self.server.access.allows(token)

    def _lines(self, lines: list[bytes], number: int) -> list[Ack | HoldfastError | None]:
        """Rule 2: rows without a sequence number go together; the others one by one, in order."""
        answers: list[Ack | HoldfastError | None] = []
        group: list[tuple[int, _Request]] = []
        for i, line in enumerate(lines):
            answers.append(None)
            try:
                request = self._decode(line, f"line {number + i + 1}")
            except HoldfastError as error:
                answers[i] = error
                continue
            if request is None:
                continue
            if request.seq is None and len(request.rows) == 1:
                group.append((i, request))
                continue
            self._send_group(group, answers)
            group = []
            answers[i] = self._send(request)
        self._send_group(group, answers)
        return answers

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

    def _decode(self, line: bytes, where: str) -> _Request | None:
        if not line.strip():
            return None
        decoder = self.server.decoder
        value = decoder.json(line, where)
        if isinstance(value, dict) and value.keys() == {"holdfast", "rows"} and isinstance(value["holdfast"], dict):
            about = value["holdfast"]
            producer, seq = about.get("producer"), about.get("seq")
            if not isinstance(producer, str) or not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
                raise SchemaError(f'{where}: "holdfast" must be {{"producer": a name, "seq": a number from 0 on}}')
            return _Request(decoder.json_rows(value["rows"], where), producer, seq)
        return _Request(decoder.json_rows(value, where))


def _arrivals(sock: socket.socket) -> Iterator[list[bytes]]:
    rest = b""
    while True:
        data = sock.recv(1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            yield whole
        if len(rest) > LINE_BYTES_MAX:
            sock.sendall(_answer(SchemaError(f"a line must end within {LINE_BYTES_MAX} bytes; send smaller units")))
            return


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
