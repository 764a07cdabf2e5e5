"""The one writer of a branch.

Rules:
1. A unit (events + boundary + tokens) is one write and one fdatasync; only then is it noted in the tail, acknowledged
   and thereby visible (L1, L2). There is no second file to sync: the commit frame that ends the unit is the manifest
   of it.
2. Whoever opens the branch gets a new epoch by publishing the next manifest. After each fdatasync the writer looks
   whether it may still speak, and acknowledges nothing if not (L7); with every unit that has no tuples, as boundaries
   have none, also whether there is a newer one whose owner died before it came to that: readers follow the newest.
3. An end that was not closed cleanly is read to its last whole unit, made durable again by writing it once more (after
   a failed fsync the page cache lies), sealed at that length, and followed by a new segment. Nothing is cut that could
   have been acknowledged; what was acknowledged and is damaged is reported instead (L3, L4).
4. After any error the segment is given up at its last durable unit and the next commit begins a new one (L9).
5. A stream that is not always persisted says before each unit whether it may stay in memory (`Persistence`). Then rule
   1 goes without the fdatasync, under a lease (`memory`); before the first unit that may not, everything that was kept
   in memory becomes durable. Whoever ends the stream or lets go makes it durable as well.
6. Whoever lets go notes where the next one goes on (`resume`), and adds what is new to the segment's index. So to open
   a branch, append a unit and let go costs the same however many units there are.

Not thread-safe: `group.GroupCommit` brings callers together.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from holdfast.model.errors import CorruptLog, Fenced, LateTuple, StorageError, StreamBusy, UsageError
from holdfast.model.time import END_OF_TIME_US, instant_text
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import (
    FILE_HEADER_SIZE,
    HEADER_SIZE,
    FileHeader,
    Header,
    Kind,
    decode_file_header,
    encode_file_header,
    encode_frame,
    padded,
)
from holdfast.stream.head import read_head
from holdfast.stream.index import build_entries, extend_index, index_path, pack_entry, sync_index, write_index
from holdfast.stream.manifest import (
    Lease,
    Manifest,
    SegmentEntry,
    Tenure,
    load_manifest,
    manifest_path,
    manifest_versions,
    unlink_older,
    unsettled,
)
from holdfast.stream.manifest import segment_name as name_of_segment
from holdfast.stream.memory import covers, grant, settle, without_leases
from holdfast.stream.record import Commit, Control, State, encode
from holdfast.stream.resume import ResumePoint, resumed
from holdfast.stream.sealed import seal
from holdfast.stream.segment import Extent, LastControl, Recovered, Window, recover
from holdfast.stream.tail import TailReader, TailWriter, tail_path, writer_lives

#: Big enough that rolling (a few fsyncs) is rare at full disk speed, small enough that retention has a fine grain.
SEGMENT_BYTES = 128 << 20
_SEGMENT_FILE = re.compile(r"\d{16}-(\d{8})\.(?:seg|idx)")
#: Of every unit; to ask an enumeration takes as long as to pack a header.
_EVENT, _COMMIT = int(Kind.EVENT), int(Kind.COMMIT)
#: Zeroed ahead at a time, at most (at first as much as is there already, so that small streams stay small). It takes a
#: disk about as long as two syncs, and spares several hundred small appends half of theirs.
_RESERVE_BYTES = 1 << 20
#: Units above this size gain less from reserved space than it costs to zero it.
_RESERVE_UNIT_MAX = 128 << 10
#: Beyond any file: there was no room to reserve, so do not try again in this segment.
_NO_RESERVE = 1 << 62
#: A writer that lets go before so many units (a sink does so after one) would cut off again what it has reserved.
_RESERVE_AFTER = 8
#: A segment in memory is sealed after so long, so that what its readers have acknowledged is removed before the kernel
#: writes it back (30 s, as Linux comes).
_MEMORY_AGE_US = 5_000_000


class Event(NamedTuple):
    """Tuples of one bucket and one partition, encoded."""

    bucket: int
    partition: int
    rows: int
    stime_min_us: int
    stime_max_us: int
    body: bytes
    first_tuple_id: int | None = None
    """Set by whoever copies a stream: its tuples keep the ids that they have at their origin."""


class Committed(Protocol):
    """Whoever wants to hear of commits, when they are durable; must not fail."""

    def committed(self, writer: LogWriter, now_us: int, *, rolled: bool) -> None: ...


class Persistence(Protocol):
    """Rule 5."""

    bucket_us: int

    def in_memory(self, writer: LogWriter, now_us: int) -> bool:
        """May what is appended now stay in memory, and what is there already?"""


class LogWriter:
    """Appends units to one branch. Open with `LogWriter.open`."""

    def __init__(
        self, folder: Path, stream_id: bytes, owner: str, disk: Disk, segment_bytes: int, segment_age_us: int | None
    ) -> None:
        self.folder, self.stream_id, self.owner, self.disk = folder, stream_id, owner, disk
        self.segment_bytes, self.segment_age_us = segment_bytes, segment_age_us
        self.state = State()
        self.pending: bytes = b""
        self.pending_rows = 0
        self._tenure: Tenure
        self._tail: TailWriter
        self._fd = -1
        self._path = folder
        self._name = ""
        self._offset = 0
        self._base_seq = 0
        self._begun_us = 0
        self._commit_at = self._pending_at = 0
        """Where the newest commit and pending frames begin."""
        self._extent = Extent()
        self._index_since = 0
        """The index file has the entries before this place of the segment; 0: none yet."""
        self._index = bytearray()
        """The entries behind it."""
        self._indexed = 0
        """Bytes of them that belong to committed units."""
        self._appended = 0
        self._retention: Committed | None = None
        self._persistence: Persistence | None = None
        self._rewrite = False
        """A sync of what was kept in memory failed: the page cache may lie, so it is written once more."""
        self._reserved = 0
        """The segment is zeroed up to here, so that small units only overwrite."""
        self._broken = False

    @classmethod
    def open(
        cls,
        folder: Path,
        stream_id: bytes,
        *,
        now_us: int,
        owner: str | None = None,
        takeover: bool = False,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        segment_age_us: int | None = None,
        begin: State | None = None,
        retention: Committed | None = None,
        persistence: Persistence | None = None,
    ) -> LogWriter:
        """Take the next epoch of the branch in `folder`; one that has no segment yet begins with the state `begin`.

        A living writer is respected (`StreamBusy`) unless `takeover` says that it must be fenced. `retention` hears of
        every commit, `persistence` decides about each (rule 5).
        """
        owner = owner or f"{socket.gethostname()}:{os.getpid()}"
        writer = cls(folder, stream_id, owner, disk or Disk(), segment_bytes, segment_age_us)
        writer._retention, writer._persistence = retention, persistence
        writer.disk.make_dir(folder)
        if begin is not None:
            writer.state = begin
        try:
            writer._take_over(now_us, takeover)
        except OSError as error:
            raise storage_error("open", folder, error) from error
        return writer

    @property
    def epoch(self) -> int:
        return self._tenure.manifest.epoch

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments that retention has left."""
        first = read_head(self.folder).first_base_seq
        return sum(s.length or 0 for s in self.segments if s.base_seq >= first) + self._offset

    @property
    def valid(self) -> bool:
        """May this writer still append? (It may be fenced a moment later; `commit` finds out.)"""
        return self._fd >= 0 and self._tenure.valid()

    @property
    def segments(self) -> tuple[SegmentEntry, ...]:
        return self._tenure.manifest.segments

    @property
    def mends(self) -> int:
        """As the manifest has it."""
        return self._tenure.manifest.mends

    def note_mends(self, mends: int) -> None:
        """Of a mirror: what comes now is as its origin has it since so many mends."""
        manifest = self._tenure.manifest
        self._tenure.follow(msgspec.structs.replace(manifest, version=manifest.version + 1, mends=mends))

    # -- appending ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        events: Sequence[Event],
        *,
        now_us: int,
        boundary_us: int | None = None,
        tokens: Mapping[str, int] | None = None,
        closed: bool = False,
        pending: tuple[int, bytes] | None = None,
        control: Sequence[Control] = (),
    ) -> State:
        """Append one unit; return when it is durable. Events without ids get consecutive ones in the order given."""
        state = self.state
        self._check_open()
        if state.closed and (events or closed):
            raise UsageError(f"{self.folder}: the stream was closed at its end; create a new stream for more tuples")
        boundary = max(state.boundary_us, boundary_us if boundary_us is not None else state.boundary_us)
        if closed:
            boundary = END_OF_TIME_US
        for event in events:
            if event.stime_min_us < state.boundary_us:
                raise LateTuple(
                    f"{self.folder}: a tuple at {instant_text(event.stime_min_us)} comes after the boundary "
                    f"{instant_text(state.boundary_us)} was promised; declare more slack or send it elsewhere"
                )
        if not events and not self._tenure.valid():
            raise self._tenure.fenced()
        try:
            rolled = self._persistence is not None and self._place(now_us, closed)
            if not rolled and (self._broken or self._is_old(now_us) or self._offset >= self.segment_bytes):
                self._roll(now_us)
                rolled = True
            state = self._append(events, boundary, now_us, dict(tokens or {}), closed, pending, control)
        except OSError as error:
            raise storage_error("write to", self.folder, error) from error
        if self._retention is not None:
            self._retention.committed(self, now_us, rolled=rolled)
        return state

    def _is_old(self, now_us: int) -> bool:
        age_us = self.segment_age_us if self._lease is None else _MEMORY_AGE_US
        return age_us is not None and now_us - self._begun_us >= age_us and bool(self._extent.rows)

    def _check_open(self) -> None:
        if self._fd < 0:
            raise UsageError(f"{self.folder}: this writer was released; open the stream again to go on")
        if self.segments[-1].name != self._name:
            # Interrupted between the manifest and our own note of it: our place in the log is not known any more.
            raise Fenced(f"{self.folder}: the writer was interrupted while it began a segment; open the stream again")

    def beat(self, now_us: int) -> None:
        """Show readers that the writer is alive, without touching the log."""
        if not self._broken and self._fd >= 0:
            if self._persistence is not None:
                self._place(now_us)
            self._note(now_us)

    # -- memory ------------------------------------------------------------------------------------------------------

    @property
    def in_memory(self) -> bool:
        """Is what is appended now kept in memory (rule 5)?"""
        return self._lease is not None

    @property
    def _lease(self) -> Lease | None:
        """Of the segment, if it is kept in memory: what the manifest says, so that no interrupt comes between."""
        return self._tenure.manifest.segments[-1].lease

    def bytes_since(self, stime_us: int) -> int:
        """What somebody has still to read who has everything before `stime_us`, by whole segments."""
        first, newest = read_head(self.folder).first_base_seq, self._extent.stime_max_us
        sealed = sum(
            s.length or 0
            for s in self.segments[:-1]
            if s.base_seq >= first and s.stime_max_us is not None and s.stime_max_us >= stime_us
        )
        return sealed + (self._offset if newest is not None and newest >= stime_us else 0)

    def _place(self, now_us: int, ends: bool = False) -> bool:
        """Rule 5: memory or log, from the next unit on. True if that began a segment."""
        memory = self._persistence is not None and not ends and self._persistence.in_memory(self, now_us)
        if memory and self._lease is None:
            self._roll(now_us, memory=True)
            return True
        if not memory and self._lease is not None:
            self._persist()
        return False

    def _persist(self) -> None:
        """Make everything durable that was kept in memory, then take the leases back."""
        rewrite, self._rewrite = self._rewrite, True
        for entry in self.segments:
            if entry.lease is not None:
                self._persist_segment(self.folder / entry.name, entry.length or self._offset, rewrite)
        self.disk.sync_dir(self.folder)
        manifest = self._tenure.manifest
        self._tenure.follow(manifest.followed(without_leases(manifest.segments)))
        self._rewrite = False

    def _persist_segment(self, path: Path, length: int, rewrite: bool) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # Every reader had acknowledged it, and retention has removed it.
        try:
            if rewrite:
                self.disk.write(fd, path, 0, [os.pread(fd, length, 0)])
            self.disk.sync(fd, path)
        finally:
            os.close(fd)

    def _keep_lease(self, after: State) -> None:
        """The lease must cover a unit before anybody can see it."""
        lease = self._lease
        if lease is None or covers(lease, after):
            return
        manifest = self._tenure.manifest
        entry = msgspec.structs.replace(manifest.segments[-1], lease=grant(lease.state, after, lease.bucket_us))
        self._tenure.follow(manifest.followed((*manifest.segments[:-1], entry)))

    def _append(
        self,
        events: Sequence[Event],
        boundary: int,
        now_us: int,
        tokens: dict[str, int],
        closed: bool,
        pending: tuple[int, bytes] | None,
        control: Sequence[Control],
    ) -> State:
        parts: list[bytes] = []
        entries: list[bytes] = []
        before, start, epoch = self.state, self._offset, self.epoch
        seq, next_id = before.commit_seq + 1, before.next_tuple_id
        offset, extent = start, self._extent.copy()
        for e in events:
            bucket, partition, rows, low, high, body, given = e
            first_id = next_id if given is None else given
            frame = encode_frame(Header(_EVENT, 0, partition, rows, bucket, first_id, low, high, 0, epoch, seq), body)
            entries.append(pack_entry(bucket, offset, len(body), rows, first_id, low, high,
                                      int.from_bytes(frame[0][48:52], "little"), partition, 0))  # fmt: skip
            extent.add(rows, low, high)
            parts += frame
            offset += HEADER_SIZE + padded(len(body))
            next_id = first_id + rows
        for c in control:
            extent.add_control(LastControl(c.operator, c.partition, c.position_us, c.since_us, offset))
            parts += encode_frame(Header(Kind.CONTROL, 0, c.partition, c.rows, c.windows, c.operator, c.since_us,
                                         c.position_us, 0, epoch, seq), c.body)  # fmt: skip
            offset += HEADER_SIZE + padded(len(c.body))
        pending_at = self._pending_at
        if pending is None:
            pending = self.pending_rows, self.pending
        else:
            pending_at = offset
            parts += encode_frame(Header(Kind.PENDING, 0, rows=pending[0], epoch=epoch, commit_seq=seq), pending[1])
            offset += HEADER_SIZE + padded(len(pending[1]))
        commit = Commit(boundary, now_us, next_id, offset - start, closed or before.closed, tokens)
        body = encode(commit)
        parts += encode_frame(Header(_COMMIT, 0, 0, 0, 0, 0, 0, 0, 0, epoch, seq), body)
        end = offset + HEADER_SIZE + padded(len(body))
        after = before.after(seq, commit)
        del self._index[self._indexed :]
        self._index += b"".join(entries)
        indexed, appended = len(self._index), self._appended + 1
        if self._lease is not None:
            self._keep_lease(after)
        self._write(start, end - start, parts)
        # One statement without a call: Ctrl-C comes before it or after it, never between.
        (self._offset, self.state, self._extent, self._indexed, self.pending_rows, self.pending, self._commit_at,
         self._pending_at, self._appended, self._broken
         ) = end, after, extent, indexed, *pending, offset, pending_at, appended, False  # fmt: skip
        self._note(now_us)
        return after

    def _write(self, start: int, length: int, parts: Sequence[bytes]) -> None:
        """Rule 1 and rule 2: write, sync, look whether we may still speak; only then the unit counts."""
        durable = self._lease is None
        self._broken = True  # Until the caller has noted the end: whatever interrupts us, these bytes are given up.
        if durable and start + length > self._reserved:
            self._reserve(start, length)
        self.disk.write(self._fd, self._path, start, parts)
        if durable:
            self.disk.sync(self._fd, self._path)
        if not self._tenure.may_speak():
            raise self._tenure.fenced()

    def _reserve(self, start: int, length: int) -> None:
        """Small units go into space that was zeroed before (see `Disk.reserve`); large ones would pay for it twice."""
        if length > _RESERVE_UNIT_MAX or self._appended < _RESERVE_AFTER:
            return
        begin, ahead = max(self._reserved, start), min(start, _RESERVE_BYTES)
        if ahead < length:
            return
        room = self.disk.reserve(self._fd, self._path, begin, ahead)
        self._reserved = begin + ahead if room else _NO_RESERVE

    def _note(self, now_us: int) -> None:
        # The unit is durable whether or not the note can be written: a lost note is merely old.
        try:  # noqa: SIM105 - every commit comes by here, and `suppress` takes five times as long
            self._tail.note(self._base_seq, self._offset, self.state.commit_seq, self.state.boundary_us, now_us)
        except OSError:
            pass

    # -- segments ----------------------------------------------------------------------------------------------------

    def roll(self, now_us: int) -> None:
        """Seal the segment if it holds tuples, so that retention can have it."""
        self._check_open()
        if self._extent.rows:
            self._roll(now_us)

    def _roll(self, now_us: int, *, memory: bool | None = None) -> None:
        """Seal the segment at its last durable unit and go on in a new one, in memory where this one is unless said."""
        memory = self._lease is not None if memory is None else memory
        if not self._tenure.valid():
            raise self._tenure.fenced()
        old_path, old_fd, old_length, index = self._path, self._fd, self._offset, bytes(self._index[: self._indexed])
        index_since = self._index_since
        sealed = self._sealed_entry(now_us)
        self._begin_segment(now_us, (*self._tenure.manifest.segments[:-1], sealed), memory)
        with contextlib.suppress(StorageError):
            self.disk.truncate(old_fd, old_path, old_length)
            self._extend_index(old_path, index, index_since, old_length)
            if sealed.lease is None:
                sync_index(old_path, self.disk)
        os.close(old_fd)

    def _extend_index(self, path: Path, entries: bytes, since: int, length: int) -> None:
        """Add entries to the index file; if that is not what we left, or somebody else did, build it again (L5)."""
        try:
            if not extend_index(path, entries, since, length, self.disk):
                write_index(path, build_entries(path, length), length, self.disk)
        except CorruptLog:
            self.disk.unlink(index_path(path))  # Whoever reads the segment hears of it.

    def unsealed(self, now_us: int) -> SegmentEntry:
        """The segment being written, as it would be listed if it were sealed now."""
        return self._sealed_entry(now_us)

    def _sealed_entry(self, now_us: int) -> SegmentEntry:
        last, extent = self._tenure.manifest.segments[-1], self._extent
        controls = extent.controls
        noted = (max(c.position_us for c in controls), min(c.since_us for c in controls)) if controls else ()
        return SegmentEntry(last.name, last.base_seq, last.epoch, self._offset, extent.rows, extent.stime_min_us,
                            extent.stime_max_us, now_us, noted, last.lease)  # fmt: skip

    def _begin_segment(self, now_us: int, before: tuple[SegmentEntry, ...], memory: bool = False) -> None:
        """Create a segment that knows all it needs, then let the manifest name it."""
        base, epoch = self.state.commit_seq, self.epoch
        path = self.folder / name_of_segment(base, epoch)
        self.disk.unlink(path)  # Left over from a roll of ours that failed half-way; nobody else uses our epoch.
        fd = self.disk.create(path)
        try:
            parts = [encode_file_header(FileHeader(epoch, now_us, base, self.stream_id))]
            first = len(parts[0])
            seq = base + 1
            parts += encode_frame(Header(Kind.STATE, 0, epoch=epoch, commit_seq=seq), encode(self.state))
            pending_at = sum(map(len, parts)) if self.pending_rows else 0
            if self.pending_rows:
                parts += encode_frame(Header(Kind.PENDING, 0, rows=self.pending_rows, epoch=epoch, commit_seq=seq),
                                      self.pending)  # fmt: skip
            commit_at = sum(map(len, parts))
            commit = Commit(self.state.boundary_us, now_us, self.state.next_tuple_id, commit_at - first,
                            self.state.closed)  # fmt: skip
            parts += encode_frame(Header(Kind.COMMIT, 0, epoch=epoch, commit_seq=seq), encode(commit))
            length = self.disk.write(fd, path, 0, parts)
            after, lease = self.state.after(seq, commit), None
            if memory:
                assert self._persistence is not None
                lease = grant(self.state, after, self._persistence.bucket_us)
            else:
                self.disk.sync(fd, path)
                # The segment's name first: no cut may leave a manifest that names nothing.
                self.disk.sync_dir(self.folder)
            manifest = self._tenure.manifest
            entry = SegmentEntry(path.name, base, epoch, lease=lease)
            head = read_head(self.folder)
            before = tuple(s for s in before if s.base_seq >= head.first_base_seq)
            self._tenure.follow(manifest.followed((*before, entry)))
        except BaseException:
            os.close(fd)
            raise
        extent, index, name = Extent(), bytearray(), path.name
        # One statement, as in `_append`.
        (self._fd, self._path, self._name, self._offset, self._base_seq, self._extent, self._index_since, self._index,
         self._indexed, self._commit_at, self._pending_at, self._broken, self._begun_us, self._reserved, self.state
         ) = (fd, path, name, length, base, extent, 0, index,
              0, commit_at, pending_at, False, now_us, 0, after)  # fmt: skip
        self._note(now_us)

    # -- epochs ------------------------------------------------------------------------------------------------------

    def _take_over(self, now_us: int, takeover: bool) -> None:
        previous = load_manifest(self.folder)
        if previous is not None and not takeover:
            self._refuse_if_alive(previous)
        epoch = previous.epoch + 1 if previous else 1
        self._tail = TailWriter(self.folder, epoch)
        try:
            fcntl.flock(self._tail.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if previous is None or not previous.segments:
                self._claim(previous, epoch)
                self._begin_segment(now_us, ())
            elif previous.released:
                # Nobody writes, so reading first is safe, and readers never find the branch without its tail.
                self._resume(previous, now_us)
                self._claim(previous, epoch)
            elif unsettled(previous):
                self._claim(previous, epoch)
                segments, self.state = settle(self.folder, previous, self.disk)
                self._begin_segment(now_us, segments)
            else:
                self._claim(previous, epoch)
                self._salvage(previous, now_us)
                if any(s.lease is not None for s in self.segments):
                    self._rewrite = True  # A sync of the previous owner may have failed: only it could know.
                    self._persist()
            self._sweep()
        except BlockingIOError:
            self._close_files()
            raise StreamBusy(f"{self.folder}: another process is opening it; try again") from None
        except BaseException:
            self._close_files()
            raise

    def _refuse_if_alive(self, manifest: Manifest) -> None:
        if writer_lives(self.folder, manifest.epoch):
            raise StreamBusy(
                f"{self.folder}: {manifest.owner} is writing to it; a stream has one writer; "
                f"stop that one, or take over on purpose (takeover=True, --takeover)"
            )

    def _claim(self, previous: Manifest | None, epoch: int) -> None:
        """Publish the manifest that makes the epoch ours. From here on the previous owner is fenced."""
        version = previous.version + 1 if previous else 1
        segments = previous.segments if previous else ()
        if previous is not None and previous.released and segments:
            # Let go cleanly: its last segment is taken up again instead of leaving many small ones behind.
            segments = (*segments[:-1], _reopened(segments[-1], epoch))
        manifest = Manifest(version=version, epoch=epoch, owner=self.owner, segments=segments,
                            resume=previous.resume if previous else None,
                            mends=previous.mends if previous else 0)  # fmt: skip
        path = manifest_path(self.folder, version)
        won = self.disk.publish_file(path, seal(manifest))
        if won:
            # A name that is free may also be one that was used and unlinked since we looked: then newer ones exist.
            newest = manifest_versions(self.folder)[-1]
            unlink_older(self.folder, version, self.disk)
            if newest > version:
                self.disk.unlink(path)
                won = False
        if not won:
            raise Fenced(f"{self.folder}: another writer took epoch {epoch} first; open the stream again to go on")
        self._tenure = Tenure(self.folder, manifest, self.disk)

    def _resume(self, previous: Manifest, now_us: int) -> None:
        """Take up a segment that was let go cleanly: its length is known, so its bodies need no second look."""
        entry = previous.segments[-1]
        path = self.folder / entry.name
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        assert entry.length is not None
        window = Window(self._fd, path, min(entry.length, os.fstat(self._fd).st_size))
        found = recover(self._fd, path, window.end, bodies=False, since=resumed(window, previous.resume))
        if found.end != entry.length:
            raise _damaged(path, found.end, found.problem)
        self._load(path, entry.base_seq, found)
        self._index_since, self._index, self._indexed = found.end, bytearray(), 0
        # Not from now on: a sink takes the segment up with every batch, and it would never be old enough to be rolled.
        self._begun_us = decode_file_header(os.pread(self._fd, FILE_HEADER_SIZE, 0), str(path)).created_us
        self._note(now_us)

    def _salvage(self, previous: Manifest, now_us: int) -> None:
        """Rule 3: find the last whole unit of an end that nobody closed, and go on behind it."""
        entry = previous.segments[-1]
        path = self.folder / entry.name
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            found = recover(fd, path, size, since=resumed(Window(fd, path, size), previous.resume))
            tail = TailReader(self.folder, entry.epoch)
            note = tail.read()
            tail.close()
            known = note.offset if note is not None and note.base_seq == entry.base_seq else 0
            if found.end < known or found.rot:
                raise _damaged(path, found.end, found.problem)
            uncertain = os.pread(fd, found.end - known, known)
            if uncertain:
                self.disk.write(fd, path, known, [uncertain])
                self.disk.sync(fd, path)
            self._load(path, entry.base_seq, found)
            self._begin_segment(now_us, (*previous.segments[:-1], self._sealed_entry(now_us)))
            with contextlib.suppress(StorageError):
                self.disk.truncate(fd, path, found.end)
        finally:
            os.close(fd)

    def _load(self, path: Path, base_seq: int, found: Recovered) -> None:
        self._path, self._name, self._base_seq, self._offset = path, path.name, base_seq, found.end
        self.state, self._extent = found.state, found.extent
        self.pending_rows, self.pending = found.pending
        self._commit_at, self._pending_at = found.commit_at, found.pending_at

    def _sweep(self) -> None:
        """Remove what crashes left behind: segments no manifest names, old tails, temporary files.

        Only what our own or an older epoch made: a successor may be at work already.
        """
        listed = {Path(s.name).stem for s in self.segments}
        for name in os.listdir(self.folder):
            if not self._tenure.valid():
                return
            segment = _SEGMENT_FILE.fullmatch(name)
            orphan = segment and int(segment[1]) <= self.epoch and Path(name).stem not in listed
            old_tail = name.startswith("tail-") and name < tail_path(self.folder, self.epoch).name
            if orphan or old_tail or (name.startswith(".") and name.endswith(".tmp")):
                with contextlib.suppress(StorageError):
                    self.disk.unlink(self.folder / name)

    def release(self, now_us: int) -> None:
        """Let go of the branch so that the next writer can simply go on. Safe to call twice.

        Raises `StorageError` if what was kept in memory could not be made durable; the rest only helps the next writer.
        """
        if self._fd < 0:
            return
        try:
            if self.segments[-1].name != self._name or not self._tenure.valid():
                return
            if self._lease is not None:
                self._persist()
            if not self._broken:
                with contextlib.suppress(StorageError):
                    self.disk.truncate(self._fd, self._path, self._offset)
                    self._extend_index(self._path, bytes(self._index[: self._indexed]), self._index_since, self._offset)
                    manifest = self._tenure.manifest
                    segments = (*manifest.segments[:-1], self._sealed_entry(now_us))
                    self._tenure.follow(manifest.followed(segments, released=True, resume=self._resume_point()))
        except Fenced:
            return  # Whoever took over makes durable what it found.
        finally:
            self._close_files()

    def _resume_point(self) -> ResumePoint:
        x = self._extent
        return ResumePoint(self._offset, self._commit_at, self._pending_at, self.state, x.rows, x.stime_min_us,
                           x.stime_max_us, x.controls)  # fmt: skip

    def __del__(self) -> None:
        # A writer that was forgotten has not let go: the branch is salvaged, but its file numbers are not lost.
        self._close_files()

    def _close_files(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for part in ("_tail", "_tenure"):
            if hasattr(self, part):
                getattr(self, part).close()


def _reopened(entry: SegmentEntry, epoch: int) -> SegmentEntry:
    return SegmentEntry(entry.name, entry.base_seq, epoch)


def _damaged(path: Path, offset: int, problem: str | None) -> CorruptLog:
    return CorruptLog(
        f"{path} at byte {offset}: acknowledged tuples follow that cannot be read ({problem or 'they are missing'}); "
        f"nothing was changed; restore the file from a replica, or run `holdfast repair` to see what can be saved"
    )
