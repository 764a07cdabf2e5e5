"""holdfast restore"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted, size_text
from holdfast.clock import now_us
from holdfast.model.time import BEGINNING_US, instant_text


def command(
    name: Name,
    archive: Annotated[str, typer.Option(help="Where it was archived: s3://bucket/prefix, or file:///folder.")],
    id: Annotated[str | None, typer.Option(help="Which one, if several streams had that name.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Fetch all of it; otherwise readers take the past from the archive.")
    ] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Bring a stream back from its archive, with all that was archived of it, and say what the archive does not have.

    The host that archived it before can do so no more: stop it first. Credentials come from the environment, or from
    the file that HOLDFAST_ARCHIVE_CREDENTIALS names. Exit code 1 if objects are missing in the archive.

    \b
    holdfast restore orders --archive s3://bucket/streams
    holdfast restore orders --archive s3://bucket/streams --all
    """
    from holdfast.stream.archive.restore import restore_stream

    session = Session(root, json)
    with session.progress(f"restore {name}", bytes=True) as show:
        found = restore_stream(
            session.store.root, name, archive, id=id, everything=everything, now_us=now_us(), progress=show
        )
    catalog = found.catalog
    session.say(
        f"{name}: {counted(catalog.rows, 'tuple')}, {size_text(catalog.bytes)} in the archive; "
        f"{size_text(found.fetched_bytes)} of it are on the disk again, in {found.folder}",
        stream=name, id=catalog.stream, tuples=catalog.rows, bytes=catalog.bytes, fetched_bytes=found.fetched_bytes,
        folder=str(found.folder), boundary=instant_text(catalog.boundary_us),
        removed_until=instant_text(catalog.removed.until_us), missing=[s.key for s in found.missing],
    )  # fmt: skip
    if session.json:
        raise typer.Exit(1 if found.missing else 0)
    if catalog.removed.until_us > BEGINNING_US:
        session.say(f"before {instant_text(catalog.removed.until_us)}: {counted(catalog.removed.rows, 'tuple')} were "
                    f"removed by retention")  # fmt: skip
    if found.closed:
        session.say("the stream had ended, and the archive has its end")
    else:
        session.say(
            f"the archive ends at tuple {catalog.next_tuple_id - 1}, boundary {instant_text(catalog.boundary_us)}, and "
            f"got that at {instant_text(catalog.wall_us)}: what was sent after it is not there; let producers send "
            f"it again (what they number and is there is taken once)"
        )
    for segment in found.missing:
        session.say(f"missing in the archive: {segment.key}, {counted(segment.entry.rows, 'tuple')} from "
                    f"{_when(segment.entry.stime_min_us)} to {_when(segment.entry.stime_max_us)}")  # fmt: skip
    if found.missing:
        raise typer.Exit(1)


def _when(us: int | None) -> str:
    return "-" if us is None else instant_text(us)
