"""Streams that are persisted only while a reader is away or behind, or never (000 §3.1)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

import holdfast
from holdfast.clock import pause
from holdfast.model.errors import CorruptLog, Removed, StorageError, UsageError
from holdfast.stream import manifest as manifest_module
from holdfast.stream import writer as writer_module
from holdfast.stream.acks import acknowledge
from holdfast.stream.checking.finding import Severity
from holdfast.stream.checking.repair import repair
from holdfast.stream.checking.verify import verify
from holdfast.stream.definition import MEMORY_FORMAT, Definition
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.holes import read_holes
from holdfast.stream.losses import read_losses
from holdfast.stream.manifest import load_manifest
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import StreamStore

SECOND = 1_000_000
WAIT_S = 60


class CountingDisk(Disk):
    """How often somebody waited for the platter, by file."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.written: list[tuple[str, int, int]] = []
        self.fails = self.full = False

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        if self.full:
            raise StorageError(f"could not write {path}")
        self.written.append((path.name, offset, sum(map(len, parts))))
        return super().write(fd, path, offset, parts)

    def sync(self, fd: int, path: Path) -> None:
        if self.fails and path.suffix == ".seg":
            raise StorageError(f"could not make durable {path}")
        self.synced.append(path.name)
        super().sync(fd, path)

    @property
    def segments(self) -> int:
        return sum(name.endswith(".seg") for name in self.synced)


class Ticking:
    """A clock of the test's own."""

    def __init__(self) -> None:
        self.us = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.us


class Bench:
    """One stream whose time, disk and readers the test holds in its hands. `step` sends one row, a second later."""

    def __init__(self, root: Path, persist: Any = "on_demand", **options: Any) -> None:
        self.disk, self.clock, self.sent = CountingDisk(), Ticking(), 0
        self.store = StreamStore(root, disk=self.disk, clock=self.clock)
        self.stream = self.store.create("s", "n bigint, payload string", bucket="1s", persist=persist, **options)
        self.producer = self.open()

    def open(self) -> holdfast.Producer:
        return self.stream.producer(steady=self.clock, boundary_every="1h")

    def step(self, payload: str = "") -> None:
        self.clock.us += SECOND
        self.producer.send({"n": self.sent, "payload": payload})
        self.sent += 1

    @property
    def in_memory(self) -> bool:
        return self.producer.writer.in_memory


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    with contextlib.suppress(StorageError):
        found.producer.close(end=False)


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The machine stops and is started again."""

    def restart() -> None:
        for module in (manifest_module, sys.modules["holdfast.stream.memory"]):
            monkeypatch.setattr(module, "boot_id", lambda: "another boot")

    return restart


def take(subscriber: holdfast.Subscriber) -> list[int]:
    """What is there, acknowledged."""
    found = [n for batch in subscriber.poll() for n in batch.column("n").to_pylist()]
    subscriber.ack()
    return found


def crash(bench: Bench) -> None:
    """The producer's process ends without a word: its files are closed, nothing is let go of."""
    bench.producer._ticker.stop()
    bench.producer.writer._close_files()


# -- on demand -------------------------------------------------------------------------------------------------------


def test_nobody_waits_for_the_disk_while_every_known_reader_is_there(bench: Bench) -> None:
    with bench.stream.subscribe(name="db") as subscriber:
        bench.step()
        before, got = bench.disk.segments, []
        for _ in range(20):
            bench.step()
            got += take(subscriber)
        assert bench.in_memory
        assert bench.disk.segments == before
        assert got == list(range(20))


def test_a_stream_that_nobody_is_known_to_read_is_persisted(bench: Bench) -> None:
    with bench.stream.subscribe():
        before = bench.disk.segments
        bench.step()
        assert not bench.in_memory
        assert bench.disk.segments > before


def test_all_that_a_reader_has_not_acknowledged_is_durable_once_it_went_away(bench: Bench) -> None:
    subscriber = bench.stream.subscribe(name="db")
    for _ in range(5):
        bench.step()
    assert bench.in_memory
    subscriber.close()
    bench.step()
    assert not bench.in_memory
    manifest = load_manifest(bench.stream.folder / "main")
    assert manifest is not None
    assert {s.lease for s in manifest.segments} == {None}
    assert {s.name for s in manifest.segments} <= set(bench.disk.synced)
    before = bench.disk.segments
    bench.step()
    assert bench.disk.segments == before + 1  # And so is everything from now on, before `send` returns.


