"""What is not STABLE is not moved, in either direction, and nothing is lost by waiting for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.load.mover import Mover
from holdfast.load.tasks import HeldTask
from holdfast.model.errors import UsageError
from tests.load.pair import Pair, pair

pytestmark = pytest.mark.slow  # Real hosts with their deadlines: not beside others.


def state_of(held: HeldTask) -> str:
    return "" if held.controller is None else str(held.controller.status()["state"])


async def input_fails(two: Pair, held: HeldTask) -> None:
    """No more boundaries, for longer than the node may wait."""
    two.flows = False
    await two.until(lambda: state_of(held) == "UP_FAILURE", "the node to miss its input")


def test_a_node_that_misses_an_input_is_not_offered_and_an_order_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, delay="1s") as two:
            manager = two.anna.manager
            await two.agreed()
            await input_fails(two, two.task)
            with pytest.raises(UsageError, match="counts-m1 must be STABLE to be moved; it is UP_FAILURE"):
                manager.place(two.node, "ben")
            await two.until(lambda: manager.core.book.movable == frozenset(), "it not to be offered")
            two.flows = True
            await two.at_home()
            await two.to_ben()
            await two.finish()

    asyncio.run(run())


def test_a_node_that_misses_an_input_while_it_is_on_its_way_stays_at_home_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, delay="1s") as two:
            real, level = Mover._level, []

            async def failing(mover: Mover, task: HeldTask, *given: Any) -> None:
                await real(mover, task, *given)
                await input_fails(two, task)
                level.append(task)

            monkeypatch.setattr(Mover, "_level", failing)
            await two.order("ben")
            await two.until(lambda: level, "the partner to be level")
            book = two.anna.manager.core.book
            await two.until(lambda: not book.leases and not two.ben.manager.tasks, "both to give the movement up")
            assert two.note is None
            assert book.ledger.balance("ben") == -two.ben.manager.core.ledger.balance("anna") < 0, "it ran there"
            monkeypatch.setattr(Mover, "_level", real)
            two.flows = True
            await two.finish()

    asyncio.run(run())


def test_a_guest_that_misses_an_input_is_handed_over_when_it_has_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, delay="1s") as two:
            await two.to_ben()
            (guest,) = two.ben.manager.tasks.values()
            await input_fails(two, guest)
            await two.order("anna")
            await two.until(lambda: two.anna.manager.patience._refused_us, "ben to refuse")
            assert two.note is not None
            two.flows = True
            await two.at_home()
            await two.results_come()
            await two.finish()

    asyncio.run(run())
