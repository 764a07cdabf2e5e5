"""The planner reads a history and advises as table 6.1 does."""

from __future__ import annotations

import random

import pytest

from holdfast.load.contract_value import SELLERS
from holdfast.load.planner import plan_contracts
from holdfast.model.errors import UsageError
from holdfast.protocol.load.cost import MM1
from holdfast.protocol.load.usage import Usage


def history(spikes: float, height: float = 0.8, samples: int = 2000) -> list[float]:
    chance = random.Random(3)
    return [
        min(1.6, max(0.02, chance.gauss(0.45, 0.15) + (height if chance.random() < spikes else 0.0)))
        for _ in range(samples)
    ]


def by_kind(plan):
    return {(advice.direction, advice.at): advice for advice in plan.advice}


def test_table_6_1_a_few_as_buyer_many_as_seller_at_the_top():
    advice = by_kind(plan_contracts(history(0.05), upkeep=0.02, runs=20_000))
    assert 1 <= advice["buyer", "threshold"].contracts <= 6
    assert 1 <= advice["buyer", "median"].contracts <= 6
    assert advice["seller", "threshold"].contracts > 10


def test_prices_are_gradients_of_the_cost_at_the_load():
    advice = by_kind(plan_contracts(history(0.05), threshold=0.8, runs=5000))
    assert advice["buyer", "threshold"].price == pytest.approx(1 / (1 - 0.8) ** 2, rel=1e-4)
    assert advice["buyer", "median"].load < 0.5


def test_prices_are_per_core_as_in_a_contract_whatever_the_capacity():
    """On four cores one more core is a quarter of the load, and what it costs there is a quarter as much."""
    one = plan_contracts(history(0.05), runs=2000)
    four = plan_contracts(history(0.05), runs=2000, capacity=4.0)
    carried = MM1(Usage(cpu=4.0))
    core = (carried.total(Usage(3.6 + 1e-6)) - carried.total(Usage(3.6 - 1e-6))) / 2e-6
    assert by_kind(four)["buyer", "threshold"].price == pytest.approx(core, rel=1e-4)
    for mine, theirs in zip(one.advice, four.advice, strict=True):
        assert (theirs.price, theirs.contracts) == (pytest.approx(mine.price / 4), mine.contracts)


def test_dear_contracts_are_not_worth_it():
    plan = plan_contracts(history(0.05), upkeep=1000.0, runs=5000)
    assert all(advice.contracts == 0 for advice in plan.advice)


def test_without_spikes_nobody_needs_insurance():
    plan = plan_contracts([0.3, 0.4, 0.5] * 20, runs=5000)
    assert plan.spike_share == 0
    assert by_kind(plan)["buyer", "threshold"].contracts == 0


def test_partners_with_less_room_mean_more_contracts_or_more_overload():
    light, heavy = (
        plan_contracts(history(0.05), upkeep=0.01, partners=SELLERS[name], runs=20_000) for name in ("light", "heavy")
    )
    top = [by_kind(plan)["buyer", "threshold"].contracts for plan in (light, heavy)]
    assert top[1] >= top[0]
    assert heavy.overload_with >= light.overload_with - 0.01


@pytest.mark.parametrize(
    ("loads", "settings", "words"),
    [
        ([0.5] * 5, {}, "at least 20 samples"),
        ([0.5] * 30 + [float("nan")], {}, "numbers from 0 up, as shares of capacity; got nan"),
        ([35.0, 50.0] * 30, {}, "divide percentages by 100"),
        ([0.5] * 30, {"threshold": 1.5}, "between 0 and 1"),
        ([0.5] * 30, {"upkeep": -1.0}, "not be negative"),
    ],
)
def test_what_cannot_be_read_is_refused(loads, settings, words):
    with pytest.raises(UsageError, match=words):
        plan_contracts(loads, **settings)
