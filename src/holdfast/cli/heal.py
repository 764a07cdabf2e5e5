"""holdfast heal"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.deployed import File
from holdfast.cli.fail import LINKS
from holdfast.cli.session import Json, Session


def command(
    file: File,
    links: Annotated[list[str] | None, typer.Argument(metavar="[LINK]...", help=f"{LINKS} All if none.")] = None,
    json: Json = False,
) -> None:
    """Mend links that `holdfast fail` has cut: the named ones, or all.

    \b
    holdfast heal netmon.yaml monitor3
    holdfast heal netmon.yaml
    """
    from holdfast.cli.cutting import heal_all, tell_links
    from holdfast.host.deployment import load_deployment

    session = Session(None, json)
    deployment = load_deployment(file)
    if links:
        tell_links(session, deployment, links, "heal")
    else:
        heal_all(session, deployment)
