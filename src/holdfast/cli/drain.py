"""holdfast drain"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session

#: Readers have half a minute to go, and a query of Spark's takes some seconds to stop.
_DRAIN_S = 180.0


def command(
    file: File,
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host that is to be taken down.")],
    json: Json = False,
) -> None:
    """Empty a host, so that it can be taken down: its replicas stop when readers have gone to their twins.

    Refused if a node has no twin elsewhere that serves. The host goes on serving the sources that lie on it, until it
    is stopped; `holdfast up` has it run its replicas again.

    \b
    holdfast drain netmon.yaml b && holdfast down netmon.yaml --host b
    """
    import msgspec

    from holdfast.cli.hosts import HostClient
    from holdfast.host.deployment import load_deployment

    session, deployment = Session(None, json), load_deployment(file)
    client = HostClient(deployment.host(host), deployment.token())
    said = msgspec.json.decode(client.call("POST", "/v1/drain", {}, timeout_s=_DRAIN_S))
    for replica in said["stopped"]:
        session.say(f"{replica}: stopped", replica=replica, state="DRAINED")
    if not said["stopped"]:
        session.say(f"{host}: no node runs there", host=host, state="DRAINED")
    if said["sources"]:
        session.note(f"sources that lie on {host} are away while it is down: {', '.join(said['sources'])}")
