"""A client of several replicas over real HTTP: same tuples as next to the log, whoever fails on the way (D1 to D4)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest

import holdfast
from holdfast.host.connection import Connection
from holdfast.host.link import Cuts
from holdfast.host.service import Service
from holdfast.host.stream_server import StreamServer
from holdfast.inputs.network import Access
from holdfast.model.errors import ColumnsAdded, PeerError, Removed, UnknownStream, UsageError
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.definition import Retention
from holdfast.stream.pack import pack
from holdfast.stream.subscriber import Row
from holdfast.stream.worth import Worth, note_worth
from tests.host.conftest import SECOND, TOKEN, VIEW_TOKEN, Origin, boundary_of, never

T = TypeVar("T")
STABLE, UP_FAILURE, STABILIZATION = StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABILIZATION


class House:
    """An event loop in a thread, in which the hosts of a test live."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Replica:
    """One host with a copy of the stream "s": main and branch are written by the test, so is what it says of itself."""

    def __init__(self, house: House, root: Path, **options: Any) -> None:
        self.house, self.origin = house, Origin(root, **options)
        self.state: StreamState | None = STABLE
        self.cuts, self.port, self.behind_us = Cuts(), 0, 0
        self._service: Service | None = None

    def report(self, stream: str) -> StreamReport | None:
        if stream != "s":
            raise UnknownStream(f"stream {stream} is not produced here")
        if self.state is None:
            return None
        main_us = boundary_of(self.origin.stream.folder / "main", self.origin.definition) - self.behind_us
        return StreamReport("s", self.state, main_us, self.origin.stream.branch() is not None)

    async def _start(self) -> None:
        access = Access(port=self.port, token=TOKEN)
        self._serving = StreamServer(self.origin.store)
        self._service = Service(
            self._serving, access, deliver=never, status=dict, fault=never, stop=never, view_token=VIEW_TOKEN,
            answers=lambda _: self.state is not None, report=self.report, cuts=self.cuts,
        )  # fmt: skip
        await self._service.start()
        self.port, self.address = self._service.port, self._service.address

    async def _stop(self) -> None:
        if self._service is not None:
            await self._service.close()
            self._serving.close()
            self._service = None

    def start(self) -> Replica:
        self.house.do(self._start())
        return self

    def stop(self) -> None:
        self.house.do(self._stop())

    def branch(self, first: int, upto: int, each: int = 2) -> None:
        """Whole tentative buckets behind what the branch has."""
        stream = self.origin.stream
        if stream.branch() is None:
            root = stream.create_branch(first * SECOND)
            self._branch = stream.branch_writer(id=root.id)
        note_worth(stream.folder, stream.definition, [Worth(b, 0.5, ("x",), 0.25, ("y",)) for b in range(first, upto)])
        for bucket in range(first, upto):
            rows = [(bucket + k / 100, -bucket * 1000 - k) for k in range(each)]
            self.origin.add(*rows, boundary=bucket + 1, writer=self._branch)

    def drop(self) -> None:
        self._branch.release(1)
        self.origin.stream.drop_branch()


class Scene:
    """Two replicas and a connection to both."""

    def __init__(self, root: Path, house: House, **options: Any) -> None:
        self.a, self.b = (Replica(house, root / name, **options).start() for name in ("a", "b"))

    def fill(self, first: int, upto: int) -> None:
        for replica in (self.a, self.b):
            replica.origin.fill(first, upto)

    def say(self, state: StreamState | None) -> None:
        self.a.state = self.b.state = state

    def connect(self, token: str = TOKEN) -> Connection:
        return holdfast.connect({"a": self.a.address, "b": self.b.address}, token=token)


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@pytest.fixture
def scene(tmp_path: Path, house: House) -> Iterator[Scene]:
    scene = Scene(tmp_path, house)
    yield scene
    scene.a.stop()
    scene.b.stop()


