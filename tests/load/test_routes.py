"""What a host that shares load answers, and to whom: tokens, strangers, leases that are not, partners that are dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

import holdfast
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.host.service import Refused, Service
from holdfast.host.wire import PORTION_BYTES
from holdfast.inputs.network import Access
from holdfast.load import routes
from holdfast.load.contract_file import Partner, load_terms
from holdfast.load.manager import LoadManager
from holdfast.load.message_codec import encode_message
from holdfast.load.partner import PartnerLink
from holdfast.load.routes import doors_of
from holdfast.load.tasks import OwnTask
from holdfast.model.errors import PeerError, UsageError
from holdfast.protocol.load.messages import Offer, Reject
from holdfast.protocol.load.usage import Task, Usage
from tests.host.conftest import until
from tests.host.scripted_engine import ScriptedEngine

OPERATOR = "operator-operator-operator"


class Side:
    """One participant in this process: a host without nodes, its manager and its service."""

    def __init__(self, folder: Path, name: str, other: str, port: int, contracts: str) -> None:
        home = folder / name
        home.mkdir()
        (home / "terms.yaml").write_text(
            f"participant: {name}\ncapacity: {{cpu: 1}}\npartners:\n"
            f'  {other}: {{address: "http://127.0.0.1:{port}", token: ../pair.token}}\ncontracts:\n{contracts}'
        )
        (home / "net.yaml").write_text(f'app: app.py\nhosts: {{{name}: {{address: "127.0.0.1:1", root: data/}}}}\n')
        self.terms = load_terms(home / "terms.yaml")
        self.terms.partner(other).make_token()
        app = holdfast.App(name)
        catalog = Catalog(app.diagram(), load_deployment(home / "net.yaml"))
        self.host = Host(name, catalog, home / "data", ScriptedEngine())
        definitions = holdfast.App("definitions")
        definitions.node(inputs=["m1"], name="counts")(lambda frame: frame)
        self.manager = LoadManager(self.host, self.terms, definitions.diagram())
        self.service = Service(
            self.host.serving, Access(token=OPERATOR, port=0), deliver=self.host.deliver, status=self.host.status,
            fault=self.host.fault, stop=self.host.stop, answers=self.host.answers, doors=doors_of(self.manager),
        )  # fmt: skip


@contextlib.asynccontextmanager
async def seller(folder: Path, contracts: str = "  - {from: anna, price: 1}") -> AsyncIterator[Side]:
    """ben, who serves; anna is only a token."""
    side = Side(folder, "ben", "anna", 9, contracts)
    await side.service.start()
    running = asyncio.ensure_future(side.manager.run())
    try:
        yield side
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await side.service.close()
        await side.manager.close()
        side.host.serving.close()


def token_of(side: Side) -> str:
    return side.terms.partner("anna").token()


async def ask(side: Side, method: str, path: str, token: str, content: bytes = b"") -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=side.service.address, trust_env=False) as client:
        answer = await client.request(method, path, content=content, headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, answer.text


def test_a_partner_is_let_in_by_its_own_token_and_by_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path) as ben:
            good = token_of(ben)
            assert (await ask(ben, "GET", "/v1/partners/anna/contracts", good))[0] == 200
            for who, token in (("anna", "x" * 40), ("anna", "a"), ("anna", OPERATOR), ("carl", good)):
                status, text = await ask(ben, "GET", f"/v1/partners/{who}/contracts", token)
                assert (status, "must carry the token of one who may ask this" in text) == (401, True)

    asyncio.run(run())


def test_a_partner_gets_at_nothing_but_its_leases(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path) as ben:
            good = token_of(ben)
            for path in ("/v1/load", "/v1/contracts", "/v1/status", "/v1/load/history"):
                assert (await ask(ben, "GET", path, good))[0] == 401, path
            for path in ("guests/anna.1.0", "guests/anna.1.0/parcel", "guests/anna.1.0/output/main",
                         "inputs/ben.1.0/m1/main", "inputs/ben.1.0/m1/definition"):  # fmt: skip
                status, text = await ask(ben, "GET", f"/v1/partners/anna/{path}", good)
                assert (status, "there is no lease" in text) == (404, True), path
            status, text = await ask(ben, "POST", "/v1/partners/anna/guests/anna.1.0/parcel", good, b"x" * 1000)
            assert (status, "there is no lease" in text) == (404, True)

    asyncio.run(run())


def test_words_must_be_the_partners_own_and_about_a_contract_that_both_have(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path) as ben:
            good, path = token_of(ben), "/v1/partners/anna/messages"
            assert (await ask(ben, "POST", path, good, encode_message("anna", "ben", Reject("a:1"))))[0] == 200
            status, text = await ask(ben, "POST", path, good, encode_message("carl", "ben", Reject("a:1")))
            assert (status, "must be from anna to ben" in text) == (403, True)
            offer = Offer("anna:1", "anna.ben.00000000", 1.0, (Task("t", Usage(0.1)),), 1000)
            status, text = await ask(ben, "POST", path, good, encode_message("anna", "ben", offer))
            assert (status, "both must sign the same clauses" in text) == (403, True)
            status, text = await ask(ben, "POST", path, good, b"import os")
            assert (status, "must follow version 1" in text) == (400, True)
            assert (await ask(ben, "POST", path, good, b" " * (300 << 10)))[0] == 413

    asyncio.run(run())


def test_a_partner_gets_no_larger_portions_than_this_host_would_ask_for() -> None:
    """X4: asked for 500 MB, the host built them in memory."""
    for asked, given in (("500000000", PORTION_BYTES), ("1000", 1000), (None, PORTION_BYTES)):
        query = b"" if asked is None else f"bytes_max={asked}".encode()
        request = Request({"type": "http", "query_string": query, "headers": []})
        assert routes._bytes_max(request) == given


def test_a_parcel_that_drips_or_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: one that was there already was read for as long as its sender liked."""
    monkeypatch.setattr(routes, "_CHUNK_S", 0.3)
    monkeypatch.setattr(routes, "_CHUNK", 1000)
    monkeypatch.setattr(routes, "PARCEL_BYTES_MAX", 100_000)
    monkeypatch.setattr(routes, "_HEAD_BYTES_MAX", 0)

    def request(piece: bytes, pause_s: float) -> Request:
        async def receive() -> dict[str, object]:
            await asyncio.sleep(pause_s)
            return {"type": "http.request", "body": piece, "more_body": True}

        return Request({"type": "http", "headers": []}, receive)

    async def taken(request: Request) -> None:
        async for _ in routes._timely(request):
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(taken(request(b"x", 0.02)))
    with pytest.raises(Refused, match="100000 bytes at most"):
        asyncio.run(taken(request(b"x" * 5000, 0)))


