"""What a participant can be measured by: its load, its contracts and what they have come to."""

from __future__ import annotations

from holdfast.load.manager import LoadManager
from holdfast.metrics.families import LEASE_STATES
from holdfast.metrics.sheet import Sheet
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.leases import Lease
from holdfast.protocol.load.ledger import MILLIONTHS


def measure(manager: LoadManager, sheet: Sheet) -> None:
    """Fill in what is known now. Call it in the host's loop."""
    terms, load = manager.terms, manager.census.load
    for resource, used in load._asdict().items():
        sheet.put("holdfast_load_used", used, resource=resource)
    for resource, there in terms.capacity._asdict().items():
        sheet.put("holdfast_load_capacity", there, resource=resource)
    sheet.put("holdfast_load_cost", terms.plan.cost.total(load))
    sheet.put("holdfast_load_movements_total", manager.moved_out, direction="out")
    sheet.put("holdfast_load_movements_total", manager.moved_back, direction="back")
    sheet.put("holdfast_load_failed_movements_total", manager.moves_failed)
    for contract in terms.plan.contracts:
        _contract(manager, contract, sheet)
    for partner in terms.partners:
        sheet.put("holdfast_partner_balance", manager.core.ledger.balance(partner) / MILLIONTHS, partner=partner)


def _contract(manager: LoadManager, contract: Contract, sheet: Sheet) -> None:
    buys = contract.buyer == manager.terms.name
    partner = contract.seller if buys else contract.buyer
    labels = {"contract": contract.contract_id, "partner": partner, "role": "buyer" if buys else "seller"}
    consent = manager.outbox.agreed.get(partner)
    agreed = consent is not None and not isinstance(consent, str) and contract.contract_id in consent
    sheet.put("holdfast_contract_agreed", agreed, **labels)
    sheet.put("holdfast_contract_price", contract.price_low, bound="low", **labels)
    sheet.put("holdfast_contract_price", contract.price_high, bound="high", **labels)
    book = manager.core.book
    leases = [lease for lease in book.leases.values() if lease.contract.contract_id == contract.contract_id]
    for state in LEASE_STATES:
        count = sum(lease.state.value == state for lease in leases)
        sheet.put("holdfast_contract_leases", count, state=state, **labels)
    if leases:
        sheet.put("holdfast_contract_paid_price", max(lease.price for lease in leases), **labels)
    sheet.put("holdfast_contract_load", sum(contract.load(lease.task.usage) for lease in leases), **labels)
    unpaid = max((_unpaid(manager, lease) for lease in leases), default=0)
    sheet.put("holdfast_contract_unpaid_periods", unpaid, **labels)
    sheet.put("holdfast_contract_paid", book.ledger.paid(contract.contract_id) / MILLIONTHS, **labels)


def _unpaid(manager: LoadManager, lease: Lease) -> int:
    """Periods that have begun, counted with the running one, beyond those that are entered."""
    return max(0, lease.periods(manager.now_us) - manager.core.book.ledger.last(lease.lease_id))
