"""Arrival times and a wall clock that cannot be trusted (D19)."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.clock import ArrivalClock, now_us
from holdfast.inputs.decode import Decoder
from holdfast.inputs.feed import DeadLetters, Feed, Line
from holdfast.inputs.kafka_input import KafkaInput
from holdfast.inputs.source import EngineSource
from holdfast.model.errors import EarlyTuple, LateTuple
from holdfast.spark.ingest import SparkInput
from tests.faults.units import QuietDisk

SECOND = 1_000_000
YEARS = 3653 * 86_400 * SECOND
NOON = 1_772_366_400 * SECOND


class Clocks:
    """A wall clock that can be set, and a steady one that only goes on."""

    def __init__(self) -> None:
        self.wall_us, self.steady_us = NOON, 77

    def pass_(self, us: int) -> None:
        self.wall_us += us
        self.steady_us += us

    def wall(self) -> int:
        return self.wall_us

    def steady(self) -> int:
        return self.steady_us


def create(root: Path, schema: str = "n bigint") -> holdfast.Stream:
    return holdfast.StreamStore(root, disk=QuietDisk()).create("s", schema, bucket="1s")


def opened(stream: holdfast.Stream, clocks: Clocks, **options: object) -> holdfast.Producer:
    writer = stream.writer()
    return holdfast.Producer(
        stream.definition, writer, clock=clocks.wall, steady=clocks.steady, boundary_every="1h", **options
    )  # type: ignore[arg-type]


def seen(stream: holdfast.Stream) -> list[int]:
    """What a reader gets: whole buckets only."""
    return [row.values["n"] for row in stream.subscribe().rows(timeout=0)]


def test_a_clock_that_jumps_ten_years_for_one_send_does_not_freeze_the_stream(tmp_path: Path) -> None:
    stream, clocks = create(tmp_path), Clocks()
    producer = opened(stream, clocks)
    producer.send({"n": 1})
    clocks.wall_us += YEARS
    producer.send({"n": 2})
    clocks.pass_(SECOND)
    producer.send({"n": 3})
    clocks.wall_us -= YEARS
    for n in range(4, 8):
        clocks.pass_(2 * SECOND)
        producer.send({"n": n})
    clocks.pass_(2 * SECOND)
    producer.tick()
    assert seen(stream) == [1, 2, 3, 4, 5, 6, 7]
    assert abs(producer.boundary_us - clocks.wall_us) < SECOND
    producer.close(end=False)


def test_a_stream_that_was_written_with_a_wrong_clock_goes_on_after_a_restart_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream, clocks = create(tmp_path), Clocks()
    clocks.wall_us += YEARS
    with opened(stream, clocks) as producer:
        producer.send({"n": 1})
        producer.close(end=False)
    clocks.wall_us -= YEARS
    producer = opened(stream, clocks)
    assert "holdfast mend-boundary" in caplog.text
    assert "3653d ahead of the clock" in caplog.text
    assert producer.ahead_us == YEARS
    for n in range(2, 5):
        clocks.pass_(4 * SECOND)
        producer.send({"n": n})
    clocks.pass_(4 * SECOND)
    producer.tick()
    assert seen(stream) == [1, 2, 3, 4]
    producer.close(end=False)


def test_a_boundary_asked_for_ahead_does_not_stop_the_boundaries_after_it(tmp_path: Path) -> None:
    stream, clocks = create(tmp_path), Clocks()
    producer = opened(stream, clocks)
    producer.advance(NOON + 3600 * SECOND)
    producer.send({"n": 1})
    clocks.pass_(4 * SECOND)
    producer.tick()
    assert seen(stream) == [1]
    producer.close(end=False)


@given(st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(-YEARS, YEARS)), min_size=1, max_size=30))
def test_arrival_times_go_on_at_half_the_pace_at_least_and_twice_at_most(steps: list[tuple[int, int]]) -> None:
    clocks = Clocks()
    clock = ArrivalClock(clocks.wall, clocks.steady)
    before = clock()
    for passed, jump in steps:
        clocks.pass_(passed)
        clocks.wall_us += jump
        now = clock()
        assert before + passed // 2 <= now <= before + 2 * passed
        before = now
    for _ in itertools.repeat(None, 200):
        clocks.pass_(YEARS)
        now = clock()
    assert now == clocks.wall_us


def test_a_clock_that_was_set_right_after_the_start_is_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a clock of its own begins in 1970, until the network tells it the time."""
    stream, clocks = create(tmp_path), Clocks()
    clocks.wall_us = 0
    producer = opened(stream, clocks)
    producer.tick()
    assert not caplog.records
    clocks.wall_us = NOON
    for _ in range(3):
        clocks.pass_(SECOND)
        producer.tick()
    (said,) = caplog.messages
    assert "stream s: the wall clock has jumped and lies 20513d" in said
    assert "open the stream anew" in said
    producer.close(end=False)


def test_a_machine_that_slept_finds_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: the monotonic clock stands still meanwhile. Rows with a time of their own would be refused for hours."""
    stream, real, slept = create(tmp_path, "n bigint, ts timestamp"), time.clock_gettime_ns, [0]
    monotonic, wall = time.monotonic_ns, time.time_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda id: real(id) + slept[0] * (id == time.CLOCK_BOOTTIME))
    monkeypatch.setattr(time, "time_ns", lambda: wall() + slept[0])
    monkeypatch.setattr(time, "monotonic_ns", monotonic)
    with stream.producer(stime="ts", boundary_every="1h") as producer:
        slept[0] = 8 * 3600 * 10**9
        producer.send({"n": 1, "ts": dt.datetime.fromtimestamp(time.time_ns() / 1e9, dt.UTC)})
        assert abs(producer.ahead_us) < 60 * SECOND
    assert seen(stream) == [1]


def jumping(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock of this process, and by how many microseconds it is wrong."""
    real, wrong = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + wrong[0] * 1000)
    return wrong