def test_a_reader_that_went_away_in_silence_is_noticed_without_a_tuple(bench: Bench) -> None:
    subscriber = bench.stream.subscribe(name="db")
    bench.step()
    assert bench.in_memory
    subscriber.close()
    bench.clock.us += 100_000
    bench.producer.tick()  # A sign of life, no bucket has ended.
    assert not bench.in_memory


def test_a_reader_that_caught_up_is_served_from_memory_again_without_a_gap_or_a_repeat(bench: Bench) -> None:
    """L6: history, spilled and live."""
    subscriber = bench.stream.subscribe(name="db")
    for _ in range(3):
        bench.step()
    got = take(subscriber)
    subscriber.close()
    for _ in range(3):
        bench.step()
    assert not bench.in_memory
    subscriber = bench.stream.subscribe(name="db", resume=True)
    for _ in range(3):
        bench.step()
        got += take(subscriber)
    assert bench.in_memory
    bench.producer.close()
    got += take(subscriber)
    assert got == list(range(9))


def test_a_reader_that_falls_behind_has_the_rest_in_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_bytes=64 << 10)
    with bench.stream.subscribe(name="slow") as subscriber:
        bench.step()
        assert bench.in_memory
        while bench.in_memory:
            bench.step("x" * 4096)
            assert bench.sent < 100
        assert bench.producer.writer.bytes_since(-(2**62)) <= (64 << 10) + 8192 + 4096
        before = bench.disk.segments
        bench.step()
        assert bench.disk.segments > before
        got = take(subscriber)
        bench.step()
        assert bench.in_memory
        assert got == list(range(bench.sent - 2))
    bench.producer.close()


def test_positions_and_ids_are_those_of_a_stream_that_is_always_persisted(tmp_path: Path) -> None:
    rows = {}
    for persist in ("always", "on_demand", "never"):
        bench = Bench(tmp_path / persist, persist)
        with bench.stream.subscribe(name="db") as subscriber:
            for _ in range(5):
                bench.step()
            bench.producer.close()
            rows[persist] = [(r.id, r.stime, r.values, r.position) for r in subscriber.rows(timeout=0)]
    assert len(rows["always"]) == 5
    assert rows["on_demand"] == rows["never"] == rows["always"]


def test_what_every_reader_has_acknowledged_is_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_bytes=32 << 10)
    with bench.stream.subscribe(name="a") as a, bench.stream.subscribe(name="b") as b:
        for _ in range(60):
            bench.step("x" * 1024)
            take(a), take(b)
        assert bench.in_memory
        assert bench.producer.writer.size_bytes < 32 << 10
    bench.producer.close()


def test_a_reader_over_the_network_is_there_while_it_acknowledges(bench: Bench) -> None:
    acknowledge(bench.stream.folder, "far", 0, bench.clock(), Disk())
    bench.clock.us += SECOND
    bench.producer.send({"n": 0})
    assert bench.in_memory
    bench.clock.us += 5 * SECOND
    bench.producer.send({"n": 1})
    assert not bench.in_memory


def test_a_disk_that_fails_while_a_reader_is_away_fails_the_send_and_loses_nothing(bench: Bench) -> None:
    """L9: what a failed sync may have dropped is written once more."""
    subscriber = bench.stream.subscribe(name="db")
    for _ in range(3):
        bench.step()
    subscriber.close()
    bench.disk.fails = True
    with pytest.raises(StorageError):
        bench.step()
    bench.disk.fails = False
    bench.step()
    assert not bench.in_memory
    assert take(bench.stream.subscribe(name="db", resume=True)) == [0, 1, 2]


def test_letting_go_makes_everything_durable(bench: Bench) -> None:
    with bench.stream.subscribe(name="db"):
        for _ in range(3):
            bench.step()
        assert bench.in_memory
        bench.producer.close(end=False)
    manifest = load_manifest(bench.stream.folder / "main")
    assert manifest is not None
    assert {s.lease for s in manifest.segments} == {None}


def test_letting_go_says_that_it_could_not_make_everything_durable(bench: Bench) -> None:
    with bench.stream.subscribe(name="db") as subscriber:
        for _ in range(3):
            bench.step()
        bench.disk.fails = True
        with pytest.raises(StorageError, match="could not make durable"):
            bench.producer.close(end=False)
        bench.disk.fails = False
        bench.producer = bench.open()  # The files were closed all the same.
        assert take(subscriber) == [0, 1]


