"""Window groups and the sliding-window join (C7, C11; 004 §4.4)."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.checkpoint.policy import groups
from holdfast.checkpoint.safekeeper import Outcome, Result, SafeKeeper
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.checkpoint.window_groups import WindowGroups
from holdfast.model.errors import CorruptLog, SchemaError, StorageError, UsageError
from holdfast.operators.keyed_join import keyed_join
from holdfast.operators.udop import Instances, lazily
from holdfast.operators.window_join import Input, WindowJoin

LEFT = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("l", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("r", pa.string())])
CODED = pa.dictionary(pa.int32(), pa.string())
LETTERS = pa.schema([("x", pa.string())])


class Windows:
    """The oracle: 004 §4.4 read literally, tuple by tuple, with double-ended queues."""

    def __init__(self, left: int, right: int, per: str | None) -> None:
        self.sizes, self.per = (left, right), per
        self.queues: tuple[dict[Any, deque[dict[str, Any]]], ...] = ({}, {})

    def arrive(self, which: int, row: dict[str, Any]) -> list[tuple[Any, ...]]:
        found = []
        others = [r for queue in self.queues[1 - which].values() for r in queue]
        for other in sorted(others, key=lambda r: r["_at"]):
            if other["k"] is not None and other["k"] == row["k"]:
                l, r = (row, other) if which == 0 else (other, row)  # noqa: E741
                found.append((l["k"], l["g"], l["l"], r["r"]))
        if self.sizes[which]:
            group = row[self.per] if which == 0 and self.per else None
            self.queues[which].setdefault(group, deque(maxlen=self.sizes[which])).append(row)
        return found


def _run(join: WindowJoin, oracle: Windows, chance: random.Random, batches: int, at: int = 0) -> int:
    for _ in range(batches):
        count = chance.randint(1, 40)
        order = np.array([chance.random() < 0.6 for _ in range(count)])
        rows: tuple[list[Any], list[Any]] = ([], [])
        expected = []
        for is_left in order.tolist():
            at += 1
            key = None if chance.random() < 0.05 else chance.randint(0, 6)
            row = (
                {"k": key, "g": chance.randint(0, 3), "l": f"l{at}", "_at": at}
                if is_left
                else {"k": key, "r": f"r{at}", "_at": at}
            )
            rows[0 if is_left else 1].append(row)
            expected += oracle.arrive(0 if is_left else 1, row)
        got = join.feed(_batch(rows[0], LEFT), _batch(rows[1], RIGHT), order)
        assert [tuple(r.values()) for r in got.to_pylist()] == expected
    return at


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{n: r[n] for n in schema.names} for r in rows], schema=schema)


@pytest.mark.parametrize(("left", "right", "per"), [(10, 0, None), (7, 5, None), (4, 0, "g"), (3, 6, "g"), (4, 0, "k")])
@pytest.mark.parametrize("seed", range(4))
def test_a_join_by_column_gives_what_single_tuples_give(left: int, right: int, per: str | None, seed: int) -> None:
    join = WindowJoin("j", Input(LEFT, left, per), Input(RIGHT, right), on="k")
    _run(join, Windows(left, right, per), random.Random(seed), 30)


@pytest.mark.parametrize("per", [None, "g"])
def test_a_window_restored_from_its_groups_joins_on_as_if_nothing_had_happened(per: str | None) -> None:
    chance, store = random.Random(5), MemoryStore()
    spec = {"left": Input(LEFT, 23, per), "right": Input(RIGHT, 9)}
    join = WindowJoin("j", **spec, on="k", checkpoint=groups(5, every="1s"))  # type: ignore[arg-type]
    oracle, keeper, at = Windows(23, 9, per), SafeKeeper(store), 0
    for round in range(12):
        at = _run(join, oracle, chance, 3, at)
        join.checkpoint(keeper, round)
        assert keeper.flush(30)
        again = WindowJoin("j", **spec, on="k", checkpoint=groups(5, every="1s"))  # type: ignore[arg-type]
        restored = again.restore(store)
        assert [r.lost for r in restored] == [0] * len(restored)
        assert again.contents() == join.contents()
        join = again
    keeper.close()


def test_the_example_of_figure_6() -> None:
    """004 §4.4: a window of 15 in groups of 5; 13 tuples, then 5 more; G1 lost three and is not saved again."""
    window = WindowGroups(b"w", 15, 5)
    assert window.slots == 4
    window.advance(b"*", 13)
    assert [(d.group, d.first, d.end) for d in window.dirty(1)] == [(0, 0, 5), (1, 5, 10), (2, 10, 13)]
    window.advance(b"*", 18)
    assert [(d.group, d.first, d.end) for d in window.dirty(2)] == [(2, 10, 15), (3, 15, 18)]
    assert window.dirty(3) == []


def _saved(store: Any, count: int, every: int, window: int = 15, size: int = 5) -> None:
    """Letters 0 … count-1 through a window, saved after each `every`."""
    groups = WindowGroups(b"w", window, size)
    for end in range(every, count + 1, every):
        groups.advance(b"*", end)
        now = end * 1_000_000
        for d in groups.dirty(now):
            rows = pa.RecordBatch.from_pylist([{"x": str(i)} for i in range(d.first, d.end)], schema=LETTERS)
            entry = groups.entry(d, rows, now, end)
            store.put(entry.key, entry.version, entry.value)


@pytest.mark.parametrize("every", [1, 3, 7, 16, 40])
def test_groups_reassemble_the_window_by_number(every: int) -> None:
    """C11."""
    for count in range(every, 100, every):
        store = MemoryStore()
        _saved(store, count, every)
        restored = WindowGroups(b"w", 15, 5).restore(store, LETTERS)[b"*"]
        last = count // every * every
        assert restored.rows.column(0).to_pylist() == [str(i) for i in range(max(0, last - 15), last)]
        assert (restored.next, restored.lost, restored.trimmed, restored.problems) == (last, 0, 0, [])


def test_a_corrupt_group_costs_that_group_and_is_told(tmp_path: Path) -> None:
    """C11, with each group's file damaged in turn."""
    for victim in range(4):
        folder = tmp_path / str(victim)
        with FilesStore(folder, keep=1) as store:
            _saved(store, 18, 18)
        path = sorted(p for p in folder.iterdir() if len(p.name) == 32)[victim]
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 4
        path.write_bytes(raw)
        with FilesStore(folder, keep=1) as store:
            restored = WindowGroups(b"w", 15, 5).restore(store, LETTERS).get(b"*")
        assert restored is not None
        whole = {str(i) for i in range(3, 18)}
        left = set(restored.rows.column(0).to_pylist())
        assert left < whole
        assert len(whole - left) <= 5
        # What can be known is said: the hole in the numbers, or that the newest group's key could not be listed.
        assert restored.lost == len(whole - left) or restored.next < 18


