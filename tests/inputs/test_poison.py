"""No value from outside ends the process, or is stored as another one (X5)."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import holdfast
from holdfast.inputs.decode import Decoder
from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema
from holdfast.stream.rows import Columns
from holdfast.stream.tables import table_batch
from holdfast.stream.untrusted import read_arrow

#: Each line is one door that a value can come in by; run in a child, because such a value used to end the process.
DOORS = """
import sys, pathlib, json, decimal, pyarrow as pa, pandas as pd
import holdfast
from holdfast.inputs.decode import Decoder
from holdfast.inputs.feed import DeadLetters, Feed, Line
from holdfast.inputs.http import http_app
from starlette.testclient import TestClient

text, root = sys.argv[1], pathlib.Path(sys.argv[2])
stream = holdfast.open(root).create("s", "m decimal(10,2), l array<decimal(10,2)>", bucket="1s")
with stream.producer() as producer:
    def refused(what):
        try:
            what()
        except holdfast.HoldfastError as error:
            print(json.dumps(str(error)))
            return
        raise SystemExit("it was taken")
    value = decimal.Decimal(text)
    refused(lambda: producer.send({"m": value}))
    refused(lambda: producer.send({"l": [value]}))
    refused(lambda: producer.send_batch(pd.DataFrame({"m": [value], "l": [None]})))
    nothing = pa.array([None], stream.definition.schema[1].type)
    refused(lambda: producer.send_batch(pa.table({"m": [text], "l": nothing})))
    client = TestClient(http_app({"s": producer}), base_url="http://127.0.0.1")
    for body in ({"m": text}, {"l": [text]}):
        answer = client.post("/s", content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
    answer = client.post("/s", content='{"m": %s}' % text, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    with DeadLetters(root / "dead") as dead:
        lines = [json.dumps({"m": text}), '{"m": %s}' % text, json.dumps({"l": ["1.5", text]}), '{"m": 1.5}']
        done = Feed(producer, Decoder(stream.definition.schema, "s"), dead).send(
            [Line(line.encode(), f"line {n}", n) for n, line in enumerate(lines, 1)])
        assert done[:3] == (1, 0, 3), done
    csv = Decoder(stream.definition.schema, "s", "csv", header=["m"])
    refused(lambda: csv.row(text.encode(), "line 9"))
"""


@pytest.mark.parametrize("text", ["1e-10000000", "1e10000000", "-1e-10000000"])
def test_a_decimal_beyond_all_bounds_is_refused_at_every_door(text: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", DOORS, text, str(tmp_path)], capture_output=True, text=True, env=env, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert len(done.stdout.splitlines()) == 5
    dead = [json.loads(line) for line in (tmp_path / "dead").read_text().splitlines()]
    assert [d["where"] for d in dead] == ["line 1", "line 2", "line 3"]
    assert all("must be decimal(10,2)" in d["error"] or "must be array" in d["error"] for d in dead)


def test_a_decimal_keeps_every_digit_that_json_has() -> None:
    """A float has sixteen of them."""
    decoder = Decoder(parse_schema("m decimal(20,2), f double"), "s")
    row = decoder.row(b'{"m": 123456789012345678.91, "f": 0.1}', "line 1")
    assert row == {"m": Decimal("123456789012345678.91"), "f": 0.1}
    with pytest.raises(SchemaError, match="2 of them behind the point"):
        decoder.row(b'{"m": 0.001}', "line 1")
    with pytest.raises(SchemaError, match="too large"):
        decoder.row(b'{"f": 1e400}', "line 1")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("a array<bigint>", [1.5]), ("a array<string>", "abc"), ("a struct<p:int>", {"p": 1, "q": 2}),
        ("a struct<p:date>", {"p": dt.datetime(2026, 3, 1, 12)}), ("a float", 1e300), ("a date", 2**31 - 1),
        ("a date", dt.datetime(2026, 3, 1, 12)), ("a timestamp", 2**62), ("a map<string,int>", [("k", 1.5)]),
        ("a timestamp_ntz", dt.datetime(2026, 3, 1, tzinfo=dt.UTC)), ("a bigint", Decimal("1e10000000")),
        ("a bigint", Decimal("sNaN")), ("a bigint", Decimal("0.5")),
        ("a timestamp", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14)))),
        ("a timestamp", pd.Timestamp("2026-03-01T00:00:00.000000001")), ("a timestamp", np.datetime64("NaT")),
        ("a decimal(5,2)", Decimal("1." + "0" * 5000 + "1")), ("a decimal(5,2)", Decimal("NaN")),
        ("a decimal(5,2)", 1000), ("a decimal(5,2)", True), ("a string", "\ud800"),
        # As microseconds these are 1969 and 1970: they wrap around.
        ("a timestamp", np.datetime64(584_554, "Y")), ("a timestamp_ntz", np.datetime64(213_503_982_335, "D")),
        ("a timestamp", np.datetime64(2**60, "s")), ("a binary", "h\u00e9llo"), ("a array<binary>", [b"a", "b"]),
    ],
)  # fmt: skip
def test_a_value_that_its_column_cannot_hold_is_refused(schema: str, value: Any) -> None:
    with pytest.raises(SchemaError, match="stream s: column 'a' must be") as said:
        Columns(parse_schema(schema), "stream s").batch([{"a": value}])
    assert len(str(said.value)) < 400


def test_times_of_coarse_and_fine_units_are_taken_where_they_are_whole_microseconds() -> None:
    values = [np.datetime64("2020"), np.datetime64("2020-01-01T00:00:00.000001000")]
    batch = Columns(parse_schema("a timestamp_ntz"), "stream s").batch([{"a": value} for value in values])
    assert batch.column(0).to_pylist() == [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]


@pytest.mark.parametrize("schema", ["a bigint", "a decimal(5,2)", "a double", "a timestamp", "a array<date>"])
def test_a_number_too_long_to_be_shown_is_refused(schema: str) -> None:
    with pytest.raises(SchemaError, match="column 'a' must be"):
        Columns(parse_schema(schema), "stream s").batch([{"a": 10**5000}])
    with pytest.raises(SchemaError, match="a row must have the columns"):
        Columns(parse_schema(schema), "stream s").batch([10**5000])  # type: ignore[list-item]


def test_zeros_behind_the_point_are_no_reason_to_refuse_or_change_a_decimal() -> None:
    """Arrow made 0.00 of it."""
    batch = Columns(parse_schema("a decimal(5,2)"), "stream s").batch(
        [{"a": Decimal("1." + "0" * 5000)}, {"a": Decimal("0e9")}]
    )
    assert batch.column(0).to_pylist() == [Decimal("1.00"), Decimal("0.00")]


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("a timestamp", pa.array([2**62])), ("a timestamp", pa.array([2**62], pa.timestamp("us", tz="UTC"))),
        ("a array<date>", pa.array([[2**31 - 1]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))),
        ("a boolean", pa.array([5])), ("a float", pa.array([1e300])), ("a bigint", pa.array(["1"])),
        ("a date", pa.array([dt.datetime(2026, 3, 1, 12)])), ("a decimal(5,2)", pa.array([0.125])),
        ("a struct<p:bigint>", pa.array([{"p": 1, "q": 2}])),
        ("a timestamp_ntz", pa.array([dt.datetime(2026, 3, 1, tzinfo=dt.UTC)])),
    ],
)  # fmt: skip
def test_a_table_whose_values_would_change_is_refused(schema: str, column: pa.Array) -> None:
    with pytest.raises(SchemaError, match="column 'a' must be"):
        table_batch(pa.table({"a": column}), parse_schema(schema), "s")


@pytest.mark.parametrize(("precision", "scale"), [(38, -(2**30)), (38, 77), (38, -1), (5, 6)])
def test_a_decimal_type_that_no_number_has_is_refused(precision: int, scale: int) -> None:
    """Arrow takes the type, and ends the process when it works with it."""
    kind = pa.decimal128(precision, scale)
    table = pa.table({"a": pa.Array.from_buffers(kind, 1, [None, pa.py_buffer((5).to_bytes(16, "little"))])})
    with pytest.raises(SchemaError, match="column 'a' must be"):
        table_batch(table, parse_schema("a decimal(10,2)"), "s")
    with pytest.raises(SchemaError, match="type that Spark knows"):
        parse_schema(table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(SchemaError, match="which no number has"):
        read_arrow(sink.getvalue().to_pybytes(), "body")


@pytest.mark.parametrize("depth", [100, 900, 980, 990, 5000])
def test_json_nested_too_deep_is_refused_in_one_sentence(depth: int) -> None:
    for text in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        with pytest.raises(SchemaError) as said:
            Decoder(parse_schema("b bigint"), "s").row(text, "line 3")
        assert str(said.value).startswith("line 3: ")
        assert "\n" not in str(said.value)
        assert len(str(said.value)) < 300


@pytest.mark.parametrize("depth", [31, 64, 3000, 100_000])
def test_a_schema_nested_too_deep_is_refused_in_one_sentence(depth: int) -> None:
    with pytest.raises(SchemaError, match="nested 30 deep at most"):
        parse_schema("a " + "array<" * depth + "int" + ">" * depth)


def test_the_deepest_schema_that_is_taken_can_be_stored_and_read(tmp_path: Path) -> None:
    text, value = "int", 7
    for _ in range(30):
        text, value = f"map<string,{text}>", [("k", value)]  # type: ignore[assignment]
    stream = holdfast.open(tmp_path).create("s", f"a {text}", bucket="1s")
    with stream.producer() as producer:
        producer.send({"a": value})
    assert [row.values["a"] for row in stream.subscribe().rows(timeout=0)] == [value]


def test_a_schema_of_arrow_nested_too_deep_is_refused_as_well() -> None:
    kind = pa.int32()
    for _ in range(500):
        kind = pa.list_(kind)
    with pytest.raises(SchemaError, match="nested 30 deep at most"):
        parse_schema(pa.schema([("a", kind)]))


def test_a_batch_with_other_columns_is_refused_in_one_line_whatever_they_are_called() -> None:
    other = pa.table({"v\x00\nx": [1], "w" * 5000: [2]})
    with pytest.raises(SchemaError) as refused:
        table_batch(other, parse_schema("a bigint"), "s")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300
