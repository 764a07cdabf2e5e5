"""States that lie in the store only: those of quiet keys, and those that a lazy restore has not brought (002 §3.1).

Tasks are run by hand: no Spark.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.policy import every, none
from holdfast.checkpoint.store import Saved
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog, PeerError, UsageError
from holdfast.operators.numbering import hash_of
from holdfast.operators.udop import encode
from holdfast.spark import durable_state
from holdfast.spark.keyed import ForkOf, Keyed, udop
from holdfast.spark.keyed_task import Task
from tests.spark.summing import Summing
from tests.spark.test_events_per_key import Pages
from tests.spark.test_keyed_state import EXACT, KEYS, make, task
from tests.spark.test_states_at_random import SCHEMA

Event = tuple[str, int, int]


def plan(tmp_path: Path, checkpoint: Any = EXACT, **changed: Any) -> Keyed:
    return replace(make(tmp_path, checkpoint), **changed)


def resting(tmp_path: Path, checkpoint: Any = EXACT, **changed: Any) -> Keyed:
    """Its keys leave after 100, to come back."""
    return plan(tmp_path, checkpoint, **{"forget": False, "time_to_live_us": 100, "time": "t", **changed})


def run(ran: Task, batch: int, *events: Event, query: str = "q", partition: int = 0) -> list[tuple[str, int]]:
    keys, values, times = zip(*events, strict=True) if events else ((), (), ())
    rows = pa.record_batch({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.int64()),
                            "t": pa.array(times, pa.int64())})  # fmt: skip
    return [(r["key"], r["sum"]) for out in ran.run([rows], query, batch, partition) for r in out.to_pylist()]


def in_scratch(tmp_path: Path, key: str) -> bool:
    """Whether the bytes of a key's state are there, in any version."""
    (folder,) = (path.parent for path in (tmp_path / "near").rglob("id"))
    with open_store(f"log:{folder}") as store:
        kept = [store.get(name) for name, _ in store.scan(b"s" + encode(key)) + store.scan(b"p")]
    return any(saved is not None and saved.value and not saved.value.startswith(b"\xc1away1") for saved in kept)


@pytest.mark.parametrize("checkpoint", [EXACT, every(events=1), every(events=3)], ids=str)
def test_a_quiet_key_leaves_scratch_and_comes_back_from_the_store(tmp_path: Path, checkpoint: Any) -> None:
    ran = task(resting(tmp_path, checkpoint))
    assert run(ran, 0, ("a", 1, 1000), ("b", 10, 1000)) == [("a", 1), ("b", 10)]
    for batch in range(1, 5):
        assert run(ran, batch, ("b", 10, 1000 + 100 * batch)) == [("b", 10 + 10 * batch)]
    assert not in_scratch(tmp_path, "a")
    for _ in range(2):
        assert run(ran, 5, ("a", 5, 1500)) == [("a", 6)], "also when it is executed again"
    assert in_scratch(tmp_path, "a")
    assert run(ran, 6, ("a", 5, 1501), ("b", 1, 1501)) == [("a", 11), ("b", 51)]


def test_one_whose_time_is_over_within_a_batch_or_long_ago_is_not_begun_anew(tmp_path: Path) -> None:
    ran = task(resting(tmp_path))
    assert run(ran, 0, ("a", 1, 1000), ("b", 1, 1500), ("a", 1, 1600)) == [("a", 1), ("a", 2), ("b", 1)]
    assert run(ran, 1, ("a", 1, 9000)) == [("a", 3)]
    assert run(ran, 2, ("b", 1, 9001), ("a", 1, 9002)) == [("b", 2), ("a", 4)]


