"""Transcripts of one replica: what it decides, when."""

from __future__ import annotations

import pytest

from holdfast.model.errors import UsageError
from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.effects import ReadStable, SkipStable
from holdfast.protocol.dpc.messages import (
    Ack,
    AuthorisationDone,
    AuthorisationReply,
    AuthorisationRequest,
    KeepaliveReply,
    KeepaliveRequest,
    StreamReport,
)
from holdfast.protocol.dpc.plan import (
    FORK_LAG_MAX,
    FORK_LINGER_US,
    InputPlan,
    OutputPlan,
    Policy,
    Resume,
    Stabilise,
)
from holdfast.protocol.dpc.signals import (
    Arrival,
    Disconnected,
    ForkCompleted,
    ForkFailed,
    InputAdvanced,
    InputGap,
    Lane,
    StableCompleted,
)
from holdfast.protocol.dpc.states import ForkState, NodeState, StreamState
from tests.protocol.dpc.dpc_scene import (
    BUCKET,
    SECOND,
    Scene,
    extends,
    fail_x,
    one_stream,
    plan,
    run_to,
    sent,
    two_inputs,
)

S, U, Z = StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABILIZATION


def test_complete_buckets_are_read_in_order_and_nothing_else():
    scene = two_inputs()
    assert scene.main("x", 12).read_stable is None
    assert scene.main("y", 11).read_stable == ReadStable(11)


def test_a_replica_answers_nobody_before_it_is_level_with_its_inputs():
    scene = Scene(plan({"x": ("x",)}), Resume(5, 5 * BUCKET, 0))
    assert not scene.hear("reader", KeepaliveRequest()).send
    assert not sent(scene.hear("b", AuthorisationRequest(0)), AuthorisationReply)
    scene.says("x", "x", S, 50)
    scene.main("x", 20)
    scene.commit()
    assert scene.state == NodeState.RECOVERING
    scene.main("x", 50)
    scene.commit()
    assert scene.state == NodeState.STABLE
    assert sent(scene.hear("reader", KeepaliveRequest()), KeepaliveReply)


def test_a_failure_shorter_than_the_delay_leaves_no_trace():
    scene = two_inputs()
    seen = fail_x(scene, 18)
    assert scene.state == NodeState.UP_FAILURE
    assert scene.core.fork.state == ForkState.READY
    scene.says("x", "x", S, 18)
    healed = scene.main("x", 18)
    seen.append(healed)
    assert extends(seen) == []
    assert scene.state == NodeState.STABLE
    assert healed.read_stable == ReadStable(18)
    scene.commit()
    begun = len(scene.log)
    run_to(scene, 18 + FORK_LAG_MAX + 1)
    assert scene.core.fork.state == ForkState.NONE
    assert extends(scene.log[begun:]) == []


def test_suspicions_that_follow_each_other_share_one_fork():
    """A fork for each of them would be what keeps a busy machine busy."""
    scene = two_inputs()
    upto = 10
    for _ in range(3):
        scene.said.pop("x", None)
        for bucket in range(upto + 1, upto + 6):
            scene.until(bucket * BUCKET)
            scene.says("y", "y", S, bucket)
            scene.main("y", bucket)
        assert scene.state == NodeState.UP_FAILURE
        if scene.core.fork.state == ForkState.PREPARING:
            scene.prepared()
        upto += 5
        scene.says("x", "x", S, upto)
        scene.main("x", upto)
        scene.commit()
        assert scene.state == NodeState.STABLE
    assert len([e for e in scene.log if e.prepare_fork is not None]) == 1
    assert scene.core.fork.state == ForkState.READY
    for bucket in range(upto + 1, upto + 8):
        scene.until(bucket * BUCKET)
    assert not any(e.stop_fork for e in scene.log)


def test_a_fork_that_is_not_needed_goes_in_the_end():
    scene = two_inputs()
    fail_x(scene, 15)
    scene.says("x", "x", S, 15)
    scene.main("x", 15)
    scene.commit()
    for stream in ("x", "y"):
        scene.tell(InputAdvanced(stream, stream, Lane.MAIN, END_OF_TIME_US, ()))
    assert scene.core.fork.state == ForkState.READY
    scene.until(scene.now + FORK_LINGER_US + SECOND)
    assert scene.core.fork.state == ForkState.NONE


def test_the_fork_is_prepared_at_the_first_suspicion_and_released_when_the_delay_runs_out():
    scene = two_inputs()
    seen = fail_x(scene, 25)
    prepared = [e for e in seen if e.prepare_fork is not None]
    assert len(prepared) == 1
    first = extends(seen)[0]
    assert first.buckets[0].bucket == 10
    assert scene.core.fork.state == ForkState.RUNNING


