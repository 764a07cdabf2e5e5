"""What must survive a crash, as facts in the order in which they became true.

Rules:
1. The host makes records durable before it sends what came with them. State changes only by records, when they are
   made and when they are read back; so what comes back after a crash is what was there.
2. Promises are records: an offer that is out, an answer that binds, a bargain, what was charged. Negotiations are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.usage import Task


@dataclass(frozen=True, slots=True)
class OfferMade:
    """Buyer: an offer went out, binding until `until_us`. Also remembers when this partner was last asked."""

    number: int
    offer_id: str
    contract_id: str
    price: float
    tasks: tuple[Task, ...]
    at_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class OfferClosed:
    """Buyer: that offer is answered, withdrawn or timed out."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """Seller: an answer that binds until `until_us`, at the price of the offer or a counter-offer."""

    offer_id: str
    contract_id: str
    price: float
    counter: bool
    tasks: tuple[Task, ...]
    until_us: int


@dataclass(frozen=True, slots=True)
class ReservationClosed:
    """Seller: taken up, released or expired."""

    offer_id: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A lease begins."""

    lease_id: str
    offer_id: str
    role: Role
    contract_id: str
    task: Task
    price: float
    state: LeaseState
    start_us: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A lease is in another state; a buyer's first period starts when it becomes MOVING."""

    lease_id: str
    state: LeaseState
    at_us: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Buyer: it has asked to pay for the periods up to this one."""

    lease_id: str
    period: int
    units: float


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The other side wants the lease to end with its period."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Over:
    """Buyer: the task of this lease is over for good. If it still comes home or arrives, it is stopped."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Charged:
    """An entry of the ledger."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Placed:
    """The owner's word on where a task is to run, whatever it costs; an empty partner takes it back."""

    task_id: str
    partner: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Seller: the lease is over, and its buyer is known to have all of its entries."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Carried:
    """In place of entries that both sides have: how many a lease has come to so far, and what they are together."""

    lease_id: str
    contract_id: str
    payer: str
    payee: str
    entries: int
    amount: int


@dataclass(frozen=True, slots=True)
class Settled:
    """In place of leases that are over: what they came to under one contract."""

    contract_id: str
    payer: str
    payee: str
    amount: int


@dataclass(frozen=True, slots=True)
class Dealt:
    """Seller: the last number under which this buyer has made a bargain. Older ones are not made again."""

    buyer: str
    number: int


Record = (
    OfferMade | OfferClosed | Reserved | ReservationClosed | Opened | Stepped | Asked | Unwanted | Over | Charged
    | Placed | Closed | Carried | Settled | Dealt
)  # fmt: skip
