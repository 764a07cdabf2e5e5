"""Planted bugs: at least one for each invariant, to prove that its checker sees.

Rules:
1. A bug is planted from outside, by replacing methods while a context is open; the core knows nothing of it.
2. Each one is a mistake that somebody could make, not an explosion.
3. `python -m holdfast.sim.load --plant NAME` lets one loose; `tests/sim` demands that each is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.protocol.load import book, buyer, choice, contract, counter, lease_course, seller
from holdfast.protocol.load.leases import Lease
from holdfast.protocol.load.ledger import charge, voided
from holdfast.protocol.load.messages import Ended
from holdfast.protocol.load.records import Charged, Reserved
from holdfast.protocol.load.usage import together
from holdfast.sim.load.scenario import HOSTILE


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake: which invariant it breaks, where, and in which kind of scenario it shows soonest."""

    label: str
    text: str
    patches: tuple[tuple[Any, str, Callable[[Any], Any]], ...]
    """(class, method, from the right one to the wrong one)"""
    kind: str
    faulty: bool = False


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda right: lambda *args: value


def _without_range(right: Any) -> Any:
    def find(self: Any, judge: Any, contract: Any, tasks: Any) -> Any:
        found = right(self, judge, contract, tasks)
        return None if found is None else (contract.price_high * 1.2, found[1])

    return find


def _asks_again_at_once(right: Any) -> Any:
    def ordered(self: Any, now_us: int) -> Any:
        return right(self, 2**60)

    return ordered


def _rests_briefly(right: Any) -> Any:
    def close(self: Any, turn: Any, won: Any) -> None:
        right(self, turn, won)
        self.next_us = turn.now_us + 300_000
        turn.wake(self.next_us)

    return close


def _forgets(kind: type) -> Callable[[Any], Any]:
    def make(right: Any) -> Any:
        return lambda self, records: right(self, [r for r in records if not isinstance(r, kind)])

    return make


def _forgets_its_offer(right: Any) -> Any:
    def init(self: Any, book: Any) -> None:
        right(self, book)
        self.round = None

    return init


def _too_eager_to_shed(right: Any) -> Any:
    return lambda self, task, rest, contract, price: right(self, task, rest, contract, price * 0.8)


def _too_eager_to_take(right: Any) -> Any:
    return lambda self, task, load, contract, price: right(self, task, load, contract, price * 1.3)


def _pays_any_price(right: Any) -> Any:
    return lambda self, judge, contract, named, price: right(self, judge, contract, named, contract.price_low)


def _counts_only_what_runs(right: Any) -> Any:
    return lambda self: together(task.usage for task in self.local.values())


def _passes_on(right: Any) -> Any:
    def offerable(self: Any) -> Any:
        locked = self.locked()
        return [task for name, task in self.local.items() if name not in locked]

    return offerable


def _trusts_its_own_book(right: Any) -> Any:
    def renewed(self: Any, turn: Any, message: Any) -> None:
        right(self, turn, Ended(message.lease_id, ()) if isinstance(message, Ended) else message)

    return renewed


def _returns_early(right: Any) -> Any:
    return lambda self, period: right(self, period) - self.contract.period_us // 2


def _next_entry(right: Any) -> Any:
    return lambda self, lease, entry: entry.place == self.book.ledger.last(lease.lease_id) + 1


def _refunds_anything(right: Any) -> Any:
    def over_here(self: Any, turn: Any, lease: Any, void: bool) -> None:
        if void and not self.book.ledger.last(lease.lease_id):
            units = lease.contract.load(lease.task.usage)
            turn.charge(voided(charge(lease.lease_id, 0, lease.contract, lease.price, units)))
        right(self, turn, lease, False)

    return over_here


BUGS = {
    "price-above-range": Bug("B1", "a seller asks more than the contract allows, and the buyer pays it", (
        (seller.Seller, "_counter", _without_range), (contract.Contract, "within", _constant(True))), "lemma"),
    "moves-forbidden": Bug("B2", "tasks move that the contract does not permit", (
        (contract.Contract, "allows", _constant(True)),), "mixed"),
    "passes-on": Bug("B2", "a partner's task is moved further against the contract", (
        (book.Book, "offerable", _passes_on),), "mixed"),
    "asks-again": Bug("B3", "a partner that refused is asked again within the period", (
        (buyer.Buyer, "ordered", _asks_again_at_once), (buyer.Buyer, "_close", _rests_briefly)), "mixed"),
    "forgets-promises": Bug("B3", "reservations do not survive a crash", (
        (book.Book, "restore", _forgets(Reserved)),), "mixed", True),
    "forgets-offers": Bug("B3", "an offer does not bind any more after a crash", (
        (buyer.Buyer, "__init__", _forgets_its_offer),), "lemma", True),
    "returns-early": Bug("B3", "load comes back before its period is over", (
        (Lease, "due_us", _returns_early),), "dynamic"),
    "sheds-at-a-loss": Bug("B4", "tasks are offered that cost less than the price", (
        (choice.Judge, "sheds", _too_eager_to_shed),), "mixed"),
    "takes-at-a-loss": Bug("B4", "tasks are accepted that cost more than they bring", (
        (choice.Judge, "takes", _too_eager_to_take),), "mixed"),
    "pays-any-price": Bug("B4", "a counter-offer is taken although it is dearer than what it saves", (
        (buyer.Buyer, "_paying", _pays_any_price),), "mixed"),
    "never-counters": Bug("B5", "a seller within the range refuses instead of naming a price", (
        (seller.Seller, "_counter", _constant(None)),), "lemma"),
    "keeps-asking-too-much": Bug("B5", "a counter-offer is not lowered when it led to nothing", (
        (counter.Asking, "price", lambda right: lambda self, s, high, lost: max(s, high)),), "lemma"),
    "counts-only-what-runs": Bug("B6", "what was promised is not counted before it arrives", (
        (book.Book, "promised", _counts_only_what_runs),), "mixed"),
    "trusts-its-own-book": Bug("B8", "the last entries of a lease are not copied from the seller", (
        (lease_course.LeaseCourse, "renewed", _trusts_its_own_book),), "dynamic", True),
    "forgets-entries": Bug("B8", "entries do not survive a crash, and are made again or missed", (
        (book.Book, "restore", _forgets(Charged)),), "dynamic", True),
    "never-puts-out": Bug("X7", "a task that is not paid for stays", (
        (lease_course.LeaseCourse, "_put_out", _constant(None)),), HOSTILE),
    "takes-any-amount": Bug("X7", "a buyer pays for as little as it likes", (
        (lease_course.LeaseCourse, "_enough", _constant(True)),), HOSTILE),
    "takes-less-than-nothing": Bug("X7", "tasks of negative weight are taken", (
        (seller, "_sound", _constant(True)),), HOSTILE),
    "refunds-anything": Bug("X7", "a movement that is called failed costs nothing, whenever that is said", (
        (lease_course.LeaseCourse, "_over_here", _refunds_anything),), HOSTILE),
    "pays-what-it-is-told": Bug("B1", "a buyer copies whatever the seller enters", (
        (lease_course.LeaseCourse, "_due", _next_entry),), HOSTILE),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[Bug]:
    """Let a bug loose while the context is open."""
    bug = BUGS[name]
    kept = [(owner, method, owner.__dict__[method]) for owner, method, _ in bug.patches]
    try:
        for (owner, method, make), (_, _, right) in zip(bug.patches, kept, strict=True):
            setattr(owner, method, make(right))
        yield bug
    finally:
        for owner, method, right in kept:
            setattr(owner, method, right)
