"""What the samples of earlier formats were written by: `python -m tests.spark.sample_job FOLDER`, at the commit that a
sample is named after. The tests go on with the same definitions from where the sample ends.

A sample has the first half of one input and, as of its end: the stream and the checkpoint of a flow with its versions
on scratch; the checkpoint of a query with user-defined operators, their store, and their scratch; and the states of
such an operator in a checkpoint that is on its way to another host.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.operators import continuous, count, count_window, every, groups, sum_
from holdfast.operators.keyed_join import keyed_join
from holdfast.operators.window_join import Input
from holdfast.spark import flow, read_stream, session
from tests.spark.conftest import fill
from tests.spark.summing import Summing

ROWS = [(i * 0.5, "abcdefgh"[i * 7 % 8], i) for i in range(60)]
HALF = 30


def feed(root: Path, second: bool) -> None:
    """The first or the second half of the input."""
    rows = ROWS[HALF:] if second else ROWS[:HALF]
    fill(holdfast.open(root / "streams"), "in", rows, end=second, until=30 if second else 15)


def run_flow(spark: SparkSession, root: Path, output: str, checkpoint: str, partitions: int = 2) -> None:
    given = flow(spark, "in", root=root / "streams", partitions=partitions).filter("value >= 0")
    made = given.aggregate(count(), sum_("value"), window=count_window(4), by="key", checkpoint=continuous())
    query = made.write(output, checkpoint_location=root / checkpoint, scratch=root / "versions",
                       trigger={"availableNow": True})  # fmt: skip
    query.awaitTermination()


def operators(root: Path) -> dict[str, Any]:
    """An exact one, one that nothing protects, and one whose states have parts."""
    from holdfast.spark.keyed import udop

    sides = (pa.schema([("key", pa.string()), (side, pa.int64())]) for side in "ab")
    left, right = (Input(schema, window) for schema, window in zip(sides, (5, 0), strict=True))
    place: dict[str, Any] = {"key": "key", "scratch": str(root / "scratch")}
    exact: dict[str, Any] = {"store": f"log:{root}/store", **place}
    return {
        "exact": udop("exact", Summing, schema="key string, sum bigint", checkpoint=every("1ms", exact=True), **exact),
        "unsaved": udop("unsaved", Summing, schema="key string, sum bigint", **place),
        "pairs": udop("pairs", keyed_join(left, right, on="key"), schema="key string, a bigint, b bigint",
                      checkpoint=groups(2, every="1s", exact=True), **exact),
    }  # fmt: skip


def run_operator(spark: SparkSession, root: Path, name: str) -> list[tuple[Any, ...]]:
    """The results of what its checkpoint has not seen yet."""
    found: list[tuple[Any, ...]] = []
    source = read_stream(spark, "in", root=str(root / "streams"), maxRowsPerBatch=12)
    side = "if(value % 3 = 0, 'right', 'left') as side"
    given = source.selectExpr("*", side, "value as a", "value as b") if name == "pairs" else source

    def keep(frame: DataFrame, batch: int) -> None:
        found.extend(tuple(row) for row in frame.collect())

    written = given.transform(operators(root)[name]).writeStream.foreachBatch(keep)
    query = written.option("checkpointLocation", str(root / f"checkpoint-{name}")).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def main(root: Path) -> None:
    """Make a sample with what is installed."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import LongType, StringType, StructType

    from holdfast.spark.arrivals import pack_operators
    from holdfast.spark.keyed_task import Task

    feed(root, second=False)
    spark = session("sample", master="local[2]")
    run_flow(spark, root, "windows", "checkpoint-windows")
    for name in operators(root):
        run_operator(spark, root, name)
    spark.stop()
    schema = to_arrow_schema(StructType().add("key", StringType()).add("sum", LongType()))
    moving = Task(operators(root)["unsaved"], schema, 1)
    rows = pa.record_batch({"key": ["a", "b", "a"], "value": [1, 2, 3]})
    assert list(moving.run([rows], "moving", 0, 0))
    assert pack_operators([moving], "moving", 1, root / "parcel")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
