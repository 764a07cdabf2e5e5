"""Many schedules on several processes, and what they showed together.

Rules:
1. Process i of n takes every n-th seed; which seeds run depends on the number of processes, what a seed does never
   does.
2. A worker that dies ends the run with an error: a hole in the seeds must not look like success.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from holdfast.sim.faults import KINDS, draw
from holdfast.sim.planted import planted
from holdfast.sim.run import Outcome, run_plan

STATES = ("RECOVERING", "STABLE", "UP_FAILURE", "STABILIZATION")
_UNBOUNDED = 10**9


_SUMS = (
    "schedules", "cpu_seconds", "virtual_seconds", "events", "tuples", "checked", "tentative_buckets", "fork_steps",
    "rebuilt",
)  # fmt: skip


@dataclass(slots=True)
class Totals:
    """What many schedules showed together."""

    schedules: int = 0
    cpu_seconds: float = 0.0
    virtual_seconds: float = 0.0
    events: int = 0
    tuples: int = 0
    tuples_least: int = 2**60
    checked: int = 0
    tentative_buckets: int = 0
    fork_steps: int = 0
    rebuilt: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    faults_least: int = 2**60
    profiles: dict[str, int] = field(default_factory=dict)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    judged: dict[str, int] = field(default_factory=dict)
    failed: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more schedule."""
        self.schedules += 1
        self.virtual_seconds += outcome.virtual_us / 1e6
        self.events += outcome.events
        self.tuples += outcome.tuples
        self.tuples_least = min(self.tuples_least, outcome.tuples)
        self.checked += outcome.checked
        self.tentative_buckets += outcome.tentative
        self.fork_steps += outcome.fork_steps
        self.rebuilt += outcome.rebuilt
        for kind, count in outcome.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        for label, count in outcome.judged.items():
            self.judged[label] = self.judged.get(label, 0) + count
        self.faults_least = min(self.faults_least, sum(outcome.faults.values()))
        self.profiles[outcome.profile] = self.profiles.get(outcome.profile, 0) + 1
        self.pairs |= outcome.pairs
        self.rows |= outcome.rows
        self.failed += [(outcome.seed, violation.label, violation.text) for violation in outcome.violations[:1]]

    def merge(self, other: Totals) -> None:
        """What another process found."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.tuples_least = min(self.tuples_least, other.tuples_least)
        self.faults_least = min(self.faults_least, other.faults_least)
        for mine, theirs in (
            (self.faults, other.faults),
            (self.profiles, other.profiles),
            (self.judged, other.judged),
        ):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        self.pairs |= other.pairs
        self.rows |= other.rows
        self.failed += other.failed

    def report(self, seconds: float) -> dict[str, object]:
        """The line that ends every run."""
        missing = [f"{s}×{k}" for s in STATES for k in KINDS if (s, k) not in self.pairs]
        return {
            "schedules": self.schedules,
            "schedules_per_minute": round(self.schedules / seconds * 60),
            "violations": len(self.failed),
            "faults": dict(sorted(self.faults.items())),
            "faults_per_schedule_least": self.faults_least,
            "tuples": self.tuples,
            "tuples_per_schedule_least": self.tuples_least,
            "tuples_checked": self.checked,
            "tentative_buckets": self.tentative_buckets,
            "fork_steps": self.fork_steps,
            "replicas_rebuilt": self.rebuilt,
            "table_rows": sorted(self.rows),
            "state_fault_pairs": len(STATES) * len(KINDS) - len(missing),
            "pairs_missing": missing,
            "judged": dict(sorted(self.judged.items(), key=lambda item: int(item[0][1:]))),
            "profiles": dict(sorted(self.profiles.items())),
            "virtual_seconds": round(self.virtual_seconds),
            "events": self.events,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
        }


def work(first: int, step: int, until: float, most: int, profile: str, plant: str) -> Totals:
    """One process's share: every `step`-th seed from `first` on, until the time or the number is used up."""
    totals = Totals()
    began = time.process_time()
    with ExitStack() as stack:
        if plant:
            stack.enter_context(planted(plant))
        seed = first
        while totals.schedules < most and time.monotonic() < until:
            totals.add(run_plan(draw(seed, profile))[0])
            seed += step
    totals.cpu_seconds = time.process_time() - began
    return totals


def run_many(
    first: int, count: int | None, seconds: float | None, processes: int, profile: str = "", plant: str = ""
) -> Totals:
    """Run `count` schedules, or as many as fit into `seconds`."""
    until = time.monotonic() + (seconds if seconds is not None else _UNBOUNDED)
    most = -(-count // processes) if count is not None else _UNBOUNDED
    shares = [(first + i, processes, until, most, profile, plant) for i in range(processes)]
    if processes == 1:
        return work(*shares[0])
    totals = Totals()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for share in [pool.submit(work, *share) for share in shares]:
            totals.merge(share.result())
    return totals
