"""Results that a query has handed over and whose bucket is still open, as they stand in the log (see `filing`)."""

from __future__ import annotations

import os
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.time import BEGINNING_US
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
    return Waiting(dict(found.state.tokens), *found.pending, found.state.boundary_us)
