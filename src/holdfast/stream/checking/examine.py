"""Looking at one segment before deciding what to do with it: is it sound, and what does it say of its two ends?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.checking.survey import survey
from holdfast.stream.ending import Ended
from holdfast.stream.frame import FILE_HEADER_SIZE, Kind, decode_file_header
from holdfast.stream.manifest import SegmentEntry
from holdfast.stream.record import State, decode_state
from holdfast.stream.segment import Extent, Window, read_body


class Examined(NamedTuple):
    """What one segment turned out to be."""

    entry: SegmentEntry
    end: int
    sound: bool
    header: bool
    """Its file header is sound, or at least there is a file."""
    first: State | None
    last: State | None
    extent: Extent


def examine(folder: Path, entry: SegmentEntry, ended: Ended | None) -> Examined:
    path, extent = folder / entry.name, Extent()
    end = entry.length or (ended.end if ended is not None else FILE_HEADER_SIZE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Examined(entry, end, False, False, None, None, extent)
    first: State | None = None
    state: State | None = None
    try:
        size = os.fstat(fd).st_size
        sound = size >= end and not (ended is not None and ended.damaged)
        try:
            header = decode_file_header(os.pread(fd, FILE_HEADER_SIZE, 0), "").base_seq == entry.base_seq
        except CorruptLog:
            header = False
        window = Window(fd, path, min(end, size))
        for span in survey(window):
            for frame in span.frames:
                if frame.header.kind == Kind.EVENT:
                    extent.add(frame.header.rows, frame.header.stime_min_us, frame.header.stime_max_us)
            if not span.sound or span.commit is None or span.seq is None:
                sound, state = False, None
                continue
            if span.frames and span.frames[0].header.kind == Kind.STATE:
                first = state = decode_state(read_body(window, span.frames[0]), str(path))
            state = (state or State()).after(span.seq, span.commit)
    finally:
        os.close(fd)
    return Examined(entry, end, sound, header, first, state, extent)
