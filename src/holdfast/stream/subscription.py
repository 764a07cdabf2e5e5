"""Main and branch as one sequence of tuples (003 §4.4, figure 4-6): the core of every subscriber, without I/O.

Rules:
1. Stable tuples are delivered once, in order, and never taken back (D1).
2. While main stands still and a branch grows, its tuples follow as tentative ones.
3. Corrections come when main has caught up with everything tentative that was delivered: UNDO, the stable tuples,
   REC_DONE (D2, D3). Until then new tentative tuples keep coming.
4. A branch that was corrected is over: what it still grows is not delivered (D4). A new branch is a new failure; if it
   comes before the old corrections are complete, REC_DONE is forced first.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from holdfast.model.time import BEGINNING_US


class Range(NamedTuple):
    """Deliver the tuples of [start, end) from main or from the branch."""

    source: Literal["main", "branch"]
    start_us: int
    end_us: int


Step = Range | Literal["UNDO", "REC_DONE"]


class BranchView(NamedTuple):
    """What is seen of the branch at one moment."""

    id: str
    root_us: int
    until_us: int


class Subscription:
    """Decides what to deliver next. `advance` is its only door."""

    def __init__(self, start_us: int = BEGINNING_US) -> None:
        self.stable_until_us = start_us
        self.tentative_until_us: int | None = None
        self._branch: str | None = None
        self._over: str | None = None

    def advance(self, main_until_us: int, branch: BranchView | None) -> list[Step]:
        """The steps to take, in order, given how far main and branch are complete."""
        steps: list[Step] = []
        if self.tentative_until_us is not None:
            other = branch is not None and branch.id != self._branch
            if main_until_us >= self.tentative_until_us or other:
                steps += ["UNDO", *self._stable(main_until_us), "REC_DONE"]
                self._over, self._branch, self.tentative_until_us = self._branch, None, None
        else:
            steps += self._stable(main_until_us)
        if branch is not None and branch.id != self._over:
            done = self.tentative_until_us if self.tentative_until_us is not None else self.stable_until_us
            start = max(done, branch.root_us)
            if branch.until_us > start:
                steps.append(Range("branch", start, branch.until_us))
                self._branch, self.tentative_until_us = branch.id, branch.until_us
        return steps

    def _stable(self, until_us: int) -> list[Step]:
        if until_us <= self.stable_until_us:
            return []
        step = Range("main", self.stable_until_us, until_us)
        self.stable_until_us = until_us
        return [step]
