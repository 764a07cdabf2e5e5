"""What load managers say to each other, as bytes.

Rules:
1. Each is in an envelope with a version (`holdfast.host.envelope`).
2. Everything is bounded (X4): names, numbers of tasks, prices that are numbers.
3. The sender is who its token says; a name in the envelope that differs is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.host.envelope import Envelopes
from holdfast.protocol.load import messages
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.usage import Task, Usage

LOAD_VERSION = 1
MESSAGE_BYTES_MAX = 256 << 10
_TASKS_MAX = 1024
#: An answer binds no longer than this, whatever a buyer asks for: room that is kept for one is kept from all others.
HOLD_US_MAX = 3_600_000_000

_Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._:#-]{0,255}\Z")]
_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Period = Annotated[int, Meta(ge=-1, le=2**40)]
_Ids = Annotated[tuple[_Id, ...], Meta(max_length=_TASKS_MAX)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Task(_Part, frozen=True):
    task_id: _Id
    usage: tuple[_Amount, _Amount, _Amount]
    definition: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{0,128}\Z")]
    migration: _Amount


class _Entry(_Part, frozen=True):
    lease_id: _Id
    period: _Period
    contract_id: _Id
    payer: _Id
    payee: _Id
    price: _Amount
    units: _Amount
    amount: Annotated[int, Meta(ge=-(2**62), le=2**62)]


_Entries = Annotated[tuple[_Entry, ...], Meta(max_length=65_536)]


class _Said(_Part, frozen=True, tag_field="kind"):
    pass


class _Offer(_Said, frozen=True, tag="offer"):
    offer_id: _Id
    contract_id: _Id
    price: _Amount
    tasks: Annotated[tuple[_Task, ...], Meta(max_length=_TASKS_MAX)]
    hold_us: Annotated[int, Meta(ge=0, le=HOLD_US_MAX)]


class _Accept(_Said, frozen=True, tag="accept"):
    offer_id: _Id
    task_ids: _Ids


class _Counter(_Said, frozen=True, tag="counter"):
    offer_id: _Id
    price: _Amount
    task_ids: _Ids


class _Reject(_Said, frozen=True, tag="reject"):
    offer_id: _Id


class _Release(_Said, frozen=True, tag="release"):
    offer_id: _Id


class _Commit(_Said, frozen=True, tag="commit"):
    offer_id: _Id
    leases: Annotated[tuple[tuple[_Id, _Id], ...], Meta(max_length=_TASKS_MAX)]


class _Committed(_Said, frozen=True, tag="committed"):
    offer_id: _Id
    entries: _Entries


class _Refused(_Said, frozen=True, tag="refused"):
    offer_id: _Id


class _Renew(_Said, frozen=True, tag="renew"):
    lease_id: _Id
    period: _Period
    units: _Amount
    have: _Period


class _Renewed(_Said, frozen=True, tag="renewed"):
    lease_id: _Id
    entries: _Entries


class _Recall(_Said, frozen=True, tag="recall"):
    lease_id: _Id


class _Ready(_Said, frozen=True, tag="ready"):
    lease_id: _Id


class _End(_Said, frozen=True, tag="end"):
    lease_id: _Id
    void: bool
    have: _Period


class _Ended(_Said, frozen=True, tag="ended"):
    lease_id: _Id
    entries: _Entries


#: Every message and its form; the fields of both have the same names, in the same order.
_FORMS: Mapping[type[Any], type[Any]] = {
    messages.Offer: _Offer, messages.Accept: _Accept, messages.Counter: _Counter, messages.Reject: _Reject,
    messages.Release: _Release, messages.Commit: _Commit, messages.Committed: _Committed, messages.Refused: _Refused,
    messages.Renew: _Renew, messages.Renewed: _Renewed, messages.Recall: _Recall, messages.Ready: _Ready,
    messages.End: _End, messages.Ended: _Ended,
}  # fmt: skip


def _formed(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], Task):
        return tuple(_Task(t.task_id, tuple(map(_finite, t.usage)), t.definition, t.migration) for t in value)  # type: ignore[arg-type]
    if isinstance(value, tuple) and value and isinstance(value[0], Entry):
        names = _Entry.__struct_fields__
        return tuple(_Entry(*(getattr(entry, name) for name in names)) for entry in value)
    return value


def _finite(value: float) -> float:
    assert math.isfinite(value), "a usage is a number"
    return max(0.0, value)


def _meant(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], _Task):
        return tuple(Task(t.task_id, Usage(*t.usage), t.definition, t.migration) for t in value)
    if isinstance(value, tuple) and value and isinstance(value[0], _Entry):
        names = _Entry.__struct_fields__
        return tuple(Entry(*(getattr(entry, name) for name in names)) for entry in value)
    return value


_envelopes = Envelopes(LOAD_VERSION, _Id, _FORMS, bytes_max=MESSAGE_BYTES_MAX, formed=_formed, meant=_meant)


def encode_message(sender: str, to: str, message: Message) -> bytes:
    """One message in its envelope, as JSON."""
    return _envelopes.encode(sender, to, message)


def decode_message(data: bytes) -> tuple[str, str, Message]:
    """Sender, receiver and message; `PeerError` if that is not what came."""
    return _envelopes.decode(data)
