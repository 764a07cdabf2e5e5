"""What is particular to the log store and to files: index, damage, collection, shared syncs (L4, L5, L8, L9, C6)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.store import Entry, Saved
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.log_index import newest
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.stream.disk import Disk

#: Raise it for a long run.
FLIPS = int(os.environ.get("HOLDFAST_STORE_FLIPS", "120"))


def filled(folder: Path, puts: int = 300, **options: object) -> dict[bytes, Saved]:
    """A log with several segments, a flush and a tail behind it, left as a crash leaves it."""
    chance, kept = random.Random(1), {}
    store = LogStore(folder, segment_bytes=8192, background=False, flush_records=10**9, **options)  # type: ignore[arg-type]
    for i in range(puts):
        key, value = b"key-%d" % chance.randrange(40), chance.randbytes(chance.randrange(300))
        store.put(key, i, value)
        kept[key] = Saved(i, value)
        if i == puts // 2:
            store.maintain()
    abandon(store)
    return kept


def abandon(store: LogStore) -> None:
    store._segments.close()
    store._owner.release()


def test_an_index_that_is_lost_stale_or_damaged_changes_nothing(tmp_path: Path) -> None:
    """L5."""
    kept = filled(tmp_path / "a")
    index = (tmp_path / "a" / "index").read_bytes()
    for number, broken in enumerate((None, index, index[: len(index) // 2], b"", index[:-5] + b"\x00" + index[-4:])):
        folder = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "a", folder)
        (folder / "index").unlink()
        if broken is not None:
            (folder / "index").write_bytes(broken)
        with LogStore(folder) as store:
            assert store.get_many(kept) == kept
            assert store.scan() == sorted((k, s.version) for k, s in kept.items())


def test_no_flipped_bit_is_ever_returned(tmp_path: Path) -> None:
    """L4: either the store says what is damaged, or what it returns was written; nothing else is lost silently."""
    kept = filled(tmp_path / "a", 120)
    chance = random.Random(9)
    said = 0
    files = sorted(p for p in (tmp_path / "a").iterdir() if p.name != "lock")
    for _ in range(FLIPS):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "a", folder)
        victim = folder / chance.choice(files).name
        raw = bytearray(victim.read_bytes())
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
        victim.write_bytes(raw)
        try:
            store = LogStore(folder, background=False)
        except (CorruptLog, StorageError):
            said += 1
        else:
            last = max(s.version for s in kept.values())
            for key, saved in kept.items():
                try:
                    found = store.get(key)
                except CorruptLog:
                    said += 1
                else:
                    # The last unit of a log looks torn if it is damaged, as if it had never been acknowledged.
                    assert found == saved or saved.version == last, f"{victim.name} byte {at}"
            abandon(store)
        shutil.rmtree(folder)
    assert said > FLIPS // 10


def test_damage_costs_its_own_unit_and_the_rest_opens_for_who_accepts_it(tmp_path: Path) -> None:
    with LogStore(tmp_path, background=False) as store:
        for i in range(20):
            store.put(b"key-%d" % i, 1, b"value-%d" % i * 20)
        abandon(store)
        store._closing = True
    (tmp_path / "index").unlink(missing_ok=True)
    segment = tmp_path / "segment-0000000001"
    raw = bytearray(segment.read_bytes())
    at = raw.index(b"key-7value-7")
    raw[at - 45] ^= 0xFF  # In the table of that unit: now not even its key can be told.
    segment.write_bytes(raw)
    with pytest.raises(CorruptLog, match="accept_damage=True"):
        LogStore(tmp_path)
    with LogStore(tmp_path, accept_damage=True) as store:
        assert len(store.damage) == 1
        assert {key for key, _ in store.scan()} == {b"key-%d" % i for i in range(20) if i != 7}
        assert store.put(b"key-7", 2, b"again")
    with LogStore(tmp_path) as store:  # The flush at the end knows everything that is left.
        assert store.damage == ()
        assert store.get(b"key-7") == Saved(2, b"again")


def test_a_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    sorted(tmp_path.glob("segment-*"))[0].unlink()
    with pytest.raises(CorruptLog, match="is gone although checkpoints are in it"):
        LogStore(tmp_path)


def test_reference_counts_equal_a_recount_and_the_log_stays_within_bounds(tmp_path: Path) -> None:
    """002 §3.4, figure 3.4; compaction when references keep files alive."""
    chance = random.Random(3)
    store = LogStore(tmp_path, segment_bytes=8192, background=False, flush_records=50)
    for i in range(60):
        store.put(b"lasting-%d" % i, 1, b"x" * 100)
    for i in range(1500):
        store.put(b"busy-%d" % chance.randrange(5), i, chance.randbytes(200))
        if i % 100 == 0:
            store._index.freeze()
            base = store._index.merge()
            counted = {segment: count for segment, (count, _) in base.live().items()}
            assert {s: n for s, n in store._references.items() if n} == counted
            live = sum(size for _, size in base.live().values())
            assert sum(store._segments.sizes.values()) <= 2 * live + 6 * 8192
    assert store.get_many(b"lasting-%d" % i for i in range(60)).keys() == {b"lasting-%d" % i for i in range(60)}
    store.close()


def test_callers_that_wait_share_a_sync(tmp_path: Path) -> None:
    class Counting(Disk):
        syncs = 0

        def sync(self, fd: int, path: Path) -> None:
            self.syncs += 1
            super().sync(fd, path)

    disk = Counting()
    with LogStore(tmp_path, disk=disk) as store:

        def work(i: int) -> None:
            for n in range(30):
                assert store.put(b"%d" % i, n, b"x" * 100)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        before = disk.syncs
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert disk.syncs - before < 32 * 30 / 3


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_store_is_opened_again(tmp_path: Path) -> None:
    """L9."""

    class Failing(Disk):
        fail = False

        def sync(self, fd: int, path: Path) -> None:
            if self.fail:
                raise StorageError("could not make durable: Input/output error")
            super().sync(fd, path)

    disk = Failing()
    store = LogStore(tmp_path, disk=disk)
    store.put(b"a", 1, b"1")
    disk.fail = True
    with pytest.raises(StorageError):
        store.put(b"a", 2, b"2")
    disk.fail = False
    with pytest.raises(StorageError, match="open it again"):
        store.put(b"b", 1, b"1")
    assert store.get(b"a") == Saved(1, b"1")
    store.close()
    with LogStore(tmp_path) as again:
        assert again.get(b"a") in (Saved(1, b"1"), Saved(2, b"2"))
        assert again.get(b"b") is None


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """C8 with a real process: each acknowledged version is printed, then the process is killed at a random moment."""
    program = (
        "import sys\nfrom holdfast.checkpoint.stores.log import LogStore\n"
        "s = LogStore(sys.argv[1], segment_bytes=65536, flush_records=200)\n"
        "i = max([v for _, v in s.scan()], default=0)\n"
        "while True:\n    i += 1\n    s.put(b'k%d' % (i % 50), i, b'%d' % i * 50)\n    print(i, flush=True)\n"
    )
    acked = 0
    for life in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
        assert process.stdout is not None
        for _ in range(150 + 211 * life):
            acked = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        acked = int(rest[-1]) if rest else acked
        process.wait()
        with LogStore(tmp_path) as store:
            versions = dict(store.scan())
            last = max(versions.values())
            assert last in (acked, acked + 1)
            for key, version in versions.items():
                assert store.get(key) == Saved(version, b"%d" % version * 50)
                assert version > acked - 50
        acked = last


def test_the_last_record_of_each_digest_wins_also_where_halves_of_digests_agree() -> None:
    chance = np.random.default_rng(5)
    for _ in range(50):
        h1, h2 = chance.integers(0, 6, 200).astype("<u8"), chance.integers(0, 3, 200).astype("<u8")
        expected = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(h1, h2, strict=True))}
        rows = newest(h1, h2).tolist()
        assert sorted(rows) == sorted(expected.values())
        assert [int(h1[i]) for i in rows] == sorted(int(h1[i]) for i in rows)


def test_files_fall_back_to_the_version_before_a_damaged_one_and_say_so(tmp_path: Path) -> None:
    """C6, 004 §4.2: never a fresh state in silence."""
    with FilesStore(tmp_path, keep=3) as store:
        for version in (1, 2, 3):
            store.put(b"k", version, b"value %d" % version)
        for passed, name in enumerate(sorted(p.name for p in tmp_path.iterdir() if p.name != "lock"), 1):
            raw = bytearray((tmp_path / name).read_bytes())
            raw[-1] ^= 1
            (tmp_path / name).write_bytes(raw)
            if passed < 3:
                assert store.get(b"k") == Saved(3 - passed, b"value %d" % (3 - passed), passed)
        with pytest.raises(CorruptLog, match="does not match its checksum"):
            store.get(b"k")


def test_a_large_batch_is_cut_into_units_and_read_back(tmp_path: Path) -> None:
    value = os.urandom(9 << 20)
    with LogStore(tmp_path) as store:
        assert all(store.put_many(Entry(b"%d" % i, 1, value) for i in range(5)))
        assert store._segments.seq >= 2
    with LogStore(tmp_path) as store:
        assert all(store.get(b"%d" % i) == Saved(1, value) for i in range(5))


@pytest.mark.parametrize("where", [0, 64, 70, 110, 400, 1500])
def test_a_torn_last_unit_is_cut_and_the_state_before_it_is_used(where: int, tmp_path: Path) -> None:
    """C6: zeros anywhere in the last write, in its header, table or value."""
    store = LogStore(tmp_path, background=False)
    store.put(b"k", 1, b"first")
    begin = store._segments.offset
    store.put(b"k", 2, b"x" * 2000)
    abandon(store)
    segment = tmp_path / "segment-0000000001"
    raw = bytearray(segment.read_bytes())
    raw[begin + where : begin + where + 20] = bytes(20)
    segment.write_bytes(raw)
    with LogStore(tmp_path) as again:
        assert again.damage == ()
        assert again.get(b"k") == Saved(1, b"first")
        assert again.put(b"k", 2, b"second")
    with LogStore(tmp_path) as again:
        assert again.get(b"k") == Saved(2, b"second")
