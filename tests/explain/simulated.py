"""A catalog in the simulator: the real cores on virtual time, one failure, and what a client of every node got."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

from holdfast.explain.failure import Failure, Kind, Sight
from holdfast.host.catalog import Catalog
from holdfast.protocol.dpc.plan import ClientPlan, InputPlan, OutputPlan
from holdfast.sim.faults import Setting
from holdfast.sim.hosts import ClientHost, Machine, SourceHost
from holdfast.sim.observe import Observer, Observers
from holdfast.sim.query import Query, Rows
from holdfast.sim.replica import ReplicaHost
from holdfast.sim.world import Link, World

BUCKET_US = 100_000
#: By then every reader knows how often its inputs move.
FAIL_US = 3_000_000
#: What detection, buckets and batches add to the moment at which a wait is over.
SLACK_US = 700_000


class Deliveries(Observer):
    """What clients got since the failure: (stream, kind) → when."""

    def __init__(self, clients: tuple[str, ...]) -> None:
        super().__init__()
        self.readers = clients
        self.got: dict[str, list[tuple[int, str]]] = {client: [] for client in clients}

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        if now_us > FAIL_US:
            self.got[reader].append((now_us - FAIL_US, kind))


class Simulated:
    """One run."""

    def __init__(self, catalog: Catalog, failure: Failure) -> None:
        self.catalog, self.failure = catalog, failure
        self._longest_us = max(node.max_delay_us for node in catalog.diagram.nodes)
        self._clients = {f"client of {node.output}": node.output for node in catalog.diagram.nodes}
        self.deliveries = Deliveries(tuple(self._clients))
        self.world = World(Observers([self.deliveries]))
        self._until_us = FAIL_US + 2 * self._longest_us + 2_500_000
        self._build()
        self.world.at(FAIL_US, self._strike)
        self.world.run(self._until_us)

    def saw(self, node: str) -> Sight:
        """What the client of a node saw; a switch cannot be told from nothing by who reads only."""
        late = [kind for when, kind in self._got(node) if when > self._longest_us + SLACK_US]
        if any(kind == "TENTATIVE" for _, kind in self._got(node)) and "TENTATIVE" in late:
            assert "INSERTION" not in late
            return Sight.TENTATIVE
        return Sight.NOTHING if "INSERTION" in late else Sight.SILENCE

    def first_tentative_us(self, node: str) -> int | None:
        return next((when for when, kind in self._got(node) if kind == "TENTATIVE"), None)

    def _got(self, node: str) -> list[tuple[int, str]]:
        return self.deliveries.got[f"client of {self.catalog.diagram.node(node).output}"]

    def _build(self) -> None:
        catalog, world, rng = self.catalog, self.world, Random("explain")
        replicas = [replica for node in catalog.diagram.nodes for replica in catalog.replicas_of(node.name)]
        homes = {stream: catalog.producers(stream)[0] for stream in catalog.diagram.sources}
        for way in permutations([*homes.values(), *replicas, *self._clients], 2):
            world.links[way] = Link(rng.randrange(1_000, 5_000))
        buckets = self._until_us // BUCKET_US + 20
        for stream, home in homes.items():
            rows: list[Rows] = [tuple(rng.getrandbits(30) for _ in range(4)) for _ in range(buckets)]
            SourceHost(world, home, OutputPlan(stream, (), catalog.readers(stream)), BUCKET_US, rows,
                       rng.randrange(5_000), 1)  # fmt: skip
        for node in catalog.diagram.nodes:
            for replica in catalog.replicas_of(node.name):
                plan = catalog.plan_of(node.name, catalog.host_of(replica), BUCKET_US)
                kept = replace(plan.output, readers=(*plan.output.readers, f"client of {node.output}"))
                ReplicaHost(world, replace(plan, output=kept), Query(), Setting(), Random(replica))
        for client, stream in self._clients.items():
            ClientHost(world, ClientPlan(client, InputPlan(stream, catalog.producers(stream)), BUCKET_US))

    def _on(self, host: str) -> list[str]:
        return [name for name in self.world.hosts if name.endswith(f"@{host}")]

    def _strike(self) -> None:
        world, failure = self.world, self.failure
        if failure.kind is Kind.HOST:
            for name in self._on(failure.names[0]):
                machine: Machine = world.hosts[name]
                machine.crash()
                for way in world.links:
                    if name in way:
                        world.break_link(*way, noticed=False)
        elif failure.kind is Kind.LINK:
            one, other = map(self._on, failure.names)
            for a in one:
                for b in other:
                    world.cut(a, b)
                    world.cut(b, a)
        else:
            (home,) = self.catalog.producers(failure.names[0])
            for way in world.links:
                if home in way:
                    world.cut(*way)
