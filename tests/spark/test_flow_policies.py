"""Which checkpoint policies an operator of a flow takes, and what `holdfast explain` says of it. No Spark runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.app import App
from holdfast.checkpoint.derive import StateKind, derive
from holdfast.checkpoint.policy import Guarantee, every, groups, none, upstream
from holdfast.cli.program import protections
from holdfast.clock import now_us
from holdfast.explain.operators import recovery
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.operators import continuous, count, count_window, keep_time
from holdfast.protocol.cec.policy import Measured
from holdfast.spark import durable_state
from holdfast.spark.durable import Durable, begin_life, life_in, query_name
from holdfast.spark.flow import Flow
from holdfast.spark.node_flow import NodeFlow
from holdfast.spark.restore import Origin, Spec
from holdfast.spark.state_versions import Lineages
from holdfast.spark.version_store import VersionSaves
from holdfast.spark.versions import Version

#: A description; a session is asked for only when it is to run.
FLOW = Flow(None, "/streams", ("a", "b"), (), 2)  # type: ignore[arg-type]
OPERATORS: dict[str, Callable[..., Flow]] = {
    "aggregate": lambda **given: FLOW.aggregate(count(), window=count_window(2), by="k", **given),
    "join": lambda **given: FLOW.join("a", "b", window=keep_time("1s"), take_left={"x": "v"}, take_right={"y": "v"},
                                      by="k", **given),
    "bsort": lambda **given: FLOW.bsort("v", 3, **given),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("policy", [every(events=100), groups(512, every="1s"), upstream()])
def test_a_policy_that_does_not_fit_is_refused_when_it_is_written_down(name: str, policy: Any) -> None:
    """By the one table that `holdfast explain` goes by as well."""
    with pytest.raises(
        UsageError, match=rf"{name}: .* does not protect; use continuous\(\), every\(.*\) with a store=, or"
    ):
        OPERATORS[name](checkpoint=policy)
    with pytest.raises(UsageError, match="does not protect"):
        derive(name, name, StateKind.WINDOWS, policy)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_policy_that_saves_to_a_store_needs_one_and_no_other_has_any(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf'{name}: every\("10s"\) needs a store, such as store='):
        OPERATORS[name](checkpoint=every("10s"))
    with pytest.raises(UsageError, match="needs a store that outlives its process"):
        OPERATORS[name](checkpoint=every("10s"), store="memory:")
    for checkpoint in (continuous(), none, None):
        with pytest.raises(UsageError, match="saves nothing there; leave out store="):
            OPERATORS[name](checkpoint=checkpoint, store=f"log:{tmp_path}")
    made = OPERATORS[name](checkpoint=every("10s"), store=f"log:{tmp_path}")
    assert made.as_in_node() == made
    with pytest.raises(UsageError, match="checkpoints go by the stream that a flow writes; use write"):
        made.frame()


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


def refuse(address: str) -> Any:
    raise UsageError("the password is wrong")


def fail(address: str) -> Any:
    raise OSError(39, "Directory not empty")


def forgotten() -> None:
    """It is forgotten beside whoever clears."""
    for thread in threading.enumerate():
        if thread.name == "forget":
            thread.join()


def test_a_node_whose_flow_saves_to_a_store_has_a_place_there_and_its_fork_reads_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1. What an earlier beginning has there goes when the host starts."""
    store, far = holdfast.open(tmp_path), f"log:{tmp_path}/far"
    store.create("in", "v bigint")
    app = App("policies")
    app.node(inputs=["in"], output="out", name="node")(lambda rows: rows)
    given: Any = Flow(None, str(tmp_path), ("in",), (("decision", "d"),), 2, known=FLOW)  # type: ignore[arg-type]
    specs: list[Spec] = []
    monkeypatch.setattr(Flow, "results", lambda flow, spec, checkpoints=True: specs.append(spec) or FLOW)
    monkeypatch.setattr(NodeFlow, "_shaped", lambda node, frame: frame)
    flow = given.filter("v > 0").bsort("v", 3, checkpoint=every("30s"), store=far)
    node = NodeFlow(app.diagram().node("node"), flow, tmp_path, tmp_path / "home")
    node.stable({}, 0)
    assert specs.pop().durable is None, "somebody asks for the columns, before there is a stream"
    stream_id = store.create("out", "v bigint").definition.id
    node.stable({}, 0)
    own = query_name(stream_id, "main", life_in(tmp_path / "home", "main") or "")
    node.forked({}, 0, 1, 5)
    stable, forked = (spec.durable for spec in specs)
    assert stable == Durable("bsort", far, 30_000_000, 2, own)
    assert forked == Durable("bsort", far, 30_000_000, 2, None, ((own, 5),))
    assert node.needed_us(7, 0) == BEGINNING_US, "nothing is durable yet"
    empty = Version({}, Measured())
    for partition in (0, 1):
        exact = msgspec.structs.replace(stable, always=True)
        VersionSaves(exact, partition).keep(empty, 3, empty, 7, batch=0, begun_us=now_us())
    assert node.needed_us(7, 0) == 3
    node.clear(0)
    assert node.needed_us(7, 0) == 3
    for answer in (refuse, fail):
        with monkeypatch.context() as away:
            away.setattr(durable_state, "open_store", answer)
            node.clear(1)
            forgotten()
            node.forget_stored(0)
        assert node.needed_us(7, 0) == 3, "it is removed the next time"
    silent, opened = threading.Event(), durable_state.open_store
    monkeypatch.setattr(durable_state, "open_store", lambda address: (silent.wait(), opened(address))[1])
    node.clear(1)
    assert (tmp_path / "far" / "bsort" / own).exists(), "nobody waits for a store that does not answer"
    silent.set()
    forgotten()
    assert not list((tmp_path / "far" / "bsort").iterdir())
    monkeypatch.setattr(durable_state, "open_store", refuse)
    node.clear(1000)
    assert not [t for t in threading.enumerate() if t.name == "forget"], "nothing is noted of those"


