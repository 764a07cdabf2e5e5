"""Checks everything that a stream has on disk, and changes nothing.

Rules:
1. Every byte that counts is compared with a checksum: the definition, acknowledgements, manifests, the head, indexes,
   and every frame of every segment up to the committed end. A single flipped bit is named with file and place (L4).
2. What is sound is compared with everything else that speaks of it (`audit`), and an index with one built anew (L5).
3. Of what only the archive has, the catalog is compared with what the store lists, and every byte if asked to.
4. It runs beside a living writer: it looks only at what that writer has acknowledged, and takes a segment that
   retention removes meanwhile for what it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.clock import pause
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.stream.acks import Acknowledged
from holdfast.stream.archive.catalog import Catalog, note_path
from holdfast.stream.archive.inspect import look_at_archive
from holdfast.stream.archive.objects import MissingObject
from holdfast.stream.archive.view import view_of
from holdfast.stream.branch import BranchRoot, branch_folder
from holdfast.stream.checking.audit import Auditor
from holdfast.stream.checking.finding import Finding, Severity
from holdfast.stream.checking.survey import survey
from holdfast.stream.definition import Definition
from holdfast.stream.ending import Ended, Unsettled, committed_end
from holdfast.stream.frame import FILE_HEADER_SIZE, decode_file_header
from holdfast.stream.head import Head
from holdfast.stream.index import Fields, decode_index, index_path, make_entries, stated_length
from holdfast.stream.losses import Losses, losses_path
from holdfast.stream.manifest import (
    SEGMENT_FILE,
    Manifest,
    SegmentEntry,
    load_manifest,
    manifest_path,
    manifest_versions,
    unsettled,
)
from holdfast.stream.report import Report, report_path
from holdfast.stream.sealed import unseal
from holdfast.stream.segment import Window

Progress = Callable[[int, int], None]
T = TypeVar("T", bound=msgspec.Struct)

_RESTORE = "restore it from a replica, or run `holdfast repair`"
_REBUILD = "`holdfast repair` builds it again"
#: A writer may roll or retention may run between two looks; a snapshot that never settles is not one.
_LOOKS, _LOOK_US = 200, 5_000


def verify(stream_folder: Path, *, progress: Progress | None = None, archive: bool = False) -> Iterator[Finding]:
    """All that is wrong with the stream in `stream_folder`; nothing if all is well. With `archive`, every byte that
    only the archive has is fetched and checked as well."""
    return _Verification(stream_folder, progress or (lambda done, total: None), archive).run()


class _Verification:
    def __init__(self, folder: Path, progress: Progress, archive: bool) -> None:
        self.folder, self._progress, self._fetch = folder, progress, archive
        self._faults = 0
        self._done, self._total = 0, _segment_bytes(folder)

    def run(self) -> Iterator[Finding]:
        found, definition = self._sealed(self.folder / "stream", Definition)
        yield from found
        if definition is None and not found:
            yield _error(self.folder / "stream", 0, 1, "the stream's definition is missing", _RESTORE)
        if definition is not None:
            try:
                _ = definition.schema
            except CorruptLog as error:
                yield _error(self.folder / "stream", 0, 1, str(error), _RESTORE)
                definition = None
        for path in _files(self.folder / "acks"):
            yield from self._sealed(path, Acknowledged)[0]
        yield from self._sealed(report_path(self.folder), Report)[0]
        yield from self._branch(self.folder / "main", definition)
        tentative = branch_folder(self.folder)
        if tentative.is_dir():
            yield from self._sealed(tentative / "branch", BranchRoot)[0]
            try:
                yield from self._branch(tentative, definition)
            except FileNotFoundError:
                if tentative.is_dir():  # Otherwise it was dropped under our eyes, as a branch may be.
                    raise

    def _sealed(self, path: Path, kind: type[T]) -> tuple[list[Finding], T | None]:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return [], None
        try:
            return [], unseal(data, kind, "")
        except CorruptLog as error:
            what = str(error).removeprefix(": ").partition(";")[0]
            return [_error(path, 0, max(len(data), 1), what, _RESTORE)], None

    # -- one branch --------------------------------------------------------------------------------------------------

    def _branch(self, folder: Path, definition: Definition | None) -> Iterator[Finding]:
        found, head = self._sealed(folder / "head", Head)
        yield from found
        found, losses = self._sealed(losses_path(folder), Losses)
        yield from found
        found, manifest, ended = self._snapshot(folder)
        yield from found
        segments = manifest.segments if manifest is not None else _unlisted(folder)
        if manifest is not None:
            yield from _order(folder, manifest)
        if manifest is not None and unsettled(manifest):
            yield Finding(Severity.ERROR, manifest_path(folder, manifest.version), 0, 0,
                          "the machine stopped while the last segments were kept in memory",
                          "open the stream for writing (its producer), which names what is lost")  # fmt: skip
            segments = tuple(s for s in segments if s.lease is None)
        auditor = Auditor(definition, losses.losses if losses is not None else ())
        if folder.name == "main" and definition is not None and definition.archive is not None:
            yield from self._archived(folder, head or Head(), definition, auditor)
        for entry in segments:
            if head is not None and entry.base_seq < head.first_base_seq:
                continue
            last = manifest is not None and entry is segments[-1]
            yield from self._segment(folder, entry, auditor, definition, ended if last else None)
        if manifest is not None:
            yield from _leftovers(folder, manifest)

    def _archived(self, folder: Path, head: Head, definition: Definition, auditor: Auditor) -> Iterator[Finding]:
        """Rule 3: what only the archive has."""
        view = view_of(definition, folder)
        assert view is not None
        found, note = self._sealed(note_path(folder), Catalog)
        yield from found
        if found:
            return
        if head.archived_seq > (note.end_seq if note is not None else 0):
            yield _error(note_path(folder), 0, 1, "the note of what is archived is lost, or old",
                         "`holdfast archive` takes it from the archive")  # fmt: skip
        try:
            yield from look_at_archive(view, folder, head.first_base_seq)
            for segment in view.segments(before_seq=head.first_base_seq) if self._fetch else ():
                window = view.window(segment)
                self._total += window.end
                yield from _file_header(window.path, window.take(0, FILE_HEADER_SIZE), segment.entry, definition)
                yield from auditor.begin(window.path, segment.entry.base_seq)
                self._faults = 0
                yield from self._units(window, auditor)
                if not self._faults:
                    yield from _sums(window.path, segment.entry, auditor)
        except MissingObject:
            auditor.lost_track()  # It was told already.
        except StorageError as error:
            yield Finding(Severity.WARNING, note_path(folder), 0, 1, f"the archive could not be looked at: {error}",
                          "verify again when it is back")  # fmt: skip
            auditor.lost_track()

    def _snapshot(self, folder: Path) -> tuple[list[Finding], Manifest | None, Ended | None]:
        """The manifest and the end of its last segment, seen at one moment."""
        for _ in range(_LOOKS):
            try:
                manifest = load_manifest(folder)
                if manifest is None or not manifest.segments:
                    return [], manifest, None
                if not (folder / manifest.segments[-1].name).exists() and load_manifest(folder) == manifest:
                    return [], manifest, None  # The missing segment is reported where its turn comes.
                return [], manifest, committed_end(folder, manifest)
            except (Unsettled, FileNotFoundError):
                pause(_LOOK_US)
            except CorruptLog as error:
                versions = manifest_versions(folder)
                path = manifest_path(folder, versions[-1]) if versions else folder
                size = path.stat().st_size if versions else 1
                return [_error(path, 0, size, str(error).partition(": ")[2].partition(";")[0], _REBUILD)], None, None
        return [Finding(Severity.WARNING, folder, 0, 1, "its writer moved on faster than it could be looked at",
                        "run verify again")], None, None  # fmt: skip

    def _segment(
        self, folder: Path, entry: SegmentEntry, auditor: Auditor, definition: Definition | None, ended: Ended | None
    ) -> Iterator[Finding]:
        path = folder / entry.name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            head = self._sealed(folder / "head", Head)[1]  # Anew: retention may have removed it since.
            if head is None or entry.base_seq >= head.first_base_seq:
                yield _error(path, 0, 1, f"the segment with {entry.rows} tuples is missing", _RESTORE)
                auditor.lost_track()
            return
        try:
            size = os.fstat(fd).st_size
            end = entry.length if entry.length is not None else ended.end if ended is not None else size
            yield from _file_header(path, os.pread(fd, FILE_HEADER_SIZE, 0), entry, definition)
            yield from auditor.begin(path, entry.base_seq)
            if size < end:
                yield _error(path, size, end - size, f"{end} bytes were committed, only {size} are there", _RESTORE)
                auditor.lost_track()
            self._faults = int(size < end)
            yield from self._units(Window(fd, path, min(end, size)), auditor)
        finally:
            os.close(fd)
        if ended is not None and entry.length is None:
            yield from ended.findings(path, size)
        if entry.length is not None and not self._faults:
            yield from _sums(path, entry, auditor)
        yield from self._index(path, entry, auditor.fields)

    def _units(self, window: Window, auditor: Auditor) -> Iterator[Finding]:
        for span in survey(window):
            self._faults += len(span.faults)
            for fault in span.faults:
                yield _error(window.path, fault.offset, fault.length, fault.what, _RESTORE)
            if span.sound:
                yield from auditor.unit(span, window)
            else:
                auditor.lost_track()
            self._done += span.end - span.start
            self._progress(min(self._done, self._total), self._total)

    def _index(self, segment: Path, entry: SegmentEntry, fields: list[Fields]) -> Iterator[Finding]:
        path = index_path(segment)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if entry.length is not None and segment.exists():
                yield Finding(Severity.NOTE, path, 0, 1, "the index is missing", f"readers do without; {_REBUILD}")
            return
        length = stated_length(data)
        entries = decode_index(data, length)
        if entries is None:
            what = "the index does not match its checksum"
            yield Finding(Severity.WARNING, path, 0, max(len(data), 1), what, _REBUILD)
        elif self._faults:
            return  # It remembers what the segment lost; that is no fault of its own.
        elif entries.tobytes() != make_entries([f for f in fields if f.offset < length]).tobytes():
            what = "the index is not that of its segment"
            yield Finding(Severity.WARNING, path, 0, len(data), what, _REBUILD)
        elif entry.length is not None and length != entry.length:
            what = "the index is older than the end of its segment"
            yield Finding(Severity.NOTE, path, 0, len(data), what, f"readers do without; {_REBUILD}")


def _file_header(path: Path, raw: bytes, entry: SegmentEntry, definition: Definition | None) -> Iterator[Finding]:
    try:
        header = decode_file_header(raw, "")
    except CorruptLog as error:
        yield _error(path, 0, FILE_HEADER_SIZE, str(error).removeprefix(": ").partition(";")[0], _RESTORE)
        return
    if definition is not None and header.stream_id != definition.id_bytes:
        yield _error(path, 0, FILE_HEADER_SIZE, "the segment belongs to another stream", _RESTORE)
    if header.base_seq != entry.base_seq:
        what = f"the segment begins after commit {header.base_seq}, its entry says {entry.base_seq}"
        yield _error(path, 0, FILE_HEADER_SIZE, what, _RESTORE)


def _order(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    path = manifest_path(folder, manifest.version)
    size = path.stat().st_size if path.exists() else 1
    for before, after in zip(manifest.segments, manifest.segments[1:], strict=False):
        if before.base_seq >= after.base_seq or before.length is None:
            yield _error(path, 0, size, f"{before.name} and {after.name} are not in order", _REBUILD)


def _sums(path: Path, entry: SegmentEntry, auditor: Auditor) -> Iterator[Finding]:
    extent = auditor.extent
    have = (extent.rows, extent.stime_min_us, extent.stime_max_us)
    if have != (entry.rows, entry.stime_min_us, entry.stime_max_us):
        what = f"the manifest says {entry.rows} tuples from {entry.stime_min_us} to {entry.stime_max_us}"
        yield _error(path, 0, FILE_HEADER_SIZE, f"{what}, the segment has {have[0]} from {have[1]} to {have[2]}",
                     _RESTORE)  # fmt: skip


def _leftovers(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    listed = {s.name for s in manifest.segments}
    newer = load_manifest(folder)
    listed |= {s.name for s in newer.segments} if newer is not None else set()
    for path in _files(folder):
        if SEGMENT_FILE.fullmatch(path.name) and path.name not in listed and manifest == newer:
            what, advice = "no manifest names this segment: a crash left it behind", "the next writer removes it"
            yield Finding(Severity.NOTE, path, 0, 1, what, advice)


def _unlisted(folder: Path) -> tuple[SegmentEntry, ...]:
    """Where the manifest is lost, what lies there is looked at all the same."""
    names = sorted(p.name for p in _files(folder) if SEGMENT_FILE.fullmatch(p.name))
    return tuple(SegmentEntry(name, int(name[:16]), int(name[17:25])) for name in names)


def _segment_bytes(stream_folder: Path) -> int:
    total = 0
    for path in (p for branch in ("main", "tentative") for p in stream_folder.glob(f"{branch}/*.seg")):
        with contextlib.suppress(FileNotFoundError):  # Retention may be faster.
            total += path.stat().st_size
    return total


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except FileNotFoundError:
        return []


def _error(file: Path, offset: int, length: int, what: str, advice: str) -> Finding:
    return Finding(Severity.ERROR, file, offset, length, what, advice)
