"""Tells hosts which links to cut or heal: what `fail` and `heal` share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

from holdfast.cli.hosts import HostClient, HostStatus, clients, statuses
from holdfast.cli.session import Session
from holdfast.host.catalog import Catalog
from holdfast.host.cuts import Cut, cuts_meant
from holdfast.host.deployment import Deployment
from holdfast.model.errors import PeerError

Verb = Literal["cut", "heal"]


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
