"""003, chapters 6 and 7.2: one test per sentence that the core implements, with its section, and where we differ.

Not here: what the simulations of §7.1 show (`tests/sim/test_load_levels.py`, `benches/bpm_convergence.py`), the
analyses of §6.5 (`tests/spark/test_contract_analysis.py`), and §7.2.3, the movement itself, which is a host's matter.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from holdfast.model.errors import UsageError
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.contract import Contract, fixed_price
from holdfast.protocol.load.cost import MM1, Forecast, Levels, Steps
from holdfast.protocol.load.counter import AboveValuation, AtValuation, Equilibrium, best_counter
from holdfast.protocol.load.messages import Accept, Commit, Counter, Offer, Reject, Release
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import NOTHING, Task, Usage
from tests.protocol.load.load_scene import S, Scene, both_ways, tasks
from tests.protocol.price_band import delta, price_low, tasks_at

ONE = Usage(1.0)
LINE = fixed_price("a>b", "a", "b", 10.0)


# §6.1 ---------------------------------------------------------------------------------------------------------------


def test_6_1_2_the_default_cost_is_monotonically_increasing_and_convex_also_beyond_capacity():
    cost = MM1(Usage(cpu=100.0, bandwidth=50.0))
    totals = [cost.total(Usage(cpu=float(x), bandwidth=x / 2)) for x in range(0, 200)]
    steps = [b - a for a, b in pairwise(totals)]
    assert all(step > 0 for step in steps)
    assert all(later > earlier - 1e-9 for earlier, later in pairwise(steps))


def test_6_1_2_the_marginal_cost_is_what_one_more_task_adds():
    assert Levels().marginal(ONE, ONE.times(100)) == 100.5


# §6.2 ---------------------------------------------------------------------------------------------------------------


def test_6_2_there_is_at_most_one_contract_for_each_pair_and_direction():
    again = fixed_price("again", "a", "b", 11.0)
    with pytest.raises(UsageError, match="one contract for each partner and direction"):
        ParticipantPlan("a", Levels(), (LINE, again))
    ParticipantPlan("a", Levels(), (LINE, fixed_price("back", "b", "a", 10.0)))


def test_6_2_load_moves_only_to_partners():
    scene = Scene(both_ways(("a", "b"), low=10, high=10) + both_ways(("c", "d"), low=10, high=10),
                  {"a": 30, "b": 10, "c": 0, "d": 0}).run(5)  # fmt: skip
    assert scene.loads == {"a": 30, "b": 10, "c": 0, "d": 0}


def test_6_2_the_payment_is_price_times_load():
    big = [Task(f"a.{k}", Usage(2.0)) for k in range(8)]
    scene = Scene([LINE], {"a": big, "b": 0}).run(3)
    moved = scene.loads["b"]
    assert moved
    assert scene.core("b").ledger.balance("a") == round(10.0 * 2.0 * moved * S)


def test_6_2_an_offer_is_binding_and_an_acceptance_is_paid():
    """A buyer that crashes between offer and answer still commits when it is up again in time."""
    scene = Scene([fixed_price("a>b", "a", "b", 10.0)], {"a": 14, "b": 0}, latency_us=40_000)
    scene.run(0.02)
    assert len(scene.talk.of(Offer)) == 1
    scene.world.crash("a", 10_000)
    scene.run(1)
    assert len(scene.talk.of(Commit)) == 1
    assert scene.loads == {"a": 10, "b": 4}


def test_6_2_a_contract_may_permit_only_some_tasks():
    mixed = [*tasks("a", 6, definition="count"), Task("a.secret", ONE, "secret"), *tasks("x", 6)]
    contract = fixed_price("a>b", "a", "b", 1.0, permits=("secret",))
    scene = Scene([contract], {"a": mixed, "b": 0}).run(4)
    assert [task.definition for task in scene.world.hosts["b"].running.values()] == ["secret"]


def test_6_2_a_contract_may_forbid_that_tasks_move_further():
    def chain(onward: bool) -> dict[str, int]:
        contracts = [
            fixed_price("a>b", "a", "b", 10.0, onward=onward),
            fixed_price("b>c", "b", "c", 5.0),
        ]
        return Scene(contracts, {"a": 16, "b": 0, "c": 0}).run(8).loads

    assert chain(onward=True)["c"] > 0
    assert chain(onward=False)["c"] == 0


# §6.3 ---------------------------------------------------------------------------------------------------------------


def test_6_3_offer_load_offers_a_maximal_set_that_costs_more_here_than_there():
    """Figure 6-4, lines 04 to 08; at price 10 tasks 11 and up cost more."""
    offered = Judge(Levels()).offerset(tasks("a", 14), ONE.times(14), LINE, 10.0)
    assert len(offered) == 4


def test_6_3_accept_load_takes_all_tasks_that_cost_less_than_they_bring():
    """Figure 6-5, lines 09 to 13."""
    accepted = Judge(Levels()).acceptset(tasks("a", 14), ONE.times(7), LINE, 10.0)
    assert len(accepted) == 3


@pytest.mark.parametrize(("load_a", "load_b", "after"), [(16, 0, (10, 6)), (12, 8, (10, 10)), (18, 8, (16, 10))])
def test_6_3_figure_6_6_three_scenarios(load_a, load_b, after):
    scene = Scene([LINE], {"a": load_a, "b": load_b}).run(4)
    assert tuple(scene.loads.values()) == after


def test_6_3_offers_are_examined_dearest_first():
    contracts = [fixed_price("a>z", "a", "z", 6.0), fixed_price("b>z", "b", "z", 9.0)]
    scene = Scene(contracts, {"a": 10, "b": 12, "z": 5}, gather_us=100_000).run(0.5)
    first = scene.talk.of(Accept)[0]
    assert first[2] == "b"


def test_6_3_acceptances_count_what_was_accepted_before():
    """The potentialset: two offers at once together get no more than the room there is (B6)."""
    contracts = [fixed_price("a>z", "a", "z", 10.0), fixed_price("b>z", "b", "z", 10.0)]
    scene = Scene(contracts, {"a": 15, "b": 15, "z": 4}, gather_us=50_000).run(3)
    assert scene.loads == {"a": 10, "b": 14, "z": 10}


def test_6_3_cheaper_contracts_are_tried_first():
    contracts = [fixed_price("a>b", "a", "b", 9.0), fixed_price("a>c", "a", "c", 7.0)]
    scene = Scene(contracts, {"a": 10, "b": 0, "c": 0}).run(0.5)
    assert scene.talk.of(Offer)[0][2] == "c"


def test_6_3_a_round_goes_on_to_the_next_contract_after_a_refusal():
    """Figure 6-4 could be read as stopping after the first offer; theorem 1's proof and §7.1.1 try all in turn."""
    contracts = [fixed_price("a>b", "a", "b", 7.0), fixed_price("a>c", "a", "c", 9.0)]
    scene = Scene(contracts, {"a": 12, "b": 9, "c": 0}).run(0.5)
    assert [line[2] for line in scene.talk.of(Offer)] == ["b", "c"]
    assert scene.loads["c"] == 3


