"""What may be removed, and what may not (L8, D14; 003 §4.9)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.cli.overview import overview
from holdfast.model.errors import StorageError, StreamFull, UsageError
from holdfast.stream import control as control_log
from holdfast.stream import retention
from holdfast.stream.definition import Bound, Retention
from holdfast.stream.head import read_head
from holdfast.stream.pack import pack
from holdfast.stream.record import Control
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import QuietDisk

SECOND = 1_000_000


class Clock:
    now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


def stream_of(root: Path, retention: Retention | None = None, **options: object) -> Stream:
    store = StreamStore(root, disk=QuietDisk(), clock=Clock())
    return store.create("s", "n bigint, text string", bucket="1s", retention=retention,
                        **{"segment_bytes": 4096, **options})  # fmt: skip


def fill(stream: Stream, numbers: range) -> None:
    with stream.producer(boundary_every="1h", stime="stime") as producer:
        for n in numbers:
            producer.send({"n": n, "text": "x" * 900, "stime": n * SECOND})
        producer.advance((numbers[-1] + 1) * SECOND)
        producer.close(end=False)


def left(stream: Stream) -> list[int]:
    with stream.subscribe() as subscriber:
        return [n for batch in subscriber.poll() for n in batch.column("n").to_pylist()]


def ack(stream: Stream, name: str, until: int) -> None:
    with stream.subscribe(name=name, end=until) as subscriber:
        for _ in subscriber.poll():
            pass
        subscriber.ack()


def test_without_a_policy_nothing_is_ever_removed(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    fill(stream, range(40))
    Clock.now += 10**15
    try:
        assert stream.retain().segments == 0
    finally:
        Clock.now = 1_000 * SECOND
    assert left(stream) == list(range(40))


def test_by_size_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    fill(stream, range(60))
    removal = stream.retain(Retention(size_bytes=20_000))
    files = sum(p.stat().st_size for p in stream.folder.glob("main/*.seg"))
    assert files <= 20_000
    assert left(stream) == list(range(removal.rows, 60))
    assert read_head(stream.folder / "main").removed_until_us == (removal.rows - 1) * SECOND + 1
    assert len(list(stream.folder.glob("main/*.idx"))) == len(list(stream.folder.glob("main/*.seg")))
    fill(stream, range(60, 62))
    assert left(stream) == list(range(removal.rows, 62))


def test_by_age_what_was_sealed_long_ago_goes(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, Retention(age_us=100 * SECOND))
    fill(stream, range(20))
    assert stream.retain().segments == 0
    stream._clock.now += 101 * SECOND  # type: ignore[attr-defined]
    removal = stream.retain()
    assert removal.segments > 1
    rest = left(stream)
    assert rest == list(range(20))[-len(rest) :]


def test_by_acknowledgement_what_every_subscriber_has_done_with_goes(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, Retention(acknowledged=True))
    fill(stream, range(40))
    assert stream.retain().segments == 0, "nobody has acknowledged anything"
    ack(stream, "fast", 40)
    ack(stream, "slow", 20)
    removal = stream.retain()
    assert "slow" in removal.stopped_by
    rest = left(stream)
    assert 0 < rest[0] <= 20
    assert rest == list(range(rest[0], 40))
    assert stream.retain().segments == 0
    stream.forget("slow")
    assert stream.retain().segments > 0


@pytest.mark.parametrize("policy", [Retention(age_us=1), Retention(size_bytes=1), Retention(acknowledged=True)])
def test_no_policy_removes_what_a_subscriber_has_not_acknowledged(policy: Retention, tmp_path: Path) -> None:
    """L8."""
    stream = stream_of(tmp_path)
    fill(stream, range(40))
    ack(stream, "slow", 13)
    stream._clock.now += 10**12  # type: ignore[attr-defined]
    stream.retain(policy)
    assert left(stream)[0] <= 13


def test_a_tuple_at_time_zero_is_not_taken_for_one_that_was_acknowledged(tmp_path: Path) -> None:
    """L8: zero is a time like any other."""
    stream = stream_of(tmp_path, Retention(acknowledged=True))
    fill(stream, range(-8, 1))
    writer = stream.writer()
    writer.roll(1)
    writer.release(1)
    assert [s.stime_max_us for s in stream.reader().segments][-2] == 0
    ack(stream, "slow", 0)
    stream.retain()
    assert left(stream)[-1] == 0


def test_an_acknowledgement_never_goes_back(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    fill(stream, range(10))
    ack(stream, "reader", 8)
    ack(stream, "reader", 3)
    assert stream.acks()["reader"].until_us == 8 * SECOND
    with pytest.raises(UsageError):
        ack(stream, "../reader", 3)


def test_a_full_stream_blocks_until_its_subscribers_acknowledge(tmp_path: Path) -> None:
    """D14: it pushes back and drops nothing."""
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = store.create("s", "n bigint, text string", bucket="10ms", bound=Bound(40_000))
    fill_until = threading.Event()
    done: list[int] = []

    with stream.producer(full_timeout="20s") as producer, stream.subscribe(name="reader") as subscriber:

        def work() -> None:
            for n in range(100):
                producer.send({"n": n, "text": "x" * 900})
                done.append(n)
                if len(done) == 20:
                    fill_until.set()

        thread = threading.Thread(target=work)
        thread.start()
        got: list[int] = []
        assert fill_until.wait(20)
        while thread.is_alive() or len(got) < 100:
            for batch in subscriber.poll():
                got += batch.column("n").to_pylist()
            subscriber.ack()
            assert producer.writer.size_bytes < 50_000
        thread.join()
    assert got == list(range(100))


@pytest.mark.parametrize("each", [1, 3])
def test_a_bucket_that_fills_a_stream_is_closed_when_its_time_is_over_and_can_be_acknowledged(
    tmp_path: Path, each: int
) -> None:
    """D14: whoever waits for room must not keep the boundary from those who make it."""
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = store.create("s", "n bigint, text string", bucket="300ms", bound=Bound(40_000))
    got: list[int] = []

    with stream.producer(full_timeout="60s") as producer, stream.subscribe(name="reader") as subscriber:

        def work() -> None:
            for n in range(0, 99, each):
                producer.send_many([{"n": n + k, "text": "x" * 900} for k in range(each)])

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive() or len(got) < 99:
            for batch in subscriber.poll():
                got += batch.column("n").to_pylist()
            subscriber.ack()
        thread.join()
    assert got == list(range(99))


def test_a_stream_that_stays_full_says_so_and_writes_nothing(tmp_path: Path) -> None:
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = store.create("s", "n bigint, text string", bucket="10ms", bound=Bound(40_000))
    with stream.producer(full_timeout="50ms", boundary_every="1h") as producer:
        sent = 0
        with pytest.raises(StreamFull, match="drop_oldest"):  # noqa: PT012
            while True:
                producer.send({"n": sent, "text": "x" * 900}, seq=sent)
                sent += 1
        assert producer.last_seq == sent - 1
    assert left(stream) == list(range(sent))


def test_units_as_large_as_the_bound_go_on_once_they_are_acknowledged(tmp_path: Path) -> None:
    """The segment being written is never removed, so it must be sealed when nothing else is left to give."""
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = store.create("s", "n bigint, text string", bucket="1ms", bound=Bound(40_000))
    with stream.producer(full_timeout="5s") as producer, stream.subscribe(name="reader") as subscriber:
        for n in range(6):
            producer.send({"n": n, "text": "x" * 25_000})
            producer.advance(producer.boundary_us + 1_000)
            assert [b.column("n").to_pylist() for b in subscriber.poll()] == [[n]]
            subscriber.ack()


def test_drop_oldest_keeps_the_newest_and_says_what_it_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = store.create("s", "n bigint, text string", bucket="10ms", bound=Bound(40_000, "drop_oldest"))
    ack(stream, "slow", 0)
    with caplog.at_level(logging.WARNING), stream.producer(full_timeout="1s", boundary_every="1h") as producer:
        for n in range(100):
            producer.send({"n": n, "text": "x" * 900})
    rest = left(stream)
    assert rest == list(range(100))[-len(rest) :]
    assert len(rest) > 10
    assert any("are dropped" in r.message for r in caplog.records)
    assert read_head(stream.folder / "main").removed_rows == 100 - len(rest)


# -- by itself ---------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_written_keeps_to_its_size_by_itself(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, Retention(size_bytes=20_000), segment_bytes=128 << 20)
    fill(stream, range(200))
    files = sum(p.stat().st_size for p in stream.folder.glob("main/*.seg"))
    assert files <= 30_000, "segments are small enough that the oldest can go"
    rest = left(stream)
    assert rest == list(range(rest[0], 200))
    assert read_head(stream.folder / "main").removed_rows == rest[0]


def test_what_has_grown_old_goes_while_only_boundaries_are_written(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, Retention(age_us=100 * SECOND))
    clock = stream._clock
    with stream.producer(boundary_every="1h", stime="stime") as producer:
        for n in range(20):
            producer.send({"n": n, "text": "x" * 900, "stime": n * SECOND})
        for n in range(40):
            clock.now += 10 * SECOND  # type: ignore[attr-defined]
            producer.advance((100 + n) * SECOND)
        producer.close(end=False)
    assert left(stream) == []


def one_unit(stream: Stream, n: int) -> None:
    """As the Spark sink writes: open, append, let go."""
    writer = stream.writer(takeover=True)
    columns = [pa.array([n * SECOND], pa.timestamp("us", "UTC")), pa.array([n]), pa.array(["x" * 900])]
    batch = pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored)
    now = stream._clock()
    writer.commit(pack(batch, stream.definition), now_us=now, boundary_us=(n + 1) * SECOND)
    writer.release(now)


@pytest.mark.parametrize("policy", [Retention(age_us=100 * SECOND), Retention(size_bytes=20_000)])
def test_a_writer_that_opens_and_lets_go_retains_as_well(policy: Retention, tmp_path: Path) -> None:
    stream = stream_of(tmp_path, policy)
    for n in range(120):
        stream._clock.now += 5 * SECOND  # type: ignore[attr-defined]
        one_unit(stream, n)
    rest = left(stream)
    assert 60 < rest[0] < 119
    assert rest == list(range(rest[0], 120))


def test_a_clock_that_jumps_years_ahead_for_a_moment_makes_nothing_old(tmp_path: Path) -> None:
    """D19: sinks write with the wall clock. A stream that was silent for so long is cleared with the look after."""
    stream = stream_of(tmp_path, Retention(age_us=100 * SECOND))
    clock: Any = stream._clock
    for n in range(20):
        clock.now += 2 * SECOND
        one_unit(stream, n)
    clock.now += 3653 * 86_400 * SECOND
    one_unit(stream, 20)
    clock.now -= 3653 * 86_400 * SECOND
    for n in range(21, 25):
        clock.now += 2 * SECOND
        one_unit(stream, n)
    assert left(stream) == list(range(25))
    clock.now += 2 * 3600 * SECOND
    for n in range(25, 40):
        clock.now += 8 * SECOND
        one_unit(stream, n)
    assert left(stream)[0] >= 20


def test_a_job_that_writes_for_a_moment_every_six_hours_comes_to_its_retention(tmp_path: Path) -> None:
    """It opens, commits and closes: no look of its is within an hour of another, and no run has a second one."""
    hour = 3600 * SECOND
    stream = stream_of(tmp_path, Retention(age_us=24 * hour))
    clock: Any = stream._clock
    for n in range(60):
        clock.now += 6 * hour
        fill(stream, range(n, n + 1))
    # A day, the six hours in which a segment is written, and the six from one look to the next.
    assert left(stream)[0] >= 60 - (24 + 6 + 6) // 6 - 1


def test_a_job_whose_clock_is_wrong_in_one_run_makes_nothing_old(tmp_path: Path) -> None:
    """D19: neither in that run nor in the next one, six hours later."""
    hour, year = 3600 * SECOND, 365 * 86_400 * SECOND
    stream = stream_of(tmp_path, Retention(age_us=300 * hour))
    clock: Any = stream._clock
    for n in range(20):
        clock.now += 6 * hour
        off = 10 * year if n == 15 else 0
        clock.now += off
        one_unit(stream, n)
        clock.now -= off
    assert left(stream) == list(range(20))


def test_by_itself_nothing_goes_that_a_subscriber_has_not_acknowledged_and_the_stream_says_so(tmp_path: Path) -> None:
    """L8."""
    stream = stream_of(tmp_path, Retention(size_bytes=8_000))
    fill(stream, range(5))
    ack(stream, "slow", 5)
    fill(stream, range(5, 60))
    assert left(stream)[0] <= 5
    store = StreamStore(tmp_path, clock=stream._clock)
    said = overview(store, "s", stream._clock())
    assert "slow" in said["retention_waits_for"]
    ack(stream, "slow", 60)
    stream._clock.now += 61 * SECOND  # type: ignore[attr-defined]
    fill(stream, range(60, 61))
    assert left(stream)[0] > 40
    said = overview(store, "s", stream._clock())
    assert said["removed_tuples"] == left(stream)[0]
    assert said["retention_waits_for"] is None


def test_retention_is_looked_at_on_a_roll_and_now_and_then_not_with_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0

    def counting(*args: object, **options: object) -> retention.Removal:
        nonlocal runs
        runs += 1
        return plain(*args, **options)  # type: ignore[arg-type]

    plain = retention.retain
    monkeypatch.setattr(retention, "retain", counting)
    stream = stream_of(tmp_path, Retention(age_us=3600 * SECOND))
    for n in range(60):
        one_unit(stream, n)
    rolls = len(list(stream.folder.glob("main/*.seg")))
    assert 1 <= runs <= rolls + 1


def test_a_retention_that_fails_does_not_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> retention.Removal:
        raise StorageError("the disk is read-only")

    monkeypatch.setattr(retention, "retain", failing)
    stream = stream_of(tmp_path, Retention(size_bytes=4096))
    fill(stream, range(30))
    assert left(stream) == list(range(30))
    assert "the disk is read-only" in caplog.text


@pytest.mark.parametrize("since", [1, 30, 59])
def test_what_open_windows_rely_on_is_known_without_reading_segments(
    since: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8."""
    stream = stream_of(tmp_path, Retention(size_bytes=8_000))
    for n in range(1, 60):
        writer = stream.writer(takeover=True)
        relied = min(n, since) * SECOND
        control = [Control(7, p, 1, 1, relied, n * SECOND, b"x" * 900) for p in range(2)]
        writer.commit([], now_us=n, boundary_us=n * SECOND, control=control)
        writer.release(n)
    monkeypatch.setattr(control_log, "walk", None)
    stream.retain()
    monkeypatch.undo()
    reader = stream.reader()
    kept = [f.position_us // SECOND for f, _ in control_log.ControlLog(reader).backwards(7, 0)]
    assert set(range(since, 60)) <= set(kept)
    assert since == 1 or min(kept) > 1
