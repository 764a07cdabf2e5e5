"""The core as a core: one door, records that bring everything back, refusals that change nothing; and properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import UsageError
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.contract import Contract, fixed_price
from holdfast.protocol.load.cost import MM1, Forecast, Levels
from holdfast.protocol.load.effects import Drop, Fetch, Send
from holdfast.protocol.load.leases import STEPS, LeaseState, Role
from holdfast.protocol.load.ledger import charge
from holdfast.protocol.load.messages import (
    Accept,
    Commit,
    Committed,
    Counter,
    End,
    Offer,
    Ready,
    Recall,
    Release,
    Renew,
)
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.signals import Finished, Measured, Moved, Place, Received, Returned, Tick
from holdfast.protocol.load.usage import Task, Usage, together
from tests.protocol.load.load_scene import S, Scene, both_ways, tasks

LINE = fixed_price("a>b", "a", "b", 10.0)


def book_of(core: ParticipantCore) -> tuple[object, ...]:
    book = core.book
    owed = {name: (account.entries, account.amount) for name, account in book.ledger.accounts.items()}
    return (book.number, book.asked_us, book.offers, book.reservations, book.leases, book.dealt, owed,
            book.ledger.settled)  # fmt: skip


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.floats(0.5, 40.0), st.booleans())
def test_what_is_offered_saves_more_than_it_costs_and_nothing_more_would(sizes, price, queueing):
    cost = MM1(Usage(cpu=60.0)) if queueing else Levels()
    contract = fixed_price("a>b", "a", "b", price)
    mine = [Task(str(k), Usage(float(size))) for k, size in enumerate(sizes)]
    load = together(task.usage for task in mine)
    offered = Judge(cost).offerset(mine, load, contract, price)
    rest = load.minus(together(task.usage for task in offered))
    saved = cost.total(load) - cost.total(rest)
    assert not offered or saved > price * sum(task.usage.cpu for task in offered)
    # The last look at each task that stayed was with at least the load that is left, so convexity says: it still stays.
    for task in mine:
        if task not in offered:
            assert cost.total(rest) - cost.total(rest.minus(task.usage)) <= price * task.usage.cpu + 1e-9


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(0, 30), st.floats(0.5, 40.0))
def test_what_is_accepted_brings_more_than_it_costs(sizes, held, price):
    cost = Levels()
    contract = fixed_price("a>b", "a", "b", price)
    offered = [Task(str(k), Usage(float(size))) for k, size in enumerate(sizes)]
    accepted = Judge(cost).acceptset(offered, Usage(float(held)), contract, price)
    x = sum(task.usage.cpu for task in accepted)
    assert not accepted or ((held + x) ** 2 - held**2) / 2 < price * x


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 7.0))
def test_records_bring_everything_back_and_so_do_the_short_ones(seed, seconds):
    size = [3 + seed % 17, seed // 7 % 15, seed // 3 % 12]
    contracts = both_ways(("a", "b"), ("b", "c"), low=8, high=10)
    scene = Scene(contracts, dict(zip("abc", size, strict=True)), returns=True).run(seconds)
    for name, host in scene.world.hosts.items():
        core = scene.core(name)
        again = ParticipantCore(core.plan, host.journal, scene.world.now_us)
        short = ParticipantCore(core.plan, core.snapshot(), scene.world.now_us)
        assert book_of(again) == book_of(core)
        assert book_of(short) == book_of(core)


def test_a_message_without_a_contract_changes_nothing():
    core = ParticipantCore(ParticipantPlan("b", Levels(), (LINE,)), (), 0)
    core.handle(Measured(()), 0)
    before = book_of(core)
    offer = Offer("x:1", "a>b", 10.0, tuple(tasks("x", 2)), S)
    for sender, message in (
        ("x", offer),
        ("a", Commit("a:9", (("a:9#0", "t"),))),
        ("a", Renew("a:9#0", 3, 1.0, -1)),
        ("a", Recall("a:9#0")),
        ("a", End("a:9#0", True, -1)),
        ("a", Accept("b:1", ("t",))),
    ):
        core.handle(Received(sender, message), 10)
        assert book_of(core) == before


def test_an_offer_below_the_contract_is_refused():
    core = ParticipantCore(ParticipantPlan("b", Levels(), (Contract("a>b", "a", "b", 8, 10),)), (), 0)
    core.handle(Measured(()), 0)
    effects = core.handle(Received("a", Offer("a:1", "a>b", 7.0, tuple(tasks("a", 2)), S)), 1)
    assert [type(sent.message).__name__ for sent in effects.send] == ["Reject"]
    assert not effects.record


def test_the_same_offer_twice_gets_the_same_answer_and_one_reservation():
    core = ParticipantCore(ParticipantPlan("b", Levels(), (LINE,)), (), 0)
    core.handle(Measured(()), 0)
    offer = Received("a", Offer("a:1", "a>b", 10.0, tuple(tasks("a", 3)), S))
    first, second = core.handle(offer, 1), core.handle(offer, 2)
    assert first.send == second.send
    assert len(core.book.reservations) == 1


def test_a_commitment_after_the_promise_has_run_out_is_refused_and_costs_nothing():
    core = ParticipantCore(ParticipantPlan("b", Levels(), (LINE,)), (), 0)
    core.handle(Measured(()), 0)
    core.handle(Received("a", Offer("a:1", "a>b", 10.0, tuple(tasks("a", 1)), S)), 0)
    core.handle(Tick(), S)
    effects = core.handle(Received("a", Commit("a:1", (("a:1#0", "a.0"),))), S + 1)
    assert [type(sent.message).__name__ for sent in effects.send] == ["Refused"]
    assert not core.ledger.accounts


def test_a_movement_that_failed_costs_nothing_on_either_side():
    scene = Scene([LINE], {"a": 14, "b": 0}, latency_us=10_000)
    scene.world.network = type(scene.world.network)((10_000, 10_000), move_fails=1.0)
    scene.run(0.9)
    assert scene.loads == {"a": 14, "b": 0}
    assert scene.core("b").ledger.settled == {"a>b": ("a", "b", 0)}
    assert scene.core("a").ledger.balance("b") == scene.core("b").ledger.balance("a") == 0


def test_nothing_is_offered_that_may_not_be_moved_now():
    core = ParticipantCore(ParticipantPlan("a", Levels(), (LINE,)), (), 0)
    mine = tuple(tasks("a", 14))
    effects = core.handle(Measured(mine, movable=("a.3",)), 0)
    assert [task.task_id for sent in effects.send for task in sent.message.tasks] == ["a.3"]


def test_nothing_is_offered_before_the_host_has_said_what_runs():
    core = ParticipantCore(ParticipantPlan("a", Levels(), (LINE,)), (), 0)
    assert not core.handle(Tick(), 5 * S).send


def test_a_task_moved_further_is_called_back_when_its_owner_wants_it():
    contracts = [fixed_price("a>b", "a", "b", 10.0), fixed_price("b>c", "b", "c", 5.0)]
    scene = Scene(contracts, {"a": 16, "b": 4, "c": 0}, returns=True).run(3.5)
    assert scene.loads["c"] > 0
    for k in range(10, 16):
        scene.world.finish("a", f"a.{k}")
    for k in range(4):
        scene.world.finish("b", f"b.{k}")
    scene.run(20)
    assert sum(scene.loads.values()) == 10
    for x, y in (("a", "b"), ("b", "c")):
        assert scene.core(x).ledger.balance(y) == -scene.core(y).ledger.balance(x)


def moving() -> tuple[ParticipantCore, list[Task], list[object]]:
    """A buyer whose first task is on its way to its partner, what it runs, and its records."""
    core, mine = ParticipantCore(ParticipantPlan("a", Levels(), (LINE,)), (), 0), tasks("a", 12)
    records: list[object] = list(core.handle(Measured(tuple(mine)), 0).record)
    for answer in (Accept("a:1", ("a.0",)), Committed("a:1", (charge("a:1#0", 0, LINE, 10.0, 1.0),))):
        records += core.handle(Received("b", answer), 1).record
    assert core.book.leases["a:1#0"].state is LeaseState.MOVING
    return core, mine, records


def test_a_counter_offer_that_does_not_pay_is_let_go_at_once_and_one_that_does_is_kept():
    contracts = tuple(Contract(f"a>{seller}", "a", seller, 8.0, 12.0) for seller in "bcd")
    core = ParticipantCore(ParticipantPlan("a", Levels(), contracts), (), 0)
    core.handle(Measured(tuple(tasks("a", 10))), 0)
    # The tenth task costs a 9.5.
    effects = core.handle(Received("b", Counter("a:1", 9.5, ("a.0",))), 1)
    assert Send("b", Release("a:1")) in effects.send
    assert [sent.to for sent in effects.send if isinstance(sent.message, Offer)] == ["c"]
    effects = core.handle(Received("c", Counter("a:2", 9.0, ("a.0",))), 2)
    assert [(sent.to, type(sent.message)) for sent in effects.send] == [("d", Offer)]


def ends(effects) -> list[str]:
    return [sent.message.lease_id for sent in effects.send if isinstance(sent.message, End)]


def test_a_task_that_is_over_while_it_is_on_its_way_home_does_not_run_on():
    core, mine, records = moving()
    for signal in (Moved("a:1#0"), Place("a.0")):
        records += core.handle(signal, 2).record
    assert core.handle(Received("b", Ready("a:1#0")), 3).fetch == (Fetch("a:1#0", mine[0], "b"),)
    effects = core.handle(Finished("a.0"), 4)
    records += effects.record
    assert ends(effects) == ["a:1#0"]
    again, short = (ParticipantCore(core.plan, kept, 5) for kept in (records, core.snapshot()))
    assert core.handle(Returned("a:1#0"), 5).drop == (Drop("a.0"),)
    for restarted in (again, short):
        assert restarted.handle(Measured(tuple(mine)), 6).drop == (Drop("a.0"),)
        assert restarted.load == Usage(11.0)


def test_a_task_that_comes_home_before_it_is_over_is_not_stopped_for_it():
    core, mine, _ = moving()
    for signal in (Moved("a:1#0"), Place("a.0"), Received("b", Ready("a:1#0"))):
        core.handle(signal, 2)
    assert not core.handle(Returned("a:1#0"), 3).drop
    assert not core.handle(Returned("a:1#0"), 4).drop
    assert not core.handle(Measured(tuple(mine)), 5).drop


def test_a_task_that_is_over_while_it_is_on_its_way_to_a_partner_is_ended_there():
    core, mine, records = moving()
    again = ParticipantCore(core.plan, records, 2)
    assert [move.lease_id for move in again.handle(Measured(tuple(mine[1:])), 2).move] == ["a:1#0"]
    assert not ends(again.handle(Finished("a.0"), 3))
    assert ends(again.handle(Moved("a:1#0"), 4)) == ["a:1#0"]


def test_every_state_of_a_lease_can_be_left_but_the_last():
    for role in Role:
        reached = {state for (r, _), after in STEPS.items() if r is role for state in after}
        assert reached - {LeaseState.ENDED} <= {state for r, state in STEPS if r is role}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Contract("x", "a", "a", 1, 2), "two participants"),
        (lambda: Contract("x", "a", "b", 3, 2), "lowest price <= highest"),
        (lambda: Contract("x", "a", "b", 1, 2, period_us=0), "positive period"),
        (lambda: MM1(Usage()), "positive"),
        (lambda: Forecast(((0.5, 1.0),)), "add up to 1"),
        (lambda: ParticipantPlan("c", Levels(), (LINE,)), "must name 'c'"),
        (lambda: ParticipantPlan("a", Levels(), (LINE,), margin=1.0), "margin"),
        (lambda: ParticipantPlan("a", Levels(), (LINE,), answer_us=S), "twice the time"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(make, words):
    with pytest.raises(UsageError, match=words):
        make()
