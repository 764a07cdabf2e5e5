"""Leases that run for long, and partners that were apart for long: words are bounded, ledgers equal (B8, X4)."""

from __future__ import annotations

import pytest

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.leases import LeaseState
from holdfast.protocol.load.ledger import charge
from holdfast.protocol.load.messages import Commit, End, Ended, Offer, Recall, Reject, Renew, Renewed
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import UNPAID_PERIODS, ParticipantPlan
from holdfast.protocol.load.records import Charged
from holdfast.protocol.load.signals import Arrived, Measured, Place, Received, Tick
from holdfast.protocol.load.usage import Task, Usage
from holdfast.sim.load.world import Network
from tests.protocol.load.load_scene import S, Scene, tasks

CONTRACT = Contract("c", "anna", "ben", 9.0, 10.0, S)


def apart() -> Scene:
    """A task of Anna's runs at Ben's; then no word gets through."""
    scene = Scene([CONTRACT], {"anna": 3, "ben": 1}, returns=True)
    scene.world.run(2 * S)
    scene.world.tell("anna", Place("anna.1", "ben"))
    scene.world.run(5 * S)
    assert scene.loads == {"anna": 2, "ben": 2}
    scene.world.network = Network(lose=1.0)
    return scene


def test_who_was_apart_for_less_than_the_patience_settles_and_goes_on() -> None:
    scene = apart()
    scene.run(5 + UNPAID_PERIODS - 1)
    scene.world.network = Network((1000, 1000), repeat=0.5)
    scene.run(20)
    anna, ben = scene.core("anna"), scene.core("ben")
    assert anna.book.leases["anna:1#0"].state is ben.book.leases["anna:1#0"].state is LeaseState.RUNNING
    assert anna.ledger.last("anna:1#0") == ben.ledger.last("anna:1#0") >= 17
    assert anna.ledger.balance("ben") == -ben.ledger.balance("anna")


def test_the_guest_of_a_buyer_that_vanished_is_put_out_and_goes_on_at_home_when_the_buyer_hears_of_it_x7() -> None:
    scene = apart()
    scene.run(5 + UNPAID_PERIODS + 2)
    assert scene.loads["ben"] == 1
    assert not scene.core("ben").book.leases
    scene.run(500)
    assert not scene.core("ben").book.leases
    scene.world.network = Network((1000, 1000), repeat=0.5)
    scene.run(505)
    anna, ben = scene.core("anna"), scene.core("ben")
    assert scene.loads == {"anna": 3, "ben": 1}
    assert not anna.book.leases
    assert not ben.ledger.accounts
    assert anna.ledger.balance("ben") == -ben.ledger.balance("anna") < 0


def test_a_guest_is_put_out_also_after_a_crash_of_the_seller_x7() -> None:
    scene = apart()
    scene.world.crash("ben", 60 * S)
    scene.run(5 + 60 + 0.9)
    assert scene.loads["ben"] == 2, "it was down itself: its buyers have a period to pay"
    scene.run(90)
    assert scene.loads["ben"] == 1
    assert not scene.core("ben").book.leases


def seller(arrived: bool = True) -> ParticipantCore:
    core = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), (), 0)
    core.handle(Measured(()), 0)
    core.handle(Received("anna", Offer("anna:1", "c", 9.0, tuple(tasks("t", 1)), S)), 0)
    core.handle(Received("anna", Commit("anna:1", (("anna:1#0", "t.0"),))), 0)
    if arrived:
        core.handle(Arrived("anna:1#0"), 0)
    return core


def test_nobody_pays_for_periods_that_lie_in_the_future_of_the_seller() -> None:
    core = seller()
    core.handle(Received("anna", Renew("anna:1#0", 10_000, 1.0, 0)), 3 * S)
    assert core.ledger.last("anna:1#0") == 4


