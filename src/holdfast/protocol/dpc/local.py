"""A reader of the files of a stream itself: what its producer published, main and branch, at one look after another.

Rules:
1. Whatever it hands on goes through `Sequence`, as for a client of other hosts: it gets corrections as they come.
2. A look takes the report first, then main, then the branch. So main is at least as far as the report says, and a
   branch that is there beside a report of STABLE began after it.
3. Stable buckets come whoever lives: they are right, whatever has become of their producer.
4. A branch is followed only while its producer gives a sign of life. What a dead one has left is not news: nobody would
   correct it until a producer starts again, and that one begins by dropping it.
5. The producer's state says what the corrections do: STABLE closes them, STABILIZATION goes on with them, anything else
   has stopped them. Then the branch is told again from where main ends.
6. A stream without a report was written before there were any, or by hand. Its corrections are complete when main has
   passed what was delivered of the branch, and that branch is over then; another branch is another failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.sequence import Delivery, Sequence, SequenceState
from holdfast.protocol.dpc.states import StreamState

#: A producer renews its report so often. It costs it one system call.
REPORT_US = 500_000
#: A producer whose report is older is taken for dead. A busy machine may keep one from renewing it for a second or two;
#: to take it for dead then would hold back what is on time, to take it for alive too long only shows what is stale.
REPORT_US_MAX = 5_000_000

_CORRECTING = frozenset((StreamState.STABLE, StreamState.STABILIZATION))


@dataclass(frozen=True, slots=True)
class BranchView:
    """What is seen of the branch: its buckets in [first, end) are closed."""

    id: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class View:
    """One look at a stream."""

    report: StreamReport | None
    renewed_us: int
    """When the producer gave its last sign of life, by the reader's clock."""
    main: int
    """Main has every bucket below."""
    ended: bool
    """Nothing follows: the stream was closed at its end, or the reader wants no more."""
    branch: BranchView | None


class ReaderState(NamedTuple):
    """All that a reader remembers between two looks: one that is made of it goes on as this one would have."""

    sequence: SequenceState
    branch: str | None
    told: int
    over: str | None


class LocalReader:
    """The protocol of one reader of one stream on this machine. `look` is its only door."""

    __slots__ = ("_branch", "_over", "_patience_us", "_told", "sequence")

    def __init__(self, first: int, patience_us: int = REPORT_US_MAX, goal: int | None = None) -> None:
        self.sequence = Sequence(first, goal)
        self._patience_us = patience_us
        #: The branch that was last followed, and how far it was told.
        self._branch: str | None = None
        self._told = first
        self._over: str | None = None

    @classmethod
    def of(cls, state: ReaderState, patience_us: int = REPORT_US_MAX) -> LocalReader:
        """The reader that was in this state."""
        reader = cls(state.sequence.next, patience_us)
        reader.sequence = Sequence.of(state.sequence)
        reader._branch, reader._told, reader._over = state.branch, state.told, state.over
        return reader

    @property
    def state(self) -> ReaderState:
        return ReaderState(self.sequence.state, self._branch, self._told, self._over)

    def look(self, view: View, now_us: int) -> tuple[Delivery, ...]:
        """What the reader is handed now, in order."""
        sequence, report = self.sequence, view.report
        steps = list(sequence.stable(view.main))
        if view.ended:
            return (*steps, *sequence.ended())
        if report is None or report.state == StreamState.STABLE:
            done = sequence.caught_up()
            if done and report is None:
                self._over = self._branch
            steps += done
        if view.branch is not None and self._lives(view, now_us):
            steps += self._news(view.branch, report)
        return tuple(steps)

    def _lives(self, view: View, now_us: int) -> bool:
        return view.report is None or now_us - view.renewed_us <= self._patience_us

    def _news(self, branch: BranchView, report: StreamReport | None) -> list[Delivery]:
        sequence = self.sequence
        if report is None and branch.id == self._over:
            return []
        another = branch.id != self._branch
        stopped = another if report is None else report.state not in _CORRECTING
        steps: list[Delivery] = []
        if sequence.correcting and stopped and branch.end > sequence.next:
            steps += sequence.stop_short()
            another = True
        first = branch.first if another else self._told
        self._branch, self._told = branch.id, branch.end
        return [*steps, *sequence.tentative(first, branch.end)]
