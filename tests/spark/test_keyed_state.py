"""Whose state an operator of one's own begins with, and whose it never touches. Tasks are run by hand: no Spark."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from holdfast.checkpoint.policy import every
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog, StorageError, UsageError
from holdfast.operators.numbering import hash_of
from holdfast.operators.udop import UserOperator, encode
from holdfast.spark import durable_state
from holdfast.spark.keyed import ForkOf, Keyed, udop
from holdfast.spark.keyed_task import Task
from holdfast.spark.own_folder import own_folder
from tests.spark.summing import Summing

KEYS = tuple("abcdefghijkl")
EXACT = every("1ms", exact=True)


class Fleeting(Summing):
    """Is forgotten when its key has been quiet for a day."""

    time_to_live_us = 86_400_000_000


def make(tmp_path: Path, checkpoint: Any, scratch: bool = True) -> Keyed:
    schema = StructType().add("key", StringType()).add("sum", LongType())
    store = None if checkpoint is None else f"log:{tmp_path}/far"
    return udop("running", Summing, key="key", schema=schema, checkpoint=checkpoint, store=store,
                scratch=str(tmp_path / "near") if scratch else None)  # fmt: skip


def task(operator: Keyed, partitions: int = 1, fork: ForkOf | None = None, key_type: str = "string") -> Task:
    assert isinstance(operator.schema, StructType)
    return Task(operator, to_arrow_schema(operator.schema), partitions, fork, key_type=key_type)


def sums(ran: Task, query: str | None, batch: int, *values: tuple[str, int]) -> list[tuple[str, int]]:
    rows = pa.record_batch({"key": [k for k, _ in values], "value": [v for _, v in values]})
    return [(r["key"], r["sum"]) for out in ran.run([rows], query, batch, 0) for r in out.to_pylist()]


def dealt(ran: Task, query: str, batch: int, *values: tuple[str, int]) -> dict[str, int]:
    """One batch over all partitions, with each tuple where Spark's shuffle would bring it; the last sum of each key."""
    found = {}
    for partition in range(ran.partitions):
        some = [(k, v) for k, v in values if hash_of(encode(k), "string") % ran.partitions == partition]
        rows = pa.record_batch({"key": pa.array([k for k, _ in some], pa.string()), "value": [v for _, v in some]})
        found |= {r["key"]: r["sum"] for out in ran.run([rows], query, batch, partition) for r in out.to_pylist()}
    return found


