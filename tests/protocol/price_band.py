"""The least price range with which load reaches every node that has room (003 §6.6.1, Lemma 1).

Rules:
1. The seeds give the lower end as FixedPrice − δ_{M−1}(taskset^F). That is enough if FixedPrice is the marginal cost of
   the last task that fits, or if all steps are of equal height. If the price lies higher, between that task and the
   next, the whole range lies higher by as much; and where costs rise steeply that can be more than a step at its lower
   end: a node there has a task to pass on, its marginal cost is just below the range, and load stops. The simulator
   found a chain of six participants where it does.
2. So the lower end here is that marginal cost itself, MC(u, taskset^F − M·u): never above what the lemma gives, and
   equal to it where the lemma's proof applies.
"""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Cost
from holdfast.protocol.load.usage import Usage

#: A capacity beyond this many tasks means that the price is never reached: the cost is not increasing, or the price is.
TASKS_MAX = 10_000_000


def tasks_at(cost: Cost, unit: Usage, price: float, contract: Contract) -> int:
    """taskset^F: how many equal tasks a node carries before the next one would cost more than `price`."""
    limit = contract.load(unit) * price
    low, high = 0, 1
    while cost.marginal(unit, unit.times(high)) <= limit:
        low, high = high, high * 2
        if high > TASKS_MAX:
            raise UsageError(f"a price must be reached by some load; {price} is not within {TASKS_MAX} tasks of {unit}")
    while low < high:
        middle = (low + high) // 2
        if cost.marginal(unit, unit.times(middle)) <= limit:
            low = middle + 1
        else:
            high = middle
    return low


def delta(cost: Cost, unit: Usage, tasks: int, k: int, contract: Contract) -> float:
    """δ_k of (6.15): how far the unit marginal cost falls if k of `tasks` equal tasks leave."""
    if k >= tasks:
        raise UsageError(f"a node must keep a task to have a marginal cost; got {k} of {tasks} taken away")
    upper = cost.marginal(unit, unit.times(tasks - 1))
    lower = cost.marginal(unit, unit.times(tasks - 1 - k))
    return (upper - lower) / contract.load(unit)


def price_low(cost: Cost, unit: Usage, price_high: float, diameter: int, contract: Contract) -> float:
    """The lower end of the range in a network of this diameter (rule 2)."""
    tasks = tasks_at(cost, unit, price_high, contract)
    hops = max(0, diameter - 1)
    if hops >= tasks:
        raise UsageError(f"a chain of {diameter} contracts needs nodes with room for as many tasks; got {tasks}")
    return cost.marginal(unit, unit.times(tasks - 1 - hops)) / contract.load(unit)
