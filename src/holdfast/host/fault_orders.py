"""Cuts and heals links of a host on purpose, as `holdfast fail` and `holdfast heal` order it: `a-b` between hosts,
`stream>host` for one stream's way to one host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from holdfast.host.host import Host


class _Fault(msgspec.Struct, forbid_unknown_fields=True):
    cut: list[str] = []
    heal: list[str] = []


def carry_out(host: Host, order: dict[str, Any]) -> dict[str, Any]:
    """Cut and heal; all of it, or nothing if a link is none of this host's."""
    try:
        wish = msgspec.convert(order, _Fault)
    except msgspec.ValidationError as error:
        raise UsageError(f"a fault must be {{cut: [LINK, …], heal: [LINK, …]}}; {error}") from None
    heal, cut = ([_other_end(host, text) for text in links] for links in (wish.heal, wish.cut))
    for name in heal:
        host.cuts.heal(name)
    for name in cut:
        host.cuts.cut(name)
    return {"cuts": links_cut(host)}


def links_cut(host: Host) -> list[str]:
    """As they were ordered, so that whoever reads them can order them healed."""
    hosts, links = host.catalog.hosts, []
    for name in host.cuts.names:
        between = sorted((host.name, name), key=hosts.index) if name in hosts else None
        links.append("-".join(between) if between else f"{name}>{host.name}")
    return links


def _other_end(host: Host, text: str) -> str:
    """What a link leads to, seen from here."""
    stream, arrow, there = text.partition(">")
    if arrow and there == host.name:
        return stream
    for other in host.catalog.hosts:
        if text in (f"{host.name}-{other}", f"{other}-{host.name}"):
            return other
    raise UsageError(f"host {host.name} has no link {text!r}; use HOST-HOST or STREAM>{host.name}")
