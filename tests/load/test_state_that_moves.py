"""A node whose operators are Holdfast's own moves with their state (B7): real hosts in this process, the real operator.

Count windows are what loses nothing silently: each depends on all tuples of its group before it.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast.load.mover as mover
from holdfast.model.errors import PeerError, UsageError
from holdfast.protocol.load.leases import LeaseState
from holdfast.spark.node_checkpoint import query_id
from holdfast.spark.state_versions import arrival_in
from holdfast.spark.versions import _memory
from tests.load.pair import Pair, Side, pair
from tests.load.plain_engine import PlainQueries

pytestmark = pytest.mark.slow  # Real hosts with their deadlines: not beside others.


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "_AGAIN_S", 0.1)


def lose_scratch(side: Side) -> int:
    """All versions on this side; how many there were."""
    _memory.clear()
    found = [path for path in side.host.root.rglob("*.state") if "versions" in path.parts]
    for folder in {path.parent for path in found}:
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)


def test_an_operators_state_goes_there_and_back_and_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, kind="tallies") as two:
            await two.results_come()
            await two.to_ben()
            guest = next(iter(two.ben.manager.tasks.values()))
            came = arrival_in(guest.home / "checkpoint")
            assert came is not None
            assert (came.operator, came.partitions) == ("aggregate-direct", 2)
            assert lose_scratch(two.ben), "what came is not on scratch, and what follows can be restored"
            await two.results_come()
            await two.order("anna")
            await two.at_home()
            await two.results_come()
            assert lose_scratch(two.anna)
            await two.results_come()
            await two.to_ben()
            await two.finish()

    asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
def test_without_the_partner_it_goes_on_from_the_state_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, patience="1s", kind="tallies") as two:
            await two.results_come()
            await two.to_ben()
            if late:
                await _stopped_while_it_hands_over(two, monkeypatch)
            await two.ben.stop()
            await two.at_home()
            await two.results_come()
            await two.finish()

    asyncio.run(run())


async def _stopped_while_it_hands_over(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is fetched, but never filed: that half of a return is thrown away."""
    fetched: list[str] = []

    def never(*given: object) -> None:
        fetched.append("once")
        raise OSError("No space left on device")

    real = mover._file
    monkeypatch.setattr(mover, "_file", never)
    await two.order("anna")
    await two.until(lambda: fetched, "the first return to fail")
    monkeypatch.setattr(mover, "_file", real)


class Keeping:
    """Stands for an operator of the user's that keeps states beside its checkpoint."""

    name, partitions = "keeping", 1

    def __init__(self, trouble: Exception | None) -> None:
        self.trouble = trouble
        self.forgotten: list[str] = []

    def pack(self, *what: object) -> bool:
        return True

    def forget(self, query: str) -> None:
        self.forgotten.append(query)
        if self.trouble is not None:
            raise self.trouble


@pytest.mark.parametrize("trouble", [None, PeerError("redis is away"), KeyError("Location")])
def test_what_a_node_kept_elsewhere_is_forgotten_where_it_has_left_and_trouble_with_that_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None
) -> None:
    keeping, real = Keeping(trouble), PlainQueries.__init__

    def begin(queries: PlainQueries, *given: Any) -> None:
        real(queries, *given)
        queries._operators = [keeping]  # type: ignore[list-item]

    monkeypatch.setattr(PlainQueries, "__init__", begin)

    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.results_come()
            first = query_id(two.task.home / "checkpoint")
            await two.to_ben()
            (guest,) = two.ben.manager.tasks.values()
            second = query_id(guest.home / "checkpoint")
            await two.until(lambda: keeping.forgotten == [first], "anna to forget")
            (lease,) = two.anna.manager.core.book.leases.values()
            assert lease.state is LeaseState.RUNNING
            await two.order("anna")
            await two.at_home()
            await two.until(lambda: not two.ben.manager.tasks, "ben to drop it")
            assert keeping.forgotten == [first, second]
            assert not guest.folder.exists()
            await two.finish()

    asyncio.run(run())


def test_a_node_whose_state_cannot_travel_is_never_offered_and_an_order_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "its operator mean keeps its state on the machines of a cluster, out of this host's reach"

    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            monkeypatch.setattr(PlainQueries, "stays_because", why)
            manager = two.anna.manager
            with pytest.raises(UsageError, match="counts-m1 cannot be moved: its operator mean keeps its state"):
                await two.order("ben")
            await two.until(lambda: manager.core.book.movable == frozenset(), "it not to be offered")

    asyncio.run(run())
