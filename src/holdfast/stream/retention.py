"""Removing what nobody needs any more from the front of a stream.

Rules:
1. Whole sealed segments go, oldest first; the one being written stays.
2. What a registered subscriber has not acknowledged stays, whatever the age or size (L8). The one exception is a
   bounded stream that was declared `drop_oldest` and is full.
   Nor does a segment go that holds a checkpoint which an operator's open window relies on.
3. The head that says what is gone is durable before the first file is deleted. A crash in between leaves files that the
   next run deletes.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.stream.acks import read_acks
from holdfast.stream.control import oldest_needed
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.head import Head, read_head, write_head
from holdfast.stream.index import index_path
from holdfast.stream.manifest import SegmentEntry, load_manifest

log = logging.getLogger(__name__)


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
) -> Removal:
    """Apply the stream's retention (or `policy`) to the branch in `folder`."""
    with alone(folder):
        manifest = load_manifest(folder)
        if manifest is None:
            return Removal(stopped_by="the stream is empty")
        head = read_head(folder)
        present = [s for s in manifest.segments if s.base_seq >= head.first_base_seq]
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
        return removal


def _choose(
    present: list[SegmentEntry], definition: Definition, policy: Retention, now_us: int, need: int, folder: Path
) -> tuple[list[SegmentEntry], str]:
    acks = read_acks(folder.parent)
    slowest = min(acks, key=lambda name: acks[name].until_us) if acks else None
    size = sum(s.length or _size(folder / s.name) for s in present)
    bound = definition.bound
    going: list[SegmentEntry] = []
    needed = oldest_needed([(folder / s.name, s.length or _size(folder / s.name)) for s in present])
    for segment, following in itertools.pairwise(present):
        if needed is not None and following.base_seq >= needed:
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two runs at once would each think that the other's files are its own to count."""
    fd = os.open(folder / "retention.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
