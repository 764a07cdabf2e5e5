"""The conformance suite of checkpoint stores: subclass it, say how to open yours, and run it with pytest.

    class TestMine(StoreConformance):
        def start(self, folder): self.folder = folder
        def open(self): return MyStore(self.folder)
        def crash(self, store): ...     # as if the process or server had died; `open` must work afterwards

The oracle is a dictionary. After each crash, what was acknowledged must be there; of the one write that was under way
either the old or the new state.
"""

from __future__ import annotations

import os
import random
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from holdfast.checkpoint.store import KEY_BYTES_MAX, VERSION_MAX, CheckpointStore, Entry, EntryInPieces, Saved
from holdfast.model.errors import UsageError

#: Raise it for a long run: HOLDFAST_STORE_OPS=10000 make test-stores
OPERATIONS = int(os.environ.get("HOLDFAST_STORE_OPS", "400"))

#: Bytes that have misled parsers, patterns, addresses and file names before.
AWKWARD = [
    b"a",
    b"a/b",
    b"../up",
    b"\x00",
    b"\xff\xfe",
    b"*",
    b"[a-z]?",
    b"a b",
    b"%41",
    b"k" * KEY_BYTES_MAX,
    "ü".encode(),
]


class Oracle:
    """What any store must answer."""

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[int, bytes | None]] = {}

    def write(self, key: bytes, version: int, value: bytes | None) -> bool:
        if key in self.kept and self.kept[key][0] > version:
            return False
        self.kept[key] = (version, value)
        return True

    def read(self, key: bytes) -> Saved | None:
        version, value = self.kept.get(key, (0, None))
        return None if value is None else Saved(version, value)

    def scan(self, prefix: bytes) -> list[tuple[bytes, int]]:
        return sorted((k, v) for k, (v, value) in self.kept.items() if value is not None and k.startswith(prefix))


