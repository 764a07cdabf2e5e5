"""How many contracts to make, at which price: 003 §6.5 and table 6.1 for one's own load and prices.

Rules:
1. History is load as a share of capacity, at regular times. `threshold` is the load that one does not want to exceed;
   what lies above it is a spike, what lies below is everyday load.
2. A contract costs `upkeep` per unit of time whether it is used or not, in the units of the cost function. It is worth
   making as long as one more brings more than that.
3. Buyers protect themselves with contracts priced at the threshold, and save with contracts around the median load.
   Sellers gain from each contract at the threshold by itself, as long as their own load leaves room (§6.5).
4. Partners are taken to have the load distribution that is given, or one's own everyday load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from holdfast.load.contract_value import Floats, Loads, Measured, Sums, spikes, trades
from holdfast.model.errors import UsageError
from holdfast.protocol.load.cost import MM1
from holdfast.protocol.load.usage import Usage

#: Most contracts that are looked at; §6.5 finds five to be nearly all that a buyer needs.
CONTRACTS_MAX = 20
#: With so much of the best benefit more contracts are said to bring little (table 6.1: "a few").
NEARLY = 0.95
#: Fewest samples from which a median and spikes mean anything.
HISTORY_MIN = 20
#: Nobody is twice overloaded most of the time: loads above this are percentages, or not shares of capacity at all.
SHARE_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One row: a kind of contract, how many, at which price, and what they bring."""

    direction: str
    at: str
    load: float
    """The load level that the price belongs to, as a share of capacity."""
    price: float
    contracts: int
    enough: int
    """So many bring 95 % of what the advised number brings."""
    benefit: float
    """Per unit of time, upkeep paid."""
    benefits: tuple[float, ...]
    """Before upkeep, for 0, 1, 2, … contracts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a history says, and what to do about it."""

    samples: int
    median: float
    spike_share: float
    spike_mean: float
    overload_without: float
    overload_with: float
    """How often a spike is left over: always, and with the advised contracts."""
    capacity: float
    """Units of the contracts that a load of 1 is."""
    advice: tuple[Advice, ...]


def plan_contracts(
    history: list[float],
    threshold: float = 0.9,
    upkeep: float = 0.01,
    partners: Loads | None = None,
    runs: int = 50_000,
    seed: int = 0,
    capacity: float = 1.0,
) -> Plan:
    """Read a history and advise. Loads are shares of capacity; `partners` are shares of their thresholds. Prices are
    those of a contract: per unit, of which `capacity` are a load of 1.

    >>> plan = plan_contracts([0.3] * 60 + [0.6] * 30 + [1.4] * 10, upkeep=0.001, runs=2000)
    >>> [(advice.direction, advice.at) for advice in plan.advice][:2]
    [('buyer', 'threshold'), ('buyer', 'median')]
    """
    _check(history, threshold, upkeep, capacity)
    loads = np.asarray(history, dtype=float)
    everyday = Measured(tuple((np.minimum(loads[loads <= threshold], threshold) / threshold).tolist()) or (1.0,))
    over = loads[loads > threshold]
    sellers = partners or everyday
    rng = np.random.default_rng(seed)
    share = len(over) / len(loads)
    bought = [_below(everyday, sellers, level, threshold, upkeep, runs, rng) for level in _levels(everyday)]
    median = max(bought, key=lambda advice: advice.benefit)
    top, sums = _spikes(over, share, sellers, threshold, upkeep, runs, rng)
    without = 1.0 if len(over) else 0.0
    left = float(sums.overloaded[top.contracts] / sums.runs) if sums is not None else 0.0
    sold = _sold(everyday, share, over, threshold, upkeep)
    few = Advice("seller", "median", median.load, median.price, median.contracts, median.enough, median.benefit,
                 median.benefits)  # fmt: skip
    spike_mean = float(over.mean() - threshold) if len(over) else 0.0
    advice = tuple(replace(each, price=each.price / capacity) for each in (top, median, sold, few))
    return Plan(len(loads), float(np.median(loads)), share, spike_mean, without, left, capacity, advice)


