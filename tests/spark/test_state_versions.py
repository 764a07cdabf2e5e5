"""An operator's state moves to another host and back: versions in a parcel, checkpoints in two logs. No Spark.

One partition of an aggregate over count windows runs batch by batch, as Spark would run it. The oracle is one that
never moved and lost nothing.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast
from holdfast.model.errors import CorruptLog, StateLost, StorageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import count_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import control
from holdfast.spark.arrivals import arrivals
from holdfast.spark.query_start import Beginning
from holdfast.spark.restore import Restore
from holdfast.spark.stage import Batch, Output, Stage, StagePlan
from holdfast.spark.state_versions import Lineages, arrival_in
from holdfast.spark.versions import _PREFIX, _memory, _parts
from holdfast.stream.frame import crc32c
from tests.spark.test_stage_state import SCHEMA, SECOND, tuples

OPERATOR = "aggregate-direct"
#: Few windows are saved with each batch, so that a restore needs many records.
POLICY = continuous(period="1s", slow=0, at_most=3, budget=1.0)
GIVEN = tuples(16)


class Replica:
    """One host's replica of the node."""

    def __init__(self, root: Path) -> None:
        self.home, self.store = root / "home", holdfast.open(root / "streams")
        self.stream = self.store.create("out", "key bigint, count bigint, sum bigint", bucket="1s")
        self.lineages = Lineages(self.home, root / "streams", "out", OPERATOR, 1)
        self.generation = 0
        self.results: dict[int, list[tuple[Any, ...]]] = {}
        plan = Plan((count(), sum_("v").alias("sum")), (None, 0), {0: pl.Int64()})
        self._kernel, self._panes = aggregate_kernel(count_window(25), plan, ("_h",))

    def run(self, first: int, last: int, lose: bool = False) -> None:
        """Batches of a second each; `lose`: without scratch before each of them."""
        for number in range(first, last):
            if lose:
                self.lose()
            self.results[number] = self._batch(number, at(number - 1), at(number))

    def lose(self) -> None:
        _memory.clear()
        shutil.rmtree(self.home / "versions", ignore_errors=True)

    def _batch(self, number: int, since: int, until: int) -> list[tuple[Any, ...]]:
        spec = self.lineages.spec(self.generation)
        read_from = Restore(spec, self.store).again_us(since)

        def again(position: int) -> pl.DataFrame:
            if position < read_from:
                raise StateLost(f"read from {read_from} only, needed from {position}")
            return frame(position, since)

        output = Output(str(self.store.root), "out", None)
        plan = StagePlan(spec.operator, self._kernel, self._panes, SCHEMA, ("stime", "_h", "count", "sum"), SECOND,
                         spec.versions, POLICY, output)  # fmt: skip
        results, messages = [], []
        for out in Stage(plan, 0, number).run(Batch(since, until, frame(since, until), again)):
            for row in out.to_pylist():
                raw = row.pop(control.COLUMN)
                if raw is None:
                    results.append(tuple(row.values()))
                else:
                    messages.append(control.decode(raw, self.stream.folder / "staging"))
        writer = self.stream.writer()
        writer.commit([], now_us=until, boundary_us=max(until, writer.state.boundary_us), control=messages)
        writer.release(until)
        return results

    def send_to(self, other: Replica, after: int, generation: int) -> None:
        """The other goes on behind that batch of ours, as with any checkpoint that it takes up."""
        parcel = self.home / "parcel"
        parcel.mkdir(parents=True)
        assert self.lineages.pack(self.generation, at(after), parcel)
        place = Beginning(generation=generation).checkpoint(other.home)
        place.parent.mkdir(parents=True, exist_ok=True)
        parcel.rename(place)
        other.generation = generation
        other.lineages.clear(generation)


def at(number: int) -> int:
    """Where a batch ends."""
    return (number + 2) * SECOND


def frame(since: int, until: int) -> pl.DataFrame:
    rows = [t for t in GIVEN if since <= t[0] < until]
    data = {"_h": [t[1] for t in rows], "_t": [t[0] for t in rows], "_v0": [t[2] for t in rows]}
    return pl.DataFrame(data, schema={"_h": pl.Int64, "_t": pl.Int64, "_v0": pl.Int64})


@pytest.fixture(autouse=True)
def no_memory() -> None:
    _memory.clear()


@pytest.fixture
def unmoved(tmp_path: Path) -> dict[int, list[tuple[Any, ...]]]:
    whole = Replica(tmp_path / "whole")
    whole.run(0, 15)
    assert sum(map(len, whole.results.values())) > 30
    _memory.clear()
    return whole.results