class StoreConformance(ABC):
    """One test per rule of `holdfast.checkpoint.store`, and random histories with crashes (C6, C8, C9, C10)."""

    #: Does the store survive `crash`? Memory does not.
    survives = True
    #: Operations of a random history; slow servers may do fewer.
    operations = OPERATIONS

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Called once per test with an empty folder of its own."""

    @abstractmethod
    def open(self) -> CheckpointStore:
        """The store, as it is now."""

    def crash(self, store: CheckpointStore) -> None:
        """End without saying goodbye. By default the store is closed in good order."""
        store.close()

    def finish(self) -> None:  # noqa: B027 - most stores have nothing to do here
        """Called when the test is over."""

    def _opened(self, tmp_path: Path) -> CheckpointStore:
        self.start(tmp_path)
        return self.open()

    def test_what_was_put_is_read_back_byte_for_byte(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            for size in (0, 1, 63, 64, 65, 1024, 300_000):
                value = random.Random(size).randbytes(size)
                assert store.put(b"k%d" % size, 1, value)
                assert store.get(b"k%d" % size) == Saved(1, value)
            assert store.get(b"other") is None
        self.finish()

    def test_any_key_is_only_a_key(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            for i, key in enumerate(AWKWARD):
                assert store.put(key, i, b"%d" % i)
            assert store.get_many([*AWKWARD, b"none"]) == {k: Saved(i, b"%d" % i) for i, k in enumerate(AWKWARD)}
            assert store.scan() == sorted((k, i) for i, k in enumerate(AWKWARD))
            assert store.scan(b"a") == sorted((k, i) for i, k in enumerate(AWKWARD) if k.startswith(b"a"))
            assert store.scan(b"[a") == [(b"[a-z]?", AWKWARD.index(b"[a-z]?"))]
        self.finish()

    def test_older_never_overwrites_newer_and_an_equal_version_replaces(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            assert store.put(b"k", 5, b"five")
            assert not store.put(b"k", 4, b"four")
            assert store.get(b"k") == Saved(5, b"five")
            assert store.put(b"k", 5, b"five again")
            assert store.put(b"k", VERSION_MAX, b"last")
            assert not store.put(b"k", 6, b"six")
            assert store.get(b"k") == Saved(VERSION_MAX, b"last")
            assert store.put_many([Entry(b"m", 2, b"b"), Entry(b"m", 1, b"a"), Entry(b"m", 3, b"c")]) == [
                True, False, True,
            ]  # fmt: skip
            assert store.get(b"m") == Saved(3, b"c")
        self.finish()

    def test_a_deletion_removes_what_is_older_and_refuses_it_afterwards(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            store.put(b"k", 5, b"five")
            assert not store.delete(b"k", 4)
            assert store.get(b"k") == Saved(5, b"five")
            assert store.delete(b"k", 6)
            assert store.get(b"k") is None
            assert store.scan() == []
            assert not store.put(b"k", 5, b"late")
            assert store.get(b"k") is None
            assert store.put(b"k", 7, b"seven")
            assert store.get(b"k") == Saved(7, b"seven")
        self.finish()

    def test_what_is_purged_is_gone_and_the_rest_stays(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            for key in (b"a/1", b"a/2", b"a", b"b/1", b"a0"):
                assert store.put(key, 7, b"seven")
            assert store.delete(b"a/2", 8)
            store.purge(b"a/")
            assert store.scan() == [(b"a", 7), (b"a0", 7), (b"b/1", 7)]
            assert store.get_many([b"a/1", b"a/2"]) == {}
            store.purge(b"nothing")
            assert len(store.scan()) == 3
        self.finish()

    def test_a_value_in_pieces_is_read_as_one(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            pieces = (b"head", memoryview(b"-middle-"), b"", b"end")
            assert store.put_many([EntryInPieces(b"k", 1, pieces), Entry(b"m", 1, b"whole")]) == [True, True]
            assert store.put(b"n", 1, pieces)
            assert store.put(b"o", 1, ())
            assert store.get_many([b"k", b"m", b"n", b"o"]) == {
                b"k": Saved(1, b"head-middle-end"), b"m": Saved(1, b"whole"), b"n": Saved(1, b"head-middle-end"),
                b"o": Saved(1, b""),
            }  # fmt: skip
        self.finish()

    def test_what_cannot_be_a_checkpoint_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        with self._opened(tmp_path) as store:
            bad: list[Entry] = [
                Entry(b"", 1, b""), Entry(b"k" * (KEY_BYTES_MAX + 1), 1, b""), Entry(b"k", -1, b""),
                Entry(b"k", VERSION_MAX + 1, b""), Entry("k", 1, b""), Entry(b"k", 1, "text"),  # type: ignore[arg-type]
                Entry(b"k", 1, (b"x", "text")),  # type: ignore[arg-type]
            ]  # fmt: skip
            for entry in bad:
                try:
                    store.put_many([Entry(b"good", 1, b"x"), entry])
                except UsageError:
                    continue
                raise AssertionError(f"{entry} was taken")
            assert store.scan() == []
        self.finish()

    def test_closing_twice_does_no_harm_and_the_store_opens_again(self, tmp_path: Path) -> None:
        store = self._opened(tmp_path)
        store.put(b"k", 1, b"v")
        store.close()
        store.close()
        with self.open() as again:
            assert again.get(b"k") == (Saved(1, b"v") if self.survives else None)
        self.finish()

    def test_many_callers_together_lose_nothing_and_keep_the_newest(self, tmp_path: Path) -> None:
        store = self._opened(tmp_path)
        errors: list[BaseException] = []

        def work(caller: int) -> None:
            try:
                for i in range(12):
                    assert store.put(b"own-%d" % caller, i, b"%d-%d" % (caller, i))
                    store.put(b"shared", i * 8 + caller, b"%d" % (i * 8 + caller))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(caller,)) for caller in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        for caller in range(8):
            assert store.get(b"own-%d" % caller) == Saved(11, b"%d-11" % caller)
        assert store.get(b"shared") == Saved(95, b"95")
        store.close()
        self.finish()

    def test_random_histories_with_crashes_and_restarts_read_like_a_dictionary(self, tmp_path: Path) -> None:
        """C6, C8, C9, C10: every store is judged by the same history and the same oracle."""
        chance = random.Random(OPERATIONS)
        store, oracle = self._opened(tmp_path), Oracle()
        keys = [b"key-%d" % i for i in range(40)]
        for step in range(self.operations):
            what = chance.random()
            if what < 0.02 and self.survives:
                self.crash(store) if chance.random() < 0.6 else store.close()
                store = self.open()
            elif what < 0.12:
                prefix = chance.choice((b"", b"key-1", b"key-39", b"none"))
                assert store.scan(prefix) == oracle.scan(prefix), f"step {step}"
            elif what < 0.4:
                some = chance.sample(keys, chance.choice((1, 1, 5)))
                assert [store.get_many(some).get(k) for k in some] == [oracle.read(k) for k in some], f"step {step}"
            else:
                entries = [_random_entry(chance, keys, oracle) for _ in range(chance.choice((1, 1, 1, 7)))]
                assert store.put_many(entries) == [oracle.write(*e) for e in entries], f"step {step}"
        assert store.get_many(keys) == {k: s for k in keys if (s := oracle.read(k)) is not None}
        assert store.scan() == oracle.scan(b"")
        store.close()
        self.finish()


def _random_entry(chance: random.Random, keys: list[bytes], oracle: Oracle) -> Entry:
    key = chance.choice(keys)
    known = oracle.kept.get(key, (0, None))[0]
    version = max(0, known + chance.choice((-2, -1, 0, 1, 1, 1, 2, 10)))
    value = None if chance.random() < 0.1 else chance.randbytes(chance.choice((0, 3, 100, 1024, 5000)))
    return Entry(key, version, value)
