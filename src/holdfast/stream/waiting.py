"""Results that a query has handed over and whose bucket is still open, as they stand in the log (see `filing`).

A fork that has no branch yet keeps those that it would have in a file of its own: it begins with its parent's, and goes
on with what it computes itself while it follows main.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.time import BEGINNING_US
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.manifest import load_manifest
from holdfast.stream.resume import resumed
from holdfast.stream.segment import Window, recover
from holdfast.stream.store import Stream
from holdfast.stream.tail import TailReader


class Waiting(NamedTuple):
    """The waiting results after one commit, and who has committed what."""

    tokens: dict[str, int]
    rows: int
    body: bytes
    boundary_us: int = BEGINNING_US
    """What the stream promised after that commit."""
    next_tuple_id: int = 1
    """The id of the first tuple that was filed after it."""

    def since(self, first_us: int) -> tuple[int, bytes]:
        """What of it lies at or after `first_us`, in the form that `LogWriter.commit` takes as pending."""
        if not self.rows:
            return 0, b""
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as reader:
            table = reader.read_all()
        table = table.filter(pc.greater_equal(table.column(0).cast(pa.int64()), first_us))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return table.num_rows, bytes(memoryview(sink.getvalue()))

    def last_us(self) -> int | None:
        """The latest of them; None if there are none."""
        if not self.rows:
            return None
        with pa.ipc.open_stream(pa.py_buffer(self.body)) as reader:
            return int(pc.max(reader.read_all().column(0).cast(pa.int64())).as_py())


def waiting_results(stream: Stream) -> Waiting | None:
    """Read them from the end of main, without taking the stream from its writer; None if it is just being opened."""
    folder = stream.folder / "main"
    manifest = load_manifest(folder)
    if manifest is None or not manifest.segments:
        return Waiting({}, 0, b"")
    last = manifest.segments[-1]
    end = last.length
    if end is None:
        tail = TailReader(folder, last.epoch)
        note = tail.read()
        tail.close()
        if note is None or note.base_seq != last.base_seq:
            return None
        end = note.offset
    fd = os.open(folder / last.name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        since = resumed(Window(fd, folder / last.name, end), manifest.resume)
        found = recover(fd, folder / last.name, end, bodies=False, since=since)
    finally:
        os.close(fd)
    state = found.state
    return Waiting(dict(state.tokens), *found.pending, state.boundary_us, state.next_tuple_id)


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    format: int
    rows: int
    body: bytes
    boundary_us: int


_FORMAT = 1
_decoder = msgspec.msgpack.Decoder(_Kept)


def keep_waiting(path: Path, waiting: Waiting) -> None:
    """Like the fork that it belongs to, the file does not outlive its host: so it is not synced."""
    kept = _Kept(_FORMAT, waiting.rows, waiting.body, waiting.boundary_us)
    VolatileDisk().replace_file(path, msgspec.msgpack.encode(kept))


def kept_waiting(path: Path) -> Waiting | None:
    """None once the fork has its branch."""
    try:
        kept = _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    return Waiting({}, kept.rows, kept.body, kept.boundary_us)
