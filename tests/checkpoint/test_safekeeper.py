"""The SafeKeeper's promises: bounded, asynchronous, honest about what is durable (C7, C8; 002 §3.1–3.2)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.histogram import Histogram
from holdfast.checkpoint.pending import Pending, WhenFull
from holdfast.checkpoint.safekeeper import Outcome, Result, SafeKeeper
from holdfast.checkpoint.store import Entry, Saved
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.model.errors import StorageError, UsageError
from holdfast.stream.disk import Disk
from tests.checkpoint.servers import RedisServer


class Gated(MemoryStore):
    """A store that writes only while its gate is open, and remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked = threading.Event(), threading.Event()
        self.written: list[Entry] = []

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self.asked.set()
        assert self.gate.wait(30)
        self.written += entries
        return super()._write(entries)


def test_save_returns_before_the_store_answers_and_durable_is_said_only_afterwards() -> None:
    """C8."""
    store, results = Gated(), []
    keeper = SafeKeeper(store, on_result=results.append)
    keeper.save(b"k", 1, lambda: b"state")
    assert store.asked.wait(30)
    assert results == []
    assert keeper.status().outcomes["durable"] == 0
    store.gate.set()
    assert keeper.flush(30)
    assert [(r.key, r.version, r.outcome) for r in results] == [(b"k", 1, Outcome.DURABLE)]
    assert store.get(b"k") == Saved(1, b"state")
    keeper.close()


def test_a_full_queue_drops_the_oldest_counts_it_and_says_so() -> None:
    """002 §3.2: the newest states are kept."""
    store, results = Gated(), []
    keeper = SafeKeeper(store, capacity=3, when_full="drop_oldest", on_result=results.append)
    keeper.save(b"in hand", 1, b"")
    assert store.asked.wait(30)
    for i in range(8):
        keeper.save(b"k%d" % i, 1, b"")
    assert [r.key for r in results if r.outcome is Outcome.DROPPED] == [b"k%d" % i for i in range(5)]
    store.gate.set()
    assert keeper.flush(30)
    assert [e.key for e in store.written] == [b"in hand", b"k5", b"k6", b"k7"]
    assert keeper.status().outcomes == {"durable": 4, "superseded": 0, "dropped": 5, "failed": 0}
    keeper.close()


def test_back_pressure_makes_the_caller_wait_and_loses_nothing() -> None:
    store = Gated()
    keeper = SafeKeeper(store, capacity=2, when_full="wait")
    done = threading.Event()

    def save_all() -> None:
        for i in range(20):
            keeper.save(b"k%d" % i, 1, b"")
        done.set()

    threading.Thread(target=save_all, daemon=True).start()
    assert store.asked.wait(30)
    assert not done.is_set()
    store.gate.set()
    assert done.wait(30)
    assert keeper.flush(30)
    assert keeper.status().outcomes["durable"] == 20
    keeper.close()


def test_a_newer_state_takes_the_place_of_one_that_waits_and_an_older_one_never_does() -> None:
    store, results = Gated(), []
    keeper = SafeKeeper(store, on_result=results.append)
    keeper.save(b"in hand", 1, b"")
    assert store.asked.wait(30)
    for version in (5, 7, 6):
        keeper.save(b"k", version, b"%d" % version)
    store.gate.set()
    assert keeper.flush(30)
    assert store.get(b"k") == Saved(7, b"7")
    assert sorted(r.version for r in results if r.outcome is Outcome.SUPERSEDED) == [5, 6]
    keeper.save(b"k", 3, b"3")  # Nothing waits any more: now the store refuses it.
    assert keeper.flush(30)
    assert store.get(b"k") == Saved(7, b"7")
    assert keeper.status().outcomes["superseded"] == 3
    keeper.close()