def test_a_group_that_fell_back_to_an_earlier_version_is_told(tmp_path: Path) -> None:
    """C11: with what the store kept of a slot's earlier use, something is missing all the same."""
    with FilesStore(tmp_path, keep=2) as store:
        _saved(store, 60, 3)
        for path in tmp_path.iterdir():
            if len(path.name) == 32:
                raw = bytearray(path.read_bytes())
                raw[-3] ^= 4
                path.write_bytes(raw)
        restored = WindowGroups(b"w", 15, 5).restore(store, LETTERS)[b"*"]
    assert len(restored.problems) == 4
    assert all("an earlier one is used" in problem for problem in restored.problems)


def test_an_exact_window_whose_newest_mark_is_damaged_is_refused(tmp_path: Path) -> None:
    chance = random.Random(3)
    made = {"left": Input(LEFT, 9), "right": Input(RIGHT, 0), "on": "k"}
    join = WindowJoin("j", **made, checkpoint=groups(3, every="1s", exact=True))  # type: ignore[arg-type]
    with contextlib.closing(SafeKeeper(FilesStore(tmp_path))) as keeper:
        for _ in range(2):
            join.feed(*_random_batch(chance))
            join.checkpoint(keeper, 0)
    with FilesStore(tmp_path) as store:
        (mark,) = (p for p in store.folder.iterdir() if len(p.name) == 32 and b"=mark" in p.read_bytes())
        raw = bytearray(mark.read_bytes())
        raw[-1] ^= 1
        mark.write_bytes(raw)
        again = WindowJoin("j", **made, checkpoint=groups(3, every="1s", exact=True))  # type: ignore[arg-type]
        with pytest.raises(CorruptLog, match="newest mark is damaged"):
            again.restore(store)


def test_stale_tuples_are_trimmed_by_the_measured_rate_only_when_asked() -> None:
    """004 §4.4: N = (recovery − serialisation) · rate; here one tuple per second."""
    store = MemoryStore()
    _saved(store, 40, 1)
    groups = WindowGroups(b"w", 15, 5)
    assert groups.restore(store, LETTERS)[b"*"].rows.num_rows == 15
    late = groups.restore(store, LETTERS, now_us=44_000_000)[b"*"]
    assert late.trimmed == 4
    assert late.rows.column(0).to_pylist() == [str(i) for i in range(29, 40)]


