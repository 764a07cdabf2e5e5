"""Two versions of every key: what was begun can be begun again, also with a state that was removed meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog

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
