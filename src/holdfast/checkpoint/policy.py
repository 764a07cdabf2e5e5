"""Checkpoint policies: what a user writes beside an operator to say what its protection may cost.

    functor(..., checkpoint=every("10s"))           all of its state, on a schedule
    udop(Model, ..., checkpoint=every(events=100))  each keyed instance after so many tuples
    join(..., checkpoint=groups(512, every="1s"))   the parts of the windows that changed (004 §4.4)
    aggregate(..., checkpoint=continuous())         window by window, into the output's own log (000, 001)
    barrier(..., checkpoint=upstream())             the tuples on their way (004 §4)

Each names its guarantee. *Exact*: what is restored and replayed equals the run without a failure. *Best effort*: what
is restored is a state that existed earlier (C7); what came after it is lost. `groups` is best effort, and so
is `every`, because that is what costs next to nothing; `every(..., exact=True)` saves with the end of each batch, waits
for the store instead of dropping, and goes on from the position that the state belongs to. `groups(..., exact=True)`
saves all windows as of one position and goes on from there, too; the input must be kept until the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.model.errors import UsageError
from holdfast.model.time import duration_text, duration_us
from holdfast.protocol.cec.policy import Continuous as Continuous
from holdfast.protocol.cec.policy import continuous as continuous


class Guarantee(Enum):
    EXACT = "exact"
    BEST_EFFORT = "best effort"
    NOTHING = "none: state is lost with its process"


@dataclass(frozen=True)
class NoCheckpoint:
    """Nothing is saved."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NOTHING

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True)
class Every:
    """The whole state, after a time or a number of tuples, whichever is given."""

    us: int | None = None
    events: int | None = None
    exact: bool = False

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT if self.exact else Guarantee.BEST_EFFORT

    def __str__(self) -> str:
        what = [f'"{duration_text(self.us)}"'] if self.us is not None else []
        what += [f"events={self.events}"] if self.events is not None else []
        return f"every({', '.join(what + (['exact=True'] if self.exact else []))})"


@dataclass(frozen=True)
class Groups:
    """The groups of a sliding window that have new tuples."""

    size: int
    us: int
    exact: bool = False

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT if self.exact else Guarantee.BEST_EFFORT

    def __str__(self) -> str:
        return f'groups({self.size}, every="{duration_text(self.us)}"{", exact=True" if self.exact else ""})'


@dataclass(frozen=True)
class Upstream:
    """No state: the tuples that made it are kept upstream until it is rebuilt from them."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT

    def __str__(self) -> str:
        return "upstream()"


Policy = NoCheckpoint | Every | Groups | Upstream
#: The policy that saves nothing.
none = NoCheckpoint()


def every(time: str | float | None = None, *, events: int | None = None, exact: bool = False) -> Every:
    """Save the whole state every so often.

    >>> every("10s").us, every(events=100).events
    (10000000, 100)
    """
    us = None if time is None else duration_us(time)
    counts = isinstance(events, int) and events > 0
    if (us is None) == (events is None) or (us is not None and us < 1) or (events is not None and not counts):
        raise UsageError(f"every() needs a positive time or a number of events, one of both; got {time!r}, {events!r}")
    return Every(us, events, exact)


def groups(size: int, *, every: str | float, exact: bool = False) -> Groups:
    """Save a sliding window in groups of `size` tuples, those that changed, every so often.

    >>> groups(512, every="1s").us
    1000000
    """
    us = duration_us(every)
    if not isinstance(size, int) or size < 1 or us < 1:
        raise UsageError(f"groups() needs a positive size and interval; got {size!r}, {every!r}")
    return Groups(size, us, exact)


def upstream() -> Upstream:
    """Keep in-flight tuples instead of state."""
    return Upstream()


def guarantee_of(policy: object) -> Guarantee:
    """What a policy promises. `continuous` lives with its protocol, which knows no guarantees."""
    if isinstance(policy, NoCheckpoint | Every | Groups | Upstream):
        return policy.guarantee
    if isinstance(policy, Continuous):
        return Guarantee.EXACT
    raise UsageError(f"a checkpoint policy must be none, every(), groups(), continuous() or upstream(); got {policy!r}")
