"""A striped stream is several streams merged in bucket order, and a writer for each (000 §3.1)."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.model.errors import (
    BadName,
    EarlyTuple,
    LateTuple,
    SchemaError,
    StorageError,
    UnknownStream,
    UsageError,
)
from holdfast.stream.checking.verify import verify
from holdfast.stream.store import StreamStore, StripedStream
from tests.stream.conftest import Cut, CuttingDisk

T0 = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = "customer string, n bigint, at timestamp"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def rows_of(numbers: range, seconds: float = 0.1) -> list[dict[str, Any]]:
    return [{"customer": f"c{n % 11}", "n": n, "at": at(n * seconds)} for n in numbers]


@pytest.fixture
def store(tmp_path: Path) -> StreamStore:
    return holdfast.open(tmp_path / "streams")


@pytest.fixture
def orders(store: StreamStore) -> StripedStream:
    return store.create_striped("orders", COLUMNS, stripes=4, stripe_by="customer", bucket="1s")


def filled(stream: StripedStream, numbers: range, *, end: bool = True) -> StripedStream:
    with stream.producer(stime="at", slack="2s") as producer:
        for n in range(numbers.start, numbers.stop, 10):
            producer.send_many(rows_of(range(n, min(n + 10, numbers.stop))))
        producer.close(end=end)
    return stream


def numbers(rows: list[Any]) -> list[int]:
    return [row.values["n"] for row in rows]


def us(seconds: float) -> int:
    return int(at(seconds).timestamp() * 1e6)


def test_equal_keys_go_to_one_stripe_by_the_checksum_of_their_text(store: StreamStore) -> None:
    keys = {
        "string": ["ann", "", None, "ä"], "bigint": [0, -5, 2**62, None], "boolean": [True, False, None],
        "date": [date(2026, 3, 1), date(1, 1, 1), None], "binary": [b"\x00\xff", b"", None],
    }  # fmt: skip
    text = {bytes: bytes, bool: lambda v: str(v).lower().encode(), type(None): lambda _: b""}
    for number, (kind, values) in enumerate(keys.items()):
        stream = store.create_striped(f"by{number}", f"k {kind}", stripes=3, stripe_by="k", bucket="100ms")
        with stream.producer() as producer:
            for value in values:
                producer.send((value,))
            producer.send_batch(pa.table({"k": pa.array(values, stream.definition.schema.field("k").type)}))
        for value in values:
            expected = zlib.crc32(text.get(type(value), lambda v: str(v).encode())(value)) % 3
            found = [list(s.subscribe().rows()) for s in stream.stripes]
            count = [sum(row.values["k"] == value and type(row.values["k"]) is type(value) for row in f) for f in found]
            assert count == [2 if i == expected else 0 for i in range(3)], (kind, value)


def test_without_a_key_each_unit_goes_whole_to_the_next_stripe(store: StreamStore) -> None:
    stream = store.create_striped("turns", "n bigint", stripes=3, bucket="100ms")
    with stream.producer() as producer:
        for n in range(9):
            producer.send_many([(n,)] * 4)
        [future.result() for future in [producer.send_async((100 + n,)) for n in range(6)]]
        producer.send_many([(200,)] * 2, seq=7)
    rows = [numbers(list(s.subscribe().rows())) for s in stream.stripes]
    assert sorted(map(len, rows)) == [14, 14, 16]
    assert sum(len(set(r)) for r in rows) == 16, "no unit lies in two stripes"
    assert [r.count(200) for r in rows] == [0, 2, 0], "a number says which stripe"


def test_readers_get_one_order_whatever_portions_they_read(orders: StripedStream) -> None:
    """D9: by bucket, then stripe, then tuple id."""
    follower = orders.subscribe()
    portions = []
    with orders.producer(stime="at", slack="1s") as producer:
        for n in range(0, 400, 7):
            producer.send_many(rows_of(range(n, n + 7)))
            portions += [row for batch in follower.poll() for row in follower.rows_of(batch)]
    portions += list(follower.rows())
    whole = list(orders.subscribe().rows())
    assert [(r.id, r.stime, r.values) for r in portions] == [(r.id, r.stime, r.values) for r in whole]
    stripe_of = {f"c{k}": zlib.crc32(f"c{k}".encode()) % 4 for k in range(11)}
    keys = [(int(r.stime.timestamp()), stripe_of[r.values["customer"]], r.id) for r in whole if r.stime is not None]
    assert keys == sorted(keys)
    assert sorted(numbers(whole)) == list(range(406))


def test_a_stripe_that_is_away_is_waited_for_and_one_that_ended_is_not(store: StreamStore) -> None:
    stream = store.create_striped("orders", COLUMNS, stripes=3, bucket="1s")
    first, second, third = (s.producer(stime="at", slack=0) for s in stream.stripes)
    reader = stream.subscribe(boundaries=True)
    for n, producer in enumerate((first, second, third)):
        producer.send_many(rows_of(range(n, n + 30)))
    third.close(end=False)
    assert sum(b.num_rows for b in reader.poll()) == 20 + 19 + 18 + 1, "to the second in which the first stands"
    for producer in (first, second):
        producer.send_many(rows_of(range(60, 90)))
    assert sum(b.num_rows for b in reader.poll()) == 3 * 10 + 1, "to that in which the third stands"
    assert not list(reader.poll()), "it has promised nothing more"
    stream.stripes[2].producer().close()
    assert sum(b.num_rows for b in reader.poll()) > 40
    first.close()
    second.close()
    assert not reader.finished
    list(reader.poll())
    assert reader.finished


def test_an_interrupted_look_goes_on_where_it_was(orders: StripedStream) -> None:
    filled(orders, range(200))
    reader, found = orders.subscribe(), []
    while not reader.finished:
        for batch in itertools.islice(reader.poll(), 3):
            found += batch.column("n").to_pylist()
    assert found == numbers(list(orders.subscribe().rows()))


def test_boundaries_go_on_behind_the_end_of_the_shortest_stripe(store: StreamStore) -> None:
    stream = store.create_striped("o", COLUMNS, stripes=2, bucket="1s")
    short, long = (s.producer(stime="at") for s in stream.stripes)
    reader, seen = stream.subscribe(boundaries=True), []

    def boundaries() -> list[int]:
        kind = int(holdfast.TupleType.BOUNDARY)
        rows = [row for batch in reader.poll() for row in reader.rows_of(batch) if row.type == kind]
        return [int(row.stime.timestamp()) for row in rows if row.stime is not None]

    short.send_many(rows_of(range(15)))
    short.close()
    for n in range(2, 9, 2):
        long.send_many(rows_of(range(10 * n, 10 * n + 10)))
        seen += boundaries()
        assert reader.position_us == us(n)
    long.close()
    seen += boundaries()
    assert seen[:4] == [int(at(n).timestamp()) for n in (2, 4, 6, 8)]
    assert len(seen) == 5
    assert reader.finished
    assert reader.position_us >= us(9)


def test_it_can_be_iterated_like_any_subscriber(orders: StripedStream) -> None:
    assert sum(batch.num_rows for batch in filled(orders, range(50)).subscribe()) == 50


def until_interrupted(parts: Iterator[list[int]]) -> Iterator[list[int]]:
    with pytest.raises(KeyboardInterrupt):
        yield from parts


def test_what_an_interrupt_has_lost_is_not_passed_over(orders: StripedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: as by Ctrl-C; the position is that of what came."""
    filled(orders, range(200))
    whole = numbers(list(orders.subscribe().rows()))
    for way in ("poll", "rows"):
        reader, found, left = orders.subscribe(), [], itertools.count()
        scan = type(reader.stripes[0]).poll

        def interrupted(self: Any, *given: Any, left: Any = left, scan: Any = scan) -> Iterator[Any]:
            for batch in scan(self, *given):
                if next(left) == 20:
                    raise KeyboardInterrupt
                yield batch

        with monkeypatch.context() as patched:
            patched.setattr(type(reader.stripes[0]), "poll", interrupted)
            batches = (batch.column("n").to_pylist() for batch in reader.poll())
            for part in until_interrupted(batches if way == "poll" else ([r.values["n"]] for r in reader.rows())):
                found += part
        assert found
        with pytest.raises(UsageError, match=r"interrupted while it read \(KeyboardInterrupt\).*after=position"):
            list(reader.poll())
        assert found + numbers(list(orders.subscribe(after=reader.position).rows())) == whole