@pytest.mark.parametrize("lost", ["", "near"])
def test_a_state_that_is_away_is_dealt_out_with_the_others(tmp_path: Path, lost: str) -> None:
    before, after = (task(resting(tmp_path), n) for n in (1, 2))
    run(before, 0, *((key, 1, 1000) for key in KEYS))
    run(before, 1, ("a", 1, 2000))
    run(before, 2, ("a", 1, 2001))
    assert not in_scratch(tmp_path, "b")
    if lost:
        shutil.rmtree(tmp_path / "near")
    found = {}
    for partition in range(2):
        mine = [(key, 1, 3000) for key in KEYS if partition_of(key, 2) == partition]
        found |= dict(run(after, 3, *mine, partition=partition))
    assert found == {key: 4 if key == "a" else 2 for key in KEYS}


def partition_of(key: str, partitions: int) -> int:
    return hash_of(encode(key), "string") % partitions


@pytest.mark.parametrize("packed", [False, True])
def test_a_fork_takes_along_what_is_away_and_sends_nothing_away(tmp_path: Path, packed: bool) -> None:
    """S1: its parent's store is not its own, and what it has is nowhere else."""
    operator = resting(tmp_path)
    main, fork = task(operator), task(operator, fork=ForkOf("q", str(tmp_path / "fork"), root=3))
    run(main, 0, ("a", 1, 1000), ("b", 10, 1000))
    run(main, 1, ("b", 10, 1200))
    run(main, 2, ("b", 10, 1300))
    if packed:
        assert main.pack("q", 3, tmp_path / "fork")
    assert run(fork, 3, ("b", 1, 1400), query="f") == [("b", 31)]
    for batch in (4, 5):
        run(fork, batch, ("b", 1, 1000 + 200 * batch), query="f")
    assert run(main, 3, ("a", 2, 1400)) == [("a", 3)]
    assert run(fork, 6, ("a", 5, 3000), query="f") == [("a", 6)]
    assert run(main, 4, ("a", 2, 1401)) == [("a", 5)]


def test_a_state_that_is_away_moves_to_another_host(tmp_path: Path) -> None:
    for name in ("anna", "ben"):
        (tmp_path / name).mkdir()
    here = task(resting(tmp_path / "anna"))
    run(here, 0, ("a", 1, 1000), ("b", 10, 1000))
    run(here, 1, ("b", 10, 1200))
    run(here, 2, ("b", 10, 1300))
    assert here.pack("q", 3, tmp_path / "parcel")
    shutil.rmtree(tmp_path / "anna")
    there = resting(tmp_path / "ben")
    moved = Task(there, here._schema, 1, None, str(tmp_path / "parcel"), "string")
    assert run(moved, 3, ("b", 1, 1400)) == [("b", 31)]
    assert run(moved, 4, ("b", 1, 1500), ("a", 1, 1500)) == [("b", 32), ("a", 2)]


@pytest.mark.parametrize("lost", [False, True])
def test_what_somebody_else_saved_meanwhile_of_a_key_that_is_away_does_not_take_its_place(
    tmp_path: Path, lost: bool
) -> None:
    """C7: B runs batch 3, too, as a task that was given up may; A goes on, and "a" is as A has seen it."""
    a, b = (task(resting(tmp_path, every(events=1), scratch=str(tmp_path / name))) for name in ("near", "elsewhere"))
    run(a, 0, ("a", 1, 1000), ("b", 10, 1000))
    for batch in (1, 2):
        run(a, batch, ("b", 10, 1000 + 100 * batch))
    assert not in_scratch(tmp_path, "a")
    run(b, 3, ("a", 100, 1300))
    for batch in (3, 4, 5, 6, 7):
        run(a, batch, ("b", 10, 1000 + 100 * batch))
    if lost:
        shutil.rmtree(tmp_path / "near")
    assert run(a, 8, ("a", 1, 1800), ("b", 1, 1800)) == [("a", 2), ("b", 81)]


