"""Puts a load manager beside a host: what `holdfast host` does where the deployment names contracts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.host.app_file import load_app
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.host import Host
from holdfast.host.service import Door
from holdfast.load.contract_file import load_terms
from holdfast.load.contract_measures import measure
from holdfast.load.manager import LoadManager
from holdfast.load.remote_task import read_note
from holdfast.load.routes import doors_of, overview_of
from holdfast.metrics.sheet import Sheet
from holdfast.model.errors import UsageError


class Sharing:
    """A host that shares load: its manager, and what partners may ask of it."""

    def __init__(self, manager: LoadManager) -> None:
        self.manager = manager

    def doors(self) -> Sequence[Door]:
        return doors_of(self.manager)

    def measure(self, sheet: Sheet) -> None:
        measure(self.manager, sheet)

    def overview(self) -> dict[str, Any]:
        return overview_of(self.manager)

    async def run(self) -> None:
        await self.manager.run()

    async def close(self) -> None:
        await self.manager.close()


def load_manager(deployment: Deployment, spec: HostSpec) -> Callable[[Host], Sharing]:
    """What makes the manager once the host is there; everything that a user can get wrong is said before."""
    if spec.load is None:
        raise UsageError(f"host {spec.name!r} in {deployment.file} has no contracts; give it load: FILE")
    terms = load_terms(spec.load)
    for partner in terms.partners.values():
        partner.token()
    app = deployment.load_app() if terms.definitions is None else load_app(terms.definitions, terms.file.parent)
    return lambda host: Sharing(LoadManager(host, terms, app.diagram()))


def check_all_at_home(deployment: Deployment, spec: HostSpec) -> None:
    """A host that shares no load any more would run a node a second time that is still a partner's, and write over what
    came from there."""
    away = {path.parent.name: path for path in (spec.root / ".holdfast" / "nodes").glob("*/away")}
    known = {node.name for node in deployment.load_app().diagram().nodes} if away else set()
    for node in sorted(known & away.keys()):
        note = read_note(away[node].parent)
        assert note is not None
        raise UsageError(
            f"host {spec.name!r} in {deployment.file} must keep its load: FILE while {node} runs at {note.partner}'s "
            f"or has ended there ({away[node]}); put the line back, and take the node home with `holdfast move`"
        )
