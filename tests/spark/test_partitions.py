"""Queries that are started again with another number of partitions: the results are those of one number (C13)."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import holdfast
from holdfast.checkpoint.policy import every
from holdfast.operators.functions import count, sum_
from holdfast.operators.join_kernel import keep_time
from holdfast.operators.numbering import can_hash, hash_of
from holdfast.operators.udop import encode
from holdfast.operators.windows import count_window, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import flow, read_stream
from holdfast.spark.flow import Flow
from holdfast.spark.keyed import udop
from tests.spark.conftest import fill, layout
from tests.spark.summing import Summing

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


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["from scratch", "from the store"])
def test_an_operator_of_ones_own_goes_on_with_any_number_of_partitions(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, lost: bool
) -> None:
    chance = random.Random(5)
    rows = [(i / 10, f"k{chance.randrange(20)}", i) for i in range(120)]
    operator = udop("sums", Summing, key="key", schema="key string, sum bigint", checkpoint=every("1ms", exact=True),
                    store=f"log:{tmp_path}/far", scratch=str(tmp_path / "near"))  # fmt: skip
    found: list[tuple[str, int]] = []

    def run(partitions: int) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        given = read_stream(spark, "s", root=str(store.root), maxRowsPerBatch=15).transform(operator)
        query = (
            given.writeStream.foreachBatch(lambda frame, batch: found.extend(tuple(row) for row in frame.collect()))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        for at, partitions in enumerate((4, 2, 8)):
            fill(store, "s", rows[40 * at : 40 * (at + 1)], end=at == 2, until=None if at == 2 else 4 * (at + 1))
            run(partitions)
            if lost:
                shutil.rmtree(tmp_path / "near")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    for name in {key for _, key, _ in rows}:
        expected = list(accumulate(value for _, key, value in rows if key == name))
        assert [value for key, value in found if key == name] == expected


PLAIN: dict[str, list[Any]] = {
    "string": ["", "a", "ab", "abc", "abcd", "äöü€x", None],
    "binary": [b"", b"\xff\x01\x80", b"12345678\xfe"],
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "int": [0, -5, 2**31 - 1],
    "smallint": [-3],
    "tinyint": [-128],
    "boolean": [True, False],
    "double": [0.0, -0.0, math.nan, 1.5, -math.inf],
    "float": [0.0, -0.0, math.nan, 1.5, 0.1],
    "date": [date(1969, 1, 1), date(2024, 2, 3)],
    "timestamp": [datetime(1969, 1, 1, 1, 2, 3, 4, UTC), datetime(2024, 2, 3, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2024, 2, 3, 4, 5)],
    "decimal(10,2)": [Decimal("-12.34"), Decimal("1.50")],
    "decimal(38,3)": [
        Decimal(n)
        for n in ("-12.340", "123456789012345678901.125", "0.127", "0.128", "-0.128", "-" + "9" * 35 + ".987")
    ],
}


def test_keys_of_all_plain_types_are_where_the_shuffle_of_spark_brings_them(spark: SparkSession) -> None:
    def coded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [encode(value) for value in batch.column(0).to_pylist()]
            partition = TaskContext.get().partitionId()  # type: ignore[union-attr]
            at = pa.array([partition] * len(keys), pa.int32())
            yield pa.record_batch({"key": pa.array(keys, pa.binary()), "at": at})

    for kind, values in PLAIN.items():
        frame = spark.createDataFrame([(value,) for value in values], f"key {kind}").repartition(7, "key")
        assert can_hash(frame.schema["key"].dataType.simpleString())
        rows = frame.mapInArrow(coded, "key binary, at int").collect()
        assert [(kind, hash_of(bytes(row.key), kind) % 7) for row in rows] == [(kind, row.at) for row in rows]
        assert len(rows) == len(values)
