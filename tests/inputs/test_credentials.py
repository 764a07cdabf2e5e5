"""Who a token stands for: roles, ids of senders, tokens that change while everything runs (X1)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.host.senders import load_senders
from holdfast.inputs import places, token_file
from holdfast.inputs.audit import LINES_MAX, Audit
from holdfast.inputs.credentials import FRESH_IDS_MAX, Credential, Keyring, Role
from holdfast.inputs.network import Access
from holdfast.inputs.token_file import TokenFile, make_token, read_token
from holdfast.model.errors import UsageError
from holdfast.stream.record import PRODUCERS_MAX
from tests.host.conftest import Origin, hosted
from tests.inputs import test_tcp
from tests.inputs.conftest import Target
from tests.inputs.test_http import served

OLD, NEW, OTHER = "old-" * 8, "new-" * 8, "other-" * 8


def written(path: Path, *tokens: str) -> Path:
    path.touch(mode=0o600)
    path.write_text("".join(f"{token}\n" for token in tokens))
    return path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_changes_without_a_restart_and_two_are_good_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "_LOOK_S", 0.0)
    file = TokenFile(written(tmp_path / "t", OLD))
    keys = Keyring([(Credential("operator", Role.OPERATOR), file)])
    assert (keys.who(OLD) is None, keys.who(NEW) is None, file.current()) == (False, True, OLD)
    written(tmp_path / "t", NEW, OLD)
    assert (keys.who(OLD) is None, keys.who(NEW) is None, file.current()) == (False, False, NEW)
    written(tmp_path / "t", NEW)
    assert (keys.who(OLD) is None, keys.who(NEW) is None) == (True, False)
    (tmp_path / "t").unlink()
    assert keys.who(NEW) is not None, "a file that is gone leaves what it said last"


def test_a_token_file_with_a_short_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="16 or more printable"):
        read_token(written(tmp_path / "t", OLD, "short"))
    make_token(tmp_path / "made")
    assert len(read_token(tmp_path / "made")) > 16


def test_each_role_may_do_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 5)
    origin.store.create("secret", "n bigint", bucket="1s")
    tokens = {role: f"{role.value}-token-token-token" for role in Role}
    keys = Keyring([
        (Credential(r.value, r, frozenset({"s"}) if r is Role.READER else None), token) for r, token in tokens.items()
    ])  # fmt: skip
    lane, ack = "/v1/streams/s/main?from_us=0", {"reader": "reader", "until_us": 0}
    asked = [
        ("GET", lane, None), ("GET", "/v1/streams/s/definition", None), ("GET", "/v1/status", None),
        ("POST", "/v1/streams/s/acks", ack), ("POST", "/v1/faults", {}), ("GET", "/v1/streams/secret/last", None),
    ]  # fmt: skip
    expected = {
        Role.OPERATOR: [200, 200, 200, 200, 200, 200], Role.VIEWER: [200, 200, 200, 403, 403, 200],
        Role.PEER: [200, 200, 403, 200, 403, 200], Role.READER: [200, 200, 403, 200, 403, 404],
        Role.PRODUCER: [403] * 6,
    }  # fmt: skip

    async def play() -> None:
        async with (
            hosted(origin.store, Access(keys=keys), fault=lambda _: None) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            for role, token in tokens.items():
                said = [(await client.request(m, path, json=body, headers=bearer(token))).status_code
                        for m, path, body in asked]  # fmt: skip
                assert said == expected[role], role
            other = {"reader": "somebody", "until_us": 0}
            answer = await client.post("/v1/streams/s/acks", json=other, headers=bearer(tokens[Role.READER]))
            assert answer.status_code == 403

    asyncio.run(play())


def test_a_stream_that_one_may_not_see_is_answered_like_one_that_is_not_there(tmp_path: Path) -> None:
    """The 404 listed all streams, and where they lie on the disk."""
    origin = Origin(tmp_path / "o")
    origin.store.create("secret", "n bigint", bucket="1s")
    keys = Keyring([(Credential("r", Role.READER, frozenset({"s"})), NEW), (Credential("v", Role.VIEWER), OLD)])

    async def play() -> None:
        async with (
            hosted(origin.store, Access(keys=keys)) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            for token, name in ((NEW, "secret"), (NEW, "nothing"), (OLD, "nothing")):
                for what in ("last", "main?from_us=0", "definition"):
                    answer = await client.get(f"/v1/streams/{name}/{what}", headers=bearer(token))
                    assert answer.status_code == 404, (name, what)
                    said = answer.json()["error"]
                    assert said == f"stream {name!r} is not here; check the name, or ask another host"

    asyncio.run(play())


def test_who_is_refused_and_who_changes_something_is_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin = Origin(tmp_path / "o")
    caplog.set_level(logging.INFO, "holdfast.audit")

    async def play() -> None:
        async with (
            hosted(origin.store, Access(token=OLD), fault=lambda _: None) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            await client.get("/v1/status", headers=bearer(NEW))
            await client.post("/v1/faults", json={"cut": "b"}, headers=bearer(OLD))
            await client.get("/v1/status", headers=bearer(OLD))

    asyncio.run(play())
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.audit"]
    assert len(lines) == 2
    assert lines[0].startswith("host: refused a stranger from 127.0.0.1: 'GET /v1/status'")
    assert lines[1] == "host: operator from 127.0.0.1: 'POST /v1/faults'"
    assert not any(token in line for line in lines for token in (OLD, NEW))


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.audit"]
    caplog.clear()
    return lines


def test_who_asks_for_a_stream_that_it_may_not_see_is_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin = Origin(tmp_path / "o")
    origin.store.create("secret", "n bigint", bucket="1s")
    keys = Keyring([(Credential("r", Role.READER, frozenset({"s"})), NEW)])

    async def play() -> None:
        async with (
            hosted(origin.store, Access(keys=keys)) as service,
            httpx.AsyncClient(base_url=service.address, timeout=20) as client,
        ):
            for name in ("secret", "nothing"):
                assert (await client.get(f"/v1/streams/{name}/last", headers=bearer(NEW))).status_code == 404

    asyncio.run(play())
    assert [line.split(":")[1].strip() for line in audited(caplog)] == ["refused r from 127.0.0.1"] * 2


def test_every_request_that_the_http_input_refuses_is_one_line_of_the_audit_log(
    target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with target.producer() as producer, served(producer, Access(keys=senders(tmp_path))) as client:

        def said(token: str, path: str = "/s", headers: dict[str, str] | None = None, **body: Any) -> int:
            return client.post(path, headers={**bearer(token), **(headers or {})}, **body).status_code

        theirs = {"Holdfast-Producer": "m", "Holdfast-Sequence": "1"}
        for status, token, path, headers, body in (
            (401, "x" * 20, "/s", None, {"json": {"n": 1}}),
            (403, OLD, "/s", theirs, {"json": {"n": 1}}),
            (404, OLD, "/t", None, {"json": {"n": 1}}),
            (400, OLD, "/s", None, {"content": b"{", "headers": {"content-type": "application/json"}}),
            (415, OLD, "/s", None, {"content": b"n", "headers": {"content-type": "text/plain"}}),
            (422, OLD, "/s", None, {"json": {"n": "x"}}),
        ):
            given = {**(headers or {}), **body.pop("headers", {})}  # type: ignore[arg-type]
            assert said(token, path, given, **body) == status
            (line,) = audited(caplog)
            who = "a stranger" if status == 401 else "shop"
            assert line.startswith(f"http input: refused {who} from 127.0.0.1: 'POST {path}'"), status
            assert token not in line
        assert said(OLD, json={"n": 1}) == 200
        assert audited(caplog) == [], "what is stored stands in the stream"
    monkeypatch.setattr(places, "TOKEN_MAX", 0)
    with target.producer() as producer, served(producer, Access(keys=senders(tmp_path))) as client:
        assert said(OLD, json={"n": 1}) == 429
        (line,) = audited(caplog)
        assert line.startswith("http input: refused shop from 127.0.0.1: 'POST /s': one token may hold")


def test_every_line_that_the_tcp_input_refuses_is_one_line_of_the_audit_log(
    target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(keys=senders(tmp_path))
    unit = {"holdfast": {"producer": "shop-1", "seq": 99}, "rows": [{"n": 5}]}
    with target.producer() as producer, test_tcp.served(producer, access) as server:
        with test_tcp.Client(server) as line:
            answers = line.say({"token": NEW}, unit, {"n": "x"}, {"n": 1})
            assert [answer["ok"] for answer in answers] == [True, False, False, True]
        refused = audited(caplog)
        assert [said.split(": ")[1:3] for said in refused] == [
            ["refused meters from 127.0.0.1", "'line 1'"], ["refused meters from 127.0.0.1", "'line 2'"],
        ]  # fmt: skip
        with test_tcp.Client(server) as line:
            assert not line.say({"token": "x" * 20})[0]["ok"]
        assert [said.split(": ")[1] for said in audited(caplog)] == ["refused a stranger from 127.0.0.1"]
        monkeypatch.setattr(places, "TOKEN_MAX", 0)
        with test_tcp.Client(server) as line:
            assert "one token may hold" in line.say({"token": NEW})[0]["error"]
        (said,) = audited(caplog)
        assert said.startswith("tcp input: refused meters from 127.0.0.1: 'a connection': one token may hold")


def test_a_flood_of_refusals_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit("host")
    for _ in range(10_000):
        audit.refused(None, "10.0.0.1", "GET /", "no")
    assert len(caplog.records) < 40 * LINES_MAX


def senders(folder: Path) -> Keyring:
    for name, token in (("shop", OLD), ("meters", NEW), ("others", OTHER)):
        written(folder / f"{name}.token", token)
    file = folder / "senders.yaml"
    file.write_text(
        "shop: {token: shop.token, ids: [shop-1]}\nmeters: {token: meters.token, ids: [m]}\n"
        "others: {token: others.token}\n"
    )
    return load_senders(file)


def test_a_sender_writes_under_its_own_ids_and_nobody_else_does(target: Target, tmp_path: Path) -> None:
    access = Access(keys=senders(tmp_path))
    with target.producer() as producer, served(producer, access) as client:

        def send(token: str, id: str, n: int) -> int:
            headers = {**bearer(token), "Holdfast-Producer": id, "Holdfast-Sequence": str(n)}
            return client.post("/s", json={"n": n}, headers=headers).status_code

        assert send(OLD, "shop-1", 1) == 200
        assert send(NEW, "shop-1", 2_000_000) == 403, "it would make the shop's next rows duplicates"
        assert send(OTHER, "shop-1", 2_000_000) == 403
        assert send(OLD, "mine", 1) == 403
        assert send(OTHER, "mine", 3) == 200
        assert client.post("/s", json={"n": 9}, headers=bearer("x" * 20)).status_code == 401
    with target.producer() as producer, test_tcp.served(producer, access) as server, test_tcp.Client(server) as line:
        unit = {"holdfast": {"producer": "shop-1", "seq": 99}, "rows": [{"n": 5}]}
        assert [answer["ok"] for answer in line.say({"token": NEW}, unit)] == [True, False]
    assert target.numbers() == [1, 3]


def test_new_ids_of_one_sender_do_not_make_the_stream_forget_anothers(target: Target) -> None:
    """1,024 fresh ones did: the next retry of another sender was stored twice."""
    with target.producer() as producer, test_tcp.served(producer) as server, test_tcp.Client(server) as client:
        unit = {"holdfast": {"producer": "shop", "seq": 7}, "rows": [{"n": 1}]}
        assert client.say(unit)[0]["duplicate"] is False
        flood = [{"holdfast": {"producer": f"f{i}", "seq": 1}, "rows": [{"n": 2}]} for i in range(PRODUCERS_MAX + 10)]
        said = client.say(*flood)
        assert sum(answer["ok"] for answer in said) == FRESH_IDS_MAX - 1
        assert "new producer ids in an hour" in said[-1]["error"]
        assert client.say(unit)[0]["duplicate"] is True
        again = {"holdfast": {"producer": "f1", "seq": 2}, "rows": [{"n": 3}]}
        assert client.say(again)[0]["ok"], "one that is known may go on"


def test_an_id_belongs_to_one_sender(tmp_path: Path) -> None:
    senders(tmp_path)
    file = tmp_path / "senders.yaml"
    file.write_text("a: {token: shop.token, ids: [x]}\nb: {token: meters.token, ids: [x]}\n")
    with pytest.raises(UsageError, match="gives the id 'x' to 'a' and to 'b'"):
        load_senders(file)
