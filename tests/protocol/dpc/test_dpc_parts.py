"""The smaller parts: monitor, SUnion, output states, authorisation, buffers, worth, plans, tables."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.protocol.dpc as package
from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.buffers import Buffer
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import AuthorisationDone, AuthorisationReply, AuthorisationRequest, StreamReport
from holdfast.protocol.dpc.monitor import Monitor
from holdfast.protocol.dpc.plan import Full, InputPlan, NodePlan, OutputPlan, Policy, Stabilise
from holdfast.protocol.dpc.signals import Arrival, InputAdvanced, Lane
from holdfast.protocol.dpc.stagger import LEASE_KEEPALIVES, Stagger
from holdfast.protocol.dpc.states import (
    FORK_STEPS,
    NODE_STEPS,
    NodeState,
    StreamState,
    check_step,
    diagram,
    output_state,
)
from holdfast.protocol.dpc.sunion import Expectation, SUnion, combine
from tests.protocol.dpc.dpc_scene import BUCKET, extends, plan, two_inputs

S, U, Z, F = StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABILIZATION, StreamState.FAILURE
KEEPALIVE = 100_000


def test_the_protocol_imports_only_the_model_and_parts_of_the_library_without_clock_or_io():
    allowed = {"__future__", "collections", "dataclasses", "enum", "typing"}
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                ours = name.startswith(("holdfast.model", "holdfast.protocol.dpc"))
                assert ours or name.split(".")[0] in allowed, f"{path.name} imports {name}"
                assert name.split(".")[0] in sys.stdlib_module_names or ours


def test_a_step_that_stands_in_no_table_stops_the_core():
    check_step(NodeState.STABLE, NodeState.UP_FAILURE)
    with pytest.raises(AssertionError, match="no row"):
        check_step(NodeState.STABLE, NodeState.STABILIZATION)


def test_the_diagram_is_drawn_from_the_table():
    assert diagram(NODE_STEPS).count("-->") == len(NODE_STEPS)
    assert "READY --> RUNNING: the delay ran out" in diagram(FORK_STEPS)


def test_three_missed_answers_are_a_failure_and_one_answer_heals_it():
    monitor = Monitor(("p",))
    report = StreamReport("s", S, 0, False)
    assert monitor.answer("p", (report,), 0)
    assert [monitor.ask() for _ in range(3)] == [(), (), ()]
    assert monitor.report("p", "s") == report
    assert monitor.ask() == ("p",)
    assert monitor.report("p", "s") is None
    assert monitor.answer("p", (report,), 0)
    assert monitor.alive("p")


def test_a_stranger_s_answer_changes_nothing():
    monitor = Monitor(("p",))
    assert not monitor.answer("stranger", (StreamReport("s", S, 0, False),), 0)


# SUnion ---------------------------------------------------------------------------------------------------------


def advance(union: SUnion, stream: str, upto: int, now: int, lane: Lane = Lane.MAIN, tuples: int = 4) -> None:
    first = union.inputs[stream].closed
    arrivals = tuple(Arrival(b, tuples) for b in range(first, upto))
    union.advance(InputAdvanced(stream, "r", lane, upto * BUCKET, arrivals), now)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 40)), max_size=40))
def test_the_frontier_is_the_smallest_boundary(moves):
    """Inequality 4.1: only what lies below every boundary is complete."""
    union = SUnion(("x", "y", "z"), BUCKET, 0, 0)
    highest = dict.fromkeys("xyz", 0)
    for now, (stream, upto) in enumerate(moves):
        advance(union, stream, upto, now)
        highest[stream] = max(highest[stream], upto)
        assert union.frontier == min(highest.values())


def test_a_boundary_inside_a_bucket_does_not_close_it():
    union = SUnion(("x",), BUCKET, 0, 0)
    union.advance(InputAdvanced("x", "r", Lane.MAIN, BUCKET * 2 - 1, (Arrival(0, 1), Arrival(1, 1))), 5)
    assert union.frontier == 1


def test_the_clock_of_a_bucket_starts_with_its_first_tuple_on_any_input():
    union = SUnion(("x", "y"), BUCKET, 0, 0)
    union.advance(InputAdvanced("x", "r", Lane.MAIN, 0, (Arrival(0, 1),)), 70)
    advance(union, "y", 1, 90)
    assert union.waiting_since(0) == 70


def test_tentative_arrivals_have_waited_since_the_frontier_stopped():
    union = SUnion(("x",), BUCKET, 0, 0)
    advance(union, "x", 1, 50)
    advance(union, "x", 2, 900, Lane.BRANCH)
    assert union.waiting_since(1) == 50


def test_main_is_better_than_a_branch_and_something_better_than_nothing():
    union = SUnion(("x", "y", "z"), BUCKET, 0, 0)
    advance(union, "x", 1, 1)
    union.advance(InputAdvanced("y", "r", Lane.BRANCH, BUCKET, (Arrival(0, 9, 0.5),)), 1)
    parts, (worth, least, missing) = union.parts(0)
    assert [(part.lane, part.closed) for part in parts] == [(Lane.MAIN, True), (Lane.BRANCH, True), (None, False)]
    assert 0 < worth < 1
    assert least == worth
    assert missing == ("y", "z")


def test_an_unknown_lane_position_leaves_other_inputs_alone():
    union = SUnion(("x", "y"), BUCKET, 0, 0)
    advance(union, "x", 5, 1)
    union.prune(3)
    assert union.frontier == 0
    assert sorted(union.first_us) == [3, 4]


# Output states --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "before", "inputs", "blocking", "after"),
    [
        (NodeState.STABLE, S, {"x": S, "y": S}, (), S),
        (NodeState.UP_FAILURE, S, {"x": F, "y": S}, (), U),
        (NodeState.UP_FAILURE, S, {"x": U, "y": S}, ("x",), U),
        (NodeState.UP_FAILURE, S, {"x": F, "y": S}, ("x",), F),
        (NodeState.UP_FAILURE, S, {"x": Z, "y": S}, ("x",), F),
        (NodeState.UP_FAILURE, S, {"x": F, "y": Z}, (), F),
        (NodeState.STABILIZATION, U, {"x": S, "y": S}, (), Z),
        (NodeState.STABILIZATION, S, {"x": S, "y": S}, (), U),
        (NodeState.UP_FAILURE, U, {"x": S, "y": S}, (), U),
    ],
)
def test_figure_a_1(node, before, inputs, blocking, after):
    assert output_state(node, before, inputs, frozenset(blocking)) == after


# Authorisation --------------------------------------------------------------------------------------------------


def stagger(replica: str, peer: str) -> Stagger:
    what = plan({"x": ("x",)})
    turns = NodePlan(replica, what.inputs, what.output, (peer,), BUCKET, 1_000_000, stabilise=Stabilise.STAGGER)
    return Stagger(turns, 0)


def test_of_two_that_want_to_stabilise_the_smaller_name_goes_first():
    a, b = stagger("a", "b"), stagger("b", "a")
    assert a.ask(0)
    assert b.ask(0)
    assert a.requested("b", 0, True, 1) == Send("b", AuthorisationReply(False, 0))
    assert b.requested("a", 0, True, 1) == Send("a", AuthorisationReply(True, 0))
    a.replied("b", True, 0)
    b.replied("a", False, 0)
    assert a.may(2)
    assert not b.may(2)


def test_a_promise_binds_until_it_is_released_or_lapses():
    b = stagger("b", "a")
    b.requested("a", 0, True, 0)
    assert b.promised(LEASE_KEEPALIVES * KEEPALIVE - 1)
    assert not b.promised(LEASE_KEEPALIVES * KEEPALIVE)
    b.requested("a", 0, True, 0)
    b.released("a", 0)
    assert not b.promised(1)


def test_the_holder_stops_trusting_a_promise_before_the_giver_does():
    a, b = stagger("a", "b"), stagger("b", "a")
    a.ask(0)
    b.requested("a", 0, True, 5_000)
    a.replied("b", True, 0)
    lapsed = next(t for t in range(0, 5_000_000, 10_000) if not a.relieved(t))
    assert b.promised(lapsed + 100_000)


def test_a_late_yes_is_trusted_from_its_own_request_on_not_from_the_last():
    a, b = stagger("a", "b"), stagger("b", "a")
    for asked in range(0, 8 * KEEPALIVE, 2 * KEEPALIVE):
        assert a.ask(asked) == (Send("b", AuthorisationRequest(asked)),)
    b.requested("a", 0, True, 5_000)
    a.replied("b", True, 0)
    assert a.relieved(LEASE_KEEPALIVES * KEEPALIVE // 2 - 1)
    assert not a.relieved(LEASE_KEEPALIVES * KEEPALIVE // 2)


def test_a_late_yes_to_a_turn_that_is_over_does_not_count_for_the_next():
    """Seed 648, on a slow link: the release arrives after the last yes was sent, and the yes after the next request."""
    a, b = stagger("a", "b"), stagger("b", "a")
    first, second = 0, 2 * KEEPALIVE
    a.ask(first)
    a.ask(second)
    b.requested("a", first, True, second)
    a.replied("b", True, first)
    assert a.done() == (Send("b", AuthorisationDone(second)),)
    late = b.requested("a", second, True, second + 1)
    third = 3 * KEEPALIVE
    assert a.ask(third) == (Send("b", AuthorisationRequest(third)),)
    b.released("a", second)
    assert not b.promised(third)
    assert late.message == AuthorisationReply(True, second)
    a.replied("b", True, second)
    assert not a.relieved(third + 1)
    assert not a.may(third + 1)
    b.requested("a", third, True, third + 1)
    a.replied("b", True, third)
    assert a.relieved(third + 2)


def test_a_late_release_does_not_end_a_promise_made_since():
    b = stagger("b", "a")
    b.requested("a", 0, True, 0)
    b.released("a", 0)
    b.requested("a", 300_000, True, 310_000)
    b.released("a", 0)
    assert b.promised(320_000)
    b.requested("a", 0, True, 330_000)
    b.released("a", 0)
    assert b.promised(340_000)
    b.released("a", 300_000)
    assert not b.promised(350_000)


def test_an_answer_that_was_overtaken_by_a_later_one_is_void():
    a = stagger("a", "b")
    a.ask(0)
    a.ask(2 * KEEPALIVE)
    a.replied("b", False, 2 * KEEPALIVE)
    a.replied("b", True, 0)
    assert not a.relieved(2 * KEEPALIVE + 1)


def test_two_requests_at_one_instant_have_different_names():
    a = stagger("a", "b")
    names = set()
    for _ in range(3):
        (send,) = a.ask(7)
        names.add(send.message.asked_us)
        a.done()
    assert len(names) == 3


def test_a_restarted_replica_does_not_count_a_yes_to_its_earlier_life():
    a = Stagger(stagger("a", "b")._plan, 5_000_000)
    a.ask(6_000_000)
    a.replied("b", True, 4_900_000)
    assert not a.relieved(6_000_001)


def test_whom_nobody_answers_goes_alone():
    a = stagger("a", "b")
    for round_ in range(4):
        assert a.ask(round_ * 2 * KEEPALIVE)
    assert a.may(9 * KEEPALIVE)
    assert not a.relieved(9 * KEEPALIVE)


def test_one_who_cannot_keep_news_coming_grants_nothing():
    assert stagger("b", "a").requested("a", 0, False, 0) == Send("a", AuthorisationReply(False, 0))


# Buffers --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["r1", "r2", "stranger"]), st.integers(0, 1000)), max_size=30))
def test_only_what_every_reader_acknowledged_goes(acks):
    buffer = Buffer(OutputPlan("o", ("x",), ("r1", "r2")), 0)
    said = {"r1": 0, "r2": 0}
    for reader, upto in acks:
        buffer.ack(reader, upto)
        if reader in said:
            said[reader] = max(said[reader], upto)
        buffer.truncate(2000)
        assert buffer.kept_us <= min(said.values())


def test_a_full_buffer_blocks_by_default():
    buffer = Buffer(OutputPlan("o", ("x",), ("r",), capacity_us=500), 100)
    assert buffer.limit_us() == 600
    assert buffer.truncate(600) is None


def test_a_convergent_buffer_keeps_the_last_and_says_what_was_lost():
    buffer = Buffer(OutputPlan("o", ("x",), ("r",), capacity_us=500, full=Full.KEEP_LAST), 0)
    buffer.ack("r", 200)
    order = buffer.truncate(1000)
    assert (order.upto_us, order.lost_us) == (500, 300)
    assert buffer.limit_us() is None


# Worth ----------------------------------------------------------------------------------------------------------


def test_worth_is_the_share_of_the_expected_tuples():
    usual = Expectation()
    for _ in range(20):
        usual.learn(40)
    assert usual.share(10) == pytest.approx(0.25)
    assert usual.share(80) == 1.0
    assert combine([(40.0, 1.0), (40.0, 0.0), (20.0, 0.5)]) == pytest.approx(0.5)


# Plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delay_us": 250_000}, "must exceed 3 keepalives"),
        ({"bucket_us": 0}, "must be positive"),
        ({"specs": (InputPlan("x", ("x",)), InputPlan("x", ("x",)))}, "must differ"),
        ({"peers": ("a",)}, "must be the other replicas"),
        ({"output": OutputPlan("o", ("x",), capacity_us=9, full=Full.KEEP_LAST)}, "convergent-capable"),
    ],
)
def test_a_plan_that_cannot_keep_its_promises_is_refused_with_the_reason(changes, words):
    with pytest.raises(UsageError, match=words):
        plan({"x": ("x",)}, **changes)


def test_the_default_policy_is_the_whole_delay_once_and_then_no_delay():
    what = plan({"x": ("x",)})
    assert (what.during_failure, what.during_stabilisation) == (Policy.PROCESS, Policy.PROCESS)
    assert what.stabilise is Stabilise.FORK


@pytest.mark.timeout(60)
def test_a_source_that_was_away_for_months_does_not_stop_its_readers():
    """Bucket by bucket, four months of 100 ms would take minutes and gigabytes, and so would every look after that."""
    away = 100_000_000
    sunion = SUnion(("x", "y"), 100_000, 0, 0)
    sunion.advance(InputAdvanced("y", "y", Lane.MAIN, (away + 3) * 100_000, (Arrival(away, 5),)), 7)
    assert sunion.waiting_since(away) == 7
    assert len(sunion.first_us) <= 4096
    assert sunion.next_waiting(0) <= away
    assert sunion.next_waiting(away + 3) == sunion.top == away + 3


@pytest.mark.timeout(60)
def test_a_node_whose_input_jumps_by_months_while_another_is_missing_still_gives_news():
    away, scene = 100_000_000, two_inputs()
    scene.dies("x")
    scene.says("y", "y", S, away)
    scene.tell(InputAdvanced("y", "y", Lane.MAIN, away * BUCKET, (Arrival(away - 1, 5),)))
    seen = []
    for step in range(11, 41):
        seen += scene.until(step * BUCKET)
        if scene.core.fork.state.name == "PREPARING" and scene.log[-1].prepare_fork is None:
            seen.append(scene.prepared())
    assert any(b.bucket == away - 1 and b.emit for given in extends(seen) for b in given.buckets)