class Clocked:
    """A join that is fed one tuple per second and group, saved each second; times are seconds."""

    def __init__(self, store: Any, per: str | None) -> None:
        self.store, self.results, self.at = store, [], 0
        self.keeper = SafeKeeper(store, on_result=self.results.append)
        self.input = Input(LEFT, 15, per)
        self.join = self.made()

    def made(self) -> WindowJoin:
        return WindowJoin("j", self.input, Input(RIGHT, 0), on="k", checkpoint=groups(5, every="1s"))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.at += 1
            rows = [{"k": self.at, "g": g, "l": f"{self.at}.{g}"} for g in range(2)]
            self.join.feed(_batch(rows if self.input.per else rows[:1], LEFT), _batch([], RIGHT))
            self.join.checkpoint(self.keeper, self.at * 1_000_000)
            assert self.keeper.flush(30)

    def crash(self, outage: int | None) -> list[Any]:
        self.at += outage or 0
        self.join = self.made()
        return self.join.restore(self.store, now_us=None if outage is None else self.at * 1_000_000)

    def window(self) -> dict[bytes, list[str]]:
        return {name: rows.column("l").to_pylist() for name, rows in self.join.contents()[0].items() if rows.num_rows}


@pytest.mark.parametrize("per", [None, "g"])
@pytest.mark.parametrize("fed", [17, 20])
def test_after_an_outage_of_any_length_later_checkpoints_are_taken_and_restore_what_was_there(
    fed: int, per: str | None
) -> None:
    """004 §4.4: trimmed in part, into the newest group, or as a whole; then saved and lost again."""
    for outage in (0, 3, 12, 13, 14, 15, 21):
        clocked = Clocked(MemoryStore(), per)
        clocked.run(fed)
        clocked.crash(outage)
        before = clocked.window()
        assert all(len(rows) == 15 - outage for rows in before.values())
        assert bool(before) == (outage < 15)
        for more in (1, 4):
            clocked.run(more)
            held = clocked.window()
            assert {r.outcome for r in clocked.results} == {Outcome.DURABLE}
            assert [r.lost for r in clocked.crash(None)] == [0] * len(held)
            assert clocked.window() == held, outage
        clocked.keeper.close()


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_where_the_newest_groups_are_lost_later_checkpoints_are_taken(tmp_path: Path, lost: int) -> None:
    """The store remembers their numbers although it cannot give them back."""

    class Damaged(MemoryStore):
        broken: frozenset[bytes] = frozenset()

        def _read(self, keys: Sequence[bytes]) -> list[Any]:
            if self.broken & set(keys):
                raise CorruptLog("does not match its checksum")
            return super()._read(keys)

        def _write(self, entries: Sequence[Entry]) -> list[bool]:
            self.broken -= {entry.key for entry in entries}
            return super()._write(entries)

    clocked = Clocked(store := Damaged(), None)
    clocked.run(18)
    assert [version for _, version in store.scan()] == [5, 10, 15, 18]
    store.broken = frozenset(key for key, _ in sorted(store.scan(), key=lambda pair: pair[1])[-lost:])
    (restored,) = clocked.crash(None)
    assert len(restored.problems) == lost
    left = clocked.window().get(b"*", [])
    for more in (1, 3, 7):
        clocked.run(more)
        assert {r.outcome for r in clocked.results} == {Outcome.DURABLE}
    held = clocked.window()[b"*"]
    assert held == [*left, *(f"{i}.0" for i in range(19, 30))][-15:]
    clocked.crash(None)
    again = clocked.window()[b"*"]
    assert again == held[-len(again) :], "none twice, none in another order"
    assert len(again) >= 11
    clocked.keeper.close()


def test_a_save_that_was_dropped_is_made_again() -> None:
    window = WindowGroups(b"w", 15, 5)
    window.advance(b"*", 13)
    first = window.dirty(1)
    window.unsaved(window.key(b"*", first[1].group))
    assert [d.group for d in window.dirty(2)] == [1, 2]


def test_a_join_hears_of_dropped_groups() -> None:
    join = WindowJoin("j", Input(LEFT, 20), Input(RIGHT, 0), on="k", checkpoint=groups(5, every="1s"))
    keeper = SafeKeeper(MemoryStore())
    rows = [{"k": i, "g": 0, "l": "x"} for i in range(12)]
    join.feed(_batch(rows, LEFT), _batch([], RIGHT))
    assert join.checkpoint(keeper, 1) == 3
    assert join.checkpoint(keeper, 2) == 0
    join.unsaved(Result(b"j.left/2a/000002", 12, Outcome.DROPPED, 0))
    assert join.checkpoint(keeper, 3) == 1
    keeper.close()


