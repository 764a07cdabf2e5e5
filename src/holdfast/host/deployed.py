"""A host of a deployment, as a process of its own: what `holdfast host` runs.

It ends by SIGTERM, Ctrl-C or `POST /v1/stop`, and then stops its queries first. What it had committed is where its next
start goes on; so kill -9 loses nothing but time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.engine import Engine
from holdfast.host.archives import keep_archives
from holdfast.host.catalog import Catalog
from holdfast.host.console_routes import console_routes, facts_of, live_console, recorded_on
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.drain import Drain
from holdfast.host.embedded import spark_engine
from holdfast.host.host import Host
from holdfast.host.log_lines import set_up_logging
from holdfast.host.log_rotation import keep_bounded
from holdfast.host.measures import Measures
from holdfast.host.metrics_routes import metrics_routes
from holdfast.host.otlp_push import otlp_push
from holdfast.host.parcel_routes import parcel_routes
from holdfast.host.reload import Reload
from holdfast.host.service import Door, Service
from holdfast.host.sinks import sinks_on
from holdfast.host.sources import sources_on
from holdfast.host.trial import Trials
from holdfast.inputs.credentials import Keyring
from holdfast.inputs.network import Access
from holdfast.metrics.sheet import Sheet

log = logging.getLogger(__name__)


class Extension(Protocol):
    """Something that runs beside the nodes of a host, and answers for itself."""

    def doors(self) -> Sequence[Door]:
        """What it answers."""

    def measure(self, sheet: Sheet) -> None:
        """What it can be measured by."""

    def overview(self) -> dict[str, Any]:
        """What the console shows of it."""

    async def run(self) -> None:
        """Until cancelled."""

    async def close(self) -> None:
        """Let go of what it holds, after all replicas have."""


def run_host(
    deployment: Deployment, name: str, extend: Callable[[Host], Extension] | None = None, engine: Engine | None = None
) -> None:
    """Be the host `name` until told to stop. Spark runs its nodes, unless another engine is given."""
    set_up_logging()
    asyncio.run(_run(deployment, name, extend, engine))


async def _run(
    deployment: Deployment, name: str, extend: Callable[[Host], Extension] | None, engine: Engine | None
) -> None:
    spec, app, keys = deployment.host(name), deployment.load_app(), deployment.keyring()
    catalog = Catalog(app.diagram(), deployment)
    if engine is None:
        nodes, settings = [node.name for node in catalog.nodes_on(name)], deployment.spark_settings(spec)
        engine = spark_engine(f"{app.name}@{name}", nodes, master=spec.master, **settings)
    host = Host(name, catalog, spec.root, engine, deployment.peer_file().current, sources_on(name, app, deployment))
    sinks = sinks_on(name, app, deployment, catalog)
    extension = None if extend is None else extend(host)
    measures = Measures(host, sinks.status) if extension is None else Measures(host, sinks.status, extension.measure)

    def status() -> dict[str, Any]:
        return {**host.status(), "sinks": sinks.status()}

    console = live_console(
        name, catalog, lambda: {**status(), "load": None if extension is None else extension.overview()}, host.store
    )

    def adopted(catalog: Catalog) -> None:
        console.adopt(facts_of(name, catalog), recorded_on(name, catalog))

    reload = Reload(host, deployment, app, adopted)
    extended = () if extension is None else extension.doors()
    service = Service(
        host.serving, _access(spec, keys), deliver=host.deliver, fault=host.fault, stop=host.stop,
        status=status, answers=host.answers, report=host.report, cuts=host.cuts,
        doors=(*console_routes(console), *metrics_routes(host, measures), *parcel_routes(host),
               *reload.doors(), *Drain(host).doors(), *Trials(host, reload).doors(), *extended),
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    for end in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(end, host.stop)
    await service.start()
    log.info("host %s answers at %s; its streams are below %s", name, service.address, spec.root)
    bounded = asyncio.ensure_future(keep_bounded(spec.log_file))
    host.attend(console.run())
    host.attend(keep_archives(host.store, deployment.archives))
    if (push := otlp_push(name, measures.sheet)) is not None:
        host.attend(push.run())
    if extension is not None:
        host.attend(extension.run())
    sinks.start()
    try:
        await host.run()
    finally:
        await loop.run_in_executor(None, sinks.stop)
        bounded.cancel()
        await service.close()
        measures.close()
        if extension is not None:
            await extension.close()
        log.info("host %s stopped", name)


def _access(spec: HostSpec, keys: Keyring) -> Access:
    tls = spec.tls
    return Access(spec.ip, spec.port, None, tls.certificate if tls else None, tls.key if tls else None, keys, spec.mesh)
