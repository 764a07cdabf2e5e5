"""Puts a boundary right that lies ahead because a wrong time was written (a clock, a row dated 9999).

A boundary never goes back (D10), so this is no write like others: an operator asks for it, nobody may write meanwhile,
and readers that had come further are told. Steps, in the order in which they may be cut short:

1. The log is written anew beside the old one, event by event in the order of tuple ids: events below the new boundary
   byte for byte; the tuples of all others keep their ids and values and get the new boundary as their stime.
2. The old segments get a second name in the stream's folder `damaged`.
3. The note of the mend (`mended`) becomes durable, and acknowledgements beyond the new boundary are taken back to it.
4. One manifest replaces the old segments by the new ones. Before it, nothing has happened for anybody.

What readers get: tuples before the new boundary are untouched, whoever has read them. A reader that is open meanwhile
is refused (`MendedMeanwhile`) and must open the stream again. One that comes back with a position beyond the new
boundary has read tuples that have another stime now; it is refused (`Mended`) and must start anew, however far the
stream has come since (`mended`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, instant_text
from holdfast.stream.acks import Acknowledged, read_acks
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.branch import find_branch
from holdfast.stream.checking.damaged import keep
from holdfast.stream.checking.mended import Mend, add_mend
from holdfast.stream.control import has_frames
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.frame import Kind
from holdfast.stream.head import alone
from holdfast.stream.index import index_path
from holdfast.stream.manifest import Manifest, load_manifest, manifest_path, unlink_older
from holdfast.stream.pack import pack_arrived
from holdfast.stream.position import Position
from holdfast.stream.reader import Extent, LogReader
from holdfast.stream.sealed import seal
from holdfast.stream.writer import Event, LogWriter

#: Events of one unit of the new log: enough that its syncs are few, few enough to be held in memory.
_UNIT_EVENTS = 64


class BoundaryMend(NamedTuple):
    """What was done, or would be."""

    was_us: int
    to_us: int
    """The new boundary: the end of the bucket that holds the time asked for."""
    moved: int
    """Tuples that get `to_us` as their stime."""
    first_us: int | None
    last_us: int | None
    """Their stimes before that."""
    subscribers: tuple[str, ...]
    """Named subscribers whose acknowledgement goes back to `to_us`."""
    first_id: int | None
    """The id of the first tuple that is moved."""
    applied: bool = False


def mend_boundary(
    folder: Path, definition: Definition, to_us: int, *, now_us: int, apply: bool = False, disk: Disk | None = None
) -> BoundaryMend:
    """Let the boundary of the stream lie at `to_us`. Refused while somebody writes, and where it does not lie ahead."""
    to_us = closed_until(to_us, definition.bucket_us) + definition.bucket_us
    reader = LogReader(folder / "main", definition.schema, definition.bucket_us)
    if not apply:
        with contextlib.closing(reader):
            return _plan(folder, definition, reader, to_us)
    disk = disk or Disk()
    writer = LogWriter.open(folder / "main", definition.id_bytes, now_us=now_us, disk=disk)
    try:
        with contextlib.closing(reader), alone(folder / "main"):
            found = _plan(folder, definition, reader, to_us)
            _Mending(folder, definition, writer, reader, now_us, disk).run(found)
            return found._replace(applied=True)
    finally:
        writer.release(now_us)


def _plan(folder: Path, definition: Definition, reader: LogReader, to_us: int) -> BoundaryMend:
    reader.refresh()
    whose = f"stream {definition.name}"
    if reader.closed:
        raise UsageError(f"{whose}: it has ended, so its boundary stays; nothing was changed")
    if reader.boundary_us <= to_us:
        raise UsageError(
            f"{whose}: its boundary {instant_text(reader.boundary_us)} does not lie beyond {instant_text(to_us)}; "
            f"there is nothing to mend"
        )
    if find_branch(folder) is not None or has_frames(reader, Kind.CONTROL, Kind.PENDING):
        raise UsageError(
            f"{whose}: a node writes it, and its results follow its inputs; mend those, and let the node start anew"
        )
    if read_note(folder / "main") is not None:
        raise UsageError(
            f"{whose}: some of it is in the archive {definition.archive}, where nothing is changed; let its source "
            f"send into a new stream, or wait until the boundary {instant_text(reader.boundary_us)} has come"
        )
    ahead = reader.entries(to_us, END_OF_TIME_US)
    return BoundaryMend(
        reader.boundary_us, to_us, int(ahead["rows"].sum()),
        int(ahead["stime_min_us"].min()) if len(ahead) else None,
        int(ahead["stime_max_us"].max()) if len(ahead) else None,
        tuple(sorted(name for name, ack in read_acks(folder).items() if ack.until_us > to_us)),
        int(ahead["first_tuple_id"].min()) if len(ahead) else None,
    )  # fmt: skip


class _Mending:
    """Steps 1 to 4."""

    def __init__(
        self, folder: Path, definition: Definition, writer: LogWriter, reader: LogReader, now_us: int, disk: Disk
    ) -> None:
        self._folder, self._main, self._definition = folder, folder / "main", definition
        self._writer, self._reader, self._now_us, self._disk = writer, reader, now_us, disk

    def run(self, found: BoundaryMend) -> None:
        beside = self._folder / ".mending"
        shutil.rmtree(beside, ignore_errors=True)
        manifest = self._write_anew(beside, found.to_us)
        for entry in self._writer.segments:
            keep(self._folder, self._main / entry.name, self._disk)
        done = self._reader.mends
        mend = Mend(found.was_us, found.to_us, self._now_us, found.moved, found.first_id)
        add_mend(self._folder, done, mend, self._disk)
        acks = read_acks(self._folder)
        for name in found.subscribers:
            self._disk.replace_file(self._folder / "acks" / name, seal(self._taken_back(acks[name], found.to_us)))
        self._publish(beside, msgspec.structs.replace(manifest, mends=done + 1))
        shutil.rmtree(beside, ignore_errors=True)

    def _taken_back(self, ack: Acknowledged, to_us: int) -> Acknowledged:
        """Retention waits for the mended tuples. Whoever resumes under the name must hear of the mend, so it keeps the
        position that it had."""
        size = self._definition.bucket_us
        position = ack.position or Position(ack.until_us).text(self._definition.name, size)
        return Acknowledged(until_us=to_us, wall_us=self._now_us, position=position, taken_back=True)

    def _write_anew(self, beside: Path, to_us: int) -> Manifest:
        """Step 1, in a folder of its own whose epoch and commits follow ours."""
        before, state = load_manifest(self._main), self._writer.state
        assert before is not None
        extents = self._reader.extents(BEGINNING_US, END_OF_TIME_US, strict=False)
        extents.sort(key=lambda e: e.fields.first_tuple_id)
        first_id = extents[0].fields.first_tuple_id if extents else state.next_tuple_id
        self._disk.make_dir(beside)
        seed = Manifest(version=before.version, epoch=before.epoch, owner=before.owner)
        self._disk.publish_file(manifest_path(beside, before.version), seal(seed))
        anew = LogWriter.open(
            beside, self._definition.id_bytes, now_us=self._now_us, disk=self._disk,
            segment_bytes=self._definition.segment_bytes,
            begin=msgspec.structs.replace(state, boundary_us=BEGINNING_US, next_tuple_id=first_id),
        )  # fmt: skip
        for events in _units(self._events(extents, to_us)):
            anew.commit(events, now_us=self._now_us)
        # No id is ever given twice, also where the last tuples were lost before.
        anew.state = msgspec.structs.replace(anew.state, next_tuple_id=state.next_tuple_id)
        anew.commit([], now_us=self._now_us, boundary_us=to_us)
        anew.release(self._now_us)
        made = load_manifest(beside)
        assert made is not None
        return made

    def _events(self, extents: Sequence[Extent], to_us: int) -> Iterator[Event]:
        for extent in extents:
            if extent.fields.stime_max_us < to_us:
                f = extent.fields
                body = self._reader.body(extent.segment, f)
                yield Event(f.bucket, f.partition, f.rows, f.stime_min_us, f.stime_max_us, body, f.first_tuple_id)
            else:
                yield self._moved(extent, to_us)

    def _moved(self, extent: Extent, to_us: int) -> Event:
        batch = self._reader.read(extent)
        rows = pa.RecordBatch.from_arrays(batch.columns[1:], schema=self._definition.schema)
        (event,) = pack_arrived(rows, to_us, self._definition, self._definition.stored)
        # With a key its tuples are in the partition of that key already; without one, the bucket decides.
        keyed = self._definition.partition_by is not None
        partition = extent.fields.partition if keyed else event.partition
        return event._replace(partition=partition, first_tuple_id=extent.fields.first_tuple_id)

    def _publish(self, beside: Path, made: Manifest) -> None:
        """Step 4."""
        for entry in made.segments:
            for path in (beside / entry.name, index_path(beside / entry.name)):
                self._disk.unlink(self._main / path.name)
                self._disk.link(path, self._main / path.name)
        self._disk.sync_dir(self._main)
        ours = load_manifest(self._main)
        assert ours is not None
        manifest = Manifest(
            version=ours.version + 1, epoch=made.epoch, owner=made.owner, released=True, segments=made.segments,
            mends=made.mends,
        )  # fmt: skip
        if not self._disk.publish_file(manifest_path(self._main, manifest.version), seal(manifest)):
            raise UsageError(f"stream {self._definition.name}: another writer took it meanwhile; nothing was changed")
        unlink_older(self._main, manifest.version, self._disk)


def _units(events: Iterator[Event]) -> Iterator[list[Event]]:
    unit: list[Event] = []
    for event in events:
        unit.append(event)
        if len(unit) == _UNIT_EVENTS:
            yield unit
            unit = []
    if unit:
        yield unit
