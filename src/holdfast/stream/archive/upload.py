"""Bringing sealed segments into the archive.

The steps for one segment, in the order in which they may be cut short:
1. Its frames are walked over and compared with their checksums: rot is not archived, it is reported.
2. Its bytes go to the store, then its index, made anew from that walk.
3. Its bytes are read back and compared with the checksum of those that were sent.
4. The next catalog is created in the store. It fails if another host's time as archiver has begun (`catalog`, rule 5).
5. The catalog is noted beside the segments, durably.
6. Retention may now take the segment from the disk (`retention`), whenever that is due.

Whoever is killed between two of them leaves objects that no catalog names, which the next run writes again, or a
catalog that the note has not caught up with, which the next run takes over: nothing is lost, and nothing is twice.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.errors import CorruptLog, Fenced, StorageError
from holdfast.stream.archive.catalog import (
    FILES,
    ArchivedSegment,
    Catalog,
    Page,
    Removed,
    catalog_key,
    load_page,
    newest,
    paged,
    place,
    read_note,
    write_note,
)
from holdfast.stream.archive.download import chunks_of
from holdfast.stream.archive.objects import ObjectStore, join
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk, file_mode
from holdfast.stream.frame import FILE_HEADER_SIZE, crc32c, crc32c_on, decode_file_header
from holdfast.stream.head import read_head
from holdfast.stream.index import build_entries, encode_index
from holdfast.stream.manifest import Manifest, SegmentEntry, load_manifest, unsettled
from holdfast.stream.record import State
from holdfast.stream.sealed import seal
from holdfast.stream.segment import recover

#: Of a segment that is sent.
_CHUNK = 8 << 20
_FILE_BYTES_MAX = 1 << 20
_LOCK = "archive.lock"


class Uploaded(NamedTuple):
    """What one run brought into the archive."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0


def waiting(folder: Path, note: Catalog | None) -> list[SegmentEntry]:
    """Segments that are sealed and not in the archive, oldest first."""
    manifest = load_manifest(folder)
    if manifest is None or unsettled(manifest):
        return []
    first = max(read_head(folder).first_base_seq, 0 if note is None else note.end_seq)
    return [s for s in _sealed(manifest) if s.base_seq >= first]


def _sealed(manifest: Manifest) -> tuple[SegmentEntry, ...]:
    """Segments that nobody will add to. The last one is, once the stream has ended."""
    ended = manifest.released and manifest.resume is not None and manifest.resume.state.closed
    return manifest.segments if ended else manifest.segments[:-1]


def sound_note(folder: Path) -> Catalog | None:
    """The note; None also where it is damaged: the store has the same."""
    try:
        return read_note(folder)
    except CorruptLog:
        return None


