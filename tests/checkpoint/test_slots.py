"""Two versions of every key: what was begun can be begun again, also with a state that was removed meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.checkpoint.slots import Away, Slots
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog, PeerError, StorageError
from holdfast.stream.frame import crc32c

Make = Callable[[Path], CheckpointStore]


@pytest.mark.parametrize("make", [lambda _: MemoryStore(), LogStore, FilesStore])
def test_a_removed_state_is_there_for_who_begins_again_and_its_bytes_go_afterwards(tmp_path: Path, make: Make) -> None:
    with make(tmp_path) as store:
        slots = Slots(store)
        slots.save({b"a": b"1", b"b": b"1"}, 1, {b"batch": b"1"})
        slots.save({b"a": None}, 2, {b"batch": b"2"})
        assert (slots.read(b"a", 1), slots.read(b"a", 2)) == (b"1", None)
        assert slots.states(2) == {b"b": b"1"}
        slots.save({b"b": b"2"}, 3, {b"batch": b"3"})
        assert [key for key, _ in store.scan(b"sa")] == []
        assert slots.states(3) == {b"b": b"2"}
        slots.save({b"a": b"again"}, 4, {b"batch": b"4"})
        assert slots.states(4) == {b"a": b"again", b"b": b"2"}


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_two_versions_are_what_a_dictionary_says(seed: int) -> None:
    """With saves that are made again, as a batch that is executed again makes them."""
    chance, store = random.Random(seed), MemoryStore()
    slots = Slots(store)
    states: list[dict[bytes, bytes]] = [{}]
    for version in range(1, 60):
        change = {
            bytes([key]): None if chance.random() < 0.4 else b"%d.%d" % (key, version)
            for key in chance.sample(range(8), chance.randint(0, 4))
        }
        for _ in range(chance.choice((1, 2))):
            slots.save(change, version, {b"batch": b"%d" % version})
        now = {**states[-1], **change}
        states.append({key: value for key, value in now.items() if value is not None})
        assert slots.states(version) == states[version]
        assert slots.states(version - 1) == states[version - 1]


def damage(folder: Path, name: bytes) -> None:
    """Flip a bit in the newest file of every key of the store that has these bytes in its name."""
    for path in folder.iterdir():
        raw = bytearray(path.read_bytes()) if len(path.name) == 32 else bytearray()
        if name in raw:
            raw[-1] ^= 1
            path.write_bytes(raw)


def test_an_earlier_version_in_place_of_a_damaged_one_is_an_error_where_exact_was_promised(tmp_path: Path) -> None:
    """C11. Slot 0 has versions 1 and 3, slot 1 has 2; without 3, what is left is 2, which nobody may go on from."""
    with FilesStore(tmp_path) as store:
        for version in (1, 2, 3):
            Slots(store).save({b"a": b"%d" % version}, version, {b"batch": b"%d" % version})
        damage(tmp_path, b"sa0")
        with pytest.raises(CorruptLog, match="newest version is damaged"):
            Slots(store).read(b"a", 3)
        with pytest.raises(CorruptLog, match="newest version is damaged"):
            Slots(store).states(3)
        assert Slots(store).read(b"a", 2) == b"2", "this one is not in doubt"
        with pytest.warns(RuntimeWarning, match="newest version is damaged"):
            assert Slots(store, exact=False).read(b"a", 3) == b"2"


@pytest.mark.parametrize("seed", range(5))
def test_parts_have_two_versions_as_states_have_and_go_as_states_go(seed: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    slots = Slots(store)
    known: list[tuple[dict[bytes, bytes], dict[bytes, bytes]]] = [({}, {})]
    for version in range(1, 60):
        changes = [
            {
                bytes([key]): None if chance.random() < 0.4 else b"%d.%d" % (key, version)
                for key in chance.sample(range(8), chance.randint(0, 4))
            }
            for _ in range(2)
        ]
        for _ in range(chance.choice((1, 2))):
            slots.save(changes[0], version, {b"batch": b"%d" % version}, changes[1])
        now = [{**before, **change} for before, change in zip(known[-1], changes, strict=True)]
        known.append(tuple({k: v for k, v in kept.items() if v is not None} for kept in now))  # type: ignore[arg-type]
        for asked in (version, version - 1):
            assert (slots.states(asked), slots.parts(asked)) == known[asked]
            assert slots.read_parts([bytes([key]) for key in range(8)], asked) == known[asked][1]


class Stopping(MemoryStore):
    """Takes so many more writes and then none, as a server that is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        some = entries[: self.left]
        taken = super()._write(some)
        self.left -= len(some)
        if len(some) < len(entries):
            raise PeerError("killed")
        return taken


