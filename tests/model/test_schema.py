from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema, reader_schema, schema_text, stored_schema

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda n: n not in ("tuple_type", "tuple_id", "stime", "stream")
)
SIMPLE = st.sampled_from(
    ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
     "timestamp_ntz", "decimal(10,2)", "decimal(38,38)"]
)  # fmt: skip
TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map("array<{}>".format),
        st.tuples(SIMPLE, inner).map(lambda kv: f"map<{kv[0]},{kv[1]}>"),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda fields: f"struct<{','.join(f'{n}:{t}' for n, t in fields.items())}>"
        ),
    ),
    max_leaves=5,
)


@given(st.dictionaries(NAMES, TYPES, min_size=1, max_size=5))
def test_schema_text_reads_back_as_the_same_schema(columns: dict[str, str]) -> None:
    text = ", ".join(f"{n} {t}" for n, t in columns.items())
    schema = parse_schema(text)
    assert schema_text(schema) == text
    assert parse_schema(schema_text(schema)).equals(schema)
    assert parse_schema(columns).equals(schema)
    assert parse_schema(schema).equals(schema)


def test_a_name_that_needs_quotes_is_quoted_in_the_text() -> None:
    schema = parse_schema("`bytes sent` bigint, `größe` double")
    assert schema.names == ["bytes sent", "größe"]
    assert parse_schema(schema_text(schema)).equals(schema)


@pytest.mark.parametrize(
    "text",
    ["", "a", ", a bigint", "a bigint b int", "a nothing", "a array<int", "a decimal(a,2)", "a decimal(99,2)",
     "a decimal(3", "a;b int", "< int", "a int, a int", "stime timestamp", "tuple_id bigint", "stream string",
     "a map<int>", "a struct<>", "a decimal(3,-1)", "a decimal(2,3)", "1 int"],
)  # fmt: skip
def test_text_that_is_no_schema_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_schema(text)


@given(st.text(max_size=30))
def test_any_text_is_a_schema_or_a_schema_error(text: str) -> None:
    with contextlib.suppress(SchemaError):
        assert len(parse_schema(text)) > 0


@pytest.mark.parametrize(
    "schema",
    [pa.schema([("a", pa.uint8())]), pa.schema([("a", pa.dictionary(pa.int32(), pa.string()))]),
     pa.schema([("a", pa.list_(pa.time64("us")))]), pa.schema([]), {"a": 7}, 7, None, {"a": "int", "b": pa.uint64()}],
)  # fmt: skip
def test_types_that_spark_does_not_know_are_refused(schema: object) -> None:
    with pytest.raises(SchemaError):
        parse_schema(schema)  # type: ignore[arg-type]


def test_the_header_precedes_the_users_columns() -> None:
    user = parse_schema("a int")
    assert stored_schema(user).names == ["stime", "a"]
    assert reader_schema(user).names == ["tuple_type", "tuple_id", "stime", "a"]
