"""Which checkpoint is next: the deadlines of all operators of a process, in order (004 §4.2, figure 4).

The core reads no clock. Rules:
1. An operator is due at its deadline; the earliest deadline is served first.
2. Deadlines stand on a grid from when the operator was added: one that was late does not push the others back.
3. A deadline is missed if its checkpoint did not begin within the tolerance, a twentieth of the interval. Deadlines
   that passed altogether while one was late are missed as well, and not made up for.
4. Who can begin only between batches may begin early, by as much as it may be late, rather than after the next batch.

`judge` is rules 2 to 4 for one operator: that is all there is on Spark, where a task serves one operator and is asked
at the end of its batch (`holdfast.spark.save_policy`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from holdfast.model.errors import UsageError

#: Share of the interval by which a checkpoint may be late. The seeds call 10.09 s for 10 s met and 10.5 s missed.
TOLERANCE = 0.05


@dataclass
class Kept:
    """How an operator's deadlines were kept."""

    every_us: int
    met: int = 0
    missed: int = 0
    late_us_max: int = 0
    dropped: int = 0
    """Checkpoints that were begun and that the store did not take; a SafeKeeper counts its own."""


def judge(kept: Kept, at_us: int, now_us: int, busy_us: int = 0) -> int | None:
    """None if the deadline `at_us` is not due; else the next one, and how this one was kept is counted.

    `busy_us` is how long it will be until the caller can ask again.
    """
    tolerance = TOLERANCE * kept.every_us
    if at_us > now_us + min(busy_us, int(tolerance)):
        return None
    late = max(0, now_us - at_us)
    passed = late // kept.every_us
    kept.late_us_max = max(kept.late_us_max, late)
    if late <= tolerance:
        kept.met += 1
    else:
        kept.missed += 1 + passed
    return at_us + (passed + 1) * kept.every_us


@dataclass(order=True)
class _Next:
    at_us: int
    name: str = field(compare=True)


class Deadlines:
    def __init__(self) -> None:
        self._queue: list[_Next] = []
        self.kept: dict[str, Kept] = {}

    def add(self, name: str, every_us: int, now_us: int) -> None:
        if every_us < 1:
            raise UsageError(f"the interval between checkpoints of {name} must be positive; got {every_us} µs")
        if name in self.kept:
            raise UsageError(f"the operator {name} has a deadline already; give each operator a name of its own")
        self.kept[name] = Kept(every_us)
        heapq.heappush(self._queue, _Next(now_us + every_us, name))

    def remove(self, name: str) -> None:
        self.kept.pop(name, None)
        self._queue = [item for item in self._queue if item.name != name]
        heapq.heapify(self._queue)

    def next_us(self) -> int | None:
        return self._queue[0].at_us if self._queue else None

    def begin(self, now_us: int, busy_us: int = 0) -> str | None:
        """The operator to checkpoint now, None if none is due. Its next deadline is set."""
        if not self._queue:
            return None
        item = self._queue[0]
        following = judge(self.kept[item.name], item.at_us, now_us, busy_us)
        if following is None:
            return None
        heapq.heapreplace(self._queue, _Next(following, item.name))
        return item.name
