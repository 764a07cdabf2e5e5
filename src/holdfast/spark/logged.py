"""Which checkpoints of an operator the log has: their marks, followed from batch to batch.

A worker asks with every batch. So it keeps its place in the log that it follows, and looks only at what was added
since; what does not stand there (a fork's beginning, a segment that has ended meanwhile) is looked up from the end of
the log.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.spark.restore import Origin, checkpoints
from holdfast.spark.versions import KEPT
from holdfast.stream.control import operator_number
from holdfast.stream.frame import FILE_HEADER_SIZE, Kind, checksum
from holdfast.stream.segment import Window, walk
from holdfast.stream.store import Stream, StreamStore

#: Logs that a worker follows: those of living queries. Each holds three files open.
_FOLLOWED_MAX = 16
_followed: dict[tuple[str, str], _Followed] = {}


class _Followed:
    """The newest checkpoints in one log, by operator and partition: the mark at each position."""

    def __init__(self, stream: Stream) -> None:
        self.id = stream.definition.id
        self._reader = stream.reader()
        # What stands there already is looked up from the end of the log, which most often is the last commit.
        ends = self._reader.ends()
        self._segment, self._offset = (ends[-1][0].name, ends[-1][1]) if ends else ("", FILE_HEADER_SIZE)
        self._seen: dict[tuple[int, int], dict[int, int]] = {}

    def mark(self, operator: int, partition: int, position_us: int) -> int | None:
        self._reader.refresh()
        for path, end in self._reader.ends()[-1:]:
            if path.name != self._segment:
                self._segment, self._offset = path.name, FILE_HEADER_SIZE
            if end > self._offset:
                self._follow(Window(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, end))
        return self._seen.get((operator, partition), {}).get(position_us)

    def _follow(self, window: Window) -> None:
        try:
            for unit in walk(window, self._offset):
                for header in (f.header for f in unit.frames if f.header.kind == Kind.CONTROL):
                    marks = self._seen.setdefault((header.first_tuple_id, header.partition), {})
                    marks[header.stime_max_us] = header.body_crc
                    while len(marks) > KEPT:
                        del marks[next(iter(marks))]
                self._offset = unit.end
        finally:
            os.close(window.fd)

    def close(self) -> None:
        self._reader.close()


def logged_mark(
    store: StreamStore, stream: str, origin: Origin | None, operator: str, partition: int, position_us: int
) -> int | None:
    """The checksum of an operator's checkpoints at exactly that position, if the log has any there."""
    mark = _following(store, stream).mark(operator_number(operator), partition, position_us)
    if mark is not None:
        return mark
    found = checkpoints(store, stream, origin, operator, position_us, partition)
    with contextlib.closing(found):
        for footprint, body in found:
            return checksum(body.read()) if footprint.position_us == position_us else None
    return None


def _following(store: StreamStore, name: str) -> _Followed:
    stream, key = store.open(name), (str(store.root), name)
    known = _followed.pop(key, None)
    if known is not None and known.id != stream.definition.id:
        known.close()  # Deleted, and made anew under the same name.
        known = None
    _followed[key] = known or _Followed(stream)
    while len(_followed) > _FOLLOWED_MAX:
        _followed.pop(next(iter(_followed))).close()
    return _followed[key]
