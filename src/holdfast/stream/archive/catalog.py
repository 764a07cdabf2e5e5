"""The catalog: which segments of a stream the archive has.

Rules:
1. A catalog is never changed, only followed: version v+1 is created in the store, which refuses it if somebody was
   first (as with manifests). Only the two newest versions are kept.
2. The same bytes are then noted beside the segments (`archived`), durably. What the note lists was uploaded, read back
   and found to be equal to the disk; nothing else may be removed from the disk (L8).
3. What is archived is a prefix of the stream's commits, without gaps, from where retention of the archive has left off.
4. Old entries stand in pages, which are written once. So what changes with each segment, and what a reader has to look
   at, does not grow with the history: one line for each `PAGE` segments.
5. A tenure is one host's time as the stream's archiver. Whoever restores a stream elsewhere begins the next one; the
   host before it cannot publish any more. Objects lie below their tenure, so neither overwrites the other's.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.model.names import check_name
from holdfast.model.time import BEGINNING_US
from holdfast.stream.archive.objects import MissingObject, ObjectStore, join
from holdfast.stream.disk import Disk
from holdfast.stream.manifest import SEGMENT_FILE, SegmentEntry
from holdfast.stream.sealed import seal, unseal

CATALOG_FORMAT = 1
#: Entries of a page. With segments of 128 MiB, one page for each 16 GB, of some 40 KB.
PAGE = 128
#: Entries beside the pages before the oldest `PAGE` of them become one: those that are likely to be looked at.
_LOOSE_MAX = 2 * PAGE
_NOTE = "archived"
_ID = re.compile(r"[0-9a-f]{1,64}")
_KEY = re.compile(r"\d{4,}/\d{16}-\d{8}\.seg|page-\d{4,}-\d{16}")
#: Small files of a stream that a catalog carries, by their path below its folder; acknowledgements come on top.
FILES = ("stream", "holes", "mended", "changes", "main/losses")
#: Pages that a process remembers, for all streams: some megabytes.
_PAGES_HELD = 64
_pages: dict[tuple[str, str, str], Page] = {}
_pages_mutex = threading.Lock()


class ArchivedSegment(msgspec.Struct, frozen=True):
    """One segment in the archive."""

    entry: SegmentEntry
    """As the manifest listed it."""
    end_seq: int
    """Its last commit: the next segment begins behind it."""
    key: str
    """Of the object with its bytes, below the stream's place; its index has the same with `.idx`."""
    crc: int
    """CRC32C of all its bytes."""
    index_bytes: int

    @property
    def index_key(self) -> str:
        return self.key.removesuffix(".seg") + ".idx"


class PageEntry(msgspec.Struct, frozen=True):
    """What a catalog says of one of its pages."""

    key: str
    first_seq: int
    end_seq: int
    """It has the segments with first_seq <= base_seq < end_seq."""
    segments: int
    rows: int
    bytes: int
    stime_min_us: int | None
    stime_max_us: int | None


class Page(msgspec.Struct, frozen=True):
    FORMATS: ClassVar[tuple[int, ...]] = (CATALOG_FORMAT,)

    segments: tuple[ArchivedSegment, ...]
    format: int = CATALOG_FORMAT


class Removed(msgspec.Struct, frozen=True):
    """What retention has removed for good."""

    until_us: int = BEGINNING_US
    rows: int = 0
    bytes: int = 0


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    FORMATS: ClassVar[tuple[int, ...]] = (CATALOG_FORMAT,)

    format: int = CATALOG_FORMAT
    version: int = 0
    tenure: int = 1
    owner: str = ""
    """Who has published it, for people."""
    stream: str
    """Id of the stream."""
    epoch: int = 0
    """Of its newest writer then; a restored stream goes on above it."""
    boundary_us: int = BEGINNING_US
    """What the stream had promised at the end of its last segment here."""
    next_tuple_id: int = 1
    first_seq: int = 0
    end_seq: int = 0
    """It has the commits behind first_seq up to end_seq."""
    wall_us: int = 0
    """When the last segment was archived."""
    pages: tuple[PageEntry, ...] = ()
    segments: tuple[ArchivedSegment, ...] = ()
    removed: Removed = Removed()
    doomed: tuple[str, ...] = ()
    """Objects that it has let go of, and that may be there still."""
    files: dict[str, str] = {}
    """The stream's small files by their path: what a restored stream needs beside its segments."""

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pages) + sum(s.entry.rows for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.pages) + sum(s.entry.length or 0 for s in self.segments)

    @property
    def count(self) -> int:
        return sum(p.segments for p in self.pages) + len(self.segments)


def place(stream_name: str, stream_id: str) -> str:
    """Where a stream lies below the address of the archive. Replicas of a stream have ids, and so places, of their
    own."""
    return join(stream_name, stream_id)


def catalog_key(place: str, version: int) -> str:
    return join(place, "catalog", f"{version:010d}")


def summary(key: str, segments: tuple[ArchivedSegment, ...]) -> PageEntry:
    low = [s.entry.stime_min_us for s in segments if s.entry.stime_min_us is not None]
    high = [s.entry.stime_max_us for s in segments if s.entry.stime_max_us is not None]
    return PageEntry(key, segments[0].entry.base_seq, segments[-1].end_seq, len(segments),
                     sum(s.entry.rows for s in segments), sum(s.entry.length or 0 for s in segments),
                     min(low, default=None), max(high, default=None))  # fmt: skip


