"""Ranges of objects, through a bounded cache.

Rules:
1. Objects are asked for in blocks. Whoever goes on where it stopped finds the next ones on their way already, more of
   them each time, side by side; whoever jumps pays for two blocks.
2. The cache is one for the process and has a bound; what was used longest ago goes first. So memory does not grow with
   the history that is read (X4).
3. Nothing here looks at the bytes: whoever decodes them has compared their checksum before (L4, X5), and says `forget`
   when it does not match, so that they are fetched again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from holdfast.model.errors import UsageError
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import ObjectStore

#: Small enough that a look at one event costs little, large enough that a request is worth its way.
BLOCK = 1 << 20
#: Blocks of one request, and requests at a time, for whoever reads on.
_TOGETHER, _PARALLEL = 4, 4
#: What a process holds of archives, unless HOLDFAST_ARCHIVE_CACHE says otherwise (bytes).
CACHE_BYTES = 64 << 20
#: And of their indexes.
INDEX_BYTES = 32 << 20
#: Objects that a process reads ahead in: a run of each is held beside the cache.
_AHEAD_MAX = 4
_THREADS = "holdfast-archive"

A = TypeVar("A")
B = TypeVar("B")


class RangeCache:
    """Blocks of objects of any number of stores."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A run must not drive its own blocks out before they are read.
        self._run_max = max(1, bytes_max // BLOCK // 4)
        self._mutex = threading.Lock()
        self._blocks: dict[tuple[str, str, int], bytes] = {}
        self._held = 0
        self._ahead: dict[tuple[str, str], _Ahead] = {}
        self.requests = 0
        """Made so far, for those who count them."""

    def read(self, objects: ObjectStore, key: str, start: int, end: int, size: int) -> bytes:
        """Bytes from `start` to before `end` of an object that has `size`."""
        end = min(end, size)
        if end <= start:
            return b""
        first, last = start // BLOCK, (end - 1) // BLOCK
        with self._mutex:
            found = {b: self._take((objects.url, key, b)) for b in range(first, last + 1)}
        missing = [b for b, data in found.items() if data is None]
        if missing:
            found.update(self._fetch(objects, key, missing[0], last, size))
        data = b"".join(found[b] or b"" for b in range(first, last + 1))
        return data[start - first * BLOCK : end - first * BLOCK]

    def forget(self, objects: ObjectStore, key: str) -> None:
        """Rule 3."""
        with self._mutex:
            self._ahead.pop((objects.url, key), None)
            for known in [k for k in self._blocks if k[:2] == (objects.url, key)]:
                self._held -= len(self._blocks.pop(known))

    def _take(self, block: tuple[str, str, int]) -> bytes | None:
        data = self._blocks.pop(block, None)
        if data is not None:
            self._blocks[block] = data
        return data

    def _fetch(self, objects: ObjectStore, key: str, first: int, last: int, size: int) -> dict[int, bytes]:
        """Blocks from `first` to `last`; those that will be asked for next are on their way then (rule 1)."""
        of, blocks = (objects.url, key), -(-size // BLOCK)
        with self._mutex:
            ahead = self._ahead.pop(of, None)
        found: dict[int, bytes] = {}
        together = 1
        if ahead is not None and ahead.first <= first <= ahead.upto:
            together = min(2 * (ahead.upto - ahead.first), _TOGETHER * _PARALLEL, self._run_max)
            for done in ahead.requests:
                found.update(done.result())
            first = ahead.upto
        upto = max(first, last + 1)
        for some in side_by_side(lambda span: _get(objects, key, span, size), _spans(first, upto)):
            found.update(some)
        spans = _spans(upto, min(upto + together, blocks))
        with self._mutex:
            self.requests += len(_spans(first, upto)) + len(spans)
            if spans:
                self._ahead[of] = _Ahead(upto, spans[-1].stop, [
                    process().threads.submit(_get, objects, key, span, size) for span in spans
                ])  # fmt: skip
            while len(self._ahead) > _AHEAD_MAX:
                del self._ahead[next(iter(self._ahead))]
            for block, data in found.items():
                if (*of, block) not in self._blocks:
                    self._blocks[*of, block] = data
                    self._held += len(data)
            while self._held > self._bytes_max and self._blocks:
                self._held -= len(self._blocks.pop(next(iter(self._blocks))))
        return found


class _Ahead(NamedTuple):
    """Blocks from `first` to before `upto` that were asked for before anybody needs them."""

    first: int
    upto: int
    requests: list[Future[dict[int, bytes]]]


def _spans(first: int, upto: int) -> list[range]:
    """Blocks, as requests: several in each, where there are enough for all threads."""
    step = _TOGETHER if upto - first > _TOGETHER else 1
    return [range(b, min(b + step, upto)) for b in range(first, upto, step)]


def _get(objects: ObjectStore, key: str, span: range, size: int) -> dict[int, bytes]:
    data = objects.get(key, span.start * BLOCK, min(span.stop * BLOCK, size))
    return {span.start + i // BLOCK: data[i : i + BLOCK] for i in range(0, len(data), BLOCK)}


class WholeObjects:
    """Small objects that are asked for again and again, up to a bound: the indexes of segments."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._held = bytes_max, 0
        self._mutex = threading.Lock()
        self._objects: dict[tuple[str, str], bytes] = {}

    def get(self, url: str, key: str) -> bytes | None:
        with self._mutex:
            data = self._objects.pop((url, key), None)
            if data is not None:
                self._objects[url, key] = data
            return data

    def put(self, url: str, key: str, data: bytes) -> None:
        with self._mutex:
            self._held += len(data) - len(self._objects.pop((url, key), b""))
            self._objects[url, key] = data
            while self._held > self._bytes_max and self._objects:
                self._held -= len(self._objects.pop(next(iter(self._objects))))


class _Process:
    """What a process shares: its cache, its threads for requests, and the stores that it has open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.cache = RangeCache(_cache_bytes())
        self.indexes = WholeObjects(INDEX_BYTES)
        self.threads = ThreadPoolExecutor(_PARALLEL, _THREADS)
        self.stores: dict[str, ObjectStore] = {}


_process: _Process | None = None
_mutex = threading.Lock()


def process() -> _Process:
    """Of this process: one that was forked begins anew, since threads and connections do not come along."""
    global _process
    if _process is None or _process.pid != os.getpid():
        with _mutex:
            if _process is None or _process.pid != os.getpid():
                _process = _Process()
    return _process


def opened(url: str) -> ObjectStore:
    """The store at an address, opened once in a process."""
    stores = process().stores
    if url not in stores:
        stores[url] = open_objects(url)
    return stores[url]


def side_by_side(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The results in order; several requests at a time where there are several."""
    # A thread of ours that waited for the others could wait for itself.
    if len(items) < 2 or threading.current_thread().name.startswith(_THREADS):
        return [work(item) for item in items]
    return list(process().threads.map(work, items))


def _cache_bytes() -> int:
    text = os.environ.get("HOLDFAST_ARCHIVE_CACHE", "")
    if not text:
        return CACHE_BYTES
    if not text.isdigit() or int(text) < BLOCK:
        raise UsageError(f"HOLDFAST_ARCHIVE_CACHE must be a number of bytes, {BLOCK} or more; got {text!r}")
    return int(text)
