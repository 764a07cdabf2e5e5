"""Who produces and who reads each stream, and where: the diagram and its deployment together (003 §3.3).

Rules:
1. A replica is named `node@host`; a source stream counts as produced by the replica `stream@home`, or by several if it
   has several homes: they are alike, as those of a node are.
2. The catalog is static: the same file gives the same catalog on every host, in the same order, so nobody has to ask.
3. The deployment's list for a node is its replica set. Without one, the node's `replicas` are placed on the hosts with
   the fewest replicas, those without sources first: they are there to compute.
4. A reader prefers a producer on its own host; readers without one begin with different producers, in turn, so that
   replicas share the work of serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagram import Application, Diagram, NodeSpec
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.sink_file import sink_spec
from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.plan import InputPlan, NodePlan, OutputPlan

if TYPE_CHECKING:
    from holdfast.sinks.sink import SinkSpec

#: The only host of an application that runs in one process.
HERE = "here"


@dataclass(frozen=True, slots=True)
class Placement:
    """What lives where. The order of hosts is that of the deployment."""

    hosts: tuple[str, ...]
    homes: Mapping[str, tuple[str, ...]]
    """Source stream → hosts."""
    replica_sets: Mapping[str, tuple[str, ...]]
    """Node → hosts."""


class Catalog:
    """Answers every question about who talks to whom. Without a deployment, everything is `here`."""

    def __init__(self, diagram: Diagram, deployment: Deployment | None = None) -> None:
        self.diagram, self.deployment = diagram, deployment
        self.placement = _embedded(diagram) if deployment is None else place(diagram, deployment)
        self._host_of: dict[str, str] = {}
        for stream, homes in self.placement.homes.items():
            self._host_of.update((replica_name(stream, home), home) for home in homes)
        for node, hosts in self.placement.replica_sets.items():
            self._host_of.update((replica_name(node, host), host) for host in hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.placement.hosts

    def replicas_of(self, node: str) -> tuple[str, ...]:
        """The replica set of a node."""
        spec = self.diagram.node(node)
        return tuple(replica_name(node, host) for host in self.placement.replica_sets[spec.name])

    def nodes_on(self, host: str) -> tuple[NodeSpec, ...]:
        """The nodes with a replica on this host, upstream first."""
        return tuple(node for node in self.diagram.nodes if host in self.placement.replica_sets[node.name])

    def sources_on(self, host: str) -> tuple[str, ...]:
        """The source streams that live on this host."""
        return tuple(stream for stream in self.diagram.sources if host in self.placement.homes[stream])

    def producers(self, stream: str) -> tuple[str, ...]:
        """The replicas that produce a stream."""
        self._check_stream(stream)
        node = self.diagram.producer_of(stream)
        if node is not None:
            return self.replicas_of(node.name)
        return tuple(replica_name(stream, home) for home in self.placement.homes[stream])

    def reads_in_place(self, stream: str, host: str) -> bool:
        """Do replicas on this host read the stream where it lies, without a mirror? Only a source that lives here and
        nowhere else: one with copies is switched between them, as the results of a replicated node are."""
        self._check_stream(stream)
        source = self.diagram.producer_of(stream) is None
        return source and self.placement.homes[stream] == (host,)

    def readers(self, stream: str) -> tuple[str, ...]:
        """The replicas that read a stream, and must acknowledge it."""
        self._check_stream(stream)
        return tuple(reader for node in self.diagram.readers_of(stream) for reader in self.replicas_of(node.name))

    def reading_hosts(self, stream: str) -> tuple[str, ...]:
        """The hosts on which somebody reads the stream, each once."""
        return tuple(dict.fromkeys(self._host_of[reader] for reader in self.readers(stream)))

    def host_of(self, replica: str) -> str:
        """The host on which a replica or source lives."""
        if replica not in self._host_of:
            raise UsageError(f"no replica {replica!r}; there are: {', '.join(self._host_of)}; check the name")
        return self._host_of[replica]

    def spec_of(self, host: str) -> HostSpec:
        """Address, root and the rest of a deployed host."""
        assert self.deployment is not None, f"{host!r} has no address: everything runs in one process"
        return self.deployment.host(host)

    def plan_of(self, node: str, host: str, bucket_us: int) -> NodePlan:
        """What one replica's core has to know. `bucket_us` is the bucket size of its inputs."""
        spec = self.diagram.node(node)
        replica = replica_name(node, host)
        replicas = self.replicas_of(node)
        if replica not in replicas:
            raise UsageError(f"node {node!r} has no replica on {host!r}; it has {', '.join(replicas)}")
        inputs = tuple(InputPlan(s, self.preferred(s, replica), s in spec.blocking) for s in spec.inputs)
        output = OutputPlan(spec.output, spec.inputs, self.readers(spec.output), spec.capacity_us, spec.full)
        return node_plan(spec, replica, inputs, output, bucket_us, tuple(peer for peer in replicas if peer != replica))

    def preferred(self, stream: str, reader: str) -> tuple[str, ...]:
        """The producers of a stream in the order in which this reader should try them (rule 4)."""
        producers = self.producers(stream)
        at_home = {self._host_of[producer]: producer for producer in producers}
        local = at_home.get(self._host_of[reader])
        if local is not None:
            turn = producers.index(local)
        else:
            remote = [other for other in self.readers(stream) if self._host_of[other] not in at_home]
            turn = remote.index(reader) % len(producers)
        return producers[turn:] + producers[:turn]

    def _check_stream(self, stream: str) -> None:
        if stream not in self.diagram.streams:
            known = ", ".join(self.diagram.streams)
            raise UsageError(
                f"no stream {stream!r} in application {self.diagram.app!r}; there are: {known}; check the name"
            )


