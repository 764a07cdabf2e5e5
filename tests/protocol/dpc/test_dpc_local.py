"""What a reader of a stream's own files is handed, look by look (003 §4.4, figure 4-6; D1–D4, D15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import REPORT_US_MAX, BranchView, LocalReader, View
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.sequence import Delivery
from holdfast.protocol.dpc.states import StreamState

STATES = {"S": StreamState.STABLE, "U": StreamState.UP_FAILURE, "Z": StreamState.STABILIZATION,
          "F": StreamState.FAILURE}  # fmt: skip
Seen = tuple[str, int, tuple[str, int, int] | None]
"""The state in the report ('' for none), how far main is, the branch; in capitals: the producer is long dead."""


def view(state: str, main: int, branch: tuple[str, int, int] | None, renewed_us: int = 0, ended: bool = False) -> View:
    report = StreamReport("s", STATES[state], 0, False) if state else None
    return View(report, renewed_us, main, ended, BranchView(*branch) if branch else None)


def told(*looks: Seen) -> list[str]:
    """The transcript of a reader that looked at these moments."""
    core, lines = LocalReader(0), []
    for state, main, branch in looks:
        lines += [written(step) for step in core.look(view(state, main, branch), 0)]
    return lines


def written(step: Delivery) -> str:
    name = {TupleType.INSERTION: "main", TupleType.TENTATIVE: "branch"}.get(step.kind)
    return f"{name} {step.bucket}..{step.end}" if name else step.kind.name


SCRIPTS = {
    "no failure: stable tuples once and in order": (
        [("S", 10, None), ("S", 10, None), ("S", 30, None)],
        ["main 0..10", "main 10..30"],
    ),
    "figure 4-6: stable, tentative, undo, stable, done": (
        [("S", 20, None), ("U", 20, ("a", 20, 30)), ("U", 20, ("a", 20, 50)), ("Z", 50, ("a", 20, 50)),
         ("S", 60, None)],
        ["main 0..20", "branch 20..30", "branch 30..50", "UNDO", "main 20..50", "main 50..60", "REC_DONE"],
    ),
    "corrections come as they come, and news between them": (
        [("U", 20, ("a", 20, 40)), ("Z", 30, ("a", 20, 50)), ("Z", 40, ("a", 20, 60)), ("Z", 55, ("a", 20, 60)),
         ("S", 60, None)],
        ["main 0..20", "branch 20..40", "UNDO", "main 20..30", "branch 40..50", "main 30..40", "branch 50..60",
         "UNDO", "main 40..55", "main 55..60", "REC_DONE"],
    ),
    "D2: without tentative tuples there is nothing to undo": (
        [("U", 20, ("a", 20, 20)), ("Z", 30, ("a", 20, 25)), ("S", 40, None)],
        ["main 0..20", "main 20..30", "main 30..40"],
    ),
    "D4: a failure in the middle of recovery forces REC_DONE, and the branch goes on where main ends": (
        [("U", 20, ("a", 20, 50)), ("Z", 30, ("a", 20, 50)), ("U", 30, ("a", 20, 60)), ("Z", 60, ("a", 20, 60)),
         ("S", 60, None)],
        ["main 0..20", "branch 20..50", "UNDO", "main 20..30", "REC_DONE", "branch 30..60", "UNDO", "main 30..60",
         "REC_DONE"],
    ),
    "D4: news that came during the corrections are taken back when they stop": (
        [("U", 20, ("a", 20, 50)), ("Z", 30, ("a", 20, 60)), ("U", 30, ("a", 20, 70))],
        ["main 0..20", "branch 20..50", "UNDO", "main 20..30", "branch 50..60", "UNDO", "REC_DONE", "branch 30..70"],
    ),
    "D4: a new failure, noticed late, closes the corrections of the one before": (
        [("U", 20, ("a", 20, 30)), ("Z", 30, ("a", 20, 30)), ("U", 35, ("b", 35, 40)), ("S", 40, None)],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..30", "main 30..35", "REC_DONE", "branch 35..40", "UNDO",
         "main 35..40", "REC_DONE"],
    ),
    "results that main publishes late leave the rest of the branch in place": (
        [("U", 19, ("a", 20, 30)), ("U", 20, ("a", 20, 30)), ("U", 20, ("a", 20, 31))],
        ["main 0..19", "branch 20..30", "UNDO", "main 19..20", "REC_DONE", "branch 20..30", "branch 30..31"],
    ),
    "D3: STABLE is not enough, main must have passed what was tentative": (
        [("U", 20, ("a", 20, 30)), ("Z", 25, ("a", 20, 30)), ("S", 28, None), ("S", 30, None)],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..25", "main 25..28", "main 28..30", "REC_DONE"],
    ),
    "a producer that was killed starts again: its branch is gone, its corrections come": (
        [("U", 20, ("a", 20, 30)), ("F", 20, None), ("F", 25, None), ("S", 30, None)],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..25", "main 25..30", "REC_DONE"],
    ),
    "another fork of the same failure goes on where the one before ended": (
        [("U", 20, ("a", 20, 30)), ("U", 20, ("b", 20, 35))],
        ["main 0..20", "branch 20..30", "branch 30..35"],
    ),
    "a branch rooted behind what was delivered is shown from there": (
        [("U", 30, ("a", 10, 50))],
        ["main 0..30", "branch 30..50"],
    ),
    "without a report: corrected when main has passed what was shown, and then over": (
        [("", 20, ("a", 20, 30)), ("", 25, ("a", 20, 35)), ("", 35, ("a", 20, 40)), ("", 35, ("a", 20, 45))],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..25", "branch 30..35", "main 25..30", "UNDO", "main 30..35",
         "REC_DONE"],
    ),
    "without a report: another branch is another failure": (
        [("", 20, ("a", 20, 30)), ("", 25, ("b", 25, 40)), ("", 40, None)],
        ["main 0..20", "branch 20..30", "UNDO", "main 20..25", "REC_DONE", "branch 25..40", "UNDO", "main 25..40",
         "REC_DONE"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_transcript_is(title: str) -> None:
    looks, lines = SCRIPTS[title]
    assert told(*looks) == lines


def test_the_branch_of_a_producer_that_gives_no_sign_of_life_is_not_news() -> None:
    """D15: a client of other hosts would get no answer from it either."""
    core, late = LocalReader(0), REPORT_US_MAX + 1
    assert [written(s) for s in core.look(view("U", 20, ("a", 20, 30)), 0)] == ["main 0..20", "branch 20..30"]
    assert core.look(view("U", 20, ("a", 20, 31)), late) == ()
    newcomer = LocalReader(0)
    assert [written(s) for s in newcomer.look(view("U", 20, ("a", 20, 31)), late)] == ["main 0..20"]
    assert [written(s) for s in core.look(view("U", 20, ("a", 20, 31), late), late)] == ["branch 30..31"]


def test_a_stream_that_ends_closes_its_corrections_whoever_lives() -> None:
    core = LocalReader(0)
    core.look(view("U", 20, ("a", 20, 40)), 0)
    last = core.look(view("U", 30, ("a", 20, 50), ended=True), 0)
    assert [written(s) for s in last] == ["UNDO", "main 20..30", "REC_DONE"]


MOVES = st.lists(
    st.tuples(
        st.integers(0, 8), st.sampled_from(["", "grow", "new", "drop"]), st.integers(0, 8), st.sampled_from("SUZF")
    ),
    max_size=40,
)


@given(MOVES, st.booleans())
def test_in_any_history_stable_is_a_prefix_and_every_tentative_suffix_is_closed(
    moves: list[tuple[int, str, int, str]], reported: bool
) -> None:
    """D1–D4 as the receiver can check them."""
    core, main, number = LocalReader(0), 0, 0
    branch: tuple[str, int, int] | None = None
    stable, tentative, correcting = 0, set[int](), False
    for grown, what, amount, state in [*moves, (10**6, "drop", 0, "S")]:
        main += grown
        if what == "new":
            number += 1
            branch = (str(number), main, main + amount)
        elif what == "grow" and branch is not None:
            branch = (branch[0], branch[1], branch[2] + amount)
        elif what == "drop":
            branch = None
        for step in core.look(view(state if reported else "", main, branch), 0):
            if step.kind is TupleType.UNDO:
                assert tentative
                tentative, correcting = set(), True
            elif step.kind is TupleType.REC_DONE:
                assert correcting
                assert not tentative
                correcting = False
            elif step.kind is TupleType.INSERTION:
                assert step.bucket == stable < step.end <= main
                assert not any(held < step.end for held in tentative), "stable tuples come only after the UNDO"
                stable = step.end
            else:
                fresh = set(range(step.bucket, step.end))
                assert min(fresh) >= stable
                assert not fresh & tentative
                tentative |= fresh
        assert stable == main
    assert not tentative
    assert not correcting
