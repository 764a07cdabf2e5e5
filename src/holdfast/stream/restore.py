"""Putting one branch in order: its manifest, head, segments, indexes and leftovers.

Rules:
1. Nobody may be writing. For as long as steps are carried out the next epoch's tail is locked, so nobody can begin to.
2. Everything new is durable before the manifest that names it is published, and nothing old goes before that. A repair
   that is cut short anywhere can simply be repeated.
3. A segment that the archive has is fetched from there, whatever is wrong with it.
4. Without `drop_damaged` only what loses nothing is done. With it, what cannot be read is left out and named.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog, StorageError, StreamBusy
from holdfast.model.time import BEGINNING_US
from holdfast.stream.archive.catalog import ArchivedSegment
from holdfast.stream.archive.download import download
from holdfast.stream.archive.upload import sound_note
from holdfast.stream.archive.view import view_at
from holdfast.stream.checking.chain import rebuild_chain
from holdfast.stream.checking.damaged import keep
from holdfast.stream.checking.examine import Examined, examine
from holdfast.stream.checking.mend import mend
from holdfast.stream.checking.mended import read_mends
from holdfast.stream.checking.rewrite import Rewrite, Rewritten
from holdfast.stream.disk import Disk, file_mode
from holdfast.stream.ending import Ended, committed_end
from holdfast.stream.head import Head, alone, write_head
from holdfast.stream.index import Entries, build_entries, decode_index, index_path, write_index
from holdfast.stream.losses import Loss, Losses, add_losses, losses_path
from holdfast.stream.manifest import (
    SEGMENT_FILE,
    Manifest,
    SegmentEntry,
    load_manifest,
    manifest_path,
    manifest_versions,
)
from holdfast.stream.record import State
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.tail import tail_path, writer_lives


class Action(NamedTuple):
    """One thing that a repair does, or would do."""

    file: Path
    what: str
    losses: tuple[Loss, ...] = ()


class Step(NamedTuple):
    action: Action
    run: Callable[[Disk], None]


class BranchRepair:
    def __init__(self, stream_folder: Path, folder: Path, stream_id: bytes, *, drop_damaged: bool, now_us: int) -> None:
        self.stream_folder, self.folder, self._stream_id = stream_folder, folder, stream_id
        self._drop, self._now_us = drop_damaged, now_us
        self._names = sorted(os.listdir(folder)) if folder.is_dir() else []
        for epoch in (int(n[5:]) for n in self._names if n.startswith("tail-")):
            if writer_lives(folder, epoch):
                raise StreamBusy(f"{folder}: a writer lives; stop it before you repair what it writes to")
        self._damaged_manifest = False
        self._known = self._read_manifest()
        if self._known is not None and any(s.lease is not None for s in self._known.segments):
            raise StorageError(
                f"{folder}: tuples were kept in memory when its writer ended; open the stream for writing first (its "
                f"producer), which makes durable what is left of them and names what is not"
            )
        self._epoch = (self._known.epoch if self._known is not None else self._epoch_seen()) + 1
        self._examined: list[Examined] = []
        self._before: list[Step] = []
        self._after: list[Step] = []
        self._publish = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Rule 1; retention waits as well."""
        with alone(self.folder), self._next_epoch_locked():
            yield

    @contextlib.contextmanager
    def _next_epoch_locked(self) -> Iterator[None]:
        fd = os.open(tail_path(self.folder, self._epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StreamBusy(f"{self.folder}: another process is opening it; try again") from None
            yield
        finally:
            os.close(fd)

    def plan(self) -> list[Step]:
        """All steps, in the order in which they must be carried out (rule 2)."""
        losses = losses_path(self.folder)
        if not self._small_file(losses, Losses):
            self._remove(losses, kept=True, steps=self._before)  # Gaps that it explained are reported again.
        head = self._head()
        first = head.first_base_seq if head is not None else 0
        orphans: list[Path] = []
        if self._known is not None:
            listed = [s for s in self._known.segments if s.base_seq >= first]
        else:
            listed, orphans = rebuild_chain(self.folder, first) if self._damaged_manifest else ([], [])
        self._publish = self._damaged_manifest
        removed: list[SegmentEntry] = []
        while head is None and listed and not (self.folder / listed[0].name).exists():
            removed.append(listed.pop(0))  # Without the head, what is missing in front was removed by retention.
        entries = self._segments(listed)
        if head is None:
            self._rebuild_head(entries, removed)
        if self._publish:
            self._publish_step(tuple(entries))
        for entry in entries:
            self._index(entry)
        self._leftovers(entries, orphans)
        return [*self._before, *self._after]

    def _say(self, file: Path, what: str, run: Callable[[Disk], None], losses: tuple[Loss, ...] = ()) -> None:
        self._before.append(Step(Action(file, what, losses), run))

    # -- small files -------------------------------------------------------------------------------------------------

    def _small_file(self, path: Path, kind: type) -> bool:
        """Mend a sealed file; False if it is damaged beyond that."""
        steps = mend_step(self.stream_folder, path, kind)
        if steps is not None:
            self._before += steps
        return steps is not None

    def _head(self) -> Head | None:
        path = self.folder / "head"
        if not path.exists():
            return Head()
        if not self._small_file(path, Head):
            return None
        data = path.read_bytes()
        try:
            return unseal(data, Head, "")
        except CorruptLog:
            return unseal(mend(data, Head) or b"", Head, "")

    def _rebuild_head(self, entries: list[SegmentEntry], removed: list[SegmentEntry]) -> None:
        path = self.folder / "head"
        state = self._examined[0].first if self._examined else None
        until = [s.stime_max_us + 1 for s in removed if s.stime_max_us is not None]
        head = Head(
            first_base_seq=entries[0].base_seq if entries else 0,
            removed_until_us=max(until, default=state.boundary_us if state is not None else BEGINNING_US),
            removed_rows=state.next_tuple_id - 1 if state is not None else 0,
        )
        if (note := sound_note(self.folder)) is not None:  # What is missing in front is in the archive.
            gone = note.removed
            head = Head(first_base_seq=head.first_base_seq, removed_until_us=gone.until_us, removed_rows=gone.rows,
                        removed_bytes=gone.bytes, archived_seq=min(head.first_base_seq, note.end_seq))  # fmt: skip

        def run(disk: Disk) -> None:
            keep(self.stream_folder, path, disk)
            write_head(self.folder, head, disk)

        self._say(path, f"build the head again: the oldest segment left begins after commit {head.first_base_seq}", run)

    def _read_manifest(self) -> Manifest | None:
        """The newest one, with its one wrong bit put right if need be; None if there is none to be had."""
        try:
            return load_manifest(self.folder) if self._names else None
        except CorruptLog:
            self._damaged_manifest = True
        versions = manifest_versions(self.folder)
        mended = mend(manifest_path(self.folder, versions[-1]).read_bytes(), Manifest) if versions else None
        return unseal(mended, Manifest, "") if mended is not None else None

    def _epoch_seen(self) -> int:
        """The highest epoch that any file speaks of: a writer makes its tail before it is granted its epoch."""
        segments = [int(n[17:25]) for n in self._names if SEGMENT_FILE.fullmatch(n)]
        return max([*segments, *(int(n[5:]) for n in self._names if n.startswith("tail-")), 0])

    # -- segments ----------------------------------------------------------------------------------------------------

    def _segments(self, listed: list[SegmentEntry]) -> list[SegmentEntry]:
        """The entries as they should be; steps for those that must be written anew."""
        ended = None
        if self._known is not None and listed and listed[-1].length is None:
            with contextlib.suppress(FileNotFoundError):
                ended = committed_end(self.folder, self._known)
        self._examined = [examine(self.folder, s, ended if s is listed[-1] else None) for s in listed]
        entries: list[SegmentEntry] = []
        before: State | None = None
        for i, one in enumerate(self._examined):
            after = next((e.first for e in self._examined[i + 1 :] if e.first is not None), None)
            if one.sound and one.header:
                entries.append(self._summed(one))
                before = one.last
            elif (archived := self._archived(one)) is not None:
                self._publish |= archived.entry != one.entry
                entries.append(archived.entry)
                before = None
            elif one.sound or self._drop:
                done = self._rewrite(one, before, after)
                entries.append(done.entry)
                before = done.state
            else:
                entries.append(one.entry)
                before = None
        open_end = ended is not None and entries[-1].length is None and not ended.damaged
        if ended is not None and open_end and (ended.problem is not None or self._publish):
            self._settle(entries, self._examined[-1], ended)
        return entries

    def _summed(self, one: Examined) -> SegmentEntry:
        """The entry with sums that agree with the segment."""
        e, x = one.entry, one.extent
        if e.length is None or (e.rows, e.stime_min_us, e.stime_max_us) == (x.rows, x.stime_min_us, x.stime_max_us):
            return e
        self._publish = True
        return SegmentEntry(e.name, e.base_seq, e.epoch, e.length, x.rows, x.stime_min_us, x.stime_max_us, e.wall_us)

    def _archived(self, one: Examined) -> ArchivedSegment | None:
        """A segment that is damaged or lost here, and that the archive has: it is fetched from there."""
        path = self.folder / one.entry.name
        view, found = None, None
        with contextlib.suppress(CorruptLog):
            view = view_at(self.folder)
            found = None if view is None else view.find(one.entry.name)
        if view is None or found is None:
            return None

        def run(disk: Disk) -> None:
            if path.exists():
                keep(self.stream_folder, path, disk)
            download(view.objects, view.place, found, path, disk)

        self._say(path, f"fetch it from the archive {view.url}", run)
        return found

    def _rewrite(self, one: Examined, before: State | None, after: State | None) -> Rewritten:
        path = self.folder / one.entry.name
        rewrite = Rewrite(path, one.entry, one.end, before=before, after=after, epoch=self._epoch)
        planned = rewrite.plan()

        def run(disk: Disk) -> None:
            if path.exists():
                keep(self.stream_folder, path, disk)
            # Before the file has its name: a repair that finds it must know what it lacks.
            add_losses(self.folder, planned.losses, disk)
            done = rewrite.write(self._stream_id, self._now_us, disk)
            write_index(self.folder / done.entry.name, done.entries, done.entry.length or 0, disk)

        lost = sum(loss.tuples for loss in planned.losses)
        what = f"write it again as {planned.entry.name}"
        self._say(path, what + (f" without {lost} tuples that cannot be read" if not one.sound else ""), run,
                  planned.losses)  # fmt: skip
        self._publish = True
        return planned

    def _settle(self, entries: list[SegmentEntry], one: Examined, ended: Ended) -> None:
        """Seal an end that nobody closed, by the writer's rule: what may not be durable is written once more."""
        e, x = one.entry, one.extent
        path = self.folder / e.name
        entries[-1] = SegmentEntry(e.name, e.base_seq, e.epoch, ended.end, x.rows, x.stime_min_us, x.stime_max_us,
                                   one.last.wall_us if one.last is not None else 0)  # fmt: skip
        self._publish = True

        def run(disk: Disk) -> None:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                uncertain = os.pread(fd, ended.end - ended.known, ended.known)
                if uncertain:
                    disk.write(fd, path, ended.known, [uncertain])
                disk.truncate(fd, path, ended.end)
                disk.sync(fd, path)
            finally:
                os.close(fd)

        torn = "and leave out the torn write behind it" if ended.problem is not None else "as its writer did not"
        self._say(path, f"seal it at its last whole unit, byte {ended.end}, {torn}", run)

    # -- what follows from them --------------------------------------------------------------------------------------

    def _publish_step(self, segments: tuple[SegmentEntry, ...]) -> None:
        versions = manifest_versions(self.folder)
        manifest = Manifest(
            version=(versions[-1] if versions else 0) + 1, epoch=self._epoch,
            owner=f"repair {socket.gethostname()}:{os.getpid()}",
            released=bool(segments) and segments[-1].length is not None, segments=segments,
            mends=len(read_mends(self.stream_folder)) if self._known is None else self._known.mends,
        )  # fmt: skip
        path = manifest_path(self.folder, manifest.version)

        def run(disk: Disk) -> None:
            if self._damaged_manifest and versions:
                keep(self.stream_folder, manifest_path(self.folder, versions[-1]), disk)
            if not disk.publish_file(path, seal(manifest)):
                raise StreamBusy(f"{self.folder}: another process published a manifest meanwhile; try again")
            for version in versions:
                disk.unlink(manifest_path(self.folder, version))

        self._say(path, f"publish the manifest that names {', '.join(s.name for s in segments[-3:]) or 'nothing'}"
                  + (f" and {len(segments) - 3} before" if len(segments) > 3 else ""), run)  # fmt: skip

    def _index(self, entry: SegmentEntry) -> None:
        path, length = self.folder / entry.name, entry.length
        if length is None or not path.exists():
            return
        try:
            right = build_entries(path, length)
        except CorruptLog:
            return
        if not _same(index_path(path), right, length):
            what = "build the index again from its segment"
            action = Action(index_path(path), what)
            self._after.append(Step(action, lambda disk: write_index(path, right, length, disk)))

    def _leftovers(self, entries: list[SegmentEntry], orphans: list[Path]) -> None:
        """What no manifest names goes; where the manifest had to be guessed it is kept aside instead."""
        listed = {e.name for e in entries} | {e.entry.name for e in self._examined}
        oldest = min([self._epoch, *([entries[-1].epoch] if entries else [])])
        for name in self._names:
            path = self.folder / name
            stem = path.with_suffix(".seg").name
            old_tail = name.startswith("tail-") and self._publish and int(name[5:]) < oldest
            if (SEGMENT_FILE.fullmatch(stem) and stem not in listed) or old_tail or name.endswith(".tmp"):
                self._remove(path, kept=path in orphans)
        for old, new in zip(self._examined, entries, strict=True):
            if old.entry.name != new.name:
                for path in (self.folder / old.entry.name, index_path(self.folder / old.entry.name)):
                    if path.exists():
                        self._remove(path, kept=False)

    def _remove(self, path: Path, *, kept: bool, steps: list[Step] | None = None) -> None:
        def run(disk: Disk) -> None:
            if kept:
                keep(self.stream_folder, path, disk)
            disk.unlink(path)

        what = "move it to the folder `damaged`" if kept else "remove it: nothing refers to it any more"
        (self._after if steps is None else steps).append(Step(Action(path, what), run))


def mend_step(stream_folder: Path, path: Path, kind: type) -> list[Step] | None:
    """Nothing to do for a sound or missing file; a step for one wrong bit; None for more."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        unseal(data, kind, "")
        return []
    except CorruptLog:
        mended = mend(data, kind)
    if mended is None:
        return None
    right = mended

    def run(disk: Disk) -> None:
        keep(stream_folder, path, disk)
        disk.replace_file(path, right)

    return [Step(Action(path, "put its one wrong bit right"), run)]


def _same(path: Path, right: Entries, length: int) -> bool:
    try:
        found = decode_index(path.read_bytes(), length)
    except FileNotFoundError:
        return False
    return found is not None and found.tobytes() == right.tobytes()
