"""Forks that are kept ready, because one started at a suspicion would not be there within the delay (D17)."""

from __future__ import annotations

import itertools

import pytest

from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.effects import ExtendFork
from holdfast.protocol.dpc.plan import WARM_LAG_US, Policy
from holdfast.protocol.dpc.signals import ForkPrepared, InputGap, Lane
from holdfast.protocol.dpc.states import ForkState, NodeState, StreamState
from tests.protocol.dpc.dpc_scene import BUCKET, SECOND, Scene, extends, one_stream, plan, two_inputs

S = StreamState.STABLE
#: What the start of a fork takes here: as long as the whole delay.
START = SECOND


class Quiet:
    """Both inputs deliver bucket by bucket, main keeps up, and the host starts the fork it is asked for; a fork that is
    given a step is through with it after `takes` buckets."""

    def __init__(self, takes: int = 2, **changes: object) -> None:
        self.scene: Scene = two_inputs(**({"warm": 0.05} | changes))
        self.takes = takes
        #: Whether each bucket of a step takes half as long as it lasts.
        self.slow = False
        self.asked: list[tuple[int, int]] = []
        self.steps: list[tuple[int, ExtendFork]] = []
        self._seen = 0
        self._look()

    def _takes_us(self) -> int:
        return max(self.takes * BUCKET, len(self.steps[-1][1].buckets) * BUCKET // 2 if self.slow else 0)

    def _look(self) -> None:
        new, self._seen = self.scene.log[self._seen :], len(self.scene.log)
        self.asked += [(self.scene.now, e.prepare_fork.fork) for e in new if e.prepare_fork is not None]
        given = [e.extend_fork for e in new if e.extend_fork is not None]
        self.steps += [(self.scene.now, g) for g in given if not any(b.emit for b in g.buckets)]

    def run(self, first: int, upto: int, streams: tuple[str, ...] = ("x", "y"), runs: bool = True) -> None:
        scene, core = self.scene, self.scene.core
        for bucket in range(first, upto + 1):
            scene.until(bucket * BUCKET)
            for stream in streams:
                scene.says(stream, stream, S, bucket)
                scene.main(stream, bucket)
            scene.commit()
            self._look()
            if core.fork.state == ForkState.PREPARING and scene.now - self.asked[-1][0] >= START:
                scene.tell(ForkPrepared(self.asked[-1][1], core.stable))
            elif core.fork.done < core.fork.next and scene.now - self.steps[-1][0] >= self._takes_us() and runs:
                scene.forked()
            self._look()


def test_a_fork_is_ready_before_anything_has_failed():
    quiet = Quiet()
    quiet.run(11, 30)
    assert quiet.scene.state == NodeState.STABLE
    assert quiet.scene.core.fork.state == ForkState.READY
    assert not any(bucket.emit for given in extends(quiet.scene.log) for bucket in given.buckets)


@pytest.mark.parametrize("changes", [{"warm": 0}, {"during_failure": Policy.SUSPEND}, {"delay_us": 3 * SECOND}])
def test_none_is_kept_where_nobody_wants_it(changes: dict[str, object]):
    quiet = Quiet(**changes)
    quiet.run(11, 60)
    assert quiet.asked == []


def test_it_is_started_once_and_follows_main_in_steps_of_its_share_of_time():
    """D17: each bucket once, in order, complete and unseen."""
    quiet = Quiet(takes=1, warm=0.1)
    quiet.run(11, 400)
    core = quiet.scene.core
    assert len(quiet.asked) == 1
    starts = [us for us, _ in quiet.steps]
    assert len(starts) >= 30
    assert min(b - a for a, b in itertools.pairwise(starts[1:])) >= BUCKET / 0.1  # The first step measures nothing.
    assert core.stable - core.fork.done <= 1 / 0.1 + 2
    buckets = [bucket for _, step in quiet.steps for bucket in step.buckets]
    assert [b.bucket for b in buckets] == list(range(buckets[0].bucket, core.fork.next))
    assert all(part.closed and part.lane is Lane.MAIN for b in buckets for part in b.parts)
    assert quiet.scene.state == NodeState.STABLE


def test_batches_without_tuples_behind_a_step_count_for_its_share_of_time():
    quiet = Quiet(takes=1, warm=0.1)
    quiet.run(11, 60)
    before = len(quiet.steps)
    scene = quiet.scene
    bucket = 60
    while len(quiet.steps) == before or scene.core.fork.done < scene.core.fork.next:
        quiet.run(bucket + 1, bucket + 1)
        bucket += 1
    scene.until((bucket + 1) * BUCKET)
    scene.forked()
    begun, busy = quiet.steps[-1][0], scene.now - quiet.steps[-1][0]
    assert busy >= 2 * BUCKET
    count = len(quiet.steps)
    quiet.run(bucket + 2, begun // BUCKET + 10 * busy // BUCKET - 1)
    assert len(quiet.steps) == count
    quiet.run(begun // BUCKET + 10 * busy // BUCKET, begun // BUCKET + 10 * busy // BUCKET + 1)
    assert len(quiet.steps) == count + 1


def test_its_first_step_is_taken_at_once_and_the_next_only_when_that_is_done():
    quiet = Quiet()
    quiet.run(11, 21)
    assert quiet.scene.core.fork.state == ForkState.READY
    quiet.run(22, 23, runs=False)
    assert len(quiet.steps) == 1
    quiet.run(24, 120, runs=False)
    assert len(quiet.steps) == 1


def test_inputs_are_kept_until_the_fork_has_read_them_too():
    quiet = Quiet(warm=0.01)
    quiet.run(11, 60)
    core = quiet.scene.core
    assert core.needed_from == core.fork.done < core.stable


def test_a_fork_that_does_not_get_on_is_replaced_before_its_input_piles_up():
    quiet = Quiet()
    quiet.run(11, 21)
    first = quiet.scene.core.fork.id
    quiet.run(22, 22 + 2 * WARM_LAG_US // BUCKET, runs=False)
    assert quiet.scene.core.fork.id > first
    assert any(e.stop_fork is not None and e.stop_fork.fork == first for e in quiet.scene.log)


def test_at_a_suspicion_it_catches_up_before_it_is_needed():
    quiet = Quiet(takes=1, warm=0.01)
    quiet.run(11, 60)
    scene, core = quiet.scene, quiet.scene.core
    scene.dies("x")
    count = len(quiet.steps)
    quiet.run(61, 68, streams=("y",))
    assert len(quiet.steps) == count + 1
    assert core.fork.done == core.stable == 60
    begun = len(scene.log)
    quiet.run(69, 75, streams=("y",))
    given = extends(scene.log[begun:])
    assert given[0].buckets[0].emit
    assert given[0].buckets[0].bucket == 60


def test_one_that_cannot_catch_up_in_time_is_replaced_at_a_suspicion_by_one_that_need_not():
    """Its query is busy half of the time, so it cannot be followed with a twentieth of it."""
    quiet = Quiet(takes=1)
    quiet.slow = True
    quiet.run(11, 150)
    core = quiet.scene.core
    first = core.fork.id
    assert (core.fork.state, len(quiet.asked)) == (ForkState.READY, 1)
    quiet.scene.dies("x")
    quiet.run(151, 156, streams=("y",))
    assert core.fork.id > first
    assert (core.fork.state, core.fork.next) == (ForkState.PREPARING, core.stable)


def test_a_step_that_would_not_be_done_in_time_is_not_begun():
    """D5: the first tentative bucket would have to wait for it."""
    quiet = Quiet(takes=8, warm=0.01)
    quiet.run(11, 60)
    scene = quiet.scene
    scene.dies("x")
    count, begun = len(quiet.steps), len(scene.log)
    quiet.run(61, 75, streams=("y",))
    assert len(quiet.steps) == count
    given = extends(scene.log[begun:])
    assert not given[0].buckets[0].emit  # It catches up with the same batch.
    assert next(b.bucket for b in given[0].buckets if b.emit) == 60


def test_a_gap_ends_a_fork_whose_input_is_gone():
    """D17: it could not follow main over what is lost, and one that is started now begins behind it."""
    quiet = Quiet(window_us=BUCKET)
    quiet.run(11, 40)
    scene, core = quiet.scene, quiet.scene.core
    first = core.fork.id
    effects = scene.tell(InputGap("x", 50 * BUCKET))
    assert effects.stop_fork is not None
    assert (effects.stop_fork.fork, effects.stop_fork.drop_branch) == (first, True)
    assert core.fork.id > first or core.fork.state == ForkState.NONE


def test_after_a_failure_the_next_fork_is_asked_for_at_once():
    quiet = Quiet()
    quiet.run(11, 30)
    scene, core = quiet.scene, quiet.scene.core
    scene.dies("x")
    quiet.run(31, 45, streams=("y",))
    assert core.fork.state == ForkState.RUNNING
    scene.forked()
    count = len(quiet.asked)
    quiet.run(46, 52)
    assert scene.state == NodeState.STABLE
    assert len(quiet.asked) == count + 1


def test_a_share_is_between_nothing_and_all():
    for warm in (-0.1, 1.5, True, "5 %"):
        with pytest.raises(UsageError, match="share of time"):
            plan({"x": ("x",)}, warm=warm)


def test_in_a_chain_it_catches_up_as_soon_as_all_above_say_that_they_have_failed():
    """§5.4.3: by the time that tentative results come from above, nothing else is left to be done."""
    scene = one_stream(warm=0.01, peers=())
    for bucket in range(11, 61):
        scene.until(bucket * BUCKET)
        if scene.core.fork.state == ForkState.PREPARING:
            scene.prepared()
        elif scene.core.fork.done < scene.core.fork.next:
            scene.forked()
        for replica in ("p", "q"):
            scene.says(replica, "s", S, bucket)
        scene.main("s", bucket, "p")
        scene.commit()
    lag = scene.core.stable - scene.core.fork.next
    assert lag > 10
    scene.says("p", "s", StreamState.UP_FAILURE, 60)
    effects = scene.says("q", "s", StreamState.UP_FAILURE, 60)
    assert scene.state == NodeState.UP_FAILURE
    assert effects.extend_fork is not None
    assert (len(effects.extend_fork.buckets), any(b.emit for b in effects.extend_fork.buckets)) == (lag, False)
