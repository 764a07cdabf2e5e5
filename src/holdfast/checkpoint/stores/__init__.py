"""Stores for checkpoints, and the way from an address to one.

open_store("log:/var/lib/app/checkpoints")
open_store("files:/var/lib/app/checkpoints")
open_store("rocksdb:/var/lib/app/checkpoints")
open_store("redis://127.0.0.1:6379/0")
open_store("hbase://127.0.0.1:8080/checkpoints")
open_store("memory:")
"""

from __future__ import annotations

from holdfast.checkpoint.store import CheckpointStore
from holdfast.model.errors import UsageError


def open_store(address: str) -> CheckpointStore:
    """The store at an address. Libraries of stores that are not used need not be installed."""
    kind, _, rest = address.partition(":")
    if kind == "memory" and not rest:
        from holdfast.checkpoint.stores.memory import MemoryStore

        return MemoryStore()
    if kind == "files" and rest:
        from holdfast.checkpoint.stores.files import FilesStore

        return FilesStore(rest)
    if kind == "log" and rest:
        from holdfast.checkpoint.stores.log import LogStore

        return LogStore(rest)
    if kind == "rocksdb" and rest:
        from holdfast.checkpoint.stores.rocksdb import RocksStore

        return RocksStore(rest)
    if kind in ("redis", "rediss", "unix") and rest:
        from holdfast.checkpoint.stores.redis import RedisStore

        return RedisStore(address)
    if kind == "hbase" and rest:
        from holdfast.checkpoint.stores.hbase import HBaseStore

        return HBaseStore.at(address)
    raise UsageError(
        f"a store's address must begin with memory:, files:, log:, rocksdb:, redis:// or hbase://; got {address!r}"
    )
