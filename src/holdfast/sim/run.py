"""One schedule from its plan to its verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from holdfast.sim.checks import all_checks
from holdfast.sim.checks.client import D3
from holdfast.sim.diagram import Truth, build
from holdfast.sim.faults import CLIENT, HEAL_US, LOCAL, REPLICAS, SETTLE_US, SOURCES, Plan, draw
from holdfast.sim.inject import Injector
from holdfast.sim.observe import Observer, Observers, Violation
from holdfast.sim.world import World

#: No run is shorter: enough input for a thousand tuples.
_LEAST_US = HEAL_US + 800_000
_STEP_US = 200_000


@dataclass(slots=True)
class Outcome:
    """What one schedule showed."""

    seed: int
    profile: str
    violations: list[Violation]
    faults: dict[str, int]
    pairs: set[tuple[str, str]]
    rows: set[int]
    tuples: int
    """Input tuples that entered the diagram."""
    checked: int
    """Stable tuples that were compared with the oracle, over all replicas and the client."""
    judged: dict[str, int]
    """How often each checker had something to judge, where it counts."""
    tentative: int
    fork_steps: int
    """Times that an idle fork followed main."""
    rebuilt: int
    """Replicas that had lost their disks and went on from their twins."""
    virtual_us: int
    events: int
    digest: str = field(default="")


class Trace(Observer):
    """A fingerprint of everything observable, and, on request, the text of it."""

    readers = (CLIENT, *LOCAL)

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self.lines: list[str] | None = [] if keep else None
        self.tentative = 0
        self.steps = 0
        self.rebuilt = 0
        self.tuples = 0

    def _note(self, now_us: int, text: str) -> None:
        line = f"{now_us / 1e6:10.6f} {text}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def on_fault(self, now_us: int, fault: Any, begins: bool) -> None:
        """Note it."""
        self._note(
            now_us, f"{'fault' if begins else 'healed'} {fault.kind}{' disk' * fault.disk} {','.join(fault.targets)}"
        )

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Note it."""
        self._note(now_us, f"{host} {before} -> {after}")

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """Note it."""
        buckets = [item.bucket for item in detail.buckets if item.emit] if what == "extend" else ""
        self.steps += what == "extend" and not buckets
        self._note(now_us, f"{host} fork {detail.fork} {what} {buckets}")

    def on_member(self, now_us: int, host: str, here: bool) -> None:
        """Note it."""
        self._note(now_us, f"{host} {'added' if here else 'taken out'}")

    def on_rebuilt(self, now_us: int, host: str, bucket: int) -> None:
        """Note it."""
        self.rebuilt += 1
        self._note(now_us, f"{host} rebuilt from bucket {bucket} on")

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Note it."""
        self.tentative += kind == "TENTATIVE" and reader == CLIENT
        self._note(now_us, f"{reader} {kind} {bucket} {len(rows) if rows is not None else ''}")

    def digest(self) -> str:
        """The fingerprint."""
        return self._hash.hexdigest()


def run_plan(plan: Plan, keep: bool = False) -> tuple[Outcome, list[str]]:
    """Simulate a plan until all is settled, and judge it."""
    truth = Truth(plan)
    injector, trace, checks = Injector(plan), Trace(keep), all_checks(plan, truth)
    world = World(Observers([injector, trace, *checks]))
    build(world, plan, truth)
    injector.begin(world)
    settled = [check for check in checks if isinstance(check, D3)]
    try:
        world.run(_LEAST_US)
        while world.now_us < HEAL_US + SETTLE_US and not all(check.settled(world.now_us) for check in settled):
            world.run(world.now_us + _STEP_US)
        for check in checks:
            check.finish(world.now_us)
    except Exception as error:  # a core that stops is a finding like any other, and the seed must be reported
        trace.violations.append(Violation("CORE", world.now_us, repr(error)))
    rows: set[int] = set().union(*(world.hosts[name].table_rows for name in (*REPLICAS, CLIENT)))
    produced = world.now_us // world.hosts[SOURCES[0]].size
    outcome = Outcome(
        plan.seed,
        plan.profile,
        world.observers.violations(),
        injector.struck,
        injector.pairs,
        rows,
        sum(len(source[b]) for source in truth.sources for b in range(produced)),
        sum(check.checked for check in checks if check.label in ("D1", "D9")),
        _judged(checks),
        trace.tentative,
        trace.steps,
        trace.rebuilt,
        world.now_us,
        world.events,
        trace.digest(),
    )
    return outcome, trace.lines or []


def _judged(checks: list[Observer]) -> dict[str, int]:
    judged: dict[str, int] = {}
    for check in checks:
        if check.checked:
            judged[check.label] = judged.get(check.label, 0) + check.checked
    return judged


def run_seed(seed: int) -> Outcome:
    """Simulate the plan that belongs to a seed."""
    return run_plan(draw(seed))[0]
