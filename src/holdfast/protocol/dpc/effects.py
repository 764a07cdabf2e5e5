"""What a core tells its host to do. The host does it and reports the outcome as signals.

Rules:
1. `Effects` is carried out in the order of its fields: first what stops, then what reads, then what is said to others.
   Nothing here has to be durable before something else: what must be durable (output, checkpoint) is the host's commit,
   and the core hears of it only afterwards.
2. A field that is empty asks for nothing. Doing an effect twice is harmless; each one names what it is about.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocol.dpc.messages import Message, StreamReport
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import NodeState


@dataclass(frozen=True, slots=True)
class Part:
    """What of one input goes into a tentative bucket."""

    stream: str
    lane: Lane | None
    """From main, from a tentative copy, or None: nothing is there."""
    replica: str | None
    """Whose copy, unless it is main: that is the same with everybody."""
    tuples: int
    """How many to take, if the bucket is not closed."""
    closed: bool
    """Whether a boundary, stable or tentative, says that this is all: then take whatever the bucket holds."""


@dataclass(frozen=True, slots=True)
class TentativeBucket:
    """One bucket for the fork: exactly these tuples, and what the result is worth."""

    bucket: int
    parts: tuple[Part, ...]
    emit: bool
    """False while the fork only catches up on what main has published already."""
    worth: float
    """The share of the expected tuples that went in (§5.8.3)."""
    least: float = 1.0
    """The same, where an input's own results cover several buckets by the least of those."""
    missing: tuple[str, ...] = ()
    """The inputs of which something is missing, those of tentative inputs included."""


@dataclass(frozen=True, slots=True)
class StopFork:
    """End the second query. With `drop_branch` its results are replaced by main, or were never seen."""

    fork: int
    drop_branch: bool


@dataclass(frozen=True, slots=True)
class PrepareFork:
    """Copy the last committed checkpoint and start the query on it, idle. Answer: `ForkPrepared` or `ForkFailed`."""

    fork: int


@dataclass(frozen=True, slots=True)
class ExtendFork:
    """Let the fork process these buckets, in this order. Answer: `ForkCompleted`. Its branch begins with the first that
    is to be seen (`emit`): an idle fork that follows main has none yet."""

    fork: int
    buckets: tuple[TentativeBucket, ...]


@dataclass(frozen=True, slots=True)
class ReadStable:
    """Let the stable query read all buckets below `upto`, complete on every input. Answer: `StableCompleted`."""

    upto: int


@dataclass(frozen=True, slots=True)
class SkipStable:
    """The input before bucket `to` is gone. Go on there with an empty state; results before `stable_from` are not to be
    published: the state has not converged yet (§4.9.4)."""

    to: int
    stable_from: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Stop reading this lane from this replica."""

    stream: str
    replica: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Read this lane from this replica, beginning with the bucket at `from_us`."""

    stream: str
    replica: str
    lane: Lane
    from_us: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Output before `upto_us` need not be kept. `lost_us` > 0 says how much of it somebody had not acknowledged."""

    stream: str
    upto_us: int
    lost_us: int


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to another replica, source or client."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Effects:
    """All that follows from one signal, in the order in which it is to be carried out."""

    state: NodeState
    stop_fork: StopFork | None = None
    skip_stable: SkipStable | None = None
    read_stable: ReadStable | None = None
    prepare_fork: PrepareFork | None = None
    extend_fork: ExtendFork | None = None
    unsubscribe: tuple[Unsubscribe, ...] = ()
    subscribe: tuple[Subscribe, ...] = ()
    publish: StreamReport | None = None
    """The output's state changed: readers on this machine are to see it, durably. A branch that it speaks of is there
    before, one that it no longer speaks of is gone before (`stop_fork`, `extend_fork`)."""
    truncate: Truncate | None = None
    send: tuple[Send, ...] = ()
    wake_us: int = 0
    """Send a `Tick` at this time (an earlier wish is void)."""