def test_letting_go_after_a_failed_send_makes_durable_what_was_accepted_before(bench: Bench) -> None:
    with bench.stream.subscribe(name="db"):
        for _ in range(3):
            bench.step()
        bench.disk.full = True
        with pytest.raises(StorageError):
            bench.step()
        bench.disk.full = False
        bench.producer.close(end=False)
    manifest = load_manifest(bench.stream.folder / "main")
    assert manifest is not None
    assert {s.lease for s in manifest.segments} == {None}
    assert {s.name for s in manifest.segments} <= set(bench.disk.synced)


def test_what_a_dead_producer_kept_in_memory_is_written_once_more_before_it_counts_as_durable(bench: Bench) -> None:
    """L9: a sync of its own may have failed, and another one would not say so again."""
    with bench.stream.subscribe(name="db"):
        for _ in range(3):
            bench.step()
        assert bench.in_memory
        name, length = bench.producer.writer._name, bench.producer.writer._offset
        crash(bench)
        bench.disk.written.clear()
        bench.producer = bench.open()
        assert (name, 0, length) in bench.disk.written


# -- killed ----------------------------------------------------------------------------------------------------------


def _spawn(script: str, *args: object) -> subprocess.Popen[str]:
    path = Path(__file__).with_name(script)
    return subprocess.Popen([sys.executable, str(path), *map(str, args)], stdout=subprocess.PIPE, text=True)


class Consumer:
    """A consumer in a process of its own; `took` are the ids that it has printed."""

    def __init__(self, root: Path, took: set[int]) -> None:
        self.process, self._took = _spawn("consumer.py", root, "s", "db"), took
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "there\n"
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # Cut off in the middle of a number is not taken.
                self._took.update(int(word) for word in line.split() if word.isdigit())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.join()

    def join(self) -> int:
        self._thread.join()
        return self.process.wait()


def test_a_killed_consumer_finds_everything_behind_what_it_acknowledged(tmp_path: Path) -> None:
    """Real processes: killed three times while it reads, it misses no tuple (L6)."""
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="20ms", persist="on_demand")
    took: set[int] = set()
    sent = 0
    with stream.producer() as producer:

        def send_until(done: Callable[[], bool]) -> None:
            nonlocal sent
            deadline = time.monotonic() + WAIT_S
            while not done():
                assert time.monotonic() < deadline, (len(took), sent, producer.writer.in_memory)
                sent += producer.send({"n": sent}).rows
                pause(2_000)

        for _ in range(3):
            consumer, goal = Consumer(tmp_path, took), sent + 20
            send_until(lambda goal=goal: len(took) >= goal and producer.writer.in_memory)  # type: ignore[misc]
            consumer.kill()
            send_until(lambda: not producer.writer.in_memory)
        consumer = Consumer(tmp_path, took)
    assert consumer.join() == 0
    assert took == set(range(1, sent + 1))


def test_a_killed_producer_loses_nothing_that_was_in_memory(tmp_path: Path) -> None:
    """Its machine goes on, and so does the page cache."""
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="20ms", persist="on_demand")
    with stream.subscribe(name="db") as subscriber:
        process = _spawn("producer_process.py", tmp_path, "s", 0)
        assert process.stdout is not None
        sent, where = 0, ""
        while where != "memory" or sent < 200:
            number, where = process.stdout.readline().split()
            sent = int(number)
        process.send_signal(signal.SIGKILL)
        for line in process.stdout.read().splitlines():
            if len(words := line.split()) == 2:
                sent = int(words[0])
        process.wait()
        with stream.producer():
            pass
        got = take(subscriber)
    assert got[: sent + 1] == list(range(sent + 1))
    assert len(got) - sent - 1 in (0, 1)  # One may have been under way.
    assert (read_holes(stream.folder), read_losses(stream.folder / "main")) == ((), ())


# -- the machine stops -----------------------------------------------------------------------------------------------


def _stopped(bench: Bench, left: int | None) -> tuple[int, int]:
    """Five tuples with the reader, five it has not seen; then the machine stops and keeps `left` bytes of the segment
    (None: not even its name). The last id and boundary that anybody saw."""
    state = bench.producer.writer.state
    path = bench.producer.writer._path
    crash(bench)
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    return state.next_tuple_id, state.boundary_us


