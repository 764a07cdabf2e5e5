"""Load as chance: the distributions of 003 §6.5, and loads that were measured.

Rules:
1. Loads are shares of a participant's threshold T: 1.0 is full, a spike of 2.0 is twice T above it.
2. A distribution is drawn from with a generator that is given; it is small and can be sent to workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
