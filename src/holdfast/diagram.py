"""The query diagram: which node reads which streams and produces which one (003 §1.2, §3.2). Frozen and checked.

Rules:
1. A stream has one producer: a node, or the outside world (then it is a *source*). A stream that no node reads is a
   *sink*.
2. The diagram is loop-free: deadlines and corrections travel downstream only, so a loop could never come to rest.
3. Nodes stand in topological order, those that could stand in any order as they were written down.
4. Everything a user can get wrong is refused here, before Spark, disk or network are touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from holdfast.model.errors import BadName, UsageError
from holdfast.model.names import check_name
from holdfast.model.time import SECOND_US, duration_text
from holdfast.protocol.dpc.plan import (
    KEEPALIVE_US,
    WARM_SHARE,
    Full,
    Policy,
    Stabilise,
    check_times,
    check_warm,
)

Boundaries = Literal["auto", "before", "exact"]
Retain = Literal["all", "acknowledged"]
#: Replicas talk to each other all the time; the seeds are made for few of them (§4.1.2), and a slip of the keyboard
#: should not start thousands.
REPLICAS_MAX = 16


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as its user described it: a function from streaming DataFrames to one, or to a flow, and the promises
    around it."""

    name: str
    inputs: tuple[str, ...]
    output: str
    function: Callable[..., Any]
    max_delay_us: int = 3 * SECOND_US
    """The X of 003 §4.1.1: the most that a failure may add to latency."""
    replicas: int = 1
    separate: bool = False
    """The function takes one DataFrame per input (a join); otherwise a single one with all inputs merged."""
    together: tuple[tuple[str, ...], ...] = ()
    """Inputs that come as one DataFrame where the others come apart: the stripes of a stream."""
    blocking: tuple[str, ...] = ()
    """Inputs without which nothing can come out (§4.1.3)."""
    during_failure: Policy = Policy.PROCESS
    during_stabilisation: Policy = Policy.PROCESS
    stabilise: Stabilise = Stabilise.FORK
    convergent_us: int | None = None
    """How much input the query's state depends on, if it is convergent-capable; None: perhaps all of it."""
    capacity_us: int | None = None
    """How much output may stay unacknowledged, in stime; None keeps everything."""
    full: Full = Full.BLOCK
    retain: Retain = "all"
    """What is kept of the output: all of it, or what some reader has not acknowledged (§4.9)."""
    bucket_us: int | None = None
    """Bucket size of the output; None: that of the inputs."""
    stime: str | None = None
    """Column or window of the result that gives stime; None: `stime`, else the one with event time."""
    begin_us: int | None = None
    """Where the node begins to read, the same for all replicas; None: where its inputs began."""
    boundaries: Boundaries = "auto"
    output_mode: Literal["append"] = "append"
    keepalive_us: int = KEEPALIVE_US
    warm: float = WARM_SHARE
    """The share of time that may go into keeping a fork ready, where X asks for it: up to 2 s, which leave no time to
    start one when it is needed. 0: none is kept."""
    output_schema: pa.Schema | None = None
    """Columns of the output, where they should be known before the query first runs."""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        if not self.inputs:
            raise UsageError(f"node {self.name!r} must have at least one input; got none; name its streams in inputs=")
        for stream in (*self.inputs, self.output):
            check_name(stream)
        if len(set(self.inputs)) != len(self.inputs):
            raise UsageError(
                f"the inputs of node {self.name!r} must differ; got {', '.join(self.inputs)}; read a stream once and "
                "split it in the function"
            )
        strange = [stream for stream in self.blocking if stream not in self.inputs]
        if strange:
            raise UsageError(
                f"blocking inputs of node {self.name!r} must be among its inputs {', '.join(self.inputs)}; got "
                f"{', '.join(strange)}"
            )
        if type(self.replicas) is not int or not 1 <= self.replicas <= REPLICAS_MAX:
            raise UsageError(f"node {self.name!r} must have 1 to {REPLICAS_MAX} replicas; got {self.replicas!r}")
        self._check_durations()

    @property
    def frames(self) -> tuple[tuple[str, ...], ...]:
        """The inputs of each DataFrame that a function takes which has them separate."""
        found: dict[tuple[str, ...], None] = {}
        for stream in self.inputs:
            found[next((names for names in self.together if stream in names), (stream,))] = None
        return tuple(found)

    def _check_durations(self) -> None:
        for what, us in (("capacity", self.capacity_us), ("convergent", self.convergent_us)):
            if us is not None and us <= 0:
                raise UsageError(f"{what} of node {self.name!r} must be longer than nothing; got {us} us; leave it out")
        if self.bucket_us is not None and self.bucket_us < 1000:
            raise UsageError(
                f"a bucket of node {self.name!r} must last 1ms or more, because Spark counts time in milliseconds; got "
                f"{self.bucket_us} us"
            )
        check_times(self.name, self.bucket_us or SECOND_US, self.max_delay_us, self.keepalive_us)
        check_warm(self.name, self.warm)
        if self.full is Full.KEEP_LAST and self.convergent_us is None:
            raise UsageError(
                f"node {self.name!r} may drop output only if its query is convergent-capable; got full='keep_last' "
                "without convergent=; say how much input the query's state depends on, or use full='block'"
            )
        if self.full is Full.KEEP_LAST and (self.retain == "all" or self.capacity_us is None):
            raise UsageError(
                f"node {self.name!r} keeps the last of its output only if it may let the rest go; got full='keep_last' "
                f"with retain={self.retain!r} and {'no' if self.capacity_us is None else 'a'} capacity; give capacity= "
                "and retain='acknowledged', or use full='block'"
            )


