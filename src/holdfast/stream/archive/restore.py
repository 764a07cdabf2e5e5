"""Bringing a stream back from its archive, on this machine or another.

The steps, in the order in which they may be cut short:
1. The newest catalog is taken, and a folder beside the streams is filled: the definition, the stream's small files, the
   last segment (a writer goes on behind it) and those that an operator's open windows rely on. The rest stays in the
   archive, where readers find it, unless everything is asked for.
2. The next tenure begins: a catalog with it is created in the store. From here on the host before cannot archive any
   more; of two who restore at once, one gets it.
3. The folder gets the stream's name.

Until step 3 there is no such stream here. Whoever is killed before it starts again; what was left is removed.

The archive has sealed segments only. What was sent after the last of them is not in it: that is said, with the place up
to which it reaches. Producers that number what they send are told by their next connection what to send again.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.errors import Fenced, UsageError
from holdfast.model.names import check_name, contained
from holdfast.model.time import END_OF_TIME_US, instant_text
from holdfast.stream.archive.catalog import (
    ArchivedSegment,
    Catalog,
    Page,
    PageEntry,
    catalog_key,
    load_page,
    newest,
    place,
    segments_of,
    write_note,
)
from holdfast.stream.archive.download import download
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import ObjectStore, check_url, join
from holdfast.stream.checking.mended import read_mends
from holdfast.stream.definition import ARCHIVE_FORMAT, Definition
from holdfast.stream.disk import Disk
from holdfast.stream.head import Head, write_head
from holdfast.stream.manifest import Manifest, manifest_path
from holdfast.stream.retention import first_relied
from holdfast.stream.sealed import seal, unseal

Progress = Callable[[int, int], None]


class Restored(NamedTuple):
    """What came back, and what the archive does not have."""

    folder: Path
    definition: Definition
    catalog: Catalog
    fetched: int
    """Segments that are on the disk again."""
    fetched_bytes: int
    missing: tuple[ArchivedSegment, ...]
    """Segments that the catalog lists, and whose objects are not there or have another length."""
    closed: bool
    """The stream had ended, and all of it was archived."""


def restore_stream(
    root: Path,
    name: str,
    url: str,
    *,
    id: str | None = None,
    everything: bool = False,
    now_us: int,
    disk: Disk | None = None,
    objects: ObjectStore | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Bring the stream `name` back from the archive at `url`, below `root`."""
    folder, url, disk = contained(root, check_name(name)), check_url(url), disk or Disk()
    if folder.exists():
        raise UsageError(f"stream {name} is there already, in {folder}; restore it below another root, or delete it")
    objects = objects or open_objects(url)
    where = place(name, id or _only_id(objects, name))
    catalog = newest(objects, where)
    if catalog is None or "stream" not in catalog.files:
        raise UsageError(f"archive {url}: it has no stream {name} with the id {id}; it has: {_ids(objects, name)}")
    staging = root / f".restoring-{catalog.stream}"
    shutil.rmtree(staging, ignore_errors=True)
    return _Restore(staging, objects, where, catalog, url, disk).run(folder, everything, now_us, progress)


