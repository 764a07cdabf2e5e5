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

#: What an address of each kind looks like.
_FORMS = {
    "memory": "memory:", "files": "files:FOLDER", "log": "log:FOLDER", "rocksdb": "rocksdb:FOLDER",
    "redis": "redis://HOST:PORT/DB", "rediss": "rediss://HOST:PORT/DB", "unix": "unix://PATH",
    "hbase": "hbase://HOST:PORT/TABLE",
}  # fmt: skip


def check_address(address: str) -> tuple[str, str]:
    """The kind of store and what follows; refuses what no store can have, before anything is opened."""
    kind, _, rest = address.partition(":")
    if kind not in _FORMS:
        raise UsageError(
            f"a store's address must begin with memory:, files:, log:, rocksdb:, redis:// or hbase://; got {address!r}"
        )
    form = _FORMS[kind]
    if (not rest) != (kind == "memory") or ("://" in form and not rest.startswith("//")):
        raise UsageError(f"the address of a {kind} store must look like {form}; got {address!r}")
    return kind, rest


def open_store(address: str) -> CheckpointStore:
    """The store at an address. Libraries of stores that are not used need not be installed."""
    kind, rest = check_address(address)
    if kind == "memory":
        from holdfast.checkpoint.stores.memory import MemoryStore

        return MemoryStore()
    if kind == "files":
        from holdfast.checkpoint.stores.files import FilesStore

        return FilesStore(rest)
    if kind == "log":
        from holdfast.checkpoint.stores.log import LogStore

        return LogStore(rest)
    if kind == "rocksdb":
        from holdfast.checkpoint.stores.rocksdb import RocksStore

        return RocksStore(rest)
    if kind in ("redis", "rediss", "unix"):
        from holdfast.checkpoint.stores.redis import RedisStore

        return RedisStore(address)
    from holdfast.checkpoint.stores.hbase import HBaseStore

    return HBaseStore.at(address)