def test_6_3_one_partner_at_a_time():
    scene = Scene(both_ways(("a", "b"), ("a", "c"), ("a", "d"), low=8, high=10), {"a": 20, "b": 9, "c": 9, "d": 9})
    scene.run(10)
    out: dict[str, int] = {}
    for _, sender, to, message in scene.talk.lines:
        if isinstance(message, Offer):
            assert not out.get(sender)
            out[sender] = 1
        elif isinstance(message, Accept | Counter | Reject):
            out[to] = 0


# §6.4 ---------------------------------------------------------------------------------------------------------------


def test_6_4_a_buyer_compares_what_it_expects_over_the_period():
    """(6.6): with a spike that is over after a tenth of the period, paying for all of it is not worth while."""
    now, short = Judge(Levels()), Judge(Levels(), forecast=Forecast(((0.1, 1.0), (0.9, 0.1))))
    assert now.offerset(tasks("a", 14), ONE.times(14), LINE, 10.0)
    assert not short.offerset(tasks("a", 14), ONE.times(14), LINE, 10.0)


def test_6_4_a_seller_compares_what_it_expects_over_the_period():
    """(6.7): a load that is about to double leaves no room."""
    soon = Judge(Levels(), forecast=Forecast(((0.2, 1.0), (0.8, 2.0))))
    assert Judge(Levels()).acceptset(tasks("a", 1), ONE.times(8), LINE, 10.0)
    assert not soon.acceptset(tasks("a", 1), ONE.times(8), LINE, 10.0)


def test_6_4_moving_must_pay_for_twice_the_migration():
    """At 14 tasks the last one costs 13.5, the price is 10: a migration below 1.75 is worth it, over a second."""
    for migration, worth in ((1.7, True), (1.8, False)):
        moved = Judge(Levels()).offerset(tasks("a", 1, migration=migration), ONE.times(14), LINE, 10.0)
        assert bool(moved) is worth


