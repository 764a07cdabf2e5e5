"""A row that came alone has the bytes that Arrow would have written, or goes the way of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema, stored_schema
from holdfast.stream.row_encoder import row_encoder

PLAIN = "a bigint, b int, c string, d double, e boolean, f binary, g smallint, h tinyint"
VALUES = st.tuples(
    st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.text(), st.floats(), st.booleans(),
    st.binary(), st.integers(-(2**15), 2**15 - 1), st.integers(-128, 127),
)  # fmt: skip


def of_arrow(schema: pa.Schema, stime_us: int, row: tuple[Any, ...]) -> bytes:
    arrays = [pa.array([value], field.type) for value, field in zip((stime_us, *row), schema, strict=True)]
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())


@given(row=VALUES, stime_us=st.integers(0, 2**50))
def test_the_bytes_are_those_of_arrow(row: tuple[Any, ...], stime_us: int) -> None:
    schema = stored_schema(parse_schema(PLAIN))
    encoder = row_encoder(schema)
    assert encoder is not None
    assert encoder.encode(stime_us, row) == of_arrow(schema, stime_us, row)
    assert encoder.encode(stime_us, dict(zip(schema.names[1:], row, strict=True))) == of_arrow(schema, stime_us, row)


def test_columns_that_are_not_plain_have_no_encoder() -> None:
    for columns in ("at timestamp", "n decimal(5,2)", "many array<bigint>", "n bigint, x float", "day date"):
        assert row_encoder(stored_schema(parse_schema(columns))) is None


@pytest.mark.parametrize(
    "row",
    [(None, "x"), (2**63, "x"), (1.0, "x"), (True, "x"), (1, b"x"), (1, "\ud800"), (1,), (1, "x", 2), {"n": 1}, "ab",
     {"n": 1, "s": "x", "more": 2}, [1, "x"], (1, "x" * 100_000)],
)  # fmt: skip
def test_a_row_that_is_not_plain_is_left_to_arrow(row: Any) -> None:
    encoder = row_encoder(stored_schema(parse_schema("n bigint, s string")))
    assert encoder is not None
    assert encoder.encode(1, row) is None


def test_rows_one_by_one_are_the_rows_of_a_batch(tmp_path: Path) -> None:
    """Whichever way each of them goes; what does not fit is refused as ever, and changes nothing."""
    store = holdfast.open(tmp_path)
    rows: list[Any] = [(1, "x"), {"n": 2, "s": ""}, (None, "y"), [4, None], {"n": 5}, (6, "é" * 70_000)]
    for name in ("one_by_one", "together"):
        with store.create(name, "n bigint, s string").producer() as producer:
            if name == "together":
                producer.send_many(rows)
                continue
            for row in rows:
                assert producer.send(row).rows == 1
            with pytest.raises(SchemaError, match="column 'n' must be int64"):
                producer.send(("one", "x"))
            with pytest.raises(SchemaError, match="also more"):
                producer.send({"n": 1, "s": "x", "more": 2})
    one, other = ([row.values for row in store.open(n).subscribe().rows()] for n in ("one_by_one", "together"))
    assert one == other
    assert len(one) == len(rows)
