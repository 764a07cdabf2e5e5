"""What a host that shares load answers: to partners what their contracts say, to its operator everything.

Rules:
1. A partner speaks below /v1/partners/ITS-NAME with the token that the two share, compared in constant time (X1). It
   gets at tasks under leases between the two, and at the inputs of those; nothing else is there for it.
2. The operator asks with the token of the deployment: loads, contracts, history, and movements by hand.
3. A parcel is taken in piece by piece, in bounded time and size; a guest begins to exist when all of it is durable. Of
   a guest's state there is one copy at a time on its way.
4. No portion is larger than this host itself would ask for, whatever the partner asks for (X4).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.host.crash_points import reached
from holdfast.host.envelope import UNREADABLE
from holdfast.host.link import Link
from holdfast.host.parcel import PARCEL_BYTES_MAX, Unpacking
from holdfast.host.parcel_routes import Handing
from holdfast.host.service import WAIT_S_MAX, Door, Refused, body_of, number_of, position_of
from holdfast.host.wire import PORTION_BYTES, PORTION_TYPE, Portion, encode_definition, encode_portion
from holdfast.inputs.http_server import BODY_S_MAX, connection_of
from holdfast.inputs.token_file import TokenFile
from holdfast.load.manager import LoadManager
from holdfast.load.message_codec import MESSAGE_BYTES_MAX, decode_message
from holdfast.load.remote_task import read_note
from holdfast.load.tasks import Guest, GuestNote, HeldTask, guest_name, install_guest
from holdfast.model.errors import PeerError, UsageError
from holdfast.model.time import SECOND_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.load.leases import Lease, LeaseState, Role
from holdfast.protocol.load.ledger import MILLIONTHS, Ledger
from holdfast.protocol.load.messages import Offer
from holdfast.protocol.load.signals import Arrived, Received
from holdfast.protocol.load.usage import NOTHING, Usage

log = logging.getLogger(__name__)

_LANES = {"main": Lane.MAIN, "head": Lane.HEAD}
#: A partner that sends less than a megabyte in this long has gone.
_CHUNK_S = 30.0
_CHUNK = 1 << 20
#: What a parcel may have beside its bodies.
_HEAD_BYTES_MAX = 16 << 20


def doors_of(manager: LoadManager) -> list[Door]:
    """All of them."""
    at = _Doors(manager)
    below = "/v1/partners/{partner}"
    return [
        Door(f"{below}/messages", "POST", at.message, at.admits),
        Door(f"{below}/contracts", "GET", at.consent, at.admits),
        Door(f"{below}/guests/{{guest}}", "GET", at.guest, at.admits),
        Door(f"{below}/guests/{{guest}}/parcel", "POST", at.take_in, at.admits),
        Door(f"{below}/guests/{{guest}}/parcel", "GET", at.hand_over, at.admits),
        Door(f"{below}/guests/{{guest}}/output/main", "GET", at.output, at.admits),
        Door(f"{below}/inputs/{{guest}}/{{stream}}/definition", "GET", at.input_definition, at.admits),
        Door(f"{below}/inputs/{{guest}}/{{stream}}/{{lane}}", "GET", at.input, at.admits),
        Door("/v1/load", "GET", at.loads),
        Door("/v1/load/history", "GET", at.history),
        Door("/v1/contracts", "GET", at.contracts),
        Door("/v1/move", "POST", at.move),
    ]


class _Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    to: str = ""


class _Doors:
    def __init__(self, manager: LoadManager) -> None:
        self._manager = manager
        self._tokens = {name: TokenFile(partner.token_file) for name, partner in manager.terms.partners.items()}
        self._arriving: set[str] = set()
        self._handing = Handing()

    def admits(self, request: Request, token: str) -> bool:
        """Rule 1. Strangers are told the same as partners with a wrong token."""
        file = self._tokens.get(_partner(request))
        known = (os.urandom(16).hex(),) if file is None else file.accepted()
        return any(hmac.compare_digest(token.encode(), one.encode()) for one in known)

    def _lease(self, request: Request, role: Role) -> Lease:
        """The lease that the request is about: ours with this very partner, in this role."""
        name = str(request.path_params["guest"])
        for lease in self._manager.core.book.leases.values():
            if guest_name(lease.lease_id) == name and lease.role is role and lease.partner == _partner(request):
                return lease
        raise Refused(404, f"there is no lease {name!r} between us; it has ended, or never was")

    def _guest(self, request: Request) -> Guest:
        lease = self._lease(request, Role.SELLER)
        guest = self._manager.tasks.get(lease.lease_id)
        if not isinstance(guest, Guest):
            raise Refused(404, f"the task of lease {lease.lease_id} is not here yet")
        return guest

    # Partners ---------------------------------------------------------------------------------------------------

    async def message(self, request: Request) -> Response:
        data = await body_of(request, MESSAGE_BYTES_MAX)
        try:
            sender, to, message = decode_message(data)
        except PeerError as error:
            raise Refused(400, str(error)) from None
        terms = self._manager.terms
        if sender != _partner(request) or to != terms.name:
            raise Refused(403, f"a message here must be from {_partner(request)} to {terms.name}; got {sender} to {to}")
        if isinstance(message, Offer) and message.contract_id not in self._manager.core.book.contracts:
            raise Refused(403, f"there is no contract {message.contract_id} here; both must sign the same clauses")
        if isinstance(message, Offer):
            # What we have no definition of cannot run here, so it was not offered.
            known = {node.name for node in self._manager.definitions.nodes}
            message = replace(message, tasks=tuple(task for task in message.tasks if task.definition in known))
        self._manager.tell(Received(sender, message))
        return JSONResponse({})

    async def consent(self, request: Request) -> Response:
        asks, ours = _partner(request), self._manager.terms.plan.contracts
        return JSONResponse({"contracts": [c.contract_id for c in ours if asks in (c.buyer, c.seller)]})

    async def guest(self, request: Request) -> Response:
        guest = self._guest(request)
        stand = guest.host.controllers.get(guest.replica)
        state = "STARTING" if stand is None else str(stand.status()["state"])
        reader = guest.output.reader()
        boundary, closed = reader.boundary_us, reader.closed
        reader.close()
        return JSONResponse({"state": state, "boundary_us": boundary, "closed": closed})

    async def take_in(self, request: Request) -> Response:
        """Rule 3."""
        lease, manager = self._lease(request, Role.SELLER), self._manager
        if lease.lease_id in manager.tasks:
            async for _ in _timely(request):
                pass  # An earlier parcel arrived whole; what stands there now is as good.
            return JSONResponse({})
        if lease.state is not LeaseState.MOVING:
            raise Refused(409, f"lease {lease.lease_id} is {lease.state.value}; a task comes when it is moving")
        if lease.lease_id in self._arriving:
            raise Refused(409, f"the task of lease {lease.lease_id} is just arriving by another request; ask again")
        self._arriving.add(lease.lease_id)
        guests = manager.host.root / ".holdfast" / "guests"
        staging = guests / f".arriving-{os.urandom(8).hex()}"
        try:
            await self._unpack(request, lease, guests, staging)
        finally:
            self._arriving.discard(lease.lease_id)
            shutil.rmtree(staging, ignore_errors=True)
        return JSONResponse({})

    async def _unpack(self, request: Request, lease: Lease, guests: Path, staging: Path) -> None:
        manager, loop = self._manager, asyncio.get_running_loop()
        staging.mkdir(parents=True)
        unpacking = Unpacking(staging)
        try:
            async for chunk in _timely(request):
                await loop.run_in_executor(None, unpacking.feed, chunk)
                if unpacking.head is not None:
                    reached("half")
            head, output, waiting = await loop.run_in_executor(None, unpacking.finish)
        except PeerError as error:
            raise Refused(400, str(error)) from None
        finally:
            unpacking.close()
        if (head.lease_id, head.definition) != (lease.lease_id, lease.task.definition):
            raise Refused(400, f"lease {lease.lease_id} is about {lease.task.definition}; got {head.definition}")
        node = manager.definitions.node(head.definition)
        if node.output != output.name:
            raise Refused(400, f"{head.definition} writes {node.output} here, and {output.name} at {_partner(request)}")
        reached("unpacked")
        note = GuestNote(lease.lease_id, head.definition, _partner(request))
        folder = guests / guest_name(lease.lease_id)
        install = partial(install_guest, folder, note, output, waiting, staging)
        if lease.state is LeaseState.ENDED:
            raise Refused(409, f"lease {lease.lease_id} has ended meanwhile")
        await loop.run_in_executor(None, install)
        reached("installed")
        guest = manager.guest(folder, note)
        manager.tasks[lease.lease_id] = guest
        manager.tell(Arrived(lease.lease_id))
        manager.start(guest)
        reached("started")

    async def hand_over(self, request: Request) -> Response:
        """Where the guest stands, while it runs on; its owner ends the lease when it has it."""
        guest = self._guest(request)
        controller = guest.controller
        if controller is None or not controller.at_rest:
            raise Refused(503, f"{guest.replica} is not STABLE now; ask again later")
        return await self._handing.give(guest.task_id, guest.definition, controller, guest.home)

    async def output(self, request: Request) -> Response:
        guest = self._guest(request)
        wait_s = min(number_of(request, "wait_ms", 0) / 1000, WAIT_S_MAX)
        position = position_of(request)
        portion = await guest.serving.wait(guest.node.output, Lane.MAIN, position, wait_s, _bytes_max(request))
        guest.pulled(position)
        return _portion(portion)

    async def input(self, request: Request) -> Response:
        task, stream = self._input(request)
        lane = _LANES.get(str(request.path_params["lane"]))
        if lane is None:
            raise Refused(404, f"an input is read as one of {', '.join(_LANES)}")
        wait_s = min(number_of(request, "wait_ms", 0) / 1000, WAIT_S_MAX)
        asked = position_of(request), wait_s, _bytes_max(request)
        return _portion(await _pull(task.input_links(stream), stream, lane, *asked))

    async def input_definition(self, request: Request) -> Response:
        task, stream = self._input(request)
        return Response(encode_definition(await task.input_definition(stream)), media_type="application/json")

    def _input(self, request: Request) -> tuple[HeldTask, str]:
        lease = self._lease(request, Role.BUYER)
        task, stream = self._manager.tasks.get(lease.task.task_id), str(request.path_params["stream"])
        if task is None or stream not in task.node.inputs:
            raise Refused(404, f"{stream!r} is no input of {lease.task.task_id}")
        return task, stream

    # The operator -----------------------------------------------------------------------------------------------

    async def loads(self, request: Request) -> Response:
        return JSONResponse(loads_of(self._manager))

    async def contracts(self, request: Request) -> Response:
        return JSONResponse(contracts_of(self._manager))

    async def history(self, request: Request) -> Response:
        lines = self._manager.history.lines(number_of(request, "since_us", 0))
        return Response(msgspec.json.encode(lines), media_type="application/json")

    async def move(self, request: Request) -> Response:
        try:
            order = msgspec.json.decode(await body_of(request), type=_Move)
        except UNREADABLE as error:
            raise Refused(400, f"a movement must be {{node, to}}; {error}") from None
        try:
            return JSONResponse({"said": self._manager.place(order.node, order.to)})
        except UsageError as error:
            raise Refused(404, str(error)) from None


def _partner(request: Request) -> str:
    return str(request.path_params["partner"])


def _bytes_max(request: Request) -> int:
    """Rule 4."""
    return min(number_of(request, "bytes_max", PORTION_BYTES), PORTION_BYTES)


def _portion(portion: Portion) -> Response:
    return Response(b"".join(encode_portion(portion)), media_type=PORTION_TYPE)


async def _pull(links: list[Link], stream: str, lane: Lane, position: Any, wait_s: float, bytes_max: int) -> Portion:
    """From the first producer that answers. A cursor means something only to the one that gave it out."""
    trouble: PeerError | None = None
    for link in links:
        try:
            return await link.pull(stream, lane, position, wait_s, bytes_max)
        except PeerError as error:
            trouble = error
    raise trouble or PeerError(f"nobody produces {stream}")


async def _timely(request: Request) -> AsyncIterator[bytes]:
    """A body piece by piece, given up where it is longer than a parcel or comes slower than `_CHUNK` in `_CHUNK_S`."""
    loop, chunks, connection = asyncio.get_running_loop(), request.stream(), connection_of(request)
    left_s, came, total = _CHUNK_S, 0, 0
    if connection is not None:
        connection.give_body(None)
    try:
        while total <= PARCEL_BYTES_MAX + _HEAD_BYTES_MAX:
            begun = loop.time()
            async with asyncio.timeout(left_s):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            came, total, left_s = came + len(chunk), total + len(chunk), left_s - (loop.time() - begun)
            if came >= _CHUNK:
                came, left_s = came % _CHUNK, _CHUNK_S
            yield chunk
        raise Refused(413, f"a parcel may have {PARCEL_BYTES_MAX} bytes at most")
    finally:
        if connection is not None:
            connection.give_body(BODY_S_MAX)


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


def overview_of(manager: LoadManager) -> dict[str, Any]:
    """What the console shows: the same, by name."""
    loads, contracts = loads_of(manager), contracts_of(manager)["contracts"]
    return {
        **loads, "tasks": {task["task"]: task for task in loads["tasks"]},
        "contracts": {contract["contract"]: contract for contract in contracts},
        "ledger": _ledger(manager.core.ledger),
    }  # fmt: skip


def _ledger(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Accounts of leases that last, with the newest entry that the partner may lack; sums of those that are over."""
    found: dict[str, dict[str, Any]] = {}
    for lease, account in ledger.accounts.items():
        last = account.open[-1] if account.open else None
        found[lease] = {
            "contract": account.contract_id, "payer": account.payer, "payee": account.payee,
            "entries": account.entries, "amount": account.amount / MILLIONTHS, "unconfirmed": len(account.open),
            "last": None if last is None else {
                "period": last.period, "price": last.price, "units": last.units, "amount": last.amount / MILLIONTHS,
            },
        }  # fmt: skip
    for contract, (payer, payee, amount) in ledger.settled.items():
        found[f"{contract}, leases that are over"] = {
            "contract": contract, "payer": payer, "payee": payee, "amount": amount / MILLIONTHS,
        }  # fmt: skip
    return found


def _usage(usage: Usage) -> dict[str, float]:
    return {name: round(value, 4) for name, value in usage._asdict().items()}
