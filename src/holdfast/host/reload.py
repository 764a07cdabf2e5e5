"""Reads the deployment file again while a host runs: `holdfast up` after somebody has edited it.

Rules:
1. Hosts, sources' homes, replica sets and nodes may come and go. A replica that stays runs on; so does a host.
2. What a running replica or host cannot take over refuses the whole change, and nothing is changed: other options of a
   node that stays, another address or root of this host, a node that is taken out while it runs at a partner's.
3. The rest takes effect at the host's next start, and the answer says what: settings of Spark, contracts, archives,
   tokens and readers, what fills a source, and sinks. So do the functions of nodes that stay (`holdfast upgrade`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.diagram import Application, NodeSpec
from holdfast.host.catalog import Catalog, placed_sinks, replica_name
from holdfast.host.deployment import Deployment, HostSpec, load_deployment
from holdfast.host.host import Host
from holdfast.host.service import Door
from holdfast.host.sources import sources_on
from holdfast.model.errors import UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a host found in the file."""

    deployment: Deployment
    app: Application
    catalog: Catalog


class Reload:
    """The file of one host, as it was last read."""

    def __init__(
        self, host: Host, deployment: Deployment, app: Application, adopted: Callable[[Catalog], None]
    ) -> None:
        """`adopted` hears of a change when the host has carried it out."""
        self._host, self._known, self._adopted = host, _Read(deployment, app, host.catalog), adopted
        #: Whoever stops a node until `run` may start it again holds it meanwhile.
        self.lock = asyncio.Lock()

    def doors(self) -> list[Door]:
        return [Door("/v1/reload", "POST", self._reload)]

    @property
    def deployment(self) -> Deployment:
        return self._known.deployment

    async def _reload(self, request: Request) -> Response:
        return JSONResponse(await self.again())

    async def again(self) -> dict[str, Any]:
        async with self.lock:
            return await self.run()

    async def check(self, stopped: str) -> None:
        """Raise what `run` would raise now, if the node `stopped` did not run."""
        after = await asyncio.get_running_loop().run_in_executor(None, _read, self._known.deployment)
        _check(self._host.name, self._known, after, {stopped})

    async def run(self) -> dict[str, Any]:
        """Read the file and do as it says, under the lock; what has changed."""
        name, host, before = self._host.name, self._host, self._known
        after = await asyncio.get_running_loop().run_in_executor(None, _read, before.deployment)
        _check(name, before, after, host.drained)
        ran, runs = ({node.name for node in read.catalog.nodes_on(name)} for read in (before, after))
        for node in ran - runs:
            if node in host.absent:
                raise UsageError(f"node {node!r} runs at a partner's; take it back with `holdfast move` first")
        gone = [spec for spec in before.deployment.hosts if spec.name not in after.catalog.hosts]
        later = _later(name, before, after)
        await host.adopt(after.catalog)
        self._known = after
        self._adopted(after.catalog)
        started, stopped = sorted(runs - ran), sorted(ran - runs)
        if started or stopped or gone or later:
            log.info("host %s has read %s again: new here %s; gone from here %s; later %s", name, after.deployment.file,
                     started, stopped, later)  # fmt: skip
        return {
            "host": name, "started": [replica_name(node, name) for node in started],
            "stopped": [replica_name(node, name) for node in stopped], "later": later,
            "gone": {spec.name: {"address": spec.address, "root": str(spec.root)} for spec in gone},
            "placed": {node: list(hosts) for node, hosts in after.catalog.placement.replica_sets.items()},
        }  # fmt: skip


def _read(known: Deployment) -> _Read:
    deployment = load_deployment(known.file)
    app = deployment.load_app()
    return _Read(deployment, app, Catalog(app.diagram(), deployment))


def _check(name: str, before: _Read, after: _Read, stopped: Set[str]) -> None:
    """Rule 2. A node that is `stopped` here may have other options when it runs again."""
    file, hosts = after.deployment.file, after.catalog.hosts
    if name not in hosts:
        raise UsageError(f"host {name!r} is not in {file} any more; stop it, it has nothing to read there")
    for what in ("address", "root", "tls"):
        old, new = (getattr(read.deployment.host(name), what) for read in (before, after))
        if old != new:
            raise UsageError(
                f"the {what} of host {name!r}, which runs, must stay as it is in {file}; got {new} instead of {old}; "
                f"stop the host first, with the file as it was"
            )
    known = {node.name: node for node in before.catalog.diagram.nodes}
    for node in after.catalog.nodes_on(name):
        if node.name in known and node.name not in stopped and not same_but_function(known[node.name], node):
            raise UsageError(
                f"node {node.name!r} runs and must stay as it was declared; it has other options now; stop the hosts "
                f"that run it and start them again, or `holdfast upgrade`"
            )


def same_but_function(one: NodeSpec, other: NodeSpec) -> bool:
    """Whether both are declared alike. The function is compared with the state that it meets, when it next starts."""
    return replace(other, function=one.function, replicas=one.replicas) == one


def _later(name: str, before: _Read, after: _Read) -> list[str]:
    """Rule 3."""
    found = []
    old, new = (read.deployment.host(name) for read in (before, after))
    if _session(old) != _session(new):
        found.append("settings of Spark")
    if old.load != new.load:
        found.append("contracts")
    if dict(before.deployment.archives) != dict(after.deployment.archives):
        found.append("archives")
    if _known_to(before.deployment) != _known_to(after.deployment):
        found.append("tokens and readers")
    was, is_ = (sources_on(name, read.app, read.deployment) for read in (before, after))
    if was.keys() != is_.keys() or any(was[stream].source != is_[stream].source for stream in was):
        found.append("what fills a source")
    if _sinks(name, before) != _sinks(name, after):
        found.append("sinks")
    return found


def _sinks(name: str, read: _Read) -> dict[str, Any]:
    """Those of a host, with what the file says of each."""
    placed = placed_sinks(read.app, read.catalog)
    return {sink: read.deployment.described.get(sink) for sink in placed if placed[sink].host == name}


def _session(spec: HostSpec) -> tuple[Any, ...]:
    return spec.master, spec.spark


def _known_to(deployment: Deployment) -> tuple[Any, ...]:
    return deployment.token_file, deployment.view_token_file, deployment.peer_token_file, dict(deployment.readers)
