"""holdfast upgrade"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Root, Session
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, duration_us, instant_text, instant_us
from holdfast.stream.identity import Refused, Upgrade, read_refused, write_upgrade
from holdfast.stream.store import StreamStore


def command(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node whose start was refused.")],
    since: Annotated[
        str | None, typer.Option("--from", help="First result of the new definition: a time, or `end` of the output.")
    ] = None,
    replay: Annotated[
        str | None, typer.Option(help="How much input before it makes the fresh state, such as 10m; all, if not given.")
    ] = None,
    compatible: Annotated[bool, typer.Option("--compatible", help="I know that the old state fits.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Say what is to become of a node whose definition has changed; it happens at its next start.

    With --from it begins with a fresh state, and the stream's history says where its results change. Replicas must be
    given the same time: say it once for the root of each host.

    \b
    holdfast upgrade counts --from end
    holdfast upgrade counts --from 2026-03-01T12:00 --replay 10m
    holdfast upgrade counts --compatible
    """
    session = Session(root, json)
    if compatible == (since is not None) or (replay is not None and since is None):
        raise UsageError("say either --compatible, or --from with a time or `end`; --replay goes with --from")
    home = session.store.root / ".holdfast" / "nodes" / node
    refused = read_refused(home) if "/" not in node else None
    if refused is None:
        raise UsageError(
            f"no start of node {node} was refused below {session.store.root}; start it with its new definition first: "
            f"it says what has changed; or name another --root"
        )
    for line in refused.differences:
        session.say(line, node=node, difference=line)
    if compatible or since is None:
        write_upgrade(home, Upgrade(refused.identity.number, "compatible"))
        session.say(f"{node}: goes on with its state at the next start", node=node, what="compatible")
        return
    from_us = _from_us(session.store, refused, since)
    replay_us = None if replay is None else duration_us(replay)
    write_upgrade(home, Upgrade(refused.identity.number, "anew", from_us, replay_us))
    where = "the beginning" if from_us is None else instant_text(from_us)
    session.say(f"{node}: begins with a fresh state at the next start; results change at {where}", node=node,
                what="anew", results_change_at=where)  # fmt: skip


def _from_us(store: StreamStore, refused: Refused, text: str) -> int | None:
    """Where the results change: the begin of a bucket. None if there are no results yet."""
    reader = store.open(refused.output).reader()
    try:
        written_us = reader.boundary_us
    finally:
        reader.close()
    if text == "end":
        return written_us if written_us > BEGINNING_US else None
    from_us = -(-instant_us(text) // refused.bucket_us) * refused.bucket_us
    if from_us < written_us:
        raise UsageError(
            f"results of {refused.output} to {instant_text(written_us)} are stable and stay as they are; got --from "
            f"{text}; name that time, a later one, or `end`"
        )
    return from_us
