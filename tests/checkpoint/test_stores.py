"""Every store against the shared suite (C6, C8, C9, C10)."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.checkpoint.store import CheckpointStore, Saved
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.hbase import HBaseStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.checkpoint.stores.rocksdb import RocksStore
from holdfast.model.errors import PeerError, StorageError, StreamBusy, UsageError
from holdfast.testing.stores import OPERATIONS, StoreConformance
from tests.checkpoint.hbase_server import hbase
from tests.checkpoint.servers import RedisServer


class TestMemory(StoreConformance):
    survives = False

    def start(self, folder: Path) -> None:
        pass

    def open(self) -> CheckpointStore:
        return MemoryStore()


class OnDisk(StoreConformance):
    """A crash is a copy of the folder as it is while the store is still open: what kill -9 leaves behind."""

    def start(self, folder: Path) -> None:
        self.folder, self.lives = folder / "0", 0

    def crash(self, store: CheckpointStore) -> None:
        self.lives += 1
        after = self.folder.with_name(str(self.lives))
        with self.still(store):
            shutil.copytree(self.folder, after)
        store.close()
        shutil.rmtree(self.folder)
        self.folder = after

    def still(self, store: CheckpointStore) -> contextlib.AbstractContextManager[object]:
        """A copy is no instant: nothing may happen in the background while it is made."""
        return contextlib.nullcontext()


class TestFiles(OnDisk):
    def open(self) -> CheckpointStore:
        return FilesStore(self.folder)


class TestLog(OnDisk):
    def open(self) -> CheckpointStore:
        # Tiny segments and flushes: rotation, collection and compaction happen all the time.
        return LogStore(self.folder, segment_bytes=16_384, flush_records=25, background=False)


class TestLogInTheBackground(OnDisk):
    operations = OPERATIONS // 2

    def open(self) -> CheckpointStore:
        return LogStore(self.folder, segment_bytes=16_384, flush_records=25)

    def still(self, store: CheckpointStore) -> contextlib.AbstractContextManager[object]:
        assert isinstance(store, LogStore)
        return store._care


class TestRocks(OnDisk):
    def open(self) -> CheckpointStore:
        return RocksStore(self.folder)

    def still(self, store: CheckpointStore) -> contextlib.AbstractContextManager[object]:
        """RocksDB compacts in threads of its own; it is still when nothing has changed for a while."""
        seen: dict[str, int] = {}
        while (now := self._sizes()) != seen:
            seen = now
            time.sleep(0.05)
        return contextlib.nullcontext()

    def _sizes(self) -> dict[str, int]:
        found = {}
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[path.name] = path.stat().st_size
        return found


class TestRedis(StoreConformance):
    """A crash is kill -9 of the server."""

    def start(self, folder: Path) -> None:
        self.server = RedisServer(folder)

    def open(self) -> CheckpointStore:
        return RedisStore(self.server.address)

    def crash(self, store: CheckpointStore) -> None:
        self.server.kill()
        self.server.start()
        store.close()

    def finish(self) -> None:
        self.server.stop()


class TestHBase(StoreConformance):
    """The server is shared by all tests, each of which has its own table; a crash is a client that goes away."""

    operations = OPERATIONS if OPERATIONS > 1000 else 150  # Some 20 ms each.

    address: str

    @pytest.fixture(scope="class", autouse=True)
    def _server(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with hbase() as request.cls.address:
            yield

    def start(self, folder: Path) -> None:
        self.table = "t" + os.urandom(6).hex()

    def open(self) -> CheckpointStore:
        return HBaseStore.at(f"{self.address}/{self.table}")

    def finish(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.delete(f"http://{self.address.partition('://')[2]}/{self.table}/schema", timeout=30)


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    for kind in (FilesStore, LogStore):
        with kind(tmp_path / kind.__name__), pytest.raises(StreamBusy, match="one process at a time"):
            kind(tmp_path / kind.__name__)


def test_a_server_that_is_away_is_said_and_found_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        with RedisStore(server.address) as store:
            assert store.durability == "on the server's disk: synced before each answer"
            store.put(b"k", 1, b"v")
            server.kill()
            with pytest.raises(PeerError, match="connects again"):
                store.put(b"k", 2, b"w")
            server.start()
            assert store.get(b"k") == Saved(1, b"v")
            assert store.put(b"k", 2, b"w")
    finally:
        server.stop()


def test_an_address_opens_its_store_and_nonsense_says_what_would(tmp_path: Path) -> None:
    for address in ("memory:", f"files:{tmp_path}/f", f"log:{tmp_path}/l", f"rocksdb:{tmp_path}/r"):
        with open_store(address) as store:
            assert store.put(b"k", 1, b"v")
            assert store.durability
    for address, why in (
        ("pickle:/tmp/x", "must begin with memory:"), ("/tmp/x", "must begin with memory:"),
        ("log:", "must look like log:FOLDER"), ("memory:x", "must look like memory:"),
        ("redis:127.0.0.1", "must look like redis://"), ("hbase://127.0.0.1:http/t", "must look like hbase://"),
        ("hbase://127.0.0.1]:8080/t", "must look like hbase://"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            open_store(address)
    (tmp_path / "file").touch()
    for kind in ("files", "log", "rocksdb"):
        with pytest.raises(StorageError, match="check the path"):
            open_store(f"{kind}:{tmp_path}/file/below")
