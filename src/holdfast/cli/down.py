"""holdfast down"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.deployed import File, Hosts
from holdfast.cli.session import Json, Session
from holdfast.model.errors import PeerError
from holdfast.model.time import duration_us


def command(
    file: File,
    host: Hosts = None,
    wait: Annotated[str, typer.Option(help="How long a host may take to end before it gets SIGTERM.")] = "30s",
    json: Json = False,
) -> None:
    """Stop the hosts of a deployment: ask each, wait, and insist if need be. Nothing stable is lost either way.

    \b
    holdfast down netmon.yaml
    holdfast down netmon.yaml --host b
    """
    from holdfast.cli.ending import ENDINGS, ask, end
    from holdfast.cli.hosts import clients
    from holdfast.host.deployment import load_deployment

    session = Session(None, json)
    wait_us = duration_us(wait)
    deployment = load_deployment(file)
    asked = [ask(client) for client in clients(deployment, host)]
    left = []
    for each in asked:
        how = end(each, wait_us)
        session.say(f"{each.client.spec.name}: {ENDINGS.get(how, how)}", host=each.client.spec.name, how=how)
        if how not in ENDINGS:
            left.append(each.client.spec.name)
    if left:
        raise PeerError(f"could not stop {', '.join(left)}")
