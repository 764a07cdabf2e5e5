"""holdfast verify"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Root, Session
from holdfast.cli.units import counted, size_text
from holdfast.model.errors import HoldfastError
from holdfast.model.time import instant_text
from holdfast.stream.changes import read_changes
from holdfast.stream.checking.finding import Finding, Severity
from holdfast.stream.identity import told


def command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Streams; all if none.")] = None,
    archive: Annotated[
        bool, typer.Option("--archive", help="Fetch and check every byte that only the archive has, too.")
    ] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Check every checksum, index and promise. Changes nothing; runs beside a living writer.

    Exit code 1 if something is wrong. Each finding names the file and the byte. Of a stream with an archive, the
    catalog is compared with what the store lists.

    \b
    holdfast verify
    holdfast verify monitor1
    holdfast verify orders --archive
    """
    from holdfast.stream.checking.verify import verify

    session = Session(root, json)
    wrong = 0
    asked: list[str] = []
    for name in names or session.store.striped_names():
        stripes = session.store.stripes_there(name)
        asked += [name] if stripes is None else stripes
        wrong += stripes is not None and not _dealing_sound(session, name)
    for name in asked if names else session.store.names():
        folder = session.folder(name)
        found: list[Finding] = []
        size = [0]
        with session.progress(f"verify {name}", bytes=True) as show:

            def progress(done: int, total: int, size: list[int] = size, show: object = show) -> None:
                size[0] = total
                show(done, total)  # type: ignore[operator]

            for finding in verify(folder, progress=progress, archive=archive):
                found.append(finding)
                _tell(session, name, finding)
        for change in read_changes(folder):
            session.say(f"note: {name}: results from {instant_text(change.from_us)} on are of another definition "
                        f"({told(list(change.differences))})", stream=name, severity="note",
                        changed_from=instant_text(change.from_us), differences=list(change.differences))  # fmt: skip
        bad = sum(f.severity > Severity.NOTE for f in found)
        wrong += bad
        verdict = "sound" if not bad else counted(bad, "problem")
        session.say(f"{name}: {size_text(size[0])} checked, {verdict}", stream=name, bytes=size[0], problems=bad)
    if wrong:
        raise typer.Exit(1)


def _dealing_sound(session: Session, name: str) -> bool:
    """What makes streams the stripes of one: that they are there, and which."""
    try:
        session.store.open_striped(name)
    except HoldfastError as error:
        session.say(f"error: {error}", stream=name, severity="error", what=str(error))
        return False
    return True


def _tell(session: Session, name: str, f: Finding) -> None:
    session.say(
        f"{f.severity.name.lower()}: {f.text}", stream=name, severity=f.severity.name.lower(), file=str(f.file),
        offset=f.offset, length=f.length, what=f.what, advice=f.advice,
    )  # fmt: skip
