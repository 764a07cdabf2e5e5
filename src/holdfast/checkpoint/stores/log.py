"""Checkpoints in an append-only log with an index in memory: the seeds' indexed backend (002 §3.4), made quick.

Rules:
1. Records are appended with their keys and acknowledged when synced. Callers that come while a sync is under way share
   the next one, so the rate of the disk's syncs does not bound the rate of checkpoints.
2. The index is flushed now and then, and always before a segment is removed (L8): when the newest records of all its
   keys stand elsewhere, its reference count is zero and the flushed index does not name it.
3. When a few references keep old segments alive and the log is more than twice what is current, the current records of
   the emptiest ones are appended again, like writes, and the segments become collectable.
4. Flush, collection and compaction run beside the writers, in one thread of the store.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import CheckpointStore, Entry, EntryInPieces, Saved
from holdfast.checkpoint.stores.log_compact import copies_of, current_keys, worst_segments
from holdfast.checkpoint.stores.log_direct import Room
from holdfast.checkpoint.stores.log_flush import Position, write_flush
from holdfast.checkpoint.stores.log_index import ENTRY_BYTES, Chunk, Index
from holdfast.checkpoint.stores.log_recovery import recover
from holdfast.checkpoint.stores.log_segments import Segments
from holdfast.checkpoint.stores.log_unit import GONE, ROW_SIZE, Place, Write, digest_of, encode_unit, rows_of
from holdfast.checkpoint.stores.owner import Owner
from holdfast.clock import now_us
from holdfast.model.errors import CorruptLog, HoldfastError, StorageError, UsageError
from holdfast.stream.disk import Disk
from holdfast.stream.frame import HEADER_SIZE
from holdfast.stream.frame import crc32c as crc_of
from holdfast.stream.group import GroupCommit

#: Large enough that a new file is rare, small enough that collecting one gives space back soon.
SEGMENT_BYTES = 64 << 20
#: One write to the disk at most: memory stays bounded whatever callers bring together (X4).
UNIT_BYTES_MAX = 32 << 20
#: Records since the last flush before the next one, and the share of the index beyond which that grows: a flush writes
#: the whole index, so a larger one is written more rarely and costs each record the same.
FLUSH_RECORDS_MIN = 65_536
FLUSH_SHARE = 0.25
#: Units since the last flush before the next one: a walk over that many takes a quarter of a second.
FLUSH_UNITS_MAX = 65_536


class LogStore(CheckpointStore):
    """See the module. `accept_damage` opens a store of which something acknowledged was lost; `damage` says what."""

    durability = "on disk: synced before each answer, one sync for all who wait"

    def __init__(
        self, folder: str | os.PathLike[str], *, segment_bytes: int = SEGMENT_BYTES, accept_damage: bool = False,
        background: bool = True, flush_records: int = FLUSH_RECORDS_MIN, disk: Disk | None = None,
    ) -> None:  # fmt: skip
        if segment_bytes < 4096:
            raise UsageError(f"a segment must have 4096 bytes at least; got {segment_bytes}")
        self.folder, self._disk = Path(folder), disk or Disk()
        self._disk.make_dir(self.folder)
        self._owner = Owner(self.folder)
        try:
            self._open(segment_bytes, accept_damage)
        except BaseException:
            self._owner.release()
            raise
        self._flush_records, self._background = flush_records, background
        self._room = Room()
        self._turn = threading.Lock()
        """Held by whoever appends or freezes the index."""
        self._care = threading.Lock()
        """Held by whoever flushes, collects or compacts."""
        self._group: GroupCommit[Sequence[Write], list[bool]] = GroupCommit(self._commit)
        self._due = threading.Event()
        self._closing = False
        self._carer: threading.Thread | None = None
        if background:
            self._carer = threading.Thread(target=self._care_for_it, name="holdfast-log-store", daemon=True)
            self._carer.start()

    def _open(self, segment_bytes: int, accept_damage: bool) -> None:
        self._id = self._identity()
        found = recover(self.folder, self._disk, self._id)
        self.damage: tuple[str, ...] = tuple(found.damage)
        if found.damage and not accept_damage:
            raise CorruptLog(
                f"the checkpoint store {self.folder} is damaged: {'; '.join(found.damage)}; open it with "
                f"accept_damage=True to go on with the checkpoints that are left"
            )
        self._index = Index(found.base)
        self._flushed = found.flushed
        live = found.base.live()
        self._references = {segment: count for segment, (count, _) in live.items()}
        self._live_bytes = {segment: size for segment, (_, size) in live.items()}
        self._segments = Segments(self.folder, self._disk, self._id, segment_bytes)
        self._segments.sizes.update(found.sizes)
        if found.end.segment in found.sizes:
            self._segments.go_on(*found.end)
        else:
            self._segments.number, self._segments.seq = found.end.segment, found.end.seq
        self._segment_bytes = segment_bytes
        self._compact_above = self._looked_at = 0

    def _identity(self) -> bytes:
        path = self.folder / "id"
        if not path.exists():
            if any(self.folder.glob("segment-*")):
                raise CorruptLog(f"{path} is missing although there are segments; put it back from a copy")
            self._disk.replace_file(path, os.urandom(16))
        found = path.read_bytes()
        if len(found) != 16:
            raise CorruptLog(f"{path} must hold 16 bytes; got {len(found)}; put it back from a copy")
        return found

    # Writing

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        return self._write_pieces([EntryInPieces(*entry) for entry in entries])

    def _write_pieces(self, entries: Sequence[EntryInPieces]) -> list[bool]:
        self._owner.check()
        taken = self._group.submit([Write(digest_of(e.key), *e) for e in entries])
        if self._due.is_set() and not self._background:
            self.maintain()
        return taken

    def _commit(self, groups: Sequence[Sequence[Write]]) -> list[list[bool] | BaseException]:
        with self._turn:
            taken = self._append([write for group in groups for write in group])
        if not self._due.is_set() and self._is_due():
            self._due.set()
        if len(taken) == len(groups):  # The usual case: each brought one.
            return [[takes] for takes in taken]
        answers = iter(taken)
        return [[next(answers) for _ in group] for group in groups]

    def _append(self, writes: list[Write]) -> list[bool]:
        """Under the turn: decide who is newest, write those, and only then let readers find them."""
        taken: list[bool] = []
        accepted: list[Write] = []
        before: list[Place | None] = []
        size = 0
        fresh: dict[bytes, int] = {}
        for write, place in zip(writes, self._index.find_many([write[0] for write in writes]), strict=True):
            digest, _, version, _, source = write
            newest = fresh.get(digest, -1 if place is None else place[0])
            takes = version >= newest if source is None else digest not in fresh and place == source
            taken.append(takes)
            if takes:
                fresh[digest] = version
                accepted.append(write)
                before.append(place)
                size += write.size
                if size > UNIT_BYTES_MAX:
                    self._write_unit(accepted, before, size)
                    accepted, before, size = [], [], 0
        if accepted:
            self._write_unit(accepted, before, size)
        return taken

    def _write_unit(self, writes: list[Write], before: list[Place | None], size: int) -> None:
        segments = self._segments
        segments.room_for(size + 256, now_us())
        body_at = segments.offset + HEADER_SIZE
        if self._room.fits(size):
            laid = self._room.lay_out(writes, segments.seq + 1, segments.number, segments.offset)
            table, places = laid.table, laid.places
            segments.append_large(laid)
        else:
            parts, table, places = encode_unit(writes, segments.seq + 1, segments.number, segments.offset)
            segments.append(parts)
        self._count(writes, before, places)
        self._index.add(Chunk(segments.number, body_at, rows_of(table)), [w.digest for w in writes], places)

    def _count(self, writes: list[Write], before: list[Place | None], places: list[Place]) -> None:
        """References and current bytes per segment: those of the old record go, those of the new one come."""
        seen: dict[bytes, Place] = {}
        references, live = self._references, self._live_bytes
        number, gained = places[0].segment, 0
        references[number] = references.get(number, 0) + len(places)
        for write, place, known in zip(writes, places, before, strict=True):
            digest, size = write[0], ROW_SIZE + len(write[1])
            old = seen.get(digest, known)
            if old is not None:
                _, segment, _, length, _ = old
                references[segment] -= 1
                if segment == number:
                    gained -= size if length == GONE else size + length
                else:
                    live[segment] -= size if length == GONE else size + length
            length = place[3]
            gained += size if length == GONE else size + length
            seen[digest] = place
        live[number] = live.get(number, 0) + gained

    # Reading

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        self._owner.check()
        places = self._index.find_many([digest_of(key) for key in keys])
        return [None if p is None else self._fetch(key, p) for key, p in zip(keys, places, strict=True)]

    def _fetch(self, key: bytes, place: Place) -> Saved | None:
        while True:
            if place.value_len == GONE:
                return None
            try:
                raw = self._segments.reading(place.segment).read(place.at, len(key) + place.value_len)
            except FileNotFoundError:
                moved = self._index.find(digest_of(key))
                if moved is None or moved == place:
                    raise CorruptLog(
                        f"segment {place.segment} of {self.folder} is gone, and with it the checkpoint of {key!r:.80}"
                    ) from None
                place = moved
                continue
            if crc_of(raw) != place.crc or raw[: len(key)] != key:
                raise CorruptLog(
                    f"segment {place.segment} of {self.folder} at byte {place.at}: the checkpoint of {key!r:.80} does "
                    f"not match its checksum; restore it from elsewhere or begin anew"
                )
            return Saved(place.version, raw[len(key) :])

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        self._owner.check()
        with self._care, self._turn:  # No segment goes, and no key moves, while the keys are read from the log.
            return current_keys(self._segments, self._index, prefix)

    # Care

    def _is_due(self) -> bool:
        index = self._index
        if index.overlay_len >= max(self._flush_records, int(len(index.base) * FLUSH_SHARE)):
            return True
        if index.units >= FLUSH_UNITS_MAX:
            return True
        if self._segments.number == self._looked_at:
            return False  # What can be collected or compacted changes much only when a segment is full.
        self._looked_at = self._segments.number
        unreferenced = sum(
            size for n, size in self._segments.sizes.items()
            if n != self._segments.number and not self._references.get(n)
        )  # fmt: skip
        if unreferenced >= max(self._segment_bytes, ENTRY_BYTES * len(index.base)):
            return True
        return self._worth_compacting()

    def _worth_compacting(self) -> bool:
        total, live = sum(self._segments.sizes.values()), sum(self._live_bytes.values())
        return total > max(2 * live + 3 * self._segment_bytes, self._compact_above)

    def maintain(self) -> None:
        """Flush, collect, and compact where it is worth it. Called by the store itself; harmless at any time."""
        with self._care:
            self._due.clear()
            self._flush()
            while self._worth_compacting():
                before = sum(self._segments.sizes.values())
                with self._turn:
                    chosen = worst_segments(self._segments, self._references, self._live_bytes)
                for copies in copies_of(self._segments, self._index, chosen):
                    self._group.submit(copies)
                self._flush()
                after = sum(self._segments.sizes.values())
                if after >= before:
                    # Not again before there is more to gain: what could not be copied now cannot be a moment later.
                    self._compact_above = after + self._segment_bytes

    def _flush(self) -> None:
        """Rule 2: first the index, durably; then the files it does not name."""
        with self._turn:
            self._index.freeze()
            s = self._segments
            position = Position(s.number, s.offset, s.seq)
            sealed = [n for n in s.sizes if n < s.number]
        base = self._index.merge()
        needed = write_flush(self.folder, self._disk, self._id, base, position)
        with self._turn:
            self._index.thaw(base)
            self._flushed = position
            unneeded = sorted(set(sealed) - set(needed))
            for number in unneeded:
                self._references.pop(number, None)
                self._live_bytes.pop(number, None)
        self._segments.remove(unneeded)

    def _care_for_it(self) -> None:
        while not self._closing:  # Looked at after each round: a round clears the signal that `close` gives.
            self._due.wait()
            try:
                if not self._closing:
                    self.maintain()
            except HoldfastError as error:
                # Writers go on without: the log alone is enough to come back. The next record tries again.
                warnings.warn(f"checkpoint store {self.folder}: {error}", RuntimeWarning, stacklevel=1)

    def close(self) -> None:
        """Flush, so that the next opening is quick, and let go."""
        if self._closing:
            return
        self._closing = True
        self._due.set()
        if self._carer is not None:
            self._carer.join()
        try:
            if self._segments.broken is None and (self._index.overlay_len or self._flushed is None):
                with self._care:
                    self._flush()
        except StorageError as error:
            warnings.warn(f"checkpoint store {self.folder}: {error}", RuntimeWarning, stacklevel=2)
        finally:
            self._segments.close()
            self._owner.release()
