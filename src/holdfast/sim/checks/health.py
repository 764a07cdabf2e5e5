"""Which hosts and links were well, and when: the ground on which timing is judged.

Rules:
1. A host is ill while crashed, until it says STABLE again; while paused or hung; while a source is silent. A link is
   ill while cut, slow, losing or repeating.
2. After an illness ends, a guard passes before anything is expected: noticing, subscribing again, taking turns, and
   replaying what was missed, which takes longer the more a bucket costs and the less room the buffers have.
3. A path is well if all on it is. A stable tree needs a well path from every source through the same replicas
   (003 §4.11); a single well path makes a tentative tree.
"""

from __future__ import annotations

from holdfast.sim.faults import BUCKET_US, CALM_US, CLIENT, FIRST, HEAL_US, LINKS, SECOND, SOURCES, Fault, Plan
from holdfast.sim.observe import Observer

GUARD_US = 1_500_000
_FOREVER_US = 2**60

Interval = tuple[int, int]


class Health(Observer):
    """Records illness; answers questions about intervals."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        cost_us = plan.setting.bucket_cost_us
        #: How long catching up takes per missed time; the second node begins a little later than the first.
        self._replay = 1.5 * cost_us / (BUCKET_US - cost_us)
        self.guard_us = GUARD_US + round((HEAL_US - CALM_US) * self._replay)
        if plan.setting.capacity_us is not None:
            self.guard_us += 2 * GUARD_US
        self._open: dict[tuple[Fault, str], int] = {}
        self.ill: dict[str, list[Interval]] = {}
        self.faults: list[Interval] = []
        self._since: dict[Fault, int] = {}
        self._recovering: dict[str, int] = {}

    def on_fault(self, now_us: int, fault: Fault, begins: bool) -> None:
        """Note what becomes ill or well."""
        if begins:
            self._since[fault] = now_us
        else:
            self.faults.append((self._since.get(fault, now_us), now_us))
        for name in self._parts(fault):
            if begins:
                self._open.setdefault((fault, name), now_us)
            elif (fault, name) in self._open:
                self.ill.setdefault(name, []).append((self._open.pop((fault, name)), now_us))

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """A crashed replica is ill until it is STABLE."""
        if after == "DOWN":
            self._recovering.setdefault(host, now_us)
        elif after == "STABLE" and host in self._recovering:
            self.ill.setdefault(host, []).append((self._recovering.pop(host), now_us))

    def _parts(self, fault: Fault) -> list[str]:
        if fault.kind in ("crash", "pause", "silent", "hang"):
            return [fault.targets[0]]
        if fault.kind == "partition":
            return [f"{a}-{b}" for a, b in LINKS if (a in fault.targets) != (b in fault.targets)]
        a, b = fault.targets
        return [f"{a}-{b}" if (a, b) in LINKS else f"{b}-{a}"]

    def intervals(self, name: str) -> list[Interval]:
        """When this host or link was ill, ended or not."""
        still = [(since, _FOREVER_US) for (_, part), since in self._open.items() if part == name]
        if name in self._recovering:
            still.append((self._recovering[name], _FOREVER_US))
        return self.ill.get(name, []) + still

    def path(self, source: str, first: str, second: str) -> list[Interval]:
        """When the path from a source to the client was ill, guard included."""
        names = (source, first, second, f"{source}-{first}", f"{first}-{second}", f"{second}-{CLIENT}")
        return [
            (begin, end + self.guard_us + round(max(0, end - begin - HEAL_US + CALM_US) * self._replay))
            for name in names
            for begin, end in self.intervals(name)
        ]

    def trees(self) -> dict[tuple[str, str], list[Interval]]:
        """Per choice of replicas, when it did not form a stable tree."""
        return {
            (first, second): [i for source in SOURCES for i in self.path(source, first, second)]
            for first in FIRST
            for second in SECOND
        }

    def failure_near(self, begin_us: int, end_us: int) -> bool:
        """Whether any fault was at work, or just over, between two times."""
        running = any(since <= end_us for (_, _), since in self._open.items())
        return running or any(b <= end_us and e + 2 * self.guard_us >= begin_us for b, e in self.faults)


def well(intervals: list[Interval], begin_us: int, end_us: int) -> bool:
    """Whether no illness touches the span."""
    return all(end <= begin_us or begin >= end_us for begin, end in intervals)
