"""A partner has a say in its own bargains and in nobody else's, whatever ids it uses (X1, B2, B8)."""

from __future__ import annotations

import pytest

from holdfast.protocol.load.contract import fixed_price
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.effects import Effects
from holdfast.protocol.load.leases import LeaseState
from holdfast.protocol.load.messages import (
    Accept,
    Commit,
    Committed,
    End,
    Ended,
    Message,
    Offer,
    Ready,
    Recall,
    Release,
    Renew,
    Renewed,
)
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.signals import Arrived, Measured, Moved, Received, Tick
from tests.protocol.load.load_scene import S, tasks

CONTRACTS = (
    fixed_price("anna>ben", "anna", "ben", 10.0, period_us=S),
    fixed_price("carl>ben", "carl", "ben", 10.0, period_us=S),
    fixed_price("ben>dora", "ben", "dora", 5.0, period_us=S),
)


def ben_with_a_guest() -> ParticipantCore:
    """Anna's task runs at Ben's under anna:1#0; Carl and Dora are partners as well."""
    core = ParticipantCore(ParticipantPlan("ben", Levels(), CONTRACTS), (), 0)
    core.handle(Measured(()), 0)
    say(core, "anna", Offer("anna:1", "anna>ben", 10.0, tuple(tasks("t", 1)), S))
    say(core, "anna", Commit("anna:1", (("anna:1#0", "t.0"),)))
    core.handle(Arrived("anna:1#0"), 2)
    assert core.book.leases["anna:1#0"].state is LeaseState.RUNNING
    return core


def say(core: ParticipantCore, sender: str, message: Message, now_us: int = 1) -> Effects:
    return core.handle(Received(sender, message), now_us)


def said(effects: Effects) -> list[str]:
    return [type(sent.message).__name__ for sent in effects.send]


def snapshot(core: ParticipantCore) -> tuple[object, ...]:
    return core.snapshot()


@pytest.mark.parametrize("lease_id", ["anna:1#0", "anna:9#0", "carl:1#7", "carl:2#0", "t.0"])
def test_a_commitment_opens_leases_of_the_offer_and_no_others(lease_id: str) -> None:
    core = ben_with_a_guest()
    say(core, "carl", Offer("carl:1", "carl>ben", 10.0, tuple(tasks("c", 2)), S))
    before = snapshot(core)
    assert not say(core, "carl", Commit("carl:1", ((lease_id, "c.0"),))).record
    assert snapshot(core) == before
    assert core.book.leases["anna:1#0"].partner == "anna"


def test_a_commitment_names_each_task_once() -> None:
    core = ben_with_a_guest()
    say(core, "carl", Offer("carl:1", "carl>ben", 10.0, tuple(tasks("c", 2)), S))
    assert not say(core, "carl", Commit("carl:1", (("carl:1#0", "c.0"), ("carl:1#1", "c.0")))).record
    assert say(core, "carl", Commit("carl:1", (("carl:1#0", "c.0"), ("carl:1#1", "c.1")))).record


@pytest.mark.parametrize("offer_id", ["anna:2", "carl:2.0", "carl:", "carl", "carl:anna:2", "dora:carl:1"])
def test_an_offer_is_made_under_ones_own_name(offer_id: str) -> None:
    core = ben_with_a_guest()
    effects = say(core, "carl", Offer(offer_id, "carl>ben", 10.0, tuple(tasks("c", 1)), S))
    assert (said(effects), effects.record) == (["Reject"], ())


def test_nobody_releases_what_another_has_offered() -> None:
    core = ParticipantCore(ParticipantPlan("ben", Levels(), CONTRACTS, gather_us=1000), (), 0)
    core.handle(Measured(()), 0)
    say(core, "anna", Offer("anna:1", "anna>ben", 10.0, tuple(tasks("t", 1)), S))
    say(core, "carl", Release("anna:1"))
    assert "Accept" in said(core.handle(Measured(()), 2000))


def test_an_offer_with_the_id_of_an_old_bargain_is_refused() -> None:
    core = ben_with_a_guest()
    say(core, "anna", End("anna:1#0", False, 0))
    effects = say(core, "anna", Offer("anna:1", "anna>ben", 10.0, tuple(tasks("t", 1)), S))
    assert (said(effects), effects.record) == (["Reject"], ())


def test_a_stranger_learns_nothing_of_a_lease_and_ends_nothing() -> None:
    core = ben_with_a_guest()
    before = snapshot(core)
    for message in (End("anna:1#0", True, -1), Renew("anna:1#0", 5, 1.0, -1), Recall("anna:1#0")):
        assert not say(core, "carl", message).send
    assert snapshot(core) == before


def anna_with_a_task_away() -> ParticipantCore:
    dearer = fixed_price("anna>carl", "anna", "carl", 10.5, period_us=S)
    plan = ParticipantPlan("anna", Levels(), (CONTRACTS[0], dearer))
    core = ParticipantCore(plan, (), 0)
    effects = core.handle(Measured(tuple(tasks("t", 11))), 0)
    (offer,) = [sent.message for sent in effects.send]
    assert isinstance(offer, Offer)
    say(core, "ben", Accept(offer.offer_id, ("t.0", "t.0")))
    assert [lease.task.task_id for lease in core.book.leases.values()] == ["t.0"], "a task has one lease"
    ben = ParticipantCore(ParticipantPlan("ben", Levels(), CONTRACTS[:1]), (), 0)
    ben.handle(Measured(()), 0)
    say(ben, "anna", offer)
    (committed,) = [s.message for s in say(ben, "anna", Commit("anna:1", (("anna:1#0", "t.0"),))).send]
    assert isinstance(committed, Committed)
    say(core, "ben", committed)
    core.handle(Moved("anna:1#0"), 2)
    return core


def test_answers_about_a_lease_count_from_its_partner_alone() -> None:
    core = anna_with_a_task_away()
    lease = core.book.leases["anna:1#0"]
    say(core, "ben", Recall("anna:1#0"), 3)
    core.handle(Measured(tuple(tasks("t", 11)[1:])), 2 * S)
    assert lease.state is LeaseState.RETURNING
    core.handle(Tick(), 2 * S)  # It pays on until it has its task back.
    before = snapshot(core)
    effects = say(core, "carl", Ready("anna:1#0"), 2 * S + 1)
    assert not effects.fetch
    say(core, "carl", Ended("anna:1#0", ()), 2 * S + 1)
    say(core, "carl", Renewed("anna:1#0", core.ledger.after("anna:1#0", -1)), 2 * S + 1)
    assert snapshot(core) == before
    assert say(core, "ben", Ready("anna:1#0"), 2 * S + 2).fetch