def test_a_position_goes_on_behind_its_row(orders: StripedStream) -> None:
    """L6: at any row, across buckets and stripes."""
    rows = list(filled(orders, range(150)).subscribe().rows())
    for n in (0, 1, 17, 60, 61, 62, 149):
        rest = list(orders.subscribe(after=rows[n].position).rows())
        assert numbers(rest) == numbers(rows[n + 1 :])
        assert [r.position for r in rest] == [r.position for r in rows[n + 1 :]]
    reader = orders.subscribe(start=at(5))
    list(reader.poll())
    assert list(orders.subscribe(after=reader.position).rows()) == []


def test_retention_waits_for_what_a_named_reader_took_in_every_stripe(store: StreamStore) -> None:
    """L8, D14."""
    kept = holdfast.Retention(acknowledged=True)
    stream = store.create_striped("o", COLUMNS, stripes=2, stripe_by="customer", bucket="1s", retention=kept,
                                  segment_bytes=4096)  # fmt: skip
    reader = stream.subscribe(name="db")
    filled(stream, range(2000), end=False)
    assert [s.retain().rows for s in stream.stripes] == [0, 0]
    taken = [row for batch in reader.poll() for row in reader.rows_of(batch)]
    reader.ack()
    assert all(s.retain().rows for s in stream.stripes)
    filled(stream, range(2000, 2100))
    rest = list(stream.subscribe(name="db", resume=True).rows())
    assert sorted(numbers(taken) + numbers(rest)) == list(range(2100))


