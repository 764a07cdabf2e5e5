"""`every(events=…)` on Spark counts and saves key by key, as it does in a process (C14). Tasks by hand: no Spark."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.policy import every, none
from holdfast.checkpoint.stores import open_store
from holdfast.operators.state_parts import Changed, Parted
from holdfast.operators.udop import Instances, Row, UserOperator, decode, encode
from holdfast.spark.keyed import udop
from holdfast.spark.keyed_task import Task
from tests.spark.summing import Summing
from tests.spark.test_keyed_state import EXACT, Machines, make, sums, task

SUMS = pa.schema([("key", pa.string()), ("sum", pa.int64())])


def in_store(folder: Path, query: str = "q") -> dict[str, int]:
    """The sum of each key in the store."""
    with open_store(f"log:{folder}/far/running/{query}/0-of-1") as store:
        newest: dict[str, tuple[int, int]] = {}
        for name, _ in store.scan(b"s"):
            kept = store.get(name)
            if kept is not None and kept.value:
                key = decode(name[1:-1])
                newest[key] = max(newest.get(key, (-1, 0)), (kept.version, decode(decode(kept.value)[4])))
        return {key: value for key, (_, value) in newest.items()}


def times(key: str, n: int) -> list[tuple[str, int]]:
    return [(key, 1)] * n


def test_a_busy_key_is_saved_when_it_is_due_and_quiet_ones_are_not(tmp_path: Path) -> None:
    ran = task(make(tmp_path, every(events=4)))
    sums(ran, "q", 0, *times("hot", 9), ("cold", 1))
    assert in_store(tmp_path) == {"hot": 9}
    sums(ran, "q", 1, *times("hot", 3), ("cold", 1))
    assert in_store(tmp_path) == {"hot": 9}, "three since"
    sums(ran, "q", 2, *times("hot", 1), ("cold", 1))
    assert in_store(tmp_path) == {"hot": 13}
    sums(ran, "q", 3, ("cold", 1))
    assert in_store(tmp_path) == {"hot": 13, "cold": 4}


def test_a_batch_that_is_executed_again_counts_its_tuples_once(tmp_path: Path) -> None:
    ran = task(make(tmp_path, every(events=4)))
    sums(ran, "q", 0, *times("a", 4))
    for _ in range(3):
        sums(ran, "q", 1, *times("a", 2))
    assert in_store(tmp_path) == {"a": 4}
    for _ in range(2):
        sums(ran, "q", 2, *times("a", 2))
    assert in_store(tmp_path) == {"a": 8}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_saved_of_each_key_is_what_a_process_saves_of_it(tmp_path: Path, seed: int) -> None:
    """Skewed keys, random batches, some executed again: the store has what `Instances` would have saved."""
    chance = random.Random(seed)
    policy = every(events=chance.choice((1, 3, 7)))
    ran, here = task(make(tmp_path, policy)), Instances("running", Summing, "key", SUMS)
    saved: dict[str, int] = {}
    for batch in range(15):
        values = [(chance.choice("aaaaaaaabbbcd"), chance.randint(0, 9)) for _ in range(chance.randint(0, 9))]
        here.feed(pa.record_batch({"key": pa.array([k for k, _ in values], pa.string()),
                                   "value": pa.array([v for _, v in values], pa.int64())}))  # fmt: skip
        due = here.due(policy.events or 0)
        saved |= {decode(key): decode(decode(here.snapshot(key)[1])[4]) for key in due}
        here.settle(due)
        for _ in range(chance.choice((1, 1, 2))):
            sums(ran, "q", batch, *values)
        if saved:
            assert in_store(tmp_path) == saved


def test_after_a_loss_each_key_goes_on_from_its_own_checkpoint_and_that_is_said(tmp_path: Path) -> None:
    machines = Machines(tmp_path, every(events=2))
    machines.run("A", 0, ("a", 1), ("a", 1), ("b", 10), ("c", 5))
    machines.run("A", 1, ("b", 10), ("c", 5), ("c", 5), ("d", 7))
    with pytest.warns(RuntimeWarning, match="goes on with what was saved of each of its keys in batch 2"):
        found = machines.run("B", 2, ("a", 1), ("b", 1), ("c", 1), ("d", 1))
    assert found == [("a", 3), ("b", 21), ("c", 16), ("d", 1)]


def test_scratch_that_has_more_than_the_store_is_believed_where_both_are_of_one_batch(tmp_path: Path) -> None:
    machines = Machines(tmp_path, every(events=2))
    machines.run("A", 0, ("a", 1), ("a", 1), ("b", 10))
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 1 in batch 2"):
        assert machines.run("A", 2, ("b", 1)) == [("b", 11)]


def test_keys_that_are_not_due_are_saved_when_the_policy_becomes_one_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000_000_000
    monkeypatch.setattr("holdfast.spark.save_policy.now_us", lambda: now)
    monkeypatch.setattr("holdfast.spark.keyed_task.now_us", lambda: now)
    sums(task(make(tmp_path, every(events=3))), "q", 0, *times("a", 3), ("b", 1), ("c", 1))
    assert in_store(tmp_path) == {"a": 3}
    timed = task(make(tmp_path, every("10s")))
    sums(timed, "q", 1, ("c", 1))
    now += 10_000_000
    sums(timed, "q", 2, ("a", 1))
    assert in_store(tmp_path) == {"a": 4, "b": 1, "c": 2}
    shutil.rmtree(tmp_path / "near")
    with warnings.catch_warnings(action="error"):
        assert sums(timed, "q", 3, ("a", 1), ("b", 1), ("c", 1)) == [("a", 5), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("between", [EXACT, every("1h"), none], ids=str)
def test_a_policy_may_change_and_change_back(tmp_path: Path, between: Any) -> None:
    own = task(make(tmp_path, every(events=3)))
    sums(own, "q", 0, ("a", 1), ("b", 1), *times("c", 3))
    sums(task(make(tmp_path, between)), "q", 1, ("a", 1))
    sums(own, "q", 2, *times("a", 3), ("b", 1))
    sums(own, "q", 3, ("b", 1), ("b", 1))
    assert in_store(tmp_path) == {"a": 5, "b": 4, "c": 3}
    sums(own, "q", 4, ("c", 1))
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(RuntimeWarning, match="goes on with"):
        assert sums(own, "q", 6, ("a", 1), ("b", 1), ("c", 1)) == [("a", 6), ("b", 5), ("c", 4)]


@pytest.mark.parametrize("policy", [every(events=2), every("10s")], ids=str)
def test_keys_that_were_there_before_anything_was_saved_are_saved_with_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    now = 1_700_000_000_000_000
    monkeypatch.setattr("holdfast.spark.save_policy.now_us", lambda: now)
    monkeypatch.setattr("holdfast.spark.keyed_task.now_us", lambda: now)
    sums(task(make(tmp_path, none)), "q", 0, ("a", 1), ("b", 10))
    kept = task(make(tmp_path, policy))
    sums(kept, "q", 1, ("a", 1))
    now += 10_000_000
    sums(kept, "q", 2, ("a", 1))
    shutil.rmtree(tmp_path / "near")
    with warnings.catch_warnings(action="error"):
        assert sums(kept, "q", 3, ("a", 1), ("b", 1)) == [("a", 4), ("b", 11)]


class Pages(UserOperator, Parted):
    """Each tuple is a part of its own; a sum is that of all of them."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.known = 0

    def process(self, row: Row) -> list[Row]:
        self.values.append(row["value"])
        return [{"key": row["key"], "sum": sum(self.values)}]

    def changes(self) -> Changed:
        fresh = {b"%d" % n: encode(value) for n, value in enumerate(self.values) if n >= self.known}
        self.known = len(self.values)
        return Changed(encode(self.known), fresh)

    def restore_parts(self, head: bytes, parts: dict[bytes, bytes], lost: list[bytes]) -> None:
        self.known = decode(head)
        assert not lost
        self.values = [decode(parts[b"%d" % n]) for n in range(self.known)]


def test_parts_that_changed_before_a_key_was_due_go_with_it(tmp_path: Path) -> None:
    plan = make(tmp_path, every(events=3))
    pages: Task = task(udop("running", Pages, key="key", schema=plan.schema, checkpoint=plan.checkpoint,
                            store=plan.store, scratch=plan.scratch, state_fits=True))  # fmt: skip
    sums(pages, "q", 0, ("a", 1), ("b", 10))
    sums(pages, "q", 1, ("a", 2), ("b", 20))
    sums(pages, "q", 2, ("a", 4))
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(RuntimeWarning, match="goes on with what was saved"):
        assert sums(pages, "q", 3, ("a", 8), ("b", 40)) == [("a", 15), ("b", 40)]
