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
    stripes = session.store.stripes_there(name)
    streams = [session.store.open(stream) for stream in ([name] if stripes is None else stripes)]
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {name} cannot be undone; say --yes")
        rows = sum(stream.reader().rows for stream in streams)
        typer.confirm(f"Remove {name} with {rows} tuples for ever?", abort=True)
    session.store.delete(name)
    url = next((stream.definition.archive for stream in streams if stream.definition.archive is not None), None)
    rest = "" if url is None else f"; what is archived of it stays in {url}"
    session.say(f"deleted {name}{rest}", name=name, deleted=True, archive=url)
