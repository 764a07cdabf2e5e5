"""Power cuts at any step of the stores that write files, collection and compaction included (C6, C8, C10, L5, L8)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.model.errors import HoldfastError
from holdfast.stream.disk import Disk
from tests.faults.power import PowerCut, PowerDisk

#: Raise it for a long run: HOLDFAST_STORE_CUTS=1000 make test-stores
CUTS = int(os.environ.get("HOLDFAST_STORE_CUTS", "120"))

Open = Callable[[Path, Disk], CheckpointStore]


def tiny_log(folder: Path, disk: Disk) -> CheckpointStore:
    """Every few writes a new segment, a flush, a collection; often a compaction."""
    return LogStore(folder, segment_bytes=4096, flush_records=4, background=False, disk=disk)


def files(folder: Path, disk: Disk) -> CheckpointStore:
    return FilesStore(folder, keep=2, disk=disk)


class Life:
    """A store through power cuts. The oracle: per key what was acknowledged, and what may have come after it."""

    def __init__(self, base: Path, seed: int, open: Open) -> None:
        self.base, self.chance, self.open = base, random.Random(seed), open
        self.acked: dict[bytes, tuple[int, bytes | None]] = {}
        self.perhaps: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.cuts = 0

    def run(self, cuts: int) -> None:
        root = self.base / "0"
        root.mkdir(parents=True)
        for number in range(1, cuts + 1):
            disk = PowerDisk(root, self.chance.choice((self.chance.randint(1, 30), self.chance.randint(1, 250))))
            store: CheckpointStore | None = None
            with contextlib.suppress(PowerCut):
                store = self.open(root / "store", disk)
                self._judge(store)
                self._work(store)
            self.cuts += 1
            disk.dead = True
            if store is not None:
                with contextlib.suppress(PowerCut):
                    store.close()
            after = self.base / str(number)
            disk.restart(after, self.chance)
            for lock in after.rglob("lock"):
                lock.unlink()
            shutil.rmtree(root)
            root = after
        with self.open(root / "store", Disk()) as last:
            self._judge(last)

    def _work(self, store: CheckpointStore) -> None:
        for _ in range(self.chance.randint(1, 60)):
            entries: dict[bytes, Entry] = {}
            for _ in range(self.chance.choice((1, 1, 4))):
                key = b"key-%d" % min(int(self.chance.expovariate(0.2)), 25)
                version = self.acked.get(key, (0, None))[0] + self.chance.choice((0, 1, 1, 3))
                value = None if self.chance.random() < 0.1 else self._value()
                entries[key] = Entry(key, version, value)
            self.perhaps = {e.key: [(e.version, e.value)] for e in entries.values()}
            assert all(store.put_many(entries.values()))
            self.acked |= {e.key: (e.version, e.value) for e in entries.values()}
            self.perhaps = {}

    def _value(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((5, 400, 1500)))

    def _judge(self, store: CheckpointStore) -> None:
        """What was acknowledged is there; what was under way is there or not; after this it is one or the other."""
        for key in sorted({*self.acked, *self.perhaps}):
            saved = store.get(key)
            allowed = [self.acked.get(key, (0, None)), *self.perhaps.get(key, [])]
            fits = [(v, value) for v, value in allowed if saved == (None if value is None else Saved(v, value))]
            assert fits, f"{key!r}: {saved} is none of {allowed}"
            self.acked[key] = fits[-1]
        self.perhaps = {}
        present = {key for key, _ in store.scan()}
        assert present == {key for key, (_, value) in self.acked.items() if value is not None}


@pytest.mark.parametrize("chunk", range(4))
@pytest.mark.parametrize("open", [tiny_log, files])
def test_whatever_a_power_cut_leaves_every_acknowledged_checkpoint_is_there(
    open: Open, chunk: int, tmp_path: Path
) -> None:
    done, seed = 0, chunk
    while done < CUTS // 4:
        life = Life(tmp_path / str(seed), seed, open)
        try:
            life.run(cuts=5)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} {error}") from error
        done += life.cuts
        shutil.rmtree(tmp_path / str(seed))
        seed += 4


def test_a_cut_at_each_step_of_a_collection_and_compaction_loses_nothing_referenced(tmp_path: Path) -> None:
    """L8: the same work, cut at step 1, 2, 3, … until it runs through."""
    prepared, kept = _ripe_for_compaction(tmp_path / "ripe")
    step, chance = 0, random.Random(4)
    while True:
        step += 1
        root = tmp_path / "run"
        shutil.copytree(prepared, root)
        disk = PowerDisk(root, step)
        cut = True
        store: CheckpointStore | None = None
        with contextlib.suppress(PowerCut):
            store = tiny_log(root / "store", disk)
            assert isinstance(store, LogStore)
            store.maintain()
            cut = False
        disk.dead = True
        if store is not None:
            with contextlib.suppress(PowerCut):
                store.close()
        after = tmp_path / "after"
        disk.restart(after, chance)
        for lock in after.rglob("lock"):
            lock.unlink()
        with tiny_log(after / "store", Disk()) as again:
            assert again.get_many(kept) == kept, f"cut at step {step}"
        if not cut:
            before = len(list((prepared / "store").glob("segment-*")))
            assert len(list((root / "store").glob("segment-*"))) < before / 2, "nothing was compacted"
            break
        shutil.rmtree(root)
        shutil.rmtree(after)
    assert step > 10


def _ripe_for_compaction(root: Path) -> tuple[Path, dict[bytes, Saved]]:
    """Many segments, each kept alive by one record that was never written again."""
    kept: dict[bytes, Saved] = {}
    store = LogStore(root / "store", segment_bytes=4096, flush_records=10**9, background=False)
    store._due.set = lambda: None  # type: ignore[method-assign]  # Its own care would be too early for this test.
    for i in range(30):
        store.put(b"lasting-%d" % i, 1, b"x" * 50)
        kept[b"lasting-%d" % i] = Saved(1, b"x" * 50)
        for j in range(4):
            store.put(b"busy", i * 4 + j, bytes([i]) * 1000)
    kept[b"busy"] = Saved(29 * 4 + 3, bytes([29]) * 1000)
    store._segments.close()
    store._owner.release()
    (root / "store" / "lock").unlink()
    return root, kept
