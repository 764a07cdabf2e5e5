"""The least price range with which load reaches every node that has room (003 §6.6.1, Lemma 1)."""

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
    """The lower end of the range that Lemma 1 asks for in a network of this diameter."""
    tasks = tasks_at(cost, unit, price_high, contract)
    return price_high - delta(cost, unit, tasks, max(0, diameter - 1), contract)
