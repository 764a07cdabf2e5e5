"""The life of one moved task: a lease, and the one table of its states.

Rules:
1. A lease belongs to one task, one contract and one price; both sides keep one each under the same id.
2. The buyer drives: it commits, moves, renews, takes back and ends. The seller answers, and may ask to be rid of it.
3. Until a lease is MOVING the task runs at the buyer and nobody owes anything; when it is ENDED the task no longer runs
   at the seller and what is owed is the same in both ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.usage import Task


class Role(Enum):
    """Whose side of the lease this is."""

    BUYER = "buyer"
    SELLER = "seller"


class LeaseState(Enum):
    """Where a lease stands."""

    COMMITTING = "committing"
    """Buyer only: the seller has accepted, and is told until it answers that it knows of the deal."""
    MOVING = "moving"
    """Both know; the task is on its way. The seller counts it as its own already (B6)."""
    RUNNING = "running"
    """It runs at the seller."""
    RETURNING = "returning"
    """It is on its way back."""
    ENDING = "ending"
    """Buyer only: it is over, and the seller is told until it answers."""
    ENDED = "ended"


#: Every legal step, by role. The picture in docs/load-sharing.md is drawn from this table.
STEPS: dict[tuple[Role, LeaseState], tuple[LeaseState, ...]] = {
    (Role.BUYER, LeaseState.COMMITTING): (LeaseState.MOVING, LeaseState.ENDED),
    (Role.BUYER, LeaseState.MOVING): (LeaseState.RUNNING, LeaseState.ENDING),
    (Role.BUYER, LeaseState.RUNNING): (LeaseState.RETURNING, LeaseState.ENDING),
    (Role.BUYER, LeaseState.RETURNING): (LeaseState.ENDING,),
    (Role.BUYER, LeaseState.ENDING): (LeaseState.ENDED,),
    (Role.SELLER, LeaseState.MOVING): (LeaseState.RUNNING, LeaseState.ENDED),
    (Role.SELLER, LeaseState.RUNNING): (LeaseState.RETURNING, LeaseState.ENDED),
    (Role.SELLER, LeaseState.RETURNING): (LeaseState.ENDED,),
}


def bargain_of(lease_id: str) -> tuple[str, int] | None:
    """The buyer and the number of the offer that a lease, or a guest by the name of its lease, began with."""
    offer_id, mark, _ = lease_id.rpartition("#")
    return offer_of(offer_id) if mark else None


def offer_of(offer_id: str) -> tuple[str, int] | None:
    """The buyer and the number of an offer; None if this is no id of one."""
    buyer, _, number = offer_id.rpartition(":")
    return (buyer, int(number)) if buyer and number.isascii() and number.isdigit() else None


def check_step(role: Role, before: LeaseState, after: LeaseState) -> None:
    """Our own fault if it is not in the table."""
    assert after in STEPS.get((role, before), ()), f"{role.value}: {before.value} -> {after.value} is no step"


@dataclass(slots=True)
class Lease:
    """One side's view of one moved task."""

    lease_id: str
    offer_id: str
    role: Role
    contract: Contract
    task: Task
    """As the buyer knows it: `task.task_id` is the buyer's name for it."""
    price: float
    state: LeaseState
    start_us: int
    """When the first period began, by this side's clock."""
    asked: int = 0
    """Buyer: the last period that it asked to pay for."""
    units: float = 0.0
    """What the periods up to `asked` are paid for."""
    failed: bool = False
    """Buyer: it ended before the task had moved, so nothing is owed."""
    unwanted: bool = False
    """The other side asked to end it; it ends when its period does."""
    over: bool = False
    """Buyer: the task is over for good, wherever it is."""

    @property
    def partner(self) -> str:
        """The other side."""
        return self.contract.seller if self.role is Role.BUYER else self.contract.buyer

    def periods(self, now_us: int) -> int:
        """The number of the running period, from 0."""
        return max(0, (now_us - self.start_us) // self.contract.period_us)

    def due_us(self, period: int) -> int:
        """When this period ends."""
        return self.start_us + (period + 1) * self.contract.period_us
