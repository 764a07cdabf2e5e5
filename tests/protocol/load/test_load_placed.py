"""An owner's word about where a task is to run: it is offered there whether it pays or not, and stays (by hand)."""

from __future__ import annotations

import pytest

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.messages import Counter, Offer
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.signals import Place
from tests.protocol.load.load_scene import S, Scene


def scene(**loads: int) -> Scene:
    """Nothing pays: Anna has next to nothing to carry, and moving a task costs her at least 9."""
    return Scene([Contract("c", "anna", "ben", 9.0, 10.0, S)], {"anna": 3, "ben": 1, **loads}, returns=True)


def at(scene: Scene, name: str) -> int:
    return len(scene.world.hosts[name].running)


def test_without_a_word_nothing_moves() -> None:
    stage = scene()
    stage.world.run(10 * S)
    assert (at(stage, "anna"), at(stage, "ben")) == (3, 1)


def test_a_placed_task_moves_although_it_does_not_pay_and_stays_over_periods() -> None:
    stage = scene()
    stage.world.run(2 * S)
    stage.world.tell("anna", Place("anna.1", "ben"))
    stage.world.run(12 * S)
    assert (at(stage, "anna"), at(stage, "ben")) == (2, 2)
    assert "anna.1" not in stage.world.hosts["anna"].running


def test_it_comes_home_by_a_word_and_both_ledgers_agree() -> None:
    stage = scene()
    stage.world.run(2 * S)
    stage.world.tell("anna", Place("anna.1", "ben"))
    stage.world.run(6 * S)
    stage.world.tell("anna", Place("anna.1"))
    stage.world.run(12 * S)
    assert (at(stage, "anna"), at(stage, "ben")) == (3, 1)
    anna, ben = (stage.world.hosts[name].core for name in ("anna", "ben"))
    assert isinstance(anna, ParticipantCore)
    assert isinstance(ben, ParticipantCore)
    assert anna.ledger.balance("ben") == -ben.ledger.balance("anna") < 0
    assert anna.book.placed == {}


def test_the_word_survives_a_crash_of_the_owner() -> None:
    stage = scene()
    stage.world.run(2 * S)
    stage.world.tell("anna", Place("anna.1", "ben"))
    stage.world.crash("anna", S // 2)
    stage.world.run(12 * S)
    assert at(stage, "ben") == 2


def test_the_seller_may_refuse_and_names_its_price_within_the_range() -> None:
    full = scene(ben=30)
    full.world.run(2 * S)
    full.world.tell("anna", Place("anna.1", "ben"))
    full.world.run(8 * S)
    assert at(full, "ben") == 30, "thirty tasks cost more than ten each"
    near = scene(ben=9)
    near.world.run(2 * S)
    near.world.tell("anna", Place("anna.1", "ben"))
    near.world.run(6 * S)
    (counter,) = {line[3].price for line in near.talk.of(Counter) if isinstance(line[3], Counter)}
    assert counter == pytest.approx(9.5)
    assert at(near, "ben") == 10


def test_a_placed_task_is_offered_to_nobody_else() -> None:
    contracts = [Contract("c", "anna", "ben", 9.0, 10.0, S), Contract("d", "anna", "carl", 0.1, 0.2, S)]
    stage = Scene(contracts, {"anna": 3, "ben": 30, "carl": 0}, returns=True)
    stage.world.tell("anna", Place("anna.1", "ben"))
    stage.world.run(8 * S)
    later = [m for at_us, _, to, m in stage.talk.of(Offer) if to == "carl" and at_us > S]
    offered = {task.task_id for message in later if isinstance(message, Offer) for task in message.tasks}
    assert "anna.1" not in offered
    assert offered
