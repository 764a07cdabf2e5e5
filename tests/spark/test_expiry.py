"""What time does to keys without tuples, on Spark: forgotten with their states, or heard of by time. Tasks by hand."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from holdfast.checkpoint.policy import every
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.operators.udop import UserOperator, VectorOperator, decode, encode
from holdfast.spark.keyed import ForkOf, udop
from holdfast.spark.keyed_task import Task
from tests.spark import summing
from tests.spark.test_keyed_state import dealt

EXACT = every("1ms", exact=True)
SCHEMA = StructType().add("key", StringType()).add("sum", LongType())
Event = tuple[str, int, int]


class Summing(summing.Summing):
    time_to_live_us = 100


class Columns(Summing, VectorOperator):
    def process_batch(self, rows: pa.RecordBatch) -> pa.Table:
        found = [row for given in rows.to_pylist() for row in self.process(given)]
        return pa.Table.from_pylist(found, schema=to_arrow_schema(SCHEMA))


class Telling(Summing):
    """Says its sum every 50, as long as it lives."""

    time_to_live_us, output_after_us = 200, 50

    def __init__(self) -> None:
        super().__init__()
        self.key = ""

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.key = row["key"]
        super().process(row)
        return []

    def output(self) -> list[dict[str, Any]]:
        return [{"key": self.key, "sum": self.sum}]

    def checkpoint(self) -> bytes:
        return encode([self.key, self.sum])

    def restore(self, saved: bytes) -> None:
        self.key, self.sum = decode(saved)


def task(
    folder: Path, prototype: type[UserOperator], *, time: str | None = "t", machine: str = "A", checkpoint: Any = EXACT,
    fork: ForkOf | None = None, store: str | None = None, partitions: int = 1,
) -> Task:  # fmt: skip
    store = None if checkpoint is None else store or f"log:{folder}/far"
    operator = udop("quiet", prototype, key="key", schema=SCHEMA, checkpoint=checkpoint, store=store, time=time,
                    scratch=str(folder / machine))  # fmt: skip
    return Task(operator, to_arrow_schema(SCHEMA), partitions, fork, key_type="string")


def run(ran: Task, batch: int, events: list[Event], query: str = "q") -> list[tuple[str, int]]:
    keys, values, times = zip(*events, strict=True) if events else ((), (), ())
    rows = pa.record_batch({
        "key": pa.array(keys, pa.string()), "value": pa.array(values, pa.int64()), "t": pa.array(times, pa.int64()),
        "tuple_id": pa.array(range(len(keys)), pa.int64()),
    })  # fmt: skip
    return [(r["key"], r["sum"]) for out in ran.run([rows], query, batch, 0) for r in out.to_pylist()]


def kept(folder: Path, key: str) -> list[bytes]:
    """What is left of a key in scratch and in the store."""
    stores = [path.parent for path in folder.rglob("id")]
    found = []
    for path in stores:
        with open_store(f"log:{path}") as store:
            found += [name for name, _ in store.scan(b"s" + encode(key)) if store.get(name)]
    assert stores
    return found


def oracle(events: list[Event], lasts: int) -> list[tuple[str, int]]:
    """Tuple by tuple: a key whose last tuple lies `lasts` back begins anew. Time never goes back."""
    now, last, sums, found = 0, {}, {}, []
    for key, value, at in events:
        now = max(now, at)
        if now - last.get(key, now) >= lasts:
            sums[key] = 0
        last[key], sums[key] = now, sums.get(key, 0) + value
        found.append((key, sums[key]))
    return found


@pytest.mark.parametrize("checkpoint", [None, EXACT, every(events=2)])
def test_a_key_without_tuples_for_its_time_to_live_is_forgotten_here_and_in_the_store(
    tmp_path: Path, checkpoint: Any
) -> None:
    ran = task(tmp_path, Summing, checkpoint=checkpoint)
    assert run(ran, 0, [("a", 1, 1000), ("b", 10, 1000)]) == [("a", 1), ("b", 10)]
    assert run(ran, 1, [("b", 10, 1080)]) == [("b", 20)]
    assert kept(tmp_path, "a")
    assert run(ran, 2, [("b", 10, 1100)]) == [("b", 30)]
    assert run(ran, 2, [("b", 10, 1100)]) == [("b", 30)], "a batch that is executed again"
    assert run(ran, 3, [("b", 10, 1101), ("b", 1, 1102)]) == [("b", 40), ("b", 41)]
    assert run(ran, 4, [("b", 1, 1102), ("b", 1, 1102)]) == [("b", 42), ("b", 43)]
    assert kept(tmp_path, "a") == []
    assert kept(tmp_path, "b")
    assert run(ran, 5, [("a", 5, 1103), ("b", 1, 1103)]) == [("a", 5), ("b", 44)]


@pytest.mark.parametrize("prototype", [Summing, Columns])
@pytest.mark.parametrize("seed", range(2))
def test_however_tuples_fall_into_batches_and_wherever_these_run_each_key_lives_the_same_lives(
    tmp_path: Path, prototype: type[UserOperator], seed: int
) -> None:
    """C1: random batches, executed again at times, on two machines; the oracle knows no batches."""
    chance = random.Random(seed)
    machines = [task(tmp_path, prototype, machine=name) for name in "AB"]
    at, events = 1000, []
    for _ in range(60):
        at += chance.choice((0, 1, 10, 60, 130))
        events.append((chance.choice("abcd"), chance.randint(1, 9), at - chance.choice((0, 0, 30))))
    expected = oracle(events, 100)
    begin, got = 0, []
    for batch in itertools.count():
        end = begin + chance.randint(0, 7)
        for _ in range(chance.choice((1, 1, 2))):
            out = run(chance.choice(machines), batch, events[begin:end])
            assert sorted(out) == sorted(expected[begin:end])
        got += out
        begin = end
        if begin >= len(events):
            break
    assert len(got) == 60


def clock(monkeypatch: pytest.MonkeyPatch, *times: int) -> Callable[[], None]:
    monkeypatch.setattr("holdfast.spark.expiry.now_us", iter(times).__next__)
    return lambda: None


def test_by_the_clock_a_batch_that_is_executed_again_finds_the_time_of_its_first_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on another machine; three executions read the clock, the others find their notes."""
    here, there = (task(tmp_path, Summing, time=None, machine=name) for name in "AB")
    clock(monkeypatch, 1000, 1099, 1500)
    assert run(here, 0, [("a", 1, 0)]) == [("a", 1)]
    assert run(here, 1, [("a", 1, 0), ("b", 1, 0)]) == [("a", 2), ("b", 1)]
    for ran in (there, here, there):
        assert run(ran, 1, [("a", 1, 0), ("b", 1, 0)]) == [("a", 2), ("b", 1)]
    for ran in (there, here):
        assert run(ran, 2, [("a", 1, 0)]) == [("a", 1)]


