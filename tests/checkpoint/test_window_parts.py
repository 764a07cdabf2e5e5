"""Windows as parts of a state: only groups with new tuples are saved, and a lost one costs its own tuples."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.errors import CorruptLog
from holdfast.operators.keyed_join import GroupedJoin, JoinPrototype, keyed_join
from holdfast.operators.state_parts import Changed, follow, pack, sorted_out, unpack
from holdfast.operators.window_join import Input

LEFT = pa.schema([("k", pa.int64()), ("a", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("b", pa.int64())])
RESULT = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])


def prototype(size: int, window: int = 20, per: str | None = None) -> JoinPrototype:
    return keyed_join(Input(LEFT, window, per), Input(RIGHT, 7), on="k").in_groups(size)


def rows(chance: random.Random, first: int, count: int) -> pa.RecordBatch:
    given = [(chance.randint(0, 2), chance.choice(("left", "left", "right"))) for _ in range(count)]
    return pa.record_batch({
        "k": pa.array([k for k, _ in given], pa.int64()), "side": pa.array([side for _, side in given], pa.string()),
        "a": pa.array(range(first, first + count), pa.int64()), "b": pa.array(range(first, first + count), pa.int64()),
    })  # fmt: skip


class Saved:
    """What a store would have: an oracle that knows nothing of groups."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        self.head = b""

    def save(self, changed: Changed) -> int:
        """The bytes that were saved."""
        self.head = changed.head
        for name, part in changed.parts.items():
            if part is None:
                self.parts.pop(name)
            else:
                self.parts[name] = part
        return len(changed.head) + sum(len(part or b"") for part in changed.parts.values())


def restored(made: Any, saved: Saved, without: bytes | None = None) -> GroupedJoin:
    join = made()
    assert isinstance(join, GroupedJoin)
    parts = {name: part for name, part in saved.parts.items() if name != without}
    join.restore_parts(saved.head, parts, [without] if without else [])
    return join


@pytest.mark.parametrize("per", [None, "k"])
@pytest.mark.parametrize("size", [1, 3, 20, 50])
def test_a_join_put_together_from_its_parts_gives_what_one_that_never_stopped_gives(size: int, per: str | None) -> None:
    chance, made, saved = random.Random(size), prototype(size, per=per), Saved()
    whole = keyed_join(made.left, made.right, on="k")()
    join = made()
    for step in range(40):
        batch = rows(chance, 100 * step, chance.choice((0, 1, 5, 30)))
        assert join.process_batch(batch).to_pylist() == whole.process_batch(batch).to_pylist()
        assert isinstance(join, GroupedJoin)
        saved.save(join.changes())
        if chance.random() < 0.6:
            join = restored(made, saved)


def test_what_is_saved_follows_what_came_and_not_the_window() -> None:
    chance = random.Random(1)
    sizes: dict[int, list[int]] = {}
    for window in (1_000, 10_000):
        join, saved = prototype(100, window)(), Saved()
        assert isinstance(join, GroupedJoin)
        join.process_batch(rows(chance, 0, 2 * window))
        first = saved.save(join.changes())
        sizes[window] = [saved.save(join.changes())]
        for _ in range(20):
            join.process_batch(rows(chance, 0, 50))
            sizes[window].append(saved.save(join.changes()))
        assert first > 5 * max(sizes[window])
        assert sizes[window][0] < 200, "nothing came, so nothing but the head is saved"
    assert max(sizes[10_000]) < 1.5 * max(sizes[1_000])


def test_names_are_used_again_so_that_there_are_never_more_than_a_window_needs() -> None:
    chance, join, saved = random.Random(2), prototype(4)(), Saved()
    assert isinstance(join, GroupedJoin)
    names: set[bytes] = set()
    for step in range(200):
        join.process_batch(rows(chance, step, 3))
        saved.save(join.changes())
        names |= set(saved.parts)
        numbers = [front for front in join._join.held() if front.oldest < front.next]
        assert len(saved.parts) == sum((f.next - 1) // 4 - f.oldest // 4 + 1 for f in numbers)
    assert len(names) == (20 // 4 + 1) + (2 + 1)


@pytest.mark.parametrize("name", [b"0.0", b"0.2", b"0.5"])
def test_a_group_that_is_lost_costs_its_own_tuples_and_no_others(name: bytes) -> None:
    """C11; whatever comes afterwards, also of what is saved next."""
    chance, made, saved = random.Random(3), prototype(4), Saved()
    join = made()
    assert isinstance(join, GroupedJoin)
    for step in range(30):
        join.process_batch(rows(chance, 10 * step, 3))
        saved.save(join.changes())
    before = [r["a"] for r in join._join.contents()[0][b"*"].to_pylist()]
    damaged = restored(made, saved, without=name)
    left = [r["a"] for r in damaged._join.contents()[0][b"*"].to_pylist()]
    assert len(before) - 4 <= len(left) < len(before)
    assert left == [a for a in before if a in left]
    del saved.parts[name]
    saved.parts[name] = b""  # Not to be believed, and to be removed or replaced.
    for step in range(30, 60):
        damaged.process_batch(rows(chance, 10 * step, 3))
        saved.save(damaged.changes())
        again = restored(made, saved)
        assert again._join.contents() == damaged._join.contents()
    assert len(damaged._join.contents()[0][b"*"]) == 20


def test_groups_of_another_size_or_windows_of_another_are_cut_anew() -> None:
    chance, saved = random.Random(4), Saved()
    join = prototype(4)()
    assert isinstance(join, GroupedJoin)
    join.process_batch(rows(chance, 0, 60))
    saved.save(join.changes())
    for made in (prototype(7), prototype(7, window=60), prototype(3)):
        other = restored(made, saved)
        assert other._join.contents() == join._join.contents()
        saved.save(other.changes())
        assert restored(made, saved)._join.contents() == join._join.contents()


def test_a_part_belongs_to_its_head_or_is_lost() -> None:
    """C6: the directory has the checksum of each part as of its head."""
    directory = follow({b"a": 1, b"gone": 2}, {b"a": b"new", b"b": b"other", b"gone": None})
    packed = unpack(pack(b"head", directory))
    assert packed is not None
    assert packed.head == b"head"
    assert sorted_out(packed.directory, {b"a": b"new", b"b": b"older", b"c": b"?"}) == ({b"a": b"new"}, [b"b"])
    assert unpack(b"\x92\x01\x02") is None, "a state that was saved whole"
    with pytest.raises(CorruptLog, match="cannot be read"):
        unpack(pack(b"head", directory)[:-1])
