"""What the core tells its host to do.

Rules:
1. The order is the order of the fields: `record` is durable, all of it or none, before anything is sent or moved. A
   promise that was sent and then forgotten in a crash would be a broken one; half of a bargain would be none.
2. Doing an effect twice is harmless; each names the lease it is about. After a start the core asks again for movements
   that it had asked for, and the host answers at once if they are done.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.records import Record
from holdfast.protocol.load.usage import Task


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to a partner."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Move:
    """Move a task to the partner that has agreed to run it (§7.2.3). Answer: `Moved` or `MoveFailed`."""

    lease_id: str
    task: Task
    to: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a task back from the partner. Answer: `Returned`."""

    lease_id: str
    task: Task
    from_: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The partner has put the task out: go on here, from what is left of it here. Answer: `Returned`."""

    lease_id: str
    task: Task
    from_: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop a task that runs here: its owner has ended it, or did not pay. A partner's is named by its lease, our own by
    its name."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Effects:
    """All that follows from one signal, in the order in which it is to be carried out."""

    record: tuple[Record, ...] = ()
    send: tuple[Send, ...] = ()
    move: tuple[Move, ...] = ()
    fetch: tuple[Fetch, ...] = ()
    reclaim: tuple[Reclaim, ...] = ()
    drop: tuple[Drop, ...] = ()
    wake_us: int = 0
    """Send a `Tick` at this time (an earlier wish is void)."""
