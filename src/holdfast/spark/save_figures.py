"""The figures of what protects operators in a store: from each task, on whichever machine, to the driver.

1. A task says with every batch what its policy has come to (`Saving`), in an accumulator: Spark brings it to the driver
   with the end of the task, and not at all if the task fails. Nobody opens a store for it.
2. One accumulator serves all queries of a context. Of each partition the newest batch counts; how many checkpoints the
   store took is added up. Those of another number of partitions go with the first batch that has a new one.
3. Figures last as long as the context, over restarts of their query, until nobody will go on with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from holdfast.engine import Saves


class Saving(NamedTuple):
    """Of one partition, after one batch."""

    batch: int
    partitions: int = 1
    durable: int = 0
    """Checkpoints that the store took since the batch before."""
    dropped: int = 0
    """Since the query began, as are those below."""
    met: int = 0
    missed: int = 0
    late_us_max: int = 0
    waiting: bool = False
    """Whether one was handed over that the store has not taken yet."""
    bytes: int | None = None
    """Of the newest checkpoint; None if this batch made none."""
    restore_s: float | None = None
    """How long its state took to come from the store or another partition; None if it was at hand."""


Key = tuple[str, str, int]
"""Query, operator, partition."""
Savings = Mapping[Key, Saving]


class Newest(AccumulatorParam[Savings]):
    """Rule 2. Values are never changed: whoever reads one has it as it was."""

    def zero(self, value: Savings) -> Savings:
        return {}

    def addInPlace(self, value1: Savings, value2: Savings) -> Savings:
        merged = dict(value1)
        for key, told in value2.items():
            known = merged.get(key)
            merged[key] = told if known is None else _after(known, Saving(*told))
        return merged


def _after(known: Saving, told: Saving) -> Saving:
    newer, older = (told, known) if told.batch >= known.batch else (known, told)
    return newer._replace(
        durable=known.durable + told.durable,
        bytes=older.bytes if newer.bytes is None else newer.bytes,
        restore_s=older.restore_s if newer.restore_s is None else newer.restore_s,
    )


_lock = threading.Lock()
_collecting: tuple[SparkContext, Accumulator[Savings]] | None = None


def collector(session: Any) -> Accumulator[Savings] | None:
    """What tasks of that session add to (rule 2); None where it has no context, as in an outline of a function."""
    global _collecting
    context = getattr(session, "sparkContext", None)
    if not isinstance(context, SparkContext):
        return None
    with _lock:
        if _collecting is None or _collecting[0] is not context:
            _collecting = context, context.accumulator({}, Newest())
        return _collecting[1]


def forget(query: str) -> None:
    """Rule 3."""
    with _lock:
        if _collecting is not None:
            kept = {key: saving for key, saving in _collecting[1].value.items() if key[0] != query}
            _collecting[1].value = kept


def saves_of(query: str) -> tuple[Saves, ...]:
    """What the operators of a query have come to so far."""
    with _lock:
        found = {} if _collecting is None else _collecting[1].value
    operators = sorted({name for of, name, _ in found if of == query})
    return tuple(_together(name, list(_newest(found, query, name))) for name in operators)


def _newest(found: Savings, query: str, operator: str) -> Iterator[Saving]:
    mine = [saving for (of, name, _), saving in found.items() if (of, name) == (query, operator)]
    partitions = max(mine, key=lambda saving: saving.batch).partitions
    yield from (saving for saving in mine if saving.partitions == partitions)


def _together(operator: str, partitions: list[Saving]) -> Saves:
    restores = [saving.restore_s for saving in partitions if saving.restore_s is not None]
    return Saves(
        operator,
        sum(saving.durable for saving in partitions),
        sum(saving.dropped for saving in partitions),
        sum(saving.met for saving in partitions),
        sum(saving.missed for saving in partitions),
        max(saving.late_us_max for saving in partitions) / 1e6,
        sum(saving.waiting for saving in partitions),
        sum(saving.bytes or 0 for saving in partitions),
        max(restores, default=None),
    )
