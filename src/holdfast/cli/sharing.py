"""Speaks to the hosts of a deployment that share load: what `load`, `contracts` and `move` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.cli.hosts import HostClient, clients
from holdfast.host.deployment import Deployment
from holdfast.host.envelope import UNREADABLE
from holdfast.model.errors import PeerError, UsageError


def sharing_hosts(deployment: Deployment) -> list[HostClient]:
    """The hosts that have contracts."""
    names = [spec.name for spec in deployment.hosts if spec.load is not None]
    if not names:
        raise UsageError(
            f"no host of {deployment.file} shares load; give one a file with its contracts: load: FILE "
            "(docs/load-sharing.md shows it)"
        )
    return clients(deployment, names)


def ask(asked: Sequence[HostClient], path: str) -> list[Any]:
    """What each host says; a `PeerError` in place of who does not answer."""
    answers: list[Any] = []
    for client in asked:
        try:
            answers.append(msgspec.json.decode(client.call("GET", path)))
        except (PeerError, *UNREADABLE) as error:
            answers.append(PeerError(str(error)))
    return answers


def somebody(answers: Sequence[Any]) -> Sequence[Any]:
    """The same answers; `PeerError` if nobody has answered."""
    if all(isinstance(answer, PeerError) for answer in answers):
        raise PeerError("; ".join(map(str, answers)))
    return answers


def place(client: HostClient, node: str, to: str) -> str:
    """Have a node moved; what the host says about it."""
    return str(msgspec.json.decode(client.call("POST", "/v1/move", {"node": node, "to": to})).get("said", ""))
