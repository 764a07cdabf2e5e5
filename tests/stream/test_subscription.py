"""Main and branch as one sequence (003 §4.4, figure 4-6; D1–D4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stream.subscription import BranchView, Range, Step, Subscription


def told(*views: tuple[int, tuple[str, int, int] | None]) -> list[str]:
    """The transcript of a subscriber that saw main and branch at these moments."""
    core, lines = Subscription(0), []
    for main, branch in views:
        lines += [written(s) for s in core.advance(main, BranchView(*branch) if branch else None)]
    return lines


def written(step: Step) -> str:
    return f"{step.source} {step.start_us}..{step.end_us}" if isinstance(step, Range) else step


SCRIPTS = {
    "no failure: stable tuples once and in order": (
        [(10, None), (10, None), (30, None)],
        ["main 0..10", "main 10..30"],
    ),
    "figure 4-6: stable, tentative, undo, stable, done": (
        [(20, None), (20, ("a", 20, 30)), (20, ("a", 20, 50)), (50, ("a", 20, 50)), (60, None)],
        ["main 0..20", "branch 20..30", "branch 30..50", "UNDO", "main 20..50", "REC_DONE", "main 50..60"],
    ),
    "corrections wait until main has caught up; new tentative tuples keep coming": (
        [(20, ("a", 20, 40)), (30, ("a", 20, 50)), (40, ("a", 20, 60)), (60, ("a", 20, 60))],
        ["main 0..20", "branch 20..40", "branch 40..50", "branch 50..60", "UNDO", "main 20..60", "REC_DONE"],
    ),
    "D2: without tentative tuples there is nothing to undo": (
        [(20, ("a", 20, 20)), (30, ("a", 20, 25)), (40, None)],
        ["main 0..20", "main 20..30", "main 30..40"],
    ),
    "D4: a branch that was corrected is over": (
        [(20, ("a", 20, 30)), (30, ("a", 20, 30)), (30, ("a", 20, 40)), (40, ("a", 20, 50))],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..30", "REC_DONE", "main 30..40"],
    ),
    "D4: a new failure after the correction is a new branch": (
        [(20, ("a", 20, 30)), (30, None), (30, ("b", 30, 40)), (40, None)],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..30", "REC_DONE", "branch 30..40", "UNDO", "main 30..40",
         "REC_DONE"],
    ),
    "D4: a failure in the middle of recovery forces REC_DONE first, and touches only later tuples": (
        [(20, ("a", 20, 50)), (30, ("b", 30, 60)), (60, None)],
        ["main 0..20", "branch 20..50", "UNDO", "main 20..30", "REC_DONE", "branch 30..60", "UNDO", "main 30..60",
         "REC_DONE"],
    ),
    "a branch dropped too early is corrected when main catches up": (
        [(20, ("a", 20, 50)), (30, None), (40, None), (50, None)],
        ["main 0..20", "branch 20..50", "UNDO", "main 20..50", "REC_DONE"],
    ),
    "a branch rooted ahead of main is shown from its root": (
        [(10, ("a", 30, 40)), (40, None)],
        ["main 0..10", "branch 30..40", "UNDO", "main 10..40", "REC_DONE"],
    ),
    "a branch rooted behind what was delivered is shown from there": (
        [(30, ("a", 10, 50))],
        ["main 0..30", "branch 30..50"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_transcript_is(title: str) -> None:
    views, lines = SCRIPTS[title]
    assert told(*views) == lines


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["", "grow", "new", "drop"]), st.integers(0, 8)), max_size=40)
)
def test_in_any_history_stable_is_a_prefix_and_every_tentative_suffix_is_closed(
    moves: list[tuple[int, str, int]],
) -> None:
    """D1–D4 as the receiver can check them."""
    core, main, branch, number = Subscription(0), 0, None, 0
    stable, tentative, undone, branches_shown = 0, 0, False, 0
    for step_main, what, amount in moves:
        main += step_main
        if what == "new":
            number += 1
            branch = BranchView(str(number), main, main + amount)
        elif what == "grow" and branch is not None:
            branch = branch._replace(until_us=branch.until_us + amount)
        elif what == "drop":
            branch = None
        for step in core.advance(main, branch):
            if step == "UNDO":
                assert tentative > 0
                assert not undone
                undone, tentative = True, 0
            elif step == "REC_DONE":
                assert undone
                undone = False
            elif step.source == "main":
                assert step.start_us == stable < step.end_us <= main
                assert tentative == 0, "stable tuples come only after the UNDO"
                stable = step.end_us
            else:
                assert not undone
                assert step.start_us >= stable
                tentative += step.end_us - step.start_us
                branches_shown += 1
        assert not undone
    core.advance(main + 10**6, None)
    assert core.tentative_until_us is None
    assert core.stable_until_us == main + 10**6
