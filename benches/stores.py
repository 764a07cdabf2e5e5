"""Checkpoint stores under the seeds' load (002 §4.1): 10,000 operations on 1,000 keys of 1 KiB, 1 to 64 callers.

Everybody makes every checkpoint durable before its caller goes on. Holdfast's stores run through their own interface,
versions and checksums included; LMDB and SQLite, which are no stores of ours, write the same bytes under the same keys.
HBase is left out: its gateway cannot promise a synced write on a local disk. Contenders take turns, and of each cell
the median over the rounds counts.

    python -m benches.stores            throughput and latency (figures 4.1, 4.5, 4.6, 5.1), keys (4.7), rebuild (4.2)
    python -m benches.stores --quick    a shorter look
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.checkpoint.servers import RedisServer

from benches.report import console, finish, table
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.checkpoint.stores.rocksdb import RocksStore
from holdfast.stream.disk import VolatileDisk

VALUE = os.urandom(1024)
KEYS = 1000
CALLERS = (1, 4, 16, 64)

Put = Callable[[bytes, int], object]
Get = Callable[[bytes], object]


@contextlib.contextmanager
def ours(store: CheckpointStore) -> Iterator[tuple[Put, Get]]:
    with store:
        yield (lambda key, version: store.put(key, version, VALUE)), store.get


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[tuple[Put, Get]]:
    server = RedisServer(folder)
    try:
        with ours(RedisStore(server.address)) as both:
            yield both
    finally:
        server.stop()


@contextlib.contextmanager
def lmdb(folder: Path) -> Iterator[tuple[Put, Get]]:
    import lmdb as library

    env = library.open(str(folder), map_size=4 << 30, sync=True, metasync=True)

    def put(key: bytes, version: int) -> None:
        with env.begin(write=True) as transaction:
            transaction.put(key, VALUE)

    def get(key: bytes) -> None:
        with env.begin() as transaction:
            transaction.get(key)

    yield put, get
    env.close()


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[tuple[Put, Get]]:
    path = folder / "db"
    with sqlite3.connect(path) as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table kept (key blob primary key, value blob)")
    mine, turn = threading.local(), threading.Lock()  # One writer; its busy handler would be slower still.

    def connection() -> sqlite3.Connection:
        if not hasattr(mine, "db"):
            mine.db = sqlite3.connect(path, isolation_level=None)
            mine.db.execute("pragma synchronous=full")
        return mine.db  # type: ignore[no-any-return]

    def put(key: bytes, version: int) -> None:
        with turn:
            connection().execute("insert or replace into kept values (?, ?)", (key, VALUE))

    yield put, lambda key: connection().execute("select value from kept where key = ?", (key,)).fetchone()


CONTENDERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[tuple[Put, Get]]]] = {
    "log": lambda folder: ours(LogStore(folder)),
    "files": lambda folder: ours(FilesStore(folder)),
    "rocksdb": lambda folder: ours(RocksStore(folder)),
    "redis": redis,
    "LMDB": lmdb,
    "SQLite": sqlite,
}


def load(both: tuple[Put, Get], callers: int, writes: float, seconds: float) -> tuple[float, float]:
    """Operations per second and mean milliseconds of each, until 10,000 are done or the time is up."""
    put, get = both
    done, spent = [0] * callers, [0.0] * callers
    begin, until = threading.Barrier(callers + 1), [0.0]

    def work(i: int) -> None:
        chance = random.Random(i)
        begin.wait()
        for n in range(10_000 // callers):
            key = b"user%04d" % chance.randrange(KEYS)
            before = time.perf_counter()
            if before > until[0]:
                return
            if chance.random() < writes:
                put(key, n * 64 + i)
            else:
                get(key)
            spent[i] += time.perf_counter() - before
            done[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    until[0] = time.perf_counter() + seconds
    started = time.perf_counter()
    begin.wait()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    return sum(done) / took, 1000 * sum(spent) / max(1, sum(done))


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def rate_by_keys(folder: Path, keys: int, seconds: float) -> float:
    """Durable writes per second at 64 callers into a log that holds so many keys."""
    with LogStore(fresh(folder)) as store:
        for at in range(0, keys, 5000):
            store.put_many(Entry(b"user%07d" % k, 0, b"x" * 50) for k in range(at, min(keys, at + 5000)))
        store.maintain()
        done = [0] * 64
        until = time.perf_counter() + seconds

        def work(i: int) -> None:
            chance = random.Random(i)
            while time.perf_counter() < until:
                done[i] += 1
                store.put(b"user%07d" % chance.randrange(keys), done[i] * 64 + i, VALUE)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / seconds


def rebuild(folder: Path, keys: int, tail: int) -> tuple[float, float]:
    """Milliseconds to open a log of so many keys of 70 bytes: from flush and tail, and from the log alone."""
    # Unsynced: how it was written does not matter to who reads it.
    store = LogStore(fresh(folder), flush_records=1 << 30, disk=VolatileDisk())
    for at in range(0, keys, 64):
        store.put_many(Entry(b"user%07d" % k, 1, b"x" * 48) for k in range(at, min(keys, at + 64)))
    store.maintain()
    for at in range(0, tail, 64):
        store.put_many(Entry(b"user%07d" % (k * 7919 % keys), 2, b"y" * 48) for k in range(at, at + 64))
    store._closing = True  # As a crash would leave it: without the flush of an orderly end.
    store._due.set()
    store._segments.close()
    store._owner.release()

    def opened() -> float:
        begun = time.perf_counter()
        again = LogStore(folder, background=False)
        took = 1000 * (time.perf_counter() - begun)
        assert len(again._index.base) == keys
        again._segments.close()
        again._owner.release()
        return took

    with_flush = statistics.median(opened() for _ in range(5))
    (folder / "index").unlink()
    return with_flush, statistics.median(opened() for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.stores", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    given = parser.parse_args()
    rounds, seconds = (1, 0.8) if given.quick else (3, 1.5)
    names = [n for n in CONTENDERS if n != "redis" or shutil.which("redis-server")]
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch) / "run"
        found: dict[tuple[str, int, float], list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for writes in (1.0, 0.9):
                for callers in CALLERS:
                    for name in names:
                        with CONTENDERS[name](fresh(folder)) as both:
                            both[0](b"user0000", 0)
                            found.setdefault((name, callers, writes), []).append(load(both, callers, writes, seconds))
        by_keys = {keys: rate_by_keys(folder, keys, seconds) for keys in (1_000, 10_000, 100_000, 1_000_000)}
        flush_ms, log_ms = rebuild(folder, 1_000_000, 65_536)
    rate = {cell: statistics.median(r for r, _ in values) for cell, values in found.items()}
    for writes in (1.0, 0.9):
        rows: list[list[object]] = []
        for name in names:
            cells = [
                f"{rate[name, c, writes]:,.0f} ({statistics.median(ms for _, ms in found[name, c, writes]):.2f} ms)"
                for c in CALLERS
            ]
            rows.append([name, *cells])
        table(
            f"{writes:.0%} writes: operations per second (mean latency)", ["", *(f"{c} callers" for c in CALLERS)], rows
        )
    table("log, 64 callers, by keys", ["keys", "writes/s"], [[f"{k:,}", round(r)] for k, r in by_keys.items()])
    console.print(
        f"index of 1,000,000 keys: {flush_ms:.0f} ms from flush + 65,536 records, {log_ms:.0f} ms from the log"
    )
    others = [n for n in names if n not in ("log", "files")]
    over_files = statistics.median(
        a[0] / b[0] for a, b in zip(found["log", 64, 1.0], found["files", 64, 1.0], strict=True)
    )
    finish(
        "stores",
        log_over_files=round(over_files, 1),
        log_ahead_of_all=all(rate["log", 64, 1.0] > rate[n, 64, 1.0] for n in others),
        ahead_at={c: {n: round(rate["log", c, 1.0] / rate[n, c, 1.0], 2) for n in others} for c in CALLERS},
        index_rebuild_1m_ms=round(flush_ms),
        index_from_log_alone_1m_ms=round(log_ms),
        rate_1m_over_1k_keys=round(by_keys[1_000_000] / by_keys[1_000], 2),
        log_writes_per_s={c: round(rate["log", c, 1.0]) for c in CALLERS},
        files_writes_per_s={c: round(rate["files", c, 1.0]) for c in CALLERS},
    )


if __name__ == "__main__":
    main()
