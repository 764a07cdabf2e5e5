"""The resume point: what a walk over the last segment would find up to a place in it.

A writer that lets go notes it in the manifest, so that the next one, and readers, go on there: a sink opens its stream
once per batch, and a walk over all units before would make each batch longer than the last.

Only a convenience (L5). It stands in the manifest, under its checksum; whoever uses it compares it with the commit at
its place, and walks over the segment from its beginning if that is another.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import Kind
from holdfast.stream.record import State
from holdfast.stream.segment import Extent, LastControl, Recovered, Window, frame_at, read_body


class ResumePoint(msgspec.Struct, frozen=True):
    """Of the manifest's last segment."""

    offset: int
    """A unit ends here, durably."""
    commit_at: int
    """Where its commit frame begins."""
    pending_at: int
    """Where the newest pending frame begins; 0 if there is none."""
    state: State
    rows: int
    stime_min_us: int | None
    stime_max_us: int | None
    controls: tuple[LastControl, ...] = ()


def resumed(window: Window, point: ResumePoint | None) -> Recovered | None:
    """The same as a walk up to the point; None if there is no point, or the segment is not what it was."""
    if point is None or point.offset > window.end:
        return None
    try:
        commit = frame_at(window, point.commit_at, Kind.COMMIT)
        if (commit.end, commit.header.commit_seq) != (point.offset, point.state.commit_seq):
            return None
        read_body(window, commit)
        pending = (0, b"")
        if point.pending_at:
            frame = frame_at(window, point.pending_at, Kind.PENDING)
            pending = (frame.header.rows, read_body(window, frame))
    except CorruptLog:
        return None
    extent = Extent(point.rows, point.stime_min_us, point.stime_max_us, point.controls)
    return Recovered(point.state, point.offset, extent, pending, None, False, point.commit_at, point.pending_at)
