"""Removing what nobody needs any more from the front of a stream.

Rules:
1. Whole sealed segments go, oldest first; the one being written stays.
2. What a registered subscriber has not acknowledged stays, whatever the age or size (L8). The one exception is a
   bounded stream that was declared `drop_oldest` and is full.
   Nor does a segment go that holds a checkpoint which an operator's open window relies on.
   From the disk of a stream with an archive only goes what is archived; its readers find it there, so their
   acknowledgements do not count here but for the archive (`archive.expiry`).
3. The head that says what is gone is durable before the first file is deleted. A crash in between leaves files that the
   next run deletes.
4. Whoever writes the stream applies its retention on the way: when a segment was sealed, and otherwise now and then
   (`AutomaticRetention`). What a run did, or what it waits for, is noted beside the segments, for people.
5. A clock that jumps ahead for a moment would make everything old. Where the last run was long ago, age is judged as of
   that one: the clock has not gone back behind it, so that time has come. So a stream that is written for a moment
   every six hours is six hours late in removing, and a run whose clock is wrong removes nothing too early.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.clock import now_us
from holdfast.model.errors import HoldfastError
from holdfast.model.time import BEGINNING_US, SECOND_US, instant_text
from holdfast.stream.acks import read_acks
from holdfast.stream.archive.archiver import archive_text, wake_archiver
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.control import oldest_needed
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.head import LOCK, Head, alone, read_head, write_head
from holdfast.stream.index import index_path
from holdfast.stream.manifest import SegmentEntry, load_manifest
from holdfast.stream.writer import LogWriter

log = logging.getLogger(__name__)


#: A look costs some milliseconds, what it removes are whole segments: once a minute is soon enough, or sixteen times in
#: the age that the stream keeps, but never more than once a second.
_EVERY_US_MAX, _EVERY_US_MIN, _LOOKS_PER_AGE = 60 * SECOND_US, SECOND_US, 16
#: So long after the last run the clock may have jumped (rule 5).
_LEAP_US = 3600 * SECOND_US
#: Begins what a run says that stopped at somebody who may need the rest.
_WAITS = ("subscriber ", "an operator's ", "the archive ")


class Removal(NamedTuple):
    """What one run did, and why it stopped."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    stopped_by: str = "nothing is old enough"


def retain(
    folder: Path,
    definition: Definition,
    now_us: int,
    *,
    disk: Disk,
    need_bytes: int = 0,
    policy: Retention | None = None,
    unsealed: SegmentEntry | None = None,
    wait: bool = True,
    readers: bool = True,
    wary: bool = False,
) -> Removal:
    """Apply the stream's retention (or `policy`) to the branch in `folder`. Its writer says what the last segment holds
    (`unsealed`), which is not in the manifest; otherwise it may have to be read. `wait` for another run to end. Without
    `readers` it waits for nobody: what is tentative is owed to none. A `wary` run does not trust the clock (rule 5)."""
    with alone(folder, wait=wait) as lock:
        if lock is None:
            return Removal(stopped_by="another run is under way")
        manifest = load_manifest(folder)
        if manifest is None:
            return Removal(stopped_by="the stream is empty")
        head = read_head(folder)
        present = [s for s in manifest.segments if s.base_seq >= head.first_base_seq]
        if unsealed is not None and present[-1].name == unsealed.name:
            present[-1] = msgspec.structs.replace(unsealed, length=None)
        aged_us = _sure_us(lock, now_us) if wary else now_us
        going, why = _choose(present, definition, policy or definition.retention, aged_us, need_bytes, folder, readers)
        if going:
            first = present[len(going)].base_seq
            until = max((s.stime_max_us + 1 for s in going if s.stime_max_us is not None), default=BEGINNING_US)
            removal = Removal(len(going), sum(s.rows for s in going), sum(s.length or 0 for s in going), why)
            gone = Head(first_base_seq=first, removed_until_us=max(until, head.removed_until_us),
                        removed_rows=head.removed_rows + removal.rows,
                        removed_bytes=head.removed_bytes + removal.bytes)  # fmt: skip
            if definition.archive is not None:  # Not gone: elsewhere.
                gone = msgspec.structs.replace(head, first_base_seq=first, archived_seq=first)
            write_head(folder, gone, disk)
        else:
            first, removal = head.first_base_seq, Removal(stopped_by=why)
        for segment in manifest.segments:
            if segment.base_seq < first:
                disk.unlink(folder / segment.name)
                disk.unlink(index_path(folder / segment.name))
        os.ftruncate(lock, 0)
        os.pwrite(lock, removal.stopped_by.encode(), 0)
        os.utime(lock, ns=(now_us * 1000, now_us * 1000))
        return removal


