"""What two participants have agreed offline (003 §6.2, definitions 10 to 12).

Rules:
1. A contract has one direction: `buyer` may move load to `seller` and pays for it. Both directions are two contracts,
   and there is at most one for each pair and direction.
2. The unit price lies in [`price_low`, `price_high`]; with both equal the contract is a fixed-price one.
3. Load moves for `period_us` (the seeds' d). After a refusal the buyer asks the same seller again no sooner than d.
4. Only permitted definitions move, and with `onward=False` the seller may not move them further.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.errors import UsageError
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.usage import Task, Usage


@dataclass(frozen=True, slots=True)
class Contract:
    """One direction between two participants."""

    contract_id: str
    buyer: str
    seller: str
    price_low: float
    price_high: float
    period_us: int = SECOND_US
    permits: tuple[str, ...] | None = None
    """Definitions that may be moved; None: all."""
    onward: bool = True
    """Whether the seller may move the load further."""
    weights: Usage = Usage(1.0, 1.0, 1.0)  # noqa: RUF009
    """What one unit of each resource counts for payment: the agreement on what a unit is (§6.2)."""

    def __post_init__(self) -> None:
        name = f"contract {self.contract_id!r}"
        if self.buyer == self.seller:
            raise UsageError(f"{name} must be between two participants; got {self.buyer!r} twice")
        if not 0 <= self.price_low <= self.price_high:
            raise UsageError(
                f"{name} must have 0 <= lowest price <= highest price; got {self.price_low} and {self.price_high}"
            )
        if self.period_us <= 0:
            raise UsageError(f"{name} must have a positive period; got {self.period_us} us")

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to negotiate but how much."""
        return self.price_low == self.price_high

    @property
    def period_s(self) -> float:
        """d in seconds."""
        return self.period_us / SECOND_US

    def load(self, usage: Usage) -> float:
        """load(u): the units that are paid for."""
        return usage.dot(self.weights)

    def allows(self, task: Task) -> bool:
        """Whether this kind of task may move under the contract."""
        return self.permits is None or task.definition in self.permits

    def within(self, price: float) -> bool:
        """Whether a price may be asked or paid."""
        return self.price_low <= price <= self.price_high


def fixed_price(contract_id: str, buyer: str, seller: str, price: float, **clauses: object) -> Contract:
    """A contract without a range (definition 10)."""
    return Contract(contract_id, buyer, seller, price, price, **clauses)  # type: ignore[arg-type]