def test_a_state_that_cannot_be_made_bytes_fails_alone() -> None:
    results: list[Result] = []
    keeper = SafeKeeper(MemoryStore(), on_result=results.append)
    keeper.save(b"bad", 1, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    keeper.save(b"worse", 1, lambda: "text")  # type: ignore[arg-type,return-value]
    keeper.save(b"good", 1, lambda: b"x")
    assert keeper.flush(30)
    assert {r.key: r.outcome for r in results} == {
        b"bad": Outcome.FAILED, b"worse": Outcome.FAILED, b"good": Outcome.DURABLE,
    }  # fmt: skip
    assert isinstance(results[0].error, ZeroDivisionError)
    keeper.close()


@pytest.mark.parametrize("bad", [(1, 2), ("text",), None, bytearray(b"x")])
def test_what_no_store_can_keep_fails_alone_and_nobody_waits_for_it(bad: Any) -> None:
    results: list[Result] = []
    keeper = SafeKeeper(MemoryStore(), on_result=results.append)
    keeper.save(b"later", 1, lambda: bad)
    keeper.save(b"now", 1, bad)
    keeper.save(b"good", 1, lambda: b"x")
    keeper.save(b"also", 1, b"x")
    assert keeper.flush(30)
    assert {r.key: r.outcome for r in results} == {
        b"later": Outcome.FAILED, b"now": Outcome.FAILED, b"good": Outcome.DURABLE, b"also": Outcome.DURABLE,
    }  # fmt: skip
    keeper.close()


@pytest.mark.parametrize("when_full", ["drop_oldest", "wait"])
def test_a_server_killed_under_load_is_found_again_and_every_result_is_told(
    when_full: WhenFull, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path)
    results: list[Result] = []
    keeper = SafeKeeper(RedisStore(server.address), capacity=8, when_full=when_full, on_result=results.append)
    stop, sent, slowest = threading.Event(), [0], [0.0]

    def stream() -> None:
        while not stop.is_set():
            begun = time.perf_counter()
            sent[0] += 1
            keeper.save(b"key-%d" % (sent[0] % 50), sent[0], lambda: b"x" * 200)
            slowest[0] = max(slowest[0], time.perf_counter() - begun)
            time.sleep(0.001)

    thread = threading.Thread(target=stream)
    thread.start()
    _until(lambda: keeper.status().outcomes["durable"] > 50)
    server.kill()
    _until(lambda: keeper.status().store_problem is not None and keeper.status().retries > 1)
    if when_full == "drop_oldest":
        before = sent[0]
        _until(lambda: sent[0] > before + 100)  # The stream goes on.
        assert keeper.status().outcomes["dropped"] > 0
    server.start()
    reached = keeper.status().outcomes["durable"]
    _until(lambda: keeper.status().outcomes["durable"] > reached + 50)
    stop.set()
    thread.join()
    assert keeper.flush(30)
    status = keeper.status()
    assert status.store_problem is None
    assert sum(status.outcomes.values()) == sent[0] == len(results)
    if when_full == "wait":
        assert status.outcomes["dropped"] == 0
    newest = {r.key: r.version for r in sorted(results, key=lambda r: r.version) if r.outcome is Outcome.DURABLE}
    with RedisStore(server.address) as store:
        assert {k: s.version for k, s in store.get_many(newest).items()} == newest
    keeper.close()
    server.stop()


def test_a_store_that_gave_up_on_its_disk_is_opened_anew(tmp_path: Path) -> None:
    """L9: after a failed sync nothing is acknowledged on that file; a new opening goes on from what is whole."""

    class Failing(Disk):
        fail = False

        def sync(self, fd: int, path: Path) -> None:
            if self.fail:
                self.fail = False
                raise StorageError("could not make durable: the disk reports errors")
            super().sync(fd, path)

    disk = Failing()
    keeper = SafeKeeper(lambda: LogStore(tmp_path, disk=disk))
    keeper.save(b"a", 1, b"1")
    assert keeper.flush(30)
    disk.fail = True
    keeper.save(b"a", 2, b"2")
    assert keeper.flush(30)
    assert keeper.status().outcomes["durable"] == 2
    keeper.close()
    with LogStore(tmp_path) as store:
        assert store.get(b"a") == Saved(2, b"2")


def test_closing_without_a_store_to_reach_counts_what_is_left_as_dropped(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    keeper = SafeKeeper(RedisStore(server.address))
    server.kill()
    keeper.save(b"k", 1, b"x")
    keeper.close(patience_s=0.2)
    assert keeper.status().outcomes == {"durable": 0, "superseded": 0, "dropped": 1, "failed": 0}


class Away(MemoryStore):
    """A store that cannot be reached."""

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        raise StorageError("away")


@pytest.mark.parametrize("when_full", ["drop_oldest", "wait"])
@pytest.mark.parametrize("made", [True, False])
def test_closing_ends_every_checkpoint_that_waits_however_many_they_are(when_full: WhenFull, made: bool) -> None:
    results: list[Result] = []
    keeper = SafeKeeper(Away(), capacity=1000, when_full=when_full, on_result=results.append)
    state = b"x" if made else (lambda: b"x")
    keeper.save_many([(b"k%d" % i, 1, state) for i in range(900)])
    waiter: list[list[Result]] = []
    exact = threading.Thread(target=lambda: waiter.append(keeper.save_all([(b"e%d" % i, 1, state) for i in range(90)])))
    exact.start()
    _until(lambda: keeper.status().waiting > 600)
    keeper.close(patience_s=0.05)
    keeper.save(b"late", 1, state)
    assert keeper.flush(30)
    exact.join(30)
    assert [len(told) for told in waiter] == [90]
    assert keeper.status().outcomes == {"durable": 0, "superseded": 0, "dropped": 991, "failed": 0}
    assert len({r.key for r in results}) == len(results) == 991


def test_what_waits_behind_a_slow_store_keeps_no_memory_but_its_own() -> None:
    """X4: a view keeps all that it is a view of; a bytearray refuses to grow while there is one."""
    goes_on = threading.Event()

    class Slow(MemoryStore):
        def _write(self, entries: Sequence[Entry]) -> list[bool]:
            goes_on.wait(30)
            return super()._write(entries)

    def grows(memory: bytearray) -> bool:
        try:
            memory.append(0)
        except BufferError:
            return False
        return True

    keeper, states = SafeKeeper(Slow()), [bytearray(b"state-%d..." % i) for i in range(6)]
    for i, memory in enumerate(states):
        keeper.save(b"k%d" % i, 1, lambda memory=memory: (memoryview(memory)[:7],))  # type: ignore[misc]
        _until(lambda: keeper.status().serialising.times == i + 1)  # noqa: B023
        _until(lambda: i > 0 or keeper.status().waiting == 0)  # noqa: B023
    _until(lambda: grows(states[5]))
    assert [grows(memory) for memory in states] == [False, False, True, True, True, True]
    goes_on.set()
    assert keeper.flush(30)
    _until(lambda: grows(states[0]) and grows(states[1]))
    assert keeper.store.get_many(b"k%d" % i for i in range(6)) == {
        b"k%d" % i: Saved(1, b"state-%d" % i) for i in range(6)
    }
    keeper.close()


def test_a_store_with_a_fault_of_its_own_fails_what_it_was_given_and_is_used_on() -> None:
    class Faulty(MemoryStore):
        def _write(self, entries: Sequence[Entry]) -> list[bool]:
            if any(entry.value == b"bad" for entry in entries):
                raise ValueError("not JSON")
            return super()._write(entries)

    keeper = SafeKeeper(Faulty())
    (told,) = keeper.save_all([(b"a", 1, b"bad")])
    assert (told.outcome, str(told.error)) == (Outcome.FAILED, "not JSON")
    assert [r.outcome for r in keeper.save_all([(b"a", 2, b"good")])] == [Outcome.DURABLE]
    keeper.close()


def test_a_closed_queue_forgets_nothing() -> None:
    full: Pending[Entry] = Pending(2, "drop_oldest")
    first, second, third = (Entry(b"%d" % i, 1, b"") for i in range(3))
    assert full.put_all([first, second]) == [(None, None), (None, None)]
    full.close()
    assert full.put(third) == (None, third)
    assert full.take(9) == [first, second]


def test_who_waited_for_room_does_not_overwrite_a_newer_one_that_came_meanwhile() -> None:
    queue: Pending[Entry] = Pending(1, "wait")
    blocker, older, newer = Entry(b"other", 1, b""), Entry(b"k", 1, b""), Entry(b"k", 2, b"")
    queue.put(blocker)
    ends: list[tuple[Entry | None, Entry | None]] = []
    threads = [threading.Thread(target=lambda e=entry: ends.append(queue.put(e))) for entry in (newer, older)]
    for thread in threads:
        thread.start()
        _until(lambda: len(queue._changed._waiters) >= threads.index(thread) + 1)  # type: ignore[attr-defined] # noqa: B023
    assert queue.take(1) == [blocker]
    for thread in threads:
        thread.join(30)
    assert queue.take(9) == [newer]
    assert [superseded for superseded, _ in ends if superseded is not None] == [older]


def test_latencies_are_kept_within_a_tenth() -> None:
    chance, histogram = random.Random(3), Histogram()
    values = sorted(int(chance.lognormvariate(7, 2)) + 1 for _ in range(5000))
    for value in values:
        histogram.add(value)
    found = histogram.summary()
    assert found.times == 5000
    assert found.max_us == values[-1]
    for quantile, told in ((0.5, found.p50_us), (0.99, found.p99_us)):
        assert abs(told / values[int(quantile * 5000) - 1] - 1) < 0.2


def test_a_keeper_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="room for a checkpoint"):
        SafeKeeper(MemoryStore(), capacity=0)


def _until(reached: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.005)


def test_who_must_rely_on_several_checkpoints_waits_for_all_their_results() -> None:
    store = MemoryStore()
    store.put(b"b", 9, b"newer")
    keeper = SafeKeeper(store, capacity=2, when_full="wait")
    results = keeper.save_all([(b"a", 1, b"x"), (b"b", 1, lambda: b"y"), (b"c", 1, lambda: 1 / 0), (b"d", 1, b"z")])  # type: ignore[list-item, return-value]
    assert {r.key: r.outcome for r in results} == {
        b"a": Outcome.DURABLE, b"b": Outcome.SUPERSEDED, b"c": Outcome.FAILED, b"d": Outcome.DURABLE,
    }  # fmt: skip
    assert keeper.save_all([]) == []
    assert store.get(b"d") == Saved(1, b"z")
    keeper.close()
