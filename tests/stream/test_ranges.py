"""Ranges of objects: few requests for who reads on, little memory for who reads much (X4)."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from holdfast.model.errors import StorageError
from holdfast.stream.archive import ranges
from holdfast.stream.archive.objects import ObjectStore
from holdfast.stream.archive.ranges import BLOCK, RangeCache, WholeObjects, side_by_side

SIZE = 60 * BLOCK + 12_345
DATA = np.arange(SIZE // 4 + 1, dtype="<u4").tobytes()[:SIZE]


class Memory(ObjectStore):
    def __init__(self) -> None:
        super().__init__("memory://")
        self.asked: list[tuple[int, int]] = []
        self.away = False

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.away:
            raise StorageError("away")
        assert end is not None
        self.asked.append((start, end))
        return DATA[start:end]

    def put(self, key: str, parts: Iterable[bytes]) -> None: ...
    def create(self, key: str, data: bytes) -> bool: ...
    def sizes(self, prefix: str) -> dict[str, int]: ...
    def folders(self, prefix: str) -> list[str]: ...
    def delete(self, keys: Iterable[str]) -> None: ...


@pytest.mark.parametrize("step", [700, 300_000, BLOCK, 5 * BLOCK + 1])
def test_whoever_reads_on_asks_for_each_byte_once_and_seldom(step: int) -> None:
    store, cache = Memory(), RangeCache(32 * BLOCK)
    got = b"".join(cache.read(store, "k", at, at + step, SIZE) for at in range(0, SIZE, step))
    assert got == DATA
    assert sum(end - start for start, end in store.asked) == SIZE, "each byte once"
    assert len(store.asked) <= 40, "several blocks in a request"
    assert cache._held <= 32 * BLOCK


def test_whoever_jumps_pays_for_little() -> None:
    store, cache = Memory(), RangeCache(64 * BLOCK)
    for at in (50, 10, 30):
        assert cache.read(store, "k", at * BLOCK + 5, at * BLOCK + 105, SIZE) == DATA[at * BLOCK + 5 :][:100]
    assert sum(end - start for start, end in store.asked) <= 6 * BLOCK
    before = len(store.asked)
    cache.read(store, "k", 30 * BLOCK, 30 * BLOCK + 900, SIZE)
    assert len(store.asked) == before, "from the cache"


def test_what_was_wrong_is_fetched_again_and_an_error_is_not_kept() -> None:
    store, cache = Memory(), RangeCache(64 * BLOCK)
    cache.read(store, "k", 0, 100, SIZE)
    cache.forget(store, "k")
    store.away = True
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            cache.read(store, "k", 0, 100, SIZE)
    store.away = False
    assert cache.read(store, "k", 0, 100, SIZE) == DATA[:100]


def test_several_read_at_once() -> None:
    store, cache = Memory(), RangeCache(4 * BLOCK)
    wrong: list[int] = []

    def read(first: int) -> None:
        for at in range(first * 1000, SIZE, 900_000):
            if cache.read(store, "k", at, at + 5000, SIZE) != DATA[at : at + 5000]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_work_within_work_does_not_wait_for_itself() -> None:
    inner = lambda n: side_by_side(lambda m: m * n, list(range(4)))  # noqa: E731
    assert side_by_side(inner, list(range(8))) == [[m * n for m in range(4)] for n in range(8)]


def test_small_objects_are_kept_up_to_a_bound() -> None:
    kept = WholeObjects(1000)
    for n in range(20):
        kept.put("u", str(n), bytes(100))
        kept.put("u", str(n), bytes(100))
    assert [kept.get("u", str(n)) is not None for n in range(20)] == [False] * 10 + [True] * 10


def test_a_forked_process_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ranges.process()
    monkeypatch.setattr("holdfast.stream.archive.ranges.os.getpid", lambda: -1)
    assert ranges.process() is not mine