class Reading:
    """All that a subscriber has handed out, and what it amounts to."""

    def __init__(self, subscriber: Any) -> None:
        self.subscriber, self.rows = subscriber, list[Row]()
        self.stable: list[tuple[int, int]] = []
        self.tentative: list[int] = []

    def look(self) -> None:
        for batch in self.subscriber.poll():
            for row in self.subscriber.rows_of(batch):
                self._take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        if row.type is TupleType.INSERTION:
            assert not self.tentative, "a stable tuple must not come behind a tentative one"
            self.stable.append((row.id, row.values["n"]))
        elif row.type is TupleType.TENTATIVE:
            self.tentative.append(row.values["n"])
        elif row.type is TupleType.UNDO:
            assert self.tentative, "UNDO without anything to take back"
            assert row.id == (self.stable[-1][0] if self.stable else 0)
            self.tentative = []

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"it did not come true: {self.kinds()[-5:]}, {self.subscriber.reading()}"
            self.look()
            time.sleep(0.005)

    def kinds(self) -> list[str]:
        """The types in order, each run of equal ones once."""
        names = [row.type.name for row in self.rows]
        return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


@contextlib.contextmanager
def reading(scene: Scene, **options: Any) -> Iterator[Reading]:
    with scene.connect() as hosts, hosts.subscribe("s", **options) as subscriber:
        yield Reading(subscriber)


def expected(origin: Origin) -> list[tuple[int, int]]:
    return [(id, n) for _, id, _, n in origin.tuples()]


def test_a_client_gets_what_a_subscriber_beside_the_log_gets(scene: Scene) -> None:
    scene.fill(1, 20)
    local = list(scene.a.origin.stream.subscribe(boundaries=True).poll())
    beside = [row for batch in local for row in holdfast.Subscriber.rows_of(batch)]
    with reading(scene, boundaries=True) as client:
        client.until(lambda: client.subscriber.position_us == 20 * SECOND)
    tuples = [row for row in client.rows if row.type is TupleType.INSERTION]
    assert tuples == [row for row in beside if row.type is TupleType.INSERTION]
    assert client.rows[-1] == beside[-1], "the last boundary"


def test_a_client_goes_on_with_another_replica_at_the_next_tuple(scene: Scene) -> None:
    scene.fill(1, 6)
    with reading(scene, tentative=True) as client:
        client.until(lambda: len(client.stable) == 15)
        assert client.subscriber.reading() == ["a/main"]
        scene.a.stop()
        scene.fill(6, 12)
        client.until(lambda: client.subscriber.position_us == 12 * SECOND)
        assert client.subscriber.reading() == ["b/main"]
        scene.a.start()
        scene.b.stop()
        scene.fill(12, 20)
        client.until(lambda: client.subscriber.position_us == 20 * SECOND)
    assert client.stable == expected(scene.a.origin)
    assert client.kinds() == ["INSERTION"]


def test_a_client_that_is_cut_off_from_one_replica_reads_the_other(scene: Scene, house: House) -> None:
    scene.fill(1, 4)
    with reading(scene) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)

        async def cut() -> None:
            scene.a.cuts.cut("s")

        house.do(cut())
        scene.fill(4, 9)
        client.until(lambda: client.subscriber.position_us == 9 * SECOND)
        assert client.subscriber.reading() == ["b/main"]
    assert client.stable == expected(scene.b.origin)


def test_a_replica_whose_main_stands_still_is_left_for_one_that_moves(scene: Scene) -> None:
    scene.fill(1, 4)
    with reading(scene) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        scene.b.origin.fill(4, 9)
        client.until(lambda: client.subscriber.position_us == 9 * SECOND)
    assert client.stable == expected(scene.b.origin)


def test_tentative_tuples_are_undone_replaced_and_closed_across_a_switch(scene: Scene) -> None:
    scene.fill(1, 4)
    with reading(scene, tentative=True, worth=True) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        scene.say(UP_FAILURE)
        scene.a.branch(4, 6)
        client.until(lambda: len(client.tentative) == 4)
        worth = client.subscriber.worth(client.rows[-1].stime)
        assert worth is not None
        assert worth == Worth(worth.bucket, 0.5, ("x",), 0.25, ("y",)), "as the producer noted it"
        for row in client.rows:
            told = 0.5, 0.25, ["y"]
            values = [row.values[name] for name in ("worth", "worth_least", "worth_missing")]
            assert values == (list(told) if row.type is TupleType.TENTATIVE else [None] * 3)
        scene.a.stop()
        scene.b.branch(4, 8)
        client.until(lambda: len(client.tentative) == 8)
        scene.b.state = STABILIZATION
        scene.b.origin.fill(4, 8)
        client.until(lambda: client.subscriber.position_us == 8 * SECOND)
        scene.b.drop()
        scene.b.state = STABLE
        client.until(lambda: client.rows[-1].type is TupleType.REC_DONE)
        scene.b.origin.fill(8, 10)
        client.until(lambda: client.subscriber.position_us == 10 * SECOND)
    assert client.kinds() == ["INSERTION", "TENTATIVE", "UNDO", "INSERTION", "REC_DONE", "INSERTION"]
    tentative = [row.values["n"] for row in client.rows if row.type is TupleType.TENTATIVE]
    assert tentative == [-b * 1000 - k for b in range(4, 8) for k in range(2)], "each bucket once, whoever told it"
    assert client.stable == expected(scene.b.origin)


