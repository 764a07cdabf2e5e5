"""A store's server that is killed while operators in executors use it: best effort goes on, exact waits."""

from __future__ import annotations

import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

import holdfast
from holdfast.checkpoint.policy import every
from holdfast.checkpoint.store import VERSION_MAX
from holdfast.model.errors import PeerError, UsageError
from holdfast.spark import read_stream
from holdfast.spark.durable_state import far_of
from holdfast.spark.failure import is_permanent, sentence
from holdfast.spark.keeper import ended
from holdfast.spark.keyed import Keyed, deadlines, udop
from holdfast.spark.keyed_task import Task
from holdfast.spark.scratch import opened
from tests.checkpoint.servers import RedisServer
from tests.spark.conftest import fill
from tests.spark.summing import Summing

SCHEMA = StructType().add("key", StringType()).add("sum", LongType())
EXACT, EFFORT = every("1s", exact=True), every(events=1)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


def operator(folder: Path, server: RedisServer, checkpoint: Any, prototype: Any = Summing) -> Keyed:
    return udop("running", prototype, key="key", schema=SCHEMA, checkpoint=checkpoint, store=server.address,
                scratch=str(folder / "near"))  # fmt: skip


def sums(plan: Keyed, batch: int, *values: tuple[str, int]) -> list[tuple[str, int]]:
    rows = pa.record_batch({"key": [k for k, _ in values], "value": [v for _, v in values]})
    ran = Task(plan, to_arrow_schema(SCHEMA))
    return [(r["key"], r["sum"]) for out in ran.run([rows], "q", batch, 0) for r in out.to_pylist()]


def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(4_000):
        if holds():
            return
        time.sleep(0.025)
    raise AssertionError(f"{what} did not come about")


def test_best_effort_goes_on_without_its_store_counts_what_it_drops_and_uses_it_again(
    tmp_path: Path, redis: RedisServer
) -> None:
    plan = operator(tmp_path, redis, EFFORT)
    sums(plan, 0, ("a", 1), ("b", 10))
    redis.kill()
    with pytest.warns(RuntimeWarning, match="1 checkpoints dropped so far: redis at .* did not do its part"):
        assert sums(plan, 1, ("a", 1)) == [("a", 2)]
    assert sums(plan, 2, ("b", 10)) == [("b", 20)]
    with pytest.raises(PeerError, match="did not do its part"):
        deadlines(plan, "q")
    redis.start()
    assert sums(plan, 3, ("c", 5)) == [("c", 5)]
    assert deadlines(plan, "q")[0].dropped == 2
    shutil.rmtree(tmp_path / "near")
    assert sums(plan, 4, ("a", 1), ("b", 1), ("c", 1)) == [("a", 3), ("b", 21), ("c", 6)]