@pytest.mark.parametrize("seed", range(40))
def test_saves_that_were_cut_short_again_and_again_leave_the_last_whole_one_as_it_was(seed: int) -> None:
    """C6: each is cut after some writes; what they left is told, so that whoever goes on can save it anew."""
    chance, store = random.Random(seed), Stopping()
    slots = Slots(store)
    whole: tuple[int, dict[bytes, bytes], dict[bytes, bytes]] = (0, {}, {})
    pending: tuple[set[bytes], set[bytes]] = (set(), set())
    now: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
    for version in range(1, 40):
        for kept, names in zip(now, pending, strict=True):
            for key in chance.sample(range(6), chance.randint(0, 3)):
                names.add(bytes([key]))
                kept[bytes([key])] = b"%d.%d" % (key, version)
                if chance.random() < 0.3:
                    del kept[bytes([key])]
        both = zip(now, pending, strict=True)
        states, parts = ({key: kept.get(key) for key in sorted(names)} for kept, names in both)
        store.left = chance.randint(0, 12) if chance.random() < 0.7 else 1 << 30
        try:
            slots.save(states, version, {b"keys": b"%d" % version, b"batch": b"%d" % version}, parts)
        except PeerError:
            store.left = 1 << 30
        else:
            whole, pending = (version, dict(now[0]), dict(now[1])), (set(), set())
        at = int(slots.mark(b"batch", version) or 0)
        assert at == whole[0]
        assert (slots.states(at), slots.parts(at)) == whole[1:]
        if chance.random() < 0.3:  # All but the store is lost: on from what was whole.
            now = (dict(whole[1]), dict(whole[2]))
            left = slots.leftovers(at)
            pending = (set(left.states), set(left.parts))


def test_in_best_effort_a_damaged_part_costs_itself_alone(tmp_path: Path) -> None:
    """C11, with a store that has nothing to fall back to."""
    with FilesStore(tmp_path, keep=1) as store:
        Slots(store).save({b"a": b"1"}, 1, {b"batch": b"1"}, {b"%d" % n: b"part %d" % n for n in range(9)})
        damage(tmp_path, b"p40")
        names = [b"%d" % n for n in range(9)]
        with pytest.raises(CorruptLog):
            Slots(store).read_parts(names, 1)
        with pytest.warns(RuntimeWarning, match="damaged and not used"):
            found = Slots(store, exact=False).read_parts(names, 1)
        assert found == {b"%d" % n: b"part %d" % n for n in range(9) if n != 4}


@pytest.mark.parametrize("seed", range(5))
def test_states_that_are_away_are_read_from_beyond_as_if_they_were_here(seed: int) -> None:
    """Both have the newest two versions; those that left are gone from here, with whatever they were before."""
    chance, store = random.Random(seed), MemoryStore()
    near, far = Slots(store), Slots(MemoryStore())
    near.beyond = far
    states: list[dict[bytes, bytes]] = [{}]
    gone: set[bytes] = set()
    for version in range(1, 60):
        some = [bytes([key]) for key in chance.sample(range(8), chance.randint(0, 4))]
        change = {key: None if chance.random() < 0.3 else b"%d.%d" % (key[0], version) for key in some}
        quiet = [key for key in states[-1] if key not in change and chance.random() < 0.3]
        leaving = {key: Away(version - 1, crc32c(states[-1][key])) for key in quiet}
        for _ in range(chance.choice((1, 2))):
            if chance.random() < 0.5:
                near = Slots(store)  # Another batch.
                near.beyond = far
            asked = [key for key in states[-1] if chance.random() < 0.3]
            assert [near.read(key, version - 1) for key in asked] == [states[-1][key] for key in asked]
            gone -= set(asked)  # They have come back.
            far.save(change, version, {b"batch": b"%d" % version})
            near.save({**change, **leaving}, version, {b"batch": b"%d" % version})
        now = {**states[-1], **change}
        states.append({key: value for key, value in now.items() if value is not None})
        assert near.states(version) == states[version]
        assert near.states(version - 1) == states[version - 1]
        slots = {key: [store.get(b"s" + key + slot) for slot in (b"0", b"1")] for key in gone - set(change)}
        assert all(s is None or s.value.startswith(b"\xc1away1") for pair in slots.values() for s in pair)
        gone = set(quiet)


def test_a_state_that_is_away_is_not_taken_for_none_without_what_lies_beyond() -> None:
    near = Slots(MemoryStore())
    near.save({b"a": Away(1)}, 2, {b"batch": b"2"})
    with pytest.raises(StorageError, match="1 states lie in the store that outlives the machine, which is not at hand"):
        near.read(b"a", 2)