def saved(tmp_path: Path, query: str) -> dict[bytes, Any]:
    with open_store(f"log:{tmp_path}/far/running/{query}/0-of-1") as store:
        return {key: store.get(key) for key, _ in store.scan()}


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_begins_with_its_parents_state_and_leaves_it_alone(tmp_path: Path, lost: bool) -> None:
    """S1, D1: what a fork computes is tentative; in its parent's store it would become stable."""
    operator = make(tmp_path, EXACT)
    main = task(operator)
    assert sums(main, "q", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert sums(main, "q", 1, ("a", 2)) == [("a", 3)]
    before = saved(tmp_path, "q")
    if lost:
        (tmp_path / "near").rename(tmp_path / "elsewhere")
    fork = task(operator, fork=ForkOf("q", str(tmp_path / "fork" / "operators")))
    assert sums(fork, "f", 2, ("a", 100)) == [("a", 103)]
    assert sums(fork, "f", 3, ("a", 100), ("b", 100)) == [("a", 203), ("b", 110)]
    assert saved(tmp_path, "q") == before
    assert sums(main, "q", 2, ("b", 5), ("a", 4)) == [("b", 15), ("a", 7)]
    assert [p.name for p in (tmp_path / "far" / "running").iterdir()] == ["q"], "a fork's state goes with its folder"


def test_a_store_in_a_path_that_cannot_be_written_costs_best_effort_its_checkpoints_and_stops_exact(
    tmp_path: Path,
) -> None:
    (tmp_path / "far").write_text("a file, where a folder should be made")
    with pytest.warns(RuntimeWarning, match=r"running: 1 checkpoints dropped so far: .*far.* \(best effort\)"):
        assert sums(task(make(tmp_path, every(events=1))), "q", 0, ("a", 1)) == [("a", 1)]
    with pytest.raises(StorageError, match="far"):
        sums(task(make(tmp_path, EXACT)), "r", 0, ("a", 1))
    assert (tmp_path / "far").read_text().startswith("a file"), "nothing of it was touched"


@pytest.mark.parametrize("policy", [None, EXACT])
def test_a_fork_whose_parent_has_gone_on_too_far_is_refused_and_not_begun_empty(tmp_path: Path, policy: Any) -> None:
    operator = make(tmp_path, policy)
    main = task(operator)
    for batch in range(4):
        sums(main, "q", batch, ("a", 1))
    late = task(operator, fork=ForkOf("q", str(tmp_path / "late" / "operators")))
    with pytest.raises(StorageError, match="the state of its parent at the beginning of batch 2, which has gone by"):
        sums(late, "f", 2, ("a", 100))


def test_a_fork_that_took_the_states_along_goes_on_from_them_however_late(tmp_path: Path) -> None:
    operator = make(tmp_path, None)
    main = task(operator)
    for batch in range(2):
        sums(main, "q", batch, ("a", 1))
    assert main.pack("q", 2, tmp_path / "fork" / "operators")
    for batch in range(2, 6):
        sums(main, "q", batch, ("a", 1))
    fork = task(operator, fork=ForkOf("q", str(tmp_path / "fork" / "operators")))
    assert sums(fork, "f", 2, ("a", 100)) == [("a", 102)]
    assert sums(fork, "f", 3, ("a", 100)) == [("a", 202)]


@pytest.mark.parametrize("policy", [None, every(events=1), EXACT], ids=["none", "best effort", "exact"])
def test_a_fork_that_lost_its_scratch_does_not_go_on_with_what_its_parent_did_since(
    tmp_path: Path, policy: Any
) -> None:
    """Their batches have the same numbers. A fork that fails is taken anew."""
    operator = make(tmp_path, policy)
    main, fork = task(operator), task(operator, fork=ForkOf("q", str(tmp_path / "fork"), root=1))
    sums(main, "q", 0, ("a", 1))
    assert sums(fork, "f", 1, ("a", 100)) == [("a", 101)]
    sums(main, "q", 1, ("a", 5))
    shutil.rmtree(tmp_path / "fork")
    with pytest.raises(StorageError, match="a fork needs its own state at the beginning of batch 2, which is lost"):
        sums(fork, "f", 2, ("a", 100))


@pytest.mark.parametrize("policy", [None, EXACT], ids=["none", "exact"])
def test_a_fork_with_another_number_of_partitions_takes_its_own_keys(tmp_path: Path, policy: Any) -> None:
    operator = make(tmp_path, policy)
    dealt(task(operator, 3), "q", 0, *((key, 1) for key in KEYS))
    fork = task(operator, partitions=2, fork=ForkOf("q", str(tmp_path / "fork" / "operators")))
    assert dealt(fork, "f", 1, *((key, 1) for key in KEYS)) == dict.fromkeys(KEYS, 2)
    assert dealt(fork, "f", 2, *((key, 1) for key in KEYS)) == dict.fromkeys(KEYS, 3)
    assert dealt(task(operator, 3), "q", 1, *((key, 5) for key in KEYS)) == dict.fromkeys(KEYS, 6), "S1"


def test_a_fork_does_not_wait_for_the_store_that_its_parent_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_state, "_BUSY_S", 0.1)
    operator = replace(make(tmp_path, EXACT), prototype=Fleeting)
    main = task(operator)
    sums(main, "q", 0, ("a", 1))
    fork = task(operator, fork=ForkOf("q", str(tmp_path / "fork" / "operators")))
    assert sums(fork, "f", 1, ("a", 1)) == [("a", 2)]
    with open_store(f"log:{tmp_path}/far/running/q/0-of-1"):
        assert sums(fork, "f", 2, ("a", 1)) == [("a", 3)]


def test_two_queries_with_one_operator_do_not_share_its_state(tmp_path: Path) -> None:
    operator = make(tmp_path, EXACT)
    for query in ("q", "r"):
        assert sums(task(operator), query, 0, ("a", 1)) == [("a", 1)]
        assert sums(task(operator), query, 1, ("a", 1)) == [("a", 2)]


