"""Who owes whom, kept by each side for itself and equal on both (B8).

Rules:
1. An entry is made once for each lease and period, by the seller first; the buyer copies it from the seller's answer
   after checking it against what it asked for. So the buyer never owes what the seller does not know of.
2. Amounts are whole millionths: both sides compute them from the same message, and sums are exact.
3. Nothing is ever changed. A movement that failed is undone by an entry of the opposite amount.
4. The entries of a lease follow its periods, without a gap; one that undoes the first comes right behind it. What both
   sides are known to have is kept as a sum: of its lease while that lasts, of its contract when it is over. So a ledger
   is as long as what is under way, however long its owner has been in business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.protocol.load.contract import Contract

#: The period of an entry that takes back the first one: the movement never happened.
VOID = -1
MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One period of one lease."""

    lease_id: str
    period: int
    contract_id: str
    payer: str
    payee: str
    price: float
    units: float
    amount: int
    """price · units · seconds, in millionths."""

    @property
    def place(self) -> int:
        """Which of its lease's entries this is, from 0 (rule 4)."""
        return 1 if self.period == VOID else self.period


def charge(lease_id: str, period: int, contract: Contract, price: float, units: float) -> Entry:
    """What one period costs."""
    amount = round(price * units * contract.period_s * MILLIONTHS)
    return Entry(lease_id, period, contract.contract_id, contract.buyer, contract.seller, price, units, amount)


def voided(first: Entry) -> Entry:
    """The opposite of the first period's entry."""
    return Entry(first.lease_id, VOID, first.contract_id, first.payer, first.payee, first.price, first.units,
                 -first.amount)  # fmt: skip


@dataclass(slots=True)
class Account:
    """What one lease has come to."""

    contract_id: str
    payer: str
    payee: str
    entries: int = 0
    """How many were made."""
    amount: int = 0
    """All of them together."""
    open: list[Entry] = field(default_factory=list)
    """The last ones, which the other side is not known to have."""


class Ledger:
    """The accounts of one participant."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.accounts: dict[str, Account] = {}
        #: Contract → payer, payee and what all leases that are over came to.
        self.settled: dict[str, tuple[str, str, int]] = {}
        self._balances: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """The next entry of a lease; one that is there is not made again."""
        account = self.accounts.get(entry.lease_id)
        if account is None:
            account = self.accounts[entry.lease_id] = Account(entry.contract_id, entry.payer, entry.payee)
        if entry.place < account.entries:
            again = [known for known in account.open if known.place == entry.place]
            assert not again or again == [entry], f"two different entries: {again[0]} and {entry}"
            return
        assert entry.place == account.entries, f"entry {account.entries} of its lease must be next; got {entry}"
        account.entries += 1
        account.amount += entry.amount
        account.open.append(entry)
        self._owe(entry.payer, entry.payee, entry.amount)

    def carry(self, lease_id: str, account: Account) -> None:
        """What a lease had come to when an earlier book was closed."""
        self.accounts[lease_id] = account
        self._owe(account.payer, account.payee, account.amount)

    def settle(self, contract_id: str, payer: str, payee: str, amount: int) -> None:
        """What leases of a contract that are over came to, in an earlier book."""
        before = self.settled.get(contract_id, (payer, payee, 0))[2]
        self.settled[contract_id] = (payer, payee, before + amount)
        self._owe(payer, payee, amount)

    def _owe(self, payer: str, payee: str, amount: int) -> None:
        partner, sign = (payee, -1) if payer == self.owner else (payer, 1)
        self._balances[partner] = self._balances.get(partner, 0) + sign * amount

    def known(self, lease_id: str, have: int) -> None:
        """The other side has the entries up to this one."""
        account = self.accounts.get(lease_id)
        if account is not None:
            account.open = [entry for entry in account.open if entry.place > have]

    def close(self, lease_id: str) -> None:
        """The lease is over, and both sides have the same."""
        account = self.accounts.pop(lease_id, None)
        if account is not None:
            before = self.settled.get(account.contract_id, ("", "", 0))[2]
            self.settled[account.contract_id] = (account.payer, account.payee, before + account.amount)

    def has(self, lease_id: str, period: int) -> bool:
        """Whether that period is entered, of a lease that is not closed."""
        account = self.accounts.get(lease_id)
        if account is None:
            return False
        if period == VOID:
            return account.entries == 2 and account.amount == 0
        return period < account.entries

    def after(self, lease_id: str, have: int) -> tuple[Entry, ...]:
        """The entries behind this one, as far as they are kept."""
        account = self.accounts.get(lease_id)
        return () if account is None else tuple(entry for entry in account.open if entry.place > have)

    def last(self, lease_id: str) -> int:
        """The place of the last entry, and so the last period that is paid for; -1 if none is."""
        account = self.accounts.get(lease_id)
        return -1 if account is None else account.entries - 1

    def paid(self, contract_id: str) -> int:
        """What the leases of a contract have come to."""
        under_way = sum(a.amount for a in self.accounts.values() if a.contract_id == contract_id)
        return under_way + self.settled.get(contract_id, ("", "", 0))[2]

    def payers(self) -> Iterator[tuple[str, str]]:
        """Every account and who pays, the oldest first."""
        return ((lease_id, account.payer) for lease_id, account in self.accounts.items())

    def balance(self, partner: str) -> int:
        """What the partner owes, in millionths; negative is what is owed to it."""
        return self._balances.get(partner, 0)
