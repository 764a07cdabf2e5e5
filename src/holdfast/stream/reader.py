"""Reading a branch: which events are committed, and their tuples.

Rules:
1. Only what the tail says is durable is looked at; where no writer lives, what can be made durable here and now is,
   too. A reader never goes back: an older note than the last is ignored.
2. Main is read by whole buckets: a bucket is readable once the boundary has passed its end.
3. Order is (bucket, tuple_id). It does not depend on who reads, when, or in which portions (L6).
4. No byte is decoded before its checksum was compared (L4), and no batch is used before it was validated in full (X5):
   a checksum says that bytes are as they were written, not who wrote them.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.model.errors import ColumnsAdded, CorruptLog, Removed, StorageError
from holdfast.model.schema import stored_schema
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, instant_text
from holdfast.model.tuples import TupleType
from holdfast.stream.archive.catalog import ArchivedSegment, note_path, overlaps
from holdfast.stream.archive.objects import OnlyArchived
from holdfast.stream.archive.view import NOTHING, ArchiveView, Totals, view_at
from holdfast.stream.checking.mended import Mend, passed_over, read_mends, refusal, went_back
from holdfast.stream.columns import has_more, read_batch
from holdfast.stream.disk import storage_error
from holdfast.stream.frame import FILE_HEADER_SIZE, HEADER_SIZE, Kind, crc32c, padded
from holdfast.stream.head import read_head
from holdfast.stream.index import EMPTY, ENTRY, Entries, Fields, fields_of, load_entries, load_prefix, make_entries
from holdfast.stream.losses import read_losses
from holdfast.stream.manifest import Manifest, SegmentEntry, kept_elsewhere, load_manifest, manifest_path, unsettled
from holdfast.stream.resume import ResumePoint, resumed
from holdfast.stream.segment import LastControl, Window, recover, walk
from holdfast.stream.tail import TailReader, writer_lives

#: Segments held open at a time: a long history must not use up the process's file numbers.
_FILES_MAX = 64
#: Index entries of sealed segments held in memory, at most: those of some gigabytes of tuples. Whoever follows a stream
#: for months passes over them all and needs the last few.
_INDEX_BYTES_MAX = 64 << 20


class Extent(NamedTuple):
    """Where one event lies: all that is needed to read it again, anywhere the folder is mounted."""

    segment: str
    fields: Fields


class _Active:
    """The segment that is being written: its entries, as far as they are committed."""

    def __init__(self, folder: Path, entry: SegmentEntry, resume: ResumePoint | None) -> None:
        self.entry = entry
        self.path = folder / entry.name
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.end = FILE_HEADER_SIZE
        self._new: list[Fields] = []
        self._room: Entries | None = None
        self._count = 0
        self.boundary_us = BEGINNING_US
        self.closed = False
        self.commit_seq = entry.base_seq
        try:
            self._begin(resume)
        except BaseException:
            os.close(self.fd)
            raise

    def _begin(self, resume: ResumePoint | None) -> None:
        found = resumed(Window(self.fd, self.path, os.fstat(self.fd).st_size), resume)
        if found is None:
            self._room = EMPTY
            # The first unit was durable before the manifest named the segment: no boundary is ever forgotten.
            self.extend(self._first_end())
        else:
            self.end, self.boundary_us, self.closed = found.end, found.state.boundary_us, found.state.closed
            self.commit_seq = found.state.commit_seq
        #: Entries before this place are taken from the index file, once somebody asks for them.
        self._began = self.end

    def _first_end(self) -> int:
        size = os.fstat(self.fd).st_size
        return next((u.end for u in walk(Window(self.fd, self.path, size), FILE_HEADER_SIZE)), FILE_HEADER_SIZE)

    def extend(self, end: int) -> bool:
        if end <= self.end:
            return False
        for unit in walk(Window(self.fd, self.path, end), self.end):
            self._new += [fields_of(f) for f in unit.frames if f.header.kind == Kind.EVENT]
            self.boundary_us, self.closed, self.commit_seq = unit.commit.boundary_us, unit.commit.closed, unit.seq
            self.end = unit.end
        if self.end != end:
            raise CorruptLog(f"{self.path} at byte {self.end}: {end} bytes were committed, the rest is not there")
        return True

    @property
    def entries(self) -> Entries:
        if self._room is None:
            self._room = load_prefix(Window(self.fd, self.path, self._began))
            self._count = len(self._room)
        if self._new:
            count = self._count + len(self._new)
            if count > len(self._room):  # Twice as much as is needed, so that each entry is copied twice at most.
                room = np.zeros(2 * count, ENTRY)
                room[: self._count] = self._room[: self._count]
                self._room = room
            self._room[self._count : count] = make_entries(self._new)
            self._count, self._new = count, []
        return self._room[: self._count]

    def close(self) -> None:
        os.close(self.fd)


class LogReader:
    """One branch as it grows. `refresh` looks for more; everything else answers from what was seen then."""

    def __init__(self, folder: Path, user_schema: pa.Schema, bucket_us: int) -> None:
        self.folder, self.bucket_us = folder, bucket_us
        self.stored = stored_schema(user_schema)
        self.boundary_us = BEGINNING_US
        self.closed = False
        self.wall_us = 0
        self.mends = 0
        """How often the boundary had been taken back when what is read here was written (`mended`)."""
        self._manifest: Manifest | None = None
        self._manifest_fd = -1
        self._active: _Active | None = None
        self._tail: TailReader | None = None
        self._sealed: dict[str, Entries] = {}
        self._files: dict[Path, int] = {}
        self.waits = True
        """May it wait for the archive? If not, what only the archive has is `OnlyArchived`."""
        self.all_columns = False
        """Must it have all columns of every event? Then one with more than it knows is `ColumnsAdded`."""

    # -- what is there -----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Look for new commits; True if there were any."""
        changed = False
        while self._manifest is None or self._superseded():
            if not self._reload():
                return changed
            changed = True
        if self._active is not None and self._tail is not None:
            note = self._tail.read()
            if note is not None and note.base_seq == self._active.entry.base_seq:
                self.wall_us = max(self.wall_us, note.wall_us)
                changed |= self._advance(note.offset)
        return changed

    def _advance(self, end: int) -> bool:
        assert self._active is not None
        if not self._active.extend(end):
            return False
        self._take_state()
        return True

    def _take_state(self) -> None:
        assert self._active is not None
        self.boundary_us = max(self.boundary_us, self._active.boundary_us)
        self.closed |= self._active.closed

    def _superseded(self) -> bool:
        assert self._manifest is not None
        if os.path.exists(manifest_path(self.folder, self._manifest.version + 1)):
            return True
        try:  # By its name: a copy made of links has more of the same file, which nobody unlinks.
            there = os.stat(manifest_path(self.folder, self._manifest.version))
        except FileNotFoundError:
            return True
        return there.st_ino != os.fstat(self._manifest_fd).st_ino

    def _reload(self) -> bool:
        while True:
            manifest = load_manifest(self.folder)
            if manifest is None:
                return False
            if unsettled(manifest):
                if writer_lives(self.folder, manifest.epoch):
                    if kept_elsewhere(manifest):
                        raise StorageError(
                            f"stream {self._stream.name}: {manifest.owner} keeps its tuples in the memory of another "
                            f"machine or container; read it there or over the network, or create it with "
                            f"persist='always'"
                        )
                    return False  # It is about to say what is left.
                raise StorageError(
                    f"stream {self._stream.name}: its machine stopped while tuples were kept in memory, and what is "
                    f"left of them is not settled yet; open it for writing (its producer), then read again"
                )
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(manifest_path(self.folder, manifest.version), os.O_RDONLY | os.O_CLOEXEC)
                break
        if self._manifest_fd >= 0:
            os.close(self._manifest_fd)
        self._manifest, self._manifest_fd = manifest, fd
        present = {s.name for s in manifest.segments}
        for path in [path for path in self._files if path.name not in present]:
            os.close(self._files.pop(path))  # Removed by retention: let go of the space.
        self._sealed = {name: entries for name, entries in self._sealed.items() if name in present}
        if not manifest.segments:
            return False
        try:
            self._follow(manifest)
        except FileNotFoundError:
            if not self._superseded():
                self._forget_manifest()
                raise CorruptLog(f"{self.folder / manifest.segments[-1].name}: the segment is missing") from None
        except BaseException:  # Out of files, for instance: with the new manifest, nobody would look again.
            self._forget_manifest()
            raise
        return True

    def _forget_manifest(self) -> None:
        """Whoever asks again must hear of the damage again, not get the half that was read."""
        os.close(self._manifest_fd)
        self._manifest, self._manifest_fd = None, -1

    def _follow(self, manifest: Manifest) -> None:
        last, before, seen_us = manifest.segments[-1], self._active, self.boundary_us
        if before is None or before.entry.name != last.name:
            self._active = _Active(self.folder, last, manifest.resume)
            if before is not None:
                before.close()
            self._take_state()
        else:
            before.entry = last
        assert self._active is not None
        if self.folder.name == "main":
            # Unlike those of a branch, which comes and goes, they never go back: an operator mended one.
            went = self._active.boundary_us < seen_us
            if went or passed_over(self._mends_since(self.mends, manifest.mends), seen_us):
                raise went_back(self._stream.name, seen_us)
            self.mends = manifest.mends
        if self._tail is not None:
            self._tail.close()
        self._tail = TailReader(self.folder, last.epoch)
        if last.length is not None:
            self._advance(last.length)
        elif not writer_lives(self.folder, last.epoch) and not writer_lives(self.folder, manifest.epoch):
            # A newer epoch that lives is about to say where this segment ends.
            self._advance_unattended()

    def _advance_unattended(self) -> None:
        """Rule 1: the writer is dead and its last note may be lost; its whole units count as soon as they are durable.

        The next writer decides by the same rule, so both see the same units.
        """
        assert self._active is not None
        assert self._manifest is not None
        active = self._active
        window = Window(active.fd, active.path, os.fstat(active.fd).st_size)
        found = recover(active.fd, active.path, window.end, since=resumed(window, self._manifest.resume))
        if self._superseded():
            return  # Its end was decided meanwhile, perhaps before what we have just read was written.
        if found.rot:
            raise CorruptLog(
                f"{self._active.path} at byte {found.end}: acknowledged tuples follow that cannot be read "
                f"({found.problem or 'they are missing'}); run `holdfast repair` to see what can be saved"
            )
        try:
            os.fdatasync(self._active.fd)
        except OSError as error:
            raise storage_error("make durable", self._active.path, error) from error
        self._advance(found.end)

    @property
    def closed_until_us(self) -> int:
        """Every bucket that ends here or before is complete. For a closed stream: the end of its last bucket."""
        if self.boundary_us < END_OF_TIME_US:
            return closed_until(self.boundary_us, self.bucket_us) if self.boundary_us > BEGINNING_US else BEGINNING_US
        last = self.stime_max_us
        return BEGINNING_US if last is None else closed_until(last, self.bucket_us) + self.bucket_us

    @property
    def segments(self) -> tuple[SegmentEntry, ...]:
        """Segments on this disk, oldest first."""
        if self._manifest is None:
            return ()
        first = read_head(self.folder).first_base_seq
        return tuple(s for s in self._manifest.segments if s.base_seq >= first)

    def segments_within(self, start_us: int, end_us: int) -> Iterator[SegmentEntry]:
        """Segments that may have tuples in [start, end), oldest first, on this disk or only in the archive."""
        present, archive = self._tiers()
        if present and archive is not None:
            for found in archive.segments(start_us, end_us, before_seq=present[0].base_seq):
                yield found.entry
        active = None if self._active is None else self._active.entry.name
        for entry in present:
            if entry.name == active or overlaps(entry.stime_min_us, entry.stime_max_us, start_us, end_us):
                yield entry

    @property
    def archived(self) -> Totals:
        """What only the archive has."""
        present, archive = self._tiers()
        return archive.totals(present[0].base_seq) if archive is not None and present else NOTHING

    def _tiers(self) -> tuple[tuple[SegmentEntry, ...], ArchiveView | None]:
        """Segments on this disk, and the archive of those before them, if there is one."""
        present = self.segments  # Before the archive: what is taken from the disk was noted there before.
        archive = view_at(self.folder)
        if archive is not None and (away := read_head(self.folder).archived_seq):
            note = archive.catalog()
            if note is None or note.end_seq < away:
                raise CorruptLog(
                    f"{note_path(self.folder)}: the note of what is archived is lost; run `holdfast archive "
                    f"{self._stream.name}`, which takes it from the archive"
                )
        return present, archive

    def ends(self) -> list[tuple[Path, int]]:
        """Every segment on this disk, oldest first, with the length up to which it is committed."""
        active = self._active
        return [
            (self.folder / s.name, active.end if active is not None and s.name == active.entry.name else s.length or 0)
            for s in self.segments
        ]

    def last_controls(self) -> tuple[LastControl, ...]:
        """The newest control frames of the last segment, where its writer has noted them and nothing came since."""
        resume = self._manifest.resume if self._manifest is not None else None
        known = resume is not None and self._active is not None and self._active.end == resume.offset
        return resume.controls if resume is not None and known else ()

    @property
    def stime_max_us(self) -> int | None:
        found = [s.stime_max_us for s in self.segments if s.stime_max_us is not None]
        if (archived := self.archived.stime_max_us) is not None:
            found.append(archived)
        if self._active is not None and len(self._active.entries):
            found.append(int(self._active.entries["stime_max_us"].max()))
        return max(found, default=None)

    @property
    def stime_min_us(self) -> int | None:
        found = [s.stime_min_us for s in self.segments if s.stime_min_us is not None]
        if (archived := self.archived.stime_min_us) is not None:
            found.append(archived)
        if self._active is not None and len(self._active.entries):
            found.append(int(self._active.entries["stime_min_us"].min()))
        return min(found, default=None)

    @property
    def rows(self) -> int:
        """Tuples on this disk and in the archive."""
        sealed = self.archived.rows + sum(s.rows for s in self.segments[:-1])
        return sealed + (int(self._active.entries["rows"].sum()) if self._active is not None else 0)

    @property
    def size_bytes(self) -> int:
        """Bytes on this disk."""
        return sum(s.length or 0 for s in self.segments[:-1]) + (self._active.end if self._active else 0)

    def check_present(self, start_us: int) -> None:
        """Refuse a start whose tuples retention has removed, instead of leaving them out in silence (L6).

        The same for one behind which the boundary was taken back: what comes before it would be left out as well.
        """
        removed = read_head(self.folder).removed_until_us
        if BEGINNING_US < start_us < removed:
            raise Removed(
                f"stream {self.folder.parent.name}: tuples before {instant_text(removed)} were removed by retention; "
                f"asked for {instant_text(start_us)}; start at {instant_text(removed)} or at the beginning"
            )
        if start_us > self.closed_until_us:
            # A time, of which nobody says when it was read to: one that nobody ever can have reached may come.
            for mend in self._mends_since(0, self.mends):
                if mend.to_us < start_us <= mend.was_us:
                    raise refusal(self._stream.name, start_us, mend)

    def check_unmended(self, position_us: int, mends: int, next_id: int = 0) -> None:
        """Refuse whoever had read everything before `position_us`, or tuples up to `next_id`, when so many mends were
        known, and was beyond the place of a later one: it would never see what lies between."""
        mend = passed_over(self._mends_since(mends, self.mends), position_us, next_id)
        if mend is not None:
            raise refusal(self._stream.name, position_us, mend)

    def has_tuple(self, tuple_id: int, stime_us: int) -> bool | None:
        """Whether the tuple of this id has this stime; None where that is not at hand: removed, archived, damaged, or
        given up by a repair."""
        waits, self.waits = self.waits, False
        try:
            for segment, entries in self._within(stime_us, stime_us + 1):
                for row in entries.tolist():
                    fields = Fields(*row)
                    at = tuple_id - fields.first_tuple_id
                    if 0 <= at < fields.rows:
                        raw = raw_body(self._files, self.folder / segment.name, fields, False)
                        batch = decode_body(raw, fields, self.stored, segment.name, ("stime",))
                        return bool(batch.column(0)[at].value == stime_us)
        except (CorruptLog, OnlyArchived, Removed):
            return None
        finally:
            self.waits = waits
        lost = any(loss.id_first <= tuple_id < loss.id_next for loss in read_losses(self.folder))
        return None if lost or stime_us < read_head(self.folder).removed_until_us else False

    def _mends_since(self, known: int, done: int) -> tuple[Mend, ...]:
        """A mirror has none of its own, only their number: its origin judges."""
        return read_mends(self._stream)[known:done] if known < done else ()

    @property
    def _stream(self) -> Path:
        return self.folder.parent

    def extents(self, start_us: int, end_us: int, *, strict: bool = True) -> list[Extent]:
        """Events with tuples in [start, end), in order (rule 3). Segments outside the range are not opened.

        Unless `strict` is off, a start that retention has passed is refused (L6).
        """
        found = [
            Extent(segment.name, Fields(*row))
            for segment, entries in self._within(start_us, end_us)
            for row in entries.tolist()
        ]
        if strict:
            self.check_present(start_us)  # After the look: what was removed before or during it is noticed.
        found.sort(key=lambda e: (e.fields.bucket, e.fields.first_tuple_id))
        return found

    def entries(self, start_us: int, end_us: int) -> Entries:
        """The same as plain index entries, unordered, for counting."""
        return np.concatenate([EMPTY, *(entries for _, entries in self._within(start_us, end_us))])

    def last(self, tuples: int) -> tuple[int, int]:
        """The bucket in which the last so many complete tuples begin, and how many of its tuples come before them.

        Looks at segments from the newest on, and only at as many as can hold them: a history may be long.
        """
        until, size = self.closed_until_us, self.bucket_us
        if tuples == 0:
            return until // size, 0
        rows: Counter[int] = Counter()
        before = list(self.segments_within(BEGINNING_US, until))
        while before:
            segment = before.pop()
            entries = self.entries_of(segment, BEGINNING_US, until)
            if entries is not None:
                entries = entries[entries["stime_min_us"] < until]
                # Its last events hold that many already, so the bucket is none before theirs.
                ends = np.searchsorted(np.cumsum(entries["rows"][::-1], dtype=np.int64), tuples)
                if ends < len(entries):
                    entries = entries[entries["bucket"] >= entries["bucket"][len(entries) - 1 - ends :].min()]
                buckets, inverse = np.unique(entries["bucket"], return_inverse=True)
                counts = np.bincount(inverse, weights=entries["rows"], minlength=len(buckets))
                rows.update(dict(zip(buckets.tolist(), map(int, counts.tolist()), strict=True)))
            bucket, found = _last_bucket(rows, tuples)
            older = max((s.stime_max_us for s in before if s.stime_max_us is not None), default=BEGINNING_US)
            if bucket is not None and found >= tuples and older < bucket * size:
                break
        bucket, found = _last_bucket(rows, tuples)
        return (until // size, 0) if bucket is None else (bucket, max(0, found - tuples))

    def _within(self, start_us: int, end_us: int) -> Iterator[tuple[SegmentEntry, Entries]]:
        for segment in self.segments_within(start_us, end_us):
            entries = self.entries_of(segment, start_us, end_us)
            if entries is not None:
                mask = (entries["stime_max_us"] >= start_us) & (entries["stime_min_us"] < end_us)
                yield segment, entries[mask]

    def entries_of(self, segment: SegmentEntry, start_us: int, end_us: int) -> Entries | None:
        """The index of one segment, in commit order; None, and not loaded, if it has no tuples in [start, end)."""
        if self._active is not None and segment.name == self._active.entry.name:
            return self._active.entries
        if segment.stime_min_us is None or segment.stime_max_us is None:
            return None
        if segment.stime_max_us < start_us or segment.stime_min_us >= end_us:
            return None
        entries = self._sealed.pop(segment.name, None)
        if entries is None:
            assert segment.length is not None
            try:
                entries = load_entries(self.folder / segment.name, segment.length)
            except FileNotFoundError:
                entries = _archived_entries(self.folder / segment.name, self.waits)
            held = sum(e.nbytes for e in self._sealed.values()) + entries.nbytes
            while self._sealed and held > _INDEX_BYTES_MAX:
                held -= self._sealed.pop(next(iter(self._sealed))).nbytes  # The one that was used longest ago.
        self._sealed[segment.name] = entries
        return entries

    def forget_index(self) -> None:
        """Let go of what is known of sealed segments: whoever only goes on does not come back to them."""
        self._sealed.clear()

    # -- tuples ------------------------------------------------------------------------------------------------------

    def read(self, extent: Extent) -> pa.RecordBatch:
        """The tuples of one event as stored: stime and the user's columns, in tuple_id order."""
        return read_extent(self._files, self.folder / extent.segment, extent.fields, self.stored, waits=self.waits,
                           all_columns=self.all_columns)  # fmt: skip

    def body(self, segment: str, fields: Fields) -> bytes:
        """The same still encoded, checksum compared: to hand it on as it is."""
        raw = raw_body(self._files, self.folder / segment, fields, self.waits)
        check_body(raw, fields, f"{self.folder / segment} at byte {fields.offset}")
        return raw[: fields.length]

    def scan(self, start_us: int, end_us: int) -> Iterator[tuple[Fields, pa.RecordBatch]]:
        """Events in [start, end) with their tuples, cut at the ends of the range.

        Looked up as it goes on: whoever reads a year gets the first tuple as soon as whoever reads a day.
        """
        removed_us = read_head(self.folder).removed_until_us
        self.check_present(start_us)
        for first_us, upto_us in self._stretches(start_us, end_us):
            extents = self.extents(first_us, upto_us, strict=False)
            if removed_us != (now_us := read_head(self.folder).removed_until_us) and first_us < now_us:
                raise Removed(
                    f"stream {self._stream.name}: tuples before {instant_text(now_us)} were removed by retention while "
                    f"they were being read; acknowledge positions (name the subscriber) so that retention waits for you"
                )
            for extent in extents:
                yield from cut(extent.fields, self.read(extent), first_us, upto_us)

    def _stretches(self, start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
        """[start, end) in parts that end where the tuples of a segment begin, by whole buckets: each concerns one
        segment, or few where their times overlap."""
        size = self.bucket_us
        begins = {s.stime_min_us // size * size for s in self.segments_within(start_us, end_us) if s.stime_min_us}
        cuts = sorted(us for us in begins if start_us < us < end_us)
        yield from zip([start_us, *cuts], [*cuts, end_us], strict=True)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}
        if self._active is not None:
            self._active.close()
        if self._tail is not None:
            self._tail.close()
        if self._manifest_fd >= 0:
            os.close(self._manifest_fd)
        self._active, self._tail, self._manifest_fd, self._manifest = None, None, -1, None

    def __del__(self) -> None:
        self.close()


def _last_bucket(rows: Mapping[int, int], tuples: int) -> tuple[int | None, int]:
    """The newest bucket from which on there are so many, or the oldest of all; and how many there are from it on."""
    bucket, found = None, 0
    for bucket in sorted(rows, reverse=True):
        found += rows[bucket]
        if found >= tuples:
            break
    return bucket, found


def _archived(path: Path, waits: bool) -> tuple[ArchiveView, ArchivedSegment]:
    """A segment that is no longer on the disk."""
    archive = view_at(path.parent)
    found = None if archive is None else archive.find(path.name)
    if archive is None or found is None:
        raise gone(path) from None
    if not waits:
        raise OnlyArchived(f"{path}: the segment is in the archive {archive.url} only")
    return archive, found


def _archived_entries(path: Path, waits: bool) -> Entries:
    archive, found = _archived(path, waits)
    return archive.entries([found])[0]


def read_extent(
    files: dict[Path, int],
    path: Path,
    fields: Fields,
    stored: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    waits: bool = True,
    all_columns: bool = False,
) -> pa.RecordBatch:
    """The tuples of the event that `fields` describe, or these columns of theirs; `files` keeps what was opened."""
    raw = raw_body(files, path, fields, waits)
    return decode_body(raw, fields, stored, f"{path} at byte {fields.offset}", columns, all_columns=all_columns)


def raw_body(files: dict[Path, int], path: Path, fields: Fields, waits: bool = True) -> bytes:
    fd = files.get(path)
    if fd is None:
        if len(files) >= _FILES_MAX:
            os.close(files.pop(next(iter(files))))
        try:
            fd = files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            archive, found = _archived(path, waits)
            return archive.body(found, fields)
    return os.pread(fd, padded(fields.length), fields.offset + HEADER_SIZE)


def gone(segment: Path) -> Removed:
    return Removed(
        f"{segment}: the segment was removed by retention while it was being read; "
        f"acknowledge positions (name the subscriber) so that retention waits for you"
    )


def check_body(raw: bytes | pa.Buffer, fields: Fields, where: str) -> None:
    if len(raw) != padded(fields.length) or crc32c(raw) != fields.body_crc:
        raise CorruptLog(f"{where}: the body of the event does not match its checksum; run `holdfast verify`")


def decode_body(
    raw: bytes | pa.Buffer, fields: Fields, stored: pa.Schema, where: str, columns: Sequence[str] | None = None,
    *, all_columns: bool = False,
) -> pa.RecordBatch:  # fmt: skip
    """An event's tuples from its padded body, checksum first (rule 4). Others than `columns` are not looked at."""
    check_body(raw, fields, where)
    try:
        message = pa.ipc.read_message(pa.py_buffer(raw))
        if all_columns and has_more(message, stored):
            raise ColumnsAdded(f"{where}: the stream has got more columns since it was opened; open it again")
        batch = read_batch(message, stored)
        batch = batch if columns is None else batch.select(columns)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptLog(f"{where}: the event cannot be decoded as the stream's columns ({error})") from error
    if batch.num_rows != fields.rows:
        raise CorruptLog(f"{where}: the event must hold {fields.rows} tuples; it holds {batch.num_rows}")
    return batch


def cut(fields: Fields, batch: pa.RecordBatch, start_us: int, end_us: int) -> Iterator[tuple[Fields, pa.RecordBatch]]:
    """The tuples of an event within [start, end), as runs of consecutive tuple ids (usually one, the whole)."""
    if start_us <= fields.stime_min_us and fields.stime_max_us < end_us:
        yield fields, batch
        return
    stimes = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    inside = np.flatnonzero((stimes >= start_us) & (stimes < end_us))
    for run in np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1):
        if len(run):
            first, rows = int(run[0]), len(run)
            part = batch.slice(first, rows)
            yield fields._replace(rows=rows, first_tuple_id=fields.first_tuple_id + first), part


def with_header(fields: Fields, batch: pa.RecordBatch, kind: TupleType, schema: pa.Schema) -> pa.RecordBatch:
    """The tuples as a reader sees them: type and id before stime and the user's columns."""
    rows = batch.num_rows
    types = pa.array(np.full(rows, int(kind), np.int8))
    ids = pa.array(np.arange(fields.first_tuple_id, fields.first_tuple_id + rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([types, ids, *batch.columns], schema=schema)
