"""A striped stream is several streams merged in bucket order, and a writer for each (000 §3.1)."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.inputs.decode import Decoder
from holdfast.inputs.feed import DeadLetters, Feed, Line, Sent
from holdfast.model.errors import (
    BadName,
    CorruptLog,
    EarlyTuple,
    LateTuple,
    SchemaError,
    StorageError,
    UnknownStream,
    UsageError,
)
from holdfast.stream.checking.verify import verify
from holdfast.stream.disk import Disk
from holdfast.stream.store import StreamStore, StripedStream
from holdfast.stream.striped_producer import StripedProducer
from tests.faults.units import QuietDisk
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


@contextlib.contextmanager
def failing(producer: StripedProducer, stripe: int) -> Iterator[None]:
    """One of its stripes takes nothing, no boundary either."""
    writer = producer.producers[stripe].writer
    disk, writer.disk = writer.disk, DiskAway()
    try:
        yield
    finally:
        writer.disk = disk


class DiskAway(Disk):
    def write(self, fd: int, path: Path, at: int, parts: Any) -> None:
        raise StorageError("the disk of this stripe is away")


def key_of(stripe: int, stripes: int = 4) -> str:
    return next(key for n in itertools.count() if zlib.crc32((key := f"k{n}").encode()) % stripes == stripe)


def row(stripe: int, n: int, seconds: float) -> dict[str, Any]:
    """One that goes to this stripe of four."""
    return {"customer": key_of(stripe), "n": n, "at": at(seconds)}


def stored(stream: StripedStream) -> list[int]:
    return sorted(numbers(list(stream.subscribe().rows(timeout=0))))


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
    assert sorted(len([n for n in r if n != 200]) for r in rows) == [14, 14, 14]
    assert sum(len(set(r)) for r in rows) == 16, "no unit lies in two stripes"
    expected = zlib.crc32(b"7") % 3
    assert [r.count(200) for r in rows] == [2 if i == expected else 0 for i in range(3)], "a number says which stripe"


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


def test_live_begins_at_the_beginning_where_nothing_is_complete(store: StreamStore) -> None:
    stream = store.create_striped("o", COLUMNS, stripes=2, bucket="1s")
    empty = stream.subscribe(start="live", name="db")
    assert list(empty.poll()) == []
    empty.ack()
    stream.subscribe(after=empty.position)
    stream.subscribe(name="db", resume=True)
    ahead, behind = (s.producer(stime="at", slack=0) for s in stream.stripes)
    ahead.send_many(rows_of(range(100)))
    reader = stream.subscribe(start="live")
    behind.send_many(rows_of(range(35)))
    for producer in (ahead, behind):
        producer.close()
    assert Counter(numbers(list(reader.rows()))) == Counter([*range(35), *range(100)])
    assert Counter(numbers(list(empty.rows()))) == Counter([*range(35), *range(100)])


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
        broken = rows_of(range(50, 60))
        with failing(producer, 1), pytest.raises(StorageError):
            producer.send_many(broken, seq=5)
        assert producer.last_seq == 4, "not before all of it is there"
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


def test_an_id_is_never_that_of_the_parts_of_another_sender(store: StreamStore, orders: StripedStream) -> None:
    """L1: whatever ids others use, what was acknowledged is there."""
    with orders.producer() as producer:
        for n, (first, second) in enumerate((("a.part", "a"), ("b", "b.part"), ("c." + "x" * 126, "d"), ("e.", "f"))):
            producer.send_many([row(0, 10 * n, 0)], seq=10**9, producer_id=first)
            ack = producer.send_many([row(0, 10 * n + 1, 0), row(1, 10 * n + 2, 0)], seq=1, producer_id=second)
            assert ack[1:] == (2, False, 0)
            assert producer.send_many([row(0, 10 * n + 3, 0), row(1, 10 * n + 4, 0)], seq=10**9 + 1,
                                      producer_id=first).rows == 2  # fmt: skip
        with pytest.raises(BadName):
            producer.send_many([row(0, 99, 0), row(1, 99, 0)], seq=1, producer_id="a/part")
    assert stored(orders) == [10 * n + i for n in range(4) for i in range(5)]


def torn(stream: StripedStream, rows: list[dict[str, Any]], seq: int, away: int, **options: Any) -> None:
    """A unit comes to its stripes but for one, and its process is gone."""
    with stream.producer(stime="at", **options) as producer:
        with failing(producer, away), pytest.raises(StorageError):
            producer.send_many(rows, seq=seq, producer_id="a")
        producer.close(end=False)


@pytest.mark.parametrize("late", ["drop", "refuse"])
@pytest.mark.parametrize("away", [1, 2])
def test_a_torn_unit_whose_rest_is_late_doubles_nothing(orders: StripedStream, late: Any, away: int) -> None:
    """L3: where another sender moved the boundary meanwhile."""
    unit = [row(0, 0, 1), row(1, 1, 1), row(2, 2, 1)]
    torn(orders, unit, 5, away, late=late)
    with orders.producer(stime="at", late=late) as producer:
        producer.send_many([row(3, 3, 60)], seq=1, producer_id="b")
        rest = [n for n in (1, 2) if n >= away]  # The last of its stripes is never tried before the others.
        assert producer.untimely_rows(unit, seq=5, producer_id="a") == rest
        if late == "drop":
            assert producer.send_many(unit, seq=5, producer_id="a")[1:] == (0, False, len(rest))
            assert producer.send_many(unit, seq=5, producer_id="a").duplicate
        else:
            with pytest.raises(LateTuple):
                producer.send_many(unit, seq=5, producer_id="a")
    assert stored(orders) == [n for n in range(4) if n not in rest]


def test_rows_of_a_torn_unit_that_are_there_do_not_come_too_late(orders: StripedStream, tmp_path: Path) -> None:
    """And are not put aside as if they had been refused."""
    unit = [row(0, 0, 1), row(1, 1, 60), row(2, 2, 60)]
    torn(orders, unit, 102, 2, slack="2m")
    text = [Line(json.dumps({**r, "at": r["at"].isoformat()}).encode(), str(i), 100 + i) for i, r in enumerate(unit)]
    with orders.producer(stime="at") as producer, DeadLetters(tmp_path / "dead") as dead:
        producer.send_many([row(3, 3, 60)], seq=1, producer_id="b")
        feed = Feed(producer, Decoder(orders.definition.schema, "orders"), dead)
        assert feed.send(text, "a") == Sent(rows=1)
    assert (tmp_path / "dead").read_bytes() == b""
    assert stored(orders) == [0, 1, 2, 3]


def test_the_boundary_waits_for_a_torn_unit_until_it_is_sent_again(orders: StripedStream) -> None:
    unit = [row(0, 0, 5), row(1, 1, 5), row(2, 2, 5)]
    with orders.producer(stime="at") as producer:
        with failing(producer, 1), pytest.raises(StorageError):
            producer.send_many(unit, seq=5, producer_id="a")
        producer.send_many([row(3, 3, 60)], seq=1, producer_id="b")
        assert producer.boundary_us <= us(5)
        with pytest.raises(UsageError, match=r"unit 5 of producer a came to some of its stripes only.*send it again"):
            producer.advance(us(70))
        assert producer.send_many(unit, seq=5, producer_id="a").rows == 2
        assert producer.boundary_us == us(60)
        producer.advance(us(70))
    assert stored(orders) == [0, 1, 2, 3]


def test_a_unit_is_acknowledged_though_a_stripe_cannot_take_the_boundary(orders: StripedStream) -> None:
    with orders.producer(stime="at", boundary_every="60s") as producer:
        producer.send(row(0, 0, 1))
        with failing(producer, 1):
            assert producer.send(row(0, 1, 60)).rows == 1, "sending it again would double it"
            assert producer.boundary_us < us(60)
        producer.tick()
        assert producer.boundary_us == us(60)
        producer.close(end=False)
    assert stored(orders) == [0]


def test_closing_waits_for_units_that_are_on_their_way(orders: StripedStream) -> None:
    on_its_way, may_go_on = threading.Event(), threading.Event()
    producer = orders.producer()
    send = producer.producers[0].send_part

    def held_up(*given: Any) -> Any:
        on_its_way.set()
        assert may_go_on.wait(60)
        return send(*given)

    producer.producers[0].send_part = held_up  # type: ignore[method-assign]
    unit = [row(n, n, 0) for n in range(4)]
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(producer.send_many, unit, seq=1)
        assert on_its_way.wait(60)
        closed = pool.submit(producer.close)
        while not producer._closed:
            time.sleep(0.001)
        with pytest.raises(UsageError, match="was closed"):
            producer.send_many(unit, seq=2)
        assert not closed.done()
        may_go_on.set()
        assert sent.result().rows == 4
        closed.result()
    assert stored(orders) == [0, 1, 2, 3]


def test_numbers_in_round_steps_are_dealt_to_all_stripes(store: StreamStore) -> None:
    """As inputs number units: by their last row."""
    stream = store.create_striped("turns", "n bigint", stripes=4)
    with stream.producer() as producer:
        for n in range(32):
            producer.send_many([(n,)], seq=10_000 * (n + 1) - 1, numbers=[10_000 * (n + 1) - 1])
        producer.send_many([(0,), (1,), (32,)], seq=330_000, numbers=[9_999, 19_999, 330_000])
    rows = [numbers(list(s.subscribe().rows())) for s in stream.stripes]
    assert min(map(len, rows)) >= 3
    assert sorted(n for r in rows for n in r) == list(range(33)), "what is there is not taken again"


def test_an_end_that_was_begun_is_completed_and_that_of_one_stripe_is_not(store: StreamStore) -> None:
    for cut in range(1, 4):
        stream = store.create_striped(f"whole{cut}", "n bigint", stripes=4)
        producer = stream.producer()
        for n, one in enumerate(producer.producers):  # As when it is killed between two of them.
            one.close(end=n < cut, tokens={"/ended": 1})
        producer.close(end=False)
        stream.producer().close(end=False)
        assert all(s.reader().closed for s in stream.stripes)
        stream.producer().close()
    stream = store.create_striped("each", "n bigint", stripes=3)
    with stream.stripes[1].producer() as one:
        one.send((1,))
    with pytest.raises(UsageError, match=r"each\.s1 ended, and not with the whole.*each\.s0, each\.s2"):
        stream.producer()
    assert [s.reader().closed for s in stream.stripes] == [False, True, False]
    for stripe in (0, 2):
        stream.stripes[stripe].producer().close()
    stream.producer().close()
    with stream.producer() as producer, pytest.raises(UsageError, match="closed at its end"):
        producer.send((2,))


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
    with pytest.raises(UsageError, match=r"o\.s1 is a stripe of o, which is nothing without it; delete o"):
        store.delete("o.s1")
    shutil.rmtree(tmp_path / "o.s1")
    with pytest.raises(UnknownStream, match=r"o\.s1"):
        store.open_striped("o")
    store.create("o.s1", "n bigint")
    with pytest.raises(UsageError, match=r"o\.s1 is not the stripe of o that was created with it"):
        store.open_striped("o")
    store.delete("o")
    assert (store.names(), store.striped_names(), list(tmp_path.iterdir())) == ([], [], [])
    store.create("o.s1", "n bigint")
    store.delete("o.s1")


def test_a_name_can_be_used_again_wherever_its_deletion_was_cut(tmp_path: Path) -> None:
    for step in itertools.count(0, 8):
        store = StreamStore(tmp_path / str(step), disk=QuietDisk())
        store.create_striped("o", "n bigint", stripes=2)
        try:
            StreamStore(store.root, disk=CuttingDisk(step)).delete("o")
            break
        except Cut:
            if store.striped_names():
                store.delete("o")
            assert store.names() == []
            store.create_striped("o", "n bigint", stripes=3)
    assert step > 8


def test_a_removal_that_was_cut_short_leaves_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = holdfast.open(tmp_path)
    store.create_striped("o", "n bigint", stripes=2)

    def cut(folder: Path, **_: object) -> None:
        if not any((folder / name).exists() for name in ("main", "stream")):
            raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", cut)
        with pytest.raises(Cut):
            store.delete("o")
    assert (store.names(), store.striped_names()) == ([], [])
    store.create("o", "n bigint")


def test_one_whose_own_file_is_damaged_says_so_and_can_be_deleted(store: StreamStore, orders: StripedStream) -> None:
    store.create("orders.more", "n bigint")
    path = store.root / "orders" / "stripes"
    path.write_bytes(path.read_bytes().replace(b"customer", b"customes"))
    with pytest.raises(CorruptLog, match=r"does not match its checksum; bring it back from a copy") as raised:
        store.open_striped("orders")
    assert "repair" not in str(raised.value)
    with pytest.raises(UsageError, match="is a stripe of orders"):
        store.delete("orders.s2")
    assert list(orders.stripes[1].subscribe().poll()) == []
    store.delete("orders")
    assert store.names() == ["orders.more"]


def test_many_can_create_the_same_one_at_once(tmp_path: Path) -> None:
    for n in range(5):
        begin = threading.Barrier(4)

        def create(n: int = n, begin: threading.Barrier = begin) -> StripedStream:
            store = holdfast.open(tmp_path / str(n))
            begin.wait(60)
            return store.create_striped("o", "n bigint", stripes=4, exist_ok=True)

        with ThreadPoolExecutor(4) as pool:
            made = [future.result() for future in [pool.submit(create) for _ in range(4)]]
        assert len({one.dealing.id for one in made}) == 1
        assert len({one.stripes[3].definition.id for one in made}) == 1
        assert sorted(p.name for p in (tmp_path / str(n)).iterdir()) == ["o", "o.s0", "o.s1", "o.s2", "o.s3"]


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


def test_columns_are_added_to_all_stripes(store: StreamStore, orders: StripedStream) -> None:
    filled(orders, range(40), end=False)
    wanted = COLUMNS + ", more string"
    store.add_columns("orders.s1", wanted)  # As by somebody who was killed then.
    with pytest.raises(UsageError, match=r"equal columns.*store\.add_columns_striped\('orders', …\)"):
        store.open_striped("orders")
    with pytest.raises(UsageError, match=r"orders\.s0 keeps the columns that it has"):
        store.add_columns_striped("orders", "customer string, n string, at timestamp, more string")
    assert store.add_columns_striped("orders", wanted).definition.columns == wanted
    with store.open_striped("orders").producer(stime="at") as producer:
        producer.send_many([{**r, "more": "m"} for r in rows_of(range(40, 80))])
    rows = list(store.open_striped("orders").subscribe().rows())
    assert {row.values["n"]: row.values["more"] for row in rows} == {n: "m" if n >= 40 else None for n in range(80)}
    store.create("plain", "n bigint")
    with pytest.raises(UsageError, match=r"plain has no stripes; use store\.add_columns"):
        store.add_columns_striped("plain", "n bigint, m bigint")


def test_columns_that_stripes_got_in_another_order_are_the_same(store: StreamStore) -> None:
    stream = store.create_striped("o", "k string", stripes=2, stripe_by="k")
    keys = [key_of(stripe, 2) for stripe in range(2)]
    with stream.producer() as producer:
        producer.send_many([(key,) for key in keys])
        producer.close(end=False)
    for stripe, order in zip(stream.stripes, ("a bigint, b bigint", "b bigint, a bigint"), strict=True):
        for n in (1, 2):
            store.add_columns(stripe.name, f"k string, {', '.join(order.split(', ')[:n])}")
    expected = [(key, None, None) for key in keys]
    with store.open_striped("o").producer() as producer:
        for n, key in enumerate(keys):
            expected += [(key, 100 * n + i, i) for i in range(4)]
            producer.send((key, 100 * n, 0))
            producer.send_async((key, 100 * n + 1, 1)).result()
            producer.send({"k": key, "b": 2, "a": 100 * n + 2})
        producer.send_many([(key, 100 * n + 3, 3) for n, key in enumerate(keys)], seq=1)
    rows = [row.values for row in store.open_striped("o").subscribe().rows()]
    assert Counter((r["k"], r["a"], r["b"]) for r in rows) == Counter(expected)
    batches = list(store.open_striped("o").subscribe())
    assert pa.Table.from_batches(batches).num_rows == len(expected)
