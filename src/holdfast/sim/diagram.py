"""The diagram that is simulated: three sources, two chained nodes of two replicas each, one client.

s1 ─┐
s2 ─┼─► n1a, n1b ─► n2a, n2b ─► client
s3 ─┘

Beside n2a and n2b, on the same machines, readers follow the output as it lies on disk.
"""

from __future__ import annotations

from random import Random

from holdfast.protocol.dpc.plan import ClientPlan, InputPlan, NodePlan, OutputPlan
from holdfast.sim.faults import (
    BUCKET_US,
    CALM_US,
    CLIENT,
    FIRST,
    HEAL_US,
    LINKS,
    LOCAL,
    SECOND,
    SETTLE_US,
    SOURCES,
    Plan,
)
from holdfast.sim.hosts import ClientHost, SourceHost
from holdfast.sim.local import LocalHost
from holdfast.sim.query import Expected, Query, Rows
from holdfast.sim.replica import ReplicaHost
from holdfast.sim.world import Link, World

#: Buckets for which input exists: no run lasts longer.
BUCKETS = (HEAL_US + SETTLE_US) // BUCKET_US + 20


class Truth:
    """What the run ought to produce, computed without any core."""

    def __init__(self, plan: Plan) -> None:
        rng = Random(f"{plan.seed}/input")
        most = plan.setting.rows

        def bucket() -> Rows:
            return tuple([rng.getrandbits(30) for _ in range(rng.randint(most - 2, most))])

        self.sources: list[list[Rows]] = [[bucket() for _ in range(BUCKETS)] for _ in SOURCES]
        query = Query(plan.setting.window)
        self.first = Expected(query, self.sources)
        self.second = Expected(query, [_Lazy(self.first)])

    def of(self, host: str) -> Expected:
        """The oracle of a replica."""
        return self.first if host in FIRST else self.second


class _Lazy:
    """The first node's expected output as the second node's input."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected

    def __getitem__(self, bucket: int) -> Rows:
        return self._expected.upto(bucket + 1)[bucket]


def build(world: World, plan: Plan, truth: Truth) -> ClientHost:
    """Put the diagram into the world; returns the client."""
    setting, rng = plan.setting, Random(f"{plan.seed}/latency")
    for a, b in LINKS:
        for way in ((a, b), (b, a)):
            world.links[way] = Link(rng.randrange(1_000, 8_000))
    for index, name in enumerate(SOURCES):
        output = OutputPlan(name, (), FIRST, setting.capacity_us, setting.full)
        SourceHost(world, name, output, BUCKET_US, truth.sources[index], rng.randrange(10_000),
                   setting.promises[index])  # fmt: skip
    query = Query(setting.window)
    window_us = setting.window * BUCKET_US if setting.window else None

    def node(replica: str, peers: tuple[str, ...], inputs: tuple[InputPlan, ...], output: OutputPlan) -> None:
        ReplicaHost(
            world,
            NodePlan(
                replica,
                inputs,
                output,
                tuple(peer for peer in peers if peer != replica),
                BUCKET_US,
                setting.delay_us,
                during_failure=setting.during_failure,
                during_stabilisation=setting.during_stabilisation,
                stabilise=setting.stabilise,
                window_us=window_us,
                warm=setting.warm,
            ),
            query,
            setting,
            Random(f"{plan.seed}/{replica}"),
        )

    for replica in FIRST:
        inputs = tuple(InputPlan(s, (s,), blocking=setting.blocking and s == "s1") for s in SOURCES)
        node(replica, FIRST, inputs, OutputPlan("n1", SOURCES, SECOND, setting.capacity_us, setting.full))
    for replica in SECOND:
        output = OutputPlan("n2", ("n1",), (CLIENT,), setting.capacity_us, setting.full)
        node(replica, SECOND, (InputPlan("n1", FIRST),), output)
    for name, replica in LOCAL.items():
        rng = Random(f"{plan.seed}/{name}")
        local = LocalHost(world, name, world.hosts[replica], rng)
        world.at(rng.randrange(CALM_US, HEAL_US) if name == "local-late" else 0, local.begin)
    spec = InputPlan("n2", SECOND)
    return ClientHost(world, ClientPlan(CLIENT, spec, BUCKET_US, setting.delay_us, convergent=bool(setting.window)))
