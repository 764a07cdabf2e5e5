"""A verdict is about what was promised: each check passes on a good run and fails on one that is bad in its way."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from rich.console import Console

from holdfast.console.verdict import (
    Check,
    Verdict,
    added_delay,
    all_corrected,
    none_after_done,
    stable_equal,
    time_to_correct,
)
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from tests.console.conftest import BUCKET, SECOND, TRANSIT, Script, X, control, reference, tuples

NORMAL = BUCKET + TRANSIT


def verdict(script: Script) -> Verdict:
    recording = script.recording
    return Verdict([
        added_delay(recording, X, NORMAL), all_corrected(recording), none_after_done(recording),
        stable_equal(recording, reference(script.stable_next)), time_to_correct(recording, 5 * SECOND),
    ])  # fmt: skip


@pytest.mark.parametrize("seconds", [0, 2, 6, 20])
def test_a_good_run_passes_whatever_the_failure_lasts(seconds: int, script: Script) -> None:
    script.normal(5)
    if seconds:
        script.fail(seconds)
    if seconds > 2:
        script.correct()
    said = verdict(script.normal(5))
    assert said.passed, said


def test_a_delay_of_x_or_more_fails(figure_5_4: Script) -> None:
    added = 10 * BUCKET + TRANSIT - NORMAL
    assert added_delay(figure_5_4.recording, added + 1, NORMAL).passed
    assert not added_delay(figure_5_4.recording, added, NORMAL).passed


def test_what_came_before_the_system_was_warm_can_be_left_out(script: Script) -> None:
    script.recording.take(tuples(TupleType.INSERTION, 0), script.now + 9 * SECOND)
    script.next = script.stable_next = 60
    script.normal(5)
    assert not added_delay(script.recording, X, NORMAL).passed
    assert added_delay(script.recording, X, NORMAL, since_us=script.now - 5 * SECOND).passed


def test_a_failure_never_healed_leaves_tentative_tuples(script: Script) -> None:
    said = verdict(script.normal(5).fail(10, heal=False))
    assert [check.passed for check in said.checks] == [True, False, True, True, False]
    assert "never healed" in said.checks[1].measured
    assert "never healed" in said.checks[4].measured


def test_corrections_without_rec_done_fail(script: Script) -> None:
    script.normal(5).fail(10).recording.take(control(TupleType.UNDO), script.now)
    assert "UNDO without REC_DONE" in all_corrected(script.recording).measured
    assert not all_corrected(script.recording).passed
    assert not time_to_correct(script.recording).passed


def test_tentative_tuples_after_rec_done_need_a_new_failure(figure_5_4: Script) -> None:
    script, recording = figure_5_4, figure_5_4.recording
    assert none_after_done(recording).passed
    script.fail(6).correct()
    assert none_after_done(recording).passed
    recording.take(tuples(TupleType.TENTATIVE, script.next), script.now)
    assert not none_after_done(recording).passed


def test_a_link_that_is_still_cut_explains_tentative_tuples_after_rec_done(script: Script) -> None:
    recording = script.normal(5).recording
    recording.mark(script.now, "cut monitor1")
    script.fail(10, link="monitor3").correct()
    recording.take(tuples(TupleType.TENTATIVE, script.next), script.now)
    assert none_after_done(recording).passed


def test_tentative_tuples_without_any_failure_fail(script: Script) -> None:
    script.normal(1).recording.take(tuples(TupleType.TENTATIVE, 4), script.now)
    assert not none_after_done(script.recording).passed


def test_a_limit_on_the_time_to_correct_is_kept(figure_5_4: Script) -> None:
    assert time_to_correct(figure_5_4.recording, 2 * SECOND + 60_000).passed
    assert not time_to_correct(figure_5_4.recording, 2 * SECOND).passed


def test_a_stable_row_lost_doubled_changed_or_swapped_is_seen(figure_5_4: Script) -> None:
    recording = figure_5_4.recording
    good = reference(figure_5_4.stable_next).combine_chunks()
    n = good.num_rows
    assert stable_equal(recording, good.to_batches(max_chunksize=7)).passed
    longer = pa.concat_tables([good, good.slice(0, 1)])
    assert "the last 1 are missing" in stable_equal(recording, longer).measured
    order = [*range(n)]
    order[10], order[11] = 11, 10
    changed = good.set_column(good.schema.get_field_index("n"), "n", pa.array([99] * n, pa.int64()))
    for bad in (good.slice(1), good.slice(0, n - 1), good.take(order), changed, longer):
        assert not stable_equal(recording, bad).passed
    assert stable_equal(recording, changed, columns=["tuple_id", "stime", "source"]).passed
    assert "differs in n" in stable_equal(recording, changed).measured
    with pytest.raises(UsageError, match="must be among"):
        stable_equal(recording, good, columns=["typo"])


def test_a_verdict_shows_every_check_and_escapes_what_it_says() -> None:
    said = Verdict([Check("kept", True, "1 [red]x[/red]", "<b>"), Check("broken", False, "2", "&")])
    assert not said.passed
    out = io.StringIO()
    Console(file=out, width=100).print(said)
    assert "[red]x[/red]" in out.getvalue()
    assert "FAIL" in out.getvalue()
    assert all(check.measured.isascii() and check.required.isascii() for check in verdict(Script().normal(1)).checks)
    page = said.html()
    assert "&lt;b&gt;" in page
    assert "&amp;" in page
    assert "<b>" not in page