def test_the_first_bucket_waits_the_whole_delay_and_later_ones_do_not_wait():
    scene = two_inputs()
    times = []
    scene.said.pop("x")
    for bucket in range(11, 31):
        for effects in scene.until(bucket * BUCKET):
            if effects.extend_fork:
                times += [(b.bucket, scene.now) for b in effects.extend_fork.buckets]
        effects = scene.main("y", bucket)
        if effects.extend_fork:
            times += [(b.bucket, scene.now) for b in effects.extend_fork.buckets]
        if scene.core.fork.state == ForkState.PREPARING:
            scene.prepared()
    came = dict(times)
    assert came[10] == pytest.approx(1_100_000 + SECOND, abs=BUCKET)
    assert came[25] == 2_600_000
    assert sorted(came) == list(range(10, 30))


def test_with_the_policy_delay_every_bucket_waits():
    scene = two_inputs(during_failure=Policy.DELAY)
    seen = fail_x(scene, 30)
    assert extends(seen)[-1].buckets[-1].bucket == pytest.approx(19, abs=1)


def test_with_the_policy_suspend_nothing_tentative_ever_comes():
    scene = two_inputs(during_failure=Policy.SUSPEND)
    seen = fail_x(scene, 60)
    assert extends(seen) == []
    assert all(e.prepare_fork is None for e in seen)


def test_a_tentative_bucket_says_which_inputs_it_lacks_and_what_it_is_worth():
    scene = two_inputs()
    bucket = extends(fail_x(scene, 25))[0].buckets[0]
    assert {part.stream: part.lane for part in bucket.parts} == {"x": None, "y": Lane.MAIN}
    assert bucket.worth == pytest.approx(0.5)


def test_a_bucket_is_not_released_without_its_blocking_input():
    specs = (InputPlan("x", ("x",), blocking=True), InputPlan("y", ("y",)))
    scene = two_inputs(specs=specs)
    assert extends(fail_x(scene, 40)) == []
    assert scene.core.report().state == StreamState.FAILURE


def test_main_goes_on_beside_the_fork_and_takes_over_when_level():
    scene = two_inputs()
    fail_x(scene, 30)
    scene.forked()
    scene.says("x", "x", S, 30)
    healed = scene.main("x", 30)
    assert scene.state == NodeState.STABILIZATION
    assert healed.read_stable == ReadStable(30)
    done = scene.commit()
    assert scene.state == NodeState.STABLE
    assert done.stop_fork is not None
    assert done.stop_fork.drop_branch


def test_news_keep_coming_while_main_catches_up():
    scene = two_inputs()
    fail_x(scene, 30)
    scene.says("x", "x", S, 30)
    scene.main("x", 30)
    scene.until(3_100_000)
    scene.says("x", "x", S, 31)
    scene.main("x", 31)
    given = scene.main("y", 31).extend_fork
    assert [b.bucket for b in given.buckets] == [30]
    assert given.buckets[0].worth == 1.0


def test_with_all_inputs_back_and_main_near_a_bucket_that_is_not_complete_yet_waits_for_main():
    """Else the fork would stay one bucket ahead of main for as long as there is input."""
    scene = two_inputs()
    fail_x(scene, 30)
    scene.says("x", "x", S, 30)
    scene.main("x", 30)
    scene.tell(StableCompleted(25, 25 * BUCKET))
    assert scene.state == NodeState.STABILIZATION
    for stream in ("x", "y"):
        scene.tell(InputAdvanced(stream, stream, Lane.MAIN, 30 * BUCKET, (Arrival(30, 3),)))
    assert extends(scene.until(scene.now + 390_000)) == []
    for stream in ("x", "y"):
        scene.says(stream, stream, S, 31)
        scene.main(stream, 31)
    assert extends(scene.until(scene.now + 390_000)) == [], "main is near: it will bring bucket 30"
    scene.commit()
    assert scene.state == NodeState.STABLE


def test_a_tentative_bucket_waits_until_the_inputs_that_keep_their_promises_have_closed_it():
    scene = two_inputs()
    fail_x(scene, 30)
    scene.tell(InputAdvanced("y", "y", Lane.MAIN, 30 * BUCKET, (Arrival(30, 4),)))
    assert extends(scene.until(scene.now + 390_000)) == []
    scene.says("y", "y", S, 31)
    given = scene.main("y", 31, tuples=10).extend_fork
    assert [(b.bucket, b.parts[1].tuples, b.parts[1].closed) for b in given.buckets] == [(30, 10, True)]


