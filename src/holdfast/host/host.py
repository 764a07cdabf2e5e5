"""A host: one process with one engine that runs replicas and serves their streams.

Rules:
1. One event loop runs everything: cores, mirrors, the HTTP service. Only the engine's work happens on other threads.
2. A replica is set up as soon as its inputs are known: streams of this host when they exist, others when their host
   answers. Nobody waits for a host that is down except those who read from it. Guests of other owners are set up in the
   same way (`holdfast.host.site`).
3. A host without nodes only serves the sources that lie on it, and starts no engine; one that takes guests does.
4. Streams lie below the root, everything else below `.holdfast` there.
5. A replica that a full disk or the like has stopped is set up again after a while, for as long as it takes: somebody
   will make room, and nobody should have to restart the others for that. So is one that could not be set up for such a
   reason, unless somebody waits for the start of an application: he is told. One that has nothing to go on from, or
   whose inputs no longer reach back, is rebuilt from a twin where there is one (`holdfast.host.rebuild`).
6. A host whose engine has ended ends as well: whoever watches processes can start it again, and nobody else could.
7. When the deployment changes, what it no longer places here stops, what is new is set up, and all others go on as they
   are, with the neighbours that they have now (`holdfast.host.reload`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoint.store_measures import by_store, deadlines
from holdfast.clock import monotonic_us
from holdfast.diagram import NodeSpec
from holdfast.engine import Engine, NodeQueries, create_output
from holdfast.host.catalog import Catalog, replica_name
from holdfast.host.checking import check_stripes
from holdfast.host.controller import Controller
from holdfast.host.fault_orders import carry_out, links_cut
from holdfast.host.fork_runner import HEALTH_US
from holdfast.host.intake import Intake
from holdfast.host.link import CutLink, Cuts, HttpLink, Link, LocalLink, Token
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.mirrored_intake import copies_of
from holdfast.host.network import Network, SourceVoice
from holdfast.host.rebuild import Rebuilding, sweep_parcels
from holdfast.host.replica_status import (
    SPARK_PLANS,
    SPARK_STARTS,
    TWIN_HANDS_OVER,
    Wait,
    cannot_be_set_up,
    drained,
    waiting,
)
from holdfast.host.site import OwnSite, Site
from holdfast.host.sources import Sources
from holdfast.host.stream_server import StreamServer
from holdfast.host.swap import finish_swap, swap_ordered
from holdfast.inputs.source import SourceSpec
from holdfast.model.errors import (
    CorruptLog,
    HoldfastError,
    InputLost,
    PeerError,
    StorageError,
    UnknownStream,
    UsageError,
    in_one_line,
)
from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import Message, StreamReport
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.store import Stream, StreamStore

log = logging.getLogger(__name__)

#: How often a replica looks at the world. What it adds to latency is half of it.
PULSE_S = 0.01
#: How long a replica that its surroundings have stopped is left alone (rule 5): each attempt starts a query.
RETURN_S = 30.0
#: Messages under way to one host at a time. A host that does not answer must not make more and more of them.
_UNDER_WAY_MAX = 16


class Replica(Protocol):
    """Whatever stands for a replica, as its host sees it: a controller of its queries, or somebody in its place."""

    @property
    def serves(self) -> bool:
        """Whether readers may be served (D12)."""

    @property
    def state(self) -> str:
        """A word of `holdfast status`."""

    def pulse(self) -> None:
        """Look at the world once."""

    def deliver(self, sender: str, message: Message) -> None:
        """A message came for this replica."""

    def report(self) -> StreamReport | None:
        """How its output does, as it would say in a keepalive reply; None: it says nothing (D12)."""

    def status(self) -> dict[str, Any]:
        """What `holdfast status` shows."""

    def stop_queries(self) -> None:
        """Stop what Spark runs for it. May take a moment; called on a thread of its own."""

    def close(self) -> None:
        """Let go of files and connections."""


class Host:
    """Runs what the catalog places on the host `name`. `engine` is started when it is first needed."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        root: Path,
        engine: Engine,
        token: Token | None = None,
        sources: Mapping[str, SourceSpec] | None = None,
    ) -> None:
        self.name, self.catalog, self.root, self.engine, self._token = name, catalog, root, engine, token
        self.store = StreamStore(root)
        self.cuts = Cuts()
        self.serving = StreamServer(self.store)
        self.sources = Sources(sources or {}, self.store, root / ".holdfast" / "sources")
        self.controllers: dict[str, Replica] = {}
        #: Nodes that run elsewhere (`holdfast.load`): somebody else stands for them here.
        self.absent: set[str] = set()
        #: Nodes that were stopped here because the host is to be taken down (`holdfast.host.drain`).
        self.drained: set[str] = set()
        self._voices: dict[str, SourceVoice] = {}
        self._network = Network(name, self.cuts, self._say_abroad)
        self._links: dict[str, Link] = {}
        self._under_way: dict[str, set[asyncio.Task[None]]] = {}
        self._started: asyncio.Future[None] | None = None
        self._setups: dict[str, asyncio.Task[None]] = {}
        #: Work beside the replicas that must not fail.
        self._attended: list[asyncio.Task[None]] = []
        #: What a node that is not set up yet waits for.
        self._waits: dict[str, Wait] = {}
        self._stopping = asyncio.Event()
        self.return_s = RETURN_S
        self._looked_us = 0
        self._pulsed_us: int | None = None
        #: Nodes that could not be set up, and why.
        self._refused: dict[str, str] = {}
        #: Whether the deployment was changed since the start: then nobody waits for one any more.
        self._adopted = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until `stop`."""
        self._speak_for_sources()
        nodes = [node for node in self.catalog.nodes_on(self.name) if node.name not in self.absent]
        self.sources.start(partial(self._started_engine, asyncio.get_running_loop()))
        try:
            if nodes:
                # What needs no engine is done while it starts: inputs are found, declared outputs are made.
                self._setups = {node.name: asyncio.ensure_future(self.set_up_own(node)) for node in nodes}
                await self.start_engine()
            ready()
            while not self._stopping.is_set():
                self._pulsed_us = monotonic_us()
                self._look_at_engine()
                for controller in list(self.controllers.values()):
                    controller.pulse()
                self._look_for_trouble()
                self._bring_back()
                await asyncio.sleep(PULSE_S)
        finally:
            await self._close()

    def _speak_for_sources(self) -> None:
        """Of the sources that lie here, to those who read them."""
        here = self.catalog.sources_on(self.name)
        for stream in [stream for stream in self._voices if stream not in here]:
            self._network.remove_source(replica_name(stream, self.name))
            self._voices.pop(stream).close()
        for stream in here:
            if stream in self._voices:
                self._voices[stream].replan(self.catalog.readers(stream))
            else:
                self._voices[stream] = SourceVoice(self.store, stream, self.catalog.readers(stream))
                self._network.add_source(replica_name(stream, self.name), self._voices[stream])

    async def adopt(self, catalog: Catalog) -> None:
        """The deployment was changed (rule 7). Whether what stays may stay as it is, is the caller's affair."""
        before, self.catalog = self.catalog, catalog
        self._adopted = True
        for host in list(self._links):
            if host not in catalog.hosts or (host != self.name and before.spec_of(host) != catalog.spec_of(host)):
                await self._links.pop(host).close()
        self._speak_for_sources()
        ran = {node.name for node in before.nodes_on(self.name)}
        runs = {node.name: node for node in catalog.nodes_on(self.name)}
        for name in ran - runs.keys():
            await self._remove(name)
        for name, node in runs.items():
            stand = self.controllers.get(replica_name(name, self.name))
            if name not in ran or name in self.drained:
                self.drained.discard(name)
                self._setups[name] = asyncio.ensure_future(self.set_up_own(node))
            elif isinstance(stand, Controller):
                stand.replan(catalog.plan_of(name, self.name, stand.plan.bucket_us))

    async def _remove(self, node: str) -> None:
        """It runs here no more. Its files stay: somebody may still want the stream."""
        setting_up = self._setups.pop(node, None)
        if setting_up is not None:
            setting_up.cancel()
            await asyncio.gather(setting_up, return_exceptions=True)
        self._refused.pop(node, None)
        self._waits.pop(node, None)
        self.drained.discard(node)
        await self.take_down(replica_name(node, self.name))

    async def drain(self, node: str) -> None:
        """It runs here no more, until the deployment is read again or the host starts anew."""
        await self._remove(node)
        self.drained.add(node)

    def resume(self, node: str) -> None:
        """It runs here again, as it is in the catalog, after `drain`."""
        self.drained.discard(node)
        self._setups[node] = asyncio.ensure_future(self.set_up_own(self.catalog.diagram.node(node)))

    def stop(self) -> None:
        """End `run` soon. Call it in the loop's thread."""
        self._stopping.set()

    def attend(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside everything else, until the host stops. If it fails, the host fails."""
        self._attended.append(asyncio.ensure_future(work))

    async def start_engine(self) -> None:
        """Once, when it is first needed, and again where that failed."""
        if self._started is None or (self._started.done() and self._started.exception() is not None):
            self._started = asyncio.get_running_loop().run_in_executor(None, self.engine.start)
        await asyncio.shield(self._started)

    def _started_engine(self, loop: asyncio.AbstractEventLoop) -> Engine:
        """For sources that need the engine, on their own threads."""
        asyncio.run_coroutine_threadsafe(self.start_engine(), loop).result()
        return self.engine

    def _look_at_engine(self) -> None:
        """Rule 6."""
        made = self._started
        if made is None or not made.done() or made.exception() is not None or monotonic_us() < self._looked_us:
            return
        self._looked_us = monotonic_us() + HEALTH_US
        if (why := self.engine.ended) is not None:
            raise PeerError(f"host {self.name!r} ends: {why}; nothing is lost that was committed; start again")

    def _look_for_trouble(self) -> None:
        """A node that cannot be set up is reported and left out: others may run here for weeks before its input comes
        and does not fit. Where nothing else runs, or somebody waits for the start, the host ends with the reason."""
        for task in self._attended:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        for name, task in self._setups.items():
            if name in self._refused or not task.done() or task.cancelled() or (error := task.exception()) is None:
                continue
            alone = len(self._refused) + 1 == len(self._setups) and not self._adopted
            if alone or self.catalog.deployment is None or not isinstance(error, Exception):
                raise error
            ours = isinstance(error, HoldfastError)
            why = str(error) if ours else f"it cannot be set up: {in_one_line(error)}"
            self._refused[name] = why
            ReplicaLog(log, replica_name(name, self.name)).error(
                "cannot be set up: %s", error, exc_info=None if ours else error
            )

    def _bring_back(self) -> None:
        """Rule 5."""
        returning = {r: c for r, c in self.controllers.items() if isinstance(c, Controller) and c.may_return}
        for node in self.catalog.nodes_on(self.name) if returning else ():
            controller, before = returning.get(replica_name(node.name, self.name)), self._setups.get(node.name)
            if controller is not None and (before is None or before.done()):
                self._setups[node.name] = asyncio.ensure_future(self._set_up_again(node, controller))

    async def _set_up_again(self, node: NodeSpec, failed: Controller) -> None:
        closed = False
        rebuild = failed.lacks_input
        pause_s = 0.0 if rebuild else self.return_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self.return_s
            try:
                if not closed:
                    await asyncio.get_running_loop().run_in_executor(None, failed.stop_queries)
                    failed.close()
                    closed = True
                await self.set_up(OwnSite(self, node), rebuild=rebuild)
                return
            except (StorageError, PeerError, InputLost, OSError) as error:
                ReplicaLog(log, failed.plan.replica).error("still cannot go on: %s", error)

    async def _close(self) -> None:
        beside = [*self._setups.values(), *self._attended]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.sources.stop)
        self.serving.end()
        controllers = list(self.controllers.items())
        # One that cannot be stopped or closed must not keep the others from it: their logs would be left open.
        ended = await asyncio.gather(
            *(loop.run_in_executor(None, c.stop_queries) for _, c in controllers), return_exceptions=True
        )
        for (replica, controller), outcome in zip(controllers, ended, strict=True):
            if isinstance(outcome, BaseException):
                ReplicaLog(log, replica).error("could not be stopped: %s", outcome)
            try:
                controller.close()
            except (HoldfastError, OSError) as error:
                ReplicaLog(log, replica).error("could not be closed: %s", error)
        for under_way in self._under_way.values():
            for said in under_way:
                said.cancel()
        for link in self._links.values():
            await link.close()
        self._network.close()
        self.serving.close()

    # -- replicas ----------------------------------------------------------------------------------------------------

    async def set_up_own(self, node: NodeSpec) -> None:
        """A node of this host's application (rule 5)."""
        while True:
            try:
                await self.set_up(OwnSite(self, node))
                return
            except (StorageError, PeerError, OSError) as error:
                if self.catalog.deployment is None or isinstance(error, CorruptLog):
                    raise
                ReplicaLog(log, replica_name(node.name, self.name)).error("cannot be set up now: %s", error)
                self._wait(node, cannot_be_set_up(error))
                await asyncio.sleep(self.return_s)

    async def set_up(self, site: Site, *, rebuild: bool = False) -> None:
        """Rule 2. `rebuild`: what it has to go on from is of no use any more (rule 5)."""
        node = site.node
        check_stripes(node, site.store)
        definitions = [await site.definition(stream, partial(self._wait, node)) for stream in node.inputs]
        bucket_us = max(d.bucket_us for d in definitions)
        for d in definitions:
            d.require_replay(f"node {node.name}, which reads it,")
            if bucket_us % d.bucket_us:
                raise UsageError(
                    f"the inputs of node {node.name} must have buckets that fit into each other; {d.name} has "
                    f"{d.bucket_us} µs, another {bucket_us} µs; create them with equal buckets"
                )
        Disk().make_dir(site.home)
        shutil.rmtree(copies_of(site.mirrors), ignore_errors=True)
        sweep_parcels(site.home)
        if swap_ordered(site.home):
            finish = partial(finish_swap, self.engine, site.home, site.store.open(node.output))
            await asyncio.get_running_loop().run_in_executor(None, finish)
        if node.output_schema is not None:
            create_output(site.store, node, node.output_schema, node.bucket_us or bucket_us)
        self._wait(node, SPARK_STARTS)
        await self.start_engine()
        self._wait(node, SPARK_PLANS)
        self.add(site.replica, await self._controller(site, definitions, bucket_us, rebuild))
        ReplicaLog(log, site.replica).info("set up, reading %s", ", ".join(node.inputs))

    def _wait(self, node: NodeSpec, wait: Wait) -> None:
        self._waits[node.name] = wait

    async def _controller(
        self, site: Site, definitions: Sequence[Definition], bucket_us: int, rebuild: bool
    ) -> Controller:
        intakes: dict[str, Intake] = {}
        preparing: asyncio.Future[tuple[NodeQueries, Stream]] | None = None
        try:
            for d in definitions:
                intakes[d.name] = site.intake(d, bucket_us)
            prepare = partial(self._queries, site, [i.stream for i in intakes.values()], bucket_us)
            preparing = asyncio.get_running_loop().run_in_executor(None, prepare)
            queries, output = await asyncio.shield(preparing)
            if await self._rebuilt(site, queries, output, rebuild):
                preparing = asyncio.get_running_loop().run_in_executor(None, prepare)
                queries, output = await asyncio.shield(preparing)
            site.before_start(queries)
            return Controller(site.plan(bucket_us), queries, intakes, output, site.home, site.say)
        except BaseException:
            if preparing is not None:
                # A thread cannot be cancelled, and it would make the folder again that whoever cancels is to remove.
                await asyncio.gather(preparing, return_exceptions=True)
            for intake in intakes.values():
                intake.close()  # Whoever tries again opens the same files.
            raise

    async def _rebuilt(self, site: Site, queries: NodeQueries, output: Stream, required: bool) -> bool:
        """Rule 5."""
        progress, twins = queries.position(), site.twins
        fresh = (progress.until_us or BEGINNING_US) <= BEGINNING_US and not queries.planned(progress.batch_id + 1)
        if not twins or not (fresh or required):
            return False
        self._wait(site.node, TWIN_HANDS_OVER)
        twin = await Rebuilding(site, self.engine, output, twins).run()
        if twin is None and required:
            raise InputLost(
                f"{site.replica} must be rebuilt from a twin, since its inputs do not reach back to where it stands; "
                f"none of {', '.join(twins)} hands anything over now; start one of them"
            )
        self._wait(site.node, SPARK_PLANS)
        return twin is not None

    def home_of(self, node: str) -> Path:
        """Where a node of this host keeps what is not a stream."""
        return self.root / ".holdfast" / "nodes" / node

    def add(self, replica: str, stand: Replica) -> None:
        """From now on this one stands for the replica."""
        self.controllers[replica] = stand
        self._refused.pop(replica.partition("@")[0], None)
        self._network.add(replica, stand.deliver)

    def overhear(self, replica: str, listener: Replica) -> None:
        """What is said to a replica of this host is said to the listener as well, until somebody else stands for it."""
        stand = self.controllers[replica]

        def deliver(sender: str, message: Message) -> None:
            stand.deliver(sender, message)
            listener.deliver(sender, message)

        self._network.add(replica, deliver)

    async def take_down(self, replica: str) -> None:
        """Nobody stands for the replica any more; what ran for it has stopped."""
        stand = self.controllers.pop(replica, None)
        self._network.remove(replica)
        if stand is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, stand.stop_queries)
            finally:
                stand.close()

    def _queries(self, site: Site, inputs: Sequence[Stream], bucket_us: int) -> tuple[NodeQueries, Stream]:
        """Takes the engine a moment."""
        node = site.node
        queries = self.engine.queries(node, inputs, site.store.root, site.home)
        try:
            return queries, queries.create_output(node.bucket_us or bucket_us)
        except self.engine.errors as error:
            failure = queries.explain(error)
            if isinstance(error, HoldfastError):
                raise
            if not failure.permanent:
                raise PeerError(
                    f"node {node.name}: {self.engine.name} cannot plan its query: {failure.sentence}"
                ) from None
            refused = f"node {node.name}: {self.engine.name} refuses its query: {failure.sentence}"
            raise UsageError(refused) from None

    def answers(self, stream: str) -> bool:
        """Whether readers may be served: sources always, nodes once they are level with their inputs (D12)."""
        producer = self.catalog.diagram.producer_of(stream)
        if producer is None:
            return stream in self.catalog.sources_on(self.name)
        controller = self.controllers.get(replica_name(producer.name, self.name))
        return controller is not None and controller.serves

    def report(self, stream: str) -> StreamReport | None:
        """How a stream of this host does, as a keepalive reply would say; None: nothing is said yet (D12)."""
        known = self.catalog.diagram
        producer = known.producer_of(stream) if stream in known.streams else None
        if producer is None and stream in self._voices:
            reply = self._voices[stream].reply()
            return None if reply is None else reply.reports[0]
        if producer is None or producer not in self.catalog.nodes_on(self.name):
            raise UnknownStream(f"stream {stream} is not produced on host {self.name}; ask another, or check the name")
        controller = self.controllers.get(replica_name(producer.name, self.name))
        return None if controller is None else controller.report()

    # -- other hosts -------------------------------------------------------------------------------------------------

    def link_to(self, replica: str) -> Link:
        host = self.catalog.host_of(replica)
        if host not in self._links:
            if host == self.name:
                link: Link = LocalLink(self.serving, self.deliver, self.answers)
            else:
                spec = self.catalog.spec_of(host)
                assert self._token is not None
                ca = spec.tls.authority if spec.tls else None
                link = HttpLink(spec.url, self._token, ca=ca, name=self.name, mesh=spec.mesh)
            self._links[host] = CutLink(link, self.cuts, host)
        return self._links[host]

    def deliver(self, sender: str, to: str, message: Message) -> None:
        """A message from elsewhere, for one of ours."""
        self._network.heard(sender, to, message)

    def say(self, sender: str, send: Send) -> None:
        """What a replica of this host says."""
        self._network.say(sender, send)

    def _say_abroad(self, sender: str, to: str, message: Message) -> None:
        try:
            host = self.catalog.host_of(to)
        except UsageError as error:
            # Somebody of another deployment has asked; that is no trouble of whoever was about to answer.
            log.debug("%s has nobody to answer: %s", sender, error)
            return
        under_way = self._under_way.setdefault(host, set())
        if len(under_way) < _UNDER_WAY_MAX:
            task = asyncio.ensure_future(self._say(sender, to, message))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _say(self, sender: str, to: str, message: Message) -> None:
        try:
            await self.link_to(to).say(sender, to, message)
        except HoldfastError as error:
            log.debug("%s to %s: %s", sender, to, error)

    # -- for people --------------------------------------------------------------------------------------------------

    @property
    def setting_up(self) -> bool:
        """Whether a node is just being planned or started, so that a mistake in it may still come to light. One that
        waits for its inputs is not: they may come next week."""
        planned = any(
            _untold(task) if task.done() else self._waits.get(name, SPARK_STARTS).kind != "inputs"
            for name, task in self._setups.items()
            if name not in self._refused
        )
        return planned or any(isinstance(c, Controller) and c.begins for c in self.controllers.values())

    @property
    def ended(self) -> bool:
        """Whether every node here has written all that will ever follow from its inputs."""
        nodes = [replica_name(node.name, self.name) for node in self.catalog.nodes_on(self.name)]
        stands = [self.controllers.get(replica) for replica in nodes]
        return bool(nodes) and all(isinstance(stand, Controller) and stand.ended for stand in stands)

    def failures(self) -> dict[str, str]:
        """Replicas that have failed and will not come back by themselves, and why."""
        failed = {
            replica: controller.trouble
            for replica, controller in self.controllers.items()
            if isinstance(controller, Controller) and controller.trouble is not None and not controller.may_return
        }
        return {**failed, **{replica_name(node, self.name): why for node, why in self._refused.items()}}

    @property
    def silent_s(self) -> float | None:
        """For how long nobody has looked after the replicas; None before the first time."""
        return None if self._pulsed_us is None else (monotonic_us() - self._pulsed_us) / SECOND_US

    def states(self) -> dict[str, str]:
        """The state of every replica that is here or should be, in a word of `holdfast status`."""
        missing = {replica_name(node.name, self.name): node.name for node in self.catalog.nodes_on(self.name)}
        states = {replica: self._state_of(node) for replica, node in missing.items()}
        return {**states, **{replica: stand.state for replica, stand in self.controllers.items()}}

    def _state_of(self, node: str) -> str:
        """Of one for which nobody stands."""
        return "FAILED" if node in self._refused else "DRAINED" if node in self.drained else "WAITING"

    def not_ready(self) -> dict[str, str]:
        """Nodes of this host that serve nobody, and their state. Guests are their owners' affair."""
        own = {replica_name(node.name, self.name) for node in self.catalog.nodes_on(self.name)}
        ready = {replica for replica, stand in self.controllers.items() if stand.serves}
        return {replica: state for replica, state in self.states().items() if replica in own - ready}

    def status(self) -> dict[str, Any]:
        """What `holdfast status` shows."""
        replicas = [controller.status() for controller in self.controllers.values()]
        for node in self.catalog.nodes_on(self.name):
            replica = replica_name(node.name, self.name)
            if node.name in self._refused:
                why = self._refused[node.name]
                replicas.append({"replica": replica, "node": node.name, "state": "FAILED", "why": why, "inputs": []})
            elif node.name in self.drained:
                replicas.append(drained(replica, node.name))
            elif replica not in self.controllers:
                replicas.append(waiting(replica, node.name, self._waits.get(node.name, SPARK_STARTS)))
        sources = self.sources.status()
        stores = {store: counts._asdict() for store, counts in by_store().items()}
        return {"host": self.name, "replicas": replicas, "cuts": links_cut(self), "sources": sources,
                "stores": stores, "deadlines": deadlines()}  # fmt: skip

    def fault(self, order: dict[str, Any]) -> dict[str, Any]:
        """Cut and heal links, as `holdfast fail` sends them."""
        return carry_out(self, order)


def _untold(task: asyncio.Task[None]) -> bool:
    """Whether a set-up that is over has failed; the loop is about to say so."""
    return not task.cancelled() and task.exception() is not None
