"""Lines over TCP: each answered once it is durable."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.inputs.network import Access
from holdfast.inputs.tcp import LINE_BYTES_MAX, TcpInput, _Arrivals
from holdfast.model.errors import UsageError
from holdfast.stream.producer import Producer
from tests.inputs.conftest import Target, running

TOKEN = "t" * 32


@contextmanager
def served(producer: Producer, access: Access | None = None) -> Iterator[TcpInput]:
    server = TcpInput(producer, access)
    with running(server.run, server.stop):
        yield server
    server.close()


class Client:
    def __init__(self, server: TcpInput, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection((server.host, server.port), timeout=10)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock)
        self.file = self.sock.makefile("rwb")

    def say(self, *lines: Any) -> list[Any]:
        self.file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self.file.flush()
        return [json.loads(self.file.readline() or b"null") for _ in lines]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()


def test_each_line_is_answered_in_order_and_a_bad_one_harms_nobody(target: Target) -> None:
    with target.producer() as producer, served(producer) as server, Client(server) as client:
        answers = client.say({"n": 1}, {"n": "x"}, {"n": 2}, [{"n": 3}, {"n": 4}], 5)
        assert [a["ok"] for a in answers] == [True, False, True, True, False]
        assert answers[3]["rows"] == 2
        assert "line 2: column 'n' must be bigint" in answers[1]["error"]
        assert target.numbers() == [1, 2, 3, 4]


def test_a_unit_with_a_sequence_number_is_stored_once(target: Target) -> None:
    unit = {"holdfast": {"producer": "p1", "seq": 7}, "rows": [{"n": 1}, {"n": 2}]}
    with target.producer() as producer, served(producer) as server:
        for duplicate in (False, True):
            with Client(server) as client:
                (answer,) = client.say(unit)
                assert answer["duplicate"] is duplicate
        with Client(server) as client:
            (answer,) = client.say({"holdfast": {"producer": "../p", "seq": 8}, "rows": []})
            assert not answer["ok"]
            (answer,) = client.say({"holdfast": {"producer": "p", "seq": 1 << 64}, "rows": [{"n": 3}]})
            assert "a number from 0 on" in answer["error"]
            (answer,) = client.say({"holdfast": {"producer": "p", "seq": -1}, "rows": []})
            assert not answer["ok"]
    assert target.numbers() == [1, 2]


def test_without_the_token_nothing_is_stored(target: Target) -> None:
    """X1"""
    access = Access(token=TOKEN)
    with target.producer() as producer, served(producer, access) as server:
        for first in ({"n": 1}, {"token": "wrong"}, {"token": 5}):
            with Client(server) as client:
                answers = client.say(first, {"n": 2})
                assert not answers[0]["ok"]
                assert answers[1] is None
        assert target.numbers() == []
        with Client(server) as client:
            assert [a["ok"] for a in client.say({"token": TOKEN}, {"n": 3})] == [True, True]
    assert target.numbers() == [3]


def test_a_line_without_end_is_refused(target: Target) -> None:
    """X4"""
    with target.producer() as producer, served(producer) as server, Client(server) as client:
        client.sock.sendall(b"x" * (LINE_BYTES_MAX + 100_000))
        assert b"must end within" in client.file.readline()


def test_a_long_line_in_single_bytes_costs_its_length_and_not_its_square(target: Target) -> None:
    """X4: 400,000 bytes one by one took a minute and more, copying the line for each of them."""

    class Drip:
        def __init__(self) -> None:
            self.left = 400_000

        def settimeout(self, seconds: float) -> None:
            assert seconds > 0

        def recv(self, size: int) -> bytes:
            self.left -= 1
            return b"x" if self.left else b"\n"

    begun = time.process_time()
    (line,) = _Arrivals(Drip()).next(60, 60)  # type: ignore[arg-type]
    assert len(line) == 399_999
    assert time.process_time() - begun < 10


def test_a_token_that_comes_byte_by_byte_has_a_deadline_as_a_whole(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: the limit was one per read, so that a byte every four seconds held a thread for ever."""
    monkeypatch.setattr("holdfast.inputs.tcp.TOKEN_S_MAX", 0.5)
    with target.producer() as producer, served(producer, Access(token=TOKEN)) as server, Client(server) as client:
        client.sock.settimeout(0.1)
        for _ in range(300):
            try:
                client.sock.sendall(b" ")
                if client.sock.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        raise AssertionError("it was not closed")


def test_a_line_that_comes_byte_by_byte_has_a_deadline_as_a_whole(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.inputs.tcp.LINE_S_MAX", 0.5)
    with target.producer() as producer, served(producer) as server, Client(server) as client:
        assert client.say({"n": 1})[0]["ok"]
        client.sock.settimeout(0.1)
        for _ in range(300):
            try:
                client.sock.sendall(b" ")
                if client.sock.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        raise AssertionError("it was not closed")


@pytest.mark.parametrize("tls", [False, True])
def test_silent_connections_keep_no_sender_out(target: Target, tmp_path: Path, tls: bool) -> None:
    """X6: 256 of them, or as many handshakes that nobody goes on with, took all places."""
    access, context = Access(token=TOKEN), None
    if tls:
        cert, key = certificate(tmp_path)
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        access = Access(token=TOKEN, certificate=cert, key=key)
    with (
        target.producer() as producer,
        served(producer, access) as server,
        contextlib.ExitStack() as stack,
        Client(server, context) as early,
    ):
        assert early.say({"token": TOKEN})[0]["ok"]
        for _ in range(300):
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=10))
        with Client(server, context) as client:
            assert [a["ok"] for a in client.say({"token": TOKEN}, {"n": 1})] == [True, True]
        assert early.say({"n": 2})[0]["ok"]
    assert target.numbers() == [1, 2]


def test_a_request_of_a_page_in_a_browser_stores_nothing(target: Target) -> None:
    """X1: each line of its body that is a row was stored."""
    body = b'{"n": 1}\r\n{"n": 2}\r\n'
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n"
    with target.producer() as producer, served(producer) as server:
        for parts in ((request + body,), (request, body)):
            with Client(server) as client:
                for part in parts:
                    client.sock.sendall(part)
                said = client.file.readlines()
                assert [json.loads(line)["ok"] for line in said] == [False]
                assert b"the connection is closed" in said[0]
    assert target.numbers() == []


def test_other_addresses_need_a_token_and_tls(target: Target) -> None:
    """X1"""
    with target.producer() as producer:
        for access in (Access("0.0.0.0"), Access("0.0.0.0", token=TOKEN), Access("example.org", token=TOKEN)):
            with pytest.raises(UsageError, match="needs a token and TLS"):
                TcpInput(producer, access)
        with pytest.raises(UsageError, match="16 characters"):
            TcpInput(producer, Access(token="short"))


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_with_tls_the_lines_are_encrypted(target: Target, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    access = Access(token=TOKEN, certificate=cert, key=key)
    with target.producer() as producer, served(producer, access) as server:
        with Client(server, context) as client:
            assert client.say({"token": TOKEN}, {"n": 1})[1]["ok"]
        with Client(server) as plain, pytest.raises((ConnectionError, json.JSONDecodeError)):
            plain.say({"token": TOKEN})
    assert target.numbers() == [1]
