"""The half of a participant that sheds load: OFFER_LOAD (figure 6-4) with negotiation (§6.6.2).

Rules:
1. One round at a time, one partner at a time: an offer goes to the next only when the last one has answered or run out
   of time. So sellers never promise more than they get, and one task is never in two offers.
2. Partners are asked in this order: those that answer and did not refuse last, by price; those that refused last; those
   that do not answer (§7.2.2). Each is asked at most once in a period d (B3).
3. Every offer names the lowest price of the contract. An acceptance ends the round. A counter-offer that pays is kept
   until all have been asked; then the cheapest that still pays is taken, and the others are let go. One that does not
   pay is let go at once: kept, it would close the seller to those that would pay, round after round.
4. What the owner has placed by hand is offered to that partner alone, whether it pays or not; the seller's consent and
   the range of prices are needed all the same.
5. An offer binds: an acceptance in time is committed, also after a crash in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.protocol.load.book import Book
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.protocol.load.messages import Accept, Counter, Offer, Reject, Release
from holdfast.protocol.load.records import OfferClosed, OfferMade, Opened
from holdfast.protocol.load.turn import Turn
from holdfast.protocol.load.usage import Task


@dataclass(slots=True)
class Round:
    """One pass over the partners."""

    left: list[Contract]
    counters: list[tuple[float, int, OfferMade, tuple[str, ...]]] = field(default_factory=list)
    """(price, order of arrival, the offer, the tasks that the seller would take)"""
    waiting: str | None = None
    """The offer that is out."""
    resume_us: int | None = None
    """The end of a pause after a counter-offer."""


class Buyer:
    """Makes offers and closes bargains."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.plan = book.plan
        self.next_us = book.plan.start_us
        self.round: Round | None = None
        self.refused: dict[str, bool] = {}
        self.silent: dict[str, bool] = {}
        outstanding = next(iter(book.offers), None)
        if outstanding is not None:
            self.round = Round([], waiting=outstanding)

    # Time -------------------------------------------------------------------------------------------------------

    def tick(self, turn: Turn, judge: Judge) -> None:
        """Whatever is due."""
        now_us = turn.now_us
        if self.round is None and now_us >= self.next_us:
            self.round = Round(self.ordered(now_us))
            self._advance(turn, judge)
        current = self.round
        if current is not None and current.waiting is not None:
            offer = self.book.offers[current.waiting]
            if now_us >= offer.until_us:
                self.silent[self.book.contracts[offer.contract_id].seller] = True
                turn.note(OfferClosed(offer.offer_id))
                current.waiting = None
                self._advance(turn, judge)
        elif current is not None and current.resume_us is not None and now_us >= current.resume_us:
            current.resume_us = None
            self._advance(turn, judge)
        self._wake(turn)

    def _wake(self, turn: Turn) -> None:
        current = self.round
        if current is None:
            turn.wake(max(self.next_us, turn.now_us + 1))
        elif current.waiting is not None:
            turn.wake(self.book.offers[current.waiting].until_us)
        elif current.resume_us is not None:
            turn.wake(current.resume_us)

    def ordered(self, now_us: int) -> list[Contract]:
        """Rule 2: whom to ask, in which order."""
        asked_us = self.book.asked_us
        may = [
            contract
            for contract in self.plan.contracts
            if contract.buyer == self.plan.name
            and now_us >= asked_us.get(contract.contract_id, -contract.period_us) + contract.period_us
        ]
        return sorted(may, key=lambda contract: (
            self.silent.get(contract.seller, False), self.refused.get(contract.contract_id, False), contract.price_low,
        ))  # fmt: skip

    def hurry(self, turn: Turn) -> None:
        """Begin the next round now."""
        if self.round is None:
            self.next_us = turn.now_us

    # Offers -----------------------------------------------------------------------------------------------------

    def _advance(self, turn: Turn, judge: Judge) -> None:
        """Ask the next partner that something can be offered to; after the last one, settle."""
        current = self.round
        assert current is not None
        while current.left:
            contract = current.left.pop(0)
            offered = tuple(task for task in self.book.ordered_to(contract.seller) if contract.allows(task))
            if not offered:
                free = [task for task in self.book.offerable() if task.task_id not in self.book.placed]
                tasks = [task for task in free if contract.allows(task)]
                offered = judge.offerset(tasks, self.book.staying(), contract, contract.price_low)
            if offered:
                self._offer(turn, current, contract, offered)
                return
        self._settle(turn, judge)

    def _offer(self, turn: Turn, current: Round, contract: Contract, tasks: tuple[Task, ...]) -> None:
        number = self.book.number + 1
        offer_id = f"{self.plan.name}:{number}"
        until_us = turn.now_us + self.plan.answer_us
        turn.note(OfferMade(number, offer_id, contract.contract_id, contract.price_low, tasks, turn.now_us, until_us))
        # Long enough to ask all the others, wait out each of their silences and pauses, and be heard once more.
        hold_us = (len(current.left) + 2) * (self.plan.answer_us + self.plan.pause_us)
        turn.say(contract.seller, Offer(offer_id, contract.contract_id, contract.price_low, tasks, hold_us))
        current.waiting = offer_id

    # Answers ----------------------------------------------------------------------------------------------------

    def answered(self, turn: Turn, judge: Judge, sender: str, answer: Accept | Counter | Reject) -> None:
        """A seller has answered; an answer that is too late is let go."""
        offer = self.book.offers.get(answer.offer_id)
        current = self.round
        waited = current is not None and current.waiting == answer.offer_id
        if offer is None or current is None or not waited or turn.now_us >= offer.until_us:
            if not isinstance(answer, Reject) and self._free(answer.offer_id):
                turn.say(sender, Release(answer.offer_id))
            return
        contract = self.book.contracts[offer.contract_id]
        if sender != contract.seller:
            return
        known = {task.task_id for task in offer.tasks}
        wanted = () if isinstance(answer, Reject) else answer.task_ids
        named = tuple(dict.fromkeys(t for t in wanted if t in known))  # One lease for each, however often it is named.
        current.waiting = None
        turn.note(OfferClosed(offer.offer_id))
        if isinstance(answer, Accept) and named:
            self.refused[contract.contract_id] = False
            self._bargain(turn, offer, named, offer.price)
            return
        self.refused[contract.contract_id] = True
        if isinstance(answer, Counter) and named and contract.within(answer.price):
            if self._paying(judge, contract, named, answer.price):
                current.counters.append((answer.price, len(current.counters), offer, named))
            else:
                turn.say(sender, Release(offer.offer_id))
            if self.plan.pause_us:
                current.resume_us = turn.now_us + self.plan.pause_us
                turn.wake(current.resume_us)
                return
        self._advance(turn, judge)

    def _free(self, offer_id: str) -> bool:
        """Whether nothing of ours hangs on this answer: not a bargain, and not a counter-offer that we still weigh."""
        if self.round is not None and any(offer.offer_id == offer_id for _, _, offer, _ in self.round.counters):
            return False
        return not any(lease.offer_id == offer_id for lease in self.book.leases.values())

    def _settle(self, turn: Turn, judge: Judge) -> None:
        """Everybody has been asked: the cheapest counter-offer that still pays, or none."""
        current = self.round
        assert current is not None
        for price, _, offer, named in sorted(current.counters, key=lambda counter: counter[:2]):
            contract = self.book.contracts[offer.contract_id]
            taken = self._paying(judge, contract, named, price)
            if taken:
                self.refused[contract.contract_id] = False
                self._bargain(turn, offer, tuple(task.task_id for task in taken), price)
                return
        self._close(turn, None)

    def _paying(self, judge: Judge, contract: Contract, named: tuple[str, ...], price: float) -> tuple[Task, ...]:
        """What of this is worth that price now; what the owner has placed there is, whatever it costs (rule 4)."""
        here = {task.task_id: task for task in self.book.offerable()}
        tasks = [here[name] for name in named if name in here]
        ordered = tuple(task for task in tasks if self.book.placed.get(task.task_id) == contract.seller)
        return ordered or judge.offerset(tasks, self.book.staying(), contract, price)

    def _bargain(self, turn: Turn, offer: OfferMade, named: tuple[str, ...], price: float) -> None:
        """Agreed: open the leases; `LeaseCourse` tells the seller until it knows."""
        tasks = {task.task_id: task for task in offer.tasks}
        for i, name in enumerate(named):
            turn.note(Opened(f"{offer.offer_id}#{i}", offer.offer_id, Role.BUYER, offer.contract_id, tasks[name],
                             price, LeaseState.COMMITTING, turn.now_us))  # fmt: skip
        self._close(turn, offer.offer_id)

    def _close(self, turn: Turn, won: str | None) -> None:
        """The round is over: let go of everybody else, and rest."""
        current = self.round
        assert current is not None
        for _, _, offer, _ in current.counters:
            if offer.offer_id != won:
                turn.say(self.book.contracts[offer.contract_id].seller, Release(offer.offer_id))
        self.round = None
        self.next_us = turn.now_us + self.plan.interval_us
        turn.wake(self.next_us)
