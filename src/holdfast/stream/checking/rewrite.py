"""Writing a segment again without the units that cannot be read.

Rules:
1. Sound units are copied byte for byte, in order.
2. Each run of damaged bytes becomes one empty unit that carries the promises of what stood there: the boundary, the
   sequence number and the next tuple id, so that no id is ever given twice and no later tuple falls below a boundary
   that somebody saw. Its tokens do not come back: a producer that sends those tuples again is welcome.
3. The new file has the same base and a new epoch, hence a new name, and gets it only when it is whole and durable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.checking.survey import Fault, Span, survey
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FILE_HEADER_SIZE, FileHeader, Header, Kind, encode_file_header, encode_frame
from holdfast.stream.index import Entries, decode_index, fields_of, index_path, make_entries, stated_length
from holdfast.stream.losses import Loss
from holdfast.stream.manifest import SegmentEntry, segment_name
from holdfast.stream.record import Commit, State, decode_state, encode
from holdfast.stream.segment import Extent, Frame, Window, read_body

#: Copying goes through memory in portions of this size.
_COPY_BYTES = 1 << 20


class Rewritten(NamedTuple):
    """What the new file will hold."""

    entry: SegmentEntry
    losses: tuple[Loss, ...]
    state: State
    """At its end."""
    entries: Entries


class Rewrite:
    """One segment: `plan` says what would be lost, `write` makes the file."""

    def __init__(
        self, path: Path, entry: SegmentEntry, end: int, *, before: State | None, after: State | None, epoch: int
    ) -> None:
        """`before` and `after` are the states at its two ends as its neighbours know them."""
        self.path, self.end, self.epoch = path, end, epoch
        self._entry, self._after = entry, after
        self._before = before
        self._name = segment_name(entry.base_seq, epoch)
        self._index = _sound_index(path)

    def plan(self) -> Rewritten:
        for _ in self._parts():
            pass
        return self._result

    def write(self, stream_id: bytes, now_us: int, disk: Disk) -> Rewritten:
        target = self.path.with_name(self._name)
        temporary = target.with_name(f".{target.name}.tmp")
        disk.unlink(temporary)
        fd = disk.create(temporary)
        try:
            header = FileHeader(self.epoch, now_us, self._entry.base_seq, stream_id)
            at = disk.write(fd, temporary, 0, [encode_file_header(header)])
            for part in self._parts():
                at += disk.write(fd, temporary, at, [part])
            disk.sync(fd, temporary)
        finally:
            os.close(fd)
        disk.rename(temporary, target)
        disk.sync_dir(target.parent)
        return self._result

    def _parts(self) -> Iterator[bytes]:
        fd = -1
        state, at = self._before, FILE_HEADER_SIZE
        extent, losses, frames = Extent(), [], []
        try:
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                size = min(self.end, os.fstat(fd).st_size)
            except FileNotFoundError:
                size = 0
            window = Window(fd, self.path, size)
            for span, following in _paired(window, self._missing(size)):
                state = _stated(window, span) or state or self._guessed(span, following)
                if span.sound:
                    for frame in span.frames:
                        if frame.header.kind == Kind.EVENT:
                            h = frame.header
                            extent.add(h.rows, h.stime_min_us, h.stime_max_us)
                            frames.append(Frame(frame.offset - span.start + at, h))
                    assert span.commit is not None
                    assert span.seq is not None
                    state = state.after(span.seq, span.commit)
                    yield from _copied(fd, span)
                    at += span.end - span.start
                else:
                    loss, commit, seq = self._given_up(span, following, state)
                    parts = self._empty_unit(state, commit, seq, span, first=at == FILE_HEADER_SIZE)
                    if loss.tuples or seq > state.commit_seq + 1:
                        losses.append(loss)
                    state = state.after(seq, commit)
                    yield b"".join(parts)
                    at += sum(map(len, parts))
        finally:
            if fd >= 0:
                os.close(fd)
        assert state is not None
        entry = SegmentEntry(self._name, self._entry.base_seq, self.epoch, at, extent.rows, extent.stime_min_us,
                             extent.stime_max_us, state.wall_us)  # fmt: skip
        self._result = Rewritten(entry, tuple(losses), state, make_entries(fields_of(f) for f in frames))

    def _missing(self, size: int) -> Span | None:
        """What was committed and is not in the file at all."""
        if size >= self.end and size > FILE_HEADER_SIZE:
            return None
        fault = Fault(size, self.end - size, "missing")
        return Span(max(size, FILE_HEADER_SIZE), max(self.end, FILE_HEADER_SIZE), [], None, None, [fault])

    def _given_up(self, span: Span, following: Span | None, state: State) -> tuple[Loss, Commit, int]:
        """Rule 2: what is lost with `span`, and the commit that takes its place."""
        low, high, next_id = self._traces(span, state.next_tuple_id)
        if span.commit is not None and span.seq is not None:
            seq, c = span.seq, span.commit
            commit = Commit(c.boundary_us, c.wall_us, c.next_tuple_id, 0, c.closed)
        else:
            seq = span.seq or state.commit_seq + 1
            if following is not None:
                assert following.commit is not None
                assert following.seq is not None
                seq = following.seq - 1
                rows = sum(f.header.rows for f in following.frames if f.header.kind == Kind.EVENT)
                next_id = following.commit.next_tuple_id - rows
            elif self._after is not None:
                seq, next_id = max(self._after.commit_seq, seq), self._after.next_tuple_id
            end = self._after if following is None and self._after is not None else state
            commit = Commit(end.boundary_us, end.wall_us, max(next_id, state.next_tuple_id), 0, end.closed)
        loss = Loss(self.path.name, state.commit_seq + 1, seq, state.next_tuple_id, commit.next_tuple_id, low, high)
        return loss, commit, seq

    def _guessed(self, span: Span, following: Span | None) -> State:
        """The state at the beginning where neither the segment before nor this one's own record can be read."""
        assert self._before is None
        state = State(commit_seq=self._entry.base_seq)
        if span.sound:
            return state
        _, commit, _ = self._given_up(span, following, state)
        ids = [f.header.first_tuple_id for f in span.frames if f.header.kind == Kind.EVENT]
        if self._index is not None:
            inside = (self._index["offset"] >= span.start) & (self._index["offset"] < span.end)
            ids += self._index["first_tuple_id"][inside].tolist()
        return State(self._entry.base_seq, next_tuple_id=min([*ids, commit.next_tuple_id]))

    def _traces(self, span: Span, next_id: int) -> tuple[int | None, int | None, int]:
        """The range of stime and the next tuple id as readable headers and the index remember them."""
        extent = Extent()
        fields = [fields_of(f) for f in span.frames if f.header.kind == Kind.EVENT]
        if self._index is not None:
            inside = (self._index["offset"] >= span.start) & (self._index["offset"] < span.end)
            for row in self._index[inside]:
                extent.add(int(row["rows"]), int(row["stime_min_us"]), int(row["stime_max_us"]))
                next_id = max(next_id, int(row["first_tuple_id"]) + int(row["rows"]))
        for f in fields:
            extent.add(f.rows, f.stime_min_us, f.stime_max_us)
            next_id = max(next_id, f.first_tuple_id + f.rows)
        if self._entry.length is not None and span.end >= self.end and not fields and not self.path.exists():
            next_id += self._entry.rows
            if self._entry.stime_min_us is not None and self._entry.stime_max_us is not None:
                extent.add(0, self._entry.stime_min_us, self._entry.stime_max_us)
        return extent.stime_min_us, extent.stime_max_us, next_id

    def _empty_unit(self, state: State, commit: Commit, seq: int, span: Span, *, first: bool) -> list[bytes]:
        # The epoch of the one who wrote what is lost: later frames of that writer follow.
        epoch = span.epoch or (span.frames[0].header.epoch if span.frames else self._entry.epoch)
        parts: list[bytes] = []
        if first:
            state = State(self._entry.base_seq, state.boundary_us, state.next_tuple_id, state.closed, state.tokens,
                          state.wall_us)  # fmt: skip
            parts += encode_frame(Header(Kind.STATE, 0, epoch=epoch, commit_seq=seq), encode(state))
        commit = Commit(commit.boundary_us, commit.wall_us, commit.next_tuple_id, sum(map(len, parts)), commit.closed)
        return parts + encode_frame(Header(Kind.COMMIT, 0, epoch=epoch, commit_seq=seq), encode(commit))