def test_a_second_failure_during_corrections_forces_rec_done_first(scene: Scene) -> None:
    scene.fill(1, 4)
    scene.b.stop()
    with reading(scene, tentative=True) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        scene.a.state = UP_FAILURE
        scene.a.branch(4, 8)
        client.until(lambda: len(client.tentative) == 8)
        scene.a.state = STABILIZATION
        scene.a.origin.fill(4, 6)
        client.until(lambda: client.subscriber.position_us == 6 * SECOND)
        scene.a.state = UP_FAILURE
        client.until(lambda: client.subscriber.reading() == ["a/branch"])
        scene.a.branch(8, 9)
        client.until(lambda: client.tentative)
        assert client.kinds() == ["INSERTION", "TENTATIVE", "UNDO", "INSERTION", "REC_DONE", "TENTATIVE"]
        scene.a.state = STABILIZATION
        scene.a.origin.fill(6, 9)
        client.until(lambda: client.subscriber.position_us == 9 * SECOND)
        scene.a.drop()
        scene.a.state = STABLE
        client.until(lambda: client.rows[-1].type is TupleType.REC_DONE)
    assert client.stable == expected(scene.a.origin)


def test_a_reader_of_main_alone_waits_and_sees_nothing_tentative(scene: Scene) -> None:
    scene.fill(1, 4)
    with reading(scene) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        scene.say(UP_FAILURE)
        scene.a.branch(4, 7)
        scene.b.origin.fill(4, 5)
        client.until(lambda: client.subscriber.position_us == 5 * SECOND)
        scene.a.origin.fill(4, 7)
        scene.a.drop()
        scene.a.state = STABLE
        client.until(lambda: client.subscriber.position_us == 7 * SECOND)
    assert client.kinds() == ["INSERTION"]
    assert client.stable == expected(scene.a.origin)


def test_a_replica_that_recovers_is_not_read(scene: Scene) -> None:
    scene.a.state = None
    scene.b.origin.fill(1, 4)
    with reading(scene) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        assert client.subscriber.reading() == ["b/main"]


