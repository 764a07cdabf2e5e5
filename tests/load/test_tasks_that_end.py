"""A moved task ends with its input: the lease ends on both sides, the partner is rid of it, the ledgers agree (B8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.load.remote_task import read_note
from holdfast.model.errors import UsageError
from holdfast.protocol.load.ledger import MILLIONTHS
from tests.load.pair import Pair, Side, pair

pytestmark = pytest.mark.slow  # Real hosts with their deadlines: not beside others.


async def closed(two: Pair) -> None:
    """No lease is left on either side, nothing of Anna's at Ben's, and both ledgers say the same."""
    for side in (two.anna, two.ben):
        await two.until(lambda side=side: not side.manager.core.book.leases, "all leases to end")
    await two.until(lambda: not two.ben.manager.tasks, "ben to let go")
    assert not list((two.ben.host.root / ".holdfast" / "guests").iterdir())
    assert 0 > owed(two.anna, "ben") == -owed(two.ben, "anna"), "it was paid for, and both know"


def owed(side: Side, partner: str) -> float:
    return side.manager.core.ledger.balance(partner) / MILLIONTHS


def test_a_task_that_ends_at_the_partners_ends_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.to_ben()
            await two.finish()
            await closed(two)
            paid = owed(two.anna, "ben")
            await two.anna.stop()
            two.anna = Side(two.federation, "anna")
            await two.anna.start()
            await two.until(lambda: two.away is not None, "somebody to answer for the stream")
            await closed(two)
            assert owed(two.anna, "ben") == paid
            away = two.away
            assert away is not None
            assert away.ended
            assert away.trouble is None, "nobody asks a partner for a task that is over"
            assert not (two.task.home / "parcel").exists()
            assert read_note(two.task.home) is not None, "nothing is left to run at home"
            for where in ("anna", "ben"):
                with pytest.raises(UsageError, match="counts-m1 has ended"):
                    two.anna.manager.place(two.node, where)

    asyncio.run(run())


def test_a_task_that_ends_while_its_owner_is_down_ends_its_lease_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.to_ben()
            two.flows = False
            await two.anna.stop()
            two.spring.flow(5)
            two.spring.finish()
            two.anna = Side(two.federation, "anna")
            await two.anna.start()
            await two.finish()
            await closed(two)

    asyncio.run(run())


def test_a_task_that_ends_while_it_is_fetched_ends_its_lease_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.to_ben()
            await two.order("anna")
            await two.finish()
            await closed(two)

    asyncio.run(run())


def test_a_task_that_has_ended_at_home_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.finish()
            manager = two.anna.manager
            await two.until(lambda: manager.core.book.movable == frozenset(), "it not to be offered")
            with pytest.raises(UsageError, match="counts-m1 has ended"):
                manager.place(two.node, "ben")

    asyncio.run(run())
