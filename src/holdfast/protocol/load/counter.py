"""What a seller asks when the lowest price is too low for it (003 §6.6.2).

Rules:
1. A counter-offer lies between the seller's valuation and the highest price of the contract.
2. If the same buyer comes back after a counter-offer that led to nothing, the seller asks for its bare valuation: then
   a movement that is possible happens in the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


class Asking(ABC):
    """How much above its valuation a seller asks at the first attempt."""

    @abstractmethod
    def first(self, valuation: float, price_high: float) -> float:
        """The price that a seller with this valuation hopes for."""

    def price(self, valuation: float, price_high: float, lost: bool) -> float:
        """The counter-offer; `lost` says that the last one led to nothing."""
        wanted = valuation if lost else self.first(valuation, price_high)
        return max(valuation, min(wanted, price_high))


@dataclass(frozen=True, slots=True)
class AtValuation(Asking):
    """The bare valuation: what the seeds' simulations use unless they say otherwise (§7.1.1)."""

    def first(self, valuation: float, price_high: float) -> float:
        """No more than it costs."""
        return valuation


@dataclass(frozen=True, slots=True)
class AboveValuation(Asking):
    """A fixed amount above (§7.1.4 uses the price of one or two tasks)."""

    extra: float

    def first(self, valuation: float, price_high: float) -> float:
        """That much more."""
        return valuation + self.extra


@dataclass(frozen=True, slots=True)
class Equilibrium(Asking):
    """(6.18): the best answer to sellers who answer alike, `rivals` of whom have their marginal cost in the range.

    >>> round(Equilibrium(5).first(0.5, 1.0), 3)
    0.6
    """

    sellers: float
    """β · C: how many sellers compete, this one included."""

    def first(self, valuation: float, price_high: float) -> float:
        """p_H − (βC − 1)/βC · (p_H − S)."""
        return price_high - (self.sellers - 1.0) / self.sellers * (price_high - valuation)


def best_counter(valuation: float, competitors: int) -> float:
    """The p2 that maximises (6.17) on the range [0, 1]: what table 6.2 lists.

    The profit (p − S)(1 − p)^n has its maximum at (1 + n·S)/(1 + n). The table's rows are n = competitors + 1, the
    buyer's own reserve counted as one more.

    >>> round(best_counter(0.25, 3), 2)
    0.4
    """
    n = competitors + 1
    return (1.0 + n * valuation) / (1.0 + n)