def test_live_begins_where_all_stripes_stand(store: StreamStore) -> None:
    stream = store.create_striped("o", COLUMNS, stripes=2, bucket="1s")
    ahead, behind = (s.producer(stime="at", slack=0) for s in stream.stripes)
    ahead.send_many(rows_of(range(100)))
    behind.send_many(rows_of(range(35)))
    reader = stream.subscribe(start="live")
    for producer in (ahead, behind):
        producer.close()
    assert Counter(numbers(list(reader.rows()))) == Counter([*range(30, 35), *range(30, 100)])


def test_one_boundary_is_kept_for_all_stripes(store: StreamStore) -> None:
    """D10: a stripe without tuples holds nobody back, and what is late is late in all."""
    stream = store.create_striped("o", COLUMNS, stripes=4, stripe_by="customer", bucket="1s")
    with stream.producer(stime="at", slack="1s") as producer:
        for n in range(50):
            producer.send({"customer": "one", "n": n, "at": at(n * 0.5)})
        assert {s.reader().boundary_us for s in stream.stripes} == {producer.boundary_us}
        assert producer.boundary_us >= int(at(23).timestamp() * 1e6)
        with pytest.raises(LateTuple, match=r"stream o: a tuple at .* comes after the boundary .* more slack"):
            producer.send({"customer": "two", "n": -1, "at": at(3)})
        with pytest.raises(EarlyTuple, match="stream o"):
            producer.send({"customer": "two", "n": -1, "at": at(3 + 86_400 * 36_500)})
        assert producer.untimely_rows([{"at": at(3)}, {"at": at(24.5)}]) == [0]
        producer.advance(int(at(40).timestamp() * 1e6))
        with pytest.raises(LateTuple):
            producer.send({"customer": "two", "n": -1, "at": at(39)})
        producer.close(end=False)
    with stream.producer(stime="at", slack="1s", late="drop") as producer:
        assert producer.send_many(rows_of(range(450, 500)))[1:] == (50, False, 0)
        assert producer.send_many(rows_of(range(0, 10)), seq=1)[1:] == (0, False, 10)
        assert producer.late_dropped == 10
    assert len(list(stream.subscribe().rows())) == 100


def test_stripes_that_were_left_apart_go_on_from_one_boundary(store: StreamStore) -> None:
    """As when a process is killed between two of them."""
    stream = store.create_striped("o", COLUMNS, stripes=3, bucket="1s")
    with stream.stripes[1].producer(stime="at") as producer:
        producer.advance(int(at(7).timestamp() * 1e6))
        producer.close(end=False)
    with stream.producer(stime="at") as producer:
        assert {s.reader().boundary_us for s in stream.stripes} == {int(at(7).timestamp() * 1e6)}
        producer.close(end=False)
    stream.stripes[1].producer().close()
    stream.producer().close(end=False)
    assert all(s.reader().closed for s in stream.stripes), "an end that was begun is completed"


