"""From main and branch to the tuple sequence of 003 table 4.1: the duties of SOutput, on the reader's side.

Rules:
1. A bucket of main is delivered once, in order, and never taken back (D1).
2. A tentative bucket is delivered at most once between two UNDOs, and only while main does not have it.
3. The first stable bucket after tentative ones is preceded by UNDO: it names the last stable bucket and takes back
   every tentative one (D2). Tentative buckets delivered during the corrections are taken back by a further UNDO before
   main reaches them. No tentative bucket outstanding: no UNDO.
4. REC_DONE closes the corrections once main has caught up and nothing tentative is left. If corrections stop short
   because of another failure, REC_DONE comes before the next tentative bucket (D4): what follows belongs to the new
   one.

The intuition: the reader holds a stable prefix plus a tentative rest; every step either lengthens the prefix, lengthens
the rest, or throws the rest away.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.tuples import TupleType


@dataclass(frozen=True, slots=True)
class Delivery:
    """One step for the reader. `bucket` is the bucket delivered; for UNDO the first bucket that is no longer valid; for
    REC_DONE the next stable bucket."""

    kind: TupleType
    bucket: int


class Sequence:
    """The state machine behind one reader."""

    __slots__ = ("_correcting", "_head", "_low", "next")

    def __init__(self, first: int) -> None:
        #: The next bucket of main.
        self.next = first
        #: The outstanding tentative buckets lie in [_low, _head); none if _low is None.
        self._low: int | None = None
        self._head = first
        self._correcting = False

    @property
    def outstanding(self) -> bool:
        """Whether the reader holds anything tentative."""
        return self._low is not None

    @property
    def correcting(self) -> bool:
        """Whether an UNDO waits for its REC_DONE."""
        return self._correcting

    def stable(self, bucket: int) -> tuple[Delivery, ...]:
        """Main now has `bucket`; it must be the next one."""
        assert bucket == self.next, f"main must go on with bucket {self.next}; got {bucket}"
        self.next = bucket + 1
        insertion = Delivery(TupleType.INSERTION, bucket)
        if self._low is None or (self._correcting and bucket < self._low):
            return (insertion,)
        self._low = None
        self._correcting = True
        return (Delivery(TupleType.UNDO, bucket), insertion)

    def tentative(self, bucket: int, corrections_go_on: bool) -> tuple[Delivery, ...]:
        """A branch has `bucket`. Nothing comes of it if main has it or a tentative one at or after it was delivered."""
        if bucket < self.next or (self._low is not None and bucket < self._head):
            return ()
        forced = self._correcting and not corrections_go_on
        if forced:
            self._correcting = False
        if self._low is None:
            self._low = bucket
        self._head = bucket + 1
        news = Delivery(TupleType.TENTATIVE, bucket)
        return (Delivery(TupleType.REC_DONE, self.next), news) if forced else (news,)

    def skip(self, to: int) -> tuple[Delivery, ...]:
        """Main goes on at `to`; what lies before is gone for ever (§4.9.4)."""
        if to <= self.next:
            return ()
        undo: tuple[Delivery, ...] = ()
        if self._low is not None:
            undo = (Delivery(TupleType.UNDO, self.next),)
            self._low = None
            self._correcting = True
        self.next = to
        return undo

    def caught_up(self) -> tuple[Delivery, ...]:
        """The producer is STABLE and main has all it has: close the corrections, if any."""
        if not self._correcting or self._low is not None:
            return ()
        self._correcting = False
        return (Delivery(TupleType.REC_DONE, self.next),)