def test_a_wall_clock_that_jumps_takes_no_silent_source_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: where nothing comes, boundaries of topics and of Spark's sources follow a clock, too."""
    wrong, stream = jumping(monkeypatch), create(tmp_path)
    topic = KafkaInput(holdfast.kafka("nowhere:9092", topic="t", stime="n", idle="advance"), stream, tmp_path)
    told = EngineSource(lambda spark: None, "ts", slack_us=0, idle_us=0, trigger_us=None)
    ingest = SparkInput(told, "s", holdfast.open(tmp_path), tmp_path, None, None)  # type: ignore[arg-type]
    before_us = now_us()
    wrong[0] = YEARS
    assert topic._clock() < before_us + 60 * SECOND
    ingest._follow_clock()
    assert stream.reader().boundary_us < before_us + 60 * SECOND


@pytest.mark.parametrize("at", ["9999-12-31T00:00:00Z", "2026-03-01T13:00:01Z"])
def test_a_row_far_ahead_of_the_clock_is_refused_and_makes_nobody_late(at: str, tmp_path: Path) -> None:
    stream, clocks = create(tmp_path, "n bigint, at timestamp"), Clocks()
    producer = opened(stream, clocks, stime="at")
    with pytest.raises(
        EarlyTuple, match="ahead of the clock, and every tuple after it would be late; correct its time"
    ):
        producer.send({"n": 1, "at": dt.datetime.fromisoformat(at)})
    producer.send({"n": 2, "at": dt.datetime(2026, 3, 1, 12, 59, 59, tzinfo=dt.UTC)})
    producer.close()
    assert seen(stream) == [2]


@pytest.mark.parametrize("stime", [None, "at"])
def test_a_boundary_far_ahead_of_the_clock_is_refused_and_freezes_nothing(tmp_path: Path, stime: str | None) -> None:
    stream, clocks = create(tmp_path, "n bigint, at timestamp"), Clocks()
    producer = opened(stream, clocks, stime=stime)
    year_9999 = 253_402_300_799_999_999
    with pytest.raises(
        EarlyTuple, match=r"a boundary at 9999-.* ahead of the clock, and every tuple before it would be"
    ):
        producer.advance(year_9999)
    nothing = producer.row_schema.empty_table()
    with pytest.raises(EarlyTuple, match="correct it, or allow more"):
        producer.send_unit(nothing, numbers={"a": 1}, boundary=NOON + 3600 * SECOND + 1)
    assert producer.boundary_us < NOON
    assert producer.last_seq_of("a") == -1
    producer.send({"n": 1, "at": dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)})
    producer.send_unit(nothing, numbers={"a": 1}, boundary=NOON + 3600 * SECOND)
    assert producer.boundary_us == NOON + 3600 * SECOND
    producer.close(end=False)
    with opened(stream, clocks, stime=stime, max_ahead=None) as free:
        free.advance(year_9999)


def test_max_ahead_is_for_the_caller_to_choose(tmp_path: Path) -> None:
    stream, clocks = create(tmp_path, "n bigint, at timestamp"), Clocks()
    producer = opened(stream, clocks, stime="at", max_ahead=None)
    producer.send({"n": 1, "at": dt.datetime(9999, 12, 31, tzinfo=dt.UTC)})
    with pytest.raises(LateTuple, match="holdfast mend-boundary"):
        producer.send({"n": 2, "at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC)})
    producer.close(end=False)


def test_a_line_far_ahead_of_the_clock_is_put_aside_with_its_place(tmp_path: Path) -> None:
    stream, clocks = create(tmp_path, "n bigint, at timestamp"), Clocks()
    times = ["2026-03-01T12:00:00Z", "9999-12-31T00:00:00Z", "2026-03-01T12:00:01Z"]
    lines = [Line(json.dumps({"n": n, "at": at}).encode(), f"line {n}", n) for n, at in enumerate(times, 1)]
    with opened(stream, clocks, stime="at") as producer, DeadLetters(tmp_path / "dead") as dead:
        feed = Feed(producer, Decoder(producer.row_schema, "s"), dead)
        assert feed.send(lines)[:1] == (2,)
    assert seen(stream) == [1, 3]
    (put,) = [json.loads(line) for line in (tmp_path / "dead").read_text().splitlines()]
    assert put["where"] == "line 2"
    assert "ahead of the clock" in put["error"]


def test_without_dead_letters_the_lines_before_it_are_sent_and_it_is_named(tmp_path: Path) -> None:
    stream, clocks = create(tmp_path, "n bigint, at bigint"), Clocks()
    at = NOON // SECOND
    lines = [Line(f'{{"n": {n}, "at": {t}}}'.encode(), f"line {n}", n) for n, t in [(1, at), (2, at * 5), (3, at)]]
    producer = opened(stream, clocks, stime="at", stime_unit="s")
    with pytest.raises(EarlyTuple, match="line 2: stream s"):
        Feed(producer, Decoder(producer.row_schema, "s")).send(lines)
    producer.close()
    assert seen(stream) == [1]
