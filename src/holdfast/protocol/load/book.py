"""Everything a participant knows: what runs here, what was promised, what is leased, what is owed.

Rules:
1. What must survive a crash changes in `apply` alone, by records; `Book.restore` reads them back. What runs here is the
   host's knowledge and comes with `Measured`.
2. A task that is offered or about to leave is in nobody else's offer: `locked` says which.
3. The load that a seller judges by contains everything promised: reservations that bind and leases under way (B6).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.protocol.load.leases import Lease, LeaseState, Role, bargain_of, check_step
from holdfast.protocol.load.ledger import Account, Ledger
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.records import (
    Asked,
    Carried,
    Charged,
    Closed,
    Dealt,
    OfferClosed,
    OfferMade,
    Opened,
    Over,
    Placed,
    Record,
    ReservationClosed,
    Reserved,
    Settled,
    Stepped,
    Unwanted,
)
from holdfast.protocol.load.usage import Task, Usage, together

_LEAVING = (LeaseState.COMMITTING, LeaseState.MOVING)


class Book:
    """The state of one participant."""

    def __init__(self, plan: ParticipantPlan) -> None:
        self.plan = plan
        self.contracts = {contract.contract_id: contract for contract in plan.contracts}
        self.ledger = Ledger(plan.name)
        self.number = 0
        self.asked_us: dict[str, int] = {}
        self.offers: dict[str, OfferMade] = {}
        self.reservations: dict[str, Reserved] = {}
        self.leases: dict[str, Lease] = {}
        self.dealt: dict[str, int] = {}
        """Buyers, and the last of their offers that became a bargain here."""
        self.placed: dict[str, str] = {}
        """Tasks that their owner has placed by hand, and where."""
        self.local: dict[str, Task] = {}
        self.movable: frozenset[str] | None = None

    def restore(self, records: Iterable[Record]) -> None:
        """What a participant that starts again was."""
        for record in records:
            self.apply(record)
        # Books of earlier versions do not say which accounts are closed; a buyer's are when its leases have ended.
        mine = [lease_id for lease_id, payer in self.ledger.payers() if payer == self.plan.name]
        for lease_id in mine:
            if lease_id not in self.leases:
                self.ledger.close(lease_id)

    def apply(self, record: Record) -> None:
        """One more fact."""
        if isinstance(record, OfferMade):
            self.number = max(self.number, record.number)
            self.offers[record.offer_id] = record
            self.asked_us[record.contract_id] = record.at_us
        elif isinstance(record, OfferClosed):
            self.offers.pop(record.offer_id, None)
        elif isinstance(record, Reserved):
            self.reservations[record.offer_id] = record
        elif isinstance(record, ReservationClosed):
            self.reservations.pop(record.offer_id, None)
        elif isinstance(record, Opened):
            self._open(record)
        elif isinstance(record, Stepped):
            self._step(record)
        elif isinstance(record, Asked):
            lease = self.leases[record.lease_id]
            lease.asked, lease.units = record.period, record.units
        elif isinstance(record, Unwanted):
            self.leases[record.lease_id].unwanted = True
        elif isinstance(record, Over):
            self.leases[record.lease_id].over = True
        elif isinstance(record, Placed):
            self.placed.pop(record.task_id, None)
            if record.partner:
                self.placed[record.task_id] = record.partner
        else:
            self._enter(record)

    def _enter(self, record: Record) -> None:
        """What is owed."""
        if isinstance(record, Charged):
            self.ledger.add(record.entry)
            if record.entry.payer == self.plan.name:
                self.ledger.known(record.entry.lease_id, record.entry.place)  # The seller had it first.
            else:
                self._deal(record.entry.lease_id)
        elif isinstance(record, Carried):
            account = Account(record.contract_id, record.payer, record.payee, record.entries, record.amount)
            self.ledger.carry(record.lease_id, account)
        elif isinstance(record, Settled):
            self.ledger.settle(record.contract_id, record.payer, record.payee, record.amount)
        elif isinstance(record, Dealt):
            self.dealt[record.buyer] = record.number
        else:
            assert isinstance(record, Closed)
            self.ledger.close(record.lease_id)

    def _deal(self, lease_id: str) -> None:
        bargain = bargain_of(lease_id)
        if bargain is not None:
            buyer, number = bargain
            self.dealt[buyer] = max(number, self.dealt.get(buyer, 0))

    def _open(self, record: Opened) -> None:
        contract = self.contracts[record.contract_id]
        if record.role is Role.SELLER:
            self._deal(record.lease_id)
        self.leases[record.lease_id] = Lease(
            record.lease_id, record.offer_id, record.role, contract, record.task, record.price, record.state,
            record.start_us, units=contract.load(record.task.usage),
        )  # fmt: skip

    def _step(self, record: Stepped) -> None:
        lease = self.leases[record.lease_id]
        check_step(lease.role, lease.state, record.state)
        if lease.role is Role.BUYER and record.state is LeaseState.MOVING:
            lease.start_us = record.at_us
        if lease.state is LeaseState.MOVING and record.state is LeaseState.ENDING:
            lease.failed = True
        lease.state = record.state
        if record.state is LeaseState.ENDED:
            del self.leases[record.lease_id]
            if lease.role is Role.BUYER:
                self.ledger.close(record.lease_id)

    def records(self) -> tuple[Record, ...]:
        """The shortest list of records from which the same state comes back: what a host keeps instead of the long one.

        Taken between two signals. Of the ledger sums stay, and what the other side may not have (`Ledger`, rule 4).
        """
        kept: list[Record] = [Settled(contract_id, *sums) for contract_id, sums in self.ledger.settled.items()]
        for lease_id, account in self.ledger.accounts.items():
            entries = account.entries - len(account.open)
            amount = account.amount - sum(entry.amount for entry in account.open)
            if entries:
                kept.append(Carried(lease_id, account.contract_id, account.payer, account.payee, entries, amount))
            kept += [Charged(entry) for entry in account.open]
        kept += [Dealt(buyer, number) for buyer, number in self.dealt.items()]
        for contract_id, at_us in self.asked_us.items():
            kept.append(OfferMade(self.number, "", contract_id, 0.0, (), at_us, at_us))
        if self.asked_us:
            kept.append(OfferClosed(""))
        kept += self.offers.values()
        kept += self.reservations.values()
        kept += [Placed(task_id, partner) for task_id, partner in self.placed.items()]
        for lease in self.leases.values():
            state = LeaseState.MOVING if lease.failed else lease.state
            kept.append(Opened(lease.lease_id, lease.offer_id, lease.role, lease.contract.contract_id, lease.task,
                               lease.price, state, lease.start_us))  # fmt: skip
            if lease.failed:
                kept.append(Stepped(lease.lease_id, lease.state, lease.start_us))
            if lease.asked:
                kept.append(Asked(lease.lease_id, lease.asked, lease.units))
            if lease.unwanted:
                kept.append(Unwanted(lease.lease_id))
            if lease.over:
                kept.append(Over(lease.lease_id))
        return tuple(kept)

    # What follows from it ---------------------------------------------------------------------------------------

    def locked(self) -> dict[str, None]:
        """Tasks that are spoken for: in an offer that binds, or about to leave."""
        names = {task.task_id: None for offer in self.offers.values() for task in offer.tasks}
        for lease in self.leases.values():
            if lease.role is Role.BUYER and lease.state in _LEAVING:
                names[lease.task.task_id] = None
        return names

    def staying(self) -> Usage:
        """The load of what runs here and is not about to leave: what an offer is judged by."""
        leaving = []
        for lease in self.leases.values():
            if lease.role is Role.BUYER and lease.state in _LEAVING:
                leaving.append(lease.task.task_id)
            elif lease.role is Role.SELLER and lease.state is LeaseState.RETURNING:
                leaving.append(lease.lease_id)
        load = together(task.usage for task in self.local.values())
        return load.minus(together(self.local[name].usage for name in leaving if name in self.local))

    def promised(self) -> Usage:
        """The load of what runs here, is on its way, or may be: what an acceptance is judged by (B6)."""
        load = together(task.usage for task in self.local.values())
        coming = [
            lease.task.usage
            for lease in self.leases.values()
            if lease.role is Role.SELLER and lease.state is LeaseState.MOVING
        ]
        held = [task.usage for reserved in self.reservations.values() for task in reserved.tasks]
        return load.plus(together(coming)).plus(together(held))

    def offerable(self) -> list[Task]:
        """Tasks that may be moved at all: here, free, movable, and, if a partner's, allowed to go further."""
        locked = self.locked()
        found = []
        for name, task in self.local.items():
            if name in locked or (self.movable is not None and name not in self.movable):
                continue
            lease = self.leases.get(name)
            if lease is not None and (
                not lease.contract.onward or lease.unwanted or lease.state is not LeaseState.RUNNING
            ):
                continue
            found.append(task)
        return found

    def ordered_to(self, partner: str) -> list[Task]:
        """Tasks of our own that are free to go and that the owner wants at this partner."""
        return [task for task in self.offerable() if self.placed.get(task.task_id) == partner]

    def over(self, task_id: str) -> bool:
        """Whether this is a partner's task, named by its lease, and the lease has ended."""
        return task_id not in self.leases and bargain_of(task_id) is not None

    def stopped(self, tasks: Iterable[Task]) -> dict[str, None]:
        """Those of these that must not run here: partners' whose lease has ended, and what was over while away."""
        gone = {lease.task.task_id for lease in self.leases.values() if lease.over}
        return {task.task_id: None for task in tasks if task.task_id in gone or self.over(task.task_id)}

    def onward(self, lease_id: str) -> Lease | None:
        """The lease under which a partner's task was moved further, if it was."""
        for lease in self.leases.values():
            if lease.role is Role.BUYER and lease.task.task_id == lease_id and lease.state is not LeaseState.ENDING:
                return lease
        return None
