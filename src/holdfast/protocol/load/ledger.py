"""Who owes whom, kept by each side for itself and equal on both (B8).

Rules:
1. An entry is made once for each lease and period, by the seller first; the buyer copies it from the seller's answer
   after checking it against what it asked for. So the buyer never owes what the seller does not know of.
2. Amounts are whole millionths: both sides compute them from the same message, and sums are exact.
3. Nothing is ever changed or removed. A movement that failed is undone by an entry of the opposite amount.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def charge(lease_id: str, period: int, contract: Contract, price: float, units: float) -> Entry:
    """What one period costs."""
    amount = round(price * units * contract.period_s * MILLIONTHS)
    return Entry(lease_id, period, contract.contract_id, contract.buyer, contract.seller, price, units, amount)


def voided(first: Entry) -> Entry:
    """The opposite of the first period's entry."""
    return Entry(first.lease_id, VOID, first.contract_id, first.payer, first.payee, first.price, first.units,
                 -first.amount)  # fmt: skip


class Ledger:
    """All entries of one participant."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._entries: dict[str, dict[int, Entry]] = {}
        self._balances: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """One more; a second one for the same period must be the same."""
        periods = self._entries.setdefault(entry.lease_id, {})
        if entry.period in periods:
            assert periods[entry.period] == entry, f"two different entries: {periods[entry.period]} and {entry}"
            return
        periods[entry.period] = entry
        partner, sign = (entry.payee, -1) if entry.payer == self.owner else (entry.payer, 1)
        self._balances[partner] = self._balances.get(partner, 0) + sign * entry.amount

    def has(self, lease_id: str, period: int) -> bool:
        """Whether that period is entered."""
        return period in self._entries.get(lease_id, {})

    def of(self, lease_id: str) -> tuple[Entry, ...]:
        """All entries of a lease, in the order in which they were made."""
        return tuple(self._entries.get(lease_id, {}).values())

    def last(self, lease_id: str) -> int:
        """The last period that is paid for; -1 if none is."""
        return max(self._entries.get(lease_id, {}), default=-1)

    def entries(self) -> tuple[Entry, ...]:
        """Everything."""
        return tuple(entry for periods in self._entries.values() for entry in periods.values())

    def balance(self, partner: str) -> int:
        """What the partner owes, in millionths; negative is what is owed to it."""
        return self._balances.get(partner, 0)
