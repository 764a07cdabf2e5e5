"""Leases that run for long, and partners that were apart for long: words are bounded, ledgers equal (B8, X4)."""

from __future__ import annotations

from holdfast.load.wire import MESSAGE_BYTES_MAX, encode_message
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.messages import Commit, End, Ended, Offer, Renew, Renewed
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.signals import Arrived, Measured, Place, Received
from holdfast.protocol.load.tenure import ENTRIES_MAX
from holdfast.sim.load.world import Network
from tests.protocol.load.load_scene import S, Scene, tasks

CONTRACT = Contract("c", "anna", "ben", 9.0, 10.0, S)
PERIODS = 2500


def apart() -> Scene:
    """A task of Anna's runs at Ben's; for half an hour no word gets through."""
    scene = Scene([CONTRACT], {"anna": 3, "ben": 1}, returns=True)
    scene.world.run(2 * S)
    scene.world.tell("anna", Place("anna.1", "ben"))
    scene.world.run(5 * S)
    assert scene.loads == {"anna": 2, "ben": 2}
    scene.world.network = Network(lose=1.0)
    scene.world.run(PERIODS * S)
    return scene


def longest(scene: Scene) -> int:
    said = [m for _, _, _, m in scene.talk.lines if isinstance(m, Renewed | Ended)]
    return max(len(encode_message("ben", "anna", message)) for message in said)


def test_partners_that_meet_after_many_periods_settle_them_in_words_of_bounded_length() -> None:
    scene = apart()
    scene.world.network = Network((1000, 1000))
    scene.run(PERIODS + 3)
    assert longest(scene) < MESSAGE_BYTES_MAX
    anna, ben = scene.core("anna"), scene.core("ben")
    assert len(anna.ledger.entries()) >= PERIODS - 1
    assert anna.ledger.entries() == ben.ledger.entries()


def test_a_lease_does_not_end_before_the_buyer_has_every_entry_although_words_come_twice() -> None:
    scene = apart()
    anna, ben = scene.core("anna"), scene.core("ben")
    lease = anna.book.leases["anna:1#0"]
    scene.world.network = Network((1000, 1000))
    while lease.asked < PERIODS // 2:
        scene.world.run(scene.world.now_us + 500)
    scene.world.network = Network(lose=1.0)
    for _ in range(PERIODS // ENTRIES_MAX + 1):  # The question is heard again and again, its answer never.
        scene.world._arrive("anna", "ben", Renew("anna:1#0", lease.asked, 1.0, 3))
    assert len(ben.ledger.entries()) > PERIODS - 3 > len(anna.ledger.entries())
    scene.world.network = Network((1000, 1000), repeat=0.5)
    scene.world.finish("anna", "anna.1")
    scene.run(PERIODS + 9)
    assert not anna.book.leases
    assert not ben.book.leases
    assert longest(scene) < MESSAGE_BYTES_MAX
    assert anna.ledger.balance("ben") == -ben.ledger.balance("anna")
    assert anna.ledger.entries() == ben.ledger.entries()


def seller() -> ParticipantCore:
    core = ParticipantCore(ParticipantPlan("ben", Levels(), (CONTRACT,)), (), 0)
    core.handle(Measured(()), 0)
    core.handle(Received("anna", Offer("anna:1", "c", 9.0, tuple(tasks("t", 1)), S)), 0)
    core.handle(Received("anna", Commit("anna:1", (("anna:1#0", "t.0"),))), 0)
    core.handle(Arrived("anna:1#0"), 0)
    return core


def test_nobody_pays_for_periods_that_lie_in_the_future_of_the_seller() -> None:
    core = seller()
    core.handle(Received("anna", Renew("anna:1#0", 10_000, 1.0, 0)), 3 * S)
    assert [entry.period for entry in core.ledger.of("anna:1#0")] == [0, 1, 2, 3, 4]


def test_a_movement_that_failed_costs_nothing_although_the_task_had_arrived() -> None:
    core = seller()
    core.handle(Received("anna", End("anna:1#0", True, 0)), S)
    assert core.ledger.balance("anna") == 0


def test_what_was_renewed_is_not_taken_back() -> None:
    core = seller()
    core.handle(Received("anna", Renew("anna:1#0", 1, 1.0, 0)), S)
    before = core.ledger.balance("anna")
    core.handle(Received("anna", End("anna:1#0", True, 1)), 2 * S)
    assert core.ledger.balance("anna") == before > 0
