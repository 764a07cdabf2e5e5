"""Filing: the same stream from the same results, in whatever portions they came."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import LateTuple
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.stream.definition import Definition, define
from holdfast.stream.filing import file_results

SECOND = 1_000_000


def definition(**options: object) -> Definition:
    return define("out", "key string, value double, tags array<int>", id="00" * 16, now_us=0, bucket="1s", **options)


def batch(rows: list[tuple[int, str | None, float | None]]) -> pa.RecordBatch:
    stimes = pa.array([r[0] for r in rows], pa.timestamp("us", "UTC"))
    keys, values = pa.array([r[1] for r in rows], pa.string()), pa.array([r[2] for r in rows], pa.float64())
    tags = pa.array([[1, 2]] * len(rows), pa.list_(pa.int32()))
    return pa.RecordBatch.from_arrays([stimes, keys, values, tags], schema=definition().stored)


def filed_in_portions(rows: list[tuple[int, str | None, float | None]], cuts: list[int], d: Definition) -> list[tuple]:
    """Events when the rows of each stretch between two cuts come as one portion, and the rest at the end."""
    events, pending, boundary = [], b"", BEGINNING_US
    start = BEGINNING_US
    for cut in [*sorted(cuts), END_OF_TIME_US]:
        portion = [r for r in rows if start <= r[0] < cut]
        np.random.default_rng(cut % 1000).shuffle(portion)
        filed = file_results([batch(portion)] if portion else [], pending, d, boundary, cut)
        events += filed.events
        pending, boundary, start = filed.pending, filed.boundary_us, cut
    return [tuple(e) for e in events]


ROW = st.tuples(
    st.integers(0, 8 * SECOND),
    st.none() | st.sampled_from("abcd"),
    st.none() | st.floats(-2, 2, allow_nan=False, width=16),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, max_size=40), st.lists(st.integers(0, 9 * SECOND), max_size=6), st.sampled_from([1, 3]))
def test_events_are_byte_equal_whatever_the_portions(rows: list, cuts: list[int], partitions: int) -> None:
    """D9."""
    rows = [(t, k, None if v is None else v + 0.0) for t, k, v in rows]
    d = definition(partitions=partitions, partition_by="key")
    assert filed_in_portions(rows, cuts, d) == filed_in_portions(rows, [], d)


def test_only_whole_buckets_are_filed_and_promised() -> None:
    filed = file_results(
        [batch([(SECOND // 2, "a", 1.0), (SECOND + 1, "b", 2.0)])], b"", definition(), 0, SECOND * 3 // 2
    )
    assert [(e.bucket, e.rows) for e in filed.events] == [(0, 1)]
    assert (filed.boundary_us, filed.pending_rows) == (SECOND, 1)


def test_a_result_below_the_boundary_is_refused() -> None:
    with pytest.raises(LateTuple, match="comes after its boundary"):
        file_results([batch([(SECOND // 2, "a", 1.0)])], b"", definition(), SECOND, 2 * SECOND)
