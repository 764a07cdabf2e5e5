"""What a load costs the one who carries it (003 §6.1.2, §7.2.1), now and over the next period (§6.4).

Rules:
1. A cost is monotonically increasing and convex in every resource (6.1); then load that moves to where it costs less
   lowers the sum of all costs, and movements end. `Steps` is the one exception, and says what it loses.
2. The cost is private. Partners see prices and answers, never the function or the load.
3. A marginal cost is the difference of two totals (6.2), so a cost function is one method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.model.errors import UsageError
from holdfast.protocol.load.usage import Usage

#: Utilisation from which M/M/1 is continued by its own tangent parabola: the queue's formula is infinite at 1, and a
#: participant at 150 % must still see which task to shed first. Higher makes overload dearer, not different.
KNEE = 0.98


class Cost(ABC):
    """The cost per second of carrying a load. One method; everything else follows from it."""

    @abstractmethod
    def total(self, usage: Usage) -> float:
        """D(taskset) of (6.1): what this load costs per second."""

    def marginal(self, usage: Usage, load: Usage) -> float:
        """MC(u, taskset) of (6.2): what `usage` costs on top of `load`, which does not contain it."""
        return self.total(load.plus(usage)) - self.total(load)


def queue(rho: float) -> float:
    """Tuples in an M/M/1 queue at this utilisation, continued convexly beyond `KNEE`.

    >>> queue(0.5)
    1.0
    """
    if rho < KNEE:
        return rho / (1.0 - rho)
    rest = 1.0 - KNEE
    over = rho - KNEE
    return KNEE / rest + over / rest**2 + over * over / rest**3


@dataclass(frozen=True, slots=True)
class MM1(Cost):
    """(7.1): tuples in process or waiting, at each resource of which there is a bounded amount.

    The seeds use CPU and bandwidth. Memory may be given as well; it then counts as one more queue, which keeps the cost
    convex (§7.4.2 has the true shape, see `Steps`). A capacity of zero leaves a resource out.
    """

    capacity: Usage

    def __post_init__(self) -> None:
        if min(self.capacity) < 0 or max(self.capacity) <= 0:
            raise UsageError(f"capacities must be positive for at least one resource; got {self.capacity}")

    def total(self, usage: Usage) -> float:
        """The sum of the queues."""
        capacity = self.capacity
        cost = queue(usage.cpu / capacity.cpu) if capacity.cpu else 0.0
        if capacity.bandwidth:
            cost += queue(usage.bandwidth / capacity.bandwidth)
        if capacity.memory:
            cost += queue(usage.memory / capacity.memory)
        return cost


@dataclass(frozen=True, slots=True)
class Levels(Cost):
    """Marginal cost = load level: the abstraction of 003 §7.1.2, where prices are given as numbers of tasks.

    With one task as unit and a price of 100, load leaves a node with 101 tasks or more for one with 99 or fewer.
    """

    def total(self, usage: Usage) -> float:
        """Half the square, so that the n-th task costs n − 1/2."""
        return usage.cpu * usage.cpu / 2.0


@dataclass(frozen=True, slots=True)
class Steps(Cost):
    """Another cost, and a penalty per unit of memory once memory is exceeded (§7.4.2).

    The penalty itself is convex, but a real step is not: fixed prices work with it, and a price range gains nothing,
    because there is no gradient to follow below the step.
    """

    base: Cost
    memory: float
    penalty: float

    def total(self, usage: Usage) -> float:
        """The base, and what swapping costs."""
        return self.base.total(usage) + self.penalty * max(0.0, usage.memory - self.memory)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What share of the next period the load is expected to be at which multiple of its present level.

    >>> Forecast(((0.25, 1.0), (0.75, 0.5))).level
    0.625
    """

    parts: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """(share of the period, multiple of the present load). The default: it stays as it is (§6.4)."""

    def __post_init__(self) -> None:
        shares = sum(share for share, _ in self.parts)
        if abs(shares - 1.0) > 1e-9 or any(share < 0 or level < 0 for share, level in self.parts):
            raise UsageError(f"the shares of a forecast must be positive and add up to 1; got {self.parts}")

    @property
    def level(self) -> float:
        """The mean multiple: what a payment proportional to load is expected to be multiplied by."""
        return sum(share * level for share, level in self.parts)

    def marginal(self, cost: Cost, usage: Usage, load: Usage) -> float:
        """The left sides of (6.6) and (6.7), per second of the period."""
        if len(self.parts) == 1 and self.parts[0][1] == 1.0:
            return cost.marginal(usage, load)
        return sum(share * cost.marginal(usage.times(level), load.times(level)) for share, level in self.parts)


STEADY = Forecast()
