"""Which checkpoint policies an operator of a flow takes, and what `holdfast explain` says of it. No Spark runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
from holdfast.app import App
from holdfast.checkpoint.derive import StateKind, derive
from holdfast.checkpoint.policy import Guarantee, every, groups, none, upstream
from holdfast.cli.program import protections
from holdfast.model.errors import UsageError
from holdfast.operators import continuous, count, count_window, keep_time
from holdfast.spark.flow import Flow
from holdfast.spark.node_flow import NodeFlow
from holdfast.spark.restore import Origin, Spec
from holdfast.spark.state_versions import Lineages

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
def test_none_is_kept_as_it_was_said_and_saves_nothing_in_a_node_either(name: str) -> None:
    said, unsaid = OPERATORS[name](checkpoint=none), OPERATORS[name]()
    assert (said.policy, unsaid.policy) == (None, None)
    assert said.as_in_node() == said
    assert unsaid.as_in_node().policy == continuous()
    assert FLOW.as_in_node() == FLOW


def test_a_node_whose_flow_says_none_writes_no_checkpoints_and_holds_back_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does its fork look for any, where its parent's version is lost."""
    holdfast.open(tmp_path).create("in", "v bigint")
    app = App("policies")
    app.node(inputs=["in"], output="out", name="node")(lambda rows: rows)
    given: Any = Flow(None, str(tmp_path), ("in",), (("decision", "d"),), 2, known=FLOW)  # type: ignore[arg-type]
    specs: list[tuple[Spec, str]] = []
    monkeypatch.setattr(Flow, "results", lambda flow, spec, checkpoints=True: specs.append((spec, flow.policy)) or FLOW)
    monkeypatch.setattr(NodeFlow, "_shaped", lambda node, frame: frame)
    for checkpoint, needed in ((none, [7]), (continuous(), [3])):
        flow = given.filter("v > 0").bsort("v", 3, checkpoint=checkpoint)
        node = NodeFlow(app.diagram().node("node"), flow, tmp_path, tmp_path / "home")
        monkeypatch.setattr(Lineages, "needed_us", lambda *_: 3)
        assert [node.needed_us(7, 0)] == needed
        node.stable({}, 0)
        node.forked({}, 0, 1, 5)
    (_, no), (lost, _), (_, policy), (restored, _) = specs
    assert (no, lost.origin, policy, restored.origin) == (None, None, continuous(), Origin("out", 5))


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


@pytest.mark.parametrize("given", [
    {}, {"period": "2s"}, {"period": "2s", "slow": "1m"}, {"slow": 0}, {"at_most": 7, "budget": 0.5},
    {"period": "250ms", "recover_within": "90s"},
])  # fmt: skip
def test_continuous_shows_what_is_not_as_by_default(given: dict[str, Any]) -> None:
    policy = continuous(**given)
    assert eval(str(policy), {"continuous": continuous}) == policy
    assert [name for name in given if f"{name}=" not in str(policy)] == []
    assert str(policy).count("=") == len(given)
    assert OPERATORS["bsort"](checkpoint=policy).protection.policy == str(policy)