def _paired(window: Window, missing: Span | None) -> Iterator[tuple[Span, Span | None]]:
    """Spans, runs of damaged ones joined, each with the sound one that follows it."""
    broken: Span | None = None
    for span in survey(window):
        if span.sound:
            if broken is not None:
                yield broken, span
                broken = None
            yield span, None
        elif broken is None:
            broken = span
        else:
            broken = _joined(broken, span)
    if missing is not None:
        broken = missing if broken is None else _joined(broken, missing)
    if broken is not None:
        yield broken, None


def _joined(a: Span, b: Span) -> Span:
    return Span(a.start, b.end, a.frames + b.frames, b.commit, b.seq, a.faults + b.faults, b.epoch or a.epoch)


def _stated(window: Window, span: Span) -> State | None:
    """What the segment itself says of its beginning, if that can be read."""
    if span.frames and span.frames[0].header.kind == Kind.STATE:
        with contextlib.suppress(CorruptLog):
            return decode_state(read_body(window, span.frames[0]), str(window.path))
    return None


def _copied(fd: int, span: Span) -> Iterator[bytes]:
    for at in range(span.start, span.end, _COPY_BYTES):
        yield os.pread(fd, min(_COPY_BYTES, span.end - at), at)


def _sound_index(segment: Path) -> Entries | None:
    try:
        data = index_path(segment).read_bytes()
    except FileNotFoundError:
        return None
    return decode_index(data, stated_length(data))
