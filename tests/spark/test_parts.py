"""States in parts on Spark: a join in groups and a barrier, whatever is run again, moved, forked, lost or damaged.

Tasks are run by hand, without Spark; `test_keyed.py` has the same in queries.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType, TimestampType

from holdfast.checkpoint.policy import every, groups, upstream
from holdfast.checkpoint.slots import part_key
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.explain.text import operator_line
from holdfast.model.errors import CorruptLog, PeerError, UsageError
from holdfast.operators.keyed_join import GroupedJoin, keyed_join
from holdfast.operators.udop import encode
from holdfast.operators.window_join import Input
from holdfast.spark.keyed import ForkOf, Keyed, barrier, udop
from holdfast.spark.keyed_task import Task
from tests.spark.summing import Summing

EXACT = groups(4, every="1s", exact=True)
#: Due with each batch, and still best effort.
EFFORT = groups(4, every="0.000001s")
LEFT = pa.schema([("k", pa.int64()), ("a", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("b", pa.int64())])
PAIRS = StructType().add("k", LongType()).add("a", LongType()).add("b", LongType())
Row = tuple[int, str, int]
#: `EFFORT` is due all the time, so it misses all the time.
pytestmark = pytest.mark.filterwarnings("ignore:.*deadlines missed")


def pairs(
    folder: Path, checkpoint: Any, *, key: str | None = "k", machine: str = "near", window: int = 10, kind: str = "log"
) -> Keyed:
    return udop("pairs", keyed_join(Input(LEFT, window), Input(RIGHT, 3), on="k"), key=key, schema=PAIRS,
                checkpoint=checkpoint, store=f"{kind}:{folder}/far", scratch=str(folder / machine))  # fmt: skip


def task(operator: Keyed, fork: ForkOf | None = None) -> Task:
    assert isinstance(operator.schema, StructType)
    return Task(operator, to_arrow_schema(operator.schema, timezone="UTC"), 1, fork)


def run(ran: Task, batch: int, rows: list[Row], query: str = "q") -> list[tuple[Any, ...]]:
    ks, sides, values = zip(*rows, strict=True) if rows else ((), (), ())
    numbers = pa.array(values, pa.int64())
    given = pa.record_batch({
        "tuple_id": numbers, "k": pa.array(ks, pa.int64()), "side": pa.array(sides, pa.string()),
        "a": numbers, "b": numbers, "x": numbers, "y": numbers,
    })  # fmt: skip
    return [tuple(r.values()) for out in ran.run([given], query, batch, 0) for r in out.to_pylist()]


def batches(seed: int, count: int, keys: int = 3) -> list[list[Row]]:
    chance, number, found = random.Random(seed), 0, []
    for _ in range(count):
        size = chance.choice((0, 1, 6, 20))
        found.append([
            (chance.randrange(keys), chance.choice(("left", "left", "right")), n) for n in range(number, number + size)
        ])  # fmt: skip
        number += size
    return found


def oracle(rows: list[Row], window: int = 10, per_key: bool = True) -> list[tuple[int, int, int]]:
    """Tuple by tuple, with lists."""
    held: dict[tuple[Any, str], list[Row]] = {}
    found = []
    for k, side, n in rows:
        mine, other = (held.setdefault((k if per_key else 0, s), []) for s in (side, _other(side)))
        found += [(k, m, n) if side == "right" else (k, n, m) for j, _, m in other if j == k]
        mine.append((k, side, n))
        del mine[: -(window if side == "left" else 3)]
    return found


def _other(side: str) -> str:
    return "right" if side == "left" else "left"


@pytest.mark.parametrize("checkpoint", [EXACT, EFFORT, None])
@pytest.mark.parametrize("key", ["k", None])
def test_a_join_in_groups_gives_over_batches_what_it_gives_tuple_by_tuple(
    tmp_path: Path, checkpoint: Any, key: str | None
) -> None:
    given, got = batches(1, 12), []
    ran = task(pairs(tmp_path, checkpoint, key=key))
    for batch, rows in enumerate(given):
        out = run(ran, batch, rows)
        if batch % 3 == 1:
            assert run(ran, batch, rows) == out, "a batch that is executed again"
        got += out
    every_row = [row for rows in given for row in rows]
    assert sorted(got) == sorted(oracle(every_row, per_key=key is not None))


@pytest.mark.parametrize("seed", range(3))
def test_a_join_in_exact_groups_that_moves_between_machines_at_random_gives_the_same(tmp_path: Path, seed: int) -> None:
    """C1: batches executed again, here or there; scratch is lost at times."""
    chance, given, got = random.Random(seed), batches(seed, 14), []
    machines = {name: task(pairs(tmp_path, EXACT, machine=name)) for name in "AB"}
    for batch, rows in enumerate(given):
        for _ in range(chance.choice((1, 1, 2))):
            out = run(machines[chance.choice("AB")], batch, rows)
        got += out
        if chance.random() < 0.3:
            shutil.rmtree(tmp_path / chance.choice("AB"), ignore_errors=True)
    assert sorted(got) == sorted(oracle([row for rows in given for row in rows]))


def stored(folder: Path) -> dict[bytes, int]:
    """Bytes of what was written last for each name that there is."""
    with open_store(f"log:{folder}/far/pairs/q/0-of-1") as store:
        return {key: len(saved.value) for key, _ in store.scan() if (saved := store.get(key))}


def grown(folder: Path) -> int:
    """Bytes that were ever written to a log."""
    return sum(path.stat().st_size for path in folder.rglob("segment-*"))


@pytest.mark.parametrize("checkpoint", [EXACT, EFFORT])
def test_bytes_saved_with_a_batch_follow_what_came_and_not_the_window(tmp_path: Path, checkpoint: Any) -> None:
    """Near and far, counted on disk: a batch of ten tuples, in windows of a thousand and of four thousand."""
    costs: dict[int, list[int]] = {}
    for window in (1_000, 4_000):
        folder = tmp_path / str(window)
        in_groups = groups(50, every=checkpoint.us / 1e6, exact=checkpoint.exact)
        ran = task(pairs(folder, in_groups, key=None, window=window))
        run(ran, 0, [(0, "left", n) for n in range(window)])
        costs[window] = []
        for where in ("near", "far"):
            before = grown(folder / where)
            for batch in range(1 + 10 * (where == "far"), 11 + 10 * (where == "far")):
                run(ran, batch, [(1, "left", window + batch * 10 + n) for n in range(10)])
            costs[window].append((grown(folder / where) - before) // 10)
    for small, large in zip(costs[1_000], costs[4_000], strict=True):
        assert large < small * 1.5, costs
        assert large < 8_000, "a window of 4,000 tuples has some 100,000 bytes"


def test_a_quiet_key_costs_nothing_and_the_names_of_parts_are_used_again(tmp_path: Path) -> None:
    ran = task(pairs(tmp_path, EXACT))
    run(ran, 0, [(k, "left", n) for n in range(10) for k in (1, 2)])
    for batch in range(1, 30):
        run(ran, batch, [(1, "left", 100 + batch)])
    names = {key[:-1] for key in stored(tmp_path) if key.startswith(b"p")}
    # Of key 1 there are 39 tuples, of which the last ten are in the groups 7, 8 and 9: the names 3, 0 and 1.
    expected = {1: (3, 0, 1), 2: (0, 1, 2)}
    assert names == {b"p" + part_key(encode(k), b"0.%d" % n) for k, numbers in expected.items() for n in numbers}


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_takes_over_the_groups_of_its_parent_and_leaves_them_alone(tmp_path: Path, lost: bool) -> None:
    """S1."""
    operator, given = pairs(tmp_path, EXACT), batches(5, 8)
    main = task(operator)
    got = [run(main, batch, rows) for batch, rows in enumerate(given[:5])]
    if lost:
        (tmp_path / "near").rename(tmp_path / "elsewhere")
    before = stored(tmp_path)
    fork = task(operator, ForkOf("q", str(tmp_path / "fork" / "operators")))
    forked = [run(fork, batch, given[batch], "f") for batch in (5, 6, 7)]
    assert stored(tmp_path) == before
    got += [run(main, batch, given[batch]) for batch in (5, 6, 7)]
    assert forked == got[5:]
    assert sorted(p for out in got for p in out) == sorted(oracle([row for rows in given for row in rows]))


class Lasting(GroupedJoin):
    time_to_live_us = 50


def test_a_key_that_is_forgotten_goes_with_its_groups(tmp_path: Path) -> None:
    """By the column `a`: key 1 is quiet for long enough, in one batch and over batches."""

    def made() -> GroupedJoin:
        return Lasting(Input(LEFT, 10), Input(RIGHT, 3), "k", "side", 4)

    for checkpoint in (every("1s", exact=True), every("0.000001s")):
        folder = tmp_path / str(checkpoint.exact)
        operator = replace(pairs(folder, checkpoint), prototype=made, time="a")
        ran = task(operator)
        run(ran, 0, [(1, "left", n) for n in range(1, 10)] + [(2, "left", n) for n in range(10, 20)])
        assert run(ran, 1, [(2, "right", 20), (1, "right", 75)]) == [(2, n, 20) for n in range(10, 20)]
        assert run(ran, 2, [(1, "left", 76), (1, "right", 77)]) == [(1, 76, 75), (1, 76, 77)]
        run(ran, 3, [(3, "left", 190)])
        run(ran, 4, [(3, "left", 191)])
        kept = {key[3:4] for key in stored(folder) if key.startswith(b"p")}
        assert kept == {encode(3)}, "keys 1 and 2 are forgotten with all their parts"


def damaged(folder: Path, name: bytes) -> Path:
    """Flip a bit of what is saved by a name, where it has one version; the file."""
    (path,) = (p for p in (folder / "far").rglob("*") if p.is_file() and name in p.read_bytes())
    raw = bytearray(path.read_bytes())
    raw[raw.index(name) + len(name) + 60] ^= 1
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(("kind", "unlisted"), [("files", False), ("files", True), ("log", False)])
def test_a_damaged_group_costs_one_group_in_best_effort_and_that_is_said(
    tmp_path: Path, kind: str, unlisted: bool
) -> None:
    """C11. A file that cannot be read or is not there at all, or a place in a log; the join goes on with the rest."""
    ran = task(pairs(tmp_path, EFFORT, key=None, kind=kind))
    run(ran, 0, [(1, "left", n) for n in range(10)])
    path = damaged(tmp_path, b"p" + part_key(b"*", b"0.1"))
    if unlisted:
        path.unlink()
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(RuntimeWarning, match="1 of 3 parts of states cannot be read any more; goes on without them"):
        found = run(ran, 1, [(1, "right", 100)])
    assert found == [(1, n, 100) for n in (0, 1, 2, 3, 8, 9)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be read")
        assert run(ran, 2, [(2, "left", 10), (1, "right", 101)]) == [(1, n, 101) for n in (0, 1, 2, 3, 8, 9)]
        shutil.rmtree(tmp_path / "near")
        assert run(ran, 3, [(1, "right", 102)]) == [(1, n, 102) for n in (0, 1, 2, 3, 8, 9)]


def test_exact_refuses_to_go_on_without_a_group(tmp_path: Path) -> None:
    ran = task(pairs(tmp_path, EXACT, key=None, kind="files"))
    run(ran, 0, [(1, "left", n) for n in range(10)])
    damaged(tmp_path, b"p" + part_key(b"*", b"0.1")).unlink()
    shutil.rmtree(tmp_path / "near")
    with pytest.raises(CorruptLog, match="1 of 3 parts of states cannot be read any more; restore"):
        run(ran, 1, [(1, "right", 100)])


def test_best_effort_goes_on_from_windows_that_were_there_at_the_last_checkpoint(tmp_path: Path) -> None:
    """C7."""
    hourly = pairs(tmp_path, groups(4, every="1h"), key=None)
    ran = task(pairs(tmp_path, EFFORT, key=None))
    run(ran, 0, [(1, "left", n) for n in range(6)])
    run(task(hourly), 1, [(1, "left", n) for n in range(6, 9)])  # Not due: the store does not know of these.
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(RuntimeWarning, match="goes on with the state of batch 1 in batch 2"):
        assert run(ran, 2, [(1, "right", 100)]) == [(1, n, 100) for n in range(6)]
    assert run(ran, 3, [(2, "left", 20), (1, "right", 101)]) == [(1, n, 101) for n in range(6)]


class Cut(MemoryStore):
    """A server that is killed in the middle of what it writes, and comes back with what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.was_cut = 1 << 30, False

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        some = entries[: self.left]
        taken = super()._write(some)
        self.left -= len(some)
        if len(some) < len(entries):
            self.was_cut = True
            raise PeerError("killed")
        return taken

    def close(self) -> None:
        """Servers stay."""


