"""D16: how seldom an input moves is no failure; how long it stands still beyond that is."""

from __future__ import annotations

from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.messages import KeepaliveReply, StreamReport
from holdfast.protocol.dpc.monitor import STEPS_KEPT, Cadence, Monitor
from holdfast.protocol.dpc.plan import UNKNOWN_US, Patience
from holdfast.protocol.dpc.signals import Received
from holdfast.protocol.dpc.states import NodeState, StreamState
from tests.protocol.dpc.dpc_scene import BUCKET, SECOND, Scene, extends, one_stream, plan, two_inputs


def step(scene: Scene, stream: str, upto: int, replicas: tuple[str, ...] | None = None) -> None:
    """The producers promise everything below `upto`, and it has arrived."""
    for replica in replicas or (stream,):
        scene.said[replica] = StreamReport(stream, StreamState.STABLE, upto * BUCKET, False)
        scene.tell(Received(replica, KeepaliveReply((scene.said[replica],))))
    scene.main(stream, upto, (replicas or (stream,))[0])


def in_steps(scene: Scene, first: int, upto: int, every: int) -> list[NodeState]:
    """Source y moves with every bucket, x or s only after so many; the states on the way."""
    states = []
    slow = next(iter(scene.core.inputs.upstreams))
    for bucket in range(first + 1, upto + 1):
        scene.until(bucket * BUCKET)
        if "y" in scene.core.inputs.upstreams:
            step(scene, "y", bucket)
        if (bucket - first) % every == 0:
            step(scene, slow, bucket, scene.plan.inputs[0].producers)
        scene.commit()
        states.append(scene.state)
    return states


def test_an_input_that_moves_once_a_second_is_no_failure_d16():
    """Buckets of 100 ms and a commit every 700 ms with X = 1 s: 60 entries into UP_FAILURE a minute, once."""
    scene = one_stream()
    in_steps(scene, 10, 31, 7)
    seen = len(scene.log)
    states = in_steps(scene, 31, 631, 7)
    assert set(states) == {NodeState.STABLE}
    assert not [e for e in scene.log[seen:] if e.prepare_fork is not None]


def test_an_input_that_moves_more_seldom_than_x_is_no_failure_once_its_cadence_is_known_d16():
    scene = two_inputs()
    in_steps(scene, 10, 70, 20)
    for _ in range(2):  # What began in the unknown is over.
        scene.prepared() if scene.core.fork.state.name == "PREPARING" else scene.forked()
    in_steps(scene, 70, 130, 20)
    seen = len(scene.log)
    states = in_steps(scene, 130, 330, 20)
    assert set(states) == {NodeState.STABLE}
    assert not extends(scene.log[seen:])


def test_a_producer_that_hangs_is_left_for_its_twin_within_x():
    scene = one_stream()
    in_steps(scene, 10, 90, 4)
    for bucket in range(91, 101):
        scene.until(bucket * BUCKET)
        scene.says("q", "s", StreamState.STABLE, bucket)
    subscribed = [(s.replica, s.lane.name) for e in scene.log for s in e.subscribe]
    assert subscribed[-1] == ("q", "MAIN")
    assert scene.state == NodeState.STABLE


def test_the_release_of_the_fork_does_not_wait_for_a_slow_input_that_has_failed():
    scene = two_inputs()
    in_steps(scene, 10, 90, 8)
    scene.dies("x")
    for bucket in range(91, 111):
        scene.until(bucket * BUCKET)
        step(scene, "y", bucket)
        if scene.core.fork.state.name == "PREPARING":
            scene.prepared()
    first = next(e for e in scene.log if e.extend_fork is not None)
    assert first.extend_fork is not None
    assert first.extend_fork.buckets[-1].bucket >= 90
    assert scene.core.inputs.sunion.first_us[90] + SECOND <= scene.now


def test_a_subscription_that_brings_nothing_is_made_once_more_before_anybody_is_doubted():
    scene = one_stream()
    in_steps(scene, 10, 40, 1)
    before = len(scene.log)
    scene.until(45 * BUCKET)
    again = [(s.replica, s.lane.name, s.from_us) for e in scene.log[before:] for s in e.subscribe]
    assert again == [("p", "MAIN", 40 * BUCKET)]
    assert scene.state == NodeState.STABLE


def test_the_cadence_is_the_longest_step_and_a_single_long_one_counts_twice_the_next():
    cadence = Cadence()
    for now in (0, 10):
        cadence.stepped(now)
    assert cadence.us is None
    cadence.stepped(30)
    assert cadence.us == 20
    cadence.stepped(30 + 3600)
    assert cadence.us == 40
    cadence.stepped(3630 + 3600)
    assert cadence.us == 3600
    for n in range(STEPS_KEPT):
        cadence.stepped(7230 + 10 * (n + 1))
    assert cadence.us == 10


def test_what_a_failing_producer_does_says_nothing_about_its_cadence():
    monitor = Monitor(("p",))
    for n, state in enumerate((StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABLE, StreamState.STABLE)):
        monitor.answer("p", (StreamReport("s", state, n * 100, False),), n * SECOND)
    assert monitor.cadence_us("p", "s") is None


def test_a_producer_is_doubted_in_time_for_a_switch_within_x_unless_its_cadence_takes_longer():
    patience = Patience(300_000, BUCKET, 3 * SECOND)
    assert patience.doubt_us(SECOND) == 2_300_000
    assert patience.doubt_us(2 * SECOND) == patience.doubt_us(None) == 2_700_000
    assert patience.doubt_us(5 * SECOND) == 5_300_000
    assert Patience(300_000, BUCKET, END_OF_TIME_US).doubt_us(None) == UNKNOWN_US, "a client waits for nobody for ever"
    assert patience.usual_us(None) == patience.least_us == 400_000


def test_a_fork_is_prepared_early_enough_for_what_starting_one_takes():
    fork = one_stream().core.fork
    assert fork.wanted_us(400_000) == 700_000  # Not in every pause, though a second is assumed for its start.
    assert fork.wanted_us(100_000) == 400_000
    what = plan({"s": ("p", "q")}, delay_us=3 * SECOND)
    fork = Scene(what).core.fork
    fork.prepare(0, 0)
    fork.prepared(0, 2_200_000)
    assert fork.wanted_us(400_000) == 800_000  # X less what it took last time; a doubt would come after 1.1 s.