@pytest.mark.parametrize(("checkpoint", "lost"), [(EXACT, False), (EXACT, True), (EFFORT, True)])
def test_exact_and_whoever_needs_its_states_wait_for_the_store(
    tmp_path: Path, redis: RedisServer, checkpoint: Any, lost: bool
) -> None:
    plan = operator(tmp_path, redis, checkpoint)
    sums(plan, 0, ("a", 1), ("b", 10))
    redis.kill()
    if lost:
        shutil.rmtree(tmp_path / "near")
    found: list[list[tuple[str, int]]] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        waiting = threading.Thread(target=lambda: found.append(sums(plan, 1, ("a", 1))))
        waiting.start()
        until(lambda: any("waits for its store" in str(w.message) for w in told), "a word about what is waited for")
        assert found == []
        redis.start()
        waiting.join(60)
    assert found == [[("a", 2)]]
    assert any("its store is back" in str(w.message) for w in told)
    shutil.rmtree(tmp_path / "near")
    assert sums(plan, 2, ("a", 1), ("b", 1)) == [("a", 3), ("b", 11)]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that wants a password."""
    pytest.importorskip("redis")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", password="right")
    yield server
    server.stop()


def with_password(folder: Path, server: RedisServer, password: str | None, checkpoint: Any) -> Keyed:
    return udop("running", Summing, key="key", schema=SCHEMA, checkpoint=checkpoint,
                store=server.address_with(password), scratch=str(folder / "near"))  # fmt: skip


@pytest.mark.parametrize("checkpoint", [EFFORT, EXACT], ids=["effort", "exact"])
@pytest.mark.parametrize("password", ["wrong", None])
def test_a_store_that_refuses_us_is_an_error_at_once_also_where_one_that_is_away_is_not(
    tmp_path: Path, guarded: RedisServer, password: str | None, checkpoint: Any
) -> None:
    with pytest.raises(UsageError, match="must let us in") as told:
        sums(with_password(tmp_path, guarded, password, checkpoint), 0, ("a", 1))
    assert "wrong" not in str(told.value).partition("it said")[0]
    assert sums(with_password(tmp_path, guarded, "right", checkpoint), 0, ("a", 1)) == [("a", 1)]


@pytest.mark.parametrize("checkpoint", [EFFORT, EXACT], ids=["effort", "exact"])
def test_a_query_whose_store_refuses_us_ends_with_that_sentence(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, guarded: RedisServer, checkpoint: Any
) -> None:
    fill(store, "in", ROWS[:10], end=False, until=5)
    query = Query(spark, store, with_password(tmp_path, guarded, "wrong", checkpoint), tmp_path)
    until(lambda: not query.running.isActive, "the end of the query")
    error = query.running.exception()
    assert is_permanent(error)
    assert "must let us in" in sentence(error)
    assert query.found == {}


ROWS = [(i * 0.5, "abcd"[i * 7 % 4], i) for i in range(40)]


def expected(rows: list[tuple[float, str, int]]) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    found = []
    for _, key, value in rows:
        totals[key] = totals.get(key, 0) + value
        found.append((key, totals[key]))
    return sorted(found)


class Query:
    """A query that runs on while its store is killed."""

    def __init__(self, spark: SparkSession, store: holdfast.StreamStore, plan: Keyed, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.found: dict[int, list[Any]] = {}
        """What came of each batch: one that is executed again replaces what it gave."""

        def keep(frame: DataFrame, batch: int) -> None:
            self.found[batch] = [tuple(row) for row in frame.collect()]

        self.running = (
            read_stream(spark, "in", root=str(store.root), maxRowsPerBatch=10)
            .transform(plan)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def send(self, begin: int, end: int) -> None:
        fill(self._store, "in", ROWS[begin:end], end=False, until=end * 0.5)

    def has(self, end: int) -> bool:
        assert self.running.exception() is None
        return sorted(row for rows in self.found.values() for row in rows) == expected(ROWS[:end])

    def stop(self) -> None:
        """After its last batch is committed: one that is not would be executed again."""
        until((self._folder / "checkpoint" / "commits" / str(max(self.found))).exists, "the commit of the last batch")
        self.running.stop()


def dropped(near: Path) -> bool:
    """Whether the keeper has told scratch that a checkpoint was dropped. It saves beside the stream: results come
    before it has tried."""
    told = [ended(path) for path in near.rglob("*.saved")]
    return any(how is not None and how.outcome == "dropped" for how in told)


def saved(plan: Keyed, query: str, near: Path) -> bool:
    """Whether the store has all states that scratch has."""
    with far_of(plan, query, "") as far:
        assert far is not None
        for folder in near.rglob("*-of-*"):
            if folder.is_dir():
                with opened(folder) as here, far.of(folder.name) as there:
                    if here.states(VERSION_MAX) != there.states(VERSION_MAX):
                        return False
    return True


@pytest.mark.parametrize("checkpoint", [EFFORT, EXACT])
def test_a_query_outlives_the_server_of_its_checkpoints(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, redis: RedisServer, checkpoint: Any
) -> None:
    """Killed with kill -9, started again; batches went on meanwhile, or waited. Then scratch is lost."""
    plan = operator(tmp_path, redis, checkpoint, Summing)
    fill(store, "in", ROWS[:10], end=False, until=5)
    query = Query(spark, store, plan, tmp_path)
    until(lambda: query.has(10), "the first results")
    redis.kill()
    query.send(10, 20)
    if checkpoint is EFFORT:
        until(lambda: query.has(20), "results without a store")
        until(lambda: dropped(tmp_path / "near"), "the keeper's word that it was not saved")
    else:
        until(lambda: bool(query.running.status["isTriggerActive"]), "a batch that waits")
        time.sleep(1)
        assert query.has(10), "what is not in the store does not leave the task"
    redis.start()
    query.send(20, 30)
    until(lambda: query.has(30), "all results")
    query.stop()
    if checkpoint is EFFORT:
        until(lambda: saved(plan, query.running.id, tmp_path / "near"), "all states in the store")
        assert sum(kept.dropped for kept in deadlines(plan, query.running.id).values()) > 0
    shutil.rmtree(tmp_path / "near")
    query.send(30, 40)
    second = Query(spark, store, plan, tmp_path)
    second.found |= query.found
    until(lambda: second.has(40), "the rest, with states from the store")
    second.stop()
