"""Load that comes and goes, and leases that end (003 §7.1.5, figures 7-5 and 7-6).

Rules:
1. At every node one process adds a task and one takes a task away, at exponentially distributed times whose mean
   shrinks from phase to phase. Total load stays about the same.
2. With `returns`, a movement is a lease for D: when it is over, the buyer takes back what it can carry for less than
   the price, and the seller sends back what costs it more; the rest stays for another D (§6.4).
3. Tasks are alike here, so a seller gives back any task it has, also when the one it got has moved further. Cores call
   that one back instead; the loads are the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.sim.load.levels import D_US, LevelSim
from holdfast.sim.load.topology import System

#: (from this second on, mean seconds between two new tasks at one node): figures 7-5 and 7-6.
PHASES = ((50, 50.0), (300, 10.0), (600, 1.0))
END_S = 900


@dataclass(slots=True)
class Swings:
    """Per second: tasks that came or went, and tasks that were moved."""

    variation: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def between(self, first_s: int, last_s: int) -> tuple[int, int]:
        """Both, summed over seconds."""
        return sum(self.variation[first_s:last_s]), sum(self.moved[first_s:last_s])


class DynamicSim(LevelSim):
    """A system whose load varies."""

    def __init__(self, system: System, rng: np.random.Generator, returns: bool = False) -> None:
        super().__init__(system)
        self.quiet_us = 2**62
        self.returns = returns
        self.rng = rng
        self.swings = Swings()
        self._leases: list[tuple[int, int, int, int, float, int]] = []
        """(end, order, buyer, seller, price, tasks)"""
        self._count = 0

    def vary(self, phases: Sequence[tuple[int, float]] = PHASES, end_s: int = END_S) -> Swings:
        """The whole run."""
        self.swings = Swings([0] * end_s, [0] * end_s)
        for time_us, node, change in self._schedule(phases, end_s):
            self._until(time_us)
            self._change(time_us, node, change)
        self._until(end_s * D_US)
        for second, tasks in self.trace.tasks_by_second.items():
            if second < end_s:
                self.swings.moved[second] += tasks
        return self.swings

    def _schedule(self, phases: Sequence[tuple[int, float]], end_s: int) -> list[tuple[int, int, int]]:
        """Every arrival and departure, in order."""
        found: list[tuple[int, int, int]] = []
        starts = [start for start, _ in phases] + [end_s]
        for k, (start, mean) in enumerate(phases):
            length = starts[k + 1] - start
            for node in range(self.n):
                for change in (1, -1):
                    times = np.cumsum(self.rng.exponential(mean, int(length / mean * 2 + 20)))
                    found += [(int((start + t) * D_US), node, change) for t in times[times < length]]
        return sorted(found)

    def _change(self, time_us: int, node: int, change: int) -> None:
        if self.load[node] + change < 0:
            return
        self.now_us = time_us
        before = max(0, self.load[node] - self.capacity[node])
        self.load[node] += change
        self.excess += max(0, self.load[node] - self.capacity[node]) - before
        self.swings.variation[time_us // D_US] += 1
        if change > 0:
            self.risen(node)
        else:
            self.fallen(node)

    # Leases -----------------------------------------------------------------------------------------------------

    def _until(self, time_us: int) -> None:
        while self._leases and self._leases[0][0] <= time_us:
            end_us, _, buyer, seller, price, tasks = heapq.heappop(self._leases)
            self.run(end_us)
            self.now_us = end_us
            left = tasks - self._return(buyer, seller, price, tasks)
            if left:
                self._lease(end_us, buyer, seller, price, left)
        self.run(time_us)

    def _lease(self, now_us: int, buyer: int, seller: int, price: float, tasks: int) -> None:
        self._count += 1
        heapq.heappush(self._leases, (now_us + D_US, self._count, buyer, seller, price, tasks))

    def _return(self, buyer: int, seller: int, price: float, tasks: int) -> int:
        """How many of these go back: each one that either side no longer finds profitable."""
        load = self.load
        back = 0
        while back < tasks and load[seller] - back > 0:
            cheaper_at_home = load[buyer] + back + 0.5 < price
            too_dear_here = load[seller] - back - 0.5 > price
            if not (cheaper_at_home or too_dear_here):
                break
            back += 1
        if back:
            super()._move(seller, buyer, back, price)
        return back

    def _move(self, source: int, to: int, tasks: int, price: float) -> None:
        super()._move(source, to, tasks, price)
        if self.returns:
            self._lease(self.now_us, source, to, price, tasks)
