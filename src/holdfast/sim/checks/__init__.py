"""The checkers: one object per invariant of D1–D17, of those about readers one per reader. None of them calls a helper
of the cores that it judges."""

from __future__ import annotations

from holdfast.sim.checks.buffers import D14
from holdfast.sim.checks.client import D1, D2, D3, D4
from holdfast.sim.checks.forks import D17
from holdfast.sim.checks.health import Health
from holdfast.sim.checks.local import D15
from holdfast.sim.checks.replicas import D8, D9, D10, D11, D12
from holdfast.sim.checks.timing import D5, D6, D7, D13, D16
from holdfast.sim.diagram import Truth
from holdfast.sim.faults import LOCAL, Plan
from holdfast.sim.observe import Observer


def all_checks(plan: Plan, truth: Truth) -> list[Observer]:
    """Every checker, ready for one run. `Health` comes first: others ask it about the past."""
    health = Health(plan)
    local: list[Observer] = []
    for reader, replica in LOCAL.items():
        local += [D1(truth, reader), D2(reader), D3(plan, reader), D4(plan, health, reader, (replica,))]
        local.append(D15(reader, replica))
    return [
        health,
        D1(truth),
        D2(),
        D3(plan),
        D4(plan, health),
        D5(plan, health),
        D6(plan, health),
        D7(plan, health),
        D8(truth),
        D9(truth),
        D10(),
        D11(plan),
        D12(),
        D13(plan),
        D14(plan),
        D16(plan),
        D17(truth),
        *local,
    ]
