"""The order in which a task takes its tuples does not depend on the shuffle (D9). No Spark is started here."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.spark.keyed_task import in_order

SCHEMA = pa.schema([
    ("stime", pa.timestamp("us", tz="UTC")), ("tuple_id", pa.int64()), ("side", pa.string()), ("k", pa.int64()),
    ("word", pa.string()), ("numbers", pa.list_(pa.int64())),
])  # fmt: skip


def shuffled(rows: list[dict[str, Any]], seed: int, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    """The rows in another order, in batches of another size."""
    chance = random.Random(seed)
    mixed = chance.sample(rows, len(rows))
    size = chance.randrange(1, 6)
    return [pa.RecordBatch.from_pylist(mixed[i : i + size], schema=schema) for i in range(0, len(mixed), size)]


def taken(batches: list[pa.RecordBatch], side: str | None = "side") -> list[dict[str, Any]]:
    return [row for batch in in_order(batches, side) for row in batch.to_pylist()]


def test_tuples_of_two_sides_that_tie_come_left_first_however_they_were_shuffled() -> None:
    rows = [
        {"stime": n // 3, "tuple_id": n // 2, "side": side, "k": 1, "word": f"{side}{n}", "numbers": [n]}
        for n in range(12) for side in ("left", "right")
    ]  # fmt: skip
    first = taken(shuffled(rows, 0))
    assert all(taken(shuffled(rows, seed)) == first for seed in range(1, 30))
    order = [(r["stime"], r["tuple_id"], r["side"]) for r in first]
    assert order == sorted(order)


@pytest.mark.parametrize("column", ["word", "numbers"])
def test_tuples_that_tie_in_all_but_a_value_come_in_one_order(column: str) -> None:
    same = {"stime": 1, "tuple_id": 1, "side": "left", "k": 1, "word": "w", "numbers": [1]}
    rows = [
        same | {column: value} for value in (["a", "b", "c", None] if column == "word" else [[1], [2, 3], [], None])
    ]
    first = taken(shuffled(rows, 0))
    assert all(taken(shuffled(rows, seed)) == first for seed in range(1, 30))


def test_tuples_without_a_header_stay_as_they_came() -> None:
    schema = pa.schema([("k", pa.int64())])
    assert taken([pa.RecordBatch.from_pylist([{"k": k} for k in (3, 1, 2)], schema=schema)]) == [
        {"k": 3}, {"k": 1}, {"k": 2},
    ]  # fmt: skip
