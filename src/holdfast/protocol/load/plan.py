"""What a participant is told about itself: frozen, checked, and built into a core.

Rules:
1. Times are integer microseconds. `answer_us` must be well below every contract's period, or a round of negotiations
   would outlast the load that it is about.
2. Contracts are given in the order of preference; price goes before preference (§6.3, §7.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.model.errors import UsageError
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Cost
from holdfast.protocol.load.counter import Asking, AtValuation

#: How long a buyer waits for an answer before it takes silence for a no. Shorter calls slow partners failed, longer
#: spends the period on waiting. Also the interval at which unanswered commitments are repeated.
ANSWER_US = 200_000
#: Periods that a task may run here without being paid for. Fewer would put out the tasks of a buyer that is only down
#: for a while, more is what anybody can have for nothing.
UNPAID_PERIODS = 3


@dataclass(frozen=True, slots=True)
class ParticipantPlan:
    """One owner of hosts. `ParticipantCore(plan, ...)` runs it."""

    name: str
    cost: Cost
    contracts: tuple[Contract, ...]
    interval_us: int = SECOND_US
    """Ω1 of figure 6-4: the pause after a movement, and after a round that led to none."""
    gather_us: int = 0
    """Ω2 of figure 6-5: how long offers are collected before the dearest is examined first."""
    answer_us: int = ANSWER_US
    pause_us: int = 0
    """The pause after a counter-offer, before the next partner is asked (§7.1.1: D/40)."""
    margin: float = 0.0
    """Against oscillation; see `choice.Judge.margin`."""
    asking: Asking = field(default_factory=AtValuation)
    returns: bool = True
    """Whether leases end when they no longer pay (§6.4), or load moves for good (§6.3)."""
    unpaid_periods: int = UNPAID_PERIODS
    """After so many of them a seller puts a task out, wherever it stands (X7)."""
    start_us: int = 0
    """No offer before: spreads participants that start together."""

    def __post_init__(self) -> None:
        name = f"participant {self.name!r}"
        if min(self.interval_us, self.answer_us) <= 0 or min(self.gather_us, self.pause_us) < 0:
            raise UsageError(f"{name} must have positive intervals; got {self.interval_us} and {self.answer_us} us")
        if self.unpaid_periods < 1:
            raise UsageError(f"{name} must wait at least one period for its money; got {self.unpaid_periods}")
        if not 0 <= self.margin < 1:
            raise UsageError(f"the margin of {name} must lie in [0, 1); got {self.margin}")
        seen: set[tuple[str, str]] = set()
        ids: set[str] = set()
        for contract in self.contracts:
            pair = (contract.buyer, contract.seller)
            if self.name not in pair:
                raise UsageError(f"contract {contract.contract_id!r} must name {self.name!r}; got {pair}")
            if pair in seen or contract.contract_id in ids:
                raise UsageError(
                    f"{name} must have one contract for each partner and direction, each with its own id; got "
                    f"{contract.contract_id!r} from {pair[0]!r} to {pair[1]!r} twice"
                )
            seen.add(pair)
            ids.add(contract.contract_id)
            if contract.period_us < 2 * self.answer_us:
                raise UsageError(
                    f"the period of contract {contract.contract_id!r} must be at least twice the time allowed for an "
                    f"answer ({self.answer_us} us); got {contract.period_us} us"
                )
