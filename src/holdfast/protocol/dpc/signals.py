"""What a host tells a core. Everything a core knows came in as one of these.

Rules:
1. Signals are facts, told after they are true: data is in the local mirror before `InputAdvanced` says so, a commit is
   durable before `StableCompleted` says so.
2. Telling a fact twice is harmless. A fact about a fork names the fork, so a late word about an old one is ignored.
3. Buckets are numbers of the node's own bucket size; boundaries between hosts are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from holdfast.protocol.dpc.messages import Message
from holdfast.protocol.dpc.plan import NodePlan


class Lane(IntEnum):
    """The ways to read a stream from a replica that produces it. All but MAIN are for tentative use only."""

    MAIN = 1
    """Stable buckets, in order, from where the reader's own copy of main ends."""
    BRANCH = 2
    """Tentative buckets as the replica's fork writes them."""
    HEAD = 3
    """Stable buckets from near the end of main, ahead of their turn, for a reader who has fallen far behind."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How much of one bucket has arrived: a total, so that telling it twice is harmless."""

    bucket: int
    tuples: int
    worth: float = 1.0
    """What the producer said this tentative bucket is worth (§5.8.3)."""
    least: float | None = None
    """The least of the buckets that went into it; None: nothing was said of that."""
    missing: tuple[str, ...] = ()
    """The inputs that the producer misses."""
    inputs: tuple[str, ...] = ()
    """Those of which it had something, for people; none if it does not say."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `wake_us` asked for has come."""


@dataclass(frozen=True, slots=True)
class InputAdvanced:
    """More of an input lies in the local mirror: tuples, a boundary, or both."""

    stream: str
    replica: str
    lane: Lane
    boundary_us: int
    arrivals: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class InputGap:
    """The producers no longer hold what lies before `first_us`: the buckets in between are gone for ever (§4.9.4)."""

    stream: str
    first_us: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message came from another replica, a source or a client."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to this replica broke: what was in flight is lost and subscriptions there are void."""

    replica: str


@dataclass(frozen=True, slots=True)
class Replanned:
    """The deployment was changed: producers of inputs, peers or readers are others. The rest of the plan is as it was
    (`NodePlan.same_but_neighbours`)."""

    plan: NodePlan


@dataclass(frozen=True, slots=True)
class StableCompleted:
    """The stable query has durably committed all buckets below `upto`; its output boundary is `boundary_us`."""

    upto: int
    boundary_us: int


@dataclass(frozen=True, slots=True)
class ForkPrepared:
    """The fork runs, idle, on the checkpoint of the last commit; it has seen all buckets below `root`."""

    fork: int
    root: int


@dataclass(frozen=True, slots=True)
class ForkCompleted:
    """The fork has written its branch for all buckets it was given below `upto`."""

    fork: int
    upto: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """The fork could not be started, or died."""

    fork: int


ForkSignal = ForkPrepared | ForkCompleted | ForkFailed
Signal = Tick | InputAdvanced | InputGap | Received | Disconnected | Replanned | StableCompleted | ForkSignal
