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
    stream = session.store.open(name)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {name} cannot be undone; say --yes")
        typer.confirm(f"Remove {name} with {stream.reader().rows} tuples for ever?", abort=True)
    session.store.delete(name)
    url = stream.definition.archive
    rest = "" if url is None else f"; what is archived of it stays in {url}"
    session.say(f"deleted {name}{rest}", name=name, deleted=True, archive=url)
