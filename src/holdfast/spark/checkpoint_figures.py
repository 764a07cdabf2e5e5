"""The figures of continuous checkpoints: from each task of a stage to the progress of the query, and to a warning.

1. A stage says with every batch what its checkpoints cost and what a recovery from them would take (`Figures`), in a
   hidden column of the row that carries them.
2. Spark makes one observation of those of all partitions (`observed`): `query.lastProgress` has it with every batch,
   among its `observedMetrics`, under the name `checkpoints`.
3. A recovery time that was asked for and cannot be kept is said with the figures, once, and again after it could be.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from holdfast.engine import Recovery
from holdfast.model.time import BEGINNING_US
from holdfast.operators.footprints import Saved
from holdfast.protocol.cec.policy import Continuous, Measured
from holdfast.spark import control
from holdfast.stream.merge import FOREVER_US

log = logging.getLogger(__name__)
#: The name of the observation.
OBSERVATION = "checkpoints"


class Figures(NamedTuple):
    """Of one partition, after one batch."""

    windows: int
    """N: open windows that a recovery loads."""
    since_us: int
    """T: from where the input is computed again."""
    extent_us: int
    """How much of the input that is."""
    opened: int
    """Records written: Gopen, of windows without a checkpoint before,"""
    checked: int
    """Gcheck, of slow ones,"""
    closed: int
    """and R, of windows that have closed."""
    bytes: int
    period_us: int
    """How often a slow window is saved: as it was given, or as the recovery time demands."""
    estimate_s: float
    recovery_s: float | None
    """Of the last recovery, as measured; None before the first."""
    recover_within_s: float | None


_REALS = ("estimate_s", "recovery_s", "recover_within_s")
TYPE = T.StructType([
    T.StructField(name, T.DoubleType() if name in _REALS else T.LongType()) for name in Figures._fields
])  # fmt: skip


def figures(saved: Saved, position_us: int, policy: Continuous, period_us: int, measured: Measured) -> Figures:
    """Rule 1. Before the first tuple and behind the end of all streams nothing is computed again."""
    within = BEGINNING_US < saved.since_us <= position_us < FOREVER_US
    extent_us = position_us - saved.since_us if within else 0
    goal_us = policy.recover_within_us
    return Figures(
        saved.windows, saved.since_us, extent_us, saved.opened, saved.checked, saved.closed, len(saved.body), period_us,
        measured.estimate_s(saved.windows, extent_us), measured.recovery_s or None,
        None if goal_us is None else goal_us / 1e6,
    )  # fmt: skip


def observed(frame: DataFrame) -> DataFrame:
    """Rule 2. Partitions recover beside each other, so the slowest of them counts. The sink need not see the column."""
    totals = [F.sum(_of(name)).alias(name) for name in ("windows", "opened", "checked", "closed", "bytes")]
    seen = frame.observe(
        OBSERVATION, *totals, F.min(_of("since_us")).alias("since_us"),
        (F.max(_of("extent_us")) / 1e6).alias("extent_s"), (F.max(_of("period_us")) / 1e6).alias("period_s"),
        F.max(_of("estimate_s")).alias("recovery_estimate_s"), F.max(_of("recovery_s")).alias("last_recovery_s"),
        F.max(_of("recover_within_s")).alias("recover_within_s"),
    )  # fmt: skip
    return seen.drop(control.FIGURES)


def _of(name: str) -> Column:
    return F.col(f"{control.FIGURES}.{name}")


def recovery_of(observations: Mapping[str, Any] | None) -> Recovery | None:
    """The figures in the progress of a query; None if it writes no checkpoints."""
    found = (observations or {}).get(OBSERVATION)
    if found is None:
        return None
    row = found.asDict() if hasattr(found, "asDict") else dict(found)
    return None if row.get("windows") is None else Recovery._make(row.get(name) for name in Recovery._fields)


class Warnings:
    """Rule 3, of all queries of a session."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def look(self, query: str, name: str, recovery: Recovery | None) -> None:
        sentence = None if recovery is None else recovery.broken_goal
        if sentence is None:
            self._said.discard(query)
        elif query not in self._said:
            self._said.add(query)
            log.warning("%s: %s", name, sentence)

    def forget(self, query: str) -> None:
        self._said.discard(query)