def test_a_movement_that_failed_costs_nothing_before_the_task_has_arrived_and_its_period_afterwards() -> None:
    """Otherwise whoever calls a movement failed just before its period is over has it for nothing, every time."""
    moving, running = seller(arrived=False), seller()
    for core in (moving, running):
        core.handle(Received("anna", End("anna:1#0", True, 0)), S // 2)
    assert moving.ledger.balance("anna") == 0
    assert running.ledger.balance("anna") == 9 * S
    late = seller()
    late.handle(Received("anna", End("anna:1#0", True, 0)), 3600 * S)
    assert late.ledger.balance("anna") == 9 * S


@pytest.mark.parametrize("units", [0.0, -1.0, 0.999, float("nan"), float("inf")])
def test_who_pays_for_less_than_was_agreed_has_not_paid_and_is_put_out_x7(units: float) -> None:
    core = seller()
    for period in range(1, UNPAID_PERIODS + 1):
        effects = core.handle(Received("anna", Renew("anna:1#0", period, units, 0)), period * S)
        assert [type(sent.message) for sent in effects.send] == [Recall]
    assert core.ledger.last("anna:1#0") == 0
    effects = core.handle(Received("anna", Renew("anna:1#0", 9, units, 0)), (UNPAID_PERIODS + 1) * S)
    assert [drop.lease_id for drop in effects.drop] == ["anna:1#0"]
    assert not core.book.leases


def test_what_was_not_paid_for_is_put_out_after_so_many_periods_and_not_sooner_x7() -> None:
    """1,000 unpaid periods: RUNNING, once."""
    core = seller()
    assert not core.handle(Tick(), (UNPAID_PERIODS + 1) * S - 1).drop
    effects = core.handle(Tick(), (UNPAID_PERIODS + 1) * S)
    assert [drop.lease_id for drop in effects.drop] == ["anna:1#0"]
    assert [type(sent.message) for sent in effects.send] == [Ended]
    assert not core.book.leases
    assert core.book.over("anna:1#0")


def test_a_task_that_uses_far_more_than_it_is_paid_for_is_sent_home_and_one_that_trembles_is_not() -> None:
    for used, answer in ((2.0, Renewed), (30.0, Recall)):
        core = seller()
        core.handle(Measured((Task("anna:1#0", Usage(used)),)), S)
        effects = core.handle(Received("anna", Renew("anna:1#0", 1, 1.0, 0)), S)
        assert [type(sent.message) for sent in effects.send][:1] == [answer]


def test_a_bargain_whose_task_never_comes_is_let_go_and_costs_nothing() -> None:
    core = seller(arrived=False)
    core.handle(Tick(), (UNPAID_PERIODS + 1) * S)
    assert not core.book.leases
    assert core.ledger.balance("anna") == 0


def test_nothing_that_weighs_less_than_nothing_is_taken() -> None:
    core = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), (), 0)
    core.handle(Measured(()), 0)
    for k, amounts in enumerate((Usage(-5.0), Usage(2.0, -1.0), Usage(float("nan")), Usage(0.0))):
        effects = core.handle(Received("anna", Offer(f"anna:{k}", "c", 9.0, (Task("t", amounts),), S)), k)
        assert [type(sent.message) for sent in effects.send] == [Reject]


def test_a_ledger_of_many_periods_is_as_short_as_one_of_few() -> None:
    """200,000 periods took 4 ms a tick and half a second in the loop, once."""
    core, periods = seller(), 20_000
    for period in range(1, periods + 1):
        core.handle(Received("anna", Renew("anna:1#0", period, 1.0, period - 1)), period * S)
    assert core.ledger.balance("anna") == (periods + 1) * 9 * S
    assert len(core.snapshot()) < 10
    again = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), core.snapshot(), periods * S)
    assert again.ledger.balance("anna") == core.ledger.balance("anna")
    assert again.ledger.last("anna:1#0") == periods


def test_leases_that_are_over_are_kept_as_a_sum_and_their_numbers_are_not_dealt_under_again() -> None:
    core = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), (), 0)
    core.handle(Measured(()), 0)
    for k in range(1, 301):
        core.handle(Received("anna", Offer(f"anna:{k}", "c", 9.0, tuple(tasks("t", 1)), S)), k * S)
        core.handle(Received("anna", Commit(f"anna:{k}", ((f"anna:{k}#0", "t.0"),))), k * S)
        core.handle(Arrived(f"anna:{k}#0"), k * S)
        core.handle(Received("anna", End(f"anna:{k}#0", False, 0)), k * S)
    assert core.ledger.balance("anna") == core.ledger.paid("c") == 300 * 9 * S
    assert len(core.snapshot()) < 5
    again = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), core.snapshot(), 301 * S)
    again.handle(Measured(()), 301 * S)
    assert again.ledger.balance("anna") == 300 * 9 * S
    effects = again.handle(Received("anna", Offer("anna:300", "c", 9.0, tuple(tasks("t", 1)), S)), 301 * S)
    assert [type(sent.message) for sent in effects.send] == [Reject]


def test_the_journal_of_an_earlier_version_opens_and_says_the_same() -> None:
    """It held every entry of every lease, and no word of what is closed."""
    core = seller()
    entries = [charge("anna:1#0", period, CONTRACT, 9.0, 1.0) for period in range(5)]
    records = [Charged(entry) for entry in entries]
    ben = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), records, 0)
    anna = ParticipantCore(ParticipantPlan("anna", Levels(), (CONTRACT,)), records, 0)
    assert ben.ledger.balance("anna") == -anna.ledger.balance("ben") == 5 * 9 * S
    assert not anna.ledger.accounts
    assert ben.book.over("anna:1#0")
    assert core.book.dealt == ben.book.dealt == {"anna": 1}


def test_what_was_renewed_is_not_taken_back() -> None:
    core = seller()
    core.handle(Received("anna", Renew("anna:1#0", 1, 1.0, 0)), S)
    before = core.ledger.balance("anna")
    core.handle(Received("anna", End("anna:1#0", True, 1)), 2 * S)
    assert core.ledger.balance("anna") == before > 0
