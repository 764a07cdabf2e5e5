"""What a list of the store's objects says about an archive: a request for each thousand of them, and no bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.stream.archive.catalog import note_path
from holdfast.stream.archive.objects import join
from holdfast.stream.archive.view import ArchiveView
from holdfast.stream.checking.finding import Finding, Severity

_BACK = "restore that version of the object, if the store keeps versions"


def look_at_archive(view: ArchiveView, folder: Path, first_on_disk: int) -> Iterator[Finding]:
    """Segments that do not follow each other, and objects that are not there or not as long as they were."""
    catalog = view.catalog()
    if catalog is None:
        return
    sizes = view.objects.sizes(view.place)
    before: int | None = None
    for segment in view.segments():
        entry, path = segment.entry, Path(f"{view.url}/{join(view.place, segment.key)}")
        if before is not None and entry.base_seq != before:
            what = f"archived segment {entry.name} follows commit {before}"
            yield Finding(Severity.ERROR, note_path(folder), 0, 1, what, "compare with a replica")
        before = segment.end_seq
        size = sizes.get(join(view.place, segment.key))
        if size != entry.length:
            on_disk = entry.base_seq >= first_on_disk
            what = "is missing in the archive" if size is None else f"has {size} of {entry.length} bytes in the archive"
            advice = "the disk still has it: put it there again by hand" if on_disk else _BACK
            severity = Severity.WARNING if on_disk else Severity.ERROR
            yield Finding(severity, path, 0, 1, f"the segment with {entry.rows} tuples {what}", advice)
        elif join(view.place, segment.index_key) not in sizes:
            yield Finding(Severity.NOTE, path, 0, 1, "its index is missing in the archive", "readers do without")