def test_a_state_that_is_not_in_the_store_yet_stays(tmp_path: Path) -> None:
    ran = task(resting(tmp_path, every("1h")))
    run(ran, 0, ("a", 1, 1000))
    for batch in (1, 2, 3):
        run(ran, batch, ("b", 10, 1000 + 100 * batch))
    assert in_scratch(tmp_path, "a")
    assert run(ran, 4, ("a", 1, 2000)) == [("a", 2)]


def test_parts_leave_and_come_back_with_their_state(tmp_path: Path) -> None:
    given = resting(tmp_path)
    ran = task(replace(given, prototype=Pages))
    run(ran, 0, ("a", 1, 1000), ("b", 10, 1000))
    run(ran, 1, ("a", 2, 1001))
    for batch in (2, 3, 4):
        run(ran, batch, ("b", 10, 1000 * batch))
    assert run(ran, 5, ("a", 4, 5000)) == [("a", 7)]
    shutil.rmtree(tmp_path / "far")
    alone = task(replace(given, prototype=Pages, checkpoint=none, store=None, forget=True))
    assert run(alone, 6, ("a", 8, 5001)) == [("a", 15)], "all of its parts are here again"


def test_what_the_store_has_lost_is_an_error_for_exact_and_said_by_best_effort(tmp_path: Path) -> None:
    for name, policy in (("exact", EXACT), ("effort", every(events=1))):
        (tmp_path / name).mkdir()
        ran = task(resting(tmp_path / name, policy))
        run(ran, 0, ("a", 1, 1000), ("b", 10, 1000))
        run(ran, 1, ("b", 10, 1200))
        run(ran, 2, ("b", 10, 1300))
        shutil.rmtree(tmp_path / name / "far")
        if policy is EXACT:
            with pytest.raises(CorruptLog, match="its state left scratch for the store, which has nothing now"):
                run(ran, 3, ("a", 1, 1400))
        else:
            with pytest.warns(RuntimeWarning, match="left scratch for the store, which has nothing now"):
                assert run(ran, 3, ("a", 1, 1400)) == [("a", 1)]


class Counting(MemoryStore):
    """A server that counts the states which are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []
        self.away = False

    def _read(self, keys: Any) -> list[Saved | None]:
        if self.away:
            raise PeerError("the server is away")
        found = super()._read(keys)
        self.read += [key for key, saved in zip(keys, found, strict=True) if saved and b"/s" in key and saved.value]
        return found

    def close(self) -> None:
        """It stays."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(durable_state, "open_store", lambda address: made)
    return made