class _Restore:
    def __init__(self, staging: Path, objects: ObjectStore, where: str, catalog: Catalog, url: str, disk: Disk) -> None:
        self._staging, self._objects, self._place, self._url, self._disk = staging, objects, where, url, disk
        self._catalog, self._main = catalog, staging / "main"

    def run(self, folder: Path, everything: bool, now_us: int, progress: Progress | None) -> Restored:
        catalog = self._catalog
        listed = list(segments_of(catalog, self._page))
        missing = self._missing(listed)
        known = unseal(catalog.files["stream"].encode(), Definition, f"{self._url}/{self._place}")
        definition = msgspec.structs.replace(known, archive=self._url, format=max(known.format, ARCHIVE_FORMAT))
        self._disk.make_dir(self._main)
        self._disk.make_dir(self._staging / "acks")
        for name, text in catalog.files.items():
            if name != "stream":
                self._disk.replace_file(contained(self._staging, name), text.encode())
        self._disk.replace_file(self._staging / "stream", seal(definition))
        chosen = listed if everything else self._needed(listed)
        self._fetch(chosen, progress)
        removed = catalog.removed
        first = chosen[0].entry.base_seq if chosen else 0
        head = Head(first_base_seq=first, removed_until_us=removed.until_us, archived_seq=first,
                    removed_rows=removed.rows, removed_bytes=removed.bytes)  # fmt: skip
        write_head(self._main, head, self._disk)
        # Not released: the next writer begins a segment of its own behind what is archived, and changes nothing of it.
        manifest = Manifest(version=1, epoch=max(catalog.epoch, 1), owner=f"restored on {socket.gethostname()}",
                            segments=tuple(s.entry for s in chosen),
                            mends=len(read_mends(self._staging)))  # fmt: skip
        if chosen:
            self._disk.replace_file(manifest_path(self._main, 1), seal(manifest))
        claimed = self._claim(now_us)
        write_note(self._main, claimed, {}, self._disk)
        self._disk.rename(self._staging, folder)
        self._disk.sync_dir(folder.parent)
        fetched = sum(s.entry.length or 0 for s in chosen)
        closed = bool(listed) and catalog.boundary_us >= END_OF_TIME_US
        return Restored(folder, definition, claimed, len(chosen), fetched, missing, closed)

    def _page(self, entry: PageEntry) -> Page:
        return load_page(entry, None, lambda: self._objects, self._place)

    def _missing(self, listed: list[ArchivedSegment]) -> tuple[ArchivedSegment, ...]:
        sizes = self._objects.sizes(self._place)
        return tuple(s for s in listed if sizes.get(join(self._place, s.key)) != s.entry.length)

    @staticmethod
    def _needed(listed: list[ArchivedSegment]) -> list[ArchivedSegment]:
        """The last segment, and from the first on that an operator's open windows rely on."""
        relied = first_relied(s.entry for s in listed)
        return [s for s in listed if s is listed[-1] or (relied is not None and s.entry.base_seq >= relied)]

    def _fetch(self, chosen: list[ArchivedSegment], progress: Progress | None) -> None:
        total, done = sum(s.entry.length or 0 for s in chosen), 0
        for segment in chosen:
            download(self._objects, self._place, segment, self._main / segment.entry.name, self._disk)
            done += segment.entry.length or 0
            if progress is not None:
                progress(done, total)

    # -- step 2 ------------------------------------------------------------------------------------------------------

    def _claim(self, now_us: int) -> Catalog:
        before = self._catalog
        claimed = msgspec.structs.replace(
            before, version=before.version + 1, tenure=before.tenure + 1, owner=socket.gethostname(), doomed=()
        )
        if not self._objects.create(catalog_key(self._place, claimed.version), seal(claimed)):
            raise Fenced(
                f"archive {self._url}: something was archived, or the stream restored elsewhere, while this restore "
                f"ran; stop the host that still writes it, and restore again"
            )
        return claimed


def _only_id(objects: ObjectStore, name: str) -> str:
    ids = objects.folders(name)
    if not ids:
        known = ", ".join(objects.folders("")) or "none"
        raise UsageError(f"archive {objects.url}: it has no stream {name}; it has: {known}")
    if len(ids) > 1:
        raise UsageError(
            f"archive {objects.url}: {len(ids)} streams were called {name} (replicas, or one that was made anew); say "
            f"which one with --id: {_ids(objects, name)}"
        )
    return ids[0]


def _ids(objects: ObjectStore, name: str) -> str:
    said = []
    for id in objects.folders(name):
        found = newest(objects, place(name, id))
        if found is not None:
            said.append(f"{id} ({found.rows} tuples to {instant_text(found.boundary_us)}, last of {found.owner})")
    return ", ".join(said) or "none"
