"""An application in one process: every node once, all streams in one folder, no network.

running = app.start()
...
running.stop()

With `console=True` there is a page as well, for browsers on this machine that know the token.

A node of a folder runs once: the writers of two would take the streams from each other for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.clock import monotonic_us, pause
from holdfast.engine import Engine
from holdfast.host.catalog import HERE, Catalog
from holdfast.host.console_routes import console_routes, live_console
from holdfast.host.host import Host
from holdfast.host.measures import Measures
from holdfast.host.metrics_routes import LocalMetrics
from holdfast.host.process_lock import claimed, holder
from holdfast.host.service import Service
from holdfast.host.sinks import embedded_sinks
from holdfast.inputs.network import Access
from holdfast.model.errors import UsageError
from holdfast.model.time import duration_us
from holdfast.stream.store import StreamStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.app import App

log = logging.getLogger(__name__)

T = TypeVar("T")
_POLL_US = 20_000
#: How often whoever asks looks whether there is still somebody to answer.
_ANSWER_S = 0.2


class ConsoleAddress(NamedTuple):
    """Where the page of an application is, and what to type there."""

    url: str
    token: str


class Running:
    """An application at work, in a thread of this process."""

    def __init__(self, app: App, engine: Engine, console: bool | int = False, metrics_port: int | None = None) -> None:
        if metrics_port is not None and not 0 <= metrics_port <= 0xFFFF:
            raise UsageError(f"metrics_port must be a port, 0 for any that is free; got {metrics_port}")
        self._app, self._engine = app, engine
        self._console_port = None if console is False else 0 if console is True else console
        self._console: ConsoleAddress | None = None
        #: Where `/metrics` is served, on loopback; the real port, also when 0 was asked for.
        self.metrics_port = metrics_port
        self._loop = asyncio.new_event_loop()
        self._host: Host | None = None
        self._ready = threading.Event()
        self._trouble: BaseException | None = None
        self._sinks = embedded_sinks(app)
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{app.name}", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._check()
        self._wait_until_set_up()
        self._sinks.start()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as claims, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                self._claim(claims)
                runner.run(self._run_host())
        except BaseException as error:
            if self._ready.is_set():  # Nobody waits for the start any more, and maybe nobody will ask again.
                log.error("application %s has ended: %s", self._app.name, error)
            self._trouble = error
        finally:
            self._ready.set()

    def _claim(self, claims: contextlib.ExitStack) -> None:
        """Let nobody else run these nodes, and refuse to where somebody does."""
        root = self._app.root
        own = root / ".holdfast"
        if (pid := holder(own / "host.pid")) is not None:
            raise UsageError(
                f"a host of a deployment (pid {pid}) runs its nodes in {root}; give application "
                f"{self._app.name!r} another root, or stop that host with `holdfast down`"
            )
        for node in self._app.diagram().nodes:
            claims.enter_context(claimed(own / "running" / node.name, partial(_runs_already, node.name, root)))

    async def _run_host(self) -> None:
        catalog, sources = Catalog(self._app.diagram()), self._app.sources
        self._host = Host(HERE, catalog, self._app.root.absolute(), self._engine, sources=sources)
        async with contextlib.AsyncExitStack() as beside:
            if self.metrics_port is not None:
                served = LocalMetrics(self._host, Measures(self._host, self._sinks.status), self.metrics_port)
                self.metrics_port = served.port
                beside.push_async_callback(served.close)
                await served.start()
            if self._console_port is not None:
                service = await self._serve_console(self._host, self._console_port)
                beside.push_async_callback(service.close)
            await self._host.run(self._ready.set)

    async def _serve_console(self, host: Host, port: int) -> Service:
        def status() -> dict[str, Any]:
            return {**host.status(), "sinks": self._sinks.status()}

        token = secrets.token_urlsafe(16)
        console = live_console(HERE, host.catalog, status, host.store)
        service = Service(
            host.serving, Access(port=port, token=token), deliver=host.deliver, fault=host.fault, stop=host.stop,
            status=status, answers=host.answers, report=host.report, cuts=host.cuts, doors=console_routes(console),
        )  # fmt: skip
        await service.start()
        host.attend(console.run())
        self._console = ConsoleAddress(f"{service.address}/console", token)
        return service

    def _wait_until_set_up(self) -> None:
        """A mistake in a node is said where it was started."""
        try:
            while self._in_loop(lambda host: host.setting_up or host.sources.starting):
                pause(_POLL_US)
            self._check_nodes()
        except BaseException:
            with contextlib.suppress(Exception):  # The first reason is the one that counts.
                self.stop()
            raise

    def _check_nodes(self) -> None:
        """Raise if a node has failed for good."""
        for replica, why in self._in_loop(lambda host: host.failures()).items():
            raise UsageError(f"{replica} does not run: {why}")
        for stream, why in self._in_loop(lambda host: host.sources.failures()).items():
            raise UsageError(f"the source of stream {stream} does not run: {why}")

    def _check(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    @property
    def streams(self) -> StreamStore:
        """Where the application's streams lie."""
        return StreamStore(self._app.root)

    @property
    def console(self) -> ConsoleAddress | None:
        """Where the page is and what to type there; None without one."""
        return self._console

    def status(self) -> dict[str, Any]:
        """States, positions and forks of all nodes; how far sinks are."""
        self._check()
        return {**self._in_loop(lambda host: host.status()), "sinks": self._sinks.status()}

    def fail(self, stream: str) -> None:
        """Cut a stream off from the nodes that read it, to see what happens."""
        self._check_stream(stream)
        self._in_loop(lambda host: host.cuts.cut(stream))

    def heal(self, stream: str) -> None:
        """Let a stream through again."""
        self._check_stream(stream)
        self._in_loop(lambda host: host.cuts.heal(stream))

    def _check_stream(self, stream: str) -> None:
        known = self._app.diagram().streams
        if stream not in known:
            raise UsageError(f"no stream {stream!r} in application {self._app.name!r}; there are: {', '.join(known)}")

    def wait_until_stable(self, timeout: str | int | float = "60s") -> None:
        """Return once every node is STABLE; raise if that takes too long, or will never be."""
        deadline = monotonic_us() + duration_us(timeout)
        while True:
            self._check_nodes()
            replicas = self.status()["replicas"]
            if all(replica["state"] == "STABLE" for replica in replicas):
                return
            if monotonic_us() > deadline:
                states = "; ".join(f"{r['replica']} is {r['state']}{_because(r)}" for r in replicas)
                raise TimeoutError(f"the nodes were not all STABLE within {timeout}: {states}")
            pause(_POLL_US)

    def watch(self) -> None:
        """Stay until all inputs have ended, every node has given what follows from them and every sink has taken it, or
        until interrupted; raise when no node can go on, and in the end if a sink could not."""
        told: set[str] = set()
        while not self._in_loop(lambda host: host.ended) or not self._sinks.ended:
            failures, nodes = self._in_loop(lambda host: (host.failures(), len(host.status()["replicas"])))
            sources = self._in_loop(lambda host: host.sources.failures())
            for replica in failures.keys() - told:
                log.error("%s does not run: %s", replica, failures[replica])
            told |= failures.keys()
            if (failures and len(failures) == nodes) or sources:
                self._check_nodes()
            pause(200_000)
        for sink, why in self._sinks.failures().items():
            raise UsageError(f"{sink} has stopped: {why}")

    def _in_loop(self, ask: Callable[[Host], T]) -> T:
        """Ask in the loop's own thread. A loop that has ended, or ends before it gets to it, answers nobody."""
        answer: Future[T] = Future()

        def asked() -> None:
            assert self._host is not None
            try:
                answer.set_result(ask(self._host))
            except BaseException as error:
                answer.set_exception(error)

        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(asked)
        while True:
            try:
                return answer.result(timeout=_ANSWER_S)
            except TimeoutError:
                if answer.done():
                    raise
                if not self._thread.is_alive():
                    self._check()
                    raise UsageError(f"application {self._app.name!r} was stopped; start it again to ask") from None

    def stop(self) -> None:
        """Stop all queries and sinks; the next start goes on where they were."""
        self._sinks.stop()
        if self._thread.is_alive():
            assert self._host is not None
            with contextlib.suppress(RuntimeError):  # It has just ended by itself.
                self._loop.call_soon_threadsafe(self._host.stop)
            self._thread.join()
        self._check()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    app: App,
    *,
    spark: SparkSession | None = None,
    engine: Engine | None = None,
    console: bool | int = False,
    metrics_port: int | None = None,
    **settings: str,
) -> Running:
    """Run the application in this process; `settings` go to the SparkSession that is made if none is given. Another
    `engine` runs the nodes without Spark. With `metrics_port` it can be asked there how it does."""
    if engine is None:
        engine = spark_engine(app.name, [node.name for node in app.diagram().nodes], spark=spark, **settings)
    running = Running(app, engine, console, metrics_port)
    if running.console is not None:
        print(f"console: {running.console.url} (token: {running.console.token})", flush=True)
    return running


def run(
    app: App,
    *,
    spark: SparkSession | None = None,
    engine: Engine | None = None,
    console: bool | int = False,
    metrics_port: int | None = None,
    **settings: str,
) -> None:
    """Run the application until its inputs have ended, or until Ctrl-C."""
    logging.getLogger("holdfast").setLevel(logging.INFO)
    with start(app, spark=spark, engine=engine, console=console, metrics_port=metrics_port, **settings) as running:
        try:
            running.watch()
        except KeyboardInterrupt:
            log.info("stopping %s", app.name)


def _runs_already(node: str, root: Path, pid: int) -> str:
    here = "in this process" if pid == os.getpid() else f"in process {pid}"
    return f"node {node} of {root} runs {here} already; stop that application first, or give this one another root"


def _because(replica: dict[str, Any]) -> str:
    return f", because {replica['why']}" if replica.get("why") else ""


def spark_engine(
    name: str, nodes: Sequence[str], *, spark: SparkSession | None = None, master: str | None = None, **settings: str
) -> Engine:
    """The engine that runs nodes unless somebody brings another. Nothing else of a host knows Spark."""
    from holdfast.spark.engine import SparkEngine, node_session

    return SparkEngine(lambda: spark or node_session(name, nodes, master=master, **settings))
