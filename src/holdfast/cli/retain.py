"""holdfast retain"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted, size_text
from holdfast.model.errors import UsageError
from holdfast.model.size import size_bytes
from holdfast.model.time import duration_us, instant_text
from holdfast.stream.definition import Retention
from holdfast.stream.head import read_head
from holdfast.stream.store import Stream


def command(
    name: Name,
    age: Annotated[str | None, typer.Option(help="Remove what was written longer ago, such as 7d.")] = None,
    size: Annotated[str | None, typer.Option(help="Remove the oldest beyond this size, such as 10GB.")] = None,
    acked: Annotated[bool, typer.Option("--acked", help="Remove what every subscriber acknowledged.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show policy, subscribers and what was removed.")] = False,
    forget: Annotated[str | None, typer.Option(help="A subscriber that will not come back.")] = None,
    root: Root = None,
    json: Json = False,
) -> None:
    """Remove from the front what nobody needs: by the stream's own policy, or by the one given here, once.

    What a subscriber has not acknowledged always stays. Of a stream with an archive this is about the disk: what is
    archived goes, and is read from there.

    \b
    holdfast retain monitor1 --show
    holdfast retain monitor1 --age 7d
    holdfast retain monitor1 --forget old-dashboard
    """
    session = Session(root, json)
    for stream in session.store.open_all(name):
        _of_one(session, stream, age, size, acked, show, forget)


def _of_one(
    session: Session, stream: Stream, age: str | None, size: str | None, acked: bool, show: bool, forget: str | None
) -> None:
    name = stream.name
    if forget is not None:
        if forget not in stream.acks():
            known = ", ".join(stream.acks()) or "none"
            raise UsageError(f"stream {name} has no subscriber {forget!r}; there are: {known}")
        stream.forget(forget)
        session.say(f"{name}: subscriber {forget} is forgotten", stream=name, forgotten=forget)
    if show:
        _show(session, stream)
    elif forget is None or age or size or acked:
        policy = None
        if age or size or acked:
            policy = Retention(duration_us(age) if age else None, size_bytes(size) if size else None, acked)
        done = stream.retain(policy)
        session.say(
            f"{name}: removed {counted(done.rows, 'tuple')}, {size_text(done.bytes)}; {done.stopped_by}",
            stream=name, segments=done.segments, tuples=done.rows, bytes=done.bytes, stopped_by=done.stopped_by,
        )  # fmt: skip


def _show(session: Session, stream: Stream) -> None:
    head = read_head(stream.folder / "main")
    session.say(
        f"{stream.name}: {stream.definition.retention.text}; removed so far: {counted(head.removed_rows, 'tuple')}, "
        f"{size_text(head.removed_bytes)}",
        stream=stream.name, policy=stream.definition.retention.text, removed_tuples=head.removed_rows,
        removed_bytes=head.removed_bytes, removed_until=instant_text(head.removed_until_us),
    )  # fmt: skip
    for subscriber, ack in stream.acks().items():
        session.say(f"  {subscriber} needs nothing before {instant_text(ack.until_us)}", stream=stream.name,
                    subscriber=subscriber, acknowledged_until=instant_text(ack.until_us))  # fmt: skip
