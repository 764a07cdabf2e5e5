"""What people are shown of a load manager: loads and contracts, as plain values."""

from __future__ import annotations

from typing import Any

from holdfast.load.manager import LoadManager
from holdfast.load.remote_task import read_note
from holdfast.load.tasks import Guest
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.ledger import MILLIONTHS
from holdfast.protocol.load.usage import NOTHING, Usage


def loads_of(manager: LoadManager) -> dict[str, Any]:
    """What `holdfast load` shows."""
    terms, core = manager.terms, manager.core
    load, cost = manager.census.load, terms.plan.cost
    tasks = []
    for task_id, held in manager.tasks.items():
        note, lease = read_note(held.home), manager.lease_of(task_id)
        here, stand = note is None, manager.mover.away(held) or held.controller
        usage = manager.census.usage(task_id) if here else NOTHING
        tasks.append({
            "task": task_id, "definition": held.definition, "at": terms.name if note is None else note.partner,
            "owner": held.note.owner if isinstance(held, Guest) else terms.name,
            "rows_per_s": round(manager.census.meter.rows_per_s(task_id), 1), "usage": _usage(usage),
            "marginal": round(cost.marginal(usage, load.minus(usage)), 4) if here else 0.0,
            "movable": here and (controller := held.controller) is not None and controller.movable,
            "ended": stand is not None and stand.ended,
            "lease": lease.lease_id if lease else None, "lease_state": lease.state.value if lease else None,
            "price": lease.price if lease else None, "placed": core.book.placed.get(task_id),
        })  # fmt: skip
    return {
        "host": manager.host.name, "participant": terms.name, "capacity": _usage(terms.capacity), "load": _usage(load),
        "cost": round(cost.total(load), 4), "tasks": tasks,
        "balances": {name: core.ledger.balance(name) / MILLIONTHS for name in terms.partners},
    }  # fmt: skip


def contracts_of(manager: LoadManager) -> dict[str, Any]:
    """What `holdfast contracts` shows."""
    terms, book, found = manager.terms, manager.core.book, []
    for contract in terms.plan.contracts:
        partner = contract.seller if contract.buyer == terms.name else contract.buyer
        leases = [lease for lease in book.leases.values() if lease.contract.contract_id == contract.contract_id]
        consent = manager.outbox.agreed.get(partner)
        if consent is None or isinstance(consent, str):
            agreed, why = None, consent or "not asked yet"
        else:
            agreed = contract.contract_id in consent
            why = "" if agreed else f"{partner} has not signed these clauses; compare its file with {terms.file}"
        if nobodys := manager.nobodys(contract):
            why = "; ".join(filter(None, [why, nobodys]))
        found.append({
            "contract": contract.contract_id, "buyer": contract.buyer, "seller": contract.seller,
            "price_low": contract.price_low, "price_high": contract.price_high,
            "period_s": contract.period_us / SECOND_US, "permits": contract.permits, "onward": contract.onward,
            "agreed": agreed, "why": why,
            "price": max((lease.price for lease in leases), default=None),
            "used": round(sum(contract.load(lease.task.usage) for lease in leases), 4),
            "leases": [
                {"lease": lease.lease_id, "task": lease.task.task_id, "state": lease.state.value, "price": lease.price}
                for lease in leases
            ],
            "paid": book.ledger.paid(contract.contract_id) / MILLIONTHS,
        })  # fmt: skip
    return {"host": manager.host.name, "participant": terms.name, "contracts": found}


def _usage(usage: Usage) -> dict[str, float]:
    return {name: round(value, 4) for name, value in usage._asdict().items()}