def _check(history: list[float], threshold: float, upkeep: float, capacity: float) -> None:
    if len(history) < HISTORY_MIN:
        raise UsageError(f"a load history must have at least {HISTORY_MIN} samples; got {len(history)}")
    for load in history:
        if not (np.isfinite(load) and load >= 0):
            raise UsageError(f"loads must be numbers from 0 up, as shares of capacity; got {load}; leave it out")
    if (median := float(np.median(history))) > SHARE_MAX:
        raise UsageError(
            f"loads must be shares of capacity, such as 0.75; half of these are above {median:g}; divide percentages "
            f"by 100"
        )
    if not 0 < threshold < 1:
        raise UsageError(f"the threshold must lie between 0 and 1, a share of capacity; got {threshold}")
    if not (np.isfinite(capacity) and capacity > 0):
        raise UsageError(f"the capacity must be a positive number of cores, as in the contract file; got {capacity}")
    if upkeep < 0:
        raise UsageError(f"the upkeep of a contract must not be negative; got {upkeep}")


def _price(load: float) -> float:
    """The gradient of (7.1) for one resource: what more load costs at this load, both as shares of capacity."""
    cost, tiny = MM1(Usage(cpu=1.0)), 1e-6
    return (cost.total(Usage(load + tiny)) - cost.total(Usage(load - tiny))) / (2 * tiny)


def _costs(threshold: float) -> Callable[[Floats], Floats]:
    """(7.1) for one resource over loads as shares of the threshold."""
    cost = MM1(Usage(cpu=1.0))
    return np.vectorize(lambda share: cost.total(Usage(share * threshold)), otypes=[float])


def _levels(everyday: Measured) -> list[float]:
    """The median and a little below, where a buyer's gain is largest (§6.5)."""
    found = np.quantile(np.asarray(everyday.values), (0.35, 0.42, 0.5))
    return sorted({min(0.98, max(0.02, float(level))) for level in found})


def _best(benefits: Floats, upkeep: float) -> tuple[int, int, float]:
    """How many to make, how many would nearly do, and what they bring."""
    net = benefits - upkeep * np.arange(len(benefits))
    best = int(net.argmax())
    enough = next(n for n in range(best + 1) if benefits[n] >= NEARLY * benefits[best])
    return best, enough, float(net[best])


def _spikes(
    over: Floats, share: float, sellers: Loads, threshold: float, upkeep: float, runs: int, rng: np.random.Generator
) -> tuple[Advice, Sums | None]:
    """Against overload: contracts at the threshold. What is not moved costs what (7.1) says above it."""
    price = _price(threshold)
    if not len(over):
        return Advice("buyer", "threshold", threshold, price, 0, 0, 0.0, (0.0,)), None
    excess = Measured(tuple(((over - threshold) / threshold).tolist()))
    sums = spikes(excess, sellers, CONTRACTS_MAX, runs, rng)
    # (6.14) with f: a unit of load above the threshold costs at least the gradient there, and is sold for just that; so
    # what is counted is the load itself, in units of T, valued at the price.
    benefits = share * (sums.overload[0] - sums.overload) / sums.runs * threshold * price
    best, enough, net = _best(benefits, upkeep)
    return Advice("buyer", "threshold", threshold, price, best, enough, net, tuple(benefits.tolist())), sums


def _below(
    everyday: Measured, sellers: Loads, level: float, threshold: float, upkeep: float, runs: int,
    rng: np.random.Generator,
) -> Advice:  # fmt: skip
    """To save: contracts at a load level below the threshold."""
    price = _price(level * threshold)
    sums = trades(everyday, sellers, level, CONTRACTS_MAX, runs // 5, rng,
                  _costs(threshold), price * threshold)  # fmt: skip
    benefits = sums.saved / sums.runs
    best, enough, net = _best(benefits, upkeep)
    return Advice("buyer", "median", level * threshold, price, best, enough, net, tuple(benefits.tolist()))


def _sold(everyday: Measured, share: float, over: Floats, threshold: float, upkeep: float) -> Advice:
    """As a seller at the threshold: every contract brings the same, until the room is sold."""
    price = _price(threshold)
    room = threshold * (1.0 - float(np.mean(everyday.values)))
    wanted = float(np.minimum(over - threshold, room).mean()) if len(over) else 0.0
    # What a unit brings is the price, what it costs the mean gradient on the way up to it.
    cost = MM1(Usage(cpu=1.0))
    start = threshold - room
    spent = (cost.total(Usage(start + wanted)) - cost.total(Usage(start))) if wanted else 0.0
    each = share * max(0.0, price * wanted - spent)
    most = int(min(CONTRACTS_MAX, room / (share * wanted))) if share * wanted > 0 else 0
    benefits = each * np.minimum(np.arange(CONTRACTS_MAX + 1), most)
    best, enough, net = _best(benefits, upkeep)
    return Advice("seller", "threshold", threshold, price, best, enough, net, tuple(benefits.tolist()))