@pytest.mark.parametrize("policy", [EXACT, every(events=1)], ids=["exact", "best effort"])
@pytest.mark.parametrize(("restore", "at_once", "in_the_end"), [("all", 12, 12), ("lazily", 1, 2), ("beside", 5, 12)])
def test_a_restored_partition_serves_keys_as_they_come(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch, policy: Any, restore: str, at_once: int,
    in_the_end: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("holdfast.spark.keyed_state._BESIDE", 4)
    operator = plan(tmp_path, policy, restore=restore, store="redis://somewhere")
    ran = task(operator)
    run(ran, 0, *((key, 1, 0) for key in KEYS))
    shutil.rmtree(tmp_path / "near")
    server.read.clear()
    assert run(ran, 1, ("l", 1, 0)) == [("l", 2)]
    assert len({key[:-1] for key in server.read}) == at_once
    for batch in (2, 3, 4):
        assert run(ran, batch, ("l", 1, 0), ("c", 1, 0)) == [("l", batch + 1), ("c", batch)]
    assert len({key[:-1] for key in server.read if key[-1:] == b"0"}) == in_the_end
    assert run(ran, 5, *((key, 1, 0) for key in KEYS)) == [(key, {"l": 6, "c": 5}.get(key, 2)) for key in KEYS]


@pytest.mark.parametrize("restore", ["lazily", "beside"])
def test_what_a_lazy_restore_has_not_brought_is_dealt_out_forked_and_moved(
    tmp_path: Path, server: Counting, restore: str
) -> None:
    operator = plan(tmp_path, EXACT, restore=restore, store="redis://somewhere")
    ran = task(operator)
    run(ran, 0, *((key, 1, 0) for key in KEYS))
    shutil.rmtree(tmp_path / "near")
    run(ran, 1, ("a", 1, 0))
    assert ran.pack("q", 2, tmp_path / "parcel")
    fork = task(operator, fork=ForkOf("q", str(tmp_path / "fork"), root=2))
    assert run(fork, 2, ("b", 5, 0), ("new", 1, 0), query="f") == [("b", 6), ("new", 1)]
    there = replace(operator, scratch=str(tmp_path / "there"))
    moved = Task(there, ran._schema, 1, None, str(tmp_path / "parcel"), "string")
    assert run(moved, 2, ("c", 1, 0), ("a", 1, 0), query="m") == [("c", 2), ("a", 3)]
    found: dict[str, int] = {}
    for partition in range(3):
        mine = [(key, 1, 0) for key in KEYS if partition_of(key, 3) == partition]
        found |= dict(run(task(operator, 3), 2, *mine, partition=partition))
    assert found == {key: 3 if key == "a" else 2 for key in KEYS}


def test_times_go_on_after_a_lazy_restore(tmp_path: Path) -> None:
    """A look needs the time of every key: it brings all in."""
    ran = task(resting(tmp_path, restore="lazily", forget=True))
    run(ran, 0, ("a", 1, 1000), ("b", 1, 1000))
    shutil.rmtree(tmp_path / "near")
    assert run(ran, 1, ("b", 1, 1090)) == [("b", 2)]
    run(ran, 2, ("b", 1, 1150))
    run(ran, 3, ("b", 1, 1151))
    run(ran, 4, ("b", 1, 1152))
    with open_store(f"log:{tmp_path}/far/running/q/0-of-1") as store:
        assert not store.scan(b"s" + encode("a")), "it was forgotten"
    assert run(ran, 5, ("a", 1, 1153), ("b", 1, 1153)) == [("a", 1), ("b", 6)]


def test_a_store_that_is_away_keeps_no_batch_waiting_that_does_not_need_it(tmp_path: Path, server: Counting) -> None:
    """Best effort, restored beside: the rest comes when the server is back."""
    operator = plan(tmp_path, every(events=5), restore="beside", store="redis://somewhere")
    ran = task(operator)
    run(ran, 0, *((key, 1, 0) for key in KEYS for _ in range(5)))
    shutil.rmtree(tmp_path / "near")
    run(ran, 1, ("a", 1, 0))
    server.away = True
    assert run(ran, 2, ("a", 1, 0)) == [("a", 7)]
    server.away = False
    assert run(ran, 3, ("a", 1, 0), ("l", 1, 0)) == [("a", 8), ("l", 6)]


@pytest.mark.parametrize(("said", "options"), [
    ("must lie in a store", {"forget": False}),
    ("must lie in a store", {"restore": "lazily"}),
    ("restore must be one of all, lazily, beside; got 'eagerly'", {"restore": "eagerly"}),
    ("ttl must be a positive time", {"ttl": "0s"}),
])  # fmt: skip
def test_what_cannot_come_back_is_refused_where_it_is_written(said: str, options: Any) -> None:
    with pytest.raises(UsageError, match=said):
        udop("sums", Summing, key="key", schema=SCHEMA, **options)


def test_a_time_to_live_may_be_given_with_the_operator(tmp_path: Path) -> None:
    operator = udop("sums", Summing, key="key", schema=SCHEMA, ttl="0.1ms", time="t", scratch=str(tmp_path))
    ran = task(operator)
    assert run(ran, 0, ("a", 1, 1000), ("b", 1, 1000)) == [("a", 1), ("b", 1)]
    assert run(ran, 1, ("a", 1, 1099), ("b", 1, 1100)) == [("a", 2), ("b", 1)]
