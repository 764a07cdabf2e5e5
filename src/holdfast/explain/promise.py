"""What one node promises with this X, these buckets and this many replicas, as figures.

Rules:
1. Figures come from the cores: when a failure is noticed, when a fork is prepared and whether it can be there in time
   are asked of `protocol.dpc.plan` and `protocol.dpc.fork`, with what is known before a start.
2. A node works in the largest bucket of its inputs. A stream of which nobody has said how large its buckets are has
   those of `holdfast create`.
3. Advice says what the figures mean together, where that is not what their user will have wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.diagram import NodeSpec
from holdfast.explain.operators import Operators
from holdfast.host.catalog import Catalog, replica_name
from holdfast.model.time import SECOND_US, duration_text, duration_us
from holdfast.protocol.dpc.fork import START_US, Fork
from holdfast.protocol.dpc.plan import WARM_DELAY_US, NodePlan, Policy, Stabilise
from holdfast.stream.definition import BUCKET_DEFAULT


@dataclass(frozen=True, slots=True)
class ReplicaPromise:
    """One replica, and whom it reads each input from, best first."""

    name: str
    host: str
    reads: Mapping[str, tuple[str, ...]]
    mirrors: tuple[str, ...]
    """Inputs of which it keeps a copy: all but sources on its own host."""


@dataclass(frozen=True, slots=True)
class NodePromise:
    """One node."""

    node: NodeSpec
    buckets: Mapping[str, int]
    """Bucket of each input."""
    bucket_us: int
    """The one that it works in."""
    depth: int
    """Nodes from the sources to here, itself included."""
    usual_us: int
    """Buckets that a tuple waits for on the longest way to here, in quiet times; a batch for each node comes on top."""
    dead_us: int
    """A producer that does not answer is given up after this."""
    silent_us: int
    """One that answers and stands still is doubted after this, if it is wont to move with every bucket."""
    prepared_us: int
    """The fork is prepared when inputs have stood still for so long."""
    ready_us: int
    """And ready then, if it takes as long as the start of a query usually does."""
    kept_ready: bool
    replicas: tuple[ReplicaPromise, ...]
    operators: Operators
    advice: tuple[str, ...]

    @property
    def late_us(self) -> int:
        """By so much the first tentative results would miss X, since their fork is not there."""
        tentative = self.node.during_failure is not Policy.SUSPEND
        return max(0, self.ready_us - self.node.max_delay_us) if tentative and not self.kept_ready else 0


def buckets_of(catalog: Catalog, known: Mapping[str, int]) -> dict[str, int]:
    """The bucket of every stream (rule 2). `known`: of sources, from their description or from the disk."""
    default_us = duration_us(BUCKET_DEFAULT)
    found = {stream: known.get(stream, default_us) for stream in catalog.diagram.sources}
    for node in catalog.diagram.nodes:
        found[node.output] = node.bucket_us or max(found[stream] for stream in node.inputs)
    return found


def promises(
    catalog: Catalog, known: Mapping[str, int], operators: Mapping[str, Operators] | None = None
) -> tuple[NodePromise, ...]:
    """What every node promises, upstream first."""
    buckets, inside = buckets_of(catalog, known), operators or {}
    made: dict[str, NodePromise] = {}
    for node in catalog.diagram.nodes:
        above = [made[producer.name] for s in node.inputs if (producer := catalog.diagram.producer_of(s)) is not None]
        made[node.name] = _promise(catalog, node, buckets, above, inside.get(node.name, Operators()))
    return tuple(made.values())


def _promise(
    catalog: Catalog, node: NodeSpec, buckets: Mapping[str, int], above: Sequence[NodePromise], operators: Operators
) -> NodePromise:
    hosts = catalog.placement.replica_sets[node.name]
    bucket_us = max(buckets[stream] for stream in node.inputs)
    plan = catalog.plan_of(node.name, hosts[0], bucket_us)
    fork = Fork(plan, 0)
    prepared_us = fork.wanted_us(bucket_us)
    replicas = tuple(
        ReplicaPromise(
            replica_name(node.name, host),
            host,
            {stream: catalog.preferred(stream, replica_name(node.name, host)) for stream in node.inputs},
            tuple(stream for stream in node.inputs if not catalog.reads_in_place(stream, host)),
        )
        for host in hosts
    )
    made = NodePromise(
        node,
        {stream: buckets[stream] for stream in node.inputs},
        bucket_us,
        1 + max((one.depth for one in above), default=0),
        bucket_us + max((one.usual_us for one in above), default=0),
        plan.patience.dead_us,
        plan.patience.doubt_us(bucket_us),
        prepared_us,
        prepared_us + START_US,
        fork.kept_ready,
        replicas,
        operators,
        (),
    )
    return _advised(made, catalog, plan)


def _advised(made: NodePromise, catalog: Catalog, plan: NodePlan) -> NodePromise:
    """Rule 3."""
    node, said = made.node, []
    x = duration_text(node.max_delay_us)
    if made.late_us:
        warm = "let one be kept ready (warm=0.05), or " if node.max_delay_us <= WARM_DELAY_US else ""
        said.append(
            f"X = {x} leaves no time to start a fork: the first tentative results come about "
            f"{duration_text(made.late_us)} late; {warm}take X = {duration_text(_enough_us(plan))} or more"
        )
    if node.during_failure is Policy.DELAY:
        said.append(
            "during_failure='delay' keeps X by giving each bucket to the fork a batch before X is over; new results "
            "are later than with 'process', and what it saves in tentative ones is gone in failures of ten seconds"
        )
    if "withWatermark" in made.operators.spark and "dropDuplicatesWithinWatermark" not in made.operators.spark:
        said.append("withWatermark does not wait: boundaries say when a bucket is complete; leave it out")
    if len(made.replicas) == 1:
        how = "a deployment on two hosts" if catalog.deployment is None else "a second one on another host"
        said.append(f"one replica: while its host is away nothing comes, whatever X is; {how} hides that")
    if len(made.replicas) == 1 and node.stabilise is Stabilise.STAGGER:
        said.append("stabilise='stagger' needs a second replica; alone, it corrects with a fork as 'fork' does")
    for stream in node.inputs:
        above = catalog.diagram.producer_of(stream)
        if above is not None and above.max_delay_us > node.max_delay_us and len(node.inputs) > 1:
            said.append(
                f"{above.name} may hold {stream} back for {duration_text(above.max_delay_us)}, longer than {x}: the "
                f"first tentative results would go without it; give both nodes the same X"
            )
        elif above is not None and above.max_delay_us > node.max_delay_us:
            said.append(
                f"X = {x} is not what its readers wait: {above.name} above it holds results back for "
                f"{duration_text(above.max_delay_us)}"
            )
    if node.stime is not None and "." not in node.stime:
        said.append(
            f"results have the time that stands in {node.stime}: `holdfast check` says whether it is derived from the "
            f"inputs' time; if not, a result below the boundary stops the query"
        )
    return replace(made, advice=tuple(said))


def _enough_us(plan: NodePlan) -> int:
    """An X, in halves of a second, with which a fork that is started at a suspicion is ready in time: detection, the
    start of a query on a busy machine, and a batch."""
    half = SECOND_US // 2
    need_us = plan.patience.usual_us(plan.bucket_us) + 2 * START_US + half
    return -(-need_us // half) * half
