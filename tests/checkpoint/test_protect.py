"""Operators in a process of one's own, saved by the one scheduler as their policies say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.policy import every, groups, none
from holdfast.checkpoint.protect import protect
from holdfast.checkpoint.safekeeper import SafeKeeper
from holdfast.checkpoint.scheduler import Scheduler, scheduler
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import UsageError
from holdfast.operators.udop import Instances, UserOperator, decode, encode, lazily
from holdfast.operators.window_join import Input, WindowJoin

LEFT = pa.schema([("k", pa.int64()), ("l", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("r", pa.string())])
SUMS = pa.schema([("k", pa.int64()), ("sum", pa.int64())])


class Summing(UserOperator):
    def __init__(self) -> None:
        self.sum = 0

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.sum += row["x"]
        return [{"k": row["k"], "sum": self.sum}]

    def checkpoint(self) -> bytes:
        return encode(self.sum)

    def restore(self, saved: bytes) -> None:
        self.sum = decode(saved)


def rows(*given: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch({"k": [k for k, _ in given], "x": [x for _, x in given]})


def left(*keys: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    batch = pa.RecordBatch.from_pylist([{"k": k, "l": f"l{k}"} for k in keys], schema=LEFT)
    return batch, pa.RecordBatch.from_pylist([], schema=RIGHT)


def sums_in(store: MemoryStore) -> dict[int, int]:
    """What an instance that is made now would begin with."""
    found = Instances("sums", Summing, "k", SUMS, load=lazily("sums", store)).feed(rows((1, 0), (2, 0)))
    return {row["k"]: row["sum"] for row in found.to_pylist()}


def until(reached: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.002)


def test_one_scheduler_saves_all_operators_of_a_process_while_they_are_fed_and_reports_on_each() -> None:
    store = MemoryStore()
    keeper = SafeKeeper(store)
    join = WindowJoin("pairs", Input(LEFT, 8), Input(RIGHT, 0), on="k", checkpoint=groups(4, every="2ms"))
    pairs = protect(join, groups(4, every="2ms"), keeper)
    sums = protect(Instances("sums", Summing, "k", SUMS), every("3ms"), keeper)
    try:
        fed = 0
        while fed < 20 or any(kept.met + kept.missed < 3 for kept in scheduler().report().values()):
            pairs.feed(*left(fed))
            sums.feed(rows((1, 1), (2, 10)))
            fed += 1
            time.sleep(0.001)
        report = scheduler().report()
        assert {"pairs", "sums"} <= set(report)
        assert (report["pairs"].every_us, report["sums"].every_us) == (2000, 3000)
    finally:
        pairs.close()
        sums.close()
    assert not {"pairs", "sums"} & set(scheduler().report())
    pairs.checkpoint()
    sums.checkpoint()
    assert keeper.flush(30)
    assert sums_in(store) == {1: fed, 2: 10 * fed}
    again = WindowJoin("pairs", Input(LEFT, 8), Input(RIGHT, 0), on="k", checkpoint=groups(4, every="2ms"))
    again.restore(store)
    assert again.contents() == join.contents()
    keeper.close()


def test_with_a_policy_of_events_keys_are_saved_when_they_had_as_many() -> None:
    store = MemoryStore()
    keeper = SafeKeeper(store)
    sums = protect(Instances("sums", Summing, "k", SUMS), every(events=3), keeper)
    sums.feed(rows((1, 1), (2, 1), (1, 1)))
    assert keeper.flush(30)
    assert sums_in(store) == {1: 0, 2: 0}
    sums.feed(rows((1, 1), (2, 1)))
    assert keeper.flush(30)
    assert sums_in(store) == {1: 3, 2: 0}
    keeper.close()


class Refusing(MemoryStore):
    refuse = True

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        if self.refuse:
            raise ValueError("a fault of its own")
        return super()._write(entries)


def test_what_did_not_reach_the_store_is_saved_with_the_next_checkpoint() -> None:
    store = Refusing()
    keeper = SafeKeeper(store)
    sums = protect(Instances("sums", Summing, "k", SUMS), every("1h"), keeper, by=Scheduler())
    sums.feed(rows((1, 5), (2, 6)))
    assert sums.checkpoint() == 2
    assert keeper.flush(30)
    store.refuse = False
    sums.feed(rows((2, 1)))
    assert sums.checkpoint() == 2
    assert keeper.flush(30)
    assert sums_in(store) == {1: 5, 2: 7}
    assert sums.checkpoint() == 0
    sums.close()
    keeper.close()


def test_what_cannot_be_scheduled_is_said() -> None:
    keeper = SafeKeeper(MemoryStore())
    join = WindowJoin("pairs", Input(LEFT, 8), Input(RIGHT, 0), on="k", checkpoint=groups(4, every="1s", exact=True))
    with pytest.raises(UsageError, match="replayed from"):
        protect(join, groups(4, every="1s", exact=True), keeper)
    with pytest.raises(UsageError, match="replayed from"):
        protect(Instances("sums", Summing, "k", SUMS), every("1s", exact=True), keeper)
    plain = protect(Instances("plain", Summing, "k", SUMS), none, keeper)
    plain.feed(rows((1, 1)))
    plain.close()
    assert keeper.status().waiting == 0
    keeper.close()


def test_a_policy_that_would_not_be_carried_out_is_refused() -> None:
    keeper = SafeKeeper(MemoryStore())
    four = groups(4, every="1h")
    plain = WindowJoin("pairs", Input(LEFT, 8), Input(RIGHT, 0), on="k")
    grouped = WindowJoin("pairs", Input(LEFT, 8), Input(RIGHT, 0), on="k", checkpoint=four)
    for join, policy, why in (
        (plain, four, "made with none; add checkpoint="),
        (grouped, groups(2, every="1h"), "made with groups"),
        (grouped, every("1h"), "made with groups"),
        (grouped, "every hour", "a checkpoint policy must be"),
        (Instances("sums", Summing, "k", SUMS), four, "does not protect"),
    ):
        with pytest.raises(UsageError, match=why):
            protect(join, policy, keeper, by=Scheduler())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"SafeKeeper\(store\)"):
        protect(grouped, four, MemoryStore(), by=Scheduler())  # type: ignore[arg-type]
    for join, policy in ((plain, every("1h")), (grouped, four), (grouped, groups(4, every="2h")), (grouped, none)):
        protect(join, policy, keeper, by=Scheduler()).close()
    keeper.close()
