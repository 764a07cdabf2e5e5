"""Keys are told apart by a 64-bit hash. Two keys with one are found out and refused, in whatever batches they come."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from holdfast.model.errors import StorageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.join_kernel import JoinKernel, keep_time
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.sorting import SortKernel
from holdfast.operators.windows import count_window, landmark, time_window

PLAN = Plan((count(), sum_("v")), (None, 0), {0: pl.Int64()})
KERNELS: dict[str, Any] = {
    "counts": aggregate_kernel(count_window(50), PLAN, ("_k0",))[0],
    "overlapping counts": aggregate_kernel(count_window(50, 20), PLAN, ("_k0",))[0],
    "time": aggregate_kernel(time_window("10s"), PLAN, ("_k0",))[0],
    "panes of a sliding window": aggregate_kernel(time_window("2s", "1s"), PLAN, ("_k0",))[0],
    "landmark": aggregate_kernel(landmark(0), PLAN, ("_k0",))[0],
    "join": JoinKernel(keep_time("10s"), keep_time("10s"), ("_k0",), ("_v0",), ("_v1",)),
    "sort": SortKernel(50, ("_k0",), ("_v0",)),
}
SECOND = 1_000_000


def rows(second: int, *keys: str) -> pl.DataFrame:
    """Tuples with these keys, all with the hash 7; those of odd seconds are the right side of a join."""
    n = len(keys)
    return pl.DataFrame({
        "_h": [7] * n, "_t": [second * SECOND + i for i in range(n)], "_k0": list(keys), "_side": [second % 2] * n,
        "_w": [second * 100 + i for i in range(n)], "_v0": list(range(n)), "_v1": list(range(n)),
    })  # fmt: skip


def run(name: str, *batches: tuple[str, ...]) -> None:
    columns = ["_h", "_t", "_k0", "_v0"] + (["_side", "_w", "_v1"] if name in ("join", "sort") else [])
    blocks: Any = {}
    for second, keys in enumerate(batches):
        given = rows(second, *keys).select(columns)
        blocks = KERNELS[name].step(blocks, given, second * SECOND, (second + 1) * SECOND).blocks


@pytest.mark.parametrize("name", KERNELS)
def test_two_keys_with_one_hash_are_refused_across_batches(name: str) -> None:
    with pytest.raises(StorageError, match="same 64-bit hash"):
        run(name, ("a", "a"), ("b", "b"), ("a",), ("a",))


@pytest.mark.parametrize("name", KERNELS)
def test_one_key_is_not_taken_for_two(name: str) -> None:
    run(name, *[("a", "a")] * 4)
