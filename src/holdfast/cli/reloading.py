"""Has hosts that run read an edited file again (`holdfast up`), so that new ones find themselves known when they start.

Rules:
1. Every host of the file that runs is told, also one of another machine: it reads its own copy of the file. One that
   comes to another result than we do has another copy, and that is said.
2. Who only gets to know others is told first, who gets replicas last: what these need is then kept for them.
3. A host that is gone from the file is stopped when all others know. On another machine that is left to its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.cli.ending import ENDINGS, ask, end
from holdfast.cli.hosts import HostClient, HostStatus
from holdfast.cli.launch import answers, is_local
from holdfast.cli.running import holder
from holdfast.clock import monotonic_us, pause
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.envelope import UNREADABLE
from holdfast.model.errors import PeerError

#: A host runs the application's file and stops what is gone: with Spark, some seconds each.
_RELOAD_S = 120.0
_EVERY_US = 200_000


class Gone(msgspec.Struct, frozen=True):
    """A host that is not in the file any more, as the others knew it."""

    address: str
    root: str


class Reloaded(msgspec.Struct, frozen=True):
    """What a host says after it has read the file again."""

    host: str
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    gone: dict[str, Gone] = {}
    placed: dict[str, tuple[str, ...]] = {}

    @property
    def changed(self) -> bool:
        return bool(self.started or self.stopped or self.later)


def running_hosts(deployment: Deployment) -> dict[str, HostStatus]:
    """Those of the file that run, and how they do."""
    token, found = deployment.token(), {}
    for spec in deployment.hosts:
        try:
            found[spec.name] = HostClient(spec, token).status()
        except PeerError:
            if is_local(spec) and holder(spec) is not None:
                raise  # It runs and does not answer: nothing may be started beside it.
    return found


def reload_all(deployment: Deployment, catalog: Catalog, running: Mapping[str, HostStatus]) -> list[Reloaded]:
    """Rules 1 and 2."""

    def gets_replicas(host: str) -> bool:
        return bool({node.name for node in catalog.nodes_on(host)} - {r.node for r in running[host].replicas})

    token, placed, told = deployment.token(), catalog.placement.replica_sets, []
    for host in sorted(running, key=gets_replicas):
        client = HostClient(deployment.host(host), token)
        try:
            said = msgspec.json.decode(client.call("POST", "/v1/reload", {}, timeout_s=_RELOAD_S), type=Reloaded)
        except UNREADABLE as error:
            raise PeerError(f"host {host!r} answers, but not as a host does: {error}; upgrade it") from None
        if said.placed != placed:
            raise PeerError(
                f"host {host!r} has another file: it would run {said.placed}, not {dict(placed)}; copy "
                f"{deployment.file.name} and the application to its machine and run `holdfast up` again"
            )
        told.append(said)
    return told


def stop_gone(deployment: Deployment, told: Sequence[Reloaded], wait_us: int) -> dict[str, str]:
    """Rule 3: how each has ended."""
    gone: dict[str, Gone] = {}
    for said in told:
        gone |= said.gone
    ended = {}
    for name, known in gone.items():
        ip, _, port = known.address.rpartition(":")
        spec = HostSpec(name, ip.strip("[]"), int(port), Path(known.root))
        if not is_local(spec) or holder(spec) is None:
            ended[name] = "is not in the file any more; stop it on its machine, if it runs"
            continue
        how = end(ask(HostClient(spec, deployment.token())), wait_us)
        ended[name] = f"is not in the file any more; {ENDINGS.get(how, how)}"
    return ended


class Stuck(NamedTuple):
    """Sentences about replicas that do not run."""

    failed: list[str]
    """They stay so until somebody mends what the sentence names."""
    waiting: list[str]
    """They go on trying."""

    def check(self) -> None:
        """Raise if there are any."""
        if self.failed or self.waiting:
            ends = "what has FAILED stays so until that is mended: then `holdfast down` and `holdfast up`"
            if not self.failed:
                ends = "it goes on trying; `holdfast down` stops it"
            raise PeerError(f"{'; '.join([*self.failed, *self.waiting])}; its host is up; {ends}")


def wait_for(deployment: Deployment, told: Sequence[Reloaded], wait_us: int, progress: Callable[[str], None]) -> Stuck:
    """Until the new replicas serve, or can only wait for inputs; sentences about those that do not."""
    begun, token, said_last = monotonic_us(), deployment.token(), ""
    while True:
        waiting, failed = [], []
        for said in (said for said in told if said.started):
            for replica in HostClient(deployment.host(said.host), token).status().replicas:
                if replica.replica not in said.started:
                    continue
                if replica.state == "FAILED":
                    failed.append(f"replica {replica.replica} does not run: {replica.why}")
                elif not answers(replica) and replica.waits_for != "inputs":
                    waiting.append(f"{replica.replica}: {replica.why or replica.state}")
        if not waiting or monotonic_us() - begun > wait_us:
            return Stuck(failed, [f"replica {text}" for text in waiting])
        if (text := "; ".join(waiting)) != said_last:
            said_last = text
            progress(text)
        pause(_EVERY_US)
