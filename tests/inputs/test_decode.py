"""Text becomes rows, or a sentence that says where and why not."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from holdfast.inputs.decode import Decoder
from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema

ALL = parse_schema(
    "b boolean, t tinyint, l bigint, f double, s string, x binary, d date, at timestamp, loc timestamp_ntz, "
    "m decimal(5,2), a array<int>, r struct<p:int,q:string>, k map<string,int>"
)


def test_every_type_is_read_from_json() -> None:
    text = (
        b'{"b": true, "t": -128, "l": 9007199254740993, "f": 1, "s": "\xc3\xa9", "x": "aGk=", "d": "2026-03-01",'
        b' "at": "2026-03-01T12:00:00Z", "loc": "2026-03-01T12:00:00", "m": 12.25, "a": [1, null],'
        b' "r": {"p": 1}, "k": {"z": 3}}'
    )
    noon = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    assert Decoder(ALL, "s").row(text, "line 1") == {
        "b": True, "t": -128, "l": 9007199254740993, "f": 1.0, "s": "é", "x": b"hi", "d": datetime.date(2026, 3, 1),
        "at": noon, "loc": noon.replace(tzinfo=None), "m": Decimal("12.25"), "a": [1, None], "r": {"p": 1},
        "k": [("z", 3)],
    }  # fmt: skip


def test_every_type_is_read_from_csv() -> None:
    decoder = Decoder(ALL, "s", "csv")
    decoder.header(b"b,t,l,f,s,x,d,at,loc,m,a,k\r\n", "line 1")
    row = decoder.row(b'TRUE,1,,2.5,"a,""b""",aGk=,2026-03-01,0,2026-03-01 00:00,1.5,"[1,2]","{""z"":1}"\r\n', "line 2")
    assert row is not None
    assert row["l"] is None
    assert (row["b"], row["t"], row["f"], row["s"], row["m"]) == (True, 1, 2.5, 'a,"b"', Decimal("1.50"))
    assert row["at"] == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert (row["a"], row["k"]) == ([1, 2], [("z", 1)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "line 7: it must be JSON"),
        (b"[1]", "line 7: a row must be a JSON object"),
        (b'{"zz": 1}', "line 7: .* got also zz"),
        (b'{"l": "1"}', "line 7: column 'l' must be bigint; got \"1\""),
        (b'{"l": 1.5}', "column 'l' must be bigint; got 1.5"),
        (b'{"l": true}', "column 'l' must be bigint; got true"),
        (b'{"t": 128}', "column 't' must be tinyint; got 128 .it must lie between -128 and 127."),
        (b'{"s": 1}', "column 's' must be string"),
        (b'{"x": "?"}', "it must be base64"),
        (b'{"at": "noon"}', "column 'at' must be timestamp"),
        (b'{"at": 1e300}', "column 'at' must be timestamp"),
        (b'{"m": 12345.6}', "column 'm' must be decimal"),
        (b'{"m": "x"}', "column 'm' must be decimal"),
        (b'{"r": {"nope": 1}}', "it has no field 'nope'"),
        (b'{"s": "\xff"}', "line 7: it must be JSON"),
        (b"[" * 100_000, "line 7: it must be JSON"),
    ],
)
def test_what_does_not_fit_is_refused_by_line_and_column(text: bytes, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        Decoder(ALL, "s").row(text, "line 7")


@pytest.mark.parametrize("text", [b"1,2", b"1", b'"open,1,2', b"x,2,3", b"\xff,1,2", b"1,2,1e400"])
def test_a_csv_record_that_does_not_fit_is_refused(text: bytes) -> None:
    decoder = Decoder(parse_schema("l bigint, s string, f double"), "s", "csv", header=["l", "s", "f"])
    with pytest.raises(SchemaError, match="line 7"):
        decoder.row(text, "line 7")


def test_a_csv_header_must_name_columns() -> None:
    with pytest.raises(SchemaError, match="must name columns"):
        Decoder(ALL, "s", "csv").header(b"l,who", "line 1")
