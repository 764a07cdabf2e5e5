"""From main and branch to the tuple sequence of 003 table 4.1: the duties of SOutput, on the reader's side.

Rules:
1. A bucket of main is delivered once, in order, and never taken back (D1).
2. A tentative bucket is delivered at most once between two UNDOs, and only while main does not have it.
3. The first stable bucket after tentative ones is preceded by UNDO: it names the last stable bucket and takes back
   every tentative one (D2). Tentative buckets delivered during the corrections are taken back by a further UNDO before
   main reaches them. No tentative bucket outstanding: no UNDO.
4. REC_DONE closes the corrections once main has passed everything that was delivered tentatively and nothing tentative
   is left.
5. If another failure strikes before that, the corrections stop short: what is left of the tentative buckets is taken
   back and REC_DONE closes them (D4). The tentative buckets that follow belong to the new failure and begin where main
   ends, so that none that an UNDO took back is missing while it lasts.
6. A reader that resumes holds nothing tentative: what it held was taken back at its first word. It goes on as if that
   UNDO had just been given, so its corrections are closed like all others.

The intuition: the reader holds a stable prefix plus a tentative rest; every step either lengthens the prefix, lengthens
the rest, or throws the rest away. Both kinds of reader drive it: a client of other hosts (`client`), and one that reads
the files of the stream itself (`local`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.model.tuples import TupleType


@dataclass(frozen=True, slots=True)
class Delivery:
    """One step for the reader: the buckets in [bucket, end). UNDO and REC_DONE have none: `bucket` is then the first
    one that is no longer valid, or the next stable one."""

    kind: TupleType
    bucket: int
    end: int


class SequenceState(NamedTuple):
    """All that a sequence remembers. A reader that keeps it goes on as if it had never been away."""

    next: int
    low: int | None
    head: int
    correcting: bool
    goal: int


class Sequence:
    """The state machine behind one reader."""

    __slots__ = ("_correcting", "_goal", "_head", "_low", "next")

    def __init__(self, first: int, goal: int | None = None) -> None:
        """`goal`: the reader resumes in the middle of corrections, which are complete when main is there (rule 6)."""
        #: The next bucket of main.
        self.next = first
        #: The outstanding tentative buckets lie in [_low, _head); none if _low is None.
        self._low: int | None = None
        self._head = first
        self._correcting = goal is not None
        #: Corrections are not complete before main is here: so far went what they replace.
        self._goal = first if goal is None else max(first, goal)

    @classmethod
    def of(cls, state: SequenceState) -> Sequence:
        """The sequence that was in this state."""
        sequence = cls(state.next)
        _, sequence._low, sequence._head, sequence._correcting, sequence._goal = state
        return sequence

    @property
    def state(self) -> SequenceState:
        return SequenceState(self.next, self._low, self._head, self._correcting, self._goal)

    @property
    def outstanding(self) -> bool:
        """Whether the reader holds anything tentative."""
        return self._low is not None

    @property
    def correcting(self) -> bool:
        """Whether an UNDO waits for its REC_DONE."""
        return self._correcting

    def stable(self, upto: int) -> tuple[Delivery, ...]:
        """Main now has every bucket below `upto`."""
        first, low = self.next, self._low
        if upto <= first:
            return ()
        self.next = upto
        if low is None:
            return (Delivery(TupleType.INSERTION, first, upto),)
        before: tuple[Delivery, ...] = ()
        if self._correcting and first < low:
            before = (Delivery(TupleType.INSERTION, first, min(low, upto)),)
            if upto <= low:
                return before
            first = low
        return (*before, self._undo(first), Delivery(TupleType.INSERTION, first, upto))

    def tentative(self, first: int, end: int) -> tuple[Delivery, ...]:
        """A branch has the buckets in [first, end). Those that main has, or that lie before a tentative one which was
        delivered, are left out."""
        first = max(first, self.next if self._low is None else self._head)
        if first >= end:
            return ()
        if self._low is None:
            self._low = first
        self._head = end
        return (Delivery(TupleType.TENTATIVE, first, end),)

    def stop_short(self) -> tuple[Delivery, ...]:
        """Another failure has struck, and a branch is about to go on from `next`: close the corrections, if any."""
        if not self._correcting:
            return ()
        undo = () if self._low is None else (self._undo(self.next),)
        self._correcting, self._goal = False, self.next
        return (*undo, Delivery(TupleType.REC_DONE, self.next, self.next))

    def skip(self, to: int) -> tuple[Delivery, ...]:
        """Main goes on at `to`; what lies before is gone for ever (§4.9.4)."""
        if to <= self.next:
            return ()
        undo = () if self._low is None else (self._undo(self.next),)
        self.next = to
        return undo

    def caught_up(self) -> tuple[Delivery, ...]:
        """The producer is STABLE and main has all it has: close the corrections, if any."""
        if not self._correcting or self._low is not None or self.next < self._goal:
            return ()
        self._correcting = False
        return (Delivery(TupleType.REC_DONE, self.next, self.next),)

    def ended(self) -> tuple[Delivery, ...]:
        """Main has ended: what is tentative beyond its last bucket has no counterpart and is taken back."""
        undo = () if self._low is None else (self._undo(self.next),)
        return (*undo, *self.stop_short())

    def _undo(self, bucket: int) -> Delivery:
        self._low, self._correcting = None, True
        self._goal = max(self._goal, self._head)
        return Delivery(TupleType.UNDO, bucket, bucket)
