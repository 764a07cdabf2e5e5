"""holdfast status"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session
from holdfast.clock import pause

_EVERY_US = 1_000_000


def command(
    file: File,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    diagram: Annotated[bool, typer.Option("--diagram", help="Draw the diagram and who runs it instead.")] = False,
    json: Json = False,
) -> None:
    """Show every replica of a deployment: its state, how far it is, what it writes and reads.

    \b
    holdfast status netmon.yaml
    holdfast status netmon.yaml --watch
    holdfast status netmon.yaml --json | jq .replicas
    """
    from holdfast.cli.board import draw, show
    from holdfast.cli.hosts import clients, statuses
    from holdfast.host.deployment import load_deployment

    session = Session(None, json)
    deployment = load_deployment(file)
    if diagram:
        draw(session, deployment)
        return
    asked = clients(deployment, looking=True)
    while True:
        answers = statuses(asked)
        if watch and not json and session.out.is_terminal:
            session.out.clear()
        show(session, asked, answers)
        if not watch:
            return
        pause(_EVERY_US)
