"""What a number of contracts is worth, by trying: the Monte Carlo kernels of 003 §6.5.

Rules:
1. One run draws a situation and looks at all numbers of contracts from 0 up at once: the partners of C contracts are
   the first C of those drawn. So curves are smooth, and a run costs one draw per partner.
2. Kernels return sums, not means: shares of runs computed anywhere can be added.
3. Prices are gradients of the cost function at a load level (§6.5).
4. Loads are drawn from distributions, or from what was measured, with a generator that is given. They are shares of a
   participant's threshold T: 1.0 is full, a spike of 2.0 is twice T above it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import UsageError

Floats = npt.NDArray[np.float64]


class Loads(ABC):
    """Where loads come from."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Independent loads."""


@dataclass(frozen=True, slots=True)
class Pareto(Loads):
    """The bounded Pareto distribution (6.9) on [low, high]; with a negative alpha, its non-heavy-tailed kin."""

    alpha: float
    low: float = 0.01
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.alpha in (0.0, 1.0) or not 0 < self.low < self.high:
            raise UsageError(f"a bounded Pareto needs alpha other than 0 and 1 and 0 < low < high; got {self}")

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """By the inverse of (6.9)."""
        tail = 1.0 - (self.low / self.high) ** self.alpha
        drawn: Floats = self.low * (1.0 - rng.random(shape) * tail) ** (-1.0 / self.alpha)
        return drawn

    @property
    def mean(self) -> float:
        """(6.10)."""
        a, k, t = self.alpha, self.low, self.high
        return float(k**a / (1 - (k / t) ** a) * a / (a - 1) * (k ** (1 - a) - t ** (1 - a)))

    @property
    def median(self) -> float:
        """Half of the loads are below."""
        tail = 1.0 - (self.low / self.high) ** self.alpha
        return float(self.low * (1.0 - 0.5 * tail) ** (-1.0 / self.alpha))


@dataclass(frozen=True, slots=True)
class Measured(Loads):
    """Loads as they were: each draw is one of them."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UsageError("measured loads must be at least one; got none")

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """With replacement."""
        drawn: Floats = rng.choice(np.asarray(self.values), shape)
        return drawn


#: Sellers of figures 6-8 to 6-11.
SELLERS = {"light": Pareto(-0.5), "uniform": Pareto(-1.0), "heavy": Pareto(-2.0)}
#: Spikes of figures 6-8 to 6-10, by what part of the figures they are.
SPIKES = {"a": Pareto(0.14, 0.01, 10.0), "b": Pareto(0.5, 0.01, 100.0)}


#: So many runs are drawn at a time: a few megabytes, whatever is asked for.
CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Sums:
    """Over runs, by number of contracts."""

    runs: int
    overloaded: Floats
    """How often something was left over that nobody could take."""
    overload: Floats
    """How much."""
    moved: Floats
    """How much was bought."""
    saved: Floats
    """What that saved, paid for."""

    def plus(self, other: Sums) -> Sums:
        """Both."""
        return Sums(self.runs + other.runs, self.overloaded + other.overloaded, self.overload + other.overload,
                    self.moved + other.moved, self.saved + other.saved)  # fmt: skip


def nothing(contracts: int) -> Sums:
    """No runs yet."""
    zero = np.zeros(contracts + 1)
    return Sums(0, zero, zero, zero, zero)


def cost(load: Floats) -> Floats:
    """The illustrative cost of figure 6-11: (ρ − 0.2)/(1 − ρ + 0.2)."""
    return (load - 0.2) / (1.2 - load)


def gradient(load: float) -> float:
    """Its gradient: the unit price at a load level."""
    return 1.0 / (1.2 - load) ** 2


def spikes(spike: Loads, seller: Loads, contracts: int, runs: int, rng: np.random.Generator) -> Sums:
    """Spikes above T, and what partners with contracts at T have room for (6.13, 6.14)."""
    return _in_chunks(contracts, runs, lambda n: _spikes(spike, seller, contracts, n, rng))


def _spikes(spike: Loads, seller: Loads, contracts: int, runs: int, rng: np.random.Generator) -> Sums:
    excess = spike.draw(rng, (runs,))
    room = _rooms(1.0 - seller.draw(rng, (runs, contracts)))
    left = np.maximum(excess[:, None] - room, 0.0)
    moved = excess[:, None] - left
    return Sums(runs, (left > 0).sum(axis=0).astype(float), left.sum(axis=0), moved.sum(axis=0),
                np.zeros(contracts + 1))  # fmt: skip


def trades(
    buyer: Loads,
    seller: Loads,
    level: float,
    contracts: int,
    runs: int,
    rng: np.random.Generator,
    cost_of: Callable[[Floats], Floats] = cost,
    price: float | None = None,
) -> Sums:
    """Buyer and sellers below T with contracts at a load level: what moves, what the buyer saves (figure 6-11)."""
    unit = gradient(level) if price is None else price
    return _in_chunks(contracts, runs, lambda n: _trades(buyer, seller, level, contracts, n, rng, cost_of, unit))


def _trades(
    buyer: Loads,
    seller: Loads,
    level: float,
    contracts: int,
    runs: int,
    rng: np.random.Generator,
    cost_of: Callable[[Floats], Floats],
    price: float,
) -> Sums:
    load = np.minimum(buyer.draw(rng, (runs,)), 1.0)[:, None]
    room = _rooms(np.maximum(level - seller.draw(rng, (runs, contracts)), 0.0))
    moved = np.minimum(np.maximum(load - level, 0.0), room)
    saved = cost_of(load) - cost_of(load - moved) - price * moved
    zero = np.zeros(contracts + 1)
    return Sums(runs, zero, zero, moved.sum(axis=0), saved.sum(axis=0))


def _rooms(room: Floats) -> Floats:
    """The room of the first 0, 1, 2, … partners together."""
    total = np.cumsum(np.maximum(room, 0.0), axis=1)
    return np.concatenate((np.zeros((len(room), 1)), total), axis=1)


def _in_chunks(contracts: int, runs: int, some: Callable[[int], Sums]) -> Sums:
    sums = nothing(contracts)
    while sums.runs < runs:
        sums = sums.plus(some(min(CHUNK, runs - sums.runs)))
    return sums