@dataclass(frozen=True, slots=True)
class Diagram:
    """All nodes of an application, in the order in which tuples pass them. Made by `diagram_of`."""

    app: str
    nodes: tuple[NodeSpec, ...]
    sources: tuple[str, ...]
    """Streams that come from outside, in the order of first use."""
    sinks: tuple[str, ...]
    """Streams that only clients read."""

    @property
    def streams(self) -> tuple[str, ...]:
        return (*self.sources, *(node.output for node in self.nodes))

    def node(self, name: str) -> NodeSpec:
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none"
        raise UsageError(f"no node {name!r} in application {self.app!r}; there are: {known}; check the name")

    def producer_of(self, stream: str) -> NodeSpec | None:
        """The node that produces the stream; None for a source."""
        return next((node for node in self.nodes if node.output == stream), None)

    def readers_of(self, stream: str) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if stream in node.inputs)

    def to_mermaid(self) -> str:
        """The diagram as Mermaid draws it: streams are rounded, nodes are boxes.

        Names may hold dots and dashes that Mermaid reads as its own, so they are labels and the ids are numbers.
        """
        ids = {stream: f"s{number}" for number, stream in enumerate(self.streams)}
        lines = ["flowchart LR", *(f'    {ids[stream]}(["{stream}"])' for stream in self.streams)]
        for number, node in enumerate(self.nodes):
            lines.append(f'    n{number}["{node.name} ×{node.replicas}"]')
            lines += [f"    {ids[stream]} --> n{number}" for stream in node.inputs]
            lines.append(f"    n{number} --> {ids[node.output]}")
        return "\n".join(lines)

    def to_text(self) -> str:
        """The diagram for a terminal, node by node."""
        return "\n".join(line for node in self.nodes for line in _block(node))


class Application(ABC):
    """What a host runs, as far as it must know: `holdfast.App` is one."""

    name: str
    root: Path

    @abstractmethod
    def diagram(self) -> Diagram:
        """Its nodes, checked and in topological order."""

    @property
    def sources(self) -> Mapping[str, Any]:
        """Streams that are filled from elsewhere, and how (`holdfast.inputs.source.SourceSpec`)."""
        return {}

    @property
    def sinks(self) -> tuple[Any, ...]:
        """Targets outside that are kept at what its streams say (`holdfast.sinks.sink.SinkSpec`)."""
        return ()


def diagram_of(app: str, nodes: Iterable[NodeSpec]) -> Diagram:
    """The checked diagram of these nodes."""
    declared = tuple(nodes)
    produced: dict[str, NodeSpec] = {}
    names: set[str] = set()
    for node in declared:
        if node.name in names:
            raise UsageError(
                f"node names of application {app!r} must differ; got {node.name!r} twice; give one of them name="
            )
        names.add(node.name)
        other = produced.setdefault(node.output, node)
        if other is not node:
            raise UsageError(
                f"a stream must have one producer; got {node.output!r} from nodes {other.name!r} and {node.name!r}; "
                "give one of them another output="
            )
    inputs = dict.fromkeys(stream for node in declared for stream in node.inputs)
    sources = tuple(stream for stream in inputs if stream not in produced)
    for stream in sources:
        if stream in names:  # Both would have a replica of that name.
            raise UsageError(
                f"a node must not be named like a source stream; got {stream!r} for both; give the node another name="
            )
    sinks = tuple(stream for stream in produced if stream not in inputs)
    return Diagram(app, _ordered(app, declared, produced), sources, sinks)


def _ordered(app: str, declared: tuple[NodeSpec, ...], produced: dict[str, NodeSpec]) -> tuple[NodeSpec, ...]:
    before = {node.name: [produced[s].name for s in node.inputs if s in produced] for node in declared}
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        raise UsageError(
            f"the diagram of application {app!r} must be free of loops; got {' → '.join(error.args[1])}; let one of "
            "them read another stream"
        ) from None
    ordered: list[NodeSpec] = []
    while sorter.is_active():
        ready = set(sorter.get_ready())
        ordered += [node for node in declared if node.name in ready]
        sorter.done(*ready)
    return tuple(ordered)


def check_node_name(name: str, what: str = "the name of a node", remedy: str = "give it one with name=") -> str:
    """Names of nodes, hosts and applications follow the rule of streams: all of them become folders."""
    try:
        return check_name(name)
    except BadName:
        raise BadName(
            f"{what} must be 1 to 128 of a-z 0-9 . _ - beginning with a letter or digit and without '..'; got "
            f"{name!r}; {remedy}"
        ) from None


def _block(node: NodeSpec) -> list[str]:
    """One node with its inputs on the left, joined where the node stands."""
    width = max(map(len, node.inputs))
    middle = (len(node.inputs) - 1) // 2
    lines = []
    for row, stream in enumerate(node.inputs):
        if len(node.inputs) == 1:
            joint = "─"
        elif row == 0:
            joint = "┬" if row == middle else "┐"
        elif row == len(node.inputs) - 1:
            joint = "┘"
        else:
            joint = "┼" if row == middle else "┤"
        line = f"{stream:<{width}} ─{joint}"
        if row == middle:
            line += f"─► {node.name} ×{node.replicas} (within {duration_text(node.max_delay_us)}) ─► {node.output}"
        lines.append(line)
    return lines
