"""holdfast tail"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.tuples import Printer
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.model.tuples import TupleType
from holdfast.stream.store import Stream
from holdfast.stream.subscriber import Row, Subscriber

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
    root: Root = None,
    json: Json = False,
) -> None:
    """Show tuples: stable ones in green, tentative ones in yellow, UNDO and REC_DONE in red.

    A tuple is shown once its bucket is complete.

    \b
    holdfast tail monitor1
    holdfast tail monitor1 -f --tentative --boundaries
    holdfast tail monitor1 --from 2026-03-01T12:00 --json
    """
    session = Session(root, json)
    stream = session.store.open(name)
    if last < 0:
        raise typer.BadParameter(f"-n must be 0 or more; got {last}")
    skip = 0
    if start is None:
        start_us, skip = _last(stream, last)
        subscriber = stream.subscribe(bucket=start_us, tentative=tentative, boundaries=boundaries)
    elif start.startswith("bucket:"):
        subscriber = stream.subscribe(bucket=_number(start), tentative=tentative, boundaries=boundaries)
    else:
        subscriber = stream.subscribe(start=start, tentative=tentative, boundaries=boundaries)
    with subscriber:
        printer = Printer(session)
        for rows in _batches(subscriber, follow):
            for row in rows:
                if skip and row.type is TupleType.INSERTION:
                    skip -= 1
                    continue
                printer.show(row, subscriber.worth(row.stime) if row.type is TupleType.TENTATIVE else None)
            printer.flush()
    if not follow and not json:
        _mention_open(session, stream)


def _mention_open(session: Session, stream: Stream) -> None:
    """Somebody who just sent a tuple looks for it."""
    reader = stream.reader()
    try:
        rows = sum(e.fields.rows for e in reader.extents(max(reader.closed_until_us, BEGINNING_US + 1), END_OF_TIME_US))
    finally:
        reader.close()
    if rows:
        session.note(f"{rows} more are in buckets that are still open; they are shown once a boundary closes them")


def _batches(subscriber: Subscriber, follow: bool) -> Iterator[list[Row]]:
    for batch in subscriber.batches() if follow else subscriber.poll():
        yield list(subscriber.rows_of(batch))


def _last(stream: Stream, count: int) -> tuple[int, int]:
    """The bucket in which the last `count` complete tuples begin, and how many of its tuples come before them."""
    size = stream.definition.bucket_us
    reader = stream.reader()
    try:
        until = reader.closed_until_us
        found = reader.extents(BEGINNING_US, until)
        if count == 0 or not found:
            return until // size, 0
        rows, bucket = 0, found[-1].fields.bucket
        for extent in reversed(found):
            if rows >= count and extent.fields.bucket != bucket:
                break
            bucket = extent.fields.bucket
            rows += extent.fields.rows
        return bucket, max(0, rows - count)
    finally:
        reader.close()


def _number(start: str) -> int:
    text = start.removeprefix("bucket:")
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"--from bucket:N must have a number; got {text!r}") from None
