"""How far a crash throws an online model off: the seeds' experiment (004 §5.1) with a user-defined operator.

A linear model learns the yield of wafers from sensors that drift, one tuple after another, and predicts before it
learns. Once per run, at a random time, its memory is lost; it is back two to five seconds later. Tuples that come
meanwhile are lost as well, except in exact mode, where they are replayed. Forty runs each: without checkpoints, with
`every("1s")`, and exact. The error is the root mean square, over all runs, of the difference to the predictions of a
run without a crash, from the crash onward. Time is the tuples' own: 9,000 wafers in thirty minutes.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benches.report import finish, table
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.operators.udop import Instances, UserOperator, decode, encode, lazily

WAFERS, SENSORS, SECONDS = 9000, 8, 1800
PER_SECOND = WAFERS / SECONDS
OUT = pa.schema([("at", pa.int64()), ("predicted", pa.float64())])
IN = pa.schema([("at", pa.int64()), ("x", pa.list_(pa.float64())), ("y", pa.float64())])


class Model(UserOperator):
    """Least squares, recursively, with slow forgetting."""

    def __init__(self) -> None:
        self.weights, self.spread = np.zeros(SENSORS), np.eye(SENSORS) * 10.0

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        x, y = np.array(row["x"]), row["y"]
        predicted = float(self.weights @ x)
        gain = self.spread @ x / (0.9995 + x @ self.spread @ x)
        self.weights = self.weights + gain * (y - predicted)
        self.spread = (self.spread - np.outer(gain, x @ self.spread)) / 0.9995
        return [{"at": row["at"], "predicted": predicted}]

    def checkpoint(self) -> bytes:
        return encode([self.weights.tolist(), self.spread.tolist()])

    def restore(self, saved: bytes) -> None:
        weights, spread = decode(saved)
        self.weights, self.spread = np.array(weights), np.array(spread)


def wafers() -> list[dict[str, Any]]:
    chance = np.random.default_rng(11)
    truth = chance.normal(0, 8, SENSORS)
    rows = []
    for at in range(WAFERS):
        truth = truth + chance.normal(0, 0.01, SENSORS)
        x = chance.normal(1, 1, SENSORS)
        rows.append({"at": at, "x": x.tolist(), "y": float(truth @ x + chance.normal(0, 8))})
    return rows


def feed(instances: Instances, rows: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    if not rows:
        return []
    found = instances.feed(pa.RecordBatch.from_pylist(list(rows), schema=IN))
    return list(zip(found.column("at").to_pylist(), found.column("predicted").to_pylist(), strict=True))


def run(rows: list[dict[str, Any]], crash: int, down: int, mode: str) -> list[tuple[int, float]]:
    """Predictions from the crash on."""
    store = MemoryStore()
    model, step = Instances("model", Model, None, OUT), round(PER_SECOND)
    saved_at = 0
    for at in range(0, crash, step):
        feed(model, rows[at : min(at + step, crash)])
        if mode != "none" and at + step <= crash:
            store.put_many(model.entries(model.touched))
            model.settle(model.touched)
            saved_at = at + step
    model = Instances("model", Model, None, OUT, load=lazily("model", store) if mode != "none" else None)
    resume = saved_at if mode == "exact" else crash + down
    return [pair for pair in feed(model, rows[resume:]) if pair[0] >= crash]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.output_deviation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args()
    rows = wafers()
    golden = dict(feed(Instances("model", Model, None, OUT), rows))
    chance = random.Random(1)
    crashes = [
        (chance.randrange(100, WAFERS - 200), round(chance.uniform(2, 5) * PER_SECOND)) for _ in range(given.runs)
    ]
    errors: dict[str, float] = {}
    first: dict[str, list[float]] = {}
    worst: dict[str, float] = {}
    for mode in ("none", "every", "exact"):
        squares, count = 0.0, 0
        worst[mode] = 0.0
        first[mode] = sorted(abs(predicted - golden[at]) for at, predicted in run(rows, *crashes[0], mode))
        for crash, down in crashes:
            for at, predicted in run(rows, crash, down, mode):
                error = predicted - golden[at]
                squares, count = squares + error * error, count + 1
                worst[mode] = max(worst[mode], abs(error))
        errors[mode] = math.sqrt(squares / count)
    table("prediction error after a crash", ["", "RMSE", "largest", "004 §5.1"],
          [["no checkpoint", errors["none"], worst["none"], "7.79"],
           ['every("1s"), best effort', errors["every"], worst["every"], "4.80"],
           ['every("1s", exact=True)', errors["exact"], worst["exact"], "-"]])  # fmt: skip
    finish("output_deviation", rmse_none=round(errors["none"], 4), rmse_every=round(errors["every"], 4),
           rmse_exact=errors["exact"], runs=given.runs,
           worst={mode: round(error, 4) for mode, error in worst.items()},
           detail={"cdf": {mode: _cdf(found) for mode, found in first.items()}})  # fmt: skip


def _cdf(errors: Sequence[float]) -> list[list[float]]:
    """Of one run, as figure 7 has it: forty points."""
    places = [round(k * (len(errors) - 1) / 39) for k in range(40)]
    return [[round(errors[p], 5), round((p + 1) / len(errors), 4)] for p in places]


if __name__ == "__main__":
    main()
