"""One participant: the door through which everything goes (003 §6.3, §7.2).

Rules:
1. One `handle`, one `Effects`; no clock: `now_us` never goes back.
2. Nothing is offered or accepted before the host has told what runs here.
3. A message from somebody without a contract, about something unknown, or outside what was agreed changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.protocol.load.book import Book
from holdfast.protocol.load.buyer import Buyer
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.cost import STEADY
from holdfast.protocol.load.effects import Drop, Effects
from holdfast.protocol.load.lease_course import LeaseCourse
from holdfast.protocol.load.ledger import Ledger
from holdfast.protocol.load.messages import (
    Accept,
    Commit,
    Committed,
    Counter,
    End,
    Ended,
    Message,
    Offer,
    Ready,
    Recall,
    Refused,
    Reject,
    Release,
    Renew,
    Renewed,
)
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.records import Record
from holdfast.protocol.load.seller import Seller
from holdfast.protocol.load.signals import (
    Arrived,
    Finished,
    Measured,
    Moved,
    MoveFailed,
    Place,
    Received,
    Returned,
    Signal,
    Unreachable,
)
from holdfast.protocol.load.turn import Turn
from holdfast.protocol.load.usage import Usage


class ParticipantCore:
    """The load manager of one participant. Build it at every start with the records that its host has kept."""

    def __init__(self, plan: ParticipantPlan, records: Iterable[Record], now_us: int) -> None:
        self.plan = plan
        self.book = Book(plan)
        self.book.restore(records)
        self.buyer = Buyer(self.book)
        self.buyer.next_us = max(self.buyer.next_us, now_us)
        self.seller = Seller(self.book)
        self.lease_course = LeaseCourse(self.book, now_us)
        self.judge = Judge(plan.cost, plan.margin, STEADY)
        self._partners = {c.seller if c.buyer == plan.name else c.buyer for c in plan.contracts}
        self._measured = False

    # The door ---------------------------------------------------------------------------------------------------

    def handle(self, signal: Signal, now_us: int) -> Effects:
        """Take in one fact; everything that follows from it."""
        turn = Turn(self.book, now_us)
        if isinstance(signal, Received):
            if signal.sender in self._partners:
                self.buyer.silent[signal.sender] = False
                self._message(turn, signal.sender, signal.message)
        elif isinstance(signal, Measured):
            self._measure(turn, signal)
        elif isinstance(signal, Moved | MoveFailed):
            self.lease_course.moved(turn, signal.lease_id, isinstance(signal, Moved))
        elif isinstance(signal, Arrived):
            self.lease_course.arrived(turn, signal.lease_id)
        elif isinstance(signal, Returned):
            self.lease_course.returned(turn, signal.lease_id)
        elif isinstance(signal, Finished):
            self.lease_course.finished(turn, signal.task_id)
        elif isinstance(signal, Place):
            self.lease_course.place(turn, signal.task_id, signal.partner)
            self.buyer.hurry(turn)
        elif isinstance(signal, Unreachable):
            self.buyer.silent[signal.partner] = True
        if self._measured:
            self.seller.tick(turn, self.judge)
            self.buyer.tick(turn, self.judge)
            self.lease_course.tick(turn, self.judge)
        return turn.effects()

    def _measure(self, turn: Turn, signal: Measured) -> None:
        # A crash may have come between the end of a lease and the end of its task.
        stopped = self.book.stopped(signal.tasks)
        self.book.local = {task.task_id: task for task in signal.tasks if task.task_id not in stopped}
        turn.drop += [Drop(task_id) for task_id in stopped]
        self.book.movable = None if signal.movable is None else frozenset(signal.movable)
        if signal.forecast is not None:
            self.judge = Judge(self.plan.cost, self.plan.margin, signal.forecast)
        self._measured = True

    def _message(self, turn: Turn, sender: str, message: Message) -> None:
        if isinstance(message, Accept | Counter | Reject):
            self.buyer.answered(turn, self.judge, sender, message)
        elif isinstance(message, Offer):
            if self._measured:
                self.seller.offered(turn, self.judge, sender, message)
        elif isinstance(message, Commit):
            self.seller.committed(turn, sender, message)
        elif isinstance(message, Release):
            self.seller.released(turn, sender, message)
        elif isinstance(message, Committed):
            self.lease_course.agreed(turn, sender, message)
        elif isinstance(message, Refused):
            self.lease_course.refused(turn, sender, message)
        elif isinstance(message, Renew):
            self.lease_course.renew(turn, self.judge, sender, message)
        elif isinstance(message, Renewed | Ended | Ready) and not self.lease_course.bought(sender, message.lease_id):
            return
        elif isinstance(message, Renewed | Ended):
            self.lease_course.renewed(turn, message)
        elif isinstance(message, Recall):
            self.lease_course.recall(turn, sender, message)
        elif isinstance(message, Ready):
            self.lease_course.ready(turn, message.lease_id)
        elif isinstance(message, End):
            self.lease_course.end(turn, sender, message)

    # What it knows ----------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """Who owes whom, by this participant's book."""
        return self.book.ledger

    @property
    def load(self) -> Usage:
        """What runs here now."""
        return self.book.staying()

    def snapshot(self) -> tuple[Record, ...]:
        """What to keep instead of all records so far."""
        return self.book.records()
