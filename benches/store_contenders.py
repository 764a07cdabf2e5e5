"""Who takes part in `benches.stores`: each opens in an empty folder and gives back how to write and how to read.

Rules of the comparison:
1. A write returns when its bytes are on the disk. Files: file and folder synced. RocksDB: its log synced. LMDB: data
   and meta page synced. SQLite: write-ahead log synced at each commit. Redis: `appendonly yes`, `appendfsync always`.
2. Holdfast's stores run through their own interface, versions and checksums included. LMDB and SQLite, which are no
   stores of ours, write the same bytes under the same keys.
3. Each is called as its binding wants it: nobody gets a queue in front of it that it does not bring itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.checkpoint.servers import RedisServer

from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.checkpoint.stores.rocksdb import RocksStore

VALUE = os.urandom(1024)


class Contender(NamedTuple):
    put: Callable[[bytes, int], object]
    get: Callable[[bytes], object]
    put_many: Callable[[Sequence[bytes], int], object]
    """All keys with one wait."""


Opened = contextlib.AbstractContextManager[Contender]


@contextlib.contextmanager
def ours(store: CheckpointStore) -> Iterator[Contender]:
    with store:
        yield Contender(
            lambda key, version: store.put(key, version, VALUE),
            store.get,
            lambda keys, version: store.put_many(Entry(key, version, VALUE) for key in keys),
        )


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Contender]:
    server = RedisServer(folder)
    try:
        with ours(RedisStore(server.address)) as contender:
            yield contender
    finally:
        server.stop()


@contextlib.contextmanager
def lmdb(folder: Path) -> Iterator[Contender]:
    import lmdb as library

    env = library.open(str(folder), map_size=4 << 30, sync=True, metasync=True)

    def put_many(keys: Sequence[bytes], version: int) -> None:
        with env.begin(write=True) as transaction:
            for key in keys:
                transaction.put(key, VALUE)

    def get(key: bytes) -> None:
        with env.begin() as transaction:
            transaction.get(key)

    yield Contender(lambda key, version: put_many((key,), version), get, put_many)
    env.close()


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Contender]:
    path = folder / "db"
    with sqlite3.connect(path) as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table kept (key blob primary key, value blob)")
    mine, turn = threading.local(), threading.Lock()  # One writer; its busy handler would be slower still.
    insert = "insert or replace into kept values (?, ?)"

    def connection() -> sqlite3.Connection:
        if not hasattr(mine, "db"):
            mine.db = sqlite3.connect(path, isolation_level=None)
            mine.db.execute("pragma synchronous=full")
        return mine.db  # type: ignore[no-any-return]

    def put(key: bytes, version: int) -> None:
        with turn:
            connection().execute(insert, (key, VALUE))

    def put_many(keys: Sequence[bytes], version: int) -> None:
        with turn:
            db = connection()
            db.execute("begin immediate")
            db.executemany(insert, [(key, VALUE) for key in keys])
            db.execute("commit")

    def get(key: bytes) -> object:
        return connection().execute("select value from kept where key = ?", (key,)).fetchone()

    yield Contender(put, get, put_many)


CONTENDERS: dict[str, Callable[[Path], Opened]] = {
    "log": lambda folder: ours(LogStore(folder)),
    "files": lambda folder: ours(FilesStore(folder)),
    "rocksdb": lambda folder: ours(RocksStore(folder)),
    "redis": redis,
    "LMDB": lmdb,
    "SQLite": sqlite,
}


def present() -> list[str]:
    """Those that can run here."""
    return [name for name in CONTENDERS if name != "redis" or shutil.which("redis-server")]


class Absent(Exception):
    """A server that cannot be had here, and why."""


@contextlib.contextmanager
def hbase_server(folder: Path) -> Iterator[str]:
    """The address of a standalone HBase, as long as it is needed; raises `Absent` with the reason if there is none."""
    from tests.checkpoint.hbase_server import SERVER, HBase

    if shutil.which("java") is None:
        raise Absent("there is no Java here")
    why, lib = SERVER.fetch(), SERVER.jars()
    if lib is None:
        raise Absent(why or "its jars are not there")
    server = HBase(lib, folder)
    try:
        if not server.ready(120):
            raise Absent("the server did not come up within two minutes")
        yield f"hbase://127.0.0.1:{server.port}"
    finally:
        server.stop()


def hbase(address: str) -> Opened:
    """A fresh table."""
    from holdfast.checkpoint.stores.hbase import HBaseStore

    return ours(HBaseStore.at(f"{address}/b{os.urandom(4).hex()}"))