@pytest.mark.parametrize("lost", [False, True], ids=["scratch", "store"])
@pytest.mark.parametrize("numbers", [(1, 2), (2, 1), (2, 3)])
def test_by_the_clock_a_batch_that_is_executed_again_with_another_number_of_partitions_finds_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, int], lost: bool
) -> None:
    before, after = (task(tmp_path, Summing, time=None, partitions=number) for number in numbers)
    clock(monkeypatch, *[1000] * numbers[0], *range(1098, 1098 + numbers[0]))
    assert dealt(before, "q", 0, ("a", 1), ("b", 1), ("c", 1)) == {"a": 1, "b": 1, "c": 1}
    assert dealt(before, "q", 1, ("a", 1), ("b", 1)) == {"a": 2, "b": 2}
    if lost:
        shutil.rmtree(tmp_path / "A")
    clock(monkeypatch, *[1500] * numbers[1])
    assert dealt(after, "q", 1, ("a", 1), ("b", 1)) == {"a": 2, "b": 2}
    assert dealt(after, "q", 2, ("a", 1), ("c", 1)) == {"a": 1, "c": 1}


class Killed(MemoryStore):
    """Takes so many more writes; then the machine is gone."""

    left = 1 << 30

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        taken = super()._write(entries[: self.left])
        self.left -= len(taken)
        if len(taken) < len(entries):
            raise RuntimeError("killed")
        return taken

    def close(self) -> None:
        """Servers stay."""


@pytest.mark.parametrize("writes", range(8))
def test_by_the_clock_a_batch_that_was_killed_while_it_saved_finds_its_time_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """What a killed execution removed from the store, as of its time, an execution as of a later time would keep."""
    server = Killed()
    monkeypatch.setattr("holdfast.spark.durable_state.open_store", lambda _: server)
    here, there = (task(tmp_path, Summing, time=None, machine=name, store="redis://far") for name in "AB")
    clock(monkeypatch, 1000, 1150, 1060, 1070)
    run(here, 0, [("a", 1, 0), ("b", 1, 0)])
    server.left = writes
    with contextlib.suppress(RuntimeError):
        run(here, 1, [("c", 1, 0)])  # "a" and "b" are to be forgotten.
    server.left = 1 << 30
    noted = server.get(b"quiet/q/0-of-1/mexecuted1") is not None
    run(there, 1, [("c", 1, 0)])
    shutil.rmtree(tmp_path / "B")
    assert run(there, 2, [("a", 1, 0), ("b", 1, 0)]) == [("a", 1 if noted else 2), ("b", 1 if noted else 2)]


def test_a_fork_forgets_for_itself_alone(tmp_path: Path) -> None:
    """S1."""
    main = task(tmp_path, Summing)
    run(main, 0, [("a", 1, 1000), ("b", 1, 1000)])
    fork = task(tmp_path, Summing, fork=ForkOf("q", str(tmp_path / "fork")))
    assert run(fork, 1, [("a", 1, 1200)], "f") == [("a", 1)]
    assert run(fork, 2, [("b", 1, 1201)], "f") == [("b", 1)]
    assert run(main, 1, [("b", 1, 1001), ("a", 1, 1001)]) == [("b", 2), ("a", 2)]


def test_output_by_time_comes_also_of_keys_that_are_quiet_until_they_are_forgotten(tmp_path: Path) -> None:
    ran = task(tmp_path, Telling)
    assert run(ran, 0, [("a", 1, 1000), ("b", 1, 1000)]) == []
    assert run(ran, 1, [("b", 1, 1040)]) == []
    assert run(ran, 2, [("b", 1, 1050)]) == [("b", 3), ("a", 1)]
    assert run(ran, 2, [("b", 1, 1050)]) == [("b", 3), ("a", 1)]
    assert run(ran, 3, [("b", 1, 1060)]) == []
    assert run(ran, 4, [("b", 1, 1110)]) == [("b", 5), ("a", 1)]
    assert run(ran, 5, [("b", 1, 1199)]) == [("b", 6), ("a", 1)]
    assert run(ran, 6, [("b", 1, 1300)]) == [("b", 7)]
    assert run(ran, 7, [("b", 1, 1301)]) == []
    assert kept(tmp_path, "a") == []
