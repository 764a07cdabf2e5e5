"""A failure of a host, a link or a source, and what every reader would see of it: computed, not described.

Rules:
1. A failure is one thing that is gone and stays gone for longer than every X; all else is well, and was before.
2. Replicas are gone through in the order of the diagram. Each sees those producers that it still reaches; whom it reads
   then is table 4.3 itself (`protocol.dpc.switch.choose`), and what its own output is worth figure A-1 itself
   (`protocol.dpc.states.output_state`). So a change of the protocol changes what is said here.
3. A state stands for the tuples that come: a replica that suspends its output in a failure brings nothing, though it
   answers. One of which every input, or a blocking one, brings nothing brings nothing.
4. Tentative results begin when the first bucket has waited for X. A chain waits at the same time (rule 2 of
   `holdfast.protocol.dpc.sunion`): what arrives tentatively was held back upstream already, so a node that reads
   nothing else adds no delay of its own unless its X is the longer one. A node with a stable input does not wait for
   the tentative one beyond its own X, unless that one is blocking: without it buckets are void.
5. Readers outside reach every host that is up. A sink reads from its own host, over its links.

`tests/explain/test_simulated.py` runs the same failures in the simulator and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import NamedTuple

from holdfast.diagram import NodeSpec
from holdfast.host.catalog import Catalog
from holdfast.protocol.dpc.plan import Policy
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import NodeState, StreamState, output_state
from holdfast.protocol.dpc.switch import Source, choose


class Kind(Enum):
    """What may fail."""

    HOST = "host"
    LINK = "link"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that is gone: a host, everything between two hosts, or what a source brings."""

    kind: Kind
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.kind.value} {'-'.join(self.names)}"

    def stops(self, host: str) -> bool:
        """Whether the host is gone."""
        return self.kind is Kind.HOST and host in self.names

    def severs(self, stream: str, producer: str, reader: str | None) -> bool:
        """Whether the stream no longer gets from the host of its producer to that of its reader; None: outside."""
        if self.stops(producer) or (reader is not None and self.stops(reader)):
            return True
        if self.kind is Kind.SOURCE:
            return stream in self.names
        return self.kind is Kind.LINK and reader is not None and {producer, reader} == set(self.names)