def test_the_end_of_a_stream_ends_its_client(scene: Scene) -> None:
    scene.fill(1, 8)
    for replica in (scene.a, scene.b):
        replica.origin.writer.commit([], now_us=1, boundary_us=2**62, closed=True)
    with scene.connect() as hosts, hosts.subscribe("s", tentative=True) as subscriber:
        got = [(row.id, row.values["n"]) for row in subscriber.rows(timeout="60s")]
        assert subscriber.finished
    assert got == expected(scene.a.origin)


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [({"bucket": 5}, 5, 9), ({"start": 4.01, "end": 6.0}, 4, 5), ({"start": "live"}, 8, 9), ({}, 1, 9)],
    ids=["bucket", "times", "live", "beginning"],
)
def test_a_client_begins_and_ends_where_it_is_told(
    scene: Scene, options: dict[str, Any], first: int, last: int
) -> None:
    scene.fill(1, 8)
    with reading(scene, **options) as client:
        client.until(lambda: client.subscriber.reading() or client.subscriber.finished)
        scene.fill(8, 10)
        client.until(lambda: client.subscriber.finished or client.subscriber.position_us == 10 * SECOND)
    numbers = [n for _, n in client.stable]
    assert {n // 1000 for n in numbers} == {b for b in range(first, last + 1) if b % 7}
    if options.get("start") == 4.01:
        assert numbers[0] == 4001, "from the middle of a bucket"


def test_a_consumer_that_takes_nothing_does_not_fill_the_disk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """X4: whatever the producers had was mirrored into the temporary folder."""
    monkeypatch.setattr("holdfast.host.client.BYTES_MAX", 1 << 20)
    monkeypatch.setattr("holdfast.host.replica_log.SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = 60_000
    for origin in (scene.a.origin, scene.b.origin):
        for bucket in range(1, 20):
            stimes = pa.array(np.arange(rows) + bucket * SECOND, origin.definition.stored[0].type)
            columns = [stimes, pa.array(np.arange(rows) + bucket * rows)]
            events = pack(pa.RecordBatch.from_arrays(columns, schema=origin.definition.stored), origin.definition)
            origin.writer.commit(events, now_us=1, boundary_us=(bucket + 1) * SECOND)

    def on_disk() -> int:
        total = 0
        for path in tmp_path.glob("holdfast-client-*/**/*.seg"):
            with contextlib.suppress(FileNotFoundError):  # It has just been let go of.
                total += path.stat().st_size
        return total

    with scene.connect() as hosts, hosts.subscribe("s") as subscriber:
        deadline = time.monotonic() + 60
        while on_disk() <= 1 << 20:
            assert time.monotonic() < deadline, "nothing came"
            time.sleep(0.01)
        for _ in range(40):  # As long as all of it took to come before.
            assert on_disk() < 12 << 20
            time.sleep(0.05)
        found: list[pa.Array] = []
        for batch in subscriber.batches(timeout="60s"):
            found.append(batch.column("n"))
            assert on_disk() < 12 << 20
            if sum(map(len, found)) == 19 * rows:
                break
    assert np.array_equal(np.concatenate(found), np.arange(rows, 20 * rows))


def test_what_is_there_can_be_had_without_waiting_for_more(scene: Scene) -> None:
    scene.fill(1, 7)
    scene.say(UP_FAILURE)
    scene.a.branch(7, 9)
    with scene.connect() as hosts:
        assert hosts.last("s", 4) == (5, 2)
        with hosts.subscribe("s", tentative=True) as subscriber:
            rows = [row for batch in subscriber.present() for row in subscriber.rows_of(batch)]
    assert [row.values["n"] for row in rows if row.type is TupleType.INSERTION] == [n for _, n in expected(
        scene.a.origin)]  # fmt: skip
    assert [row.values["n"] for row in rows if row.type is TupleType.TENTATIVE] == [-7000, -7001, -8000, -8001]


def test_the_last_tuples_are_had_although_reports_lie_a_moment_behind_the_log(scene: Scene) -> None:
    scene.fill(1, 7)
    scene.a.behind_us = scene.b.behind_us = 4 * SECOND
    with scene.connect() as hosts:
        (bucket, _), (complete, _) = hosts.last("s", 4), hosts.last("s", 0)
        with hosts.subscribe("s", bucket=bucket) as subscriber:
            # The next report comes soon. Who goes by the first one may end with nothing.
            threading.Timer(0.3, lambda: [setattr(replica, "behind_us", 0) for replica in (scene.a, scene.b)]).start()
            batches = subscriber.present(until_us=complete * SECOND)
            assert sum(batch.num_rows for batch in batches) == 6


def test_a_client_waits_for_hosts_that_come_later_and_says_who_is_silent(scene: Scene) -> None:
    scene.fill(1, 4)
    scene.say(None)
    with scene.connect() as hosts, hosts.subscribe("s", bucket=1) as subscriber:
        with pytest.raises(PeerError, match="its replica recovers"):
            list(subscriber.present(timeout="300ms"))
        scene.say(STABLE)
        client = Reading(subscriber)
        client.until(lambda: subscriber.position_us == 4 * SECOND)
    scene.a.stop()
    scene.b.stop()
    with scene.connect() as hosts, pytest.raises(PeerError, match="nobody could say what stream 's' is"):
        hosts.subscribe("s", timeout="100ms")


def test_a_stream_that_nobody_has_and_a_token_that_is_wrong_are_said_at_once(scene: Scene) -> None:
    with scene.connect() as hosts, pytest.raises(UnknownStream, match="no host produces stream 't'; asked a, b"):
        hosts.subscribe("t")
    with scene.connect("x" * 20) as hosts, pytest.raises(UsageError, match="the token must be one of the hosts'"):
        hosts.subscribe("s")


def test_a_viewer_may_read_and_may_not_acknowledge(scene: Scene) -> None:
    scene.fill(1, 4)
    with scene.connect(VIEW_TOKEN) as hosts:
        client = Reading(hosts.subscribe("s"))
        client.until(lambda: len(client.stable) == 9)
        named = Reading(hosts.subscribe("s", name="dashboard"))
        with pytest.raises(UsageError, match="must be allowed to acknowledge"):
            named.until(lambda: False)


def test_what_a_named_client_has_not_acknowledged_stays_at_every_replica(tmp_path: Path, house: House) -> None:
    scene = Scene(tmp_path, house, segment_bytes=4096, retention=Retention(acknowledged=True))
    try:
        scene.fill(1, 100)
        streams = [replica.origin.stream for replica in (scene.a, scene.b)]
        with scene.connect() as hosts, hosts.subscribe("s", name="dashboard") as subscriber:
            client = Reading(subscriber)
            client.until(lambda: subscriber.position_us == 100 * SECOND)
            client.until(lambda: all("dashboard" in stream.acks() for stream in streams))
            assert [stream.retain().segments for stream in streams] == [0, 0]
            subscriber.ack()
            client.until(lambda: all(stream.acks()["dashboard"].until_us == 100 * SECOND for stream in streams))

            def is_shorter(origin: Origin) -> bool:
                with contextlib.suppress(Removed):  # It is on the way just now.
                    return len(origin.tuples()) < len(client.stable)
                return False

            client.until(lambda: all(is_shorter(replica.origin) for replica in (scene.a, scene.b)))
    finally:
        scene.a.stop()
        scene.b.stop()


def test_what_retention_has_removed_is_refused_or_passed_over_but_never_silently(tmp_path: Path, house: House) -> None:
    scene = Scene(tmp_path, house, segment_bytes=4096, retention=Retention(size_bytes=1))
    try:
        scene.fill(1, 100)
        for replica in (scene.a, scene.b):
            replica.origin.stream.retain()
            first_us = replica.origin.stream.reader().stime_min_us
            assert first_us is not None
            assert first_us > 2 * SECOND
        with reading(scene, bucket=1) as client, pytest.raises(Removed, match="are gone at the producer; start at"):
            client.until(lambda: False)
        with reading(scene, bucket=1, gaps="pass") as client:
            client.until(lambda: client.subscriber.position_us == 100 * SECOND)
        assert client.stable == expected(scene.a.origin)
        with reading(scene) as client:
            client.until(lambda: client.subscriber.position_us == 100 * SECOND)
            assert 2 * SECOND < client.subscriber.removed_us <= first_us, "it was not refused, so it can be told"
        assert client.stable == expected(scene.a.origin)
    finally:
        scene.a.stop()
        scene.b.stop()


def test_who_must_have_all_columns_is_refused_tuples_with_more_and_finds_the_host_that_knows_them(scene: Scene) -> None:
    """In main and in a branch. Another reader goes on with those that it knew."""
    scene.fill(1, 3)
    with (
        scene.connect() as hosts,
        hosts.subscribe("s", all_columns=True) as stable,
        hosts.subscribe("s", all_columns=True, tentative=True) as tentative,
        hosts.subscribe("s", tentative=True) as plain,
    ):
        readers = [Reading(subscriber) for subscriber in (stable, tentative, plain)]
        for client in readers:
            client.until(lambda client=client: client.subscriber.position_us == 3 * SECOND)  # type: ignore[misc]
        wide = scene.b.origin.store.add_columns("s", "n bigint, m bigint").definition

        def add(writer: Any, second: int) -> None:
            arrays = [pa.array([second * SECOND], wide.stored[0].type), pa.array([second]), pa.array([7])]
            batch = pa.RecordBatch.from_arrays(arrays, schema=wide.stored)
            writer.commit(pack(batch, wide), now_us=1, boundary_us=(second + 1) * SECOND)

        scene.say(UP_FAILURE)
        for replica in (scene.a, scene.b):
            replica.branch(3, 3)
            add(replica._branch, 3)
        with pytest.raises(ColumnsAdded, match="more columns since it was opened"):
            readers[1].until(lambda: False)
        readers[2].until(lambda: readers[2].tentative == [3])
        for replica in (scene.a, scene.b):
            add(replica.origin.writer, 3)
        with pytest.raises(ColumnsAdded, match="more columns since it was opened"):
            readers[0].until(lambda: False)
        readers[2].until(lambda: readers[2].stable[-1][1] == 3)
        assert hosts.definition("s").schema.names == ["n"], "the first host has not heard of it"
        assert hosts.definition("s", all_columns=True).schema.names == ["n", "m"]


def test_closing_a_connection_ends_a_consumer_that_waits_in_another_thread(scene: Scene) -> None:
    ended: list[BaseException] = []
    scene.fill(1, 3)
    connection = scene.connect()
    subscriber = connection.subscribe("s")

    def consume() -> None:
        try:
            list(subscriber.rows())
        except UsageError as error:
            ended.append(error)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    end = time.monotonic() + 60
    while not subscriber.reading():
        assert time.monotonic() < end
        time.sleep(0.005)
    connection.close()
    consumer.join(30)
    assert not consumer.is_alive()
    assert "this subscriber was closed" in str(ended[0])


def test_a_subscriber_leaves_nothing_behind(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    scene.fill(1, 4)
    before = threading.active_count()
    hosts = scene.connect()
    client = Reading(hosts.subscribe("s"))
    client.until(lambda: len(client.stable) == 9)
    assert list((tmp_path / "tmp").iterdir())
    hosts.close()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert threading.active_count() <= before
    with pytest.raises(UsageError, match="the connection is closed"):
        hosts.subscribe("s")


def test_a_client_resumes_at_another_replica_and_takes_back_what_it_held(scene: Scene) -> None:
    """D1 to D4, D15: the position that one replica's tuples gave holds at the other, tentative ones included."""
    scene.fill(1, 4)
    with reading(scene, tentative=True) as client:
        client.until(lambda: client.subscriber.position_us == 4 * SECOND)
        scene.say(UP_FAILURE)
        scene.a.branch(4, 6)
        client.until(lambda: len(client.tentative) == 4)
        position = client.subscriber.position
    scene.a.stop()
    with reading(scene, tentative=True, after=position) as again:
        again.stable, again.tentative = list(client.stable), list(client.tentative)
        scene.b.branch(4, 7)
        again.until(lambda: len(again.tentative) == 6)
        scene.b.state = STABILIZATION
        scene.b.origin.fill(4, 7)
        again.until(lambda: again.subscriber.position_us == 7 * SECOND)
        scene.b.drop()
        scene.b.state = STABLE
        again.until(lambda: again.rows[-1].type is TupleType.REC_DONE)
        assert again.rows[0].type is TupleType.UNDO, "first of all"
        assert again.stable == expected(scene.b.origin)
        position = again.subscriber.position
    local = [*scene.b.origin.stream.subscribe(tentative=True, after=position).poll()]
    assert local == [], "and beside the log"


def test_a_client_resumes_within_a_bucket(scene: Scene) -> None:
    scene.fill(1, 5)
    with scene.connect() as hosts, hosts.subscribe("s") as subscriber:
        positions = []
        for row in subscriber.rows(timeout="30s"):
            positions.append((row.id, row.position))
            if len(positions) == 12:
                break
    for id, position in positions[3:8:2]:
        with reading(scene, after=position) as again:
            again.until(lambda: again.subscriber.position_us == 5 * SECOND)
            assert [row.id for row in again.rows] == list(range(id + 1, 13))


def test_a_named_client_resumes_behind_what_any_host_was_told(scene: Scene) -> None:
    scene.fill(1, 6)
    with scene.connect() as hosts, hosts.subscribe("s", name="db", resume=True) as subscriber:
        client = Reading(subscriber)
        client.until(lambda: client.subscriber.position_us == 6 * SECOND)
        subscriber.ack()
        client.until(lambda: "db" in scene.b.origin.stream.acks() and scene.b.origin.stream.acks()["db"].position)
    scene.a.stop()
    scene.fill(6, 8)
    with scene.connect() as hosts, hosts.subscribe("s", name="db", resume=True) as subscriber:
        again = Reading(subscriber)
        again.until(lambda: again.subscriber.position_us == 8 * SECOND)
    assert client.stable + again.stable == expected(scene.b.origin)
