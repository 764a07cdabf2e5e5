"""What happens to a lease after the bargain: movement, periods, renewal, return, end (003 §6.4).

Rules:
1. Load moves for a period d. When it is over, either side may have it moved back; or the buyer pays for one more.
2. The buyer wants it back if carrying it now costs less than paying for it; the seller wants to be rid of it if
   carrying it (or paying a third participant, if it moved the task further) costs more than it is paid.
3. The seller enters every period first and the buyer copies it, at the latest from the answer to End: so the ledgers
   agree when a lease is over, whatever was lost on the way (B8). The buyer says End until it is told nothing new: then
   the seller knows that it has everything, and may forget.
4. What is under way is repeated until it is answered. A movement that failed before the task arrived costs nothing.
   What is over for good is stopped where it arrives, if it was on its way at that moment.
5. An answer holds a bounded number of entries; the buyer asks on until it has them all, before anything ends. Nobody is
   charged for a period that has not nearly begun by the seller's clock.
6. A buyer pays from the first period until it has ended the lease, also while the task is on its way. It pays for no
   less than what was agreed; what the task really uses the seller measures, and wants to be rid of it if that no longer
   pays (rule 2).
7. What was not paid for `unpaid_periods` is put out, whatever its buyer does or does not say (X7). A buyer that hears
   of it, now or when it asks again, goes on at home. It pays no longer than that for a task that it does not get back.
   A seller that was down itself gives everybody one period to pay.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.protocol.load.book import Book
from holdfast.protocol.load.choice import Judge
from holdfast.protocol.load.effects import Drop, Fetch, Move, Reclaim
from holdfast.protocol.load.leases import Lease, LeaseState, Role, bargain_of
from holdfast.protocol.load.ledger import VOID, Entry, charge, voided
from holdfast.protocol.load.messages import Commit, Committed, End, Ended, Ready, Recall, Refused, Renew, Renewed
from holdfast.protocol.load.records import Asked, Closed, Over, Placed, Unwanted
from holdfast.protocol.load.turn import Turn
from holdfast.protocol.load.usage import Task

_AWAY = (LeaseState.RUNNING, LeaseState.RETURNING)
_UNDER_WAY = (LeaseState.MOVING, LeaseState.RETURNING)
#: Entries in one answer (rule 5): with the longest names it stays below what a partner takes in as one message.
ENTRIES_MAX = 200
#: A task may use so many times what is paid for it, and so many units more, before that counts as unpaid. Closer, and
#: noise would send tasks home; wider, and cheats would have more for nothing.
METER_TIMES, METER_UNITS = 2.0, 0.1
#: Leases that are over and whose buyer has not said that it has all entries: so many of each buyer are remembered.
#: Whoever leaves more of them unanswered will not miss the oldest.
ENDED_KEPT = 1000


class LeaseCourse:
    """Looks after every lease, on either side."""

    def __init__(self, book: Book, now_us: int) -> None:
        self.book = book
        self.plan = book.plan
        self._begun_us = now_us
        self._again_us: dict[str, int] = {}
        #: The period in which a task was first wanted back, as far as this life knows.
        self._wanted: dict[str, int] = {}
        self._fresh = True

    def tick(self, turn: Turn, judge: Judge) -> None:
        """Whatever is due: repetitions, the ends of periods."""
        for lease in list(self.book.leases.values()):
            if lease.role is Role.BUYER:
                self._bought(turn, judge, lease)
            else:
                self._sold(turn, judge, lease)
        self._fresh = False

    # The buyer's side -------------------------------------------------------------------------------------------

    def _bought(self, turn: Turn, judge: Judge, lease: Lease) -> None:
        if lease.state is LeaseState.MOVING and self._fresh:
            turn.move.append(Move(lease.lease_id, lease.task, lease.partner))
        if lease.state is LeaseState.RUNNING:
            self._period(turn, judge, lease)
        elif lease.state in _UNDER_WAY:
            self._pay_on(turn, lease)
        silent = lease.state in (LeaseState.MOVING, LeaseState.RUNNING)
        if silent and lease.asked <= self.book.ledger.last(lease.lease_id):
            return
        self._repeat(turn, lease)

    def _pay_on(self, turn: Turn, lease: Lease) -> None:
        """Rule 6, while the task is on its way; and the end of rule 7."""
        if not self.plan.returns:
            return
        if lease.state is LeaseState.RETURNING:
            period = lease.periods(turn.now_us)
            if period - self._wanted.setdefault(lease.lease_id, period) >= self.plan.unpaid_periods:
                return
        due_us = lease.due_us(lease.asked)
        if turn.now_us < due_us:
            turn.wake(due_us)
        elif lease.asked <= self.book.ledger.last(lease.lease_id):
            self._ask(turn, lease)

    def _ask(self, turn: Turn, lease: Lease) -> None:
        turn.note(Asked(lease.lease_id, lease.periods(turn.now_us), lease.contract.load(lease.task.usage)))
        self._again_us.pop(lease.lease_id, None)

    def _period(self, turn: Turn, judge: Judge, lease: Lease) -> None:
        """A period may be over: pay for another, or have the task back."""
        if lease.over or self.book.over(lease.task.task_id):
            self._end(turn, lease)  # Its owner has ended it while it was on its way.
            return
        if not self.plan.returns and not lease.unwanted:
            return
        paid = self.book.ledger.last(lease.lease_id)
        if lease.unwanted and turn.now_us >= lease.due_us(paid):
            self._take_back(turn, lease)
            return
        due_us = lease.due_us(lease.asked)
        if turn.now_us < due_us:
            turn.wake(due_us)
            return
        if lease.asked > paid:
            return  # One question at a time: the answer is an entry for exactly what was asked.
        stays = self.book.placed.get(lease.task.task_id) == lease.partner
        if not stays and judge.takes(lease.task, self.book.promised(), lease.contract, lease.price):
            self._take_back(turn, lease)
            return
        self._ask(turn, lease)

    def _take_back(self, turn: Turn, lease: Lease) -> None:
        turn.step(lease.lease_id, LeaseState.RETURNING)
        self._again_us.pop(lease.lease_id, None)

    def _end(self, turn: Turn, lease: Lease) -> None:
        turn.step(lease.lease_id, LeaseState.ENDING)
        self._again_us.pop(lease.lease_id, None)

    def _repeat(self, turn: Turn, lease: Lease) -> None:
        """Say what is unanswered, again if it is time."""
        if lease.state is LeaseState.ENDED:
            return
        again_us = self._again_us.get(lease.lease_id, 0)
        if turn.now_us < again_us:
            turn.wake(again_us)
            return
        again_us = turn.now_us + self.plan.answer_us
        self._again_us[lease.lease_id] = again_us
        turn.wake(again_us)
        have = self.book.ledger.last(lease.lease_id)
        if lease.state is LeaseState.COMMITTING:
            together = [other for other in self.book.leases.values() if other.offer_id == lease.offer_id]
            for other in together:
                self._again_us[other.lease_id] = again_us
            leases = tuple((other.lease_id, other.task.task_id) for other in together)
            turn.say(lease.partner, Commit(lease.offer_id, leases))
        elif lease.state is LeaseState.ENDING:
            turn.say(lease.partner, End(lease.lease_id, lease.failed, have))
        else:
            if lease.asked > have:
                turn.say(lease.partner, Renew(lease.lease_id, lease.asked, lease.units, have))
            if lease.state is LeaseState.RETURNING:
                turn.say(lease.partner, Recall(lease.lease_id))

    def agreed(self, turn: Turn, sender: str, message: Committed) -> None:
        """The seller knows of the bargain: enter it, and move."""
        entries = {entry.lease_id: entry for entry in message.entries}
        for lease in self._of_offer(sender, message.offer_id):
            entry = entries.get(lease.lease_id)
            if entry is None or not self._due(lease, entry):
                continue
            turn.charge(entry)
            turn.step(lease.lease_id, LeaseState.MOVING)
            turn.move.append(Move(lease.lease_id, lease.task, lease.partner))

    def refused(self, turn: Turn, sender: str, message: Refused) -> None:
        """The seller is no longer bound: the tasks stay."""
        for lease in self._of_offer(sender, message.offer_id):
            turn.step(lease.lease_id, LeaseState.ENDED)

    def _of_offer(self, sender: str, offer_id: str) -> list[Lease]:
        return [
            lease for lease in self.book.leases.values()
            if lease.offer_id == offer_id and lease.partner == sender and lease.state is LeaseState.COMMITTING
        ]  # fmt: skip

    def _due(self, lease: Lease, entry: Entry) -> bool:
        """Whether an entry of the seller's is the next that we asked for (B1): same price, our units, none later."""
        if entry.place != self.book.ledger.last(lease.lease_id) + 1:
            return False
        if entry.period == VOID:
            mine = voided(charge(lease.lease_id, 0, lease.contract, lease.price, entry.units))
        else:
            mine = charge(lease.lease_id, entry.period, lease.contract, lease.price, entry.units)
        return entry == mine and entry.period <= lease.asked and entry.units <= lease.units

    def bought(self, sender: str, lease_id: str) -> bool:
        """Whether this lease is one of ours with the sender: nobody else has a say in it."""
        lease = self.book.leases.get(lease_id)
        return lease is not None and lease.role is Role.BUYER and lease.partner == sender

    def renewed(self, turn: Turn, message: Renewed | Ended) -> None:
        """The seller's entries; with Ended, the last of them."""
        lease = self.book.leases.get(message.lease_id)
        if lease is None or lease.role is not Role.BUYER:
            return
        before = self.book.ledger.last(lease.lease_id)
        for entry in message.entries:
            if self._due(lease, entry):
                turn.charge(entry)
        new = self.book.ledger.last(lease.lease_id) > before
        if new and (isinstance(message, Ended) or len(message.entries) >= ENTRIES_MAX):
            self._again_us.pop(lease.lease_id, None)  # Say at once that we have them; there may be more (rules 3, 5).
        if isinstance(message, Ended) and lease.state in _AWAY:
            self._put_out_there(turn, lease)
        elif isinstance(message, Ended) and lease.state is LeaseState.ENDING and not new:
            turn.step(lease.lease_id, LeaseState.ENDED)

    def _put_out_there(self, turn: Turn, lease: Lease) -> None:
        """Rule 7, for the buyer."""
        if lease.state is LeaseState.RUNNING:
            self._take_back(turn, lease)
        turn.reclaim.append(Reclaim(lease.lease_id, lease.task, lease.partner))

    def ready(self, turn: Turn, lease_id: str) -> None:
        """The seller has it at hand."""
        lease = self.book.leases.get(lease_id)
        if lease is not None and lease.role is Role.BUYER and lease.state is LeaseState.RETURNING:
            turn.fetch.append(Fetch(lease_id, lease.task, lease.partner))

    def moved(self, turn: Turn, lease_id: str, done: bool) -> None:
        """Our host has moved the task, or could not."""
        lease = self.book.leases.get(lease_id)
        if lease is None or lease.role is not Role.BUYER or lease.state is not LeaseState.MOVING:
            return
        if done:
            self.book.local.pop(lease.task.task_id, None)
            turn.step(lease_id, LeaseState.RUNNING)
        else:
            self._end(turn, lease)

    def place(self, turn: Turn, task_id: str, partner: str) -> None:
        """The owner's word: from now on it belongs there. What is elsewhere comes back first."""
        if self.book.placed.get(task_id, "") != partner:
            turn.note(Placed(task_id, partner))
        lease = self.book.onward(task_id)
        if lease is None or lease.partner == partner:
            return
        if lease.state is LeaseState.RUNNING:
            self._take_back(turn, lease)
        elif not lease.unwanted:
            turn.note(Unwanted(lease.lease_id))

    def returned(self, turn: Turn, lease_id: str) -> None:
        """The task runs here again."""
        lease = self.book.leases.get(lease_id)
        if lease is not None and lease.over:
            turn.drop.append(Drop(lease.task.task_id))
        if lease is None or lease.role is not Role.BUYER or lease.state is not LeaseState.RETURNING:
            return
        self.book.local[lease.task.task_id] = lease.task
        if self.book.placed.get(lease.task.task_id) == lease.partner:
            turn.note(Placed(lease.task.task_id, ""))  # The partner did not want to keep it: do not ask for ever.
        self._end(turn, lease)

    def finished(self, turn: Turn, task_id: str) -> None:
        """A task is over for good: also where it was moved to."""
        self.book.local.pop(task_id, None)
        self._over(turn, task_id)

    def _over(self, turn: Turn, task_id: str) -> None:
        """End what we have moved; a task that is on its way just now is not missed (rule 4)."""
        lease = self.book.onward(task_id)
        if lease is None:
            return
        if not lease.over:
            turn.note(Over(lease.lease_id))
        if lease.state in _AWAY:
            self._end(turn, lease)

    # The seller's side ------------------------------------------------------------------------------------------

    def _sold(self, turn: Turn, judge: Judge, lease: Lease) -> None:
        if not self.plan.returns:
            return
        out_us = max(lease.due_us(max(0, self.book.ledger.last(lease.lease_id)) + self.plan.unpaid_periods),
                     self._begun_us + lease.contract.period_us)  # fmt: skip
        if turn.now_us >= out_us:
            self._put_out(turn, lease)
            return
        turn.wake(out_us)
        if lease.state is not LeaseState.RUNNING or lease.unwanted:
            return
        due_us = lease.due_us(max(0, self.book.ledger.last(lease.lease_id)))
        if turn.now_us < due_us:
            turn.wake(due_us)
        elif self._losing(judge, lease):
            again_us = self._again_us.get(lease.lease_id, 0)
            if turn.now_us >= again_us:
                turn.say(lease.partner, Recall(lease.lease_id))
                again_us = self._again_us[lease.lease_id] = turn.now_us + self.plan.answer_us
            turn.wake(again_us)

    def _put_out(self, turn: Turn, lease: Lease) -> None:
        """Rule 7, for the seller."""
        self._over_here(turn, lease, void=True)
        turn.say(lease.partner, Ended(lease.lease_id, self._after(lease.partner, lease.lease_id, -1)))

    def _over_here(self, turn: Turn, lease: Lease, void: bool) -> None:
        """The lease ends. What never arrived costs nothing, unless more than its first period was paid for."""
        if void and lease.state is LeaseState.MOVING and not self.book.ledger.last(lease.lease_id):
            turn.charge(voided(charge(lease.lease_id, 0, lease.contract, lease.price,
                                      lease.contract.load(lease.task.usage))))  # fmt: skip
        turn.step(lease.lease_id, LeaseState.ENDED)
        self.book.local.pop(lease.lease_id, None)
        turn.drop.append(Drop(lease.lease_id))
        self._over(turn, lease.lease_id)
        ended = [name for name, payer in self.book.ledger.payers()
                 if payer == lease.partner and name not in self.book.leases]  # fmt: skip
        for name in ended[:-ENDED_KEPT]:
            turn.note(Closed(name))

    def _losing(self, judge: Judge, lease: Lease) -> bool:
        """Rule 2, for the seller: by what the task uses, and what is paid for it."""
        here = self.book.local.get(lease.lease_id)
        if here is not None:
            agreed, used = lease.contract.load(lease.task.usage), lease.contract.load(here.usage)
            # Measurements tremble, most of all those of a task that has just arrived: what is about as much as agreed
            # is taken for it.
            honest = used <= agreed * METER_TIMES + METER_UNITS
            rest = self.book.staying().minus(here.usage)
            price = lease.price if honest else lease.price * agreed / used
            return judge.sheds(replace(here, migration=0.0), rest, lease.contract, price)
        further = self.book.onward(lease.lease_id)
        if further is None:
            return False
        paid = further.price * further.contract.load(lease.task.usage)
        return paid > lease.price * lease.contract.load(lease.task.usage) * (1.0 + judge.margin)

    def renew(self, turn: Turn, judge: Judge, sender: str, message: Renew) -> None:
        """The buyer wants to leave it here."""
        lease = self._lent(sender, message.lease_id)
        if lease is None:
            self._long_over(turn, sender, message.lease_id, message.have)
            return
        self.book.ledger.known(lease.lease_id, message.have)
        paid = self.book.ledger.last(lease.lease_id)
        if message.period > paid:
            wanted = lease.state is LeaseState.RUNNING and not lease.unwanted
            if not self._enough(lease, message.units) or (wanted and self._losing(judge, lease)):
                turn.say(sender, Recall(lease.lease_id))
                return
            upto = min(message.period, lease.periods(turn.now_us) + 1, max(-1, message.have) + ENTRIES_MAX)
            for period in range(paid + 1, upto + 1):
                turn.charge(charge(lease.lease_id, period, lease.contract, lease.price, message.units))
        turn.say(sender, Renewed(lease.lease_id, self._after(sender, lease.lease_id, message.have)))

    def _enough(self, lease: Lease, units: float) -> bool:
        """Whether what the buyer would pay for is at least what was agreed (rule 6)."""
        return lease.contract.load(lease.task.usage) <= units < float("inf")

    def _long_over(self, turn: Turn, sender: str, lease_id: str, have: int) -> None:
        """Somebody asks about a lease that is not there: if it was the sender's to give its id, it hears that it is
        over, and what it does not have; if it has everything, there is nothing left to remember."""
        bargain = bargain_of(lease_id)
        if lease_id in self.book.leases or bargain is None or bargain[0] != sender:
            return
        self.book.ledger.known(lease_id, have)
        left = self._after(sender, lease_id, have)
        if not left and self.book.ledger.last(lease_id) >= 0:
            turn.note(Closed(lease_id))
        turn.say(sender, Ended(lease_id, left))

    def _after(self, sender: str, lease_id: str, have: int) -> tuple[Entry, ...]:
        """The next entries that the buyer does not have, for nobody but the buyer."""
        return tuple(e for e in self.book.ledger.after(lease_id, have) if e.payer == sender)[:ENTRIES_MAX]

    def _lent(self, sender: str, lease_id: str) -> Lease | None:
        lease = self.book.leases.get(lease_id)
        return lease if lease is not None and lease.role is Role.SELLER and lease.partner == sender else None

    def recall(self, turn: Turn, sender: str, message: Recall) -> None:
        """The other side wants it moved back."""
        lease = self.book.leases.get(message.lease_id)
        if lease is None:
            self._long_over(turn, sender, message.lease_id, -1)
            return
        if lease.partner != sender:
            return
        if lease.role is Role.BUYER:
            if lease.state is LeaseState.RUNNING and not lease.unwanted:
                turn.note(Unwanted(lease.lease_id))
            return
        if lease.state is LeaseState.RUNNING and lease.lease_id in self.book.local:
            if lease.lease_id in self.book.locked():
                self._unwant(turn, lease)
                return
            turn.step(lease.lease_id, LeaseState.RETURNING)
        elif lease.state is LeaseState.RUNNING:
            self._unwant(turn, lease)
            further = self.book.onward(lease.lease_id)
            if further is not None:
                self._unwant(turn, further)
        if lease.state is LeaseState.RETURNING:
            turn.say(sender, Ready(lease.lease_id))

    def _unwant(self, turn: Turn, lease: Lease) -> None:
        if not lease.unwanted:
            turn.note(Unwanted(lease.lease_id))

    def arrived(self, turn: Turn, lease_id: str) -> None:
        """A partner's task runs here now."""
        lease = self.book.leases.get(lease_id)
        if lease is not None and lease.role is Role.SELLER and lease.state is LeaseState.MOVING:
            task = lease.task
            self.book.local[lease_id] = Task(lease_id, task.usage, task.definition, task.migration)
            turn.step(lease_id, LeaseState.RUNNING)

    def end(self, turn: Turn, sender: str, message: End) -> None:
        """The buyer says it is over: enter what is left to enter, and tell it."""
        lease = self._lent(sender, message.lease_id)
        if lease is not None:
            self._over_here(turn, lease, message.void)
        self._long_over(turn, sender, message.lease_id, message.have)