def test_6_4_after_a_refusal_the_buyer_asks_again_only_after_d():
    contract = fixed_price("a>b", "a", "b", 10.0, period_us=3 * S)
    scene = Scene([contract], {"a": 20, "b": 12}).run(10)
    times = [line[0] for line in scene.talk.of(Offer)]
    assert len(times) == 4
    assert all(later - earlier >= 3 * S for earlier, later in pairwise(times))


def test_6_4_after_a_crash_too():
    contract = fixed_price("a>b", "a", "b", 10.0, period_us=3 * S)
    scene = Scene([contract], {"a": 20, "b": 12}).run(1)
    scene.world.crash("a", 100_000)
    scene.run(2.9)
    assert len(scene.talk.of(Offer)) == 1


def test_6_4_load_moves_for_d_and_may_then_return():
    scene = Scene(both_ways(("a", "b"), low=10, high=10), {"a": 14, "b": 0}, returns=True).run(2.5)
    assert scene.loads == {"a": 10, "b": 4}
    for k in range(10):
        scene.world.finish("a", f"a.{k}")
    scene.run(8)
    assert scene.loads == {"a": 4, "b": 0}
    assert all(at >= S for at, _, _ in scene.talk.returns)


def test_6_4_either_partner_may_ask_for_the_return():
    contracts = [fixed_price("a>b", "a", "b", 10.0)]
    scene = Scene(contracts, {"a": 14, "b": 0}, returns=True).run(1.5)
    for k in range(20):
        scene.world.add("b", Task(f"b.{k}", ONE))
    scene.run(8)
    assert scene.loads == {"a": 14, "b": 20}


def test_6_4_load_may_stay_for_another_period_and_is_paid_for_again():
    scene = Scene([LINE], {"a": 14, "b": 0}, returns=True).run(3.5)
    assert scene.loads == {"a": 10, "b": 4}
    assert scene.core("a").ledger.balance("b") == -4 * 10 * 4 * S


# §6.6 ---------------------------------------------------------------------------------------------------------------


def test_6_6_with_fixed_prices_a_chain_stops_after_one_hop():
    """Figure 6-12."""
    scene = Scene(both_ways(("a", "b"), ("b", "c"), low=10, high=10), {"a": 18, "b": 9, "c": 0}).run(20)
    assert scene.loads == {"a": 17, "b": 10, "c": 0}


def test_6_6_a_small_range_lets_load_travel_two_hops():
    """Figure 6-14: the middle node takes at the top of the range and passes on at the bottom."""
    scene = Scene(both_ways(("a", "b"), ("b", "c"), low=9, high=10), {"a": 18, "b": 9, "c": 0}).run(20)
    assert scene.loads == {"a": 10, "b": 9, "c": 8}


def test_6_6_1_delta_k_is_the_fall_of_the_unit_marginal_cost():
    """(6.15) and figure 6-13."""
    assert delta(Levels(), ONE, 100, 3, LINE) == 3.0
    cost = MM1(Usage(cpu=200.0))
    expected = (cost.marginal(ONE, ONE.times(99)) - cost.marginal(ONE, ONE.times(96))) / 1.0
    assert delta(cost, ONE, 100, 3, LINE) == pytest.approx(expected)


def test_6_6_1_taskset_f_is_the_last_that_fits():
    for cost, price in ((Levels(), 100.0), (MM1(Usage(cpu=200.0)), 0.02)):
        full = tasks_at(cost, ONE, price, LINE)
        assert cost.marginal(ONE, ONE.times(full - 1)) <= price < cost.marginal(ONE, ONE.times(full))


def test_6_6_1_lemma_1_where_we_differ():
    """The seeds' FixedPrice − δ is enough when FixedPrice is the marginal cost of the last task that fits. Between two
    tasks it can lie above the marginal cost of a node that should pass load on: here by more than two steps."""
    cost = MM1(Usage(cpu=22.0))
    below, above = cost.marginal(ONE, ONE.times(10)), cost.marginal(ONE, ONE.times(11))
    price = (below + above) / 2
    ours = price_low(cost, ONE, price, 5, LINE)
    theirs = price - delta(cost, ONE, tasks_at(cost, ONE, price, LINE), 4, LINE)
    assert ours < cost.marginal(ONE, ONE.times(7)) < theirs
    assert price_low(cost, ONE, below, 5, LINE) == pytest.approx(below - delta(cost, ONE, 11, 4, LINE))


def test_6_6_2_the_buyer_offers_the_lowest_price_first_and_pays_it_if_accepted():
    scene = Scene(both_ways(("a", "b"), low=9, high=10), {"a": 14, "b": 0}).run(0.5)
    assert [line[3].price for line in scene.talk.of(Offer)] == [9]
    assert scene.core("b").ledger.balance("a") == 9 * 5 * S


