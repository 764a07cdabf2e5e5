"""What each host of an application carries, and what that costs it, by the loads that are measured or given.

Rules:
1. A replica is one query, all the time. During a failure those replicas that give tentative results run a second one,
   their fork, which does the same work again (docs/choosing.md); so the worst failure of a host is the one that makes
   most of its replicas fork. A fork that is kept ready takes its share of time in quiet times as well.
2. A stream lies once on each host that produces it, and once more for each replica that reads it from elsewhere: its
   mirror. Only a source on the replica's own host is read where it lies.
3. Replicas compute whether they are read or not. So a host that fails leaves the others no more to compute, only more
   to send.
4. A load is cores of the contracts for one replica of a node. Costs and decisions are those of the host's contract
   file, by the functions that decide at run time (`protocol.load.choice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.explain.failure import Effect, Failure, Sinks, effect, failures
from holdfast.host.catalog import Catalog, replica_name
from holdfast.protocol.dpc.fork import Fork
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Task, Usage, together

#: Steps of a unit in which the room of a seller is looked for, and the most that is looked at: a cost that does not
#: grow with this resource would leave room without end.
_ROOM_STEP = 0.01
_ROOM_MAX = 1000.0


@dataclass(frozen=True, slots=True)
class ContractCost:
    """What one contract means for a host that carries these loads."""

    contract: Contract
    buys: bool
    moves: tuple[str, ...] = ()
    """Nodes that the host would offer under it, at the lowest price."""
    price: float = 0.0
    """Per second, for those."""
    saves: float = 0.0
    """Cost per second that those cause here."""
    room: float = 0.0
    """If it sells: units that it would take on at the highest price."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """One host."""

    host: str
    sources: tuple[str, ...]
    replicas: tuple[str, ...]
    sinks: tuple[str, ...]
    mirrors: tuple[tuple[str, str], ...]
    """(stream, replica that reads it from elsewhere)."""
    sends: tuple[tuple[str, str], ...]
    """(stream, host that reads it here in quiet times)."""
    kept_ready: tuple[str, ...]
    """Replicas that keep a fork ready."""
    forks: tuple[str, ...]
    """Replicas that fork in its worst failure."""
    worst: Failure | None
    load: float | None
    """Cores in quiet times; None: some load is not known."""
    load_worst: float | None
    capacity: float | None
    cost: float | None = None
    """Per second in quiet times, by the cost function of its contracts."""
    contracts: tuple[ContractCost, ...] = ()

    @property
    def queries(self) -> int:
        """In quiet times."""
        return len(self.replicas) + len(self.kept_ready)

    @property
    def overloaded(self) -> bool:
        """Whether its worst failure asks for more than it has."""
        return self.load_worst is not None and self.capacity is not None and self.load_worst > self.capacity


def host_costs(
    catalog: Catalog,
    buckets: Mapping[str, int],
    loads: Mapping[str, float],
    sinks: Sinks | None = None,
    capacities: Mapping[str, float] | None = None,
    plans: Mapping[str, ParticipantPlan] | None = None,
) -> tuple[HostCost, ...]:
    """Every host in the order of the deployment. `loads`: node → cores of one replica; `plans`: host → what its
    contract file says."""
    told = [effect(catalog, failure) for failure in failures(catalog)]
    return tuple(
        _host(catalog, host, buckets, loads, sinks or {}, (capacities or {}).get(host), (plans or {}).get(host), told)
        for host in catalog.hosts
    )


def _host(
    catalog: Catalog, host: str, buckets: Mapping[str, int], loads: Mapping[str, float],
    sinks: Sinks, capacity: float | None, plan: ParticipantPlan | None, told: Sequence[Effect],
) -> HostCost:  # fmt: skip
    nodes = [node.name for node in catalog.nodes_on(host)]
    replicas = tuple(replica_name(node, host) for node in nodes)
    forks, worst = _worst(replicas, loads, told)
    mirrors = tuple(
        (stream, replica_name(node.name, host))
        for node in catalog.nodes_on(host)
        for stream in node.inputs
        if not catalog.reads_in_place(stream, host)
    )
    made = HostCost(
        host,
        catalog.sources_on(host),
        replicas,
        tuple(sink for sink, place in sinks.items() if place.host == host),
        mirrors,
        _sends(catalog, host),
        tuple(replica_name(node, host) for node in nodes if _kept_ready(catalog, node, host, buckets)),
        forks,
        worst,
        _sum(loads, nodes),
        _sum(loads, [*nodes, *(name.partition("@")[0] for name in forks)]),
        capacity,
    )
    return made if plan is None or made.load is None else _priced(made, plan, {node: loads[node] for node in nodes})


def _sum(loads: Mapping[str, float], nodes: Sequence[str]) -> float | None:
    return None if any(node not in loads for node in nodes) else sum(loads[node] for node in nodes)


def _worst(
    replicas: tuple[str, ...], loads: Mapping[str, float], told: Sequence[Effect]
) -> tuple[tuple[str, ...], Failure | None]:
    """Rule 1. Where loads are not known, each fork counts the same."""
    best: tuple[tuple[str, ...], Failure | None] = ((), None)
    most = 0.0
    for one in told:
        forks = tuple(
            replica.name
            for node in one.nodes
            for replica in node.replicas
            if replica.name in replicas and replica.state is StreamState.UP_FAILURE
        )
        weight = sum(loads.get(name.partition("@")[0], 1.0) for name in forks)
        if weight > most:
            best, most = (forks, one.failure), weight
    return best


def _kept_ready(catalog: Catalog, node: str, host: str, buckets: Mapping[str, int]) -> bool:
    bucket_us = max(buckets[stream] for stream in catalog.diagram.node(node).inputs)
    return Fork(catalog.plan_of(node, host, bucket_us), 0).kept_ready


def _sends(catalog: Catalog, host: str) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for stream in catalog.diagram.streams:
        for reader in catalog.readers(stream):
            first, there = catalog.preferred(stream, reader)[0], catalog.host_of(reader)
            if catalog.host_of(first) == host and there != host:
                found[stream, there] = None
    return tuple(found)


def _priced(made: HostCost, plan: ParticipantPlan, loads: Mapping[str, float]) -> HostCost:
    """Rule 4."""
    judge = Judge(plan.cost, plan.margin)
    tasks = [Task(node, Usage(cpu=cores), node) for node, cores in loads.items()]
    whole = together(task.usage for task in tasks)
    contracts = tuple(
        _bought(judge, contract, tasks) if contract.buyer == plan.name else _sold(judge, contract, whole)
        for contract in plan.contracts
    )
    return replace(made, cost=plan.cost.total(whole), contracts=contracts)


def _bought(judge: Judge, contract: Contract, tasks: Sequence[Task]) -> ContractCost:
    allowed = [task for task in tasks if contract.allows(task)]
    whole = together(task.usage for task in tasks)
    moved = judge.offerset(allowed, whole, contract, contract.price_low)
    names = {task.task_id for task in moved}
    left = together(task.usage for task in tasks if task.task_id not in names)
    gone = together(task.usage for task in moved)
    price = contract.load(gone) * contract.price_low
    return ContractCost(contract, True, tuple(task.task_id for task in moved), price, judge.cost.marginal(gone, left))


def _sold(judge: Judge, contract: Contract, load: Usage) -> ContractCost:
    room = 0.0
    while room < _ROOM_MAX and judge.takes(
        Task("guest", Usage(cpu=room + _ROOM_STEP)), load, contract, contract.price_high
    ):
        room += _ROOM_STEP
    return ContractCost(contract, False, room=round(room, 2))
