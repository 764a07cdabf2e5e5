"""Fingerprints are equal exactly if the rows are, however they were cut into batches."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.console.fingerprint import Fingerprint, differing, fingerprint

SCHEMA = pa.schema([
    ("n", pa.int32()), ("x", pa.float64()), ("flag", pa.bool_()), ("text", pa.string()), ("raw", pa.binary()),
    ("amount", pa.decimal128(10, 2)), ("when", pa.timestamp("us", tz="UTC")),
    ("window", pa.struct([("start", pa.int64()), ("name", pa.string())])), ("list", pa.list_(pa.int16())),
    ("map", pa.map_(pa.string(), pa.int8())),
])  # fmt: skip


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


small = st.integers(-3, 3)
ROW = st.fixed_dictionaries({
    "n": maybe(small), "x": maybe(st.sampled_from([0.0, -0.0, 1.5, 1e300])), "flag": maybe(st.booleans()),
    "text": maybe(st.sampled_from(["", "a", "ab", "None", "é"])), "raw": maybe(st.binary(max_size=2)),
    "amount": maybe(small.map(Decimal)), "when": maybe(small),
    "window": maybe(st.fixed_dictionaries({"start": maybe(small), "name": maybe(st.sampled_from(["", "a"]))})),
    "list": maybe(st.lists(maybe(small), max_size=2)),
    "map": maybe(st.lists(st.tuples(st.sampled_from("ab"), maybe(small)), max_size=1)),
})  # fmt: skip
ROWS = st.lists(ROW, max_size=6)


def cut(rows: list[dict[str, object]], at: list[int]) -> list[pa.RecordBatch]:
    """Slices of one batch, so that offsets other than 0 are met."""
    whole = pa.RecordBatch.from_pylist(rows, SCHEMA)
    points = sorted({0, len(rows), *(a % (len(rows) + 1) for a in at)})
    return [whole.slice(a, b - a) for a, b in pairwise(points)]


def told_apart(rows: list[dict[str, object]]) -> list[str]:
    """Rows as text in which 0.0 and -0.0 differ, as their bytes do."""
    return [repr(row) for row in pa.RecordBatch.from_pylist(rows, SCHEMA).to_pylist()]


@settings(max_examples=80, deadline=None)
@given(ROWS, st.lists(st.integers(0, 6), max_size=3), st.lists(st.integers(0, 6), max_size=3))
def test_how_rows_are_cut_makes_no_difference(rows: list[dict[str, object]], one: list[int], other: list[int]) -> None:
    assert fingerprint(cut(rows, one)).digests() == fingerprint(cut(rows, other)).digests()


@settings(max_examples=150, deadline=None)
@given(ROWS, st.data())
def test_fingerprints_are_equal_exactly_if_rows_are(one: list[dict[str, object]], data: st.DataObject) -> None:
    """The other rows differ from the first in one value at most, or are these without one."""
    other = [dict(row) for row in one]
    if other:
        at, column = data.draw(st.integers(0, len(other) - 1)), data.draw(st.sampled_from(SCHEMA.names))
        if data.draw(st.integers(0, 4)):
            other[at][column] = data.draw(ROW)[column]
        else:
            del other[at]
    same = fingerprint(cut(one, [])).digests() == fingerprint(cut(other, [])).digests()
    assert same == (told_apart(one) == told_apart(other))


def test_a_difference_is_named_by_its_column() -> None:
    one = fingerprint([pa.record_batch({"a": [1, 2], "b": ["x", "y"]})])
    other = fingerprint([pa.record_batch({"a": [1, 2], "b": ["y", "x"]})])
    assert differing(one.digests(), other.digests()) == ["b"]
    assert one.rows == other.rows == 2


@pytest.mark.parametrize("kind", [pa.int64(), pa.float32()])
def test_types_are_part_of_it(kind: pa.DataType) -> None:
    one = fingerprint([pa.record_batch({"a": pa.array([0], pa.int32())})])
    assert differing(one.digests(), fingerprint([pa.record_batch({"a": pa.array([0], kind)})]).digests()) == ["a"]


def test_what_lies_below_a_null_does_not_count() -> None:
    dirty = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(bytes(8) + b"\x07" * 8)])
    assert dirty.to_pylist() == [0, None]
    clean = pa.array([0, None], pa.int64())
    made = [fingerprint([pa.RecordBatch.from_arrays([column], ["a"])]).digests() for column in (dirty, clean)]
    assert made[0] == made[1]
    assert Fingerprint().digests() == {}