def test_a_node_that_has_begun_anew_keeps_the_name_under_which_it_saves_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names stand for the way of numbering groups; this one's scratch is lost, and its log has no checkpoints."""
    stream, far = holdfast.open(tmp_path).create("out", "v bigint"), f"log:{tmp_path}/far"
    holdfast.open(tmp_path).create("in", "v bigint")
    app = App("policies")
    app.node(inputs=["in"], output="out", name="node")(lambda rows: rows)
    given: Any = Flow(None, str(tmp_path), ("in",), (("decision", "d"),), 2, known=FLOW)  # type: ignore[arg-type]
    flow = given.filter("v > 0").bsort("v", 3, checkpoint=every("30s"), store=far)
    asked: list[Any] = []
    monkeypatch.setattr(Flow, "operator", lambda flow, *given: asked.append(given) or "bsort")
    home = tmp_path / "home"
    life = begin_life(home, "main-2")
    NodeFlow(app.diagram().node("node"), flow, tmp_path, home, 2)
    assert asked == [("out", str(home / "versions"), ("main-2",), [query_name(stream.definition.id, "main-2", life)])]


@pytest.mark.parametrize("name", OPERATORS)
def test_explain_shows_what_protects_the_operator_of_a_flow(name: str) -> None:
    program = ModuleType("program")
    program.__dict__.update(
        saved=OPERATORS[name](checkpoint=continuous()), bare=OPERATORS[name](checkpoint=none), plain=FLOW,
        stored=OPERATORS[name](checkpoint=every("30s"), store="log:/far"),
        always=OPERATORS[name](checkpoint=every("30s", exact=True), store="log:/far"),
    )  # fmt: skip
    saved, bare, plain, stored, always = protections(program)
    assert (stored.policy, stored.saves) == ('every("30s")', "its open windows, all together")
    assert (stored.guarantee, stored.store) == (Guarantee.EXACT, "log:/far"), "the input behind it is read again"
    assert (always.saves, always.guarantee) == ("its open windows, all together, with each batch", Guarantee.EXACT)
    assert "(up to 30s of work, twice that where it is damaged) is computed again" in recovery(stored)
    assert "each batch waits for the store" in recovery(always)
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
