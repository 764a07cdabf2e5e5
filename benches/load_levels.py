"""The quick simulator: what the core decides when tasks are alike and prices are load levels (003 §7.1.1, §7.1.2).

Rules:
1. A node with load L carries its L-th task at a marginal cost of L − 1/2. So it offers L − low tasks at the lowest
   price `low`, and accepts `low` minus everything it has or has promised.
2. Messages and movements take no time. A node rests for D after a movement and after a round that led to none, and for
   D/40 after each counter-offer; sellers keep what they counter-offered reserved meanwhile, if it pays for the buyer.
3. `exact` makes every movement at the microsecond at which the core makes it; `tests/sim` holds it to that. Only nodes
   that would be refused outright by everybody sleep until a load next door changes.
4. Without `exact`, nodes sleep too whose negotiations must fail: that saves most of the time, and leaves out the pauses
   and passing reservations of negotiations that lead to nothing. With fixed prices there are none, and nothing changes.
5. Both directions of a contract have the same prices (§7.1.2: contracts are bilateral).

Load that comes and goes, and leases that end (`DynamicSim`; 003 §7.1.5, figures 7-5 and 7-6):
6. At every node one process adds a task and one takes a task away, at exponentially distributed times whose mean
   shrinks from phase to phase. Total load stays about the same.
7. With `returns`, a movement is a lease for D: when it is over, the buyer takes back what it can carry for less than
   the price, and the seller sends back what costs it more; the rest stays for another D (§6.4).
8. Tasks are alike here, so a seller gives back any task it has, also when the one it got has moved further. Cores call
   that one back instead; the loads are the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from benches.load_topology import Ints, System

D_US = 1_000_000
PAUSE_US = D_US // 40
#: The seeds stop ten seconds after the last movement.
QUIET_US = 10 * D_US


@dataclass(slots=True)
class Trace:
    """What happened, per second of simulated time and in all."""

    movements: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    """(time in us, from, to, tasks, price), if they are kept."""
    tasks_by_second: dict[int, int] = field(default_factory=dict)
    movements_by_second: dict[int, int] = field(default_factory=dict)
    offers: int = 0
    moved: int = 0
    last_us: int = 0

    def add(self, time_us: int, tasks: int) -> None:
        """One movement."""
        second = time_us // D_US
        self.tasks_by_second[second] = self.tasks_by_second.get(second, 0) + tasks
        self.movements_by_second[second] = self.movements_by_second.get(second, 0) + 1
        self.moved += 1
        self.last_us = time_us


@dataclass(slots=True)
class _Round:
    """A node in the middle of asking."""

    order: list[int]
    at: int = 0
    counters: list[tuple[float, int, int, int]] = field(default_factory=list)
    """(price, order, contract, tasks reserved)"""


class LevelSim:
    """All participants of one system. `run()` until nothing moves any more."""

    def __init__(self, system: System, extra: int = 0, keep: bool = False, exact: bool = False) -> None:
        graph = system.graph
        self.n = graph.nodes
        self.load: list[int] = system.load.tolist()
        self.capacity: list[int] = system.capacity.tolist()
        self.starts: list[int] = graph.starts.tolist()
        self.partners: list[int] = graph.partners.tolist()
        self.low: list[int] = system.price_low.tolist()
        self.high: list[int] = system.price_high.tolist()
        self.extra = extra
        """Counter-offers ask for so many tasks' worth above the valuation, the first time (§7.1.4)."""
        self.trace = Trace()
        self.keep = keep
        self.exact = exact
        self.quiet_us = QUIET_US
        self.now_us = 0
        self.reserved = [0] * self.n
        self.refused = [False] * len(self.partners)
        self.lost = [False] * len(self.partners)
        # The cheapest first, then in the order of the contracts: what the core's sort does, done once.
        self.ranked = [
            sorted(range(self.starts[i], self.starts[i + 1]), key=self.low.__getitem__) for i in range(self.n)
        ]
        self.lowest = [self.low[ranked[0]] if ranked else 0 for ranked in self.ranked]
        self.rounds: list[_Round | None] = [None] * self.n
        self.next_us: list[int] = system.phase_us.tolist()
        self.asleep = [False] * self.n
        self.heap = [(at, i) for i, at in enumerate(self.next_us)]
        heapq.heapify(self.heap)
        self.excess = sum(max(0, load - most) for load, most in zip(self.load, self.capacity, strict=True))
        self.excess_by_second: dict[int, int] = {}

    # Time -------------------------------------------------------------------------------------------------------

    def run(self, until_us: int = 2**62) -> Trace:
        """Until nothing can move, nothing has for ten seconds (§7.1.4), or until then."""
        heap, rounds, trace = self.heap, self.rounds, self.trace
        while heap and heap[0][0] <= until_us:
            self.now_us, node = heapq.heappop(heap)
            if self.now_us > trace.last_us + self.quiet_us:
                break
            current = rounds[node]
            if current is None:
                if self.load[node] <= self.lowest[node]:
                    self._sleep(node)
                    continue
                current = rounds[node] = _Round(self._order(node))
            self._ask(node, current)
        return self.trace

    def _order(self, node: int) -> list[int]:
        """Those that did not refuse last, by price; then those that did (§7.2.2)."""
        refused = self.refused
        ranked = self.ranked[node]
        return [c for c in ranked if not refused[c]] + [c for c in ranked if refused[c]]

    def _sleep(self, node: int) -> None:
        """Nothing to do until something changes here or next door; then at the next of its own times."""
        self.asleep[node] = True
        self.next_us[node] = self.now_us

    def _wake(self, node: int) -> None:
        if self.asleep[node]:
            self.asleep[node] = False
            # The times at which it would have looked anyway, a period D apart.
            since = self.next_us[node]
            missed = max(1, -(-(self.now_us - since) // D_US))
            heapq.heappush(self.heap, (since + missed * D_US, node))

    def risen(self, node: int) -> None:
        """A node has more load: it may have something to offer."""
        if self.asleep[node] and self._hopeful(node):
            self._wake(node)

    def fallen(self, node: int) -> None:
        """A node has less load: its partners may have something to offer to it."""
        load, low, high = self.load, self.low, self.high
        theirs = load[node]
        for c in range(self.starts[node], self.starts[node + 1]):
            partner = self.partners[c]
            if self.asleep[partner]:
                mine = load[partner]
                if mine > low[c] and theirs < high[c] and (self.exact or theirs < low[c] or mine > theirs + 1):
                    self._wake(partner)

    def _hopeful(self, node: int) -> bool:
        """Whether anything could move from here if nobody had reserved anything and all asked for no more than cost.

        With `exact`: whether anybody would as much as answer with a price.
        """
        load, low, high = self.load, self.low, self.high
        mine = load[node]
        for c in range(self.starts[node], self.starts[node + 1]):
            if mine > low[c]:
                theirs = load[self.partners[c]]
                if theirs < high[c] and (self.exact or theirs < low[c] or mine > theirs + 1):
                    return True
        return False

    # A round ----------------------------------------------------------------------------------------------------

    def _ask(self, node: int, current: _Round) -> None:
        """The next partners, until one accepts, one answers with a price, or none is left."""
        load, low, high = self.load, self.low, self.high
        order = current.order
        mine = load[node]
        while current.at < len(order):
            c = order[current.at]
            current.at += 1
            offered = mine - low[c]
            if offered <= 0:
                continue
            self.trace.offers += 1
            seller = self.partners[c]
            theirs = load[seller] + self.reserved[seller]
            room = low[c] - theirs
            if room > 0:
                self.refused[c] = False
                self._finish(node, current, c, min(offered, room), low[c])
                return
            self.refused[c] = True
            if theirs < high[c]:
                self._counter(node, current, c, seller, theirs, offered)
                heapq.heappush(self.heap, (self.now_us + PAUSE_US, node))
                return
        self._settle(node, current)

    def _counter(self, node: int, current: _Round, c: int, seller: int, theirs: int, offered: int) -> None:
        """The seller asks for its valuation of one task, or a little more; at the top of the range, for all it can."""
        price = theirs + 0.5
        if self.extra and not self.lost[c]:
            price = min(price + self.extra, self.high[c])
        wanted = 1
        if price >= self.high[c]:
            wanted = min(offered, self.high[c] - theirs)
        if self.load[node] - 0.5 <= price:
            self.lost[c] = True  # It does not pay: let go at once.
            return
        self.reserved[seller] += wanted
        current.counters.append((price, len(current.counters), c, wanted))

    def _settle(self, node: int, current: _Round) -> None:
        mine = self.load[node]
        for price, _, c, wanted in sorted(current.counters):
            taken = min(wanted, ceil(mine - 0.5 - price))
            if taken > 0:
                self.refused[c] = False
                self._finish(node, current, c, taken, price)
                return
        self._finish(node, current, None, 0, 0.0)

    def _finish(self, node: int, current: _Round, won: int | None, tasks: int, price: float) -> None:
        """The end of a round: let go of reservations, move, rest."""
        self.rounds[node] = None
        for _, _, c, wanted in current.counters:
            seller = self.partners[c]
            self.reserved[seller] -= wanted
            self.lost[c] = c != won
        if won is not None:
            self._move(node, self.partners[won], tasks, price)
            self._rest(node)
        elif self._hopeful(node):
            self._rest(node)
        else:
            self._sleep(node)

    def _rest(self, node: int) -> None:
        heapq.heappush(self.heap, (self.now_us + D_US, node))

    def _move(self, source: int, to: int, tasks: int, price: float) -> None:
        load, capacity = self.load, self.capacity
        before = max(0, load[source] - capacity[source]) + max(0, load[to] - capacity[to])
        load[source] -= tasks
        load[to] += tasks
        self.excess += max(0, load[source] - capacity[source]) + max(0, load[to] - capacity[to]) - before
        self.excess_by_second[self.now_us // D_US] = self.excess
        self.trace.add(self.now_us, tasks)
        if self.keep:
            self.trace.movements.append((self.now_us, source, to, tasks, price))
        self.fallen(source)
        self.risen(to)

    @property
    def loads(self) -> Ints:
        """The loads now."""
        return np.array(self.load, dtype=np.int64)


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
