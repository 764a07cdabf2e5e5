"""When a partition's next checkpoint is due, and what became of those before it: the same for every operator.

Rules:
1. Deadlines stand on a grid (`holdfast.checkpoint.deadlines`), judged at the end of each batch; the next chance is as
   far away as batches lately were apart. Deadlines that passed before the batch began while there was nothing to save
   are neither met nor missed.
2. A checkpoint that the store does not take is dropped, counted and said, with the first batch after that.
3. The counts go from batch to batch with the partition's state, and with each checkpoint into the store.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import msgspec

from holdfast.checkpoint.deadlines import TOLERANCE, Kept, judge
from holdfast.spark.keeper import Ended, ended

#: Checkpoints in a row that are on their way: one is being saved, one waits, and the others it has superseded.
_FLYING_MAX = 16
#: The share of the newest batch in how far batches are apart.
_NEWEST = 0.25


class SaveCounts(msgspec.Struct, array_like=True):
    """How deadlines were kept, and what the next judgement needs."""

    kept: Kept
    at_us: int = 0
    """The next deadline; 0 before there is one."""
    judged_us: int = 0
    apart_us: float = 0.0
    again: int = 0
    """Whether what is pending is to go with the next batch, because the store did not take it."""
    base: int = 0
    """The version that the store has, as far as is known; 0: none."""
    flying: list[int] = []
    """The versions that were handed over since; none when it is known how the last of them ended."""

    def due(self, name: str, begun_us: int, now_us: int, *, idle: bool) -> bool:
        """Rule 1, for a batch that began then."""
        every_us = self.kept.every_us
        if not self.at_us or self.at_us - now_us > (1 + TOLERANCE) * every_us:  # The clock was set back.
            self.at_us = begun_us + every_us
        if idle and self.at_us <= begun_us:
            self.at_us += ((begun_us - self.at_us) // every_us + 1) * every_us
        if self.judged_us:
            apart = max(0, now_us - self.judged_us)
            self.apart_us = _NEWEST * apart + (1 - _NEWEST) * self.apart_us if self.apart_us else float(apart)
        self.judged_us = now_us
        missed = self.kept.missed
        following = judge(self.kept, self.at_us, now_us, int(self.apart_us))
        if following is None:
            return False
        self.at_us = following
        if _another(missed, self.kept.missed):
            tell(name, f"{self.kept.missed} deadlines missed so far, by {self.kept.late_us_max} µs at most")
        return True

    def sent(self, version: int) -> None:
        """It was handed over."""
        self.flying = [*self.flying, version][-_FLYING_MAX:]
        self.again = 0

    def heard(self, name: str, told: Path) -> Ended | None:
        """How the checkpoint that was handed over last has ended, if it has, or that one was refused; it is counted."""
        how = ended(told) if self.flying else None
        if how is None or how.refused:
            return how if how is not None and how.version in self.flying else None
        if how.version != self.flying[-1]:
            return None
        self.flying = []
        if how.outcome == "durable":
            self.base = how.version
            return how
        if how.outcome == "older":
            self.base = how.base
        else:
            self.dropped(name, how.error)
        self.again = 1
        return how

    def dropped(self, name: str, why: str) -> None:
        """Rule 2."""
        self.kept.dropped += 1
        if _another(self.kept.dropped - 1, self.kept.dropped):
            tell(name, f"{self.kept.dropped} checkpoints dropped so far: {why}")


def tell(name: str, problem: str) -> None:
    """In the executor's log."""
    warnings.warn(f"{name}: {problem} (best effort)", RuntimeWarning, stacklevel=4)


def _another(before: int, now: int) -> bool:
    """Whether a count is to be told: the first, the tenth, the hundredth… A slow batch misses with each deadline."""
    return now > before and len(str(now)) > (len(str(before)) if before else 0)
