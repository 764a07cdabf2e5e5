"""States of user-defined operators move to another host and back. Tasks are run by hand: no Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.checkpoint.policy import every
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog
from holdfast.spark import durable_state
from holdfast.spark.arrivals import operators_in, pack_operators, stays_because
from holdfast.spark.keyed import ForkOf, Keyed
from holdfast.spark.keyed_task import Task
from holdfast.stream.sealed import seal, unseal
from tests.spark.test_keyed_state import KEYS, dealt, make, sums

EXACT = every("1ms", exact=True)
POLICIES = pytest.mark.parametrize("policy", [None, EXACT], ids=["none", "exact"])


def task(operator: Keyed, checkpoint: Path | None = None, partitions: int = 1, fork: ForkOf | None = None) -> Task:
    """As the query of that checkpoint has it."""
    assert isinstance(operator.schema, StructType)
    came = "" if checkpoint is None else operators_in(checkpoint)
    return Task(operator, to_arrow_schema(operator.schema), partitions, fork, came, "string")


def host(tmp_path: Path, name: str, policy: Any) -> Keyed:
    (tmp_path / name).mkdir(exist_ok=True)
    return make(tmp_path / name, policy)


@POLICIES
def test_states_that_moved_there_and_back_go_on_where_they_were(tmp_path: Path, policy: Any) -> None:
    anna, ben = host(tmp_path, "anna", policy), host(tmp_path, "ben", policy)
    here = task(anna)
    assert sums(here, "q0", 0, ("a", 1), ("b", 10)) == [("a", 1), ("b", 10)]
    assert sums(here, "q0", 1, ("a", 2)) == [("a", 3)]
    assert pack_operators([here], "q0", 2, tmp_path / "there")
    assert sums(here, "q0", 2, ("a", 4)) == [("a", 7)], "it runs on meanwhile"
    there = task(ben, tmp_path / "there")
    assert sums(there, "q1", 2, ("a", 4)) == [("a", 7)]
    assert sums(there, "q1", 2, ("a", 4)) == [("a", 7)], "a batch that is executed again begins with what came"
    assert sums(there, "q1", 3, ("b", 5)) == [("b", 15)]
    assert pack_operators([there], "q1", 4, tmp_path / "back")
    again = task(anna, tmp_path / "back")
    assert sums(again, "q2", 4, ("a", 1), ("b", 1)) == [("a", 8), ("b", 16)]


def test_a_host_that_loses_its_scratch_right_after_a_movement_has_everything_in_its_store(tmp_path: Path) -> None:
    """C1: also the keys that no tuple has touched since."""
    anna, ben = host(tmp_path, "anna", EXACT), host(tmp_path, "ben", EXACT)
    here = task(anna)
    sums(here, "q0", 0, ("a", 1), ("b", 10))
    assert pack_operators([here], "q0", 1, tmp_path / "there")
    there = task(ben, tmp_path / "there")
    assert sums(there, "q1", 1, ("a", 1)) == [("a", 2)]
    shutil.rmtree(tmp_path / "ben" / "near")
    assert sums(there, "q1", 2, ("b", 1)) == [("b", 11)]


@pytest.mark.parametrize("kind", ["log", "server"])
def test_a_query_that_has_moved_away_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kept = MemoryStore()
    if kind == "server":  # One store for all queries and partitions, as with Redis or HBase.
        monkeypatch.setattr(durable_state, "open_store", lambda address: kept)
        monkeypatch.setattr(MemoryStore, "close", lambda store: None)
    anna = host(tmp_path, "anna", EXACT)
    anna = replace(anna, store="redis://somewhere" if kind == "server" else anna.store)
    gone, stays = task(anna, partitions=2), task(anna, partitions=2)
    for partition in range(2):
        list(gone.run([], "q0", 0, partition))
    sums(gone, "q0", 1, ("a", 1), ("b", 10))
    sums(stays, "q9", 0, ("a", 5))
    gone.forget("q0")
    left = [str(path) for path in tmp_path.rglob("*")] + [key.decode(errors="replace") for key in kept._kept]
    assert not [name for name in left if "q0" in name]
    assert [name for name in left if "q9" in name]
    assert sums(stays, "q9", 1, ("a", 1)) == [("a", 6)], "others keep theirs"


def test_states_come_from_the_store_where_scratch_is_lost(tmp_path: Path) -> None:
    here = task(host(tmp_path, "anna", EXACT))
    sums(here, "q0", 0, ("a", 1))
    shutil.rmtree(tmp_path / "anna" / "near")
    assert pack_operators([here], "q0", 1, tmp_path / "there")
    assert sums(task(host(tmp_path, "ben", EXACT), tmp_path / "there"), "q1", 1, ("a", 1)) == [("a", 2)]


def test_states_that_are_not_at_hand_are_not_packed(tmp_path: Path) -> None:
    here = task(host(tmp_path, "anna", None))
    sums(here, "q0", 0, ("a", 1))
    for batch in (1, 2, 3):
        sums(here, "q0", batch, ("a", 1))
    assert not pack_operators([here], "q0", 1, tmp_path / "gone-by"), "scratch has the newest two versions"
    assert not pack_operators([here], "q0", 5, tmp_path / "not-yet")
    assert pack_operators([here], "q0", 4, tmp_path / "now")


def test_a_fork_before_the_first_batch_begins_with_what_came(tmp_path: Path) -> None:
    anna, ben = host(tmp_path, "anna", None), host(tmp_path, "ben", None)
    here = task(anna)
    sums(here, "q0", 0, ("a", 1))
    assert pack_operators([here], "q0", 1, tmp_path / "there")
    fork = task(ben, tmp_path / "there", fork=ForkOf("q1", str(tmp_path / "fork")))
    assert sums(fork, "f", 1, ("a", 100)) == [("a", 101)]
    assert sums(fork, "f", 2, ("a", 100)) == [("a", 201)]
    assert sums(task(ben, tmp_path / "there"), "q1", 1, ("a", 1)) == [("a", 2)], "S1"


def test_a_host_with_another_number_of_partitions_deals_the_states_out_anew(tmp_path: Path) -> None:
    here = task(host(tmp_path, "anna", None), partitions=2)
    dealt(here, "q0", 0, *((key, 1) for key in KEYS))
    assert pack_operators([here], "q0", 1, tmp_path / "there")
    there = task(host(tmp_path, "ben", EXACT), tmp_path / "there", partitions=3)
    assert dealt(there, "q1", 1, *((key, 1) for key in KEYS[:6])) == dict.fromkeys(KEYS[:6], 2)
    shutil.rmtree(tmp_path / "ben" / "near")
    assert dealt(there, "q1", 2, *((key, 1) for key in KEYS)) == {key: 3 if key < "g" else 2 for key in KEYS}
    noted = Path(operators_in(tmp_path / "there"), "partitions")
    noted.write_bytes(noted.read_bytes().replace(b"2", b"3"))
    with pytest.raises(CorruptLog):
        operators_in(tmp_path / "there")


def test_a_host_that_would_not_find_the_states_refuses_them(tmp_path: Path) -> None:
    """One of before partitions said their number knows format 1 only."""

    class Before(msgspec.Struct, frozen=True):
        partitions: dict[str, int]
        format: int = 1

    here = task(host(tmp_path, "anna", None))
    sums(here, "q0", 0, ("a", 1))
    assert pack_operators([here], "q0", 1, tmp_path / "there")
    noted = Path(operators_in(tmp_path / "there"), "partitions")
    with pytest.raises(CorruptLog, match="another format than 1; upgrade Holdfast"):
        unseal(noted.read_bytes(), Before, "there")
    noted.write_bytes(seal(Before({"running": 1})))
    assert operators_in(tmp_path / "there"), "what such a host has sent is read"


def test_states_on_the_machines_of_a_cluster_stay(tmp_path: Path) -> None:
    def session(master: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(master=master))

    tasks = [task(make(tmp_path, None))]
    assert stays_because(tasks, session("local[2]")) is None
    assert stays_because([], session("spark://there:7077")) is None
    assert "its operator running keeps its state" in str(stays_because(tasks, session("spark://there:7077")))
