"""Links that are cut on purpose: how they are written, and which hosts are told; what `fail` and `heal` share.

    a-b           everything between the hosts a and b, both ways; both are told
    monitor3>a    the stream monitor3 no longer reaches host a; a is told
    monitor3      the same for every host that reads it; becomes monitor3>HOST for each of them

Rules:
1. A host is told links in the first two forms only, and only those that concern it.
2. If a text could mean a pair of hosts and a stream, it means the hosts; `stream>host` always means the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from holdfast.cli.hosts import HostClient, HostStatus, clients, statuses
from holdfast.cli.session import Session
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment
from holdfast.model.errors import PeerError, UsageError

Verb = Literal["cut", "heal"]


@dataclass(frozen=True, slots=True)
class Cut:
    """One link, in its one spelling."""

    hosts: tuple[str, ...]
    """Who has to know: both ends, or the reader."""
    stream: str | None = None
    """The stream that no longer arrives; None: nothing does."""

    @property
    def text(self) -> str:
        return "-".join(self.hosts) if self.stream is None else f"{self.stream}>{self.hosts[0]}"


def cuts_meant(text: str, hosts: tuple[str, ...], catalog: Callable[[], Catalog]) -> tuple[Cut, ...]:
    """The links that a text names. The catalog is asked for only if it names a stream: that runs the application."""
    pairs = [Cut((a, b)) for i, a in enumerate(hosts) for b in hosts[i + 1 :] if text in (f"{a}-{b}", f"{b}-{a}")]
    if len(pairs) == 1:
        return tuple(pairs)
    if pairs:
        raise UsageError(
            f"the link {text!r} must name two hosts; it can be read as {' or as '.join(str(p.hosts) for p in pairs)}; "
            "rename a host"
        )
    stream, arrow, host = text.partition(">")
    known = catalog()
    if stream not in known.diagram.streams or (arrow and host not in hosts):
        raise UsageError(
            f"a link must be HOST-HOST, STREAM>HOST or STREAM; got {text!r}; hosts are {', '.join(hosts)}, streams are "
            f"{', '.join(known.diagram.streams)}"
        )
    readers = known.reading_hosts(stream)
    if arrow and host not in readers:
        raise UsageError(
            f"the link {text!r} is not there: nobody on {host!r} reads {stream!r}; it is read on "
            f"{', '.join(readers) or 'no host'}"
        )
    if not readers:
        raise UsageError(f"the link {text!r} is not there: no host reads {stream!r}; name a stream that a node reads")
    return tuple(Cut((reader,), stream) for reader in ((host,) if arrow else readers))


def tell_links(session: Session, deployment: Deployment, links: Sequence[str], verb: Verb) -> None:
    """Cut or heal these links. Every text is understood before the first host is told."""

    @cache
    def catalog() -> Catalog:
        return Catalog(deployment.load_app().diagram(), deployment)

    hosts = tuple(host.name for host in deployment.hosts)
    meant: dict[Cut, None] = {}
    for link in links:
        meant |= dict.fromkeys(cuts_meant(link, hosts, catalog))
    wanted = {name: [cut.text for cut in meant if name in cut.hosts] for name in hosts}
    names = [name for name in hosts if wanted[name]]
    failed = _tell(clients(deployment, names), wanted, verb)
    for cut in meant:
        told = [name for name in cut.hosts if name not in failed]
        if told:
            session.say(f"{_DONE[verb]} {cut.text} (told {' and '.join(told)})", link=cut.text, done=verb, told=told)
    _complain(failed)


def heal_all(session: Session, deployment: Deployment) -> None:
    """Heal whatever the hosts say is cut."""
    asked = clients(deployment)
    answers = dict(zip((client.spec.name for client in asked), statuses(asked), strict=True))
    wanted = {name: list(a.cuts) for name, a in answers.items() if isinstance(a, HostStatus) and a.cuts}
    failed = {name: answer for name, answer in answers.items() if isinstance(answer, PeerError)}
    failed |= _tell([client for client in asked if client.spec.name in wanted], wanted, "heal")
    for link in dict.fromkeys(text for texts in wanted.values() for text in texts):
        told = [name for name, texts in wanted.items() if link in texts and name not in failed]
        if told:
            session.say(f"healed {link} (told {' and '.join(told)})", link=link, done="heal", told=told)
    if not wanted and not failed:
        session.say("nothing is cut", done="heal", told=[])
    _complain(failed)


_DONE = {"cut": "cut", "heal": "healed"}


def _tell(told: Sequence[HostClient], wanted: dict[str, list[str]], verb: Verb) -> dict[str, PeerError]:
    """Tell each host its links; the hosts that could not be told."""
    failed = {}
    for client in told:
        links = wanted[client.spec.name]
        try:
            client.faults(**{verb: links})
        except PeerError as error:
            failed[client.spec.name] = error
    return failed


def _complain(failed: dict[str, PeerError]) -> None:
    if failed:
        raise PeerError("; ".join(map(str, failed.values())))
