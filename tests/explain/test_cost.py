"""What hosts carry, in quiet times and in their worst failure, and what it costs under their contracts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.app import App
from holdfast.explain.cost import HostCost, host_costs
from holdfast.explain.failure import SinkPlace
from holdfast.explain.promise import buckets_of
from holdfast.explain.text import host_block
from holdfast.host.catalog import Catalog
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import MM1
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Usage
from tests.explain.applications import application, deployed


def costs(catalog: Catalog, loads: Mapping[str, float], **rest: Any) -> dict[str, HostCost]:
    return {cost.host: cost for cost in host_costs(catalog, buckets_of(catalog, {}), loads, **rest)}


def busy(**options: Any) -> App:
    return application(
        first={"inputs": ["s1", "s2"], **options}, second={"inputs": ["first"], **options}, third={"inputs": ["s2"]}
    )


SETS = {"first": ["a"], "second": ["a"], "third": ["b"]}


def test_the_worst_failure_of_a_host_is_the_one_in_which_most_of_its_load_forks() -> None:
    """Without s1 the first node is tentative and so is the second; the third has no other input and is silent."""
    catalog = deployed(busy(), "x y a b", {"s1": "x", "s2": "y"}, SETS)
    told = costs(catalog, {"first": 0.4, "second": 0.2, "third": 0.3}, capacities={"a": 1.0, "b": 1.0})
    assert told["a"].forks == ("first@a", "second@a")
    assert told["a"].worst is not None
    assert told["a"].load == pytest.approx(0.6)
    assert told["a"].load_worst == pytest.approx(1.2)
    assert told["a"].overloaded
    assert (told["b"].forks, told["b"].load_worst, told["b"].overloaded) == ((), 0.3, False)
    assert "MORE THAN IT HAS" in host_block(told["a"])


def test_a_host_says_what_it_holds_mirrors_and_sends() -> None:
    catalog = deployed(busy(), "x y a b", {"s1": "x", "s2": "y"}, SETS)
    told = costs(catalog, {}, sinks={"table": SinkPlace("third", "b")})
    assert told["y"].sources == ("s2",)
    assert told["y"].sends == (("s2", "a"), ("s2", "b"))
    assert told["a"].mirrors == (("s1", "first@a"), ("s2", "first@a"), ("first", "second@a"))
    assert told["b"].sinks == ("table",)
    assert told["a"].load is None
    assert (told["a"].queries, told["y"].queries) == (2, 0)


def test_nodes_that_suspend_never_fork_and_forks_that_are_kept_ready_count_all_the_time() -> None:
    suspended = deployed(busy(during_failure="suspend"), "x y a b", {"s1": "x", "s2": "y"}, SETS)
    assert costs(suspended, {})["a"].forks == ()
    warm = deployed(busy(max_delay="1s"), "x y a b", {"s1": "x", "s2": "y"}, SETS)
    assert costs(warm, {})["a"].queries == 4


def owner(**contract: Any) -> ParticipantPlan:
    made = Contract("c", **{"buyer": "anna", "seller": "ben", "price_low": 2.0, "price_high": 5.0, **contract})
    return ParticipantPlan("anna", MM1(Usage(cpu=1.0)), (made,))


def test_a_contract_says_what_would_move_for_what_by_the_rule_that_decides_at_run_time() -> None:
    """(6.6): at a load of 0.9 the third of it costs more than 2.0 a core, at 0.3 it does not."""
    catalog = deployed(busy(), "x y a b", {"s1": "x", "s2": "y"}, {**SETS, "third": ["a"]})
    heavy = {"first": 0.3, "second": 0.3, "third": 0.3}
    (bought,) = costs(catalog, heavy, plans={"a": owner(permits=("third",))})["a"].contracts
    assert bought.moves == ("third",)
    assert bought.price == pytest.approx(0.3 * 2.0)
    assert bought.saves == pytest.approx(0.9 / 0.1 - 0.6 / 0.4)
    light = dict.fromkeys(heavy, 0.05)
    assert costs(catalog, light, plans={"a": owner()})["a"].contracts[0].moves == ()
    assert costs(catalog, heavy, plans={"a": owner()})["a"].cost == pytest.approx(9.0)


def test_a_seller_says_how_much_more_it_would_take() -> None:
    """At 5.0 a unit, an idle core takes u while u / (1 - u) < 5 u: up to 0.8."""
    catalog = deployed(busy(), "x y a b", {"s1": "x", "s2": "y"}, SETS)
    plan = owner(buyer="ben", seller="anna")
    (sold,) = costs(catalog, {}, plans={"x": plan})["x"].contracts
    assert sold.room == pytest.approx(0.8, abs=0.02)
