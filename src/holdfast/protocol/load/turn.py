"""What one signal leads to, collected while it is handled."""

from __future__ import annotations

from holdfast.protocol.load.book import Book
from holdfast.protocol.load.effects import Drop, Effects, Fetch, Move, Reclaim, Send
from holdfast.protocol.load.leases import LeaseState
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.records import Charged, Record, Stepped

#: Later than any time that a host will name.
NEVER_US = 2**62


class Turn:
    """One `handle`: facts are noted at once, words and deeds wait for the end."""

    def __init__(self, book: Book, now_us: int) -> None:
        self.book = book
        self.now_us = now_us
        self.wake_us = NEVER_US
        self._record: list[Record] = []
        self._send: list[Send] = []
        self.move: list[Move] = []
        self.fetch: list[Fetch] = []
        self.reclaim: list[Reclaim] = []
        self.drop: list[Drop] = []

    def note(self, record: Record) -> None:
        """A fact that must survive."""
        self.book.apply(record)
        self._record.append(record)

    def step(self, lease_id: str, state: LeaseState) -> None:
        """A lease goes on."""
        self.note(Stepped(lease_id, state, self.now_us))

    def charge(self, entry: Entry) -> None:
        """An entry, unless it is there."""
        if not self.book.ledger.has(entry.lease_id, entry.period):
            self.note(Charged(entry))

    def say(self, to: str, message: Message) -> None:
        """A word to a partner."""
        self._send.append(Send(to, message))

    def wake(self, at_us: int) -> None:
        """Not later than then."""
        self.wake_us = min(self.wake_us, at_us)

    def effects(self) -> Effects:
        """All of it."""
        return Effects(tuple(self._record), tuple(self._send), tuple(self.move), tuple(self.fetch),
                       tuple(self.reclaim), tuple(self.drop), self.wake_us)  # fmt: skip
