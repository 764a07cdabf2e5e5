"""Results counted against the promise: on a stage where time moves by hand."""

from __future__ import annotations

import pytest

from holdfast.host.replica_counts import ReplicaCounts
from holdfast.protocol.dpc.effects import Effects
from holdfast.protocol.dpc.plan import NodePlan, Resume
from holdfast.protocol.dpc.signals import Signal
from holdfast.protocol.dpc.states import NodeState, StreamState
from tests.protocol.dpc.dpc_scene import BUCKET, SECOND, Scene, fail_x, plan, run_to


class Counted(Scene):
    """As a controller drives it."""

    def __init__(self, what: NodePlan, resume: Resume | None = None) -> None:
        self.counts = ReplicaCounts(what.delay_us, 0)
        super().__init__(what, resume)

    def tell(self, signal: Signal) -> Effects:
        self.counts.before(signal, self.core, self.now)
        effects = super().tell(signal)
        self.counts.after(effects, self.core, self.now)
        return effects

    def run(self, upto: int, late: int = 0) -> None:
        """Buckets come complete at their end, and results `late` buckets behind it."""
        for bucket in range(self.core.stable + 1, upto + 1):
            self.until(max(self.now, bucket * BUCKET))
            for stream in ("x", "y"):
                self.says(stream, stream, StreamState.STABLE, bucket)
                self.main(stream, bucket)
            self.until(self.now + late * BUCKET)
            self.commit()

    @property
    def used(self) -> float:
        return self.counts.delay_used(self.core, self.now)


@pytest.fixture
def scene() -> Counted:
    """STABLE at bucket 10 of inputs x and y, with a delay of a second."""
    scene = Counted(plan({"x": ("x",), "y": ("y",)}))
    run_to(scene, 10)
    assert scene.state == NodeState.STABLE
    return scene


def test_quiet_results_are_in_time_and_use_nothing_of_the_delay(scene: Counted) -> None:
    before = scene.counts.results["stable", True]
    scene.run(30)
    assert scene.counts.results["stable", True] == before + 20
    assert scene.counts.results["stable", False] == 0
    assert scene.used == 0
    assert scene.counts.state_us(scene.now)["STABLE"] > 19 * BUCKET


def test_what_a_replica_writes_before_it_serves_anybody_counts_for_nothing() -> None:
    """D12"""
    scene = Counted(plan({"x": ("x",)}), Resume(5, 5 * BUCKET, 0))
    scene.says("x", "x", StreamState.STABLE, 50)
    scene.main("x", 20)
    scene.until(3 * SECOND)
    scene.commit()
    assert scene.state == NodeState.RECOVERING
    assert not scene.counts.results
    assert scene.counts.state_us(scene.now)["RECOVERING"] == 3 * SECOND
    assert scene.used == 0


def test_tentative_results_count_once_and_their_correction_is_none_that_is_new(scene: Counted) -> None:
    stable = scene.counts.results["stable", True]
    fail_x(scene, 45)
    scene.forked()
    given = scene.counts.results["tentative", True] + scene.counts.results["tentative", False]
    assert given > 10
    assert scene.counts.state == "UP_FAILURE"
    scene.says("x", "x", StreamState.STABLE, 45)
    scene.main("x", 45)
    scene.until(scene.now + BUCKET)
    scene.commit()
    scene.until(scene.now + BUCKET)
    assert scene.state == NodeState.STABLE
    assert scene.counts.corrections == 1
    assert 0 < scene.counts.corrected_us <= 2 * BUCKET
    # Those that the fork did not get to are new with the stable query; the others are corrected.
    assert scene.counts.results["stable", True] - stable + given == 45 - 10


def test_the_delay_is_used_up_while_a_bucket_waits_and_the_promise_is_broken_beyond(scene: Counted) -> None:
    scene.run(20)
    scene.main("y", 21)
    shares = []
    for at in range(21, 41):
        scene.until(at * BUCKET)  # Nobody answers for x, and no host prepares a fork.
        shares.append(scene.used)
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[-1] > 1


def test_results_beyond_the_delay_are_late(scene: Counted) -> None:
    scene.run(20)
    usual_us = scene.counts.usual_us
    scene.run(21, late=15)
    assert usual_us is not None
    assert scene.counts.results["stable", False] == 1
    assert scene.used > 1


def test_the_usual_wait_rises_at_once_and_falls_slowly(scene: Counted) -> None:
    scene.run(20, late=2)
    slow = scene.counts.usual_us
    scene.run(21)
    soon = scene.counts.usual_us
    scene.run(120)
    later = scene.counts.usual_us
    assert slow is not None
    assert soon is not None
    assert later is not None
    assert slow >= 2 * BUCKET
    assert 0.9 * slow < soon <= slow
    assert later < slow / 2


def test_results_of_long_ago_do_not_say_how_it_is_now(scene: Counted) -> None:
    scene.run(20)
    scene.run(21, late=15)
    scene.now += 120 * SECOND
    assert scene.used == 0


def test_an_input_that_moves_is_noted_with_its_time(scene: Counted) -> None:
    scene.run(20)
    scene.until(25 * BUCKET)
    scene.main("y", 24)
    assert scene.counts.moved_us["x"] == 20 * BUCKET
    assert scene.counts.moved_us["y"] == 25 * BUCKET