def last_run(folder: Path) -> tuple[int, str] | None:
    """When retention was last applied, and why it stopped; None if it never was."""
    try:
        at_ns, said = (folder / LOCK).stat().st_mtime_ns, (folder / LOCK).read_text()
    except FileNotFoundError:
        return None
    return (at_ns // 1000, said) if said else None


def waits_for(folder: Path) -> str | None:
    """Who keeps retention from removing more, as of its last run; None if nobody does."""
    found = last_run(folder)
    return found[1] if found is not None and found[1].startswith(_WAITS) else None


def retention_text(folder: Path, definition: Definition) -> str:
    """The policy, what was removed so far, and what keeps the rest."""
    said, head, waits = [definition.retention.text], read_head(folder), waits_for(folder)
    if definition.persist != "always":
        manifest = load_manifest(folder)
        volatile = manifest is not None and any(s.lease is not None for s in manifest.segments)
        said.insert(0, f"persist {definition.persist}, now {'in memory' if volatile else 'in the log'}")
    if head.removed_until_us > BEGINNING_US:
        until = instant_text(head.removed_until_us).partition(".")[0]
        said.append(f"{head.removed_rows} tuples to {until} removed")
    if waits is not None:
        said.append(waits)
    if definition.archive is not None:
        said[0] = f"on disk: {said[0]}"
        said.append(archive_text(folder, definition, now_us()))
    return "; ".join(said)


class AutomaticRetention:
    """Rule 4: applies the retention of a stream as its writer goes on. One that fails is said, and tried again."""

    def __init__(self, definition: Definition, *, readers: bool = True) -> None:
        self._definition, self._readers = definition, readers
        age_us = definition.retention.age_us
        share = _EVERY_US_MAX if age_us is None else age_us // _LOOKS_PER_AGE
        self._every_us = min(_EVERY_US_MAX, max(_EVERY_US_MIN, share))
        self._last_us = 0
        """When the last run was, as far as is known here; there may have been others since."""

    def committed(self, writer: LogWriter, now_us: int, *, rolled: bool) -> None:
        """After each commit; `rolled` if it began a segment."""
        if self._definition.archive is not None:
            wake_archiver(writer.folder, self._definition, now_us, sealed=rolled)
        if len(writer.segments) < 2 or not (rolled or self._due(writer.folder, now_us)):
            return
        try:
            retain(writer.folder, self._definition, now_us, disk=writer.disk, unsealed=writer.unsealed(now_us),
                   wait=False, readers=self._readers, wary=True)  # fmt: skip
        except (HoldfastError, OSError) as error:
            log.warning("stream %s: what is too old or too much stays for now: %s", self._definition.name, error)

    def _due(self, folder: Path, now_us: int) -> bool:
        if 0 <= now_us - self._last_us < self._every_us:
            return False
        try:
            self._last_us = os.stat(folder / LOCK).st_mtime_ns // 1000
        except OSError:
            return True
        return abs(now_us - self._last_us) >= self._every_us  # Either way: a clock that was set back must not stop it.


def _sure_us(lock: int, now_us: int) -> int:
    """Rule 5: what time it is at least. `lock` is the file with the note of the last run."""
    last_us = os.fstat(lock).st_mtime_ns // 1000
    return last_us if now_us - last_us > _LEAP_US else now_us


def _choose(
    present: list[SegmentEntry], definition: Definition, policy: Retention, now_us: int, need: int, folder: Path,
    readers: bool,
) -> tuple[list[SegmentEntry], str]:  # fmt: skip
    acks = read_acks(folder.parent) if readers else {}
    slowest = min(acks, key=lambda name: acks[name].until_us) if acks else None
    size = sum(s.length or _size(folder / s.name) for s in present)
    bound = definition.limit
    going: list[SegmentEntry] = []
    relied = _first_relied(present, folder)
    archived = _archived_until(folder) if definition.archive is not None else None
    # What was written before others is at least as old, though a clock that was wrong then says otherwise.
    sealed_us = list(accumulate((s.wall_us or now_us for s in reversed(present[:-1])), min))[::-1]
    for segment, wall_us in zip(present[:-1], sealed_us, strict=True):
        if relied is not None and segment.base_seq >= relied:
            return going, "an operator's open windows rely on checkpoints in the rest"
        length = segment.length or 0
        full = bound is not None and size + need > bound.bytes
        forced = full and bound is not None and bound.when_full == "drop_oldest"
        newest = BEGINNING_US if segment.stime_max_us is None else segment.stime_max_us
        acked = slowest is not None and newest < acks[slowest].until_us
        if slowest is not None and not acked and not forced and archived is None:
            return going, f"subscriber {slowest} has acknowledged only to {instant_text(acks[slowest].until_us)}"
        old = policy.age_us is not None and now_us - wall_us > policy.age_us
        large = policy.size_bytes is not None and size > policy.size_bytes
        free = full and (acked or archived is not None)
        if not (old or large or forced or free or (acked and policy.acknowledged)):
            return going, "the rest is neither old nor large enough"
        if archived is not None and segment.base_seq >= archived:
            return going, "the archive does not have the rest yet"
        if forced and not acked and (acks or definition.persist != "never"):  # There, nobody known is nobody owed.
            log.warning(
                "stream %s is full: %d tuples up to %s are dropped", definition.name, segment.rows,
                instant_text(newest),
            )  # fmt: skip
        going.append(segment)
        size -= length
    return going, "only the segment being written is left"


def _archived_until(folder: Path) -> int:
    """Segments that begin before this commit are in the archive, as it was noted durably (L8)."""
    note = read_note(folder)
    return 0 if note is None else note.end_seq


def _first_relied(present: list[SegmentEntry], folder: Path) -> int | None:
    """The base of the oldest segment with checkpoints that an operator's open windows rely on (L8).

    An operator writes checkpoints with every batch. So what its windows rely on now stands in the newest segment that
    has any, or, of a partition that has written none since the segment began, in the one before.
    """
    if any(s.controls is None for s in present):  # Written before this was noted, or by a writer that is at work.
        needed = oldest_needed([(folder / s.name, s.length or _size(folder / s.name)) for s in present])
        return None if needed is None else max((s.base_seq for s in present if s.base_seq < needed), default=0)
    return first_relied(present)


def first_relied(entries: Iterable[SegmentEntry]) -> int | None:
    """The same by what was noted of sealed segments."""
    noted = [(s.base_seq, *s.controls) for s in entries if s.controls]
    if not noted:
        return None
    since = min(relies_us for _, _, relies_us in noted[-2:])
    return next((base for base, highest_us, _ in noted if highest_us >= since), noted[-1][0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
