"""Rows by HTTP, over a real socket."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import holdfast
from holdfast.inputs.http import BODY_BYTES_MAX, HttpInput
from holdfast.inputs.http_server import ImpatientProtocol
from holdfast.inputs.network import Access
from holdfast.model.errors import SchemaError, UsageError
from holdfast.stream.producer import Producer
from holdfast.stream.untrusted import read_arrow
from tests.inputs.conftest import Target, running

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
TOKEN = "t" * 32
TABLE = pa.table({"n": pa.array([1, 2], pa.int64()), "word": ["a", "b"]})


@contextmanager
def served(producer: Producer, access: Access | None = None) -> Iterator[httpx.Client]:
    server = HttpInput({"s": producer}, access)
    with (
        running(server.run, server.stop),
        httpx.Client(base_url=f"http://{server.host}:{server.port}", timeout=20) as client,
    ):
        yield client
    server.close()


def ipc(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_json_lines_and_arrow_are_stored(target: Target) -> None:
    with target.producer() as producer, served(producer) as client:
        assert client.post("/s", json={"n": 1, "word": "a"}).json()["rows"] == 1
        assert client.post("/s", json=[{"n": 2}, {"n": 3}]).json()["rows"] == 2
        lines = client.post("/s", content='{"n": 4}\n\n{"n": 5}\n', headers={"Content-Type": "application/x-ndjson"})
        assert lines.json()["rows"] == 2
        for compression in (None, "zstd", "lz4"):
            assert client.post("/s", content=ipc(TABLE, compression), headers=ARROW).json()["rows"] == 2
    assert target.numbers() == [1, 2, 3, 4, 5, 1, 2, 1, 2, 1, 2]


def test_a_caller_who_knows_the_port_may_come_before_the_input_runs(target: Target) -> None:
    """`send` names the port when the input is built; a caller that was quicker than its thread was refused."""
    with target.producer() as producer:
        server = HttpInput({"s": producer})
        with (
            socket.create_connection((server.host, server.port), timeout=20) as early,
            running(server.run, server.stop),
        ):
            body = b'{"n": 1}'
            head = (
                f"POST /s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            early.sendall(head.encode() + b"\r\n\r\n" + body)
            assert early.recv(1000).startswith(b"HTTP/1.1 200")
        server.close()
    assert target.numbers() == [1]


def test_a_repeated_request_is_stored_once(target: Target) -> None:
    headers = {"Holdfast-Producer": "shop", "Holdfast-Sequence": "12"}
    with target.producer() as producer, served(producer) as client:
        assert client.post("/s", json={"n": 1}, headers=headers).json()["duplicate"] is False
        assert client.post("/s", json={"n": 1}, headers=headers).json()["duplicate"] is True
        assert client.post("/s", json={"n": 1}, headers={"Holdfast-Sequence": "13"}).status_code == 400
        assert client.post("/s", json={"n": 1}, headers={**headers, "Holdfast-Sequence": "x"}).status_code == 400
        assert client.post("/s", json={"n": 1}, headers={**headers, "Holdfast-Producer": "../x"}).status_code == 422
    assert target.numbers() == [1]


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "must be JSON"),
        ({"json": 5}, 422, "must be a JSON object"),
        ({"json": {"n": "x"}}, 422, "column 'n' must be bigint"),
        ({"json": [{"n": 1}, {"m": 1}]}, 422, "row 2"),
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "Content-Type must be"),
        ({"content": b"x", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}}, 415, "not be"),
        ({"content": b"no arrow at all", "headers": ARROW}, 400, "must be an Arrow IPC stream"),
        ({"content": ipc(pa.table({"n": [1]})), "headers": ARROW}, 422, "must have the columns"),
        ({"content": b"x" * (BODY_BYTES_MAX + 1), "headers": ARROW}, 413, "bytes at most"),
        ({"content": iter([b"x" * (1 << 20)] * 17), "headers": ARROW}, 413, "bytes at most"),
    ],
    ids=["broken", "number", "type", "second row", "type header", "gzip", "no arrow", "columns", "long", "streamed"],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    target: Target, request_: dict[str, Any], status: int, why: str
) -> None:
    with target.producer() as producer, served(producer) as client:
        answer = client.post("/s", **request_)
        assert answer.status_code == status, answer.text
        assert why in answer.json()["error"]
        assert client.post("/nope", json={}).status_code == 404
    assert target.numbers() == []


def test_a_late_row_is_refused(target: Target) -> None:
    with target.producer(stime="n", stime_unit="s") as producer, served(producer) as client:
        client.post("/s", json={"n": 100})
        answer = client.post("/s", json={"n": 5})
        assert answer.status_code == 422
        assert "too late" in answer.json()["error"]


def test_a_full_stream_says_try_again(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "word string", bound=holdfast.Bound(20_000))
    with stream.producer(full_timeout=0) as producer, served(producer) as client:
        answers = [client.post("/s", json={"word": "x" * 3000}) for _ in range(12)]
        assert answers[0].status_code == 200
        assert answers[-1].status_code == 429
        assert answers[-1].headers["Retry-After"] == "1"


def test_a_fenced_producer_answers_503(target: Target) -> None:
    with target.producer() as producer, served(producer) as client:
        target.stream.writer(takeover=True).release(0)
        answer = client.post("/s", json={"n": 1})
        assert answer.status_code == 503
        assert "superseded" in answer.json()["error"]


def test_without_the_token_nothing_is_stored(target: Target) -> None:
    """X1"""
    with target.producer() as producer, served(producer, Access(token=TOKEN)) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            assert client.post("/s", json={"n": 1}, headers=headers).status_code == 401
        assert client.post("/s", json={"n": 2}, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert target.numbers() == [2]


def test_a_page_in_a_browser_may_not_send(target: Target) -> None:
    """X1"""
    with target.producer() as producer, served(producer) as client:
        assert client.post("/s", json={"n": 1}, headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.post("/s", json={"n": 1}, headers={"Host": "evil.example"}).status_code == 403
    assert target.numbers() == []


def test_heads_and_bodies_have_deadlines_as_a_whole(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: a head or a body that never ends held a connection for ever."""
    monkeypatch.setattr(ImpatientProtocol, "head_s_max", 0.3)
    monkeypatch.setattr(ImpatientProtocol, "body_s_max", 0.3)
    head = b"POST /s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    with target.producer() as producer, served(producer) as client:
        for begin in (b"", b"POST /s HT", head):
            with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=0.05) as sock:
                sock.sendall(begin)
                assert _ends(sock, drip=bool(begin))
    assert target.numbers() == []


