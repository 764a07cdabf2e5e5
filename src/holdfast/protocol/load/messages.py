"""What partners say to each other. They learn from it what their contract says, and nothing else.

Rules:
1. An offer is answered by Accept, Counter or Reject; an acceptance or counter-offer binds for `hold_us` from the moment
   it is given, by the seller's clock alone, so clocks need not agree.
2. The buyer closes a bargain with Commit, or lets go of it with Release. Commit, Renew, Recall and End are repeated
   until answered; all answers may be repeated without harm.
3. Tasks are named as the sender of the offer names them, and described by definition and usage: never by code.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.usage import Task


@dataclass(frozen=True, slots=True)
class Offer:
    """Buyer: I would pay this unit price for these tasks, or any of them. Binding until answered or timed out."""

    offer_id: str
    contract_id: str
    price: float
    tasks: tuple[Task, ...]
    hold_us: int
    """How long an answer must bind: until the buyer has asked all the others (§6.6.2: C · t)."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Seller: these, at your price."""

    offer_id: str
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """Seller: these, at this price."""

    offer_id: str
    price: float
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """Seller: none."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Buyer: you are no longer bound by your answer."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Buyer: agreed, for these. `leases` pairs each lease with the task it is for."""

    offer_id: str
    leases: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Seller: the bargain stands; this is what the first period costs."""

    offer_id: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Seller: no such promise of mine, or no longer."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Buyer: I want to leave it there up to and including this period, and pay for so many units."""

    lease_id: str
    period: int
    units: float
    have: int
    """The last period in the buyer's ledger."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """Seller: it stays; these are the entries that follow."""

    lease_id: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Either side: this is to go back where it came from."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Seller: it is here, and may be fetched."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class End:
    """Buyer: it is over. `void` asks to be charged nothing, since it never arrived."""

    lease_id: str
    void: bool
    have: int
    """The last period in the buyer's ledger."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Seller: over here, too; these are the entries that the buyer does not have."""

    lease_id: str
    entries: tuple[Entry, ...]


Message = (
    Offer | Accept | Counter | Reject | Release | Commit | Committed | Refused
    | Renew | Renewed | Recall | Ready | End | Ended
)  # fmt: skip
