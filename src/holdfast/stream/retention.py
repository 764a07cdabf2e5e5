"""Removing what nobody needs any more from the front of a stream.

Rules:
1. Whole sealed segments go, oldest first; the one being written stays.
2. What a registered subscriber has not acknowledged stays, whatever the age or size (L8). The one exception is a
   bounded stream that was declared `drop_oldest` and is full.
   Nor does a segment go that holds a checkpoint which an operator's open window relies on.
3. The head that says what is gone is durable before the first file is deleted. A crash in between leaves files that the
   next run deletes.
4. Whoever writes the stream applies its retention on the way: when a segment was sealed, and otherwise now and then
   (`AutomaticRetention`). What a run did, or what it waits for, is noted beside the segments, for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.time import BEGINNING_US, SECOND_US, instant_text
from holdfast.stream.acks import read_acks
from holdfast.stream.control import oldest_needed
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk, file_mode
from holdfast.stream.head import Head, read_head, write_head
from holdfast.stream.index import index_path
from holdfast.stream.manifest import SegmentEntry, load_manifest
from holdfast.stream.writer import LogWriter

log = logging.getLogger(__name__)


#: A look costs some milliseconds, what it removes are whole segments: once a minute is soon enough, or sixteen times in
#: the age that the stream keeps, but never more than once a second.
_EVERY_US_MAX, _EVERY_US_MIN, _LOOKS_PER_AGE = 60 * SECOND_US, SECOND_US, 16
#: The lock that runs take, and their note: its time is that of the last run.
_NOTE = "retention.lock"
#: Begins what a run says that stopped at somebody who may need the rest.
_WAITS = ("subscriber ", "an operator's ")


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
) -> Removal:
    """Apply the stream's retention (or `policy`) to the branch in `folder`. Its writer says what the last segment holds
    (`unsealed`), which is not in the manifest; otherwise it may have to be read. `wait` for another run to end."""
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
        going, why = _choose(present, definition, policy or definition.retention, now_us, need_bytes, folder)
        if going:
            first = present[len(going)].base_seq
            until = max((s.stime_max_us + 1 for s in going if s.stime_max_us is not None), default=BEGINNING_US)
            removal = Removal(len(going), sum(s.rows for s in going), sum(s.length or 0 for s in going), why)
            write_head(folder, Head(first_base_seq=first, removed_until_us=max(until, head.removed_until_us),
                                    removed_rows=head.removed_rows + removal.rows,
                                    removed_bytes=head.removed_bytes + removal.bytes), disk)  # fmt: skip
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
        at_ns, said = (folder / _NOTE).stat().st_mtime_ns, (folder / _NOTE).read_text()
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
    if head.removed_until_us > BEGINNING_US:
        until = instant_text(head.removed_until_us).partition(".")[0]
        said.append(f"{head.removed_rows} tuples to {until} removed")
    if waits is not None:
        said.append(waits)
    return "; ".join(said)


class AutomaticRetention:
    """Rule 4: applies the retention of a stream as its writer goes on. One that fails is said, and tried again."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        age_us = definition.retention.age_us
        share = _EVERY_US_MAX if age_us is None else age_us // _LOOKS_PER_AGE
        self._every_us = min(_EVERY_US_MAX, max(_EVERY_US_MIN, share))

    def committed(self, writer: LogWriter, now_us: int, *, rolled: bool) -> None:
        """After each commit; `rolled` if it began a segment."""
        if len(writer.segments) < 2 or not (rolled or self._due(writer.folder, now_us)):
            return
        try:
            retain(writer.folder, self._definition, now_us, disk=writer.disk, unsealed=writer.unsealed(now_us),
                   wait=False)  # fmt: skip
        except (HoldfastError, OSError) as error:
            log.warning("stream %s: what is too old or too much stays for now: %s", self._definition.name, error)

    def _due(self, folder: Path, now_us: int) -> bool:
        try:
            last_us = os.stat(folder / _NOTE).st_mtime_ns // 1000
        except OSError:
            return True
        return abs(now_us - last_us) >= self._every_us  # Either way: a clock that was set back must not stop it.


def _choose(
    present: list[SegmentEntry], definition: Definition, policy: Retention, now_us: int, need: int, folder: Path
) -> tuple[list[SegmentEntry], str]:
    acks = read_acks(folder.parent)
    slowest = min(acks, key=lambda name: acks[name].until_us) if acks else None
    size = sum(s.length or _size(folder / s.name) for s in present)
    bound = definition.bound
    going: list[SegmentEntry] = []
    relied = _first_relied(present, folder)
    for segment in present[:-1]:
        if relied is not None and segment.base_seq >= relied:
            return going, "an operator's open windows rely on checkpoints in the rest"
        length = segment.length or 0
        full = bound is not None and size + need > bound.bytes
        forced = full and bound is not None and bound.when_full == "drop_oldest"
        newest = BEGINNING_US if segment.stime_max_us is None else segment.stime_max_us
        acked = slowest is not None and newest < acks[slowest].until_us
        if slowest is not None and not acked and not forced:
            return going, f"subscriber {slowest} has acknowledged only to {instant_text(acks[slowest].until_us)}"
        old = policy.age_us is not None and now_us - segment.wall_us > policy.age_us
        large = policy.size_bytes is not None and size > policy.size_bytes
        if not (old or large or forced or (acked and (policy.acknowledged or full))):
            return going, "the rest is neither old nor large enough"
        if forced and not acked:
            log.warning(
                "stream %s is full: %d tuples up to %s are dropped", definition.name, segment.rows,
                instant_text(newest),
            )  # fmt: skip
        going.append(segment)
        size -= length
    return going, "only the segment being written is left"


def _first_relied(present: list[SegmentEntry], folder: Path) -> int | None:
    """The base of the oldest segment with checkpoints that an operator's open windows rely on (L8).

    An operator writes checkpoints with every batch. So what its windows rely on now stands in the newest segment that
    has any, or, of a partition that has written none since the segment began, in the one before.
    """
    if any(s.controls is None for s in present):  # Written before this was noted, or by a writer that is at work.
        needed = oldest_needed([(folder / s.name, s.length or _size(folder / s.name)) for s in present])
        return None if needed is None else max((s.base_seq for s in present if s.base_seq < needed), default=0)
    noted = [(s.base_seq, *s.controls) for s in present if s.controls]
    if not noted:
        return None
    since = min(relies_us for _, _, relies_us in noted[-2:])
    return next((base for base, highest_us, _ in noted if highest_us >= since), noted[-1][0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[int | None]:
    """Two runs at once would each think that the other's files are its own to count. Gives the lock's file; None if
    another run has it, and we do not wait."""
    fd = os.open(folder / _NOTE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, file_mode())
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        fd = -1
    try:
        yield None if fd < 0 else fd
    finally:
        if fd >= 0:
            os.close(fd)