def test_6_6_2_a_seller_within_the_range_counters_for_a_single_task():
    scene = Scene([Contract("a>b", "a", "b", 9, 11)], {"a": 14, "b": 9}).run(0.5)
    counter = scene.talk.of(Counter)[0][3]
    assert counter.price == 9.5
    assert len(counter.task_ids) == 1
    assert scene.loads == {"a": 13, "b": 10}


def test_6_6_2_at_the_top_of_the_range_it_takes_all_that_pay():
    scene = Scene([Contract("a>b", "a", "b", 8, 11)], {"a": 20, "b": 9}, asking=AboveValuation(5.0)).run(0.5)
    counter = scene.talk.of(Counter)[0][3]
    assert (counter.price, len(counter.task_ids)) == (11, 2)


def test_6_6_2_above_the_range_it_refuses():
    scene = Scene([Contract("a>b", "a", "b", 9, 10)], {"a": 14, "b": 10}).run(0.5)
    assert len(scene.talk.of(Reject)) == 1


def test_6_6_2_if_all_counter_the_cheapest_gets_the_load_and_the_others_are_released():
    contracts = [Contract(f"a>{s}", "a", s, 8, 12) for s in "bcd"]
    scene = Scene(contracts, {"a": 20, "b": 11, "c": 9, "d": 10}).run(0.5)
    assert scene.loads == {"a": 19, "b": 11, "c": 10, "d": 10}
    assert sorted(line[2] for line in scene.talk.of(Release)) == ["b", "d"]


def test_6_6_2_an_acceptance_at_the_lowest_price_beats_every_counter_offer():
    contracts = [Contract(f"a>{s}", "a", s, 8, 12) for s in "bc"]
    scene = Scene(contracts, {"a": 20, "b": 8, "c": 0}).run(0.5)
    assert scene.loads == {"a": 12, "b": 8, "c": 8}


def test_6_6_2_a_counter_offer_reserves_what_it_is_for():
    """While b is bound to a, it does not promise the same room to c."""
    contracts = [Contract("a>b", "a", "b", 8, 10), Contract("c>b", "c", "b", 8, 10), Contract("a>z", "a", "z", 8, 10)]
    scene = Scene(contracts, {"a": 20, "b": 9, "c": 20, "z": 20}, pause_us=150_000, answer_us=200_000).run(1)
    assert scene.loads["b"] == 10


def test_6_6_2_silence_is_a_refusal():
    contracts = [fixed_price("a>b", "a", "b", 8.0), fixed_price("a>c", "a", "c", 9.0)]
    scene = Scene(contracts, {"a": 12, "b": 0, "c": 0})
    scene.world.crash("b", 60 * S)
    scene.run(0.9)
    assert scene.loads["c"] == 3


def test_6_6_2_a_late_answer_is_let_go():
    scene = Scene([fixed_price("a>b", "a", "b", 8.0)], {"a": 12, "b": 0}, latency_us=150_000).run(0.9)
    assert scene.loads == {"a": 12, "b": 0}
    assert len(scene.talk.of(Release)) == 1
    assert not scene.core("b").book.reservations


def test_6_6_2_a_seller_that_lost_asks_for_less_the_next_time():
    """The buyer's valuation lies between the seller's and what it asked: nothing moves at first, then it does."""
    scene = Scene([Contract("a>b", "a", "b", 8, 12)], {"a": 12, "b": 10}, asking=AboveValuation(1.2)).run(0.5)
    assert scene.loads == {"a": 12, "b": 10}
    scene.run(1.5)
    assert [round(line[3].price, 2) for line in scene.talk.of(Counter)] == [11.7, 10.5]
    assert scene.loads == {"a": 11, "b": 11}


@pytest.mark.parametrize(
    ("competitors", "row"),
    [(1, (0.33, 0.50, 0.67, 0.83)), (3, (0.20, 0.40, 0.60, 0.80)), (5, (0.14, 0.36, 0.57, 0.79)),
     (7, (0.11, 0.33, 0.55, 0.78))],
)  # fmt: skip
def test_6_6_2_table_6_2(competitors, row):
    for valuation, expected in zip((0.0, 0.25, 0.5, 0.75), row, strict=True):
        ours = best_counter(valuation, competitors)
        assert abs(ours - expected) < 0.01
        grid = [valuation + k / 10_000 for k in range(round((1 - valuation) * 10_000))]
        best = max(grid, key=lambda p: (p - valuation) * (1 - p) ** competitors * (1 - p))
        assert ours == pytest.approx(best, abs=2e-4)


