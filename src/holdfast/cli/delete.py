"""holdfast delete"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.model.errors import UsageError


def command(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Remove a stream and all that it holds. Refused while somebody writes to it.

    \b
    holdfast delete monitor1 --yes
    """
    session = Session(root, json)
    # A striped stream of which a stripe is gone is deleted all the same.
    streams = [] if session.store.stripes_of(name) is not None else [session.store.open(name)]
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {name} cannot be undone; say --yes")
        rows = sum(stream.reader().rows for stream in streams or session.store.open_all(name))
        typer.confirm(f"Remove {name} with {rows} tuples for ever?", abort=True)
    session.store.delete(name)
    url = streams[0].definition.archive if streams else None
    rest = "" if url is None else f"; what is archived of it stays in {url}"
    session.say(f"deleted {name}{rest}", name=name, deleted=True, archive=url)
