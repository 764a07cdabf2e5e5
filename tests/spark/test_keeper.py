"""Checkpoints of best effort beside the stream. Tasks are run by hand, two machines by two scratches: no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.policy import every
from holdfast.checkpoint.slots import BATCH
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import PeerError, UsageError
from holdfast.spark import durable_state, keeper, save_policy
from holdfast.spark.keyed_task import Task
from holdfast.spark.save_policy import KeyedCheckpoint
from tests.spark.test_keyed_state import make, sums, task


class Gated(MemoryStore):
    """A server that answers writes only while its gate is open, and none while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked, self.away = threading.Event(), threading.Event(), False
        self.gate.set()

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self.asked.set()
        assert self.gate.wait(60)
        if self.away:
            raise PeerError("the server is away")
        return super()._write(entries)

    def close(self) -> None:
        """It outlives those who use it."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    made = Gated()
    monkeypatch.setattr(durable_state, "open_store", lambda address: made)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    yield made
    made.gate.set()
    flush()


def flush() -> None:
    if keeper._keeper is not None:
        keeper._keeper[1].flush()


def machine(tmp_path: Path, name: str) -> Task:
    return task(replace(make(tmp_path, every(events=1)), store="redis://somewhere", scratch=str(tmp_path / name)))


def test_batches_go_on_while_a_checkpoint_is_being_saved(tmp_path: Path, server: Gated) -> None:
    here = machine(tmp_path, "A")
    server.gate.clear()
    assert sums(here, "q", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert server.asked.wait(60), "it is under way"
    assert sums(here, "q", 1, ("a", 1)) == [("a", 2)]
    assert sums(here, "q", 2, ("c", 5)) == [("c", 5)], "the newest waits, with all that is not known to be saved"
    server.gate.set()
    flush()
    assert sums(machine(tmp_path, "B"), "q", 3, ("a", 1), ("b", 1), ("c", 1)) == [("a", 3), ("b", 11), ("c", 6)]


def test_one_that_comes_late_from_where_the_partition_was_is_not_mixed_with_what_went_on(
    tmp_path: Path, server: Gated
) -> None:
    """C7: B goes on without "c", which A has seen and not saved; a state with B's sums and A's "c" never was."""
    here, there = machine(tmp_path, "A"), machine(tmp_path, "B")
    sums(here, "q", 0, ("a", 1))
    flush()
    server.gate.clear()
    server.asked.clear()
    sums(here, "q", 1, ("c", 5))
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 1 in batch 2"):
        sums(there, "q", 2, ("a", 2))
    server.gate.set()
    flush()
    sums(there, "q", 3, ("a", 3))
    flush()
    sums(there, "q", 4, ("a", 4))
    flush()
    assert sums(machine(tmp_path, "C"), "q", 5, ("a", 0), ("c", 1)) == [("a", 10), ("c", 1)]


def test_a_checkpoint_that_died_with_its_worker_is_made_up_for_by_the_next(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(tmp_path, "A")
    with monkeypatch.context() as patch:
        patch.setattr(save_policy, "keep_beside", lambda checkpoint: None)
        sums(here, "q", 0, ("a", 1))
    sums(here, "q", 1, ("b", 1))
    flush()
    assert sums(machine(tmp_path, "B"), "q", 2, ("a", 1), ("b", 1)) == [("a", 2), ("b", 2)]


def test_what_the_store_did_not_take_is_said_and_saved_with_the_next(tmp_path: Path, server: Gated) -> None:
    here = machine(tmp_path, "A")
    server.away = True
    server.gate.clear()
    sums(here, "q", 0, ("a", 1))
    server.gate.set()
    flush()
    server.away = False
    with pytest.warns(RuntimeWarning, match="running: 1 checkpoints dropped so far: the server is away"):
        sums(here, "q", 1, ("b", 1))
    flush()
    assert sums(machine(tmp_path, "B"), "q", 2, ("a", 1), ("b", 1)) == [("a", 2), ("b", 2)]


def test_a_store_that_refuses_us_fails_every_attempt_of_the_next_batch_and_none_once_that_is_put_right(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> Gated:
        assert server.gate.wait(60)
        raise UsageError("the password is wrong")

    here = machine(tmp_path, "A")
    sums(here, "q", 0, ("a", 1), ("b", 10))
    flush()
    with monkeypatch.context() as patch:
        patch.setattr(durable_state, "open_store", refuse)
        server.gate.clear()
        sums(here, "q", 1, ("a", 1))
        server.gate.set()
        flush()
        for _ in range(4):
            with pytest.raises(UsageError, match="the password is wrong"):
                sums(here, "q", 2, ("a", 1))
    assert sums(here, "q", 2, ("a", 1)) == [("a", 3)]
    flush()
    assert sums(machine(tmp_path, "B"), "q", 3, ("a", 1), ("b", 1)) == [("a", 4), ("b", 11)]


def test_a_store_that_refuses_us_from_the_beginning_is_said_by_the_first_batch(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> Gated:
        raise UsageError("the password is wrong")

    monkeypatch.setattr(durable_state, "open_store", refuse)
    with pytest.raises(UsageError, match="the password is wrong"):
        sums(machine(tmp_path, "A"), "q", 0, ("a", 1))


def test_what_an_earlier_execution_of_a_batch_was_told_is_not_taken_for_this_one(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(tmp_path, "A")
    server.gate.clear()
    sums(here, "q", 0, ("a", 1))
    server.gate.set()
    flush()
    (told,) = (tmp_path / "A").rglob("*.saved")
    told.write_bytes(msgspec.msgpack.encode(keeper.Ended(2, "durable")))
    with monkeypatch.context() as patch:
        patch.setattr(save_policy, "keep_beside", lambda checkpoint: None)  # It died with its worker.
        sums(here, "q", 1, ("b", 1))
    sums(here, "q", 2, ("c", 1))
    flush()
    sums(here, "q", 3, ("c", 1))
    flush()
    assert sums(machine(tmp_path, "B"), "q", 4, ("a", 1), ("b", 1), ("c", 1)) == [("a", 2), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("reused", [True, False], ids=["beside", "the task waits"])
def test_the_keeper_outlives_a_store_that_cannot_be_closed(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch, reused: bool
) -> None:
    def fail() -> None:
        raise PeerError("the server went away")

    if not reused:
        monkeypatch.delenv("SPARK_REUSE_WORKER")
    monkeypatch.setattr(server, "close", fail)
    for version in (1, 2):
        keeper.keep_beside(checkpoint(tmp_path, version))
        flush()
        assert keeper.ended(tmp_path / "told") == keeper.Ended(version, "durable")


def test_the_keeper_outlives_whatever_a_store_raises(
    tmp_path: Path, server: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a panic of what is written in Rust, which is no `Exception`."""

    def fail(address: str) -> Gated:
        raise SystemExit("a panic")

    monkeypatch.setattr(durable_state, "open_store", fail)
    keeper.keep_beside(checkpoint(tmp_path, 1))
    flush()
    assert keeper.ended(tmp_path / "told") == keeper.Ended(1, "refused", "a panic")


def checkpoint(tmp_path: Path, version: int) -> KeyedCheckpoint:
    plan = replace(make(tmp_path, every(events=1)), store="redis://somewhere")
    marks = {BATCH: b"%d" % version}
    return KeyedCheckpoint(plan, "q", "0-of-1", (0, 1), version, {b"a": b"1"}, {}, marks, tmp_path / "told")
