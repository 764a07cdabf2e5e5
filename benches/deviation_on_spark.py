"""How far a crash throws an online model off when it runs on Spark: 004 §5.1 in the whole system.

The model of `benches.output_deviation`, a user-defined operator (`udop`), in a streaming query over a stream of wafers.
At a random place the query's machine is lost: its scratch space, where states live between batches, is gone. What came
while it was down is lost as well, except in exact mode; then the query goes on from its checkpoint. Without checkpoints
the model begins anew; with `every("1s")` it has the last state in the store; with `exact=True` the one at its position.

    python -m benches.deviation_on_spark [--quick]
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast
from benches.output_deviation import OUT, PER_SECOND, WAFERS, Model, feed, wafers
from benches.report import console, finish, table
from holdfast.checkpoint.policy import every
from holdfast.operators.udop import Instances
from holdfast.spark import read_stream, session
from holdfast.spark.keyed import udop

MODES = {"none": None, "every": every("1s"), "exact": every("1s", exact=True)}
T0_US, STEP_US = 1_700_000_000_000_000, round(1e6 / PER_SECOND)
COLUMNS = "at bigint, x array<double>, y double"
#: Rows in a batch: some minutes of the factory.
BATCH = 500


def send(store: holdfast.StreamStore, rows: list[dict[str, Any]], end: bool) -> None:
    producer = store.open("wafers").producer(stime="stime", slack="0s")
    for first in range(0, len(rows), BATCH):
        mine = rows[first : first + BATCH]
        stimes = pa.array([T0_US + row["at"] * STEP_US for row in mine], pa.timestamp("us", "UTC"))
        columns = {name: [row[name] for row in mine] for name in ("at", "x", "y")}
        producer.send_batch(pa.table({"stime": stimes, **columns}))
    producer.advance(T0_US + (rows[-1]["at"] + 1) * STEP_US)
    producer.close(end=end)


def predict(spark: SparkSession, root: Path, mode: str) -> dict[int, float]:
    """What the query says about everything that is there and not done yet."""
    policy = MODES[mode]
    store = None if policy is None else f"log:{root}/kept"
    operator = udop("model", Model, key=None, schema="at bigint, predicted double", checkpoint=policy, store=store,
                    scratch=str(root / "scratch"))  # fmt: skip
    found: dict[int, float] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        found.update({row.at: row.predicted for row in frame.collect()})

    source = read_stream(spark, "wafers", root=str(root), boundaries="exact", maxRowsPerBatch=BATCH)
    query = (
        source.select("at", "x", "y").transform(operator).writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return found


def crashed(
    spark: SparkSession, root: Path, rows: list[dict[str, Any]], crash: int, down: int, mode: str
) -> dict[int, float]:
    """Predictions from the crash on."""
    store = holdfast.open(root)
    store.create("wafers", COLUMNS, bucket="10s")
    send(store, rows[:crash], end=False)
    predict(spark, root, mode)
    shutil.rmtree(root / "scratch")
    send(store, rows[crash if mode == "exact" else crash + down :], end=True)
    return {at: value for at, value in predict(spark, root, mode).items() if at >= crash}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.deviation_on_spark", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two crashes")
    given = parser.parse_args()
    rows = wafers()
    golden = dict(feed(Instances("model", Model, None, OUT), rows))
    chance = random.Random(1)
    crashes = [(chance.randrange(100, WAFERS - 200), round(chance.uniform(2, 5) * PER_SECOND))
               for _ in range(2 if given.quick else given.runs)]  # fmt: skip
    spark = session("bench-deviation")
    spark.sparkContext.setLogLevel("OFF")
    squares, count, worst = (dict.fromkeys(MODES, 0.0) for _ in range(3))
    for crash, down in crashes:
        for mode in MODES:
            with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
                got = crashed(spark, Path(scratch).absolute(), rows, crash, down, mode)
            errors = [abs(value - golden[at]) for at, value in got.items()]
            squares[mode] += sum(error * error for error in errors)
            count[mode] += len(errors)
            worst[mode] = max(worst[mode], *errors)
        console.print(f"crash at {crash}: { ({m: round(math.sqrt(squares[m] / count[m]), 3) for m in MODES}) }")
    spark.stop()
    rmse = {mode: round(math.sqrt(squares[mode] / count[mode]), 4) for mode in MODES}
    table("prediction error after a crash, on Spark", ["", "RMSE", "largest", "004 §5.1"],
          [["no checkpoint", rmse["none"], worst["none"], "7.79"],
           ['every("1s"), best effort', rmse["every"], worst["every"], "4.80"],
           ['every("1s", exact=True)', rmse["exact"], worst["exact"], "-"]])  # fmt: skip
    finish("deviation_on_spark", rmse_none=rmse["none"], rmse_every=rmse["every"], rmse_exact=rmse["exact"],
           worst={mode: round(value, 4) for mode, value in worst.items()}, runs=len(crashes))  # fmt: skip


if __name__ == "__main__":
    main()