def test_a_task_without_a_definition_here_is_not_taken(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path, "  - {from: anna, price: 9}") as ben:
            contract = ben.terms.plan.contracts[0]
            for number, definition in ((1, "counts"), (2, "elsewhere")):
                task = Task("t", Usage(0.1), definition)
                offer = Offer(f"anna:{number}", contract.contract_id, 9.0, (task,), 60_000_000)
                said = encode_message("anna", "ben", offer)
                await until(lambda: ben.manager.core._measured)
                assert (await ask(ben, "POST", "/v1/partners/anna/messages", token_of(ben), said))[0] == 200
            assert list(ben.manager.core.book.reservations) == ["anna:1"]

    asyncio.run(run())


def test_the_operator_may_look_and_is_told_in_a_sentence_what_cannot_be_moved(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path) as ben:
            assert (await ask(ben, "GET", "/v1/load", OPERATOR))[0] == 200
            status, text = await ask(ben, "POST", "/v1/move", OPERATOR, b'{"node": "nowhere", "to": "anna"}')
            assert (status, "no node 'nowhere' of 'ben'" in text) == (404, True)
            assert (await ask(ben, "POST", "/v1/move", OPERATOR, b'{"node": 3}'))[0] == 400

    asyncio.run(run())


def test_partners_find_out_whether_they_have_signed_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path, "  - {from: anna, price: 1}\n  - {to: anna, price: 2}") as ben:
            link = PartnerLink(_towards(tmp_path, ben), "anna")
            assert set(await link.consent()) == {c.contract_id for c in ben.terms.plan.contracts}
            await link.close()

    asyncio.run(run())


def test_a_partner_that_is_dead_is_one_sentence(tmp_path: Path) -> None:
    async def run() -> None:
        async with seller(tmp_path) as ben:
            partner = _towards(tmp_path, ben)
        link = PartnerLink(partner, "anna")
        with pytest.raises(PeerError, match=r"could not be reached \(Connection refused\); is the host up"):
            await link.consent()
        await link.close()

    asyncio.run(run())


def _towards(folder: Path, ben: Side) -> Partner:
    """How anna would reach ben."""
    file = folder / "anna.yaml"
    file.write_text(
        "participant: anna\ncapacity: {cpu: 1}\npartners:\n"
        f'  ben: {{address: "{ben.service.address}", token: pair.token}}\n'
    )
    return load_terms(file).partner("ben")


def test_a_node_behind_a_bounded_buffer_stays_where_it_is(tmp_path: Path) -> None:
    app = holdfast.App("chain")
    app.node(inputs=["m1"], name="first", capacity="10s")(lambda frame: frame)
    app.node(inputs=["first"], name="second")(lambda frame: frame)
    host = Host("here", Catalog(app.diagram()), tmp_path, ScriptedEngine())
    first, second = (OwnTask(host, app.diagram().node(name)) for name in ("first", "second"))
    assert first.bound_by is None
    assert second.bound_by == "its input first comes from first, which has a capacity and would wait for it"


def test_a_partner_without_a_contract_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no partner 'carl' of 'ben'"):
        Side(tmp_path, "ben", "anna", 9, "  - {from: anna, price: 1}").terms.partner("carl")
