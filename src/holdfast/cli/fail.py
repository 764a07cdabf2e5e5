"""holdfast fail"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session

LINKS = "HOST-HOST, STREAM>HOST (quote it: the shell knows '>'), or STREAM for all its readers."


def command(
    file: File,
    links: Annotated[list[str], typer.Argument(metavar="LINK...", help=LINKS)],
    json: Json = False,
) -> None:
    """Cut links between hosts on purpose, to see what a failure does. `holdfast heal` mends them.

    \b
    holdfast fail netmon.yaml a-b
    holdfast fail netmon.yaml monitor3
    holdfast fail netmon.yaml 'monitor3>a' 'monitor1>b'
    """
    from holdfast.cli.cutting import tell_links
    from holdfast.host.deployment import load_deployment

    tell_links(Session(None, json), load_deployment(file), links, "cut")
