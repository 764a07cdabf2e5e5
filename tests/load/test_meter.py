"""What a task uses, from looks at its query; and what people see of it over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine import Reading
from holdfast.load.history import History, Movement, Sample
from holdfast.load.load_picture import load_html, write_load_picture
from holdfast.load.meter import Meter
from holdfast.spark.node import reading_of

S = 1_000_000


def offset(until_us: int) -> str:
    return f'{{"format": 1, "until_us": {until_us}}}'


def watched(meter: Meter, seconds: int, busy_ms: float, rows: int, batches: int = 1, start: int = 0) -> None:
    for n in range(start, start + seconds):
        meter.take("t", Reading(n * batches, busy_ms, rows, 1 << 29), n * 250_000, n * S)


def test_a_query_that_works_a_third_of_the_time_uses_a_third_of_a_core() -> None:
    meter = Meter("busy", 0)
    watched(meter, 60, 333, 100)
    usage = meter.usage("t", 60 * S)
    assert usage is not None
    assert usage.cpu == pytest.approx(0.333, rel=0.01)
    assert usage.bandwidth == pytest.approx(0.25, rel=0.01)
    assert usage.memory == 0.5
    assert meter.rows_per_s("t") == pytest.approx(100, rel=0.01)


def test_batches_between_two_looks_count_as_well() -> None:
    meter = Meter("busy", 0)
    watched(meter, 60, 100, 30, batches=5)
    usage = meter.usage("t", 60 * S)
    assert usage is not None
    assert usage.cpu == pytest.approx(0.5, rel=0.01)


def test_with_a_price_per_row_the_machine_has_no_say() -> None:
    meter = Meter("rows", 2000)
    watched(meter, 60, 900, 100)
    usage = meter.usage("t", 60 * S)
    assert usage is not None
    assert usage.cpu == pytest.approx(0.2, rel=0.01)


def test_a_task_that_catches_up_uses_what_its_input_asks_for_and_no_more() -> None:
    """Three tasks in four went home right after they had moved, because their first batches looked like an overload."""
    meter = Meter("rows", 1000)
    for n in range(20):  # Four seconds of input in each second: it was on its way for a minute.
        meter.take("t", Reading(n, 500, 400, 0, 4 * S), 0, n * S)
    usage = meter.usage("t", 20 * S)
    assert usage is not None
    assert usage.cpu == pytest.approx(0.1, rel=0.02)


def test_looks_between_two_batches_change_nothing_and_a_query_that_stands_still_uses_nothing() -> None:
    meter = Meter("rows", 1000)
    for n in range(40):
        meter.take("t", Reading(n // 4, 500, 400, 0, 4 * S), 0, n * S)
    usage = meter.usage("t", 40 * S)
    assert usage is not None
    assert usage.cpu == pytest.approx(0.1, rel=0.1)
    for n in range(40, 140):
        meter.take("t", Reading(9, 500, 400, 0, 4 * S), 0, n * S)
    usage = meter.usage("t", 140 * S)
    assert usage is not None
    assert usage.cpu < 0.01


@pytest.mark.parametrize(
    ("start", "end", "span_us"),
    [("null", '{"format": 1, "until_us": 9}', 0), (offset(-(2**62)), offset(9), 0), (offset(5), offset(9), 4),
     (offset(5), offset(253_402_214_400_000_000), 0), ('{"topic": {"0": 5}}', '{"topic": {"0": 9}}', None)],
)  # fmt: skip
def test_spark_says_how_much_of_the_inputs_time_a_batch_has_read(start: str, end: str, span_us: int | None) -> None:
    progress = {"batchId": 3, "numInputRows": 11, "stateOperators": [], "durationMs": {"triggerExecution": 70},
                "sources": [{"startOffset": start, "endOffset": end}]}  # fmt: skip
    assert reading_of(progress) == Reading(3, 70, 10, 0, span_us)


def test_the_parts_of_a_batch_are_told_beside_the_whole() -> None:
    progress = {"batchId": 3, "numInputRows": 11, "stateOperators": [], "sources": [],
                "durationMs": {"addBatch": 50, "walCommit": 15, "triggerExecution": 70}}  # fmt: skip
    reading = reading_of(progress)
    assert reading is not None
    assert (reading.busy_ms, reading.parts_ms) == (70, {"addBatch": 50, "walCommit": 15})


def test_nothing_is_known_before_it_was_watched_for_a_while_or_after_it_left() -> None:
    meter = Meter("busy", 0)
    assert meter.usage("t", 0) is None
    watched(meter, 3, 100, 10)
    assert meter.usage("t", 3 * S) is None
    watched(meter, 10, 100, 10, start=3)
    assert meter.usage("t", 13 * S) is not None
    meter.forget("t")
    assert meter.usage("t", 14 * S) is None


def test_a_spike_of_a_second_does_not_double_the_average() -> None:
    meter = Meter("busy", 0)
    watched(meter, 30, 200, 10)
    meter.take("t", Reading(30, 1000, 10, 0), 0, 30 * S)
    usage = meter.usage("t", 30 * S)
    assert usage is not None
    assert usage.cpu < 0.4


def test_history_comes_back_without_the_line_that_a_crash_has_cut(tmp_path: Path) -> None:
    history = History(tmp_path / "load" / "history")
    sample = Sample(1, "anna", 0.5, 1.0, {"counts": 0.5})
    move = Movement(2, "counts", "anna", "ben", 0.8, 1_500_000)
    history.add(sample)
    history.add(move)
    with history.path.open("ab") as file:
        file.write(b'{"type":"load","at_us":3')
    assert history.lines() == [sample, move]
    assert history.lines(since_us=2) == [move]


def test_a_history_that_has_grown_loses_its_older_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.load.history._BYTES_MAX", 5000)
    history = History(tmp_path / "history")
    for n in range(200):
        history.add(Sample(n, "anna", 0.5, 1.0, {}))
    lines = history.lines()
    assert lines[-1].at_us == 199
    assert 10 < len(lines) < 100
    assert history.path.stat().st_size <= 5000


def test_the_picture_shows_loads_capacities_and_movements_and_nothing_from_outside_as_markup(tmp_path: Path) -> None:
    lines: list[Sample | Movement] = [Sample(n * S, "<b>anna", n / 50, 0.8, {}) for n in range(60)]
    lines += [Sample(n * S, "ben", 0.2, 1.5, {}) for n in range(60)]
    lines.append(Movement(30 * S, "<script>", "<b>anna", "ben", 0.8, 2 * S))
    page = write_load_picture(tmp_path / "load.html", lines).read_text()
    assert page.count("<polyline") == 2
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<b>anna" not in page
    assert "30.0 s" in page
    assert "Nothing was measured yet" in load_html([])
