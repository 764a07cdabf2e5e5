"""Which checkpoint policies an operator of a flow takes, and what `holdfast explain` says of it. No Spark runs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from holdfast.checkpoint.derive import StateKind, derive
from holdfast.checkpoint.policy import Guarantee, every, groups, none, upstream
from holdfast.cli.program import protections
from holdfast.model.errors import UsageError
from holdfast.operators import continuous, count, count_window, keep_time
from holdfast.spark.flow import Flow

#: A description; a session is asked for only when it is to run.
FLOW = Flow(None, "/streams", ("a", "b"), (), 2)  # type: ignore[arg-type]
OPERATORS: dict[str, Callable[..., Flow]] = {
    "aggregate": lambda **given: FLOW.aggregate(count(), window=count_window(2), by="k", **given),
    "join": lambda **given: FLOW.join("a", "b", window=keep_time("1s"), take_left={"x": "v"}, take_right={"y": "v"},
                                      by="k", **given),
    "bsort": lambda **given: FLOW.bsort("v", 3, **given),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("policy", [every("10s"), every(events=100), groups(512, every="1s"), upstream()])
def test_a_policy_that_does_not_fit_is_refused_when_it_is_written_down(name: str, policy: Any) -> None:
    """By the one table that `holdfast explain` goes by as well."""
    with pytest.raises(UsageError, match=rf"{name}: .* does not protect; use continuous\(\) or none"):
        OPERATORS[name](checkpoint=policy)
    with pytest.raises(UsageError, match="does not protect"):
        derive(name, name, StateKind.WINDOWS, policy)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        OPERATORS[name](checkpoint="10s")


@pytest.mark.parametrize("name", OPERATORS)
def test_none_is_the_policy_that_saves_nothing(name: str) -> None:
    assert OPERATORS[name](checkpoint=none).checkpoint is None
    assert OPERATORS[name]().checkpoint is None


@pytest.mark.parametrize("name", OPERATORS)
def test_explain_shows_what_protects_the_operator_of_a_flow(name: str) -> None:
    program = ModuleType("program")
    program.__dict__.update(
        saved=OPERATORS[name](checkpoint=continuous()), bare=OPERATORS[name](checkpoint=none), plain=FLOW
    )
    saved, bare, plain = protections(program)
    assert (saved.operator, saved.kind, saved.policy) == (f"{name} of a, b", name, "continuous()")
    assert (saved.guarantee, saved.store) == (Guarantee.EXACT, "the log of its results")
    assert (bare.policy, bare.saves, bare.guarantee) == ("none", "nothing", Guarantee.NOTHING)
    assert (plain.saves, plain.guarantee) == ("nothing: it has no state", Guarantee.EXACT)
