"""holdfast move"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session
from holdfast.clock import monotonic_us, pause
from holdfast.model.time import duration_us

_EVERY_US = 250_000


def command(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the deployment.")],
    to: Annotated[str, typer.Argument(metavar="HOST", help="A partner, or the node's own host to take it back.")],
    wait: Annotated[str, typer.Option(help="How long to wait until it runs there; 0s: do not.")] = "2m",
    json: Json = False,
) -> None:
    """Move a node to a partner by hand, or take it back.

    The partner has to agree: there must be a contract to move load to it, it is paid for, and it may refuse when it has
    no room. The node stays there until you take it back or the partner wants to be rid of it. At home it is free again:
    it leaves by itself as soon as that is cheaper. Readers of the node's stream notice nothing.

    \b
    holdfast move anna.yaml counts ben
    holdfast move anna.yaml counts a         # home again
    """
    from holdfast.cli.sharing import ask, place, sharing_hosts
    from holdfast.host.catalog import Catalog
    from holdfast.host.deployment import load_deployment
    from holdfast.model.errors import PeerError

    session, wait_us, deployment = Session(None, json), duration_us(wait), load_deployment(file)
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    catalog.diagram.node(node)
    replicas = catalog.replicas_of(node)
    homes = [client for client in sharing_hosts(deployment) if f"{node}@{client.spec.name}" in replicas]
    if not homes:
        raise PeerError(f"no host that runs {node!r} shares load; give one load: FILE in {deployment.file}")
    said = place(homes[0], node, to)
    session.say(said, node=node, to=to, said=said)
    begun = monotonic_us()
    while monotonic_us() - begun < wait_us:
        (answer,) = ask(homes[:1], "/v1/load")
        if not isinstance(answer, PeerError) and _is_there(answer, node, to, homes[0].spec.name):
            took = monotonic_us() - begun
            session.say(f"{node} runs at {to} after {took / 1e6:.1f} s", node=node, at=to, took_us=took)
            return
        pause(_EVERY_US)
    if wait_us:
        raise PeerError(
            f"{node} does not run at {to} after {wait}; it may still be on its way, as `holdfast load` shows (moving); "
            "`holdfast contracts` shows whether the partner agrees; it may be full, or it was asked within the period "
            "of the contract and is asked again after it"
        )


def _is_there(said: dict[str, Any], node: str, to: str, host: str) -> bool:
    where = said["participant"] if to == host else to
    return any(t["task"] == node and t["at"] == where and (where != said["participant"] or t["movable"])
               for t in said["tasks"])  # fmt: skip
