"""What the checkpoints of this process can be measured by: its SafeKeepers, and the deadlines of its scheduler.

On Spark a task keeps its own counts beside its state, in the operator's store (`holdfast.spark.keyed.deadlines`). They
are not measured here: whoever looks at a store in a folder keeps its tasks waiting.
"""

from __future__ import annotations

from holdfast.checkpoint.safekeeper import Outcome, keepers
from holdfast.checkpoint.scheduler import scheduler
from holdfast.metrics.sheet import Sheet


def measure(sheet: Sheet) -> None:
    """Fill in what is known now; from any thread."""
    by_store: dict[str, list[int]] = {}
    for keeper in keepers():
        status = keeper.status()
        counts = [status.waiting, status.retries, status.store_problem is not None]
        counts += [status.outcomes[outcome.value] for outcome in Outcome]
        before = by_store.setdefault(type(keeper.store).__name__, [0] * len(counts))
        by_store[type(keeper.store).__name__] = [a + b for a, b in zip(before, counts, strict=True)]
    for store, (waiting, retries, away, *outcomes) in by_store.items():
        sheet.put("holdfast_store_waiting", waiting, store=store)
        sheet.put("holdfast_store_away", bool(away), store=store)
        sheet.put("holdfast_store_retries_total", retries, store=store)
        for outcome, count in zip(Outcome, outcomes, strict=True):
            sheet.put("holdfast_store_checkpoints_total", count, store=store, outcome=outcome.value)
    for operator, kept in scheduler().report().items():
        sheet.put("holdfast_checkpoint_deadlines_total", kept.met, operator=operator, kept="met")
        sheet.put("holdfast_checkpoint_deadlines_total", kept.missed, operator=operator, kept="missed")