def paged(catalog: Catalog) -> tuple[Catalog, dict[str, Page]]:
    """Rule 4: the same with its oldest loose entries in pages, where there are enough of them; and those pages."""
    made: dict[str, Page] = {}
    while len(catalog.segments) >= _LOOSE_MAX:
        old, rest = catalog.segments[:PAGE], catalog.segments[PAGE:]
        key = f"page-{catalog.tenure:04d}-{old[0].entry.base_seq:016d}"
        made[key] = Page(old)
        catalog = msgspec.structs.replace(catalog, pages=(*catalog.pages, summary(key, old)), segments=rest)
    return catalog, made


def decode_catalog(data: bytes, where: str) -> Catalog:
    catalog = unseal(data, Catalog, where)
    if not _ID.fullmatch(catalog.stream):
        raise CorruptLog(f"{where}: it is of a stream {catalog.stream!r:.80}, which is no id of a stream")
    _check_names((s.entry.name for s in catalog.segments), (s.key for s in catalog.segments), where)
    _check_names((), (p.key for p in catalog.pages), where)
    for name in catalog.files:
        if name not in FILES:
            check_name(name.removeprefix("acks/"))
    return catalog


def decode_page(data: bytes, where: str) -> Page:
    page = unseal(data, Page, where)
    _check_names((s.entry.name for s in page.segments), (s.key for s in page.segments), where)
    return page


def _check_names(segments: Iterable[str], keys: Iterable[str], where: str) -> None:
    """They become paths, and come from outside (X2)."""
    for name in segments:
        if not SEGMENT_FILE.fullmatch(name):
            raise CorruptLog(f"{where}: it names a segment {name!r}, which is no segment's name")
    for key in keys:
        if not _KEY.fullmatch(key):
            raise CorruptLog(f"{where}: it names an object {key!r}, which is no key of an archive")


def newest(objects: ObjectStore, place: str) -> Catalog | None:
    """The newest catalog in the store; None if there is none."""
    while True:
        versions = list(objects.sizes(join(place, "catalog")))
        if not versions:
            return None
        try:
            return decode_catalog(objects.get(versions[-1]), f"{objects.url}/{versions[-1]}")
        except MissingObject:
            continue  # Two versions have followed since we looked.


# -- beside the segments ---------------------------------------------------------------------------------------------


def note_path(folder: Path) -> Path:
    return folder / _NOTE


def read_note(folder: Path) -> Catalog | None:
    """The catalog as noted in the folder of a branch; None where nothing was archived yet."""
    path = note_path(folder)
    try:
        return decode_catalog(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except CorruptLog as error:
        what = str(error).partition(";")[0]
        raise CorruptLog(f"{what}; run `holdfast archive`, which takes it from the archive") from None


def write_note(folder: Path, catalog: Catalog, pages: dict[str, Page], disk: Disk) -> None:
    """Rule 2. Pages first; those that no catalog names any more go last."""
    for key, page in pages.items():
        disk.replace_file(folder / key, seal(page))
    disk.replace_file(note_path(folder), seal(catalog))
    named = {p.key for p in catalog.pages}
    for name in os.listdir(folder):
        if name.startswith("page-") and name not in named:
            disk.unlink(folder / name)


def load_page(entry: PageEntry, folder: Path | None, objects: Callable[[], ObjectStore], place: str) -> Page:
    """A page, from beside the segments where it is there, from the store otherwise."""
    key = (str(folder), place, entry.key)
    with _pages_mutex:
        page = _pages.pop(key, None)
        if page is not None:
            _pages[key] = page
            return page
    if folder is not None:
        try:
            page = decode_page((folder / entry.key).read_bytes(), str(folder / entry.key))
        except (FileNotFoundError, CorruptLog):
            page = None  # Only a convenience: the archive has it as well.
    if page is None:
        store = objects()
        page = decode_page(store.get(join(place, entry.key)), f"{store.url}/{join(place, entry.key)}")
    with _pages_mutex:
        _pages[key] = page
        while len(_pages) > _PAGES_HELD:
            del _pages[next(iter(_pages))]
    return page


def overlaps(low: int | None, high: int | None, start_us: int, end_us: int) -> bool:
    return low is not None and high is not None and high >= start_us and low < end_us


def segments_of(
    catalog: Catalog, load: Callable[[PageEntry], Page], start_us: int | None = None, end_us: int | None = None
) -> Iterator[ArchivedSegment]:
    """Every archived segment, oldest first; of those with a range, only what may have tuples in [start, end)."""
    for page in catalog.pages:
        if start_us is None or end_us is None or overlaps(page.stime_min_us, page.stime_max_us, start_us, end_us):
            yield from (s for s in load(page).segments if _wanted(s.entry, start_us, end_us))
    yield from (s for s in catalog.segments if _wanted(s.entry, start_us, end_us))


def _wanted(entry: SegmentEntry, start_us: int | None, end_us: int | None) -> bool:
    return start_us is None or end_us is None or overlaps(entry.stime_min_us, entry.stime_max_us, start_us, end_us)
