"""One stream at a glance: what `holdfast streams` shows of it."""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import HoldfastError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, bucket_of, duration_text, instant_text
from holdfast.stream.archive.archiver import archive_lag, archive_state
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.head import read_head
from holdfast.stream.manifest import load_manifest
from holdfast.stream.retention import retention_text, waits_for
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.tail import writer_lives


def overview(store: StreamStore, name: str, now_us: int) -> dict[str, Any]:
    """The facts as plain values. A stream that cannot be read says so instead of hiding the others."""
    try:
        return _facts(store.open(name), now_us)
    except HoldfastError as error:
        return {"name": name, "error": str(error)}


def striped_overview(store: StreamStore, name: str, now_us: int) -> dict[str, Any]:
    """The sums over the stripes, which have lines of their own."""
    try:
        striped = store.open_striped(name)
        parts = [_facts(stripe, now_us) for stripe in striped.stripes]
        boundary = striped.complete_until_us
    except HoldfastError as error:
        return {"name": name, "error": str(error)}
    return {
        "name": name, "columns": striped.definition.columns, "tuples": sum(part["tuples"] for part in parts),
        "bytes": sum(part["bytes"] for part in parts), "bucket": duration_text(striped.definition.bucket_us),
        "boundary": None if boundary == BEGINNING_US else instant_text(boundary),
        "boundary_age_us": now_us - boundary if BEGINNING_US < boundary < END_OF_TIME_US else None,
        "closed": all(part["closed"] for part in parts), "stripes": list(striped.dealing.names),
        "dealt": striped.dealing.text,
    }  # fmt: skip


def _facts(stream: Stream, now_us: int) -> dict[str, Any]:
    d = stream.definition
    reader = stream.reader()
    try:
        low, high, boundary = reader.stime_min_us, reader.stime_max_us, reader.boundary_us
        facts: dict[str, Any] = {
            "name": d.name,
            "columns": d.columns,
            "tuples": reader.rows,
            "bytes": reader.size_bytes,
            "archived_only_bytes": reader.archived.bytes,
            "bucket": duration_text(d.bucket_us),
            "partitions": d.partitions,
            "first_bucket": None if low is None else bucket_of(low, d.bucket_us),
            "last_bucket": None if high is None else bucket_of(high, d.bucket_us),
            "first_stime": None if low is None else instant_text(low),
            "last_stime": None if high is None else instant_text(high),
            "boundary": None if boundary == BEGINNING_US else instant_text(boundary),
            "boundary_age_us": now_us - boundary if BEGINNING_US < boundary < END_OF_TIME_US else None,
            "closed": reader.closed,
        }
    finally:
        reader.close()
    manifest = load_manifest(stream.folder / "main")
    alive = manifest is not None and writer_lives(stream.folder / "main", manifest.epoch)
    branch, head = stream.branch(), read_head(stream.folder / "main")
    if d.archive is not None:
        facts["archive"] = _archive(stream)
    facts |= {
        "writer": manifest.owner if manifest is not None and alive else None,
        "branch": None if branch is None else instant_text(branch.root_us),
        "retention": d.retention.text,
        "removed_tuples": head.removed_rows,
        "removed_until": None if head.removed_until_us == BEGINNING_US else instant_text(head.removed_until_us),
        "retention_waits_for": waits_for(stream.folder / "main"),
        "retained": retention_text(stream.folder / "main", d),
        "bound": None if d.bound is None else d.bound.bytes,
    }
    return facts


def _archive(stream: Stream) -> dict[str, Any]:
    main, d = stream.folder / "main", stream.definition
    note, lag, state = read_note(main), archive_lag(main), archive_state(main)
    return {
        "url": d.archive,
        "retention": d.archive_retention.text,
        "segments": 0 if note is None else note.count,
        "tuples": 0 if note is None else note.rows,
        "bytes": 0 if note is None else note.bytes,
        "waiting_segments": lag.segments,
        "waiting_bytes": lag.bytes,
        "waiting_since": None if lag.since_us is None else instant_text(lag.since_us),
        "error": state.error,
        "errors_total": state.errors_total,
    }
