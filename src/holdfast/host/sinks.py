"""The sinks of an application and of its deployment file, run beside its nodes: each in a thread of its own.

Rules:
1. In one process they read the logs; on a host of a deployment they read over the network, from whichever replica is
   best, so that the host's own replica may fail like any other.
2. A sink runs on the host that the deployment names for it, or else on the first that produces its stream. It has one
   writer: if two hosts run it after a change of the file, the target lets the later one go on.
3. A sink that has failed for good is told as a failed node is; it stops nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.diagram import Application
from holdfast.host.catalog import Catalog, placed_sinks
from holdfast.host.connection import Connection, connect
from holdfast.host.deployment import Deployment
from holdfast.sinks.runner import LocalOrigin, Origin, Reader, SinkRunner
from holdfast.sinks.sink import SinkSpec
from holdfast.stream.definition import Definition
from holdfast.stream.store import StreamStore
from holdfast.stream.subscriber import Start


class NetworkOrigin:
    """A stream of a deployment, wherever it is produced."""

    def __init__(self, deployment: Deployment, stream: str) -> None:
        self._deployment, self._stream = deployment, stream
        self._connection: Connection | None = None

    def definition(self) -> Definition:
        return self._connected.definition(self._stream, all_columns=True)

    def subscribe(self, *, after: str | None, start: Start, tentative: bool, name: str | None) -> Reader:
        return self._connected.subscribe(
            self._stream, after=after, start=start, tentative=tentative, name=name, all_columns=True
        )

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._deployment.file)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Sinks:
    """Some sinks at work."""

    def __init__(self, runners: Iterable[tuple[SinkRunner, Origin]] = ()) -> None:
        self._runners = tuple(runners)

    def start(self) -> None:
        for runner, _ in self._runners:
            runner.start()

    def stop(self) -> None:
        """All are told before the first is waited for."""
        for runner, _ in self._runners:
            runner.tell_stop()
        for runner, origin in self._runners:
            runner.stop()
            origin.close()

    @property
    def ended(self) -> bool:
        """Whether each holds all that its stream will ever say, or has failed for good."""
        return all(runner.ended or runner.failure is not None for runner, _ in self._runners)

    def failures(self) -> dict[str, str]:
        """Sinks that have failed for good, and why."""
        return {f"sink {r.name}": r.failure for r, _ in self._runners if r.failure is not None}

    def status(self) -> list[dict[str, Any]]:
        return [runner.status() for runner, _ in self._runners]


def embedded_sinks(app: Application) -> Sinks:
    """Those of an application in one process."""
    store = StreamStore(app.root)
    return Sinks(_made(spec, LocalOrigin(store, spec.stream)) for spec in app.sinks)


def sinks_on(host: str, app: Application, deployment: Deployment, catalog: Catalog) -> Sinks:
    """Rule 2."""
    here = [placed.spec for placed in placed_sinks(app, catalog).values() if placed.host == host]
    return Sinks(_made(spec, NetworkOrigin(deployment, spec.stream)) for spec in here)


def _made(spec: SinkSpec, origin: Origin) -> tuple[SinkRunner, Origin]:
    return SinkRunner(spec.name, spec.stream, origin, spec.sink, start=spec.start, subscriber=spec.name), origin
