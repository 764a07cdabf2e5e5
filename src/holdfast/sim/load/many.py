"""Many scenarios on several processes, and what they showed together."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from holdfast.sim.load.planted import planted
from holdfast.sim.load.run import run
from holdfast.sim.load.scenario import draw

#: Seeds that one task of a worker takes: enough to hide the cost of handing them out.
SHARE = 50


@dataclass(slots=True)
class Totals:
    """What many scenarios showed together."""

    graphs: int = 0
    moves: int = 0
    events: int = 0
    crashes: int = 0
    virtual_seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    failed: list[tuple[int, str, str]] = field(default_factory=list)

    def merge(self, other: Totals) -> None:
        """What another share showed."""
        for name in ("graphs", "moves", "events", "crashes", "virtual_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.kinds, other.kinds), (self.judged, other.judged)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        self.failed += other.failed

    def report(self, seconds: float) -> dict[str, object]:
        """The line that ends every run."""
        return {
            "graphs": self.graphs,
            "violations": len(self.failed),
            "moves": self.moves,
            "crashes": self.crashes,
            "judged": dict(sorted(self.judged.items())),
            "kinds": dict(sorted(self.kinds.items())),
            "virtual_seconds": round(self.virtual_seconds),
            "events": self.events,
            "seconds": round(seconds, 1),
        }


def work(first: int, count: int, kind: str = "", faulty: bool | None = None, plant: str = "") -> Totals:
    """Some seeds, one after the other."""
    totals = Totals()
    with ExitStack() as stack:
        if plant:
            stack.enter_context(planted(plant))
        for seed in range(first, first + count):
            outcome = run(draw(seed, kind, faulty))
            totals.graphs += 1
            totals.moves += outcome.moves
            totals.events += outcome.events
            totals.crashes += outcome.crashes
            totals.virtual_seconds += outcome.virtual_us / 1e6
            totals.kinds[outcome.kind] = totals.kinds.get(outcome.kind, 0) + 1
            for label, judged in outcome.judged.items():
                totals.judged[label] = totals.judged.get(label, 0) + judged
            totals.failed += [(seed, found.label, found.text) for found in outcome.violations[:1]]
    return totals


def run_many(first: int, count: int, processes: int, kind: str = "", plant: str = "") -> Totals:
    """So many random contract graphs."""
    totals = Totals()
    shares = [(at, min(SHARE, first + count - at)) for at in range(first, first + count, SHARE)]
    if processes == 1:
        for at, size in shares:
            totals.merge(work(at, size, kind, None, plant))
        return totals
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(work, at, size, kind, None, plant) for at, size in shares]:
            totals.merge(done.result())
    return totals
