"""Which tasks to offer and which to accept: the inner loops of figures 6-4 and 6-5.

Rules:
1. A buyer offers a task only if carrying it costs more than paying for it, plus moving it there and back (§6.4):
   MC · d > price · load · d + 2 · migration. A seller accepts only if carrying it costs less than it is paid.
2. Each task is judged on top of those that stay (buyer), or on top of everything taken or promised so far (seller), so
   a set is never larger than what pays (B4, B6).
3. A margin on both sides keeps measurements that tremble around a price from moving load to and fro (§7.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import STEADY, Cost, Forecast
from holdfast.protocol.load.usage import Task, Usage


@dataclass(frozen=True, slots=True)
class Judge:
    """One participant's eye for profit."""

    cost: Cost
    margin: float = 0.0
    """Relative: buyers need a marginal cost above price · (1 + margin), sellers one below price · (1 − margin)."""
    forecast: Forecast = STEADY

    def sheds(self, task: Task, rest: Usage, contract: Contract, price: float) -> bool:
        """(6.6) with migration: whether paying for `task` beats carrying it on top of `rest`."""
        d = contract.period_s
        local = self.forecast.marginal(self.cost, task.usage, rest) * d
        paid = contract.load(task.usage) * self.forecast.level * price * (1.0 + self.margin) * d
        return local > paid + 2.0 * task.migration

    def takes(self, task: Task, load: Usage, contract: Contract, price: float) -> bool:
        """(6.7): whether being paid for `task` beats the cost of carrying it on top of `load`."""
        local = self.forecast.marginal(self.cost, task.usage, load)
        return local < contract.load(task.usage) * self.forecast.level * price * (1.0 - self.margin)

    def valuation(self, task: Task, load: Usage, contract: Contract) -> float:
        """S of (6.16): the unit price below which taking the task would lose money."""
        units = contract.load(task.usage) * self.forecast.level
        local = self.forecast.marginal(self.cost, task.usage, load)
        return local / units / (1.0 - self.margin) if units > 0 else float("inf")

    def offerset(self, tasks: Iterable[Task], load: Usage, contract: Contract, price: float) -> tuple[Task, ...]:
        """Lines 04 to 08 of OFFER_LOAD: the tasks worth offering, when `load` is all that runs here."""
        offered = []
        for task in tasks:
            rest = load.minus(task.usage)
            if self.sheds(task, rest, contract, price):
                offered.append(task)
                load = rest
        return tuple(offered)

    def acceptset(self, tasks: Iterable[Task], load: Usage, contract: Contract, price: float) -> tuple[Task, ...]:
        """Lines 09 to 13 of ACCEPT_LOAD: the tasks worth taking, when `load` is all that runs or was promised."""
        accepted = []
        for task in tasks:
            if self.takes(task, load, contract, price):
                accepted.append(task)
                load = load.plus(task.usage)
        return tuple(accepted)
