"""Removing from the front of an archive what its retention does not keep: for good.

Rules:
1. What a registered subscriber has not acknowledged stays, whatever its age or size (L8); so does what is still on the
   disk: the disk never has what the archive has let go of.
2. The head that says what is gone is durable first, then the catalog without it, then objects are deleted. A crash in
   between leaves objects that the catalog knows to be doomed; the next run deletes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.stream.acks import read_acks
from holdfast.stream.archive.catalog import (
    ArchivedSegment,
    Catalog,
    Page,
    PageEntry,
    Removed,
    load_page,
    place,
    segments_of,
    summary,
)
from holdfast.stream.archive.objects import ObjectStore, join
from holdfast.stream.archive.upload import Upload, Uploaded
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.head import alone, read_head, write_head


def expire(
    folder: Path, definition: Definition, objects: ObjectStore, disk: Disk, now_us: int, policy: Retention | None = None
) -> tuple[Uploaded, str]:
    """Apply the retention of a stream's archive (or `policy`). How much went, and why it stopped there."""
    upload = Upload(folder, definition, objects, disk, now_us)
    catalog = upload.settled()
    where = place(definition.name, definition.id)
    policy = policy or definition.archive_retention

    def load(entry: PageEntry) -> Page:
        return load_page(entry, folder, lambda: objects, where)

    going, why = _choose(folder, catalog, list(segments_of(catalog, load)), policy, now_us)
    if not going:
        return Uploaded(), why
    removed = catalog.removed
    until = max((s.entry.stime_max_us + 1 for s in going if s.entry.stime_max_us is not None), default=BEGINNING_US)
    removed = Removed(max(until, removed.until_us), removed.rows + sum(s.entry.rows for s in going),
                      removed.bytes + sum(s.entry.length or 0 for s in going))  # fmt: skip
    with alone(folder):
        head = read_head(folder)
        # A gap that a stream which was copied from a twin began with may lie behind what goes now.
        until = max(head.removed_until_us, removed.until_us)
        head = msgspec.structs.replace(
            head, removed_until_us=until, removed_rows=removed.rows, removed_bytes=removed.bytes
        )
        write_head(folder, head, disk)
    after, pages = _without(catalog, going[-1].end_seq, load)
    doomed = [key for s in going for key in (s.key, s.index_key)]
    doomed += [p.key for p in catalog.pages if p not in after.pages]
    after = msgspec.structs.replace(after, removed=removed, doomed=tuple(doomed))
    upload.publish(catalog, after, pages)
    objects.delete(join(where, key) for key in doomed)
    return Uploaded(len(going), sum(s.entry.rows for s in going), sum(s.entry.length or 0 for s in going)), why


def _choose(
    folder: Path, catalog: Catalog, present: list[ArchivedSegment], policy: Retention, now_us: int
) -> tuple[list[ArchivedSegment], str]:
    acks = read_acks(folder.parent)
    slowest = min(acks, key=lambda name: acks[name].until_us) if acks else None
    on_disk = read_head(folder).first_base_seq
    size = catalog.bytes
    going: list[ArchivedSegment] = []
    for segment in present:
        entry = segment.entry
        newest = BEGINNING_US if entry.stime_max_us is None else entry.stime_max_us
        acked = slowest is not None and newest < acks[slowest].until_us
        old = policy.age_us is not None and now_us - entry.wall_us > policy.age_us
        large = policy.size_bytes is not None and size > policy.size_bytes
        if not (old or large or (acked and policy.acknowledged)):
            return going, "the rest is neither old nor large enough"
        if slowest is not None and not acked:
            return going, f"subscriber {slowest} has acknowledged only to {instant_text(acks[slowest].until_us)}"
        if entry.base_seq >= on_disk:
            return going, "the rest is still on the disk"
        going.append(segment)
        size -= entry.length or 0
    return going, "all of it went"


def _without(catalog: Catalog, end_seq: int, load: Callable[[PageEntry], Page]) -> tuple[Catalog, dict[str, Page]]:
    """The catalog without its segments up to that commit; a page that loses some is written anew under another key."""
    pages, made = [], {}
    for page in catalog.pages:
        if page.end_seq <= end_seq:
            continue
        if page.first_seq < end_seq:
            rest = tuple(s for s in load(page).segments if s.end_seq > end_seq)
            key = f"page-{catalog.tenure:04d}-{rest[0].entry.base_seq:016d}"
            made[key], page = Page(rest), summary(key, rest)
        pages.append(page)
    loose = tuple(s for s in catalog.segments if s.end_seq > end_seq)
    return msgspec.structs.replace(catalog, pages=tuple(pages), segments=loose, first_seq=end_seq), made