def test_a_failure_during_stabilisation_leads_back_and_needs_no_new_delay():
    scene = two_inputs()
    fail_x(scene, 30)
    scene.says("x", "x", S, 20)
    scene.main("x", 20)
    assert scene.state == NodeState.STABILIZATION
    scene.said.pop("x")
    scene.commit()
    scene.until(3_500_000)
    assert scene.state == NodeState.UP_FAILURE
    assert scene.main("y", 35).extend_fork is not None


def test_a_failure_that_strikes_when_main_is_as_good_as_level_has_a_delay_of_its_own():
    scene = two_inputs()
    fail_x(scene, 30)
    scene.says("x", "x", S, 29)
    scene.main("x", 29)
    assert scene.state == NodeState.STABILIZATION
    scene.said.pop("x")
    scene.commit()
    scene.until(3_500_000)
    assert scene.state == NodeState.UP_FAILURE
    assert scene.main("y", 35).extend_fork is None, "it may heal before the delay is over (D6)"
    given = [b.bucket for order in extends(scene.until(scene.now + scene.core.plan.delay_us)) for b in order.buckets]
    assert given[:1] == [30], "and if it does not, the branch goes on"


def test_a_fork_that_dies_is_prepared_again():
    scene = two_inputs()
    fail_x(scene, 25)
    old = scene.core.fork.id
    again = scene.tell(ForkFailed(old))
    assert again.prepare_fork.fork == old + 1
    assert scene.tell(ForkFailed(old)).prepare_fork is None


def test_an_input_that_sends_tuples_but_no_boundary_is_not_believed_and_its_tuples_count():
    scene = two_inputs()
    for bucket in range(11, 25):
        scene.until(bucket * BUCKET)
        scene.said["y"] = scene.said["y"].__class__("y", S, bucket * BUCKET, False)
        scene.main("y", bucket)
        arrived = scene.core.inputs.sunion.inputs["x"]
        assert arrived.closed == 10
        scene.tell(InputAdvanced("x", "x", Lane.MAIN, 10 * BUCKET, (Arrival(bucket - 1, 7),)))
        if scene.core.fork.state == ForkState.PREPARING:
            scene.prepared()
    assert scene.state == NodeState.UP_FAILURE
    first = next(e.extend_fork for e in scene.log if e.extend_fork).buckets[0]
    part = next(p for p in first.parts if p.stream == "x")
    assert (part.lane, part.closed, part.tuples) == (Lane.MAIN, False, 7)


def test_a_stream_that_ended_is_neither_missed_nor_suspected():
    scene = two_inputs()
    for stream in ("x", "y"):
        scene.tell(InputAdvanced(stream, stream, Lane.MAIN, END_OF_TIME_US, (Arrival(10, 4),)))
    scene.commit()
    scene.said.clear()
    seen = scene.until(5 * SECOND)
    assert scene.state == NodeState.STABLE
    assert all(e.prepare_fork is None for e in seen)


# Choosing producers -----------------------------------------------------------------------------------------------


def test_a_dead_producer_is_replaced_by_a_stable_one_from_the_next_bucket_on():
    scene = one_stream()
    scene.dies("p")
    seen = scene.until(1_500_000)
    orders = [order for e in seen for order in e.subscribe]
    assert [(o.replica, o.lane, o.from_us) for o in orders] == [("q", Lane.MAIN, 10 * BUCKET)]
    assert scene.state == NodeState.STABLE


def test_with_all_producers_failing_the_branch_is_read_and_corrections_from_whoever_has_them():
    scene = one_stream()
    scene.says("p", "s", U, 10, fresh=True)
    effects = scene.says("q", "s", U, 10)
    lanes = [(o.replica, o.lane) for e in (*scene.log[-3:], effects) for o in e.subscribe]
    assert ("p", Lane.BRANCH) in lanes
    corrected = scene.says("q", "s", Z, 12)
    assert ("q", Lane.MAIN) in [(o.replica, o.lane) for o in corrected.subscribe]


def test_a_replica_far_behind_reads_the_head_for_news_and_main_for_corrections():
    scene = one_stream()
    scene.dies("p")
    scene.dies("q")
    scene.until(4_000_000)
    effects = scene.says("q", "s", S, 40)
    orders = {o.lane: o.from_us for o in effects.subscribe}
    assert orders == {Lane.MAIN: 10 * BUCKET, Lane.HEAD: 30 * BUCKET}


def test_a_broken_connection_is_subscribed_again():
    scene = one_stream()
    effects = scene.tell(Disconnected("p"))
    assert [(o.replica, o.lane) for o in effects.subscribe] == [("p", Lane.MAIN)]


