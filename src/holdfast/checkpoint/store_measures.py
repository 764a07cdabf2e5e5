"""What the checkpoints of this process can be measured by: its SafeKeepers, and the deadlines of its scheduler.

On Spark a task keeps its own counts beside its state and tells them with each batch (`holdfast.spark.save_figures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.checkpoint.safekeeper import Outcome, keepers
from holdfast.checkpoint.scheduler import scheduler
from holdfast.metrics.sheet import Sheet

_NO_OUTCOMES: Mapping[str, int] = MappingProxyType({outcome.value: 0 for outcome in Outcome})


class StoreCounts(NamedTuple):
    """What all keepers of one kind of store have come to."""

    waiting: int = 0
    retries: int = 0
    problem: str | None = None
    """Why one of them cannot be written right now."""
    outcomes: Mapping[str, int] = _NO_OUTCOMES


def by_store() -> dict[str, StoreCounts]:
    """As of now; from any thread."""
    found: dict[str, StoreCounts] = {}
    for keeper in keepers():
        status, name = keeper.status(), type(keeper.store).__name__
        before = found.get(name, StoreCounts())
        outcomes = {outcome: before.outcomes[outcome] + status.outcomes[outcome] for outcome in before.outcomes}
        found[name] = StoreCounts(before.waiting + status.waiting, before.retries + status.retries,
                                  before.problem or status.store_problem, outcomes)  # fmt: skip
    return found


def deadlines() -> dict[str, dict[str, int]]:
    """By operator: how many were met, and missed."""
    return {operator: {"met": kept.met, "missed": kept.missed} for operator, kept in scheduler().report().items()}


def measure(sheet: Sheet) -> None:
    """Fill in what is known now."""
    for store, counts in by_store().items():
        sheet.put("holdfast_store_waiting", counts.waiting, store=store)
        sheet.put("holdfast_store_away", counts.problem is not None, store=store)
        sheet.put("holdfast_store_retries_total", counts.retries, store=store)
        for outcome, count in counts.outcomes.items():
            sheet.put("holdfast_store_checkpoints_total", count, store=store, outcome=outcome)
    for operator, by_end in deadlines().items():
        for kept, count in by_end.items():
            sheet.put("holdfast_checkpoint_deadlines_total", count, operator=operator, kept=kept)
