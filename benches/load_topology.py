"""Contract graphs, capacities and loads as in 003 §7.1.2 and tables 7.1 to 7.3.

Rules:
1. A graph is built as the seeds say: every node first makes a contract with one that is already connected; then nodes
   that still have too few choose further partners at random, one at a time.
2. Contracts are bilateral: one for each direction, at the same price.
3. Everything is drawn from one numpy generator, so a seed is a system.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import UsageError

Ints = npt.NDArray[np.int64]


class Variant(Enum):
    """Table 7.2."""

    UNIFORM_FIXED = "uniform fixed"
    UNIFORM_RANGE = "uniform range"
    HETEROGENEOUS_FIXED = "heterogeneous fixed"
    HETEROGENEOUS_RANGE = "heterogeneous range"

    @property
    def uniform(self) -> bool:
        """All nodes have the same capacity."""
        return self in (Variant.UNIFORM_FIXED, Variant.UNIFORM_RANGE)

    @property
    def ranged(self) -> bool:
        """Prices may be negotiated."""
        return self in (Variant.UNIFORM_RANGE, Variant.HETEROGENEOUS_RANGE)


@dataclass(frozen=True, slots=True)
class Level:
    """One row of table 7.3: a bounded Pareto distribution for initial loads."""

    name: str
    share: float
    """Of total capacity."""
    alpha: float
    low: int = 1
    high: int = 300

    @property
    def overloaded(self) -> bool:
        """More load than capacity."""
        return self.share > 1


LEVELS = (
    Level("light load", 0.50, 0.01),
    Level("heavy load", 0.75, -0.22),
    Level("light overload", 1.25, -0.70),
    Level("heavy overload", 1.50, -1.00),
)
CAPACITY = 100
#: Width of the price range of both range variants, in tasks.
RANGE = 5


@dataclass(frozen=True, slots=True)
class Graph:
    """Who has a contract with whom, both ways: partners of node i are `partners[starts[i]:starts[i + 1]]`."""

    starts: Ints
    partners: Ints

    @property
    def nodes(self) -> int:
        """How many participants."""
        return len(self.starts) - 1

    def of(self, node: int) -> Ints:
        """One node's partners, in the order in which it made the contracts."""
        return self.partners[self.starts[node] : self.starts[node + 1]]

    @property
    def degrees(self) -> Ints:
        """Contracts of each node."""
        return np.diff(self.starts)


def connect(nodes: int, least: int, rng: np.random.Generator) -> Graph:
    """A random contract graph in which every node has at least `least` partners."""
    if nodes < 2 or least < 1:
        raise UsageError(f"a contract graph needs two nodes and one contract each; got {nodes} and {least}")
    partners: list[list[int]] = [[] for _ in range(nodes)]
    known: list[set[int]] = [set() for _ in range(nodes)]
    first = rng.random(nodes)
    for node in range(1, nodes):
        _join(node, int(first[node] * node), partners, known)
    wanting = [node for node in range(nodes) if len(partners[node]) < min(least, nodes - 1)]
    while wanting:
        # One more for each in turn, so that nobody collects its own before others have begun.
        for node, chosen in zip(wanting, rng.integers(0, nodes, len(wanting)).tolist(), strict=True):
            if chosen != node and chosen not in known[node] and len(partners[node]) < least:
                _join(node, chosen, partners, known)
        wanting = [node for node in wanting if len(partners[node]) < min(least, nodes - 1)]
    starts = np.concatenate(([0], np.cumsum([len(found) for found in partners])))
    return Graph(starts, np.array([other for found in partners for other in found], dtype=np.int64))


def _join(a: int, b: int, partners: list[list[int]], known: list[set[int]]) -> None:
    partners[a].append(b)
    partners[b].append(a)
    known[a].add(b)
    known[b].add(a)


def diameter(graph: Graph) -> int:
    """The longest of all shortest ways, by breadth-first search from every node at once."""
    n = graph.nodes
    reach = np.eye(n, dtype=bool)
    sources = np.repeat(np.arange(n), graph.degrees)
    steps = 0
    while not reach.all():
        wider = reach.copy()
        np.logical_or.at(wider, sources, reach[graph.partners]) if n < 64 else _spread(wider, reach, graph)
        if (wider == reach).all():
            raise UsageError("the contract graph must be connected; some participants cannot be reached")
        reach = wider
        steps += 1
    return steps


def _spread(wider: npt.NDArray[np.bool_], reach: npt.NDArray[np.bool_], graph: Graph) -> None:
    for node in range(graph.nodes):
        wider[node] |= reach[graph.of(node)].any(axis=0)


def capacities(nodes: int, variant: Variant, rng: np.random.Generator) -> Ints:
    """100 tasks each, or whole numbers spread evenly over [80, 120]."""
    if variant.uniform:
        return np.full(nodes, CAPACITY)
    return rng.integers(80, 121, nodes)


def loads(nodes: int, level: Level, rng: np.random.Generator) -> Ints:
    """Whole tasks drawn from the level's distribution (the inverse of the F of table 7.3)."""
    tail = 1.0 - (level.low / level.high) ** level.alpha
    drawn = level.low * (1.0 - rng.random(nodes) * tail) ** (-1.0 / level.alpha)
    whole: Ints = np.clip(np.rint(drawn), level.low, level.high).astype(np.int64)
    return whole


@dataclass(frozen=True, slots=True)
class System:
    """Participants ready to start: a graph, capacities, a price range for each direction of each contract, loads."""

    graph: Graph
    capacity: Ints
    price_low: Ints
    price_high: Ints
    """One for each entry of `graph.partners`."""
    load: Ints
    phase_us: Ints
    """When each first looks at its load."""


def build(
    graph: Graph,
    variant: Variant,
    level: Level,
    rng: np.random.Generator,
    width: int = RANGE,
    spread: int = 40,
) -> System:
    """A system of one variant at one load level on a given graph; `spread` as in `phases`."""
    n = graph.nodes
    capacity = capacities(n, variant, rng)
    owners = np.repeat(np.arange(n), graph.degrees)
    high = np.minimum(capacity[owners], capacity[graph.partners])
    low = high - width if variant.ranged else high
    return System(graph, capacity, low, high, loads(n, level, rng), phases(n, rng, spread))


def phases(nodes: int, rng: np.random.Generator, spread: int = 40) -> Ints:
    """Starting times within so many fortieths of a second: 1 for all together, 40 for all over the period.

    Different within a fortieth, so that no two events coincide: negotiations pause for whole fortieths.
    """
    slot = 1_000_000 // 40
    offsets = rng.permutation(slot)[np.arange(nodes) % slot]
    return offsets + slot * rng.integers(0, spread, nodes)


def left_over(load: Ints, capacity: Ints, overloaded: bool) -> float:
    """How far from acceptable (figure 7-1): the share of load above capacity, or of capacity that is not used."""
    if overloaded:
        return float(np.maximum(capacity - load, 0).sum() / capacity.sum())
    return float(np.maximum(load - capacity, 0).sum() / load.sum())


def acceptable(load: Ints, capacity: Ints) -> bool:
    """Definition 9."""
    if load.sum() > capacity.sum():
        return bool((load >= capacity).all())
    return bool((load <= capacity).all())