@pytest.mark.filterwarnings("ignore:.*best effort")
@pytest.mark.parametrize("seed", range(6))
def test_saves_that_are_cut_short_and_scratch_that_is_lost_never_make_windows_that_were_not_there(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, C7: after a loss, the join goes on from the tuples as of the last save that was whole, all keys together."""
    chance, server = random.Random(seed), Cut()
    monkeypatch.setattr("holdfast.spark.durable_state.open_store", lambda _: server)
    ran = task(replace(pairs(tmp_path, EFFORT), store="redis://nowhere"))
    taken: list[Row] = []
    whole: list[Row] = []
    for batch, rows in enumerate(batches(seed, 25)):
        server.left, server.was_cut = chance.randint(0, 9) if chance.random() < 0.5 else 1 << 30, False
        expected = oracle(taken + rows)[len(oracle(taken)) :]
        assert sorted(run(ran, batch, rows)) == sorted(expected)
        taken += rows
        server.left = 1 << 30
        if not server.was_cut:
            whole = list(taken)
        if chance.random() < 0.25:
            shutil.rmtree(tmp_path / "near")
            taken = list(whole)


def test_a_join_that_was_saved_whole_goes_on_in_groups(tmp_path: Path) -> None:
    whole = task(pairs(tmp_path, every("1s", exact=True), key=None))
    run(whole, 0, [(1, "left", n) for n in range(6)])
    ran = task(pairs(tmp_path, EXACT, key=None))
    assert run(ran, 1, [(1, "right", 100)]) == [(1, n, 100) for n in range(6)]
    with pytest.raises(UsageError, match="was saved in parts"):
        run(whole, 2, [(1, "right", 101)])


def test_what_protects_a_join_and_a_barrier_on_spark_is_shown(tmp_path: Path) -> None:
    found = operator_line(pairs(tmp_path, groups(512, every="1s")).protection)
    assert found.startswith('pairs (join, sliding windows): groups(512, every="1s") saves the groups of 512 tuples')
    assert found.endswith("guarantee: best effort")
    assert "with each batch" in operator_line(pairs(tmp_path, groups(512, every="1s", exact=True)).protection)
    assert "whole" in operator_line(pairs(tmp_path, every("1s")).protection)
    with pytest.raises(UsageError, match="does not protect"):
        udop("u", Summing, key="k", schema=PAIRS, checkpoint=groups(512, every="1s"), store="memory:")
    with pytest.raises(UsageError, match="does not protect"):
        udop("u", Summing, key="k", schema=PAIRS, checkpoint=upstream(), store="memory:")


INPUTS = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("y", pa.int64())])}


def gate(folder: Path, machine: str = "near", checkpoint: Any = None) -> Keyed:
    schema = StructType().add("x", LongType()).add("y", LongType())
    return barrier("pairs", INPUTS, schema=schema, store=f"log:{folder}/far", checkpoint=checkpoint,
                   scratch=str(folder / machine))  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_barrier_pairs_the_same_whatever_is_run_again_moved_or_lost(tmp_path: Path, seed: int) -> None:
    """004 §4: the k-th tuples of both inputs; one of them runs ahead for long."""
    chance, number, got = random.Random(seed), 0, []
    machines = {name: task(gate(tmp_path, name)) for name in "AB"}
    of: dict[str, list[int]] = {"a": [], "b": []}
    for batch in range(14):
        ahead = "aaab" if batch < 7 else "abbb"
        rows = [(0, chance.choice(ahead), n) for n in range(number, number + chance.choice((0, 1, 7)))]
        number += len(rows)
        for _, side, n in rows:
            of[side].append(n)
        for _ in range(chance.choice((1, 1, 2))):
            out = run(machines[chance.choice("AB")], batch, rows)
        got += out
        if chance.random() < 0.3:
            shutil.rmtree(tmp_path / chance.choice("AB"), ignore_errors=True)
    assert got == list(zip(of["a"], of["b"], strict=False))
    assert got


def test_a_barrier_saves_what_came_and_removes_what_was_paired(tmp_path: Path) -> None:
    ran = task(gate(tmp_path))
    run(ran, 0, [(0, "a", n) for n in range(5_000)])
    before = grown(tmp_path)
    for batch in range(1, 6):
        run(ran, batch, [(0, "a", 10_000 + batch)])
    assert (grown(tmp_path) - before) // 5 < 8_000, "5,000 tuples in flight have 40,000 bytes"
    assert run(ran, 6, [(0, "b", 20_000 + n) for n in range(5_004)])[-1] == (10_004, 25_003)
    run(ran, 7, [(0, "a", 30_000)])
    run(ran, 8, [])
    parts = {key[:-1] for key in stored(tmp_path) if key.startswith(b"p")}
    assert parts == {b"p" + part_key(b"*", b"5"), b"p" + part_key(b"*", b"0")}, "two tuples are left in flight"


def test_upstream_is_what_protects_a_barrier_and_nothing_else_does(tmp_path: Path) -> None:
    assert gate(tmp_path, checkpoint=upstream()) == gate(tmp_path)
    assert "upstream() saves the tuples on their way" in operator_line(gate(tmp_path).protection)
    assert operator_line(gate(tmp_path).protection).endswith("guarantee: exact")
    with pytest.raises(UsageError, match=r"a barrier keeps tuples in flight, which every.* does not protect; use upst"):
        gate(tmp_path, checkpoint=every("1s", exact=True))


def timed(ran: Task, batch: int, rows: list[tuple[int, int, str, int]]) -> list[tuple[Any, ...]]:
    """The same with a time: (stime in seconds, key, side, number)."""
    times, ks, sides, values = zip(*rows, strict=True)
    numbers = pa.array(values, pa.int64())
    given = pa.record_batch({
        "stime": pa.array([t * 1_000_000 for t in times], pa.timestamp("us", "UTC")), "tuple_id": numbers,
        "k": pa.array(ks, pa.int64()), "side": pa.array(sides, pa.string()),
        "a": numbers, "b": numbers, "x": numbers, "y": numbers,
    })  # fmt: skip
    found = [r for out in ran.run([given], "q", batch, 0) for r in out.to_pylist()]
    return [(round(r.pop("stime").timestamp()), *r.values()) for r in found]


def with_time(operator: Keyed) -> Keyed:
    assert isinstance(operator.schema, StructType)
    schema = StructType().add("stime", TimestampType())
    for field in operator.schema:
        schema = schema.add(field)
    return replace(operator, schema=schema)


def test_a_pair_has_the_time_of_the_later_of_its_tuples(tmp_path: Path) -> None:
    ran = task(with_time(pairs(tmp_path, EXACT)))
    first = [(10, 1, "left", 1), (11, 2, "left", 2), (12, 1, "right", 3), (12, 2, "right", 4), (13, 1, "left", 5)]
    assert timed(ran, 0, first) == [(12, 1, 1, 3), (13, 1, 5, 3), (12, 2, 2, 4)]
    shutil.rmtree(tmp_path / "near")
    assert timed(ran, 1, [(20, 2, "left", 6), (21, 1, "right", 7)]) == [(20, 2, 6, 4), (21, 1, 1, 7), (21, 1, 5, 7)]


def test_a_result_of_a_barrier_has_the_time_of_the_last_of_its_tuples(tmp_path: Path) -> None:
    ran = task(with_time(gate(tmp_path)))
    assert timed(ran, 0, [(10, 0, "a", 1), (11, 0, "a", 2), (12, 0, "b", 3), (13, 0, "a", 4)]) == [(12, 1, 3)]
    shutil.rmtree(tmp_path / "near")
    found = timed(ran, 1, [(20, 0, "b", 5), (21, 0, "b", 6), (22, 0, "b", 7), (23, 0, "a", 8), (24, 0, "b", 9)])
    assert found == [(20, 2, 5), (21, 4, 6), (23, 8, 7)]


@pytest.mark.parametrize("lost", [False, True], ids=["scratch", "store"])
def test_a_state_is_used_only_by_the_operator_that_made_it(tmp_path: Path, lost: bool) -> None:
    """C12: a smaller window, another input, another time column; nothing changes meanwhile."""
    made = pairs(tmp_path, EXACT)
    run(task(made), 0, [(1, "left", n) for n in range(6)])
    if lost:
        shutil.rmtree(tmp_path / "near")
    more = Input(LEFT.append(pa.field("x", pa.int64())), 10)
    others = {
        "the last 10 of .* the last 5 of": pairs(tmp_path, EXACT, window=5),
        r"\(k int64, a int64, x int64\)": replace(made, prototype=keyed_join(more, Input(RIGHT, 3), on="k")),
        "time of the clock .* time a": replace(made, time="a"),
        "key k .* no key": replace(made, key=None),
    }
    for said, other in others.items():
        with pytest.raises(UsageError, match=f"pairs must be the one that made its state; it has changed: .*{said}"):
            run(task(other), 1, [(1, "right", 100)])
    grouped = replace(made, checkpoint=groups(2, every="1s", exact=True))  # How it is saved may change.
    assert run(task(grouped), 1, [(1, "right", 100)]) == [(1, n, 100) for n in range(6)]
    fits = replace(pairs(tmp_path, EXACT, window=5), state_fits=True)
    assert run(task(fits), 2, [(1, "right", 101)]) == [(1, n, 101) for n in range(1, 6)]
    assert run(task(pairs(tmp_path, EXACT, window=5)), 3, []) == [], "from then on that is the operator"
