"""Ends hosts: asks, waits, insists.

Rules:
1. A host is asked over HTTP first. One that does not end gets SIGTERM, and one that does not heed that gets SIGKILL.
2. Signals go to the process that holds the lock of the host's pid file, and to no other (see `running`).
3. Of a host on another machine all we know is what its address answers.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from holdfast.cli.hosts import HostClient, Unreachable
from holdfast.cli.launch import is_local
from holdfast.cli.running import Running, holder
from holdfast.clock import monotonic_us, pause
from holdfast.model.errors import PeerError
from holdfast.model.time import SECOND_US

#: A host that was asked and does not end gets so long after SIGTERM: Spark ends in a few seconds, on a busy machine in
#: several times that. SIGKILL needs no consent, only time to be carried out.
_TERM_US = 20 * SECOND_US
_KILL_US = 10 * SECOND_US
_EVERY_US = 100_000

#: How a host can have ended, for programs and for people.
ENDINGS = {
    "absent": "was not up",
    "stopped": "stopped",
    "terminated": "ended by SIGTERM, because it did not stop when asked",
    "killed": "ended by SIGKILL, because it did not heed SIGTERM",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A host that was asked to stop, and what it said to that."""

    client: HostClient
    running: Running | None
    refusal: PeerError | None


def ask(client: HostClient) -> Asked:
    """Ask first, so that all hosts end at the same time."""
    running = Running.find(client.spec)
    try:
        client.stop()
    except PeerError as error:
        return Asked(client, running, error)
    return Asked(client, running, None)


def end(asked: Asked, wait_us: int) -> str:
    """How it ended; a word of `ENDINGS`, or a sentence if it did not."""
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


def _end_afar(asked: Asked, wait_us: int) -> str:
    """Without a process to be seen, all we know is what the address answers."""
    if isinstance(asked.refusal, Unreachable) and is_local(asked.client.spec) and holder(asked.client.spec) is None:
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
