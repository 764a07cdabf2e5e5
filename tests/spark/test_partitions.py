"""Flows that are started again with another number of partitions: the results are those of one number (C13)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.operators.functions import count, sum_
from holdfast.operators.joined import keep_time
from holdfast.operators.windows import count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import flow
from holdfast.spark.flow import Flow
from tests.spark.conftest import fill, layout

Build = Callable[[SparkSession, Path, int], Flow]


def windows(spark: SparkSession, root: Path, partitions: int) -> Flow:
    given = flow(spark, "s", root=root, partitions=partitions)
    return given.aggregate(count(), sum_("value"), window=time_window("6s", "2s"), by="key", checkpoint=continuous())


def counts(spark: SparkSession, root: Path, partitions: int) -> Flow:
    """Behind a step of Spark's, so that its tuples come by a shuffle."""
    given = flow(spark, "s", root=root, partitions=partitions).filter("value >= 0")
    return given.aggregate(count(), sum_("value"), window=count_window(7), by="key", checkpoint=continuous())


def pairs(spark: SparkSession, root: Path, partitions: int) -> Flow:
    given = flow(spark, "s", "t", root=root, partitions=partitions)
    return given.join("s", "t", window=keep_time("1s"), by="key", take_left={"l": "value"}, take_right={"r": "value"},
                      checkpoint=continuous())  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "numbers", "lost"),
    [(windows, (4, 2, 16, 8), False), (windows, (4, 2, 8), True), (counts, (4, 2, 8), True), (pairs, (4, 2, 8), False)],
    ids=["windows", "windows, scratch lost", "counts, scratch lost", "pairs"],
)
def test_a_flow_goes_on_with_any_number_of_partitions(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, build: Build, numbers: tuple[int, ...], lost: bool
) -> None:
    chance = random.Random(3)
    rows = [(i / 10, f"k{chance.randrange(20)}", i) for i in range(40 * len(numbers))]

    def run(output: str, checkpoint: str, partitions: int) -> None:
        made = build(spark, store.root, partitions)
        query = made.write(output, checkpoint_location=tmp_path / checkpoint, trigger={"availableNow": True},
                           scratch=tmp_path / "scratch")  # fmt: skip
        query.awaitTermination()

    for at, partitions in enumerate(numbers):
        last = at == len(numbers) - 1
        for name in ("s", "t"):
            fill(store, name, rows[40 * at : 40 * (at + 1)], end=last, until=None if last else 4 * (at + 1))
        if lost:
            shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
        run("out", "c", partitions)
    run("whole", "d", 3)
    assert layout(store.open("out")) == layout(store.open("whole"))
    assert sum(rows for _, _, rows, *_ in layout(store.open("out"))) > 5
