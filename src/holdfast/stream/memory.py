"""Segments that are kept in memory: what they may promise, and what is left of them when their machine has stopped.

A stream that is not always persisted appends as any other, to the same files in the same format; only nobody waits for
the disk. The bytes lie in the kernel's page cache, where every process reads them: a writer that is killed loses
nothing. What a machine loses that stops is found out and named by the next writer.

Rules:
1. A lease is durable before the first tuple that goes beyond the one before: sequence numbers, tuple ids and boundaries
   above it were never given to anybody (D10, L6).
2. After a stop, whole units from the front count, up to the first that is not whole. What may have been behind it is
   noted as a loss and as a hole, durably, before the next segment begins: readers are told when they pass it.
3. The next writer goes on above the lease. So a reader that had more than the disk kept finds neither another tuple
   under an id that it knows, nor one below a boundary that it was promised.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.time import BEGINNING_US, closed_until, instant_text
from holdfast.stream.disk import Disk
from holdfast.stream.head import read_head
from holdfast.stream.holes import note_hole
from holdfast.stream.losses import Loss, add_losses
from holdfast.stream.manifest import Lease, Manifest, SegmentEntry, boot_id
from holdfast.stream.record import State
from holdfast.stream.segment import Recovered, recover

log = logging.getLogger(__name__)

#: What a lease goes beyond what is there. To renew one costs a manifest, a few syncs; what it leaves unused is skipped
#: after a stop. Tuples: a fast producer needs some seconds for so many. Time: a machine takes longer to start.
LEASE_UNITS, LEASE_TUPLES, LEASE_US = 1 << 20, 1 << 20, 10_000_000


def grant(before: State, state: State, bucket_us: int) -> Lease:
    """Permission to go on in memory from `state`, for a segment that began after `before`."""
    return Lease(boot_id(), bucket_us, before, state.commit_seq + LEASE_UNITS, state.next_tuple_id + LEASE_TUPLES,
                 state.boundary_us + LEASE_US if state.boundary_us > BEGINNING_US else BEGINNING_US)  # fmt: skip


def covers(lease: Lease, state: State) -> bool:
    """May the segment hold what leads to this state?"""
    return (
        state.commit_seq <= lease.commit_seq
        and state.next_tuple_id <= lease.next_tuple_id
        and state.boundary_us <= lease.boundary_us
    )


class Settled(NamedTuple):
    """What is left, and where the next writer goes on."""

    segments: tuple[SegmentEntry, ...]
    state: State


def settle(folder: Path, manifest: Manifest, disk: Disk) -> Settled:
    """Rules 2 and 3. Whoever is cut short in it, or does it twice, comes to the same end."""
    first_seq = read_head(folder).first_base_seq  # What retention has removed is not lost.
    present = [s for s in manifest.segments if s.base_seq >= first_seq]
    lost = [s for s in present if s.lease is not None]
    # One behind them was begun by a writer that was cut short before it had a word to say: it is empty.
    kept = present[: present.index(lost[0])]
    first, last = lost[0].lease, lost[-1].lease
    assert first is not None
    assert last is not None
    state, stime_max, where = first.state, BEGINNING_US, lost[0]
    for entry in lost:
        found, where = _left(folder / entry.name, entry, disk), entry
        if found is None:
            break
        state, x = found.state, found.extent
        stime_max = max(stime_max, BEGINNING_US if x.stime_max_us is None else x.stime_max_us)
        kept.append(SegmentEntry(entry.name, entry.base_seq, entry.epoch, found.end, x.rows, x.stime_min_us,
                                 x.stime_max_us, entry.wall_us, ()))  # fmt: skip
        if found.end != entry.length:
            break
    begin_us, upto_us = _hole(state.boundary_us, stime_max, last)
    add_losses(folder, (Loss(where.name, state.commit_seq + 1, last.commit_seq, state.next_tuple_id,
                             last.next_tuple_id, state.boundary_us, last.boundary_us),), disk)  # fmt: skip
    said = (
        f"whatever was sent from {instant_text(state.boundary_us)} to {instant_text(last.boundary_us)} at the latest, "
        f"with tuple ids from {state.next_tuple_id} on, is lost"
    )
    if upto_us > BEGINNING_US:
        note_hole(folder.parent, begin_us, upto_us, disk, why=f"its machine stopped while it was in memory; {said}")
    log.warning("stream %s: its machine stopped while it was kept in memory; %s", folder.parent.name, said)
    anew = State(last.commit_seq, upto_us, last.next_tuple_id, state.closed, state.tokens, state.wall_us)
    return Settled(tuple(kept), anew)


def _hole(boundary_us: int, stime_max_us: int, lease: Lease) -> tuple[int, int]:
    """Whole buckets behind everything that is left, at least one, up to where nobody was promised anything."""
    if lease.boundary_us == BEGINNING_US:
        return BEGINNING_US, BEGINNING_US
    size = lease.bucket_us
    begin_us = max(boundary_us, stime_max_us)
    begin_us = BEGINNING_US if begin_us == BEGINNING_US else closed_until(begin_us, size) + size
    end_us = closed_until(max(lease.boundary_us, stime_max_us), size) + size
    return begin_us, end_us + size


def _left(path: Path, entry: SegmentEntry, disk: Disk) -> Recovered | None:
    """The whole units from the front of a segment, made durable; None if there are none."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        found = recover(fd, path, size if entry.length is None else min(size, entry.length))
        if found.state.commit_seq <= entry.base_seq:
            return None
        disk.truncate(fd, path, found.end)
        disk.sync(fd, path)
        return found
    finally:
        os.close(fd)


def without_leases(segments: tuple[SegmentEntry, ...]) -> tuple[SegmentEntry, ...]:
    return tuple(msgspec.structs.replace(s, lease=None) for s in segments)
