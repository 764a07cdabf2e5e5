"""holdfast down"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli.hosts import File, HostClient, Hosts, Unreachable, clients
from holdfast.cli.launch import is_local
from holdfast.cli.running import Running
from holdfast.cli.session import Json, Session
from holdfast.clock import monotonic_us, pause
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import PeerError
from holdfast.model.time import SECOND_US, duration_us

#: A host that was asked and does not end gets so long after SIGTERM: Spark ends in a few seconds, on a busy machine in
#: several times that. SIGKILL needs no consent, only time to be carried out.
_TERM_US = 20 * SECOND_US
_KILL_US = 10 * SECOND_US
_EVERY_US = 100_000


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
    session = Session(None, json)
    wait_us = duration_us(wait)
    deployment = load_deployment(file)
    asked = [_ask(client) for client in clients(deployment, host)]
    left = []
    for each in asked:
        how = _end(each, wait_us)
        session.say(f"{each.client.spec.name}: {_SAID.get(how, how)}", host=each.client.spec.name, how=how)
        if how not in _SAID:
            left.append(each.client.spec.name)
    if left:
        raise PeerError(f"could not stop {', '.join(left)}")


_SAID = {
    "absent": "was not up",
    "stopped": "stopped",
    "terminated": "ended by SIGTERM, because it did not stop when asked",
    "killed": "ended by SIGKILL, because it did not heed SIGTERM",
}


@dataclass(frozen=True, slots=True)
class _Asked:
    client: HostClient
    running: Running | None
    refusal: PeerError | None


def _ask(client: HostClient) -> _Asked:
    """Ask first, so that all hosts end at the same time."""
    running = Running.find(client.spec)
    try:
        client.stop()
    except PeerError as error:
        return _Asked(client, running, error)
    return _Asked(client, running, None)


def _end(asked: _Asked, wait_us: int) -> str:
    """How it ended; a word of `_SAID`, or a sentence if it did not."""
    running = asked.running
    if running is None:
        return _end_afar(asked, wait_us)
    try:
        if running.ended(wait_us if asked.refusal is None else 0):
            return "stopped"
        running.send(signal.SIGTERM)
        if running.ended(_TERM_US):
            return "terminated"
        running.send(signal.SIGKILL)
        return "killed" if running.ended(_KILL_US) else f"pid {running.pid} did not end after SIGKILL"
    finally:
        running.close()


def _end_afar(asked: _Asked, wait_us: int) -> str:
    """Without a process to be seen, all we know is what the address answers."""
    if isinstance(asked.refusal, Unreachable) and is_local(asked.client.spec):
        return "absent"
    if asked.refusal is not None:
        return f"{asked.refusal}; run `holdfast down` on its machine"
    begun = monotonic_us()
    while monotonic_us() - begun < wait_us:
        try:
            asked.client.status()
        except Unreachable:
            return "stopped"
        except PeerError:
            pass
        pause(_EVERY_US)
    return "was asked to stop and still answers; run `holdfast down` on its machine"
