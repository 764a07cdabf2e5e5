"""Forks that are kept ready, because one started at a suspicion would not be there within the delay."""

from __future__ import annotations

import itertools

import pytest

from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.plan import FORK_LAG_MAX, Policy
from holdfast.protocol.dpc.signals import ForkFailed, ForkPrepared
from holdfast.protocol.dpc.states import ForkState, NodeState, StreamState
from tests.protocol.dpc.dpc_scene import BUCKET, SECOND, Scene, extends, plan, two_inputs

S = StreamState.STABLE
#: What the start of a fork takes here: as long as the whole delay.
START = SECOND


class Quiet:
    """Both inputs deliver bucket by bucket, main keeps up, and the host starts the forks it is asked for."""

    def __init__(self, **changes: object) -> None:
        self.scene: Scene = two_inputs(**({"warm": 0.05} | changes))
        self.asked: list[tuple[int, int]] = []
        self._seen = 0
        self._look()

    def _look(self) -> None:
        new, self._seen = self.scene.log[self._seen :], len(self.scene.log)
        self.asked += [(self.scene.now, e.prepare_fork.fork) for e in new if e.prepare_fork is not None]

    def run(self, first: int, upto: int, streams: tuple[str, ...] = ("x", "y"), starts: bool = True) -> None:
        scene, core = self.scene, self.scene.core
        for bucket in range(first, upto + 1):
            scene.until(bucket * BUCKET)
            for stream in streams:
                scene.says(stream, stream, S, bucket)
                scene.main(stream, bucket)
            scene.commit()
            self._look()
            waiting = core.fork.state == ForkState.PREPARING or core.fork.successor is not None
            if starts and waiting and scene.now - self.asked[-1][0] >= START:
                scene.tell(ForkPrepared(self.asked[-1][1], core.stable))


def test_a_fork_is_ready_before_anything_has_failed():
    quiet = Quiet()
    quiet.run(11, 30)
    assert quiet.scene.state == NodeState.STABLE
    assert quiet.scene.core.fork.state == ForkState.READY
    assert not extends(quiet.scene.log)


@pytest.mark.parametrize("changes", [{"warm": 0}, {"during_failure": Policy.SUSPEND}, {"delay_us": 3 * SECOND}])
def test_none_is_kept_where_nobody_wants_it(changes: dict[str, object]):
    quiet = Quiet(**changes)
    quiet.run(11, 60)
    assert quiet.asked == []


def test_it_takes_no_more_than_its_share_of_time():
    quiet = Quiet(warm=0.1)
    quiet.run(11, 1000)
    starts = [us for us, _ in quiet.asked]
    assert len(starts) >= 9
    assert min(b - a for a, b in itertools.pairwise(starts)) >= START / 0.1
    assert quiet.scene.core.stable - quiet.scene.core.fork.root <= START / 0.1 / BUCKET + START / BUCKET + 1


def test_the_fork_stays_until_its_successor_is_ready():
    quiet = Quiet(warm=0.5)
    quiet.run(11, 25)
    scene, core = quiet.scene, quiet.scene.core
    first = core.fork.id
    quiet.run(26, 26 + FORK_LAG_MAX + 10, starts=False)
    assert core.fork.successor == core.fork.last_id > first
    assert (core.fork.id, core.fork.state) == (first, ForkState.READY)
    scene.tell(ForkPrepared(core.fork.last_id, core.stable))
    assert (core.fork.id, core.fork.state, core.fork.root) == (core.fork.last_id, ForkState.READY, core.stable)
    assert not any(e.stop_fork for e in scene.log)


def test_a_successor_that_fails_leaves_the_fork_as_it_is():
    quiet = Quiet(warm=0.5)
    quiet.run(11, 25)
    core = quiet.scene.core
    first = core.fork.id
    quiet.run(26, 26 + FORK_LAG_MAX + 10, starts=False)
    quiet.scene.tell(ForkFailed(core.fork.last_id))
    assert (core.fork.id, core.fork.state, core.fork.successor) == (first, ForkState.READY, None)


def test_a_failure_finds_the_old_fork_and_the_successor_is_forgotten():
    """D5: the first tentative bucket is given when the delay runs out, however far the successor has come."""
    quiet = Quiet(warm=0.5)
    quiet.run(11, 25)
    scene, core = quiet.scene, quiet.scene.core
    quiet.run(26, 26 + FORK_LAG_MAX + 10, starts=False)
    first, successor, last = core.fork.id, core.fork.last_id, 26 + FORK_LAG_MAX + 10
    scene.dies("x")
    begun = len(scene.log)
    quiet.run(last + 1, last + 15, streams=("y",), starts=False)
    given = extends(scene.log[begun:])
    assert given
    assert given[0].fork == first
    assert next(b.bucket for b in given[0].buckets if b.emit) == last
    assert not given[0].buckets[0].emit  # It catches up first.
    scene.tell(ForkPrepared(successor, core.stable))
    assert (core.fork.id, core.fork.state) == (first, ForkState.RUNNING)


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
