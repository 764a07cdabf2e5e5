"""The archived segments of one stream, as readers look at them.

Rules:
1. The disk comes first: whoever finds no file under a segment's name asks here. So retention may take a segment from
   the disk while somebody reads it.
2. The note beside the segments says what the archive has; nobody asks the store for a list. Executors of Spark that do
   not see the stream's folder are told by the planner, which looks here (`spark.archived_segments`).
3. Bytes are compared with their checksums before anybody decodes them (L4, X5). What does not match is fetched once
   more: the copy on the way may have been the wrong one, or the cached one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog
from holdfast.stream.archive.catalog import (
    ArchivedSegment,
    Catalog,
    Page,
    PageEntry,
    load_page,
    note_path,
    place,
    read_note,
    segments_of,
    summary,
)
from holdfast.stream.archive.objects import MissingObject, ObjectStore, join
from holdfast.stream.archive.ranges import opened, process, side_by_side
from holdfast.stream.definition import Definition
from holdfast.stream.frame import HEADER_SIZE, crc32c, padded
from holdfast.stream.index import Entries, Fields, build_window, decode_index
from holdfast.stream.sealed import unseal
from holdfast.stream.segment import Window

#: Streams that a process remembers the archives of.
_VIEWS_MAX = 256


class Totals(NamedTuple):
    """Several archived segments together."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    stime_min_us: int | None = None
    stime_max_us: int | None = None


NOTHING = Totals()


class ArchiveView:
    """What the archive at `url` has of the stream whose place there is `place`, and whose branch lies in `folder`."""

    def __init__(self, url: str, place: str, folder: Path) -> None:
        self.url, self.place, self.folder = url, place, folder
        self._known: Catalog | None = None
        self._signature: tuple[int, int] | None = None
        self._mutex = threading.Lock()

    @property
    def objects(self) -> ObjectStore:
        return opened(self.url)

    def catalog(self) -> Catalog | None:
        """What is archived; None if nothing is yet."""
        with self._mutex:
            try:
                found = os.stat(note_path(self.folder))
            except FileNotFoundError:
                return None
            signature = (found.st_ino, found.st_mtime_ns)
            if signature != self._signature:
                self._known, self._signature = read_note(self.folder), signature
            return self._known

    def segments(
        self, start_us: int | None = None, end_us: int | None = None, *, before_seq: int | None = None
    ) -> Iterator[ArchivedSegment]:
        """Archived segments, oldest first, that may have tuples in [start, end), and begin before that commit."""
        catalog = self.catalog()
        if catalog is None:
            return
        for found in segments_of(catalog, self._page, start_us, end_us):
            if before_seq is not None and found.entry.base_seq >= before_seq:
                return
            yield found

    def totals(self, before_seq: int) -> Totals:
        """Of the archived segments that begin before that commit."""
        catalog = self.catalog()
        if catalog is None:
            return NOTHING
        found: list[PageEntry] = []
        for page in catalog.pages:
            if page.end_seq <= before_seq:
                found.append(page)
            elif page.first_seq < before_seq:
                found += [summary("", (s,)) for s in self._page(page).segments if s.entry.base_seq < before_seq]
        found += [summary("", (s,)) for s in catalog.segments if s.entry.base_seq < before_seq]
        low = [p.stime_min_us for p in found if p.stime_min_us is not None]
        high = [p.stime_max_us for p in found if p.stime_max_us is not None]
        return Totals(sum(p.segments for p in found), sum(p.rows for p in found), sum(p.bytes for p in found),
                      min(low, default=None), max(high, default=None))  # fmt: skip

    def find(self, name: str) -> ArchivedSegment | None:
        """The segment of that name."""
        catalog = self.catalog()
        if catalog is None:
            return None
        seq = int(name[:16])
        near: Sequence[ArchivedSegment] = catalog.segments
        for page in catalog.pages:
            if page.first_seq <= seq < page.end_seq:
                near = self._page(page).segments
        return next((s for s in near if s.entry.name == name), None)

    def _page(self, entry: PageEntry) -> Page:
        return load_page(entry, self.folder, lambda: self.objects, self.place)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def entries(self, segments: Sequence[ArchivedSegment]) -> list[Entries]:
        """Their indexes, several at a time."""
        return side_by_side(self._entries, segments)

    def _entries(self, segment: ArchivedSegment) -> Entries:
        key, length = join(self.place, segment.index_key), segment.entry.length or 0
        raw = process().indexes.get(self.url, key)
        if raw is None:
            try:
                raw = self.objects.get(key)
            except MissingObject:  # Only a convenience, as on the disk: the segment says the same.
                raw = b""
            else:
                process().indexes.put(self.url, key, raw)
        found = decode_index(raw, length)
        return found if found is not None else build_window(self.window(segment))

    def window(self, segment: ArchivedSegment) -> Window:
        """The segment's bytes for who walks over it."""
        return _RemoteWindow(self, segment)

    def read(self, segment: ArchivedSegment, start: int, end: int) -> bytes:
        key, size = join(self.place, segment.key), segment.entry.length or 0
        return process().cache.read(self.objects, key, start, end, size)

    def forget(self, segment: ArchivedSegment) -> None:
        """Its bytes did not match: what is held of them is fetched again when it is next asked for."""
        process().cache.forget(self.objects, join(self.place, segment.key))

    def body(self, segment: ArchivedSegment, fields: Fields) -> bytes:
        """The padded body of an event, sound (rule 3)."""
        start, length = fields.offset + HEADER_SIZE, padded(fields.length)
        for again in (False, True):
            if again:
                self.forget(segment)
            raw = self.read(segment, start, start + length)
            if len(raw) == length and crc32c(raw) == fields.body_crc:
                return raw
        raise CorruptLog(
            f"{self.url}/{join(self.place, segment.key)} at byte {fields.offset}: the body of the event does not match "
            f"its checksum; run `holdfast verify --archive`"
        )


class _RemoteWindow(Window):
    """A window over an archived segment."""

    def __init__(self, view: ArchiveView, segment: ArchivedSegment) -> None:
        super().__init__(-1, Path(f"{view.url}/{join(view.place, segment.key)}"), segment.entry.length or 0)
        self._view, self._segment = view, segment

    def read(self, offset: int, length: int) -> bytes:
        return self._view.read(self._segment, offset, offset + length)


def view_of(definition: Definition, folder: Path) -> ArchiveView | None:
    """The archive of a stream; None if it has none."""
    if definition.archive is None:
        return None
    return ArchiveView(definition.archive, place(definition.name, definition.id), folder)


#: By what tells a definition from the next one: that of a stream that was made anew may get the inode of the old one.
_views: dict[Path, tuple[tuple[int, int], ArchiveView | None]] = {}
_views_mutex = threading.Lock()


def view_at(folder: Path) -> ArchiveView | None:
    """The archive of the branch in `folder`; None if its stream has none."""
    if folder.name != "main":
        return None
    path = folder.parent / "stream"
    try:
        found = os.stat(path)
        signature = (found.st_ino, found.st_mtime_ns)
        with _views_mutex:
            known = _views.get(folder)
        if known is not None and known[0] == signature:
            return known[1]
        view = view_of(unseal(path.read_bytes(), Definition, str(path)), folder)
    except FileNotFoundError:
        return None
    with _views_mutex:
        _views.pop(folder, None)
        _views[folder] = (signature, view)
        while len(_views) > _VIEWS_MAX:
            del _views[next(iter(_views))]
    return view