@pytest.mark.parametrize("lost", ["", "near", "far"])
@pytest.mark.parametrize("kind", ["log", "server"])
def test_a_query_goes_on_with_any_number_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lost: str
) -> None:
    """C13: also for quiet keys, with batches that are executed again, and back to a number that there was before."""
    server = MemoryStore()
    operator = make(tmp_path, EXACT if lost != "far" else None)
    if kind == "server":
        monkeypatch.setattr(durable_state, "open_store", lambda address: server)
        monkeypatch.setattr(MemoryStore, "close", lambda store: None)
        operator = replace(operator, store=operator.store and "redis://somewhere")
    chance, expected, batch = random.Random(7), dict.fromkeys(KEYS, 0), 0
    for partitions in (4, 2, 8, 4, 4, 1, 3):
        for again in (False, True, False, False):
            keys = chance.sample(KEYS, 3)
            values = [(key, chance.randint(1, 9)) for key in keys]
            for key, value in values:
                expected[key] += value
            for _ in range(1 + again):
                ran = dealt(task(operator, partitions), "q", batch, *values)
                assert ran == {key: expected[key] for key in keys}
            batch += 1
        if lost == "near":
            shutil.rmtree(tmp_path / "near")
    assert dealt(task(operator, 2), "q", batch, *((key, 0) for key in KEYS)) == expected
    left = {path.parent.parent.name: path.name for path in tmp_path.glob("near/*/q/running/*")}
    assert not left or set(left.values()) <= {"0-of-2", "1-of-2", "0-of-3", "1-of-3", "2-of-3"}, "others are gone"
    assert not [key for key, _ in server.scan() if not key.split(b"/")[2].endswith((b"-of-2", b"-of-3"))]


def test_best_effort_with_another_number_of_partitions_goes_on_from_the_newest_that_was_saved(tmp_path: Path) -> None:
    operator = make(tmp_path, every(events=1))
    dealt(task(operator, 4), "q", 0, *((key, 1) for key in KEYS))
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 1 in batch 2"):
        assert dealt(task(operator, 2), "q", 2, *((key, 1) for key in KEYS)) == dict.fromkeys(KEYS, 2)


def test_keys_whose_hash_is_not_known_stay_in_their_partitions(tmp_path: Path) -> None:
    """A key that moves to another partition would begin anew there, in silence."""
    operator = make(tmp_path, None)
    dealt(task(operator, 2, key_type="array<int>"), "q", 0, ("a", 1))
    with pytest.raises(UsageError, match="lies in 2 partitions, the query has 3, and keys of type array<int> cannot"):
        dealt(task(operator, 3, key_type="array<int>"), "q", 1, ("a", 1))
    assert dealt(task(operator, 2, key_type="array<int>"), "q", 1, ("a", 1)) == {"a": 2}


def test_a_query_over_past_data_leaves_no_state_behind(tmp_path: Path) -> None:
    operator = make(tmp_path, EXACT)
    for _ in range(2):
        assert sums(task(operator), None, 0, ("a", 1), ("a", 2)) == [("a", 1), ("a", 3)]
    assert list(tmp_path.iterdir()) == []


def test_scratch_lies_where_nobody_else_can_put_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a folder that anybody may make in /tmp could hold anybody's state."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sums(task(make(tmp_path, None, scratch=False)), "q", 0, ("a", 1))
    assert [p.parts[-3:] for p in (own_folder() / "operators").glob("boot-*/*/*/*")] == [("q", "running", "0-of-1")]
    assert own_folder().stat().st_mode & 0o077 == 0


class Machines:
    """Two machines: what changes is which scratch a task finds."""

    def __init__(self, tmp_path: Path, checkpoint: Any) -> None:
        self._tasks = {
            name: task(replace(make(tmp_path, checkpoint), scratch=str(tmp_path / name))) for name in ("A", "B")
        }

    def run(self, where: str, batch: int, *values: tuple[str, int]) -> list[tuple[str, int]]:
        return sums(self._tasks[where], "q", batch, *values)