class Upload:
    """One run over a stream. `folder` is its main branch."""

    def __init__(self, folder: Path, definition: Definition, objects: ObjectStore, disk: Disk, now_us: int) -> None:
        self._folder, self._definition, self._objects, self._disk = folder, definition, objects, disk
        self._now_us = now_us
        self._place = place(definition.name, definition.id)

    def run(self) -> Uploaded:
        """Everything that is sealed. Raises what stops it; what was done before that is done."""
        done = Uploaded()
        catalog = self.settled()
        for entry in waiting(self._folder, catalog):
            segment, state = self._send(entry, catalog.tenure)
            if catalog.count and entry.base_seq != catalog.end_seq:
                raise CorruptLog(
                    f"stream {self._definition.name}: segment {entry.name} begins after commit {entry.base_seq}, the "
                    f"archive ends with {catalog.end_seq}; what lies between is missing; run `holdfast verify`"
                )
            catalog = self.publish(catalog, msgspec.structs.replace(
                catalog, segments=(*catalog.segments, segment), end_seq=segment.end_seq,
                first_seq=catalog.first_seq if catalog.count else entry.base_seq,
                doomed=(), boundary_us=state.boundary_us, next_tuple_id=state.next_tuple_id, wall_us=self._now_us,
            ))  # fmt: skip
            done = Uploaded(done.segments + 1, done.rows + entry.rows, done.bytes + (entry.length or 0))
        return done

    # -- steps 1 to 3 ------------------------------------------------------------------------------------------------

    def _send(self, entry: SegmentEntry, tenure: int) -> tuple[ArchivedSegment, State]:
        path, length = self._folder / entry.name, entry.length or 0
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = recover(fd, path, length)
            if found.end != length:
                raise CorruptLog(
                    f"{path} at byte {found.end}: the segment is damaged ({found.problem or 'bytes are missing'}) and "
                    f"is not archived, nor is what follows it; run `holdfast repair`"
                )
            decode_file_header(os.pread(fd, FILE_HEADER_SIZE, 0), str(path))
            index = encode_index(build_entries(path, length), length)
            sums: list[int] = []
            segment = f"{tenure:04d}/{entry.name}"
            self._objects.put(join(self._place, segment), _chunks(fd, path, length, sums))
        finally:
            os.close(fd)
        archived = ArchivedSegment(entry, found.state.commit_seq, segment, sums[-1], len(index))
        self._objects.put(join(self._place, archived.index_key), [index])
        self._read_back(archived, crc32c(index))
        return archived, found.state

    def _read_back(self, segment: ArchivedSegment, index_crc: int) -> None:
        key, length, crc = join(self._place, segment.key), segment.entry.length or 0, 0
        for _, data in chunks_of(self._objects, key, length):
            crc = crc32c_on(crc, data)
        index = self._objects.get(join(self._place, segment.index_key))
        if crc != segment.crc or crc32c(index) != index_crc:
            raise StorageError(
                f"archive {self._objects.url}: {key} does not read back as it was written; the segment stays on the "
                f"disk and is sent again"
            )

    # -- steps 4 and 5 -----------------------------------------------------------------------------------------------

    def settled(self) -> Catalog:
        """The catalog to follow: the note, or the store's where a run was cut short between steps 4 and 5."""
        known = sound_note(self._folder)
        if known is None:
            head = read_head(self._folder)
            before = Removed(head.removed_until_us, head.removed_rows, head.removed_bytes)
            known = Catalog(stream=self._definition.id, removed=before)
        stored = newest(self._objects, self._place)
        if stored is None:
            if known.version:
                raise StorageError(
                    f"archive {self._objects.url}: it has no catalog of stream {self._definition.name}, but version "
                    f"{known.version} was published; check that this is the bucket that it was archived to"
                )
            return known
        if stored.tenure > known.tenure:
            raise Fenced(
                f"stream {self._definition.name}: it was restored from the archive by {stored.owner}, which archives "
                f"it now; nothing more goes there from this host, and nothing is removed from its disk"
            )
        if stored.version < known.version:
            raise StorageError(
                f"archive {self._objects.url}: its newest catalog of stream {self._definition.name} is version "
                f"{stored.version}, but {known.version} was published; was the bucket set back? Nothing was changed"
            )
        if stored.version > known.version:
            self._check_ours(known, stored)
            write_note(self._folder, stored, self._pages(stored), self._disk)
        self._clean(stored)
        return stored

    def _clean(self, catalog: Catalog) -> None:
        """Remove what nobody can need: all but the two newest catalogs, and what retention has let go of."""
        self._objects.delete(list(self._objects.sizes(join(self._place, "catalog")))[:-2])
        self._objects.delete(join(self._place, key) for key in catalog.doomed)

    def _check_ours(self, known: Catalog, stored: Catalog) -> None:
        """Whoever copied the folder of a stream to two hosts has two streams that archive to the same place."""
        away = read_head(self._folder).archived_seq  # Not on the disk any more, and the note of it is lost.
        for segment in stored.segments:
            if segment.entry.base_seq >= max(known.end_seq, away) and self._crc(segment.entry) != segment.crc:
                raise Fenced(
                    f"stream {self._definition.name}: the archive has a segment {segment.entry.name} that is not of "
                    f"this folder; another copy of the stream archives to the same place; nothing was changed"
                )

    def _crc(self, entry: SegmentEntry) -> int | None:
        """Of a segment on this disk; None if it is not there."""
        try:
            fd = os.open(self._folder / entry.name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        sums: list[int] = []
        try:
            for _ in _chunks(fd, self._folder / entry.name, entry.length or 0, sums):
                pass
        except CorruptLog:
            return None
        finally:
            os.close(fd)
        return sums[-1]

    def _pages(self, catalog: Catalog) -> dict[str, Page]:
        return {
            p.key: load_page(p, self._folder, lambda: self._objects, self._place)
            for p in catalog.pages
            if not (self._folder / p.key).exists()
        }

    def publish(self, before: Catalog, after: Catalog, pages: dict[str, Page] | None = None) -> Catalog:
        """Let `after` follow `before`, in the store and beside the segments."""
        manifest = load_manifest(self._folder)
        after = msgspec.structs.replace(
            after, version=before.version + 1, owner=socket.gethostname(), files=_small_files(self._folder.parent),
            epoch=max(after.epoch, 0 if manifest is None else manifest.epoch),
        )  # fmt: skip
        after, made = paged(after)
        made |= pages or {}
        for key, page in made.items():
            self._objects.put(join(self._place, key), [seal(page)])
        if not self._objects.create(catalog_key(self._place, after.version), seal(after)):
            raise StorageError(
                f"archive {self._objects.url}: catalog {after.version} of stream {self._definition.name} was published "
                f"by somebody else meanwhile; the next run finds out by whom"
            )
        write_note(self._folder, after, made, self._disk)
        return after


def _chunks(fd: int, path: Path, length: int, sums: list[int]) -> Iterator[bytes]:
    """The segment's bytes; `sums` gets the checksum of all so far with each chunk."""
    crc = 0
    for at in range(0, length, _CHUNK):
        data = os.pread(fd, min(_CHUNK, length - at), at)
        if len(data) != min(_CHUNK, length - at):
            raise CorruptLog(f"{path} at byte {at + len(data)}: {length} bytes were committed, the rest is not there")
        crc = crc32c_on(crc, data)
        sums.append(crc)
        yield data


def _small_files(stream_folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    names = [*FILES, *(f"acks/{p.name}" for p in sorted((stream_folder / "acks").glob("[!.]*")))]
    for name in names:
        with suppress(FileNotFoundError, UnicodeDecodeError):
            path = stream_folder / name
            if path.stat().st_size <= _FILE_BYTES_MAX:
                found[name] = path.read_text()
    return found


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """One run at a time for a stream on this machine; False if another has it."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        yield False
        return
    try:
        yield True
    finally:
        os.close(fd)
