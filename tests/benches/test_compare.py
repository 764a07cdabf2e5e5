"""The judge, the schedule and the picture of `make compare`; its runs are a bench."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benches.compare.judge import Line, judge
from benches.compare.machine import Own
from benches.compare.moments import Span, State, moments
from benches.compare.page import write_page
from benches.compare.records import Record, absent, keep, kept
from benches.compare.workload import EPOCH_MS, INPUTS, SILENT, Plan, encoded, feed, files, new_lines, truth

PLAN = Plan(judged_from_s=0, silent_from_s=2, silent_until_s=6, judged_until_s=10, fed_until_s=10, stopped_at_s=20)
FIRST, SECOND = (EPOCH_MS, "k0"), (EPOCH_MS + 2000, "k0")  # Windows that end at 2 s and at 4 s.
TRUTH = {FIRST: 5, SECOND: 7}


def said(at_s: float, row: tuple[int, str], count: int, tentative: bool = False) -> Line:
    return Line(at_s, *row, count, tentative)


def kinds(*lines: Line) -> tuple[int, int, int, int]:
    """On time, late, lost, wrong; rows are due after 3 s."""
    f = judge(lines, TRUTH, PLAN, 3.0)
    return f.rows_on_time, f.rows_late, f.rows_lost, f.rows_wrong_at_end


def test_a_right_count_at_the_due_time_is_on_time_and_after_it_late() -> None:
    assert kinds(said(5.0, FIRST, 5), said(7.1, SECOND, 7)) == (1, 1, 0, 0)


def test_a_row_that_never_came_is_lost_and_one_that_stays_wrong_is_wrong() -> None:
    assert kinds(said(3.0, FIRST, 4)) == (0, 0, 1, 1)


def test_a_wrong_count_that_is_replaced_after_it_was_due_is_late_and_counted_as_unmarked() -> None:
    lines = [said(3.0, FIRST, 4), said(9.0, FIRST, 5), said(5.0, SECOND, 7)]
    assert kinds(*lines) == (1, 1, 0, 0)
    assert judge(lines, TRUTH, PLAN, 3.0).rows_wrong_unmarked == 1


def test_a_running_count_that_is_right_when_it_is_due_is_on_time() -> None:
    lines = [said(1.0, FIRST, 2), said(2.5, FIRST, 5), said(5.0, SECOND, 7)]
    assert kinds(*lines) == (2, 0, 0, 0)
    assert judge(lines, TRUTH, PLAN, 3.0).rows_wrong_unmarked == 0


def test_a_tentative_count_is_not_on_time_even_if_right_but_has_its_own_column() -> None:
    lines = [said(3.0, FIRST, 5, True), Line(6.5), said(6.5, FIRST, 5), said(6.5, SECOND, 7)]
    assert kinds(*lines) == (1, 1, 0, 0)
    assert judge(lines, TRUTH, PLAN, 3.0).rows_tentative_on_time == 1


def test_a_tentative_count_that_nobody_replaces_is_wrong_and_one_that_is_only_taken_back_is_lost() -> None:
    assert kinds(said(3.0, FIRST, 5, True), said(5.0, SECOND, 7)) == (1, 0, 0, 1)
    assert kinds(said(3.0, FIRST, 5, True), Line(4.0), said(5.0, SECOND, 7)) == (1, 0, 1, 0)


def test_a_right_count_that_is_replaced_by_a_wrong_one_and_back_is_late() -> None:
    lines = [said(3.0, FIRST, 5), said(8.0, FIRST, 6), said(9.0, FIRST, 5), said(5.0, SECOND, 7)]
    assert kinds(*lines) == (1, 1, 0, 0)


def test_a_row_that_the_truth_does_not_have_is_wrong() -> None:
    assert kinds(said(3.0, FIRST, 5), said(5.0, SECOND, 7), said(5.0, (FIRST[0], "k9"), 1)) == (2, 0, 0, 1)


def test_silence_is_the_longest_time_without_a_newer_window() -> None:
    lines = [said(3.0, FIRST, 4), said(5.0, FIRST, 5), said(9.5, SECOND, 7)]
    assert judge(lines, TRUTH, PLAN, 3.0).longest_silence_s == 6.5
    assert judge([], TRUTH, PLAN, 3.0).longest_silence_s == 10.0


def test_rows_that_the_failure_does_not_touch_are_counted_apart() -> None:
    calm, plan = {(EPOCH_MS, "k0"): 5, (EPOCH_MS + 12_000, "k0"): 7}, PLAN._replace(silent_from_s=3)
    lines = [said(9.0, FIRST, 5), said(15.0, (EPOCH_MS + 12_000, "k0"), 7), said(7.0, SECOND, 7)]
    f = judge(lines, {**TRUTH, **calm}, plan, 3.0)
    assert (f.calm_rows, f.calm_rows_on_time) == (2, 1)


def test_the_correction_is_complete_when_all_that_ended_before_the_return_is_right() -> None:
    assert judge([said(3.0, FIRST, 5), said(7.5, SECOND, 7)], TRUTH, PLAN, 3.0).corrected_s == 1.5
    assert judge([said(3.0, FIRST, 5)], TRUTH, PLAN, 3.0).corrected_s is None


def test_the_picture_shows_what_was_held_from_the_end_of_the_window_on() -> None:
    lines = [said(3.0, FIRST, 4, True), Line(6.0), said(7.0, FIRST, 5), said(4.5, SECOND, 6)]
    found = moments(lines, TRUTH, PLAN, 3.0)
    assert found[FIRST[0]] == [
        Span(2.0, 3.0, State.NOT_DUE), Span(3.0, 6.0, State.TENTATIVE), Span(6.0, 7.0, State.MISSING),
        Span(7.0, 20.0, State.RIGHT),
    ]  # fmt: skip
    assert found[SECOND[0]] == [Span(4.0, 7.0, State.NOT_DUE), Span(7.0, 20.0, State.WRONG_FOR_GOOD)]


def test_the_schedule_is_the_same_each_time_and_each_input_keeps_the_order_of_its_rows() -> None:
    assert files(Plan()) == files(Plan())
    for name in INPUTS:
        times = [ts for file in files(PLAN) if file.input == name for ts, _ in file.rows]
        assert times == sorted(times)


def test_the_silent_input_brings_nothing_while_it_is_silent_and_all_of_it_when_it_is_back() -> None:
    of_it = [file for file in files(PLAN) if file.input == SILENT]
    assert not [file for file in of_it if 2000 < file.at_ms < 6000]
    (back,) = [file for file in of_it if file.at_ms == 6000]
    assert {ts - EPOCH_MS for ts, _ in back.rows} == set(range(2000, 6000, 100))
    assert sum(len(file.rows) for file in of_it) == 10 * 10 * 4


def test_the_truth_counts_every_row_that_any_file_brings() -> None:
    counted = Counter((ts // 2000 * 2000, key) for file in files(PLAN) for ts, key in file.rows)
    assert truth(PLAN) == counted


def test_the_feeder_writes_the_files_of_the_schedule_byte_for_byte(tmp_path: Path) -> None:
    plan = Plan(0, 1, 2, 3, 3, 3)
    for name in INPUTS:
        (tmp_path / name).mkdir()
    feed(tmp_path, plan, begin=0.0)  # Long ago: everything is due at once.
    for file in files(plan):
        assert (tmp_path / file.input / file.name).read_bytes() == encoded(file)
    seen: set[str] = set()
    assert len(new_lines(tmp_path / "a", seen)) == 3 * 10 * 4
    assert new_lines(tmp_path / "a", seen) == []
    assert json.loads(encoded(files(plan)[0]).splitlines()[0]).keys() == {"ts", "key"}


def test_the_page_has_the_figures_of_who_ran_and_the_reason_of_who_did_not(tmp_path: Path) -> None:
    plan = PLAN._replace(silent_from_s=3)  # So that there is a window that the failure does not touch.
    (tmp_path / "img").mkdir()
    rights = [said((row[0] - EPOCH_MS) / 1000 + 4, row, count) for row, count in truth(plan).items()]
    keep(tmp_path, "holdfast", plan, Record("1.0", "2026-01-01", 0.1, rights))
    keep(tmp_path, "flink", plan, absent("apache-flink==0 could not be installed: no such version"))
    keep(tmp_path, "bytewax", plan, Record("1.0", "2026-01-01", 0.6, []))
    records = {name: record for name in ("holdfast", "flink", "bytewax") if (record := kept(tmp_path, name, plan))}
    figures, left_out = write_page(tmp_path, records, plan)
    page = (tmp_path / "compare.md").read_text()
    assert figures["holdfast"].rows_on_time == len(truth(plan))
    assert "flink is missing: apache-flink==0 could not be installed: no such version" in page
    assert "bytewax is missing: other work took 60% of the machine" in page
    assert (set(figures), set(left_out)) == ({"holdfast"}, {"flink", "bytewax"})
    assert (tmp_path / "img" / "compare-holdfast.svg").read_text().startswith("<svg")
    assert kept(tmp_path, "holdfast", plan._replace(fed_until_s=11)) is None, "made with another plan"


#: A child in a session of its own that works for ever; whoever has started it ends when it is told to.
STARTS_A_SERVER = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True, stdout=subprocess.DEVNULL)
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_in_a_session_of_its_own_is_the_contenders_also_when_nobody_is_its_parent() -> None:
    command = [sys.executable, "-c", STARTS_A_SERVER]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    own = Own(child.pid)
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        server = int(child.stdout.readline())
        assert server in own.processes()
        child.stdin.close()
        child.wait(30)
        before = own.seconds()
        until = time.monotonic() + 30
        while own.seconds() < before + 0.1:
            assert time.monotonic() < until, "what it uses is counted"
    finally:
        own.end()
    assert own.processes().get(server, ["Z"])[0] == "Z", "ended, whether or not somebody has asked for its end"
    assert own.seconds() >= before + 0.1, "what it has used stays counted"
