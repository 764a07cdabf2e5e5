"""Participants that cheat, and what the honest ones must not suffer from it (X7, B1, B8).

Rules:
1. A cheat runs the real core; what it says is changed, kept back or invented on its way out. So it knows everything
   that a participant knows, and its words have the form of real ones.
2. Only honest participants are judged: what a cheat does to itself, or to another cheat, is its own affair.
3. The accounts of this checker come from records and running tasks alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.messages import (
    Commit,
    Committed,
    End,
    Ended,
    Message,
    Offer,
    Ready,
    Recall,
    Renew,
    Renewed,
)
from holdfast.protocol.load.plan import UNPAID_PERIODS
from holdfast.protocol.load.records import Charged, Opened, Record, Stepped
from holdfast.protocol.load.usage import Task, Usage
from holdfast.sim.load.scenario import SECOND_US, Scenario
from holdfast.sim.load.world import Violation, Watcher, World

#: How often it is looked who runs unpaid; a seller may be late by as much.
LOOK_US = SECOND_US // 10

Cheat = Callable[[Message, random.Random], list[Message]]


def _only(kinds: tuple[type, ...], change: Callable[[Message, random.Random], list[Message]]) -> Cheat:
    return lambda message, chance: change(message, chance) if isinstance(message, kinds) else [message]


def _with(**changes: object) -> Callable[[Message, random.Random], list[Message]]:
    return lambda message, chance: [replace(message, **changes)]  # type: ignore[arg-type]


def _silence(message: Message, chance: random.Random) -> list[Message]:
    return []


def _pays_ahead(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Renew)
    return [replace(message, period=message.period + 1000)]


def _light(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Offer)
    weight = chance.choice((-3.0, -0.5, 0.0))
    return [replace(message, tasks=tuple(replace(task, usage=Usage(weight)) for task in message.tasks))]


def _dearer(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Committed | Renewed | Ended)
    return [replace(message, entries=tuple(_times(entry, 10) for entry in message.entries))]


def _times(entry: Entry, factor: int) -> Entry:
    return replace(entry, units=entry.units * factor, amount=entry.amount * factor)


def _charges_ahead(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Renewed | Ended)
    if not message.entries:
        return [message]
    last = message.entries[-1]
    return [replace(message, entries=(*message.entries, *(replace(last, period=last.period + k) for k in range(1, 6))))]


def _puts_out(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Renewed)
    return [Ended(message.lease_id, message.entries)] if chance.random() < 0.3 else [message]


def _recalls(message: Message, chance: random.Random) -> list[Message]:
    assert isinstance(message, Renewed)
    return [Recall(message.lease_id)]


def _forges(message: Message, chance: random.Random) -> list[Message]:
    """Beside what it means to say, a word about somebody's lease."""
    lease_id = f"p{chance.randrange(7)}:{chance.randint(1, 6)}#{chance.randrange(3)}"
    forged: tuple[Message, ...] = (
        Renew(lease_id, chance.randrange(9), chance.random() * 3, chance.randrange(-1, 5)), Recall(lease_id),
        Ready(lease_id), End(lease_id, chance.random() < 0.5, chance.randrange(-1, 5)), Ended(lease_id, ()),
        Renewed(lease_id, ()), Commit(lease_id.partition("#")[0], ((lease_id, "p0.0"),)),
    )  # fmt: skip
    return [message, chance.choice(forged)]


#: Ways to cheat, as a buyer and as a seller.
CHEATS: dict[str, Cheat] = {
    "never-pays": _only((Renew,), _silence),
    "pays-for-nothing": _only((Renew,), _with(units=0.0)),
    "calls-it-failed": _only((End,), _with(void=True)),
    "vanishes": _only((Renew, Recall, End), _silence),
    "admits-nothing": _only((Renew, End), _with(have=-1)),
    "pays-ahead": _only((Renew,), _pays_ahead),
    "offers-less-than-nothing": _only((Offer,), _light),
    "overcharges": _only((Committed, Renewed, Ended), _dearer),
    "charges-ahead": _only((Renewed, Ended), _charges_ahead),
    "puts-out": _only((Renewed,), _puts_out),
    "keeps": _only((Ready,), _silence),
    "recalls": _only((Renewed,), _recalls),
    "never-ends": _only((Ended,), _silence),
    "forges": _forges,
}


@dataclass(slots=True)
class _Lease:
    """One side of one lease, by its records."""

    contract: Contract
    task: Task
    start_us: int
    entries: list[Entry] = field(default_factory=list)
    ran: bool = False
    over: bool = False

    @property
    def paid_until_us(self) -> int:
        return self.start_us + max(1, len(self.entries)) * self.contract.period_us


