"""What a task needs, in units that partners have agreed on, and the task itself.

Rules:
1. A usage counts agreed units: 1.0 of CPU may be one core of a reference machine. What share of a machine that is, each
   participant knows for itself (`cost.MM1.capacity`); nobody else needs to (§6.2).
2. A task is the unit of movement (§6.1.1). It carries the name of a definition that both sides know, never code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Usage(NamedTuple):
    """Amounts of each resource, in agreed units.

    >>> Usage(cpu=0.25).plus(Usage(cpu=0.25, memory=1.0))
    Usage(cpu=0.5, bandwidth=0.0, memory=1.0)
    """

    cpu: float = 0.0
    bandwidth: float = 0.0
    memory: float = 0.0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(self.cpu + other.cpu, self.bandwidth + other.bandwidth, self.memory + other.memory)

    def minus(self, other: Usage) -> Usage:
        """Without the other."""
        return Usage(self.cpu - other.cpu, self.bandwidth - other.bandwidth, self.memory - other.memory)

    def times(self, factor: float) -> Usage:
        """So many times as much."""
        return Usage(self.cpu * factor, self.bandwidth * factor, self.memory * factor)

    def dot(self, weights: Usage) -> float:
        """One number, with a weight for each resource."""
        return self.cpu * weights.cpu + self.bandwidth * weights.bandwidth + self.memory * weights.memory


NOTHING = Usage()


def together(usages: Iterable[Usage]) -> Usage:
    """The sum of all."""
    cpu = bandwidth = memory = 0.0
    for usage in usages:
        cpu += usage.cpu
        bandwidth += usage.bandwidth
        memory += usage.memory
    return Usage(cpu, bandwidth, memory)


@dataclass(frozen=True, slots=True)
class Task:
    """One movable piece of work as its present holder knows it."""

    task_id: str
    """Unique where it runs: the owner's own name, or the lease under which somebody else's task runs here."""
    usage: Usage
    definition: str = ""
    """What it is an instance of; contracts permit or refuse by this."""
    migration: float = 0.0
    """The cost of moving it once, in the units of the cost function times seconds (§6.4)."""