def test_no_tuple_is_late_because_others_are_sent_meanwhile(store: StreamStore) -> None:
    """D10: the boundary waits for what is on its way to its stripes."""
    stream = store.create_striped("o", COLUMNS, stripes=2, bucket="1s")
    on_its_way, may_go_on = threading.Event(), threading.Event()
    with stream.producer(stime="at", slack="1s") as producer:
        send = producer.producers[0].send_batch

        def held_up(*given: Any, **named: Any) -> Any:
            on_its_way.set()
            assert may_go_on.wait(60)
            return send(*given, **named)

        producer.producers[0].send_batch = held_up  # type: ignore[method-assign]
        slow = threading.Thread(target=producer.send_many, args=(rows_of(range(55, 60)),))
        slow.start()
        assert on_its_way.wait(60)
        producer.send_many(rows_of(range(900, 905)), seq=1)  # To the other stripe.
        assert producer.boundary_us == int(at(5.5).timestamp() * 1e6)
        may_go_on.set()
        slow.join()
        assert producer.boundary_us == int(at(89.4).timestamp() * 1e6)
    assert sorted(numbers(list(stream.subscribe().rows()))) == [*range(55, 60), *range(900, 905)]


def test_idle_lets_the_boundary_follow_the_clock(store: StreamStore) -> None:
    stream = store.create_striped("o", "at timestamp", stripes=2, bucket="10ms")
    with stream.producer(stime="at", idle="advance") as producer:
        reader = stream.subscribe(boundaries=True, start="live")
        batch = next(iter(reader.batches(timeout="20s")))
        assert batch.column("tuple_type").to_pylist() == [int(holdfast.TupleType.BOUNDARY)]
        producer.close(end=False)


def test_a_unit_that_is_sent_again_adds_nothing(orders: StripedStream) -> None:
    """Also after a crash, and where it had come to some of its stripes only."""
    with orders.producer(id="shop") as producer:
        for n in range(5):
            producer.send_many(rows_of(range(10 * n, 10 * n + 10)), seq=n)
        whole, broken = producer.producers[1].send_batch, rows_of(range(50, 60))

        def fails(*_: object, **__: object) -> None:
            raise StorageError("the disk of this stripe is away")

        producer.producers[1].send_batch = fails  # type: ignore[method-assign, assignment]
        with pytest.raises(StorageError):
            producer.send_many(broken, seq=5)
        assert producer.last_seq == 4, "not before all of it is there"
        producer.producers[1].send_batch = whole  # type: ignore[method-assign]
        producer.close(end=False)
    with orders.producer(id="shop") as producer:
        assert producer.last_seq == 4
        for n in (3, 4):
            assert producer.send_many(rows_of(range(10 * n, 10 * n + 10)), seq=n).duplicate
        assert not producer.send_many(broken, seq=5).duplicate
        assert producer.send(rows_of(range(60, 61))[0], seq=6).rows == 1
        assert producer.send(rows_of(range(60, 61))[0], seq=6).duplicate
        assert producer.last_seq == 6
        assert producer.last_seq_of("other") == -1
    assert sorted(numbers(list(orders.subscribe().rows()))) == list(range(61))


def test_a_unit_that_does_not_fit_comes_to_no_stripe(orders: StripedStream) -> None:
    with orders.producer() as producer:
        with pytest.raises(SchemaError, match="stream orders"):
            producer.send_many([*rows_of(range(5)), {"customer": "x", "n": "three", "at": at(0)}])
        with pytest.raises(SchemaError):
            producer.send({"nobody": 1})
        with pytest.raises(UsageError, match="sequence number must be whole"):
            producer.send_many(rows_of(range(5)), seq=-1)
    assert list(orders.subscribe().rows()) == []


def test_the_last_tuples_are_those_of_all_stripes(orders: StripedStream) -> None:
    filled(orders, range(200), end=False)
    complete = list(orders.subscribe().poll())
    rows = [row for batch in complete for row in orders.subscribe().rows_of(batch)]
    for n in (0, 1, 10, 13, 500):
        bucket, skip = orders.last(n)
        assert len(list(_present(orders, bucket))) - skip == min(n, len(rows))


