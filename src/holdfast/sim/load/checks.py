"""What must always hold, judged from outside (B1 to B6, B8).

Rules:
1. A checker sees messages, records, movements and running tasks, and keeps its own accounts of them; it calls nothing
   of the core that it judges. Costs are computed anew from the formulas.
2. A violation has a label, a time and a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import MM1, Cost
from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.protocol.load.messages import Accept, Commit, Counter, End, Message, Offer, Refused, Reject, Release
from holdfast.protocol.load.records import Charged, Opened, Record, Stepped
from holdfast.protocol.load.usage import Task
from holdfast.sim.load.scenario import Scenario
from holdfast.sim.load.world import Violation, Watcher, World

TINY = 1e-9


def total(cost: Cost, units: float) -> float:
    """The cost of so many units of CPU, from the formulas: (7.1) continued beyond 98 %, or half the square."""
    if isinstance(cost, MM1):
        rho = units / cost.capacity.cpu
        if rho < 0.98:
            return rho / (1 - rho)
        return 49.0 + 2500.0 * (rho - 0.98) + 125_000.0 * (rho - 0.98) ** 2
    return units * units / 2


def units(tasks: list[Task] | tuple[Task, ...]) -> float:
    """All tasks of scenarios use CPU alone."""
    return sum(task.usage.cpu for task in tasks)


@dataclass(slots=True)
class _Promise:
    seller: str
    tasks: dict[str, float]
    until_us: int


@dataclass(slots=True)
class Checker(Watcher):
    """Watches one world. `judge` at the end says what was still to be said."""

    scenario: Scenario
    world: World
    violations: list[Violation] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=dict)
    _contracts: dict[str, Contract] = field(default_factory=dict)
    _offers: dict[str, tuple[int, str, Offer]] = field(default_factory=dict)
    _asked_us: dict[str, int] = field(default_factory=dict)
    _promises: dict[str, _Promise] = field(default_factory=dict)
    _coming: dict[str, tuple[str, float]] = field(default_factory=dict)
    _leaving: dict[str, tuple[str, str]] = field(default_factory=dict)
    _answered: dict[str, str] = field(default_factory=dict)
    _owed: dict[str, str] = field(default_factory=dict)
    _started_us: dict[str, int] = field(default_factory=dict)
    _origin: dict[str, Contract] = field(default_factory=dict)
    _moved: dict[str, int] = field(default_factory=dict)
    _saves: dict[str, float] = field(default_factory=dict)
    """What each lease saved its buyer, when the buyer closed the bargain."""
    _under: dict[str, float] = field(default_factory=dict)
    """What each seller ran and had promised when it answered an offer, and what of that offer it has taken since."""
    _first_cost: float = 0.0

    def __post_init__(self) -> None:
        self._contracts = {contract.contract_id: contract for contract in self.scenario.contracts}
        self._first_cost = self._all_costs()

    def _say(self, label: str, text: str) -> None:
        self.violations.append(Violation(label, self.world.now_us, text))

    def _count(self, label: str) -> None:
        self.judged[label] = self.judged.get(label, 0) + 1

    def _cost(self, name: str) -> Cost:
        return self.world.hosts[name].plan.cost

    def _all_costs(self) -> float:
        return sum(total(host.plan.cost, units(tuple(host.running.values()))) for host in self.world.hosts.values())

    def _margin(self, name: str) -> float:
        return self.world.hosts[name].plan.margin

    # Messages ---------------------------------------------------------------------------------------------------

    def on_send(self, now_us: int, sender: str, to: str, message: Message) -> None:
        """A participant commits itself."""
        if isinstance(message, Offer):
            self._offered(now_us, sender, to, message)
        elif isinstance(message, Accept):
            self._promised(now_us, sender, message.offer_id, message.task_ids, None)
        elif isinstance(message, Counter):
            self._promised(now_us, sender, message.offer_id, message.task_ids, message.price)
        elif isinstance(message, Commit):
            self._owed.pop(message.offer_id, None)
        elif isinstance(message, Refused):
            promise = self._promises.get(message.offer_id)
            self._count("B3")
            if promise is not None and now_us < promise.until_us:
                self._say("B3", f"{sender} refused {message.offer_id}, to which it was bound until {promise.until_us}")

    def on_deliver(self, now_us: int, sender: str, to: str, message: Message) -> None:
        """A participant hears of it."""
        if isinstance(message, Accept | Counter | Reject):
            self._heard(now_us, to, message)
        elif isinstance(message, Release):
            self._promises.pop(message.offer_id, None)
        elif isinstance(message, End):
            self._coming.pop(message.lease_id, None)

    def _offered(self, now_us: int, buyer: str, seller: str, offer: Offer) -> None:
        contract = self._contracts.get(offer.contract_id)
        if contract is None or (contract.buyer, contract.seller) != (buyer, seller):
            self._say("B2", f"{buyer} offered load to {seller} without a contract")
            return
        self._count("B3")
        last_us = self._asked_us.get(offer.contract_id)
        if last_us is not None and now_us - last_us < contract.period_us:
            self._say("B3", f"{buyer} asked {seller} again after {now_us - last_us} us")
        self._asked_us[offer.contract_id] = now_us
        self._offers[offer.offer_id] = (now_us, buyer, offer)
        if not contract.price_low <= offer.price <= contract.price_high:
            self._say("B1", f"{buyer} offered {offer.price} under {offer.contract_id}")
        self._pays(buyer, contract, offer)

    def _pays(self, buyer: str, contract: Contract, offer: Offer) -> None:
        """B4, for the buyer: every task costs more than it would be paid for, those offered before it gone."""
        self._count("B4")
        load = self._staying(buyer)
        cost, d = self._cost(buyer), contract.period_us / 1e6
        for task in offer.tasks:
            x = task.usage.cpu
            saved = (total(cost, load) - total(cost, load - x)) * d
            spent = offer.price * (1 + self._margin(buyer)) * x * d + 2 * task.migration
            if saved <= spent - TINY:
                self._say("B4", f"{buyer} offered {task.task_id} at {offer.price}: it saves {saved}, costs {spent}")
            if contract.permits is not None and task.definition not in contract.permits:
                self._say("B2", f"{buyer} offered {task.definition!r} to {contract.seller}, which is not permitted")
            load -= x

    def _staying(self, buyer: str) -> float:
        """What the buyer runs and has not agreed to move."""
        gone = {task for host, task in self._leaving.values() if host == buyer}
        return sum(task.usage.cpu for name, task in self.world.hosts[buyer].running.items() if name not in gone)

    def _promised(self, now_us: int, seller: str, offer_id: str, names: tuple[str, ...], price: float | None) -> None:
        known = self._offers.get(offer_id)
        if known is None or offer_id in self._promises:
            return
        _, _, offer = known
        contract = self._contracts[offer.contract_id]
        if price is not None and not contract.price_low <= price <= contract.price_high:
            self._say("B1", f"{seller} asked {price} under {offer.contract_id}")
        tasks = {task.task_id: task.usage.cpu for task in offer.tasks if task.task_id in names}
        held = self._held(now_us, seller)
        self._affords(seller, offer.price if price is None else price, list(tasks.values()), held)
        self._under[offer_id] = units(tuple(self.world.hosts[seller].running.values())) + held
        self._promises[offer_id] = _Promise(seller, tasks, now_us + offer.hold_us)

    def _held(self, now_us: int, seller: str) -> float:
        """What the seller has promised and not received."""
        bound = [p for p in self._promises.values() if p.seller == seller and now_us < p.until_us]
        waiting = sum(sum(p.tasks.values()) for p in bound)
        return waiting + sum(x for host, x in self._coming.values() if host == seller)

    def _affords(self, seller: str, price: float, sizes: list[float], held: float) -> None:
        """B4 and B6, for the seller: every task costs less than it is paid, everything promised included."""
        self._count("B6")
        running = units(tuple(self.world.hosts[seller].running.values()))
        for label, load in (("B4", running), ("B6", running + held)):
            for x in sizes:
                spent = total(self._cost(seller), load + x) - total(self._cost(seller), load)
                if spent > price * x + TINY:
                    self._say(label, f"{seller} promised a task for {price * x} that costs it {spent}")
                    return
                load += x

    def _heard(self, now_us: int, buyer: str, answer: Accept | Counter | Reject) -> None:
        """B3, for the buyer: an acceptance in time must be followed by a commitment."""
        known = self._offers.get(answer.offer_id)
        if known is None or answer.offer_id in self._answered:
            return
        sent_us, _, _ = known
        if now_us >= sent_us + self.world.hosts[buyer].plan.answer_us:
            return
        self._answered[answer.offer_id] = buyer
        if isinstance(answer, Accept):
            self._count("B3")
            self._owed[answer.offer_id] = buyer

    def on_crash(self, now_us: int, host: str) -> None:
        """What was being said may be lost."""
        self._owed = {offer: buyer for offer, buyer in self._owed.items() if buyer != host}

    # Records and movements --------------------------------------------------------------------------------------

    def on_record(self, now_us: int, host: str, record: Record) -> None:
        """Accounts of who is about to leave, and of money."""
        if isinstance(record, Opened):
            if record.role is Role.BUYER:
                self._frees(host, record)
                self._leaving[record.lease_id] = (host, record.task.task_id)
            else:
                self._promises.pop(record.offer_id, None)
                self._coming[record.lease_id] = (host, record.task.usage.cpu)
                self._shifts(record)
        elif isinstance(record, Stepped):
            if record.state is LeaseState.MOVING:
                self._started_us[record.lease_id] = record.at_us
            elif record.state in (LeaseState.ENDING, LeaseState.ENDED):
                lease = self._leaving.get(record.lease_id)
                if lease is not None and lease[0] == host:
                    del self._leaving[record.lease_id]
        elif isinstance(record, Charged):
            self._charged(host, record)

    def _charged(self, host: str, record: Charged) -> None:
        self._count("B1")
        entry = record.entry
        contract = self._contracts.get(entry.contract_id)
        if contract is None or (entry.payer, entry.payee) != (contract.buyer, contract.seller):
            self._say("B1", f"{host} entered a payment from {entry.payer} to {entry.payee} without a contract")
        elif not contract.price_low - TINY <= entry.price <= contract.price_high + TINY:
            self._say("B1", f"{host} entered a price of {entry.price} under {entry.contract_id}")
        elif abs(abs(entry.amount) - entry.price * entry.units * contract.period_us) > 1:
            self._say("B1", f"{host} entered {entry.amount} for {entry.units} units at {entry.price}")

    def on_move(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """B2: only to partners, only what is permitted."""
        self._count("B2")
        contract = self._contracts.get(f"{source}>{to}")
        if contract is None:
            self._say("B2", f"{task.task_id} moved from {source} to {to} without a contract")
            return
        if contract.permits is not None and task.definition not in contract.permits:
            self._say("B2", f"{task.definition!r} moved from {source} to {to}, which is not permitted")
        under = self._origin.get(task.task_id)
        if under is not None and not under.onward:
            self._say("B2", f"{source} moved {task.task_id} further, which {under.contract_id} does not allow")
        self._origin[lease_id] = contract
        self._moved[lease_id] = now_us
        self._coming.pop(lease_id, None)
        self._leaving.pop(lease_id, None)

    def _frees(self, buyer: str, record: Opened) -> None:
        """What the lease saves its buyer, on top of everything that surely stays."""
        load, x = self._staying(buyer), record.task.usage.cpu
        self._saves[record.lease_id] = total(self._cost(buyer), load) - total(self._cost(buyer), load - x)

    def _shifts(self, record: Opened) -> None:
        """B4 as a whole: under static load every bargain lowers the sum of all costs.

        Each side is judged at the moment at which it bound itself: sellers may be told of bargains in another order
        than they promised, and of a movement that failed long after its buyer. By convexity the buyer saves at least
        what it saves on top of what surely stays, and the seller spends at most what it spends on top of all promises.
        """
        if not self.scenario.static:
            return
        self._count("B4")
        contract, x = self._contracts[record.contract_id], record.task.usage.cpu
        cost, load = self._cost(contract.seller), self._under[record.offer_id]
        self._under[record.offer_id] = load + x
        saved, spent = self._saves[record.lease_id], total(cost, load + x) - total(cost, load)
        if spent > saved + TINY:
            self._say("B4", f"{x} units from {contract.buyer} to {contract.seller} cost {spent} and save {saved}")

    def on_return(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """B3: load moves for a period."""
        self._count("B3")
        started_us = self._started_us.get(lease_id)
        if started_us is not None and now_us - started_us < self._origin[lease_id].period_us:
            self._say("B3", f"{task.task_id} came back from {source} after {now_us - started_us} us")

    # The end ----------------------------------------------------------------------------------------------------

    def judge(self, expected_tasks: int) -> None:
        """What must hold when everything is healed and still."""
        for offer_id, buyer in self._owed.items():
            self._say("B3", f"{buyer} did not commit to {offer_id}, which was accepted in time")
        running = sum(len(host.running) for host in self.world.hosts.values())
        if running != expected_tasks:
            self._say("B2", f"{running} tasks run, of {expected_tasks}: one was lost or doubled")
        if self.scenario.static and self._all_costs() > self._first_cost + TINY:
            self._say("B4", f"everything together costs {self._all_costs()}, and cost {self._first_cost} before")
        self._ledgers()
        if self.scenario.kind == "lemma":
            self._acceptable()

    def _ledgers(self) -> None:
        """B8: both sides have the same entries, payments sum to zero, and only what moved is paid for."""
        books: dict[str, dict[tuple[str, int], int]] = {}
        for name, host in self.world.hosts.items():
            found = [r.entry for r in host.journal if isinstance(r, Charged)]
            books[name] = {(entry.lease_id, entry.period): entry.amount for entry in found}
        for contract in self.scenario.contracts:
            self._count("B8")
            mine, theirs = (self._entries(contract, books[name]) for name in (contract.buyer, contract.seller))
            if mine != theirs:
                odd = sorted(set(mine.items()) ^ set(theirs.items()))[:3]
                self._say("B8", f"the ledgers of {contract.contract_id} differ: {odd}")
            for lease_id in {lease for lease, _ in theirs}:
                paid = sum(amount for (lease, _), amount in theirs.items() if lease == lease_id)
                renewed = any(lease == lease_id and period > 0 for lease, period in theirs)
                if (paid > 0) != (lease_id in self._moved or renewed):
                    moved = "moved" if lease_id in self._moved else "never moved"
                    self._say("B8", f"{lease_id} {moved}, and {paid} was paid for it")

    def _entries(self, contract: Contract, book: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """The entries of leases that began with this contract's offers."""
        mine = {offer_id for offer_id, (_, _, offer) in self._offers.items()
                if offer.contract_id == contract.contract_id}  # fmt: skip
        return {key: amount for key, amount in book.items() if key[0].partition("#")[0] in mine}

    def _acceptable(self) -> None:
        """B5: what Lemma 1 and theorem 2 promise, by counting tasks."""
        self._count("B5")
        contract = self.scenario.contracts[0]
        cost = self._cost(contract.buyer)
        full = 0
        while total(cost, full + 1.0) - total(cost, float(full)) <= contract.price_high:
            full += 1
        loads = [len(host.running) for host in self.world.hosts.values()]
        least = full - (self.scenario.diameter - 1)
        if max(loads) > full and sum(loads) <= least * len(loads):
            self._say("B5", f"underloaded, and yet {max(loads)} tasks where {full} are acceptable: {loads}")
        if max(loads) > full and min(loads) < least:
            self._say("B5", f"overloaded, and yet {min(loads)} tasks where {least} are nearly acceptable: {loads}")