def test_a_join_with_a_window_per_key_restored_between_batches_gives_what_single_tuples_give() -> None:
    """As it runs on Spark: every batch from the states that the one before left in a store."""
    schema = pa.schema([*LEFT, ("r", pa.string()), ("side", pa.string())])
    joined = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("l", pa.string()), ("r", pa.string())])
    prototype = keyed_join(Input(LEFT, 4), Input(RIGHT, 2), on="k")
    chance, store = random.Random(8), MemoryStore()
    oracles: dict[int, Windows] = {}
    for batch in range(25):
        instances = Instances("pairs", prototype, "k", joined, load=lazily("pairs", store))
        rows, expected = [], []
        for i in range(chance.randint(1, 30)):
            is_left, key = chance.random() < 0.6, chance.randint(0, 4)
            row = {"k": key, "g": i, "l": f"{batch}.{i}", "r": f"r{batch}.{i}", "_at": batch * 100 + i}
            rows.append({n: row[n] for n in ("k", "g", "l", "r")} | {"side": "left" if is_left else "right"})
            expected += oracles.setdefault(key, Windows(4, 2, None)).arrive(0 if is_left else 1, row)
        got = instances.feed(pa.RecordBatch.from_pylist(rows, schema=schema))
        assert sorted(tuple(r.values()) for r in got.to_pylist()) == sorted(expected)
        store.put_many(instances.entries(instances.touched))


class PowerEnds(MemoryStore):
    """Takes so many entries, one by one, and nothing afterwards."""

    left = 1 << 60

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        taken = []
        for entry in entries:
            if not self.left:
                raise UsageError("the power is gone")
            self.left -= 1
            taken += super()._write([entry])
        return taken


@pytest.mark.parametrize("per", [None, "g"])
@pytest.mark.parametrize("seed", range(3))
def test_exact_groups_cut_at_any_write_and_replayed_give_what_the_run_without_a_cut_gives(
    per: str | None, seed: int
) -> None:
    """C1, C10, C11: the oracle is one join that never fails; every cut run must give its results from the mark on."""
    chance = random.Random(seed)
    batches = [_random_batch(chance) for _ in range(14)]
    made = {"left": Input(LEFT, 11, per), "right": Input(RIGHT, 6), "on": "k"}
    golden = WindowJoin("j", **made)  # type: ignore[arg-type]
    results = [golden.feed(*batch) for batch in batches]
    positions = [0, *np.cumsum([len(order) for _, _, order in batches]).tolist()]
    cut, whole = 0, False
    while not whole:
        cut += 1
        store, whole = PowerEnds(), True
        store.left = cut
        join, marked = WindowJoin("j", **made, checkpoint=groups(3, every="1s", exact=True)), 0  # type: ignore[arg-type]
        with contextlib.closing(SafeKeeper(store)) as keeper:
            for number, batch in enumerate(batches):
                join.feed(*batch)
                if number % 3 == 2:
                    try:
                        join.checkpoint(keeper, 0)
                    except StorageError:
                        whole = False
                        break
                    marked = join.position
        again = WindowJoin("j", **made, checkpoint=groups(3, every="1s", exact=True))  # type: ignore[arg-type]
        store.left = 1 << 60
        again.restore(store)
        assert again.position == marked
        begin = positions.index(marked)
        assert [again.feed(*batch) for batch in batches[begin:]] == results[begin:]
        assert [dict(sorted(side.items())) for side in again.contents()] == [
            dict(sorted(side.items())) for side in golden.contents()
        ]
        assert len(store.scan()) <= 2 * sum(len(w.groups) + 1 for w in join._exact.mark.windows) + 40  # type: ignore[union-attr]
    assert cut > 20


def test_an_exact_window_of_which_a_group_is_gone_is_refused() -> None:
    chance, store = random.Random(3), MemoryStore()
    join = WindowJoin("j", Input(LEFT, 9), Input(RIGHT, 0), on="k", checkpoint=groups(3, every="1s", exact=True))
    join.feed(*_random_batch(chance))
    with contextlib.closing(SafeKeeper(store)) as keeper:
        join.checkpoint(keeper, 0)
        store.delete(next(key for key, _ in store.scan(b"j/=/")), 99)
        again = WindowJoin("j", Input(LEFT, 9), Input(RIGHT, 0), on="k", checkpoint=groups(3, every="1s", exact=True))
        with pytest.raises(CorruptLog, match="not what its mark names"):
            again.restore(store)
        with pytest.raises(UsageError, match="best effort only"):
            again.restore(store, now_us=1)


