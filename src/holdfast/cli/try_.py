"""holdfast try"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.session import Json, Session

if TYPE_CHECKING:
    from holdfast.cli.hosts import HostClient
    from holdfast.host.deployment import Deployment

#: To plan and start a query takes Spark some seconds, on a busy machine a minute.
_START_S, _SWAP_S = 300.0, 240.0
_EVERY_US = 500_000
_KINDS = {"changed": "changed", "only_live": "only live", "only_trial": "only trial"}


def command(
    app: Annotated[str, typer.Argument(metavar="APP", help="The file with the changed function, beside the deployed.")],
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="The node whose function is tried.")],
    deployment: Annotated[Path, typer.Option("-d", "--deployment", metavar="FILE", help="The deployment that runs.")],
    host: Annotated[str | None, typer.Option(help="On this host; else on the first that runs the node.")] = None,
    seconds: Annotated[float, typer.Option("--for", metavar="SECONDS", help="How long to compare.")] = 30.0,
    key: Annotated[
        list[str] | None, typer.Option(help="A column by which rows are one that changed; may be given several times.")
    ] = None,
    replay: Annotated[
        str | None, typer.Option(help="Begin with a fresh state, made of so much input, such as 10m.")
    ] = None,
    swap: Annotated[bool, typer.Option("--swap", help="Then take it in, between two buckets.")] = False,
    json: Json = False,
) -> None:
    """Run a changed function on a copy of a node's live state, and show how its results differ.

    The live node is not disturbed, and nobody reads the trial's results. With --swap the function is taken in
    afterwards: readers see neither a gap nor a repetition. That must be the file that the deployment names.

    \b
    holdfast try netmon_new.py --node active_sources -d netmon.yaml
    holdfast try netmon.py --node active_sources -d netmon.yaml --for 60 --swap
    """
    from holdfast.host.deployment import load_deployment
    from holdfast.model.errors import UsageError

    session, deployed = Session(None, json), load_deployment(deployment)
    client = _client(deployed, node, host)
    place = Path(app)
    sent = str(place.absolute()) if place.parent.absolute() != deployed.file.parent.absolute() else place.name
    order = {"app": sent, "replay": replay, "key": key or []}
    said = _call(client, "POST", node, order, _START_S)
    ended = False
    try:
        state = "its live state" if said["carried"] else f"a fresh state, made of {replay}"
        session.note(f"{node}: {app} runs beside it with {state}; compared from {said['from']} on, for {seconds:g} s")
        for line in said["differences"]:
            session.note(line)
        said = _watched(client, node, seconds, said)
        _tell(session, said)
        if said["why"] is not None:
            raise UsageError(f"what was tried has failed: {said['why']}")
        if swap:
            taken = _call(client, "POST", f"{node}/swap", {}, _SWAP_S)
            ended = True
            session.say(f"{node}: swapped in; results from {taken['from']} on are those of {app}", **taken)
    finally:
        if not ended:
            _call(client, "DELETE", node, None, _SWAP_S)


def _client(deployed: Deployment, node: str, host: str | None) -> HostClient:
    from holdfast.cli.hosts import HostClient
    from holdfast.host.catalog import Catalog
    from holdfast.model.errors import UsageError

    # As it runs: the file of the application may just have been edited, but where a node runs has not changed.
    hosts = Catalog(deployed.load_app().diagram(), deployed).placement.replica_sets.get(node)
    if hosts is None or (host is not None and host not in hosts):
        where = "is in no application" if hosts is None else f"runs on {', '.join(hosts)}"
        raise UsageError(f"a node is tried where it runs; {node!r} {where} of {deployed.file.name}; check the name")
    return HostClient(deployed.host(host or hosts[0]), deployed.token())


def _call(client: HostClient, method: str, path: str, body: Any, timeout_s: float = 30.0) -> dict[str, Any]:
    import msgspec

    said: dict[str, Any] = msgspec.json.decode(client.call(method, f"/v1/trials/{path}", body, timeout_s=timeout_s))
    return said


def _watched(client: HostClient, node: str, seconds: float, said: dict[str, Any]) -> dict[str, Any]:
    """Ask until the time is over and something was compared, or the trial has failed."""
    from holdfast.clock import monotonic_us, pause
    from holdfast.model.time import SECOND_US

    begun = monotonic_us()
    while said["why"] is None:
        over_us = monotonic_us() - begun - round(seconds * SECOND_US)
        if over_us >= 0 and (said["buckets"] or over_us > 60 * SECOND_US):
            break
        pause(_EVERY_US)
        said = _call(client, "GET", node, None)
    return said


def _tell(session: Session, said: dict[str, Any]) -> None:
    if session.json:
        session.emit(**said)
        return
    print(f"{said['node']}: {said['from']} to {said['until']}: {said['buckets']} buckets, {said['differing']} differ")
    print(f"  rows: {said['live']} live, {said['trial']} trial; {said['equal']} equal, {said['changed']} changed, "
          f"{said['only_live']} only live, {said['only_trial']} only trial")  # fmt: skip
    if said["changed_columns"]:
        print(f"  changed: {', '.join(f'{name} in {n}' for name, n in said['changed_columns'].items())} rows "
              f"(key: {', '.join(('stime', *said['key']))})")  # fmt: skip
    if said["added"]:
        print(f"  new columns: {said['added']}")
    for kind, rows in said["shown"].items():
        for row in rows:
            fields = (f"{n}: {v[0]} -> {v[1]}" if isinstance(v, list) else f"{n}={v}" for n, v in row.items())
            print(f"  {_KINDS[kind]:<10}  {', '.join(fields)}")
        if said[kind] > len(rows):
            print(f"  {_KINDS[kind]:<10}  and {said[kind] - len(rows)} more")
    if not said["buckets"]:
        print("  nothing was complete in both yet: take longer (--for)")
