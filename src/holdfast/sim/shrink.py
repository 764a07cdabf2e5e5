"""Makes a failing plan small: fewest faults (ddmin), then the shortest and plainest ones.

Rules:
1. A smaller plan counts only if it still breaks the same invariant.
2. Everything random hangs on the seed and a name, and each fault on its own place in the list; so places are kept and a
   fault left out leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.sim.faults import Fault, Plan
from holdfast.sim.run import run_plan

#: A fault of length 0 at a time after the end: a place kept free.
_NOTHING = Fault("pause", ("n1a",), 2**50, 0)


def breaks(plan: Plan, label: str) -> bool:
    """Whether the plan still violates the invariant."""
    return any(violation.label == label for violation in run_plan(plan)[0].violations)


def shrink(plan: Plan, label: str, fails: Callable[[Plan, str], bool] = breaks) -> Plan:
    """The smallest plan found that still breaks the invariant."""
    kept = [index for index, fault in enumerate(plan.faults) if fault != _NOTHING]
    kept = _ddmin(kept, lambda subset: fails(_only(plan, subset), label))
    plan = _only(plan, kept)
    for index in kept:
        for simplify in _SIMPLER:
            simpler = simplify(plan.faults[index])
            smaller = replace(plan, faults=(*plan.faults[:index], simpler, *plan.faults[index + 1 :]))
            if fails(smaller, label):
                plan = smaller
    return plan


def active(plan: Plan) -> list[Fault]:
    """The faults that are left."""
    return [fault for fault in plan.faults if fault != _NOTHING]


def _only(plan: Plan, indices: list[int]) -> Plan:
    kept = set(indices)
    return replace(plan, faults=tuple(f if i in kept else _NOTHING for i, f in enumerate(plan.faults)))


def _halve(fault: Fault) -> Fault:
    return replace(fault, length_us=fault.length_us // 2)


def _notice(fault: Fault) -> Fault:
    return replace(fault, noticed=True)


#: Tried in turn on every fault that is left; each success is kept.
_SIMPLER: tuple[Callable[[Fault], Fault], ...] = (_halve, _halve, _halve, _notice)


def _ddmin(items: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """Zeller's delta debugging: drop ever smaller parts as long as the rest still fails."""
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        for index in range(len(chunks)):
            rest = [item for j, chunk in enumerate(chunks) if j != index for item in chunk]
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), parts * 2)
    return items if not fails([]) else []
