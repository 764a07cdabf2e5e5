"""Streams to serve, hosts that serve them, and a plain look at what a log holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.host.link import HttpLink
from holdfast.host.mirror import Advance, Copy, Mirror
from holdfast.host.service import Service
from holdfast.host.stream_server import StreamServer
from holdfast.inputs.network import Access
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.pack import pack
from holdfast.stream.reader import LogReader
from holdfast.stream.store import StreamStore
from holdfast.stream.writer import LogWriter

SECOND = 1_000_000
TOKEN = "operator-operator-operator"
VIEW_TOKEN = "viewer-viewer-viewer"
Tuple = tuple[int, int, int, int]


class Origin:
    """A stream "s" of numbers in buckets of a second, written event by event."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.store: StreamStore = holdfast.open(root)
        self.stream = self.store.create("s", "n bigint", bucket="1s", **options)
        self.writer = self.stream.writer()
        self.definition = self.stream.definition

    def add(self, *rows: tuple[float, int], boundary: float | None = None, writer: LogWriter | None = None) -> None:
        """Rows of (second, number) and the boundary behind them, as one unit."""
        events = pack(_batch(rows, self.definition.stored), self.definition) if rows else []
        boundary_us = None if boundary is None else round(boundary * SECOND)
        (writer or self.writer).commit(events, now_us=1, boundary_us=boundary_us)

    def fill(self, first: int, upto: int, each: int = 3) -> None:
        """Whole buckets, one unit each: `each` tuples, none in every seventh bucket."""
        for bucket in range(first, upto):
            rows = [(bucket + k / 100, bucket * 1000 + k) for k in range(each if bucket % 7 else 0)]
            self.add(*rows, boundary=bucket + 1)

    def tuples(self) -> list[Tuple]:
        return tuples_of(self.stream.folder / "main", self.definition)


def _batch(rows: Sequence[tuple[float, int]], schema: pa.Schema) -> pa.RecordBatch:
    stimes = [round(at * SECOND) for at, _ in rows]
    return pa.RecordBatch.from_arrays([pa.array(stimes, schema[0].type), pa.array([n for _, n in rows])], schema=schema)


def tuples_of(folder: Path, definition: Any) -> list[Tuple]:
    """Everything committed, as (bucket, id, stime, number)."""
    reader = LogReader(folder, definition.schema, definition.bucket_us)
    reader.refresh()
    found = []
    for extent in reader.extents(-(2**62), 2**62, strict=False):
        batch, f = reader.read(extent), extent.fields
        stimes, numbers = batch.column(0).cast(pa.int64()).to_pylist(), batch.column(1).to_pylist()
        found += [(f.bucket, f.first_tuple_id + i, stimes[i], numbers[i]) for i in range(batch.num_rows)]
    reader.close()
    return found


def boundary_of(folder: Path, definition: Any) -> int:
    reader = LogReader(folder, definition.schema, definition.bucket_us)
    reader.refresh()
    boundary = reader.boundary_us
    reader.close()
    return boundary


def never(*_: object) -> None:
    raise AssertionError("nobody was to call this")


@contextlib.asynccontextmanager
async def hosted(store: StreamStore, access: Access | None = None, **given: Any) -> AsyncIterator[Service]:
    """A host on loopback that serves the store."""
    calls: dict[str, Any] = {"deliver": never, "status": dict, "fault": never, "stop": never, "answers": lambda _: True}
    serving = StreamServer(store)
    service = Service(serving, access or Access(token=TOKEN), **{**calls, **given})
    await service.start()
    try:
        yield service
    finally:
        await service.close()
        serving.close()


@contextlib.asynccontextmanager
async def linked(service: Service, token: str = TOKEN, **given: Any) -> AsyncIterator[HttpLink]:
    link = HttpLink(service.address, token, **given)
    try:
        yield link
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def following(
    local: Mirror | Copy, link: Any, lane: Lane = Lane.MAIN, from_us: int = 0
) -> AsyncIterator[list[Advance]]:
    """Follow in the background; what was told comes out. An error of the follower fails the test at the end."""
    told: list[Advance] = []
    task = asyncio.ensure_future(local.follow(link, lane, from_us, told.append, wait_s=0.5))
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition, not for a time."""
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not come true"
        await asyncio.sleep(0.002)