def test_a_key_that_was_quiet_while_its_partition_moved_has_its_state(tmp_path: Path) -> None:
    """Scratch of the new machine has the mark of a batch only if it has all keys as of that batch."""
    machines = Machines(tmp_path, EXACT)
    assert machines.run("A", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert machines.run("B", 1, ("a", 2)) == [("a", 3)]
    assert machines.run("B", 2, ("a", 3), ("b", 20)) == [("a", 6), ("b", 30)]


def test_after_a_loss_all_states_are_restored_in_bulk_with_the_first_batch(tmp_path: Path) -> None:
    """002 §6.2: eager. Once they are in scratch, the store is not asked again."""
    machines = Machines(tmp_path, EXACT)
    machines.run("A", 0, *((key, 1) for key in "abcdefgh"))
    assert machines.run("B", 1, ("a", 2)) == [("a", 3)]
    shutil.rmtree(tmp_path / "far")
    assert machines.run("B", 2, *((key, 1) for key in "hgfedcba")) == [*((key, 2) for key in "hgfedcb"), ("a", 4)]


def test_a_partition_that_comes_back_goes_on_from_the_state_of_the_machine_between(tmp_path: Path) -> None:
    machines = Machines(tmp_path, EXACT)
    assert machines.run("A", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert machines.run("B", 1, ("a", 2)) == [("a", 3)]
    assert machines.run("B", 2, ("a", 3)) == [("a", 6)]
    assert machines.run("A", 3, ("a", 4), ("b", 20)) == [("a", 10), ("b", 30)]


@pytest.mark.parametrize("seed", range(5))
def test_a_partition_that_moves_at_random_gives_what_one_that_stays_gives(tmp_path: Path, seed: int) -> None:
    """C1, with batches that are executed again, on the same machine or on the other one."""
    chance, machines = random.Random(seed), Machines(tmp_path, EXACT)
    expected = dict.fromkeys("abcde", 0)
    for batch in range(12):
        values = [(key, chance.randint(1, 9)) for key in chance.sample("abcde", chance.randint(1, 3))]
        for key, value in values:
            expected[key] += value
        for _ in range(chance.choice((1, 1, 2))):
            assert machines.run(chance.choice("AB"), batch, *values) == [(key, expected[key]) for key, _ in values]


def test_best_effort_goes_on_from_the_newer_of_scratch_and_store_as_a_whole(tmp_path: Path) -> None:
    """C7: what scratch of an abandoned run has beside the store's state did not exist together with it."""
    machines = Machines(tmp_path, every(events=2))
    machines.run("A", 0, ("a", 1), ("b", 10), ("a", 0), ("b", 0))
    machines.run("A", 1, ("c", 5))  # Not due: the store does not know of it.
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 1 in batch 2"):
        machines.run("B", 2, ("a", 2), ("b", 20), ("a", 0), ("b", 0))
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 3 in batch 4"):
        assert machines.run("A", 4, ("c", 1), ("a", 1), ("b", 1)) == [("c", 1), ("a", 4), ("b", 31)]


def bytes_of(tmp_path: Path) -> list[Path]:
    return [path for path in sorted((tmp_path / "near").rglob("*")) if path.is_file() and path.stat().st_size > 40]


@pytest.mark.parametrize("flip", ["head", "middle", "end"])
def test_damaged_scratch_costs_nothing_where_the_state_is_safe_in_the_store(tmp_path: Path, flip: str) -> None:
    """Scratch is never synced, so it may be anything after a power failure."""
    exact, twin = task(make(tmp_path, EXACT)), task(make(tmp_path / "twin", EXACT))
    for batch in range(3):
        sums(exact, "q", batch, ("a", 1), ("b", 10))
        sums(twin, "q", batch, ("a", 1), ("b", 10))
    files = bytes_of(tmp_path)
    assert files
    for path in files:
        raw = bytearray(path.read_bytes())
        raw[{"head": 10, "middle": len(raw) // 2, "end": len(raw) - 5}[flip]] ^= 4
        path.write_bytes(raw)
    told = [sums(ran, "q", 3, ("b", 1), ("a", 1)) for ran in (exact, twin)]
    assert told[0] == told[1] == [("b", 31), ("a", 4)]
    assert sums(exact, "q", 4, ("b", 1), ("a", 1)) == [("b", 32), ("a", 5)]


def test_scratch_in_which_a_single_state_is_damaged_counts_as_lost_as_a_whole(tmp_path: Path) -> None:
    operator = task(make(tmp_path, EXACT))
    sums(operator, "q", 0, ("a", 1), ("b", 10))
    (segment,) = (path for path in bytes_of(tmp_path) if path.name.startswith("segment"))
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"s" + encode("b") + b"0") + 6] ^= 1
    segment.write_bytes(raw)
    with pytest.warns(RuntimeWarning, match="damaged and counts as lost"):
        assert sums(operator, "q", 1, ("a", 1), ("b", 10)) == [("a", 2), ("b", 20)]


def test_scratch_of_an_earlier_boot_is_not_believed(tmp_path: Path) -> None:
    operator = task(make(tmp_path, EXACT))
    sums(operator, "q", 0, ("a", 1))
    (mine,) = (tmp_path / "near").iterdir()
    mine.rename(mine.with_name("boot-of-yesterday"))
    assert sums(operator, "q", 1, ("a", 1)) == [("a", 2)]
    assert [folder.name for folder in (tmp_path / "near").iterdir()] == [mine.name]


def files_of(tmp_path: Path, name: bytes) -> list[Path]:
    return [p for p in (tmp_path / "far").rglob("*") if len(p.name) == 32 and name in p.read_bytes()]


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_exact_does_not_go_on_from_less_than_was_saved(tmp_path: Path, runs: int) -> None:
    """C11: one file of the store damaged; with three runs it has an earlier version, with one nobody knows its key."""
    operator = task(replace(make(tmp_path, EXACT), store=f"files:{tmp_path}/far"))
    for batch in range(runs):
        sums(operator, "q", batch, ("a", 1), ("b", 10))
    (path,) = files_of(tmp_path, b"s" + encode("a") + (b"0" if runs % 2 else b"1"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(tmp_path / "near")
    with pytest.raises(CorruptLog):
        sums(operator, "q", runs, ("b", 1))


class Forgetful(UserOperator):
    def checkpoint(self) -> bytes:
        return b"\x90"


@pytest.mark.parametrize(("prototype", "said"), [
    (dict, "must be a class that extends UserOperator .*; got the class dict"),
    (Summing(), "must be a class that extends UserOperator .*; got a Summing"),
    (Forgetful, "Forgetful must define .*; it lacks restore"),
    (UserOperator, "UserOperator must define .*; it lacks checkpoint and restore"),
])  # fmt: skip
def test_what_cannot_be_an_operator_is_refused_where_it_is_defined(prototype: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"sums: .*{said}"):
        udop("sums", prototype, key="key", schema="key string", checkpoint=every("1s"), store="log:/far")


def test_a_query_that_becomes_exact_saves_first_what_was_not_due_before(tmp_path: Path) -> None:
    relaxed = task(make(tmp_path, every(events=2)))
    assert sums(relaxed, "q", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert sums(relaxed, "q", 1, ("a", 5)) == [("a", 6)], "not saved yet"
    exact = task(make(tmp_path, EXACT))
    assert sums(exact, "q", 2, ("b", 1)) == [("b", 11)]
    shutil.rmtree(tmp_path / "near")
    assert sums(exact, "q", 3, ("a", 1), ("b", 1)) == [("a", 7), ("b", 12)]


def test_a_damaged_mark_in_the_store_does_not_keep_best_effort_from_saving(tmp_path: Path) -> None:
    relaxed = task(make(tmp_path, every(events=1)))
    for batch in range(4):
        sums(relaxed, "q", batch, ("a", 1))
    with open_store(f"log:{tmp_path}/far/running/q/0-of-1") as store:
        marks = [name for name, _ in store.scan(b"mbatch")]
        newest = max(marks, key=lambda name: store.get(name).version)  # type: ignore[union-attr]
        key, value = newest, store.get(newest).value  # type: ignore[union-attr]
    (segment,) = (tmp_path / "far" / "running" / "q" / "0-of-1").glob("segment-*")
    raw = bytearray(segment.read_bytes())
    at = raw.rindex(key + value) + len(key)
    raw[at] ^= 1
    segment.write_bytes(raw)
    with pytest.warns(RuntimeWarning, match="damaged"):
        sums(relaxed, "q", 4, ("a", 1))
    sums(relaxed, "q", 5, ("a", 1))
    shutil.rmtree(tmp_path / "near")
    assert sums(relaxed, "q", 6, ("a", 1)) == [("a", 7)]
