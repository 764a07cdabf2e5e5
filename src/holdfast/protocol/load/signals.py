"""What a host tells the core. Everything the core knows came in as one of these.

Rules:
1. Signals are facts, told after they are true. Telling one twice is harmless.
2. `Measured` is the whole truth about what runs here, own tasks by their own names and others' tasks by their lease;
   between two of them the core counts on by itself as tasks come and go.
3. After a start the host tells `Measured` first; the core offers nothing before.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.load.cost import Forecast
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.usage import Task


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `wake_us` asked for has come."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What runs here now and what it uses."""

    tasks: tuple[Task, ...]
    forecast: Forecast | None = None
    """How the load is expected to go on over a period; None: as before."""
    movable: tuple[str, ...] | None = None
    """Those that may be moved now (a node that is not STABLE may not); None: all."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came from a partner."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Unreachable:
    """This partner does not answer at all."""

    partner: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Buyer: the task runs at the partner now, and no longer here."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """Buyer: the task could not be moved and runs here as before."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """Seller: the task runs here now."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Buyer: the task runs here again."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A task of our own is over for good, wherever it ran. Its name is free again when no lease is about it."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """The owner says by hand where a task of its own is to run: at this partner, or at home (an empty name)."""

    task_id: str
    partner: str = ""


Signal = Tick | Measured | Received | Unreachable | Moved | MoveFailed | Arrived | Returned | Finished | Place
