"""Every checker sees (D1–D14): each planted bug is caught, and a failing plan shrinks."""

from __future__ import annotations

import pytest

from holdfast.sim.faults import Fault, Plan, Setting, draw
from holdfast.sim.planted import BUGS, planted
from holdfast.sim.run import run_plan
from holdfast.sim.shrink import active, shrink

#: A bug that hides longer than this is not caught.
SEEDS = 60


@pytest.mark.parametrize("name", sorted(BUGS))
def test_each_planted_bug_is_caught(name):
    with planted(name) as bug:
        for seed in range(SEEDS):
            labels = {violation.label for violation in run_plan(draw(seed, bug.profile))[0].violations}
            if bug.label in labels:
                return
    pytest.fail(f"{name} was not caught as {BUGS[name].label} in {SEEDS} schedules")


def test_there_is_a_planted_bug_for_every_invariant():
    assert {bug.label for bug in BUGS.values()} == {f"D{n}" for n in range(1, 18)}


def test_a_planted_bug_leaves_nothing_behind():
    bug = BUGS["never-releases"]
    right = bug.owner.__dict__[bug.name]
    with planted("never-releases"):
        assert bug.owner.__dict__[bug.name] is not right
    assert bug.owner.__dict__[bug.name] is right


def test_a_failing_plan_shrinks_to_the_faults_that_matter():
    def fails(plan: Plan, label: str) -> bool:
        left = {(fault.kind, fault.targets) for fault in active(plan)}
        return {("cut", ("s1", "n1a")), ("pause", ("n2b",))} <= left

    faults = tuple(Fault("slow", ("s2", "n1b"), i, 9) for i in range(6))
    faults += (Fault("cut", ("s1", "n1a"), 7, 800_000), *faults, Fault("pause", ("n2b",), 8, 800_000))
    small = shrink(Plan(1, "mixed", Setting(), faults), "D1", fails)
    assert [(f.kind, f.length_us) for f in active(small)] == [("cut", 100_000), ("pause", 100_000)]
    assert len(small.faults) == len(faults)


def test_a_real_failure_shrinks_and_still_fails():
    with planted("undo-too-far") as bug:
        seed = next(s for s in range(SEEDS) if run_plan(draw(s))[0].violations)
        plan = draw(seed)
        small = shrink(plan, bug.label)
        assert len(active(small)) <= len(plan.faults)
        assert any(violation.label == bug.label for violation in run_plan(small)[0].violations)