@pytest.mark.parametrize("exact", [False, True])
def test_a_window_is_not_restored_into_a_program_with_other_columns(exact: bool) -> None:
    """As long as each value takes as many bytes, nothing else would tell that they are of another type now."""
    chance, store, policy = random.Random(3), MemoryStore(), groups(3, every="1s", exact=exact)
    join = WindowJoin("j", Input(LEFT, 9), Input(RIGHT, 0), on="k", checkpoint=policy)
    join.feed(*_random_batch(chance))
    with contextlib.closing(SafeKeeper(store)) as keeper:
        join.checkpoint(keeper, 0)
        assert keeper.flush(30)
    for columns in ([("g", pa.float64()), ("l", pa.string())], [("h", pa.int64()), ("l", pa.string())],
                    [("g", pa.int64()), ("l", pa.string()), ("m", pa.int64())], [("g", pa.int64())]):  # fmt: skip
        other = WindowJoin("j", Input(pa.schema([("k", pa.int64()), *columns]), 9), Input(RIGHT, 0), on="k",
                           checkpoint=policy)  # fmt: skip
        with pytest.raises(UsageError, match="with the columns it was saved with; the program has k int64, "):
            other.restore(store)
        with pytest.raises(UsageError, match="with the columns it was saved with"):
            other.load(join.snapshot())


@pytest.mark.parametrize("kind", [CODED, pa.list_(CODED), pa.struct([("name", CODED)])])
def test_a_column_that_could_not_be_restored_is_refused_before_anything_is_kept(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'source' of a window must hold its values themselves; got "):
        Input(pa.schema([("k", pa.int64()), ("source", kind)]), 8)


@pytest.mark.parametrize("exact", [False, True])
def test_a_window_that_was_made_smaller_is_restored_with_its_newest_tuples(exact: bool) -> None:
    chance, store, policy = random.Random(4), MemoryStore(), groups(3, every="1s", exact=exact)
    join = WindowJoin("j", Input(LEFT, 9), Input(RIGHT, 0), on="k", checkpoint=policy)
    while not (held := join.held()) or held[0].next < 9:
        join.feed(*_random_batch(chance))
    with contextlib.closing(SafeKeeper(store)) as keeper:
        join.checkpoint(keeper, 0)
        assert keeper.flush(30)
    (whole,) = join.held()
    smaller = WindowJoin("j", Input(LEFT, 4), Input(RIGHT, 0), on="k", checkpoint=policy)
    smaller.restore(store)
    (left,) = smaller.held()
    assert (left.oldest, left.next) == (whole.next - 4, whole.next)


@pytest.mark.parametrize(("before", "after"), [(5, 12), (4, 8), (12, 5), (10, 6)])
@pytest.mark.parametrize("exact", [False, True])
def test_checkpoints_of_a_window_that_has_another_size_now_hold_what_it_holds(
    before: int, after: int, exact: bool
) -> None:
    chance, store, policy = random.Random(before), MemoryStore(), groups(2, every="1s", exact=exact)

    def saved(join: WindowJoin) -> None:
        with contextlib.closing(SafeKeeper(store)) as keeper:
            join.checkpoint(keeper, 0)
            assert keeper.flush(30)

    def held(join: WindowJoin) -> list[dict[str, Any]]:
        return join._sides[0].rows.to_pylist()

    join = WindowJoin("j", Input(LEFT, before), Input(RIGHT, 0), on="k", checkpoint=policy)
    for _ in range(4):
        join.feed(*_random_batch(chance))
        saved(join)
    for restart in range(3):
        again = WindowJoin("j", Input(LEFT, after), Input(RIGHT, 0), on="k", checkpoint=policy)
        again.restore(store)
        expected, found = held(join)[-after:], held(again)
        # A larger window has room for tuples that had left the smaller one and were still in its groups.
        assert found[-len(expected) :] == expected
        assert len(found) == len(expected) or (restart == 0 and not exact and len(found) <= after)
        again.feed(*_random_batch(chance))
        saved(again)
        join = again


def _random_batch(chance: random.Random) -> tuple[pa.RecordBatch, pa.RecordBatch, Any]:
    order = np.array([chance.random() < 0.6 for _ in range(chance.randint(5, 20))])
    left = [
        {"k": chance.randint(0, 5), "g": chance.randint(0, 2), "l": str(chance.random())} for _ in range(order.sum())
    ]
    right = [{"k": chance.randint(0, 5), "r": str(chance.random())} for _ in range((~order).sum())]
    return _batch(left, LEFT), _batch(right, RIGHT), order