@pytest.mark.parametrize("lose", [False, True])
def test_state_that_moved_there_and_back_is_that_of_a_node_that_stayed(
    tmp_path: Path, unmoved: dict[int, list[tuple[Any, ...]]], lose: bool
) -> None:
    """B7, C1, C2. Both logs hold checkpoints of lives that were given up, at positions that came again."""
    anna, ben = Replica(tmp_path / "anna"), Replica(tmp_path / "ben")
    anna.run(0, 6)
    anna.send_to(ben, 5, 0)
    anna.run(6, 9, lose)  # While the copy is on its way.
    ben.run(6, 8, lose)
    ben.send_to(anna, 7, 1)
    ben.run(8, 10, lose)  # Until it is told.
    anna.run(8, 12, lose)
    anna.send_to(ben, 11, 1)
    ben.run(12, 14, lose)
    ben.send_to(anna, 13, 2)
    anna.run(14, 15, lose)
    for moved in (anna, ben):
        assert {number: moved.results[number] for number in moved.results} == {
            number: unmoved[number] for number in moved.results
        }
    assert sorted({*anna.results, *ben.results}) == list(range(15))


def test_what_came_is_there_as_long_as_nothing_was_computed_from_it(tmp_path: Path, unmoved: dict[int, Any]) -> None:
    anna, ben = Replica(tmp_path / "anna"), Replica(tmp_path / "ben")
    anna.run(0, 6)
    anna.send_to(ben, 5, 0)
    ben.lose()
    assert ben.lineages.needed_us(at(5), 0) == at(5), "no earlier input is asked for"
    carl = Replica(tmp_path / "carl")
    ben.send_to(carl, 5, 0)  # It goes further before its first batch.
    assert arrival_in(carl.home / "checkpoint").life != arrival_in(ben.home / "checkpoint").life  # type: ignore[union-attr]
    ben.run(6, 8)
    carl.run(6, 8, lose=True)
    assert [ben.results[n] for n in (6, 7)] == [carl.results[n] for n in (6, 7)] == [unmoved[n] for n in (6, 7)]


def test_a_fork_of_a_node_that_has_just_come_begins_with_what_came(tmp_path: Path) -> None:
    anna, ben = Replica(tmp_path / "anna"), Replica(tmp_path / "ben")
    anna.run(0, 6)
    anna.send_to(ben, 5, 0)
    fork = ben.lineages.forked(0, 1, at(5)).versions
    assert fork.has(at(5))
    came, sent = fork.load(0, at(5)), anna.lineages.spec(0).versions.load(0, at(5))
    assert came is not None
    assert sent is not None
    assert came.blocks[0].equals(sent.blocks[0])
    assert (came.mark, sent.mark is None) == (None, False), "the log here has none of its checkpoints"


def test_state_that_is_not_at_hand_is_not_packed(tmp_path: Path) -> None:
    anna = Replica(tmp_path / "anna")
    anna.run(0, 3)
    assert not anna.lineages.pack(0, at(2) + 1, tmp_path / "parcel")
    anna.lose()
    assert not anna.lineages.pack(0, at(2), tmp_path / "parcel")


def test_state_of_another_operator_is_refused_and_damage_is_never_taken_for_an_empty_state(tmp_path: Path) -> None:
    anna, ben = Replica(tmp_path / "anna"), Replica(tmp_path / "ben")
    anna.run(0, 6)
    anna.send_to(ben, 5, 0)
    with pytest.raises(StorageError, match=r"must be that of join; it is that of aggregate-direct; .* same definition"):
        Lineages(ben.home, tmp_path, "out", "join", 1).spec(0)
    for version in arrivals(ben.home / "checkpoint").rglob("*.state"):
        version.write_bytes(version.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptLog, match="the log has no checkpoint at"):
        ben.run(6, 7)
    manifest = arrivals(ben.home / "checkpoint") / "versions"
    manifest.write_bytes(manifest.read_bytes().replace(b"direct", b"../../"))
    with pytest.raises(CorruptLog):
        ben.lineages.spec(0)


def test_a_version_that_was_crafted_elsewhere_is_a_table_or_nothing(tmp_path: Path) -> None:
    """X3: checksums that fit say nothing of who has made the bytes."""
    anna, ben = Replica(tmp_path / "anna"), Replica(tmp_path / "ben")
    anna.run(0, 6)
    anna.send_to(ben, 5, 0)
    (version,) = arrivals(ben.home / "checkpoint").rglob("*.state")
    whole, chance, refused = version.read_bytes(), random.Random(3), 0
    length, start = _parts(whole)[0], _parts(whole)[2]
    for _ in range(200):
        body = bytearray(whole[start:])
        for _ in range(4):
            body[chance.randrange(len(body))] = chance.randrange(256)
        notes = whole[_PREFIX.size : _PREFIX.size + length]
        prefix = _PREFIX.pack(b"HOLDVERS", 1, length, crc32c(notes), crc32c(bytes(body)), len(body))
        version.write_bytes(prefix + whole[_PREFIX.size : start] + bytes(body))
        refused += ben.lineages.spec(0).versions.load(0, at(5)) is None
    assert refused > 20
