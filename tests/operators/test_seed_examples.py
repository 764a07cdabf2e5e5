"""The examples of 003 §3.2.2, as a table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from holdfast.operators.functions import avg
from holdfast.operators.join_kernel import JoinKernel, keep_time
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.sorting import SortKernel
from holdfast.operators.windows import Window, count_window, landmark, time_window

MINUTE = 60_000_000
AVERAGE = Plan((avg("v").alias("avg"),), (0,), {0: pl.Int64()})
READINGS = [("1:16", 68), ("1:21", 69), ("1:25", 70), ("1:29", 68), ("1:35", 67), ("1:41", 67)]


def at(clock: str) -> int:
    hours, minutes = clock.split(":")
    return (int(hours) * 60 + int(minutes)) * MINUTE


def clock(us: int) -> str:
    return f"{us // MINUTE // 60}:{us // MINUTE % 60:02}"


def averages(window: Window, rows: list[tuple[str, float]], until: str) -> list[Any]:
    kernel, _ = aggregate_kernel(window, Plan((avg("v").alias("avg"),), (0,), {0: pl.Float64()}), ("_h",))
    frame = pl.DataFrame({"_h": [0] * len(rows), "_t": [at(c) for c, _ in rows], "_v0": [float(v) for _, v in rows]})
    results = kernel.step({}, frame, -(2**62), at(until)).results
    assert results is not None
    time = "_w" if "_w" in results.columns else "stime"
    return [(clock(t), round(v, 2)) for t, v in results.select(time, "avg").rows()]


TABLE = {
    "output 1: landmark at 1:00": (landmark(3600), [("1:16", 68), ("1:21", 68.5), ("1:25", 69), ("1:29", 68.75),
                                                     ("1:35", 68.4), ("1:41", 68.17)]),
    "output 2: aligned to the first tuple": (time_window("10m", align="first"), [("1:16", 69), ("1:26", 67.5)]),
    "output 3: independent of the tuples": (time_window("10m"), [("1:10", 68), ("1:20", 69), ("1:30", 67)]),
    "every two measurements": (count_window(2), [("1:21", 68.5), ("1:29", 69), ("1:41", 67)]),
}  # fmt: skip


@pytest.mark.parametrize("example", TABLE)
def test_the_window_gives_what_the_seed_prints(example: str) -> None:
    window, want = TABLE[example]
    assert averages(window, [(c, float(v)) for c, v in READINGS], "1:45") == want


def test_a_tuple_that_comes_after_its_window_closed_is_dropped() -> None:
    """003 §3.2.2: 1:21 closes the window of 1:10; a measurement of 1:09 or 1:15 after it is dropped."""
    kernel, _ = aggregate_kernel(
        time_window("10m", on="time"), Plan((avg("v").alias("avg"),), (0,), {0: pl.Int64()}), ("_h",)
    )
    times = ["1:12", "1:21", "1:15", "1:32"]
    rows = pl.DataFrame({"_h": [0] * 4, "_t": [1, 2, 3, 4], "_a": [at(t) for t in times], "_v0": [68, 70, 90, 60]})
    step = kernel.step({}, rows, 0, 10)
    assert step.late == 1
    assert step.results is not None
    assert step.results.select("_w", "avg").rows() == [(at("1:10"), 68.0), (at("1:20"), 70.0)]


def test_slack_waits_for_some_more_tuples() -> None:
    kernel, _ = aggregate_kernel(time_window("10m", on="time", slack=1), AVERAGE, ("_h",))
    times = ["1:12", "1:21", "1:15", "1:32"]
    rows = pl.DataFrame({"_h": [0] * 4, "_t": [1, 2, 3, 4], "_a": [at(t) for t in times], "_v0": [68, 70, 90, 60]})
    step = kernel.step({}, rows, 0, 10)
    assert step.late == 0
    assert step.results is not None
    assert step.results.select("_w", "avg", "stime").rows() == [(at("1:10"), 79.0, 4)]


def test_a_join_matches_readings_of_one_room_within_an_hour() -> None:
    """003 figure 3-3: temperatures with humidities taken in the same room at most one hour apart."""
    kernel = JoinKernel(keep_time("1h"), keep_time("1h"), ("_h",), ("_v0",), ("_v1",))
    given = [("1:00", 0, "a", 68), ("1:30", 1, "a", 50), ("1:30", 1, "b", 60), ("2:00", 1, "a", 55),
             ("2:10", 1, "a", 40), ("2:31", 0, "b", 70)]  # fmt: skip
    rows = pl.DataFrame([(ord(room), at(t), side, i, v, v) for i, (t, side, room, v) in enumerate(given)], orient="row",
                        schema={"_h": pl.Int64, "_t": pl.Int64, "_side": pl.Int64, "_w": pl.Int64, "_v0": pl.Int64,
                                "_v1": pl.Int64})  # fmt: skip
    results = kernel.step({}, rows, 0, at("3:00")).results
    assert results is not None
    assert sorted((clock(t), chr(h), a, b) for t, h, a, b in results.rows()) == [
        ("1:30", "a", 68, 50),
        ("2:00", "a", 68, 55),
    ]


def test_bsort_gives_out_the_lowest_of_its_buffer() -> None:
    """003 §3.2.1: a buffer of n + 1; each new tuple pushes the lowest-valued one out."""
    kernel = SortKernel(2, ("_h",), ("_v0",))
    rows = pl.DataFrame({"_h": [0] * 6, "_t": list(range(6)), "_w": list(range(6)), "_v0": [3, 1, 2, 5, 4, 6]})
    results = kernel.step({}, rows, 0, 10).results
    assert results is not None
    assert results["_v0"].to_list() == [1, 2, 3, 4]
