"""What replicas say to each other. All of it may be lost or come twice; none of it carries tuples.

Rules:
1. A message is a frozen value; the sender's name comes with the envelope, never inside.
2. Repeating a message changes nothing, so hosts may retry.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.dpc.states import StreamState


@dataclass(frozen=True, slots=True)
class StreamReport:
    """How one output stream of the sender does."""

    stream: str
    state: StreamState
    main_us: int
    """Boundary of its main branch: corrections exist up to here."""
    fresh: bool
    """A tentative branch grows beside main."""


@dataclass(frozen=True, slots=True)
class KeepaliveRequest:
    """Are you there, and in what state are your streams? (figure 4-10)"""


@dataclass(frozen=True, slots=True)
class KeepaliveReply:
    """Here, and so."""

    reports: tuple[StreamReport, ...]


@dataclass(frozen=True, slots=True)
class AuthorisationRequest:
    """May I stabilise while you stay available? Repeated while stabilising: it renews the promise (figure 4-12)."""

    asked_us: int
    """When the sender asked, by its own clock; it differs from request to request and names this one."""


@dataclass(frozen=True, slots=True)
class AuthorisationReply:
    """Yes: I shall not stabilise as long as you keep renewing. Or no: ask again later."""

    granted: bool
    asked_us: int
    """Which request this answers."""


@dataclass(frozen=True, slots=True)
class AuthorisationDone:
    """I no longer need your promise."""

    asked_us: int
    """My last request: what you promised for it or an earlier one is void, what you promise for a later one is not."""


@dataclass(frozen=True, slots=True)
class Ack:
    """I have committed everything of this stream up to the boundary and shall never ask for it again (§4.9.3)."""

    stream: str
    upto_us: int


Message = KeepaliveRequest | KeepaliveReply | AuthorisationRequest | AuthorisationReply | AuthorisationDone | Ack
