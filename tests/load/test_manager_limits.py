"""What a load manager does not do: speak of what is not durable, pay by a clock that was set, choke on old paper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import holdfast.load.manager as managers
from holdfast.load.journal import Journal
from holdfast.load.message_codec import encode_message
from holdfast.model.errors import StorageError
from holdfast.protocol.load.messages import Offer
from holdfast.protocol.load.records import OfferMade
from holdfast.protocol.load.signals import Tick
from holdfast.protocol.load.usage import Task, Usage
from holdfast.stream.disk import Disk
from tests.host.conftest import until
from tests.load.test_routes import Side, ask, token_of

DAY_US = 86_400_000_000


class Full(Disk):
    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        raise StorageError(f"could not write {path}: No space left on device")


@contextlib.asynccontextmanager
async def serving(side: Side) -> AsyncIterator[asyncio.Future[None]]:
    await side.service.start()
    running = asyncio.ensure_future(side.manager.run())
    try:
        await until(lambda: side.manager.core._measured)
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})
        await side.service.close()
        await side.manager.close()
        side.host.serving.close()


def offer(side: Side) -> bytes:
    contract = side.terms.plan.contracts[0]
    return encode_message("anna", "ben", Offer("anna:1", contract.contract_id, 9.0,
                                               (Task("t", Usage(0.1), "counts"),), 60_000_000))  # fmt: skip


@pytest.mark.parametrize(("way", "starts"), [("from", 3), ("to", 0)])
def test_who_takes_load_has_its_engine_ready_however_often_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, starts: int
) -> None:
    monkeypatch.setattr(managers, "_READY_S", 0.01)
    begun: list[str] = []

    def start() -> None:
        begun.append("once")
        if len(begun) < 3:
            raise OSError("Cannot allocate memory")

    async def run() -> None:
        ben = Side(tmp_path, "ben", "anna", 9, f"  - {{{way}: anna, price: 9}}")
        monkeypatch.setattr(ben.host.engine, "start", start)
        async with serving(ben):
            await until(lambda: len(begun) == starts)
            await ben.host.start_engine() if starts else None
            assert len(begun) == starts, "once it is there, it is there"

    asyncio.run(run())


def test_after_a_record_that_could_not_be_written_nothing_more_is_said_and_sharing_ends(tmp_path: Path) -> None:
    async def run() -> None:
        ben = Side(tmp_path, "ben", "anna", 9, "  - {from: anna, price: 9}")
        async with serving(ben) as running:
            sent: list[object] = []
            ben.manager.outbox.put = lambda to, message: sent.append(message)  # type: ignore[method-assign]
            ben.manager.journal._disk = Full()
            path, token = "/v1/partners/anna/messages", token_of(ben)
            status, text = await ask(ben, "POST", path, token, offer(ben))
            assert (status, "No space left" in text) == (503, True)
            status, text = await ask(ben, "POST", path, token, offer(ben))
            assert (status, "nothing more is agreed here" in text) == (503, True)
            await asyncio.wait({running})
            with pytest.raises(StorageError, match="start the host again"):
                running.result()
            assert not sent
        again = Journal(tmp_path / "ben" / "data" / ".holdfast" / "load" / "journal")
        assert again.records == [], "what nobody was told is not kept as if somebody had been"
        again.close()

    asyncio.run(run())


def test_a_clock_that_is_set_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tmp_path, "ben", "anna", 9, "  - {from: anna, price: 9}")
    seen: list[int] = []
    monkeypatch.setattr(side.manager.core, "handle", _noted(side.manager.core.handle, seen))
    real = managers.now_us
    for jump in (0, DAY_US, -DAY_US, 0):
        monkeypatch.setattr(managers, "now_us", lambda jump=jump: real() + jump)
        side.manager.tell(Tick())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] < DAY_US // 2


def _noted(handle: object, seen: list[int]) -> object:
    def noted(signal: object, now_us: int) -> object:
        seen.append(now_us)
        return handle(signal, now_us)  # type: ignore[operator]

    return noted


def test_an_offer_that_was_out_when_the_clauses_changed_is_forgotten_at_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        own = tmp_path / "ben" / "data" / ".holdfast" / "load"
        side = Side(tmp_path, "ben", "anna", 9, "  - {to: anna, price: 9}")
        contract = side.terms.plan.contracts[0].contract_id
        side.manager.journal.append((
            OfferMade(1, "ben:1", "ben.anna.00000000", 9.0, (Task("t", Usage(0.1)),), 1, 2),
            OfferMade(2, "ben:2", contract, 9.0, (Task("u", Usage(0.1)),), 1, 2),
        ))  # fmt: skip
        side.manager.journal.close()
        assert own.is_dir()
        manager = managers.LoadManager(side.host, side.terms, side.manager.definitions)
        assert list(manager.core.book.offers) == ["ben:2"]
        running = asyncio.ensure_future(manager.run())
        await until(lambda: manager.core._measured)
        await until(lambda: not manager.core.book.offers)
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
        await manager.close()

    asyncio.run(run())