def test_6_6_2_the_equilibrium_counter_offer():
    """(6.18)."""
    assert Equilibrium(5).price(0.77, 0.80, lost=False) == pytest.approx(0.80 - 4 / 5 * 0.03)
    assert Equilibrium(5).price(0.77, 0.80, lost=True) == 0.77
    assert AtValuation().price(0.77, 0.80, lost=False) == 0.77


# §6.8 ---------------------------------------------------------------------------------------------------------------


def test_6_8_2_property_2_below_the_range_the_lowest_price_is_accepted():
    scene = Scene([Contract("a>b", "a", "b", 9, 12)], {"a": 20, "b": 2}, asking=Equilibrium(3)).run(0.5)
    assert scene.talk.of(Accept)
    assert not scene.talk.of(Counter)


def test_6_8_2_example_of_6_20():
    """For the range [0.75, 0.8] and five contracts the lowest price is best up to 0.9997 of it."""
    low, high, c = 0.75, 0.8, 5
    lose = (1 - low) ** (c - 1)
    assert (1 - high / low * lose) / (1 - lose) == pytest.approx(0.9997, abs=1e-4)


def test_6_8_2_every_movement_lowers_the_sum_of_all_costs_and_movements_stop():
    scene = Scene(both_ways(("a", "b"), ("b", "c"), ("c", "d"), low=7, high=10), {"a": 20, "b": 3, "c": 9, "d": 0})
    before = math.inf
    for second in range(1, 60):
        loads = scene.run(second).loads
        cost = sum(n * n / 2 for n in loads.values())
        assert cost <= before
        before = cost
    assert scene.talk.moves[-1][0] < 50 * S
    assert max(loads.values()) <= 10


def test_6_8_2_property_4_most_movements_take_three_messages():
    """An offer, an answer, and the movement; our commitment and its receipt stand for the order to move."""
    scene = Scene([LINE], {"a": 14, "b": 0}).run(0.5)
    assert [type(line[3]).__name__ for line in scene.talk.lines] == ["Offer", "Accept", "Commit", "Committed"]


# §7.2 ---------------------------------------------------------------------------------------------------------------


def test_7_2_1_the_cost_function():
    """(7.1)."""
    cost = MM1(Usage(cpu=4.0, bandwidth=10.0))
    assert cost.total(Usage(cpu=2.0, bandwidth=2.5)) == pytest.approx(0.5 / 0.5 + 0.25 / 0.75)
    assert cost.total(NOTHING) == 0


def test_7_2_2_partners_are_ordered_failed_last_then_those_who_refused_then_by_price():
    prices = {"b": 9.0, "c": 7.0, "d": 6.0, "e": 8.0}
    contracts = [fixed_price(f"a>{s}", "a", s, price) for s, price in prices.items()]
    core = Scene(contracts, {"a": 0}).core("a")
    core.buyer.silent["d"] = True
    core.buyer.refused["a>c"] = True
    assert [c.seller for c in core.buyer.ordered(10 * S)] == ["e", "b", "c", "d"]


def test_7_2_2_a_margin_keeps_load_near_the_price_from_moving_to_and_fro():
    judge = Judge(Levels(), margin=0.1)
    assert not judge.offerset(tasks("a", 11), ONE.times(11), LINE, 10.0)
    assert judge.offerset(tasks("a", 12), ONE.times(12), LINE, 10.0)
    assert not judge.acceptset(tasks("a", 1), ONE.times(9), LINE, 10.0)


def test_7_2_2_a_partner_that_answers_again_is_no_longer_last():
    contracts = [*both_ways(("a", "b"), low=8, high=8), fixed_price("a>c", "a", "c", 9.0)]
    scene = Scene(contracts, {"a": 0, "b": 12, "c": 0})
    scene.core("a").buyer.silent["b"] = True
    scene.run(0.5)
    assert scene.core("a").buyer.silent["b"] is False


def test_7_4_2_swapping_is_a_reason_to_pay():
    """A step cost works with fixed prices: below it nothing is offered, above it what exceeds memory is."""
    cost = Steps(Levels(), memory=4.0, penalty=100.0)
    contract = fixed_price("a>b", "a", "b", 50.0)
    heavy = [Task(f"a.{k}", Usage(1.0, memory=1.0)) for k in range(6)]
    load = Usage(6.0, memory=6.0)
    assert len(Judge(cost).offerset(heavy, load, contract, 50.0)) == 2