class Fairness(Watcher):
    """Watches one world with cheats in it."""

    def __init__(self, scenario: Scenario, world: World) -> None:
        self._scenario, self._world = scenario, world
        self._contracts = {contract.contract_id: contract for contract in scenario.contracts}
        self._leases: dict[tuple[str, str], _Lease] = {}
        self.violations: list[Violation] = []
        self.judged: dict[str, int] = {}
        world.at(LOOK_US, self._look)

    def _honest(self, name: str) -> bool:
        return name not in self._scenario.cheats

    def _say(self, label: str, text: str) -> None:
        self.violations.append(Violation(label, self._world.now_us, text))

    def _count(self, label: str) -> None:
        self.judged[label] = self.judged.get(label, 0) + 1

    # What became true -------------------------------------------------------------------------------------------

    def on_record(self, now_us: int, host: str, record: Record) -> None:
        """Leases begin, are paid for and end."""
        if isinstance(record, Opened):
            contract = self._contracts[record.contract_id]
            self._leases[host, record.lease_id] = _Lease(contract, record.task, record.start_us)
        elif isinstance(record, Stepped) and (host, record.lease_id) in self._leases:
            lease = self._leases[host, record.lease_id]
            lease.over = record.state is LeaseState.ENDED
            if host == lease.contract.buyer and record.state is LeaseState.MOVING:
                lease.start_us = record.at_us
        elif isinstance(record, Charged) and self._honest(host):
            self._charged(now_us, host, record.entry)

    def _charged(self, now_us: int, host: str, entry: Entry) -> None:
        """B1 and X7: what an honest one enters is the price of the contract for what was agreed, and no period twice,
        nor one that has not nearly begun."""
        self._count("B1")
        lease = self._leases[host, entry.lease_id]
        contract, units = lease.contract, lease.task.usage.cpu
        lease.entries.append(entry)
        if not contract.price_low <= entry.price <= contract.price_high:
            self._say("B1", f"{host} entered a price of {entry.price} under {entry.contract_id}")
        if host == contract.buyer and entry.units > units + 1e-9:
            self._say("B1", f"{host} pays for {entry.units} units of {entry.lease_id}, and agreed to {units}")
        if host == contract.seller and entry.units < units - 1e-9:
            self._say("X7", f"{host} is paid for {entry.units} units of {entry.lease_id}, and runs {units}")
        if units <= 0:
            self._say("X7", f"{host} took {units} units under {entry.lease_id}")
        begun = (now_us - lease.start_us) // contract.period_us
        if host == contract.buyer and entry.period > begun + 1:
            self._say("B1", f"{host} pays for period {entry.period} of {entry.lease_id}; {begun} have begun")

    def on_move(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """A task is about to run there."""
        if (to, lease_id) in self._leases:
            self._leases[to, lease_id].ran = True

    # X7 ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Nobody runs unpaid for more than so many periods at an honest seller that is up, nor after its lease."""
        now_us = self._world.now_us
        self._world.at(now_us + LOOK_US, self._look)
        for (host, lease_id), lease in self._leases.items():
            if host != lease.contract.seller or not self._honest(host) or not self._world.hosts[host].up:
                continue
            if lease.over:
                if lease_id in self._world.hosts[host].running:
                    self._say("X7", f"{lease_id} still runs at {host} after its lease")
                continue
            self._count("X7")
            period_us = lease.contract.period_us
            unpaid_us = now_us - lease.paid_until_us
            # A seller that was down had no way to take money, and gives one period after that.
            back_us = now_us - self._world.hosts[host].started_us
            if unpaid_us > UNPAID_PERIODS * period_us + LOOK_US and back_us > period_us + LOOK_US:
                periods = unpaid_us / period_us
                self._say("X7", f"{host} has had {lease_id} for {periods:.1f} unpaid periods")

    # The end ----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """What must hold in the end."""
        for (host, lease_id), lease in self._leases.items():
            if host == lease.contract.seller and self._honest(host) and lease.ran:
                self._count("X7")
                if sum(entry.amount for entry in lease.entries) <= 0:
                    self._say("X7", f"{lease_id} ran at {host}, and nothing was paid for it")
        self._ledgers()
        self._tasks()

    def _ledgers(self) -> None:
        """B8, between honest ones."""
        for (host, lease_id), lease in self._leases.items():
            contract = lease.contract
            if host != contract.buyer or not (self._honest(contract.buyer) and self._honest(contract.seller)):
                continue
            self._count("B8")
            theirs = self._leases.get((contract.seller, lease_id))
            if lease.entries != ([] if theirs is None else theirs.entries):
                self._say("B8", f"the ledgers of {contract.buyer} and {contract.seller} differ about {lease_id}")

    def _tasks(self) -> None:
        """Nobody loses a task: it runs at home, or a lease is about it."""
        for name, host in self._world.hosts.items():
            if not self._honest(name) or host.core is None:
                continue
            self._count("B2")
            away = {lease.task.task_id for lease in host.core.book.leases.values() if lease.role is Role.BUYER}
            lost = [task for task in self._own(name) if task not in host.running and task not in away]
            if lost:
                self._say("B2", f"{name} has lost {lost[:3]}")

    def _own(self, name: str) -> list[str]:
        ended = {change.task_id for change in self._scenario.changes if change.task is None}
        come = [c.task_id for c in self._scenario.changes if c.task is not None and c.participant == name]
        return [task for task in (*(t.task_id for t in self._scenario.tasks[name]), *come) if task not in ended]
