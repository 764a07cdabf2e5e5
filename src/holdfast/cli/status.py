"""holdfast status"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.session import Json, Root, Session
from holdfast.clock import pause
from holdfast.model.errors import UsageError

_EVERY_US = 1_000_000


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The deployment, a YAML file; without: what runs below --root."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    diagram: Annotated[bool, typer.Option("--diagram", help="Draw the diagram and who runs it instead.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Show every replica of a deployment: its state, how far it is, what it writes and reads.

    Without a file: the streams below the root that nodes write, and whether somebody runs them.

    \b
    holdfast status
    holdfast status netmon.yaml
    holdfast status netmon.yaml --watch
    holdfast status netmon.yaml --json | jq .replicas
    """
    from holdfast.cli.board import below, draw, show
    from holdfast.cli.hosts import clients, statuses
    from holdfast.host.deployment import load_deployment

    session = Session(root, json)
    if file is None:
        if diagram:
            raise UsageError("--diagram needs the deployment's file, such as `holdfast status netmon.yaml --diagram`")
        _again(session, watch, lambda: below(session))
        return
    deployment = load_deployment(file)
    if diagram:
        draw(session, deployment)
        return
    asked = clients(deployment, looking=True)
    _again(session, watch, lambda: show(session, asked, statuses(asked)))


def _again(session: Session, watch: bool, show: Callable[[], None]) -> None:
    while True:
        if watch and not session.json and session.out.is_terminal:
            session.out.clear()
        show()
        if not watch:
            return
        pause(_EVERY_US)
