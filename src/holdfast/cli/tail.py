"""holdfast tail"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.tuples import Printer
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.model.tuples import TupleType
from holdfast.stream.store import Stream, StripedStream
from holdfast.stream.striped_subscriber import StripedSubscriber
from holdfast.stream.subscriber import Subscriber

if TYPE_CHECKING:
    from holdfast.host.client_subscriber import ClientSubscriber

_LAST_DEFAULT = 10


def command(
    name: Name,
    start: Annotated[
        str | None, typer.Option("--from", help="beginning, live, a time, or bucket:N; otherwise the last tuples.")
    ] = None,
    tentative: Annotated[bool, typer.Option("--tentative", help="With what may still change.")] = False,
    boundaries: Annotated[bool, typer.Option("--boundaries", help="With the promises that close buckets.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    last: Annotated[int, typer.Option("-n", help="How many of the last tuples.")] = _LAST_DEFAULT,
    deployment: Annotated[
        Path | None,
        typer.Option("--deployment", "-d", metavar="FILE", help="Read it from the hosts of this deployment instead."),
    ] = None,
    root: Root = None,
    json: Json = False,
) -> None:
    """Show tuples: stable ones in green, tentative ones in yellow, UNDO and REC_DONE in red.

    A tuple is shown once its bucket is complete. With a deployment, the stream is read over the network from whichever
    of its replicas is best, and goes on with another one when that fails.

    \b
    holdfast tail monitor1
    holdfast tail monitor1 -f --tentative --boundaries
    holdfast tail monitor1 --from 2026-03-01T12:00 --json
    holdfast tail active_sources --deployment netmon.yaml -f --tentative
    """
    session = Session(root, json)
    if last < 0:
        raise typer.BadParameter(f"-n must be 0 or more; got {last}")
    wanted: dict[str, Any] = {"tentative": tentative, "boundaries": boundaries}
    if start is not None:
        wanted |= {"bucket": _number(start)} if start.startswith("bucket:") else {"start": start}
    if deployment is not None:
        _from_hosts(session, deployment, name, wanted, last, follow)
        return
    striped = session.store.stripes_of(name) is not None
    stream = session.store.open_striped(name) if striped else session.store.open(name)
    skip = 0
    if start is None:
        wanted["bucket"], skip = stream.last(last)
    with stream.subscribe(**wanted) as subscriber:
        _show(session, subscriber, subscriber.batches() if follow else subscriber.poll(), skip)
    if not follow and not json:
        _mention_open(session, stream)


def _from_hosts(session: Session, deployment: Path, name: str, wanted: dict[str, Any], last: int, follow: bool) -> None:
    import holdfast

    with contextlib.ExitStack() as closing:
        hosts = closing.enter_context(holdfast.connect(deployment))
        skip, complete = 0, None
        if "start" not in wanted and "bucket" not in wanted:
            wanted["bucket"], skip = hosts.last(name, last)
            complete, _ = hosts.last(name, 0)
        subscriber = closing.enter_context(hosts.subscribe(name, **wanted))
        until_us = BEGINNING_US if complete is None else complete * subscriber.definition.bucket_us
        batches = subscriber.batches() if follow else subscriber.present(until_us=until_us)
        _show(session, subscriber, batches, skip)


def _show(
    session: Session,
    subscriber: Subscriber | StripedSubscriber | ClientSubscriber,
    batches: Iterator[pa.RecordBatch],
    skip: int,
) -> None:
    printer = Printer(session)
    for batch in batches:
        for row in subscriber.rows_of(batch):
            if skip and row.type is TupleType.INSERTION:
                skip -= 1
                continue
            printer.show(row, subscriber.worth(row.stime) if row.type is TupleType.TENTATIVE else None)
        printer.flush()


def _mention_open(session: Session, stream: Stream | StripedStream) -> None:
    """Somebody who just sent a tuple looks for it."""
    rows = 0
    for part in stream.stripes if isinstance(stream, StripedStream) else (stream,):
        reader = part.reader()
        try:
            complete_us = stream.complete_until_us if isinstance(stream, StripedStream) else reader.closed_until_us
            extents = reader.extents(max(complete_us, BEGINNING_US + 1), END_OF_TIME_US)
            rows += sum(e.fields.rows for e in extents)
        finally:
            reader.close()
    if rows:
        session.note(f"{rows} more are in buckets that are still open; they are shown once a boundary closes them")


def _number(start: str) -> int:
    text = start.removeprefix("bucket:")
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"--from bucket:N must have a number; got {text!r}") from None