def _present(stream: StripedStream, bucket: int) -> list[Any]:
    reader = stream.subscribe(bucket=bucket)
    return [row for batch in reader.poll() for row in reader.rows_of(batch)]


def test_creating_is_whole_or_not_at_all(tmp_path: Path) -> None:
    for step in itertools.count():
        root = tmp_path / str(step)
        try:
            StreamStore(root, disk=CuttingDisk(step)).create_striped("o", "n bigint", stripes=2)
            break
        except Cut:
            store = holdfast.open(root)
            assert store.striped_names() in ([], ["o"])
            again = store.create_striped("o", "n bigint", stripes=2, exist_ok=True)
            assert again.dealing.names == ("o.s0", "o.s1")
            assert store.names() == ["o.s0", "o.s1"]
    assert step > 5


def test_deleting_takes_the_stripes_with_it_however_often_it_is_begun(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    stream = store.create_striped("o", "n bigint", stripes=3)
    with stream.stripes[2].producer(), pytest.raises(holdfast.StreamBusy):
        store.delete("o")
    assert len(store.names()) == 3, "nothing is gone while somebody writes"
    store.delete("o.s1")
    with pytest.raises(UnknownStream, match=r"o\.s1"):
        store.open_striped("o")
    store.delete("o")
    assert (store.names(), store.striped_names(), list(tmp_path.iterdir())) == ([], [], [])


def test_the_logs_of_stripes_are_those_of_any_stream(orders: StripedStream) -> None:
    filled(orders, range(100))
    assert [list(verify(stripe.folder)) for stripe in orders.stripes] == [[]] * 4


def test_what_a_striped_stream_cannot_be_is_said(store: StreamStore, orders: StripedStream) -> None:
    store.create("plain", "n bigint")
    store.create("taken.s0", "n bigint").producer().close()
    for match, call in (
        ("must have 1 to 64 stripes; got 0", lambda: store.create_striped("x", "n bigint", stripes=0)),
        ("must name a column of", lambda: store.create_striped("x", "n bigint", stripes=2, stripe_by="m")),
        ("whose text is the same", lambda: store.create_striped("x", "n double", stripes=2, stripe_by="n")),
        ("kept persist='always'", lambda: store.create_striped("x", "n bigint", stripes=2, persist="never")),
        ("exists already: 4 stripes, by customer", lambda: store.create_striped("orders", COLUMNS, stripes=3)),
        ("exists already, without stripes", lambda: store.create_striped("plain", "n bigint", stripes=3)),
        ("taken.s0 exists already", lambda: store.create_striped("taken", "n bigint", stripes=2)),
        ("exists already, with stripes", lambda: store.create("orders", COLUMNS, exist_ok=True)),
        (r"orders is striped \(4 stripes, by customer\)", lambda: store.open("orders")),
        ("plain has no stripes", lambda: store.open_striped("plain")),
        ("must be a position that a subscriber of striped", lambda: orders.subscribe(after="here")),
        ("has no tentative branch", lambda: orders.subscribe(tentative=True)),
        ("only a named subscriber", lambda: orders.subscribe().ack()),
    ):
        with pytest.raises(UsageError, match=match):
            call()
    with pytest.raises(UnknownStream, match="no stream 'nobody'"):
        store.open_striped("nobody")
    with pytest.raises(BadName):
        store.create_striped("x" * 127, "n bigint", stripes=2)
    with orders.producer(stime="at") as producer, pytest.raises(UsageError, match="times of arrival"):
        producer.send_async(rows_of(range(1))[0])
    with orders.producer() as producer, pytest.raises(UsageError, match="without numbers; got stime=None, seq=1"):
        producer.send_async(rows_of(range(1))[0], seq=1)
    with pytest.raises(UsageError, match="was closed"):
        producer.send(rows_of(range(1))[0])
    with pytest.raises(UsageError, match="stime must name one of"):
        orders.producer(stime="nothing")
    orders.producer().close(end=False)  # Nothing of what was refused keeps it.
    store.add_columns("orders.s1", "customer string, n bigint, at timestamp, more string")
    with pytest.raises(UsageError, match="equal columns"):
        store.open_striped("orders")
