"""A movement of which a step fails (a full disk, a broken file, a partner that stops) instead of dying (B7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast.load.mover as mover
from holdfast.host.controller import Controller
from holdfast.load.history import History
from holdfast.load.meter import Census
from holdfast.model.errors import CorruptLog, PeerError, StorageError
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import Ack
from holdfast.protocol.load.leases import LeaseState
from holdfast.spark.node_checkpoint import progress_of
from tests.load.federation import SECOND
from tests.load.pair import Once, Pair, pair

pytestmark = pytest.mark.slow  # Real hosts with their deadlines: not beside others.
FULL = StorageError("could not write here: No space left on device; free some space")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "_AGAIN_S", 0.1)


@pytest.mark.parametrize("step", ["_file", "take_up"])
def test_a_return_that_fails_is_tried_again_and_loses_no_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.to_ben()
            where = mover if step == "_file" else two.anna.host.engine
            broken = Once(getattr(where, step), FULL)
            monkeypatch.setattr(where, step, broken)
            await two.order("anna")
            await two.until(lambda: not broken.left, "the first return to fail")
            await two.until(lambda: two.away is not None or two.note is None, "somebody to stand for it again")
            await two.at_home()
            await two.results_come()
            await two.finish()

    asyncio.run(run())


def test_a_partner_that_dies_after_a_failed_return_is_still_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, patience="1s") as two:
            await two.to_ben()
            broken = Once(mover._file, FULL)
            monkeypatch.setattr(mover, "_file", broken)
            await two.order("anna")
            await two.until(lambda: not broken.left, "the first return to fail")
            await two.ben.stop()
            await two.at_home()
            await two.results_come()
            await two.finish()

    asyncio.run(run())


@pytest.mark.parametrize("step", ["sync_dir", "take_down", "stand_in"])
def test_what_fails_after_the_note_does_not_make_the_movement_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            manager = two.anna.manager
            if step == "sync_dir":
                monkeypatch.setattr(mover, "write_note", broken := Once(mover.write_note, FULL, after=True))
            elif step == "take_down":
                monkeypatch.setattr(two.anna.host, "take_down", broken := Once(two.anna.host.take_down, FULL))
            else:
                monkeypatch.setattr(manager.mover, "stand_in", broken := Once(manager.mover.stand_in, FULL, times=3))
            await two.order("ben")
            await two.until(lambda: not broken.left, "the step to fail")
            await two.until(lambda: two.away is not None, "the node to run at ben's")
            (lease,) = manager.core.book.leases.values()
            await two.until(lambda: lease.state is LeaseState.RUNNING, "the core to know")
            await two.results_come()
            await two.order("anna")
            await two.at_home()
            await two.finish()

    asyncio.run(run())


def test_pictures_and_figures_that_cannot_be_had_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    def damaged(*given: object) -> int:
        raise CorruptLog("the segment is missing")

    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            monkeypatch.setattr(History, "_add", full)
            monkeypatch.setattr(Census, "_out_bytes", damaged)
            looked_us = two.anna.manager._measured_us
            await two.until(lambda: two.anna.manager._measured_us > looked_us + 300_000, "a few looks")
            assert not two.anna.ended
            await two.results_come()
            await two.finish()

    asyncio.run(run())


def test_a_note_that_cannot_be_written_leaves_the_node_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            monkeypatch.setattr(mover, "write_note", broken := Once(mover.write_note, FULL))
            await two.order("ben")
            await two.until(lambda: not broken.left, "the step to fail")
            await two.until(lambda: not two.anna.manager.core.book.leases, "the lease to end")
            paid = two.anna.manager.core.ledger.balance("ben")
            assert paid < 0, "it was there, and that costs its period"
            assert two.ben.manager.core.ledger.balance("anna") == -paid
            await two.finish()

    asyncio.run(run())


def test_a_movement_that_breaks_off_unexpectedly_is_told_to_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            odd = RuntimeError("cannot schedule new futures after shutdown")
            monkeypatch.setattr(two.anna.manager.mover, "_pack", broken := Once(two.anna.manager.mover._pack, odd))
            await two.order("ben")
            await two.until(lambda: not broken.left, "the step to fail")
            await two.until(lambda: two.away is not None, "the next attempt to succeed")
            await two.finish()

    asyncio.run(run())


def _breaks(two: Pair, error: Exception) -> Controller:
    """The guest at Ben's cannot go on."""
    (guest,) = two.ben.manager.tasks.values()
    controller = guest.controller
    assert controller is not None
    controller._pulse = Once(controller._pulse, error)  # type: ignore[method-assign]
    return controller


def test_a_guest_that_a_full_disk_has_stopped_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            await two.to_ben()
            broken = _breaks(two, FULL)
            await two.until(lambda: broken.trouble is not None, "the guest to fail")
            await two.results_come()
            assert two.note is not None, "and it goes on where it was"
            await two.order("anna")
            await two.at_home()
            await two.finish()

    asyncio.run(run())


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_guest_that_cannot_go_on_at_all_is_taken_up_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by_hand: bool
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, patience="2s") as two:
            await two.to_ben()
            two.flows = not by_hand  # Without inputs it is nobody's fault that nothing comes.
            broken = _breaks(two, CorruptLog("a checksum does not fit"))
            await two.until(lambda: broken.trouble is not None, "the guest to fail")
            if by_hand:
                await two.order("anna")
            await two.at_home()
            why = "has not handed it over" if by_hand else "has brought no results"
            assert why in caplog.text, "not by silence: Ben answers all the time"
            two.flows = True
            await two.results_come()
            await two.until(lambda: not two.ben.manager.tasks, "ben to let go")
            await two.finish()

    asyncio.run(run())


def test_a_guest_whose_inputs_rest_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, patience="2s") as two:
            await two.to_ben()
            two.flows = False
            await asyncio.sleep(4)
            assert two.note is not None
            two.flows = True
            await two.results_come()
            assert two.note is not None

    asyncio.run(run())


def test_input_that_the_copy_would_read_stays_until_the_movement_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch) as two:
            controller, link = two.task.controller, two.anna.manager.partners["ben"]
            assert controller is not None
            sending, broken, let_go = asyncio.Event(), asyncio.Event(), []

            async def send(guest: str, parcel: Path) -> None:
                sending.set()
                await broken.wait()
                raise PeerError("ben broke off")

            def say(sender: str, send: Send) -> None:
                if isinstance(send.message, Ack):
                    let_go.append(send.message.upto_us)
                two.anna.host.say(sender, send)

            monkeypatch.setattr(link, "send_parcel", send)
            monkeypatch.setattr(controller, "_say", say)
            monkeypatch.setattr(controller._intakes["m1"], "retain", let_go.append)
            await two.order("ben")
            await sending.wait()
            (tmp_path / "copy").mkdir()
            mover._unpacked(two.task, tmp_path / "copy")
            at_us = progress_of(tmp_path / "copy" / "checkpoint").until_us
            assert at_us is not None
            for _ in range(2):
                two.spring.flow(80)
                await two.results_come(70)
                await two.until(lambda: controller.boundary_us >= two.boundary_us - 2 * SECOND, "it to be noticed")
            assert max(let_go, default=0) <= at_us, "the copy would begin there"
            broken.set()
            await two.until(lambda: not two.anna.manager.core.book.leases, "the lease to end")
            two.spring.flow(80)
            await two.until(lambda: max(let_go, default=0) > at_us, "the input to go")

    asyncio.run(run())
