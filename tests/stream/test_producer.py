"""The data-source proxy: header, order, boundaries, retries (L1, D10; 003 §4.5.1, §4.10.2)."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import holdfast
from holdfast.model.errors import LateTuple, SchemaError, StorageError, StreamBusy, UsageError
from holdfast.stream.producer import Producer
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import QuietDisk
from tests.stream.test_writer import FailingDisk

SECOND = 1_000_000


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: int = 1_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def stream_of(root: Path, schema: str = "n bigint", *, clock: Clock | None = None, disk: QuietDisk | None = None,
              **options: object) -> Stream:  # fmt: skip
    store = StreamStore(root, disk=disk or QuietDisk(), **({"clock": clock} if clock else {}))
    return store.create("s", schema, **{"bucket": "1s", **options})


def rows(stream: Stream) -> list[tuple[int, int, object]]:
    """(id, stime in µs, n) of all that is there, complete buckets or not."""
    reader = stream.reader()
    found = []
    for fields, batch in reader.scan(-(2**62), 2**62):
        stimes = batch.column(0).cast(pa.int64()).to_pylist()
        ids = range(fields.first_tuple_id, fields.first_tuple_id + batch.num_rows)
        found += zip(ids, stimes, batch.column("n").to_pylist(), strict=True)
    reader.close()
    return found


def test_stime_is_the_time_of_arrival(tmp_path: Path) -> None:
    clock = Clock()
    stream = stream_of(tmp_path, clock=clock)
    with stream.producer(boundary_every="1h") as producer:
        assert producer.send({"n": 1}).rows == 1
        clock.now += 5
        assert producer.send_many([[2], [3]]).rows == 2
    assert rows(stream) == [(1, 1_000 * SECOND, 1), (2, 1_000 * SECOND + 5, 2), (3, 1_000 * SECOND + 5, 3)]


@pytest.mark.parametrize("idle", [True, False])
def test_a_clock_that_is_set_back_delays_nothing_and_breaks_no_boundary(idle: bool, tmp_path: Path) -> None:
    """D10: also when the last thing that happened was a boundary of an idle stream."""
    clock = Clock()
    stream = stream_of(tmp_path, clock=clock)
    with stream.producer(boundary_every="1h") as producer:
        producer.send({"n": 1})
        clock.now += 10 * SECOND
        if idle:
            producer.tick()
        else:
            producer.send({"n": 2})
        promised = producer.boundary_us
        clock.now -= 7 * SECOND
        producer.send({"n": 3})
        producer.tick()
        assert producer.boundary_us >= promised
    stimes = [stime for _, stime, _ in rows(stream)]
    assert stimes == sorted(stimes)
    assert stimes[-1] >= promised


def test_boundaries_go_on_after_an_unforeseen_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream, real, left = stream_of(tmp_path, bucket="10ms"), Producer.tick, [1]

    def tick(producer: Producer) -> None:
        if left:
            left.pop()
            raise OSError(5, "Input/output error")
        real(producer)

    monkeypatch.setattr(Producer, "tick", tick)
    with stream.producer(), stream.subscribe(boundaries=True, start="live") as subscriber:
        assert next(subscriber.rows(timeout="20s"))
    assert "is late: [Errno 5]" in caplog.text


def test_a_boundary_asked_for_ahead_of_the_clock_moves_arrivals_with_it(tmp_path: Path) -> None:
    clock = Clock()
    stream = stream_of(tmp_path, clock=clock)
    with stream.producer(boundary_every="1h") as producer:
        producer.advance(clock.now + SECOND)
        producer.send({"n": 1})
    assert rows(stream) == [(1, clock.now + SECOND, 1)]


def test_boundaries_come_on_schedule_when_no_data_comes(tmp_path: Path) -> None:
    """003 §4.5.1, with the real clock: ten buckets are closed with nothing sent."""
    stream = stream_of(tmp_path, bucket="10ms")
    with stream.producer(), stream.subscribe(boundaries=True, start="live") as subscriber:
        seen = [r.stime for _, r in zip(range(10), subscriber.rows(timeout="20s"), strict=False)]
    assert len(seen) == 10
    assert seen == sorted(set(seen))


def test_a_tick_writes_only_when_a_bucket_has_ended(tmp_path: Path) -> None:
    clock = Clock()
    stream = stream_of(tmp_path, clock=clock)
    with stream.producer(boundary_every="1h") as producer:
        producer.tick()
        first = producer.writer.state.commit_seq
        clock.now += SECOND // 2
        producer.tick()
        assert producer.writer.state.commit_seq == first
        clock.now += SECOND // 2
        producer.tick()
        assert producer.writer.state.commit_seq == first + 1


def test_a_column_gives_stime_and_the_boundary_trails_by_the_slack(tmp_path: Path) -> None:
    """Bounded disorder within the slack is taken and comes out in order of buckets."""
    stream = stream_of(tmp_path, "n bigint, at bigint")
    with stream.producer(stime="at", stime_unit="ms", slack="2s", boundary_every="1h") as producer:
        for n, at in enumerate([10_000, 8_500, 11_000, 9_000, 9_001, 12_000], start=1):
            producer.send({"n": n, "at": at})
        assert producer.boundary_us == 10 * SECOND
        with pytest.raises(LateTuple, match=r"0\.001 s too late; declare that much more slack"):
            producer.send({"n": 7, "at": 9_999})
        producer.send({"n": 8, "at": 10_000})
    assert [r.values["n"] for r in stream.subscribe().rows()] == [2, 4, 5, 1, 8, 3, 6]


def test_late_tuples_are_dropped_and_counted_when_asked(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, "n bigint, at timestamp")
    with stream.producer(stime="at", late="drop", boundary_every="1h") as producer:
        producer.send_batch(pd.DataFrame({"n": [1], "at": pd.to_datetime([100], unit="s", utc=True)}))
        ack = producer.send_batch(pd.DataFrame({"n": [2, 3], "at": pd.to_datetime([50, 200], unit="s", utc=True)}))
        assert (ack.rows, ack.dropped, producer.late_dropped) == (1, 1, 1)
    assert [n for _, _, n in rows(stream)] == [1, 3]


def test_a_time_column_follows_the_clock_when_idle_if_told_so(tmp_path: Path) -> None:
    clock = Clock()
    stream = stream_of(tmp_path, "n bigint, at timestamp", clock=clock)
    with stream.producer(stime="at", slack="3s", idle="advance", boundary_every="1h") as producer:
        producer.tick()
        assert producer.boundary_us == clock.now - 3 * SECOND
    assert producer.boundary_us == 2**62


def test_after_so_long_without_a_tuple_the_boundary_follows_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = Clock(0)
    monkeypatch.setattr("holdfast.stream.producer.monotonic_us", steady)
    clock = Clock()
    stream = stream_of(tmp_path, "n bigint, at bigint", clock=clock)
    with stream.producer(stime="at", slack="3s", idle="5s", boundary_every="1h") as producer:
        producer.send({"n": 1, "at": 900 * SECOND})
        steady.now += 4 * SECOND
        producer.tick()
        assert producer.boundary_us == 897 * SECOND
        steady.now += SECOND
        producer.tick()
        assert producer.boundary_us == clock.now - 3 * SECOND
        producer.send({"n": 2, "at": 998 * SECOND})
        clock.now += 60 * SECOND
        producer.tick()
        assert producer.boundary_us == clock.now - 63 * SECOND


@pytest.mark.parametrize(
    ("at", "unit"),
    [(2**62, "us"), (-(2**61), "us"), (253_402_300_800_000_000, "us"), (253_402_300_800, "s"), (9_300_000_000_000, "s"),
     (-(2**62), "s")],
)  # fmt: skip
def test_an_stime_that_nobody_could_show_is_refused_and_changes_nothing(at: int, unit: str, tmp_path: Path) -> None:
    """It would be durable and unreadable; in seconds it would even wrap around."""
    stream = stream_of(tmp_path, "n bigint, at bigint")
    with stream.producer(stime="at", stime_unit=unit, boundary_every="1h") as producer:
        with pytest.raises(SchemaError, match="years 1 to 9999"):
            producer.send({"n": 1, "at": at})
        producer.send({"n": 2, "at": 5})
    assert [r.values["n"] for r in stream.subscribe().rows()] == [2]


def test_the_header_column_itself_can_be_sent(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    with stream.producer(stime="stime", boundary_every="1h") as producer:
        producer.send_batch(pa.table({"n": [7], "stime": pa.array([5 * SECOND], pa.timestamp("us", "UTC"))}))
    assert rows(stream) == [(1, 5 * SECOND, 7)]


@pytest.mark.parametrize(
    "options",
    [{"stime": "nothing"}, {"stime": "n", "stime_unit": "h"}, {"id": "../x"}, {"slack": "soon"}, {"id": ""}],
)
def test_a_wrong_option_is_refused_and_the_stream_stays_free(options: dict[str, str], tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    with pytest.raises(UsageError):
        stream.producer(**options)
    stream.producer().close()


def test_a_number_that_was_committed_is_acknowledged_and_not_written_again(tmp_path: Path) -> None:
    """Also by the next producer, under the same id; another id counts on its own."""
    stream = stream_of(tmp_path)
    with stream.producer(id="a") as producer:
        assert producer.last_seq == -1
        assert not producer.send({"n": 1}, seq=1).duplicate
        assert producer.send({"n": 1}, seq=1).duplicate
        assert not producer.send({"n": 5}, seq=5).duplicate
        producer.close(end=False)
    with stream.producer(id="a") as producer:
        assert producer.last_seq == 5
        assert producer.send({"n": 5}, seq=5).duplicate
        producer.close(end=False)
    with stream.producer(id="b") as producer:
        assert not producer.send({"n": 2}, seq=1).duplicate
    assert [n for _, _, n in rows(stream)] == [1, 5, 2]


def test_a_refused_request_does_not_use_up_its_number(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    with stream.producer() as producer:
        with pytest.raises(SchemaError):
            producer.send({"n": "seven"}, seq=7)
        assert producer.last_seq == -1
        assert not producer.send({"n": 7}, seq=7).duplicate
    assert [n for _, _, n in rows(stream)] == [7]


def test_in_one_group_a_refused_number_makes_no_duplicate_of_another(tmp_path: Path) -> None:
    """The one that is acknowledged must be there: seq 5 is refused, 4 stands behind it in the same group."""
    from holdfast.stream.producer import _Request

    stream = stream_of(tmp_path)
    with stream.producer(boundary_every="1h") as producer:
        answers = producer._commit(
            [
                _Request(rows=[{"n": "bad"}], numbers={"": 5}),
                _Request(rows=[{"n": 4}], numbers={"": 4}),
                _Request(rows=[{"n": 4}], numbers={"": 4}),
            ]
        )
    assert isinstance(answers[0], SchemaError)
    assert [a.duplicate for a in answers[1:]] == [False, True]
    assert [n for _, _, n in rows(stream)] == [4]


def test_a_row_that_does_not_fit_is_refused_without_disturbing_its_group(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    refused, sent = [], []
    with stream.producer(boundary_every="1h") as producer:

        def work(thread: int) -> None:
            for i in range(40):
                try:
                    producer.send({"n": "bad" if (i + thread) % 5 == 0 else 1000 * thread + i})
                    sent.append(1000 * thread + i)
                except SchemaError as error:
                    refused.append(error)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(refused) == 8 * 8
    assert sorted(n for _, _, n in rows(stream)) == sorted(sent)


def test_a_failed_commit_can_be_repeated_and_has_moved_no_boundary(tmp_path: Path) -> None:
    """L9: what failed must not make other tuples late."""
    disk = FailingDisk()
    stream = stream_of(tmp_path, "n bigint, at bigint", disk=disk)
    with stream.producer(stime="at", stime_unit="s", boundary_every="1h", late="drop") as producer:
        producer.send({"n": 1, "at": 1})
        disk.fail = {"sync": errno.EIO}
        with pytest.raises(StorageError, match="nothing acknowledged was lost"):
            producer.send({"n": 3, "at": 100}, seq=1)
        disk.fail = {}
        producer.send({"n": 2, "at": 2})
        assert producer.boundary_us == 2 * SECOND
        assert not producer.send({"n": 3, "at": 100}, seq=1).duplicate
        assert producer.late_dropped == 0
    assert [n for _, _, n in rows(stream)] == [1, 2, 3]


def test_several_producers_on_different_streams_at_once(tmp_path: Path) -> None:
    store = StreamStore(tmp_path)
    streams = [store.create(f"s{i}", "n bigint", bucket="10ms") for i in range(4)]
    producers: list[Producer] = [s.producer() for s in streams]

    def work(producer: Producer, base: int) -> None:
        for n in range(base, base + 50):
            producer.send({"n": n})

    threads = [threading.Thread(target=work, args=(p, 100 * i)) for i, p in enumerate(producers) for _ in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for producer in producers:
        producer.close()
    for i, stream in enumerate(streams):
        assert [r.values["n"] for r in stream.subscribe().rows()] == list(range(100 * i, 100 * i + 50))


def test_a_second_producer_of_one_stream_is_refused(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    before = set(threading.enumerate())
    with stream.producer(), pytest.raises(StreamBusy, match="one writer"):
        stream.producer()
    assert [t for t in set(threading.enumerate()) - before if t.name.startswith("boundary-")] == []


def test_close_ends_the_stream_and_leaving_by_an_error_does_not(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)

    def leave() -> None:
        with stream.producer() as producer:
            producer.send({"n": 1})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        leave()
    with stream.producer() as producer:
        producer.send({"n": 2})
    assert [r.values["n"] for r in stream.subscribe().rows()] == [1, 2]
    with pytest.raises(UsageError, match="closed"):
        producer.send({"n": 3})
    with stream.producer() as late, pytest.raises(UsageError, match="closed at its end"):
        late.send({"n": 3})


def test_closing_while_other_threads_send_neither_hangs_nor_loses_an_acknowledgement(tmp_path: Path) -> None:
    """The files may not be closed under a commit: another file could have the number by then."""
    for cycle in range(10):
        stream = stream_of(tmp_path / str(cycle), bucket="5ms")
        producer = stream.producer()
        acked: list[int] = []
        errors: list[BaseException] = []
        begun = threading.Barrier(5)

        def work(thread: int, producer: Producer = producer, acked: list[int] = acked,
                 errors: list[BaseException] = errors, begun: threading.Barrier = begun) -> None:  # fmt: skip
            n = 1000 * thread
            producer.send({"n": n})
            acked.append(n)
            begun.wait(20)
            try:
                while True:
                    n += 1
                    producer.send({"n": n})
                    acked.append(n)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(20)
        producer.close(end=cycle % 2 == 0)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert {type(e) for e in errors} == {UsageError}
        seen = [n for _, _, n in rows(stream)]
        assert set(acked) <= set(seen)
        assert len(seen) == len(set(seen))


def test_arrow_pandas_and_rows_give_the_same_tuples(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, "n bigint, text string")
    with stream.producer(boundary_every="1h") as producer:
        producer.send_many([{"n": 1, "text": "a"}, (2, None)])
        producer.send_batch(pa.table({"text": ["c"], "n": pa.array([3], pa.int32())}))
        producer.send_batch(pd.DataFrame({"n": [4], "text": ["d"]}))
        producer.send_batch(pa.record_batch({"n": [5], "text": ["e"]}))
    assert [tuple(r.values.values()) for r in stream.subscribe().rows()] == [
        (1, "a"), (2, None), (3, "c"), (4, "d"), (5, "e")]  # fmt: skip


def test_the_example_of_the_package_runs(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    store.create("monitor1", "source string, bytes bigint", bucket="1s", exist_ok=True)
    with store.open("monitor1").producer() as producer:
        producer.send({"source": "10.0.0.1", "bytes": 512})
    assert [r.values for r in store.open("monitor1").subscribe().rows()] == [{"source": "10.0.0.1", "bytes": 512}]


@pytest.mark.parametrize("seq", [-1, 1 << 63, 1 << 64, 1.5, "7", True])
def test_a_number_that_cannot_be_one_is_refused_before_it_spoils_the_commit_of_others(seq: Any, tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="1s")
    with stream.producer() as producer:
        with pytest.raises(UsageError, match="a sequence number must be whole, from 0 to"):
            producer.send({"n": 1}, seq=seq)
        assert not producer.send({"n": 1}, seq=0).duplicate


@pytest.mark.parametrize("boundary", [1 << 62, 1 << 63, 1.5, "now", None])
def test_a_boundary_beyond_all_years_is_refused(boundary: Any, tmp_path: Path) -> None:
    """D19: no arrival could be dated behind it, so nothing could be sent any more."""
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="1s")
    with stream.producer() as producer:
        with pytest.raises(UsageError, match="a boundary must be microseconds since 1970"):
            producer.advance(boundary)
        assert producer.send({"n": 1}).rows == 1
