"""holdfast archive"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted, size_text
from holdfast.clock import now_us
from holdfast.model.errors import StreamBusy, UsageError
from holdfast.stream.store import Stream


def command(
    name: Name,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal what is being written first, if nobody writes, so that all goes.")
    ] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Bring everything that is sealed into the stream's archive, now. Writers do so by themselves, a segment at a time.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and so on), or from the file that
    HOLDFAST_ARCHIVE_CREDENTIALS names. What is archived then leaves the disk as the stream's retention says.

    \b
    holdfast archive orders
    holdfast archive orders --seal
    """
    from holdfast.stream.archive.archiver import archive_lag, archive_once

    session = Session(root, json)
    stream = session.store.open(name)
    if stream.definition.archive is None:
        raise UsageError(f"stream {name} has no archive; name one when you create it (--archive s3://bucket/prefix)")
    if seal:
        _seal(stream)
    done = archive_once(stream.folder / "main", stream.definition, asked=True)
    left = archive_lag(stream.folder / "main")
    removed = stream.retain()
    rest = f"; {counted(left.segments, 'segment')} left: another process is at it" if left.segments else ""
    session.say(
        f"{name}: archived {counted(done.segments, 'segment')}, {counted(done.rows, 'tuple')}, "
        f"{size_text(done.bytes)}; {size_text(removed.bytes)} left the disk{rest}",
        stream=name, segments=done.segments, tuples=done.rows, bytes=done.bytes, left=left.segments,
        left_disk_bytes=removed.bytes,
    )  # fmt: skip


def _seal(stream: Stream) -> None:
    try:
        writer = stream.writer()
    except StreamBusy as error:
        raise UsageError(f"stream {stream.name} is being written, and its writer seals it by and by: {error}") from None
    try:
        writer.roll(now_us())
    finally:
        writer.release(now_us())
