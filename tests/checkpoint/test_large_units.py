"""Units that go past the page cache (L3, L4, C6): on disk they are units as any other."""

from __future__ import annotations

import mmap
import os
import random
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint.store import EntryInPieces, Saved
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.log_direct import Room
from holdfast.model.errors import CorruptLog
from holdfast.stream.disk import PAGE, Disk
from tests.checkpoint.test_log_store import abandon
from tests.checkpoint.test_store_power import CUTS, Life


class Counting(Disk):
    direct = 0

    def write_direct(self, fd: int, path: Path, offset: int, block: memoryview) -> int:
        assert offset % PAGE == len(block) % PAGE == 0
        self.direct += 1
        return super().write_direct(fd, path, offset, block)


def _puts(store: LogStore, seed: int, rounds: int) -> dict[bytes, Saved]:
    """Small and large units in turns, of values whole and in pieces."""
    chance, kept = random.Random(seed), {}
    for version in range(rounds):
        entries = {}
        for _ in range(chance.choice((1, 2, 12))):
            raw = chance.randbytes(chance.choice((0, 7, 3000, 90_000, 300_000)))
            key, cut = b"key-%d" % chance.randrange(25), chance.randint(0, len(raw))
            value = raw if chance.random() < 0.3 else (raw[:cut], memoryview(raw)[cut:])
            entries[key] = EntryInPieces(key, version, value)
            kept[key] = Saved(version, raw)
        assert all(store.put_many(entries.values()))
    return kept


def test_small_and_large_units_in_turns_are_read_back_after_any_end(tmp_path: Path) -> None:
    disk = Counting()
    store = LogStore(tmp_path / "a", segment_bytes=4 << 20, background=False, disk=disk)
    kept = _puts(store, 1, 40)
    assert disk.direct > 10
    assert store.get_many(kept) == kept
    store.maintain()
    kept |= {key: Saved(s.version + 100, s.value) for key, s in _puts_later(store, 2).items()}
    abandon(store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "index").unlink()
    for folder in ("a", "b"):
        with LogStore(tmp_path / folder) as again:
            assert again.get_many(kept) == kept
            assert again.scan() == sorted((key, saved.version) for key, saved in kept.items())


def _puts_later(store: LogStore, seed: int) -> dict[bytes, Saved]:
    chance, kept = random.Random(seed), {}
    for version in range(12):
        key, raw = b"key-%d" % chance.randrange(25), chance.randbytes(chance.choice((5, 300_000)))
        assert store.put(key, version + 100, raw)
        kept[key] = Saved(version, raw)
    return kept


def test_a_log_of_either_way_of_writing_is_gone_on_with_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs from before there were such units, and a file system that cannot."""
    kept: dict[bytes, Saved] = {}
    for turn in range(6):
        with monkeypatch.context() as patch:
            if turn % 2:
                patch.setattr(Room, "fits", lambda self, size: False)
            with LogStore(tmp_path) as store:
                assert store.get_many(kept) == kept
                for i in range(3):
                    key, raw = b"key-%d" % i, random.Random(turn * 10 + i).randbytes(400_000 if i else 9)
                    assert store.put(key, turn, raw)
                    kept[key] = Saved(turn, raw)
    with LogStore(tmp_path) as store:
        assert store.get_many(kept) == kept


def test_a_value_larger_than_the_room_is_written_all_the_same(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(20 << 20)
    with LogStore(tmp_path) as store:
        assert store.put(b"k", 1, (large[:5], memoryview(large)[5:]))
        assert store.put(b"small", 1, b"x")
    with LogStore(tmp_path) as store:
        assert store.get(b"k") == Saved(1, large)


def test_the_last_large_unit_cut_short_anywhere_is_dropped_and_any_other_is_told(tmp_path: Path) -> None:
    """L3, L4."""
    chance = random.Random(6)
    value = chance.randbytes(300_000)
    store = LogStore(tmp_path / "a", background=False)
    for version in (1, 2):
        assert store.put(b"k", version, value[version:])
    abandon(store)
    name = "segment-0000000001"
    whole = (tmp_path / "a" / name).read_bytes()
    assert len(whole) % PAGE == 0
    half = len(whole) // 2
    for cut in (half + 1, half + 70, chance.randrange(half + 100, len(whole)), len(whole) - 1):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "a", folder)
        os.truncate(folder / name, cut)
        with LogStore(folder) as again:
            assert again.get(b"k") == Saved(1, value[1:])
    raw = bytearray(whole)
    raw[100] ^= 16
    (tmp_path / "a" / name).write_bytes(raw)
    with pytest.raises(CorruptLog, match="is damaged"):
        LogStore(tmp_path / "a")


def test_pages_of_a_large_unit_that_came_before_its_head_are_cut_off(tmp_path: Path) -> None:
    """L3: else a shorter unit is written over them, and what is left of them looks like damage in a sealed segment."""
    store = LogStore(tmp_path, background=False, segment_bytes=1 << 20)
    assert store.put(b"k", 1, b"small")
    abandon(store)
    with (tmp_path / "segment-0000000001").open("r+b") as file:
        end = len(file.read().rstrip(b"\0"))
        file.seek(-(-end // PAGE) * PAGE)
        file.write(random.Random(8).randbytes(400_000))
    store = LogStore(tmp_path, background=False, segment_bytes=1 << 20)
    for version in range(2, 6):
        assert store.put(b"k", version, bytes([version]) * 300_000)
    abandon(store)
    with LogStore(tmp_path) as again:
        assert again.get(b"k") == Saved(5, b"\5" * 300_000)
        assert not again.damage


class LargeLife(Life):
    """The life of a store with units of both kinds."""

    def _value(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((5, 1500, 270_000, 270_000)))


def test_whatever_a_power_cut_leaves_of_large_units_every_acknowledged_checkpoint_is_there(tmp_path: Path) -> None:
    for seed in range(max(1, CUTS // 30)):
        life = LargeLife(tmp_path / str(seed), seed, _log)
        life.run(cuts=5)
        shutil.rmtree(tmp_path / str(seed))


def _log(folder: Path, disk: Disk) -> LogStore:
    return LogStore(folder, segment_bytes=1 << 20, flush_records=8, background=False, disk=disk)


@pytest.mark.parametrize(("offset", "size"), [(0, 2 * PAGE), (PAGE, PAGE), (100, PAGE), (0, 777)])
def test_what_the_file_system_does_not_take_past_the_cache_goes_through_it(
    tmp_path: Path, offset: int, size: int
) -> None:
    """Not aligned is one reason for that; another is a file system that never does."""
    room = mmap.mmap(-1, 4 * PAGE)
    room[:size] = random.Random(size).randbytes(size)
    disk, path = Disk(), tmp_path / "file"
    fd = disk.create(path)
    assert disk.write_direct(fd, path, offset, memoryview(room)[:size]) == size
    assert os.pread(fd, size + 1, offset) == room[:size]
    assert disk.write(fd, path, offset + size, [b"more"]) == 4
    os.close(fd)
    assert path.read_bytes() == bytes(offset) + room[:size] + b"more"
