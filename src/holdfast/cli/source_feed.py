"""`holdfast send NAME --kafka …` and `--postgres …`: a source read until somebody says stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import typer

from holdfast.cli.session import Session
from holdfast.cli.units import counted
from holdfast.host.sources import Sources
from holdfast.inputs.source import KnowsColumns, Source, SourceSpec
from holdfast.model.errors import UnknownStream, UsageError

#: How often the main thread looks at the source; a signal is heard at once all the same.
_LOOK_S = 0.2


def columns_of(texts: Sequence[str]) -> dict[str, str]:
    """Parts of a record and their columns, from words such as `key=customer`."""
    found = {}
    for text in texts:
        part, equals, column = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"--column must look like key=customer or offset=kafka_offset; got {text!r}")
        found[part] = column
    return found


def names_of(texts: Sequence[str]) -> dict[str, str] | None:
    """Columns of a table and their names in the stream, from words such as `id` and `at=happened`."""
    return {name: to or name for name, _, to in (text.partition("=") for text in texts)} or None


def feed_from(session: Session, name: str, source: Source, *, until_read: bool) -> None:
    """Until Ctrl-C, or with `until_read` until everything that is there was read."""
    home = session.store.root / ".holdfast" / "sources"
    try:
        session.store.open(name)
    except UnknownStream:
        if not isinstance(source, KnowsColumns):
            raise
    sources = Sources({name: SourceSpec(name, source)}, session.store, home)
    session.note(f"reading {source.text()}; Ctrl-C ends")
    sources.start()
    told = ""
    try:
        while True:
            (status,) = sources.status()
            if status["state"] == "FAILED":
                raise UsageError(status["why"])
            if status["why"] and status["why"] != told:
                session.note(f"{name}: {status['why']}")
            told = status["why"]
            if until_read and status.get("settled", status.get("lag") == 0):
                break
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        pass
    finally:
        sources.stop()
    _say(session, name, sources.status()[0])


def _say(session: Session, name: str, status: dict[str, Any]) -> None:
    rows, late, dead = status.get("rows", 0), status.get("late", 0), status.get("dead", 0)
    text = f"{name}: {counted(rows, 'tuple')} sent"
    if late or dead:
        text += f", {late} too late or early, {dead} did not fit"
    session.say(
        text,
        stream=name,
        tuples=rows,
        late=late,
        dead=dead,
        partitions=status.get("partitions", {}),
        position=status.get("position"),
    )