def node_plan(
    spec: NodeSpec, replica: str, inputs: tuple[InputPlan, ...], output: OutputPlan, bucket_us: int,
    peers: tuple[str, ...] = (),
) -> NodePlan:  # fmt: skip
    """What the core of a replica has to know, wherever it runs."""
    return NodePlan(
        replica=replica,
        inputs=inputs,
        output=output,
        peers=peers,
        bucket_us=bucket_us,
        delay_us=spec.max_delay_us,
        keepalive_us=spec.keepalive_us,
        during_failure=spec.during_failure,
        during_stabilisation=spec.during_stabilisation,
        stabilise=spec.stabilise,
        window_us=spec.convergent_us,
        warm=spec.warm,
    )


def replica_name(produced: str, host: str) -> str:
    """The name of a node's replica, or of a source, on a host."""
    return f"{produced}@{host}"


def place(diagram: Diagram, deployment: Deployment) -> Placement:
    """Check the deployment against the diagram and place what it leaves open."""
    file = deployment.file
    hosts = tuple(host.name for host in deployment.hosts)
    _check_sources(diagram, deployment)
    _check_archives(diagram, deployment)
    _check_described_sinks(diagram, deployment)
    for name in deployment.nodes:
        if name not in {node.name for node in diagram.nodes}:
            known = ", ".join(node.name for node in diagram.nodes) or "none"
            raise UsageError(
                f"no node {name!r} in application {diagram.app!r}; {file} names it under nodes, but there are: "
                f"{known}; check the name, or remove the line"
            )
    load = dict.fromkeys(hosts, 0)
    for named in deployment.nodes.values():
        for host in named:
            load[host] += 1
    feeding = {home for homes in deployment.sources.values() for home in homes}
    sets: dict[str, tuple[str, ...]] = {}
    for node in diagram.nodes:
        if node.name in deployment.nodes:
            sets[node.name] = deployment.nodes[node.name]
            continue
        if node.replicas > len(hosts):
            raise UsageError(
                f"node {node.name!r} asks for {node.replicas} replicas, each on a host of its own; {file} has "
                f"{len(hosts)} ({', '.join(hosts)}); add hosts, or lower replicas="
            )
        ranked = sorted(hosts, key=lambda host: (host in feeding, load[host], hosts.index(host)))
        chosen = set(ranked[: node.replicas])
        sets[node.name] = tuple(host for host in hosts if host in chosen)
        for host in sets[node.name]:
            load[host] += 1
    return Placement(hosts, dict(deployment.sources), sets)


class PlacedSink(NamedTuple):
    """A sink and the host that runs it."""

    spec: SinkSpec
    host: str


def placed_sinks(app: Application, catalog: Catalog) -> dict[str, PlacedSink]:
    """Every sink, the application's and the file's; what the file describes counts before the application's. It runs on
    the host that the file names, or else on the first that produces its stream."""
    deployment = catalog.deployment
    specs: dict[str, SinkSpec] = {spec.name: spec for spec in app.sinks}
    if deployment is None:
        return {name: PlacedSink(spec, HERE) for name, spec in specs.items()}
    if unknown := deployment.sinks.keys() - deployment.described.keys() - specs.keys():
        raise UsageError(
            f"sinks in {deployment.file} must be sinks of application {app.name!r}: {', '.join(specs) or 'none'}; got "
            f"{', '.join(sorted(unknown))}; correct the name, or say where it goes with to: ADDRESS"
        )
    streams = {name: spec.stream for name, spec in specs.items()}
    streams |= {name: said.stream or name for name, said in deployment.described.items()}
    found = {}
    for name, stream in streams.items():
        host = deployment.sinks.get(name) or catalog.host_of(catalog.producers(stream)[0])
        said = deployment.described.get(name)
        spec = specs[name] if said is None else sink_spec(deployment.file, name, said, deployment.host(host).own)
        found[name] = PlacedSink(spec, host)
    return found


def _check_sources(diagram: Diagram, deployment: Deployment) -> None:
    for stream in deployment.sources:
        producer = diagram.producer_of(stream)
        if producer is not None:
            raise UsageError(
                f"stream {stream!r} is produced by node {producer.name!r} and lives with its replicas; "
                f"{deployment.file} names it under sources; remove the line there"
            )
        if stream not in diagram.sources:
            known = ", ".join(diagram.sources) or "none"
            raise UsageError(
                f"no source {stream!r} in application {diagram.app!r}; {deployment.file} names it under sources, but "
                f"the nodes read: {known}; check the name, or remove the line"
            )
    for stream in diagram.sources:
        if stream not in deployment.sources:
            reader = diagram.readers_of(stream)[0].name
            raise UsageError(
                f"source {stream!r}, which node {reader!r} reads, must have a home; {deployment.file} names none; add "
                f"'{stream}: HOST' under sources"
            )


def _check_archives(diagram: Diagram, deployment: Deployment) -> None:
    streams = {*diagram.sources, *(node.output for node in diagram.nodes)}
    if unknown := set(deployment.archives) - streams:
        raise UsageError(
            f"archives in {deployment.file} must be of streams of application {diagram.app!r}: "
            f"{', '.join(sorted(streams))}; got {', '.join(sorted(unknown))}"
        )


def _check_described_sinks(diagram: Diagram, deployment: Deployment) -> None:
    for name, said in deployment.described.items():
        if (stream := said.stream or name) not in diagram.streams:
            raise UsageError(
                f"sink {name!r} in {deployment.file} must take a stream of application {diagram.app!r}: "
                f"{', '.join(diagram.streams)}; got {stream!r}; name one with stream:"
            )


def _embedded(diagram: Diagram) -> Placement:
    return Placement((HERE,), dict.fromkeys(diagram.sources, (HERE,)), {node.name: (HERE,) for node in diagram.nodes})
