"""The half of a participant that takes load: ACCEPT_LOAD (figure 6-5) with counter-offers (§6.6.2).

Rules:
1. Offers are gathered for a while and the dearest is examined first. Each is judged on top of everything promised so
   far (B6).
2. At the lowest price: whatever pays. If nothing does but one task would within the range, a counter-offer for that one
   task; at the top of the range, for everything that pays there. Otherwise a refusal.
3. An answer is a reservation that binds until it is committed, released, or out of time; then it is forgotten, and a
   commitment that comes too late is refused. Reservations survive a crash.
4. A commitment opens the leases and charges the first period, in one step.
5. Ids are the buyer's to give, within its own name: an offer is BUYER:NUMBER and its leases are OFFER#0, OFFER#1 and so
   on, each for another task, each once. So nobody gets at another's task by an id (X1). Numbers only grow: one that is
   not above that of the last bargain is not dealt under again.
6. What is offered is something: amounts that are negative, or no numbers, or together nothing, are not taken.
"""

from __future__ import annotations

from holdfast.protocol.load.book import Book
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.leases import LeaseState, Role, offer_of
from holdfast.protocol.load.ledger import charge
from holdfast.protocol.load.messages import Accept, Commit, Committed, Counter, Offer, Refused, Reject, Release
from holdfast.protocol.load.records import Opened, ReservationClosed, Reserved
from holdfast.protocol.load.turn import Turn
from holdfast.protocol.load.usage import Task