def _ends(sock: socket.socket, drip: bool) -> bool:
    for _ in range(600):
        try:
            if drip:
                sock.sendall(b" ")
            if sock.recv(1000) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_silent_connections_keep_no_sender_out(target: Target) -> None:
    """X6"""
    with target.producer() as producer, served(producer) as client, ExitStack() as stack:
        for _ in range(300):
            address = (client.base_url.host, client.base_url.port or 0)
            stack.enter_context(socket.create_connection(address, timeout=20))
        assert client.post("/s", json={"n": 1}).status_code == 200
    assert target.numbers() == [1]


def test_other_addresses_need_a_token_and_tls(target: Target) -> None:
    with target.producer() as producer, pytest.raises(UsageError, match="needs a token and TLS"):
        HttpInput({"s": producer}, Access("0.0.0.0", token=TOKEN))


def test_arrow_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    """X4"""
    big = pa.table({"n": pa.array([0] * 1_000_000, pa.int64())})
    body = ipc(big, "zstd")
    assert len(body) < 100_000
    with pytest.raises(SchemaError, match="becomes more than 1000000 bytes"):
        read_arrow(body, "body", unpacked_max=1_000_000)


def test_extension_and_dictionary_types_are_refused() -> None:
    hidden = pa.schema([pa.field("n", pa.int64(), metadata={b"ARROW:extension:name": b"evil"})])
    nested = pa.schema([pa.field("n", pa.list_(pa.field("x", pa.int64(), metadata={b"ARROW:extension:name": b"e"})))])
    for table in (hidden.empty_table(), nested.empty_table(), pa.table({"n": pa.array(["a"]).dictionary_encode()})):
        with pytest.raises(SchemaError, match=r"extension type|send plain values"):
            read_arrow(ipc(table), "body")


def test_intervals_that_python_has_no_arrays_for_are_refused() -> None:
    """Found by the fuzzer: a KeyError, where the columns were read. Nobody but other languages can make them."""
    body = ipc(pa.table({"n": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}))
    refused = set()
    for place in (i for i, byte in enumerate(body) if byte == 2):
        for unit in (0, 1):  # Months, or days and milliseconds.
            made = bytearray(body)
            made[place] = unit
            with suppress(pa.ArrowException, OSError, ValueError):
                with pa.ipc.open_stream(bytes(made)) as reader:
                    kind = reader.schema.field(0).type
                if kind.id in (21, 22):
                    with pytest.raises(SchemaError, match=r"column 'n' has the type .*interval, which no stream has"):
                        read_arrow(bytes(made), "body")
                    refused.add(kind.id)
    assert refused == {21, 22}


def test_flipped_bits_in_arrow_never_crash() -> None:
    body = ipc(pa.table({"n": list(range(50)), "word": [f"w{i}" for i in range(50)]}), "lz4")
    chance = random.Random(1)
    for _ in range(500):
        wrong = bytearray(body)
        wrong[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        with suppress(SchemaError):
            read_arrow(bytes(wrong), "body")