@pytest.mark.parametrize("left", [None, 0, 400, 1500])
def test_what_a_stopped_machine_lost_is_named_with_its_range(
    bench: Bench, another_boot: Callable[[], None], left: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = bench.stream.subscribe(name="db")
    bench.step()
    got = []
    for _ in range(5):
        bench.step()
        got += take(subscriber)
    for _ in range(5):
        bench.step()
    assert bench.in_memory
    position = subscriber.position
    next_id, boundary = _stopped(bench, left)
    subscriber.close()
    another_boot()
    with pytest.raises(StorageError, match="not settled yet; open it for writing"):
        bench.stream.subscribe()
    with pytest.raises(StorageError, match="open the stream for writing first"):
        repair(bench.stream.folder, now_us=bench.clock(), apply=True, drop_damaged=True)
    (finding,) = [f for f in verify(bench.stream.folder) if f.severity > Severity.NOTE]
    assert "the machine stopped" in finding.what
    bench.clock.us += 60 * SECOND
    bench.producer = bench.open()
    (loss,) = read_losses(bench.stream.folder / "main")
    (hole,) = read_holes(bench.stream.folder)
    assert loss.id_first <= next_id <= loss.id_next
    assert loss.stime_min_us is not None
    assert loss.stime_max_us is not None
    assert loss.stime_min_us <= boundary <= loss.stime_max_us
    assert f"tuple ids from {loss.id_first} on, is lost" in hole.why
    assert "machine stopped" in caplog.text
    # Nothing is given out twice, and no boundary is taken back (D10).
    assert bench.producer.writer.state.next_tuple_id >= next_id
    assert bench.producer.boundary_us >= boundary
    with bench.stream.subscribe(name="db", after=position) as subscriber:
        bench.step()
        bench.clock.us += 2 * SECOND
        bench.producer.advance(bench.clock())
        rows = list(subscriber.rows(timeout=0))
        assert [r.values["n"] for r in rows if r.values["n"] > 10] == [11]
        assert rows[-1].id >= next_id
        assert subscriber.holes == [hole]
    bench.producer.close()
    assert [f for f in verify(bench.stream.folder) if f.severity > Severity.NOTE] == []


def test_a_reader_of_another_machine_is_told_that_a_living_writer_keeps_tuples_in_memory(
    bench: Bench, another_boot: Callable[[], None]
) -> None:
    """It could wait for ever: nothing that this writer does would settle them."""
    with bench.stream.subscribe(name="db"):
        bench.step()
        assert bench.in_memory
        another_boot()
        with pytest.raises(StorageError, match="in the memory of another machine or container; read it there"):
            bench.stream.subscribe()


def test_a_reader_waits_for_a_successor_that_is_about_to_settle(
    bench: Bench, another_boot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.stream.subscribe(name="db"):
        for _ in range(3):
            bench.step()
    _stopped(bench, 700)
    another_boot()
    settled = writer_module.settle

    def looked_at(*given: Any) -> Any:
        with bench.stream.subscribe() as subscriber:
            assert list(subscriber.poll()) == []
        return settled(*given)

    monkeypatch.setattr(writer_module, "settle", looked_at)
    bench.producer = bench.open()
    assert len(read_losses(bench.stream.folder / "main")) == 1


def test_processes_of_a_system_without_a_boot_id_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by their numbers: the first process of a container has the same one after every start."""

    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert manifest_module.boot_id.__wrapped__() != manifest_module.boot_id.__wrapped__()


def test_settling_twice_comes_to_the_same_end(bench: Bench, another_boot: Callable[[], None]) -> None:
    with bench.stream.subscribe(name="db"):
        for _ in range(5):
            bench.step()
    _stopped(bench, 700)
    another_boot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdfast.stream.writer.LogWriter, "_begin_segment", _cut)
        with pytest.raises(Stop):
            bench.open()
    assert len(read_losses(bench.stream.folder / "main")) == 1
    bench.producer = bench.open()
    assert len(read_losses(bench.stream.folder / "main")) == len(read_holes(bench.stream.folder)) == 1


class Stop(BaseException):
    """The machine stops here, too."""


def _cut(*_: object) -> None:
    raise Stop


def test_sequence_numbers_of_a_source_go_back_to_what_is_left(bench: Bench, another_boot: Callable[[], None]) -> None:
    """So a source that has them sends again what was lost."""
    with bench.stream.subscribe(name="db"):
        for n in range(5):
            bench.clock.us += SECOND
            bench.producer.send({"n": n}, seq=n)
            if n == 1:
                left = bench.producer.writer._offset
        assert bench.in_memory
    _stopped(bench, left)
    another_boot()
    bench.producer = bench.open()
    assert bench.producer.last_seq == 1


# -- never -----------------------------------------------------------------------------------------------------------


def test_never_waits_for_no_disk_and_holds_no_more_than_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "never", memory_bytes=64 << 10)
    with bench.stream.subscribe(name="db"):
        bench.step()
        before = bench.disk.segments
        for _ in range(100):
            bench.step("x" * 2048)
        assert bench.in_memory
        assert bench.disk.segments == before
        assert bench.producer.writer.size_bytes <= (64 << 10) + (8 << 10) + 4096
    bench.producer.close()


@pytest.mark.parametrize("first", [0, 3])
def test_a_reader_too_slow_for_a_stream_that_is_never_persisted_is_told(tmp_path: Path, first: int) -> None:
    """And is not handed the rest as if nothing were missing (D14)."""
    bench = Bench(tmp_path, "never", memory_bytes=64 << 10)
    with bench.stream.subscribe(name="db") as subscriber:
        for _ in range(first):
            bench.step()
        assert take(subscriber) == list(range(first))[:-1]
        for _ in range(100):
            bench.step("x" * 2048)
        with pytest.raises(Removed, match=r"tuples before .* were removed"):
            take(subscriber)
    bench.producer.close()


def test_a_reader_that_keeps_up_with_a_stream_that_is_never_persisted_has_everything(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "never", memory_bytes=64 << 10)
    got = []
    with bench.stream.subscribe(name="db") as subscriber:
        for _ in range(100):
            bench.step("x" * 2048)
            got += take(subscriber)
        bench.producer.close()
        assert got + take(subscriber) == list(range(100))


# -- declared --------------------------------------------------------------------------------------------------------


def test_an_older_version_refuses_a_stream_that_is_not_always_persisted(bench: Bench) -> None:
    class OlderDefinition(Definition):
        FORMATS = (FORMAT_VERSION,)  # type: ignore[misc]

    raw = (bench.stream.folder / "stream").read_bytes()
    assert unseal(raw, Definition, "").format == MEMORY_FORMAT
    with pytest.raises(CorruptLog, match="another format than 1; upgrade Holdfast"):
        unseal(raw, OlderDefinition, "")


def test_a_definition_without_the_word_is_always_persisted(tmp_path: Path) -> None:
    definition = holdfast.open(tmp_path).create("s", "n bigint").definition
    assert (definition.persist, definition.format) == ("always", FORMAT_VERSION)
    older = msgspec.json.decode(seal(definition).rpartition(b"\n}")[0] + b"\n}")
    del older["persist"], older["memory_bytes"]
    text = msgspec.json.encode(older)
    assert unseal(text + b"\n%08x\n" % google_crc32c.value(text), Definition, "") == definition


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"persist": "sometimes"}, "persist must be one of always, on_demand, never; got 'sometimes'"),
        ({"persist": "never", "bound": holdfast.Bound(1 << 20)}, "retention and bound must not be set"),
        ({"persist": "on_demand", "retention": holdfast.Retention(age_us=1)}, "retention and bound must not be set"),
        ({"persist": "on_demand", "memory_bytes": 1000}, "memory_bytes must be 32768 or more; got 1000"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        holdfast.open(tmp_path).create("s", "n bigint", **options)


def test_who_needs_replay_refuses_a_stream_that_cannot_give_it(bench: Bench) -> None:
    said = "node n, which reads it, must find every tuple of stream s again .* create it with persist='always'"
    with pytest.raises(UsageError, match=said):
        bench.stream.definition.require_replay("node n, which reads it,")


def test_the_retention_of_such_a_stream_stays_as_it_is(bench: Bench) -> None:
    with pytest.raises(UsageError, match="its retention must stay as it is"):
        bench.store.change_retention("s", holdfast.Retention(age_us=1))