class Seller:
    """Answers offers and keeps what it promised."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.plan = book.plan
        self.lost: dict[str, bool] = {}
        """Contracts whose last counter-offer led to nothing."""
        self._gathered: dict[str, tuple[str, Offer]] = {}
        self._examine_us: int | None = None

    def tick(self, turn: Turn, judge: Judge) -> None:
        """Forget promises that are out of time; examine what was gathered."""
        for reserved in list(self.book.reservations.values()):
            if turn.now_us >= reserved.until_us:
                self._forget(turn, reserved)
            else:
                turn.wake(reserved.until_us)
        if self._examine_us is not None:
            if turn.now_us >= self._examine_us:
                self._examine(turn, judge)
            else:
                turn.wake(self._examine_us)

    def _forget(self, turn: Turn, reserved: Reserved) -> None:
        if reserved.counter:
            self.lost[reserved.contract_id] = True
        turn.note(ReservationClosed(reserved.offer_id))

    def released(self, turn: Turn, sender: str, message: Release) -> None:
        """The buyer needs us no longer."""
        if not _own(sender, message.offer_id):
            return
        self._gathered.pop(message.offer_id, None)
        reserved = self.book.reservations.get(message.offer_id)
        if reserved is not None and self.book.contracts[reserved.contract_id].buyer == sender:
            self._forget(turn, reserved)

    # Offers -----------------------------------------------------------------------------------------------------

    def offered(self, turn: Turn, judge: Judge, sender: str, offer: Offer) -> None:
        """An offer came: at once, or with others after a while."""
        contract = self.book.contracts.get(offer.contract_id)
        own = _own(sender, offer.offer_id)
        if not own or contract is None or sender != contract.buyer or offer.price != contract.price_low:
            turn.say(sender, Reject(offer.offer_id))
            return
        known = self.book.reservations.get(offer.offer_id)
        if known is not None:
            self._answer(turn, sender, known)
            return
        if any(lease.offer_id == offer.offer_id for lease in self.book.leases.values()):
            return
        bargain = offer_of(offer.offer_id)
        assert bargain is not None
        if bargain[1] <= self.book.dealt.get(sender, 0):
            turn.say(sender, Reject(offer.offer_id))  # Rule 5: it is late, or the buyer has lost its book.
            return
        self._gathered[offer.offer_id] = (sender, offer)
        if self._examine_us is None:
            self._examine_us = turn.now_us + self.plan.gather_us
        if turn.now_us >= self._examine_us:
            self._examine(turn, judge)
        else:
            turn.wake(self._examine_us)

    def _examine(self, turn: Turn, judge: Judge) -> None:
        waiting = sorted(self._gathered.values(), key=lambda pair: -pair[1].price)
        self._gathered = {}
        self._examine_us = None
        for sender, offer in waiting:
            reserved = self._decide(turn, judge, offer)
            if reserved is None:
                turn.say(sender, Reject(offer.offer_id))
            else:
                turn.note(reserved)
                turn.wake(reserved.until_us)
                self._answer(turn, sender, reserved)

    def _decide(self, turn: Turn, judge: Judge, offer: Offer) -> Reserved | None:
        """Rule 2."""
        contract = self.book.contracts[offer.contract_id]
        tasks = [task for task in offer.tasks if contract.allows(task) and _sound(contract, task)]
        load = self.book.promised()
        until_us = turn.now_us + offer.hold_us
        accepted = judge.acceptset(tasks, load, contract, offer.price)
        if accepted:
            return Reserved(offer.offer_id, contract.contract_id, offer.price, False, accepted, until_us)
        if contract.fixed:
            return None
        asked = self._counter(judge, contract, tasks)
        if asked is None:
            return None
        price, wanted = asked
        return Reserved(offer.offer_id, contract.contract_id, price, True, wanted, until_us)

    def _counter(self, judge: Judge, contract: Contract, tasks: list[Task]) -> tuple[float, tuple[Task, ...]] | None:
        """A price within the range and what would be taken for it; None if nothing pays even at the top."""
        load = self.book.promised()
        for task in tasks:
            valuation = judge.valuation(task, load, contract)
            if valuation >= contract.price_high:
                continue
            lost = self.lost.get(contract.contract_id, False)
            price = max(contract.price_low, self.plan.asking.price(valuation, contract.price_high, lost))
            if price < contract.price_high:
                return price, (task,)
            return contract.price_high, judge.acceptset(tasks, load, contract, contract.price_high)
        return None

    def _answer(self, turn: Turn, sender: str, reserved: Reserved) -> None:
        names = tuple(task.task_id for task in reserved.tasks)
        if reserved.counter:
            turn.say(sender, Counter(reserved.offer_id, reserved.price, names))
        else:
            turn.say(sender, Accept(reserved.offer_id, names))

    # Bargains ---------------------------------------------------------------------------------------------------

    def committed(self, turn: Turn, sender: str, message: Commit) -> None:
        """The buyer closes the bargain; or repeats that it did."""
        reserved = self.book.reservations.get(message.offer_id)
        if reserved is not None and turn.now_us < reserved.until_us:
            contract = self.book.contracts[reserved.contract_id]
            held = {task.task_id: task for task in reserved.tasks}
            if sender != contract.buyer or not self._proper(message, held):
                return
            turn.note(ReservationClosed(reserved.offer_id))
            self.lost[contract.contract_id] = False
            for lease_id, name in message.leases:
                task = held[name]
                turn.note(Opened(lease_id, reserved.offer_id, Role.SELLER, contract.contract_id, task, reserved.price,
                                 LeaseState.MOVING, turn.now_us))  # fmt: skip
                turn.charge(charge(lease_id, 0, contract, reserved.price, contract.load(task.usage)))
        kept = [entry for lease_id, _ in message.leases for entry in self.book.ledger.after(lease_id, -1)]
        entries = tuple(entry for entry in kept if entry.period == 0)
        if entries and all(entry.payer == sender for entry in entries):
            turn.say(sender, Committed(message.offer_id, entries))
        elif not entries:
            turn.say(sender, Refused(message.offer_id))

    def _proper(self, message: Commit, held: dict[str, Task]) -> bool:
        """Rule 5."""
        given, names = [lease_id for lease_id, _ in message.leases], [name for _, name in message.leases]
        if given != [f"{message.offer_id}#{i}" for i in range(len(given))]:
            return False
        if len(set(names)) < len(names) or any(name not in held for name in names):
            return False
        return not any(lease_id in self.book.leases for lease_id in given)


def _own(sender: str, offer_id: str) -> bool:
    """Rule 5."""
    bargain = offer_of(offer_id)
    return bargain is not None and bargain[0] == sender


def _sound(contract: Contract, task: Task) -> bool:
    """Rule 6."""
    return all(0 <= amount < float("inf") for amount in task.usage) and contract.load(task.usage) > 0