class Sight(Enum):
    """What a reader sees of a failure, from best to worst."""

    NOTHING = "nothing"
    SWITCH = "switch"
    TENTATIVE = "tentative"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader gets of one stream: from whom before, from whom during the failure, and what that is worth."""

    stream: str
    before: str
    now: str | None
    state: StreamState
    begins_us: int = 0
    """If tentative: the time from the failure to the first tentative results."""

    @property
    def sight(self) -> Sight:
        if self.state is StreamState.STABLE:
            return Sight.NOTHING if self.now == self.before else Sight.SWITCH
        return Sight.TENTATIVE if self.state is StreamState.UP_FAILURE else Sight.SILENCE


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica during the failure. What is down has no readings."""

    name: str
    state: StreamState
    begins_us: int
    readings: tuple[Reading, ...]
    down: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The inputs of which nothing comes."""
        return tuple(reading.stream for reading in self.readings if reading.state is StreamState.FAILURE)


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """What the failure does to one node, and what a reader outside sees of its output."""

    node: str
    seen: Reading
    replicas: tuple[Replica, ...]

    @property
    def sight(self) -> Sight:
        return self.seen.sight


class SinkPlace(NamedTuple):
    """A sink: what it takes, and where."""

    stream: str
    host: str
    tentative: bool = True
    """Whether it takes tentative rows."""


Sinks = Mapping[str, SinkPlace]


@dataclass(frozen=True, slots=True)
class SinkEffect:
    """What the failure does to one sink. One whose host is gone stands still, and so does one that takes stable rows
    only while there are none."""

    sink: str
    place: SinkPlace
    seen: Reading | None

    @property
    def sight(self) -> Sight:
        if self.seen is None or (self.seen.sight is Sight.TENTATIVE and not self.place.tentative):
            return Sight.SILENCE
        return self.seen.sight


@dataclass(frozen=True, slots=True)
class Effect:
    """All that a failure does."""

    failure: Failure
    nodes: tuple[NodeEffect, ...]
    sinks: tuple[SinkEffect, ...] = ()

    def of(self, node: str) -> NodeEffect:
        return next(effect for effect in self.nodes if effect.node == node)


def failures(catalog: Catalog, sinks: Sinks | None = None) -> tuple[Failure, ...]:
    """Everything that can fail by itself: each host that does something, each link that streams may take, each source.

    A link is left out if neither node nor sink reads over it, from whichever producer: its failure is nobody's.
    """
    homes = {place.host for place in (sinks or {}).values()}
    busy = [host for host in catalog.hosts if catalog.nodes_on(host) or catalog.sources_on(host) or host in homes]
    hosts = [Failure(Kind.HOST, (host,)) for host in busy]
    reading = [(stream, host) for stream in catalog.diagram.streams for host in catalog.reading_hosts(stream)]
    used = {
        frozenset((catalog.host_of(producer), host))
        for stream, host in (*reading, *((place.stream, place.host) for place in (sinks or {}).values()))
        for producer in catalog.producers(stream)
    }
    links = [Failure(Kind.LINK, pair) for pair in combinations(catalog.hosts, 2) if frozenset(pair) in used]
    return (*hosts, *links, *(Failure(Kind.SOURCE, (stream,)) for stream in catalog.diagram.sources))


def effect(catalog: Catalog, failure: Failure, sinks: Sinks | None = None) -> Effect:
    """What the failure does to every node, and to these sinks."""
    view = _View(catalog, failure)
    for home in (home for stream in catalog.diagram.sources for home in catalog.producers(stream)):
        down = failure.stops(catalog.host_of(home))
        view.replicas[home] = Replica(home, StreamState.FAILURE if down else StreamState.STABLE, 0, (), down)
    nodes = []
    for node in catalog.diagram.nodes:
        replicas = tuple(view.replica(node, replica) for replica in catalog.replicas_of(node.name))
        view.replicas |= {replica.name: replica for replica in replicas}
        nodes.append(NodeEffect(node.name, view.seen(node.output, catalog.producers(node.output), None), replicas))
    kept = []
    for sink, place in (sinks or {}).items():
        gone = failure.stops(place.host)
        seen = None if gone else view.seen(place.stream, catalog.producers(place.stream), place.host)
        kept.append(SinkEffect(sink, place, seen))
    return Effect(failure, tuple(nodes), tuple(kept))


class _View:
    """What is known of every replica so far, upstream first."""

    def __init__(self, catalog: Catalog, failure: Failure) -> None:
        self.catalog, self.failure = catalog, failure
        self.replicas: dict[str, Replica] = {}

    def seen(self, stream: str, producers: tuple[str, ...], reader: str | None) -> Reading:
        """Whom a reader at that host chooses among the producers, in the order in which it prefers them (rule 2)."""
        before = Source(producers[0], Lane.MAIN)
        offers: dict[Source, StreamState] = {}
        for name in producers:
            replica = self.replicas[name]
            if replica.down or self.failure.severs(stream, self.catalog.host_of(name), reader):
                continue
            if replica.state is StreamState.STABLE:
                offers[Source(name, Lane.MAIN)] = StreamState.STABLE
            elif replica.state is StreamState.UP_FAILURE:
                offers[Source(name, Lane.BRANCH)] = StreamState.UP_FAILURE
        choice, _ = choose(before, None, offers, lambda source: 0)
        state = StreamState.FAILURE if choice.curr is None else offers.get(choice.curr, StreamState.FAILURE)
        if choice.curr is None or state is StreamState.FAILURE:
            return Reading(stream, before.replica, None, StreamState.FAILURE)
        return Reading(stream, before.replica, choice.curr.replica, state, self.replicas[choice.curr.replica].begins_us)

    def replica(self, node: NodeSpec, name: str) -> Replica:
        host = self.catalog.host_of(name)
        if self.failure.stops(host):
            return Replica(name, StreamState.FAILURE, 0, (), down=True)
        readings = tuple(self.seen(s, self.catalog.preferred(s, name), host) for s in node.inputs)
        states = {reading.stream: reading.state for reading in readings}
        failing = any(state is not StreamState.STABLE for state in states.values())
        state = output_state(
            NodeState.UP_FAILURE if failing else NodeState.STABLE, StreamState.STABLE, states, frozenset(node.blocking)
        )
        if state is StreamState.UP_FAILURE and node.during_failure is Policy.SUSPEND:
            state = StreamState.FAILURE
        return Replica(name, state, _begins_us(node, readings) if state is StreamState.UP_FAILURE else 0, readings)


def _begins_us(node: NodeSpec, readings: tuple[Reading, ...]) -> int:
    """Rule 4."""
    coming = [reading for reading in readings if reading.state is not StreamState.FAILURE]
    needed_us = max((reading.begins_us for reading in coming if reading.stream in node.blocking), default=0)
    return max(node.max_delay_us, needed_us, min(reading.begins_us for reading in coming))