def test_an_unknown_stream_is_refused_and_changes_nothing():
    scene = one_stream()
    with pytest.raises(UsageError, match="own inputs"):
        scene.tell(InputAdvanced("other", "p", Lane.MAIN, 0))


# Taking turns -----------------------------------------------------------------------------------------------------


def healed_in_turns() -> Scene:
    scene = two_inputs(stabilise=Stabilise.STAGGER)
    fail_x(scene, 30)
    scene.says("x", "x", S, 30)
    scene.main("x", 30)
    return scene


def test_without_authorisation_a_replica_stays_in_up_failure_and_main_waits():
    scene = healed_in_turns()
    assert scene.state == NodeState.UP_FAILURE
    assert sent(scene.log, AuthorisationRequest)[0][0] == "b"
    assert all(e.read_stable is None for e in scene.log[-3:])


def test_with_authorisation_it_stabilises_and_gives_up_its_fork():
    scene = healed_in_turns()
    granted = scene.grants("b")
    assert scene.state == NodeState.STABILIZATION
    assert granted.read_stable == ReadStable(30)
    assert granted.stop_fork is not None
    done = scene.commit()
    assert scene.state == NodeState.STABLE
    assert sent(done, AuthorisationDone) == [("b", AuthorisationDone(scene.asked()))]


def test_a_yes_to_an_earlier_turn_neither_ends_the_fork_nor_lets_it_stabilise():
    scene = healed_in_turns()
    earlier = scene.asked()
    scene.grants("b", earlier)
    scene.commit()
    assert scene.state == NodeState.STABLE
    scene.dies("x")
    for bucket in range(31, 51):
        scene.until(bucket * BUCKET)
        scene.main("y", bucket)
        if scene.core.fork.state == ForkState.PREPARING:
            scene.prepared()
    scene.says("x", "x", S, 50)
    scene.main("x", 50)
    assert scene.asked() > earlier
    late = scene.grants("b", earlier)
    assert late.stop_fork is None
    assert (scene.state, scene.core.fork.state) == (NodeState.UP_FAILURE, ForkState.RUNNING)
    now = scene.grants("b")
    assert now.stop_fork is not None
    assert scene.state == NodeState.STABILIZATION


def test_a_replica_that_granted_authorisation_does_not_stabilise():
    scene = two_inputs(stabilise=Stabilise.STAGGER, peers=("A",))
    fail_x(scene, 30)
    assert sent(scene.hear("A", AuthorisationRequest(7)), AuthorisationReply) == [("A", AuthorisationReply(True, 7))]
    scene.says("x", "x", S, 30)
    scene.main("x", 30)
    assert scene.state == NodeState.UP_FAILURE
    scene.hear("A", AuthorisationDone(7))
    scene.until(scene.now + BUCKET)
    assert sent(scene.log[-4:], AuthorisationRequest)


def test_without_a_peer_that_answers_it_stabilises_beside_its_own_fork():
    scene = healed_in_turns()
    scene.until(4_000_000)
    assert scene.state == NodeState.STABILIZATION
    assert scene.core.fork.state == ForkState.RUNNING


# Buffers ----------------------------------------------------------------------------------------------------------


def test_committed_buckets_are_acknowledged_to_all_replicas_of_the_producer():
    scene = one_stream()
    acked = sent(scene.log, Ack)
    assert {to for to, _ in acked} == {"p", "q"}
    assert max(message.upto_us for _, message in acked) <= scene.core.stable * BUCKET


def test_an_acknowledgement_is_said_again_though_nothing_is_new():
    """It may be lost, or its receiver may have started anew; a full producer would wait for it for ever."""
    scene = one_stream()
    scene.until(scene.now + SECOND)
    said = len(sent(scene.log, Ack))
    again = sent(scene.until(scene.now + SECOND), Ack)
    assert said
    assert {(to, message.upto_us) for to, message in again} == {("p", 10 * BUCKET), ("q", 10 * BUCKET)}


def test_output_goes_when_its_readers_have_it():
    scene = one_stream()
    effects = scene.hear("reader", Ack("out", 7 * BUCKET))
    assert (effects.truncate.upto_us, effects.truncate.lost_us) == (7 * BUCKET, 0)


def test_a_full_output_stops_the_stable_query():
    scene = Scene(plan({"x": ("x",)}, output=OutputPlan("out", ("x",), ("reader",), capacity_us=5 * BUCKET)))
    run_to(scene, 4)
    assert scene.main("x", 9).read_stable == ReadStable(5)
    scene.commit()
    assert scene.hear("reader", Ack("out", 3 * BUCKET)).read_stable == ReadStable(8)


