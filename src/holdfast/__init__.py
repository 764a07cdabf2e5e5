"""Holdfast keeps PySpark streams on time and makes them right in the end.

import holdfast

store = holdfast.open("streams/")
store.create("monitor1", "source string, bytes bigint", bucket="1s", exist_ok=True)
with store.open("monitor1").producer() as producer:
    producer.send({"source": "10.0.0.1", "bytes": 512})
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import (
    BadName,
    ColumnsAdded,
    CorruptLog,
    EarlyTuple,
    Fenced,
    HoldfastError,
    InputLost,
    LateTuple,
    Mended,
    MendedMeanwhile,
    PeerError,
    Removed,
    SchemaError,
    StateLost,
    StorageError,
    StreamBusy,
    StreamFull,
    UnknownStream,
    UsageError,
)  # fmt: skip
from holdfast.model.tuples import TupleType
from holdfast.stream.definition import Bound, Retention
from holdfast.stream.producer import Producer
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.subscriber import Subscriber

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.host.connection import connect
    from holdfast.inputs.kafka import kafka
    from holdfast.inputs.postgres_changes import postgres_changes

__version__ = "0.1.0"
__all__ = [
    "App", "BadName", "Bound", "ColumnsAdded", "CorruptLog", "EarlyTuple", "Fenced", "HoldfastError", "InputLost",
    "LateTuple", "Mended", "MendedMeanwhile", "PeerError", "Producer", "Removed", "Retention", "SchemaError",
    "StateLost", "StorageError", "Stream", "StreamBusy", "StreamFull", "StreamStore", "Subscriber", "TupleType",
    "UnknownStream", "UsageError", "connect", "kafka", "open", "postgres_changes",
]  # fmt: skip


def open(root: str | os.PathLike[str]) -> StreamStore:
    """The streams below a folder, which is made when the first stream is created."""
    return StreamStore(root)


def __getattr__(name: str) -> Any:
    """`App`, `connect` and sources on first use: who only reads and writes streams need not wait for the protocol."""
    if name == "App":
        from holdfast.app import App

        return App
    if name == "connect":
        from holdfast.host.connection import connect

        return connect
    if name == "kafka":
        from holdfast.inputs.kafka import kafka

        return kafka
    if name == "postgres_changes":
        from holdfast.inputs.postgres_changes import postgres_changes

        return postgres_changes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