def test_a_gap_is_skipped_by_a_convergent_query_and_refused_by_any_other():
    scene = one_stream(window_us=3 * BUCKET)
    effects = scene.tell(InputGap("s", 15 * BUCKET))
    assert effects.skip_stable == SkipStable(15, 18)
    assert scene.main("s", 20, "p").read_stable == ReadStable(20)
    with pytest.raises(UsageError, match="convergent-capable"):
        one_stream().tell(InputGap("s", 15 * BUCKET))


def test_a_snapshot_says_where_a_restarted_replica_goes_on():
    scene = two_inputs()
    resume = scene.core.snapshot()
    assert resume.next_bucket == 10
    again = Scene(scene.plan, resume)
    orders = list(again.says("x", "x", S, 10).subscribe)
    assert orders[0].from_us == 10 * BUCKET


def test_a_bucket_that_is_to_come_as_late_as_allowed_is_given_sooner_by_what_a_batch_takes():
    """D5: with a fork that takes 300 ms its results come when X is over, not 300 ms later."""
    scene = two_inputs(during_failure=Policy.DELAY)
    fail_x(scene, 21)
    began: dict[int, int] = {}
    given: dict[int, int] = {}
    late: list[int] = []
    for now in range(2_120_000, 6_000_000, 20_000):
        before = len(scene.log)
        scene.until(now)
        if now % BUCKET == 0:
            scene.said["y"] = StreamReport("y", StreamState.STABLE, now, False)
            scene.main("y", now // BUCKET)
            began[now // BUCKET - 1] = now
        given |= {item.bucket: now for order in extends(scene.log[before:]) for item in order.buckets}
        for bucket in [b for b, at in given.items() if now >= at + 300_000]:
            del given[bucket]
            scene.tell(ForkCompleted(scene.core.fork.id, bucket + 1))
            if bucket in began and bucket > 30:
                late.append(now - began[bucket])
    assert len(late) > 10
    assert max(late) <= SECOND + 40_000
    assert min(late) > SECOND - 150_000


def test_complete_buckets_that_main_has_not_committed_yet_are_no_corrections():
    """D5: main is slow; when the first tentative bucket goes out, it is not through with what came before the failure.
    That is no stabilisation, and its end no new failure, whose delay all later buckets would have to wait for."""
    scene = two_inputs()
    for bucket in (11, 12):
        scene.until(bucket * BUCKET)
        for stream in ("x", "y"):
            scene.says(stream, stream, StreamState.STABLE, bucket)
            scene.main(stream, bucket)
    scene.dies("x")
    for bucket in range(13, 24):
        scene.until(bucket * BUCKET)
        scene.says("y", "y", StreamState.STABLE, bucket)
        scene.main("y", bucket)
        if scene.core.fork.state.name == "PREPARING":
            scene.prepared()
    assert scene.core.stable == 10
    assert (scene.core.fork.first, scene.state) == (12, NodeState.UP_FAILURE)
    scene.commit()
    assert (scene.core.stable, scene.state, scene.core.fork.overdue) == (12, NodeState.UP_FAILURE, True)
    begun = len(scene.log)
    scene.until(24 * BUCKET)
    scene.says("y", "y", StreamState.STABLE, 24)
    scene.main("y", 24)
    assert [b.bucket for given in extends(scene.log[begun:]) for b in given.buckets] == [23]


def test_a_main_that_is_always_slower_than_the_delay_catches_up_all_the_same():
    """D3: a batch takes 1.5 s, in quiet times as well; what it is about to deliver is left to it, as it is then."""
    scene = two_inputs()
    order = scene.core._ordered

    def run(first: int, upto: int, streams: tuple[str, ...] = ("x", "y")) -> None:
        nonlocal order
        for bucket in range(first, upto + 1):
            scene.until(bucket * BUCKET)
            for stream in streams:
                scene.says(stream, stream, StreamState.STABLE, bucket)
                scene.main(stream, bucket)
            if bucket % 15 == 0:
                scene.tell(StableCompleted(order, order * BUCKET))
                order = scene.core._ordered
            if scene.core.fork.state.name == "PREPARING":
                scene.prepared()
            elif scene.core.fork.state.name == "RUNNING":
                scene.forked()

    run(11, 90)
    assert scene.state == NodeState.STABLE
    scene.dies("x")
    run(91, 130, ("y",))
    assert scene.core.fork.outstanding(scene.core.stable)
    run(131, 230)
    assert scene.state == NodeState.STABLE
