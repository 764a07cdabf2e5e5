"""Which columns of a result become a stream, and what is said where that is not what somebody expected."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.diagram import NodeSpec
from holdfast.engine import create_output
from holdfast.host.catalog import HERE, Catalog
from holdfast.host.host import Host
from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema, schema_text
from holdfast.spark.engine import SparkEngine
from holdfast.spark.results import node_columns
from holdfast.stream.definition import Retention

STIME = pa.field("stime", pa.timestamp("us", "UTC"))
HEADER = [pa.field("tuple_type", pa.int8()), pa.field("tuple_id", pa.int64()), STIME]
STREAM = pa.field("stream", pa.string())
OWN = [pa.field("source", pa.string()), pa.field("bytes", pa.int64())]


def node(*inputs: str, **options: Any) -> NodeSpec:
    return NodeSpec("active", inputs, "active", lambda rows: rows, **options)


def test_the_header_of_a_frame_that_is_passed_on_is_left_out() -> None:
    merged = pa.schema([*HEADER, *OWN, STREAM])
    assert node_columns(node("a", "b"), merged).names == ["source", "bytes"]
    assert node_columns(node("a"), pa.schema([*HEADER, *OWN])).names == ["source", "bytes"]


@pytest.mark.parametrize(
    ("inputs", "columns"),
    [(("a", "b"), [STIME, STREAM, *OWN]), (("a",), [*HEADER, *OWN, STREAM])],
    ids=["selected", "made"],
)
def test_a_column_named_stream_is_refused_and_not_left_out(inputs: tuple[str, ...], columns: list[pa.Field]) -> None:
    with pytest.raises(SchemaError, match=r"node active must not have a column 'stream'.*withColumnRenamed"):
        node_columns(node(*inputs), pa.schema(columns))


def test_a_function_that_gives_other_columns_than_declared_is_refused() -> None:
    declared = parse_schema("bytes bigint, source string")
    spec = node("a", output_schema=declared)
    assert node_columns(spec, pa.schema([STIME, *OWN])).equals(declared), "in the declared order"
    with pytest.raises(
        SchemaError, match=r"declares output_schema \(bytes bigint, source string\); its function gives"
    ):
        node_columns(spec, pa.schema([STIME, OWN[0]]))
    with pytest.raises(SchemaError, match="source string, bytes int"):
        node_columns(spec, pa.schema([STIME, OWN[0], pa.field("bytes", pa.int32())]))


def test_a_declared_output_is_there_before_spark_is(tmp_path: Path) -> None:
    app = holdfast.App("netmon", root=tmp_path)

    @app.node(inputs=["s"], output="active", output_schema="source string, n bigint", retain="acknowledged")
    def active(rows: Any) -> Any:
        return rows

    store = holdfast.open(tmp_path)
    store.create("s", "source string", bucket="500ms")
    seen = threading.Event()

    def spark() -> Any:
        assert seen.wait(60)
        raise UsageError("enough was seen")

    async def play() -> None:
        running = asyncio.ensure_future(Host(HERE, Catalog(app.diagram()), tmp_path, SparkEngine(spark)).run())
        while "active" not in store.names():
            await asyncio.sleep(0.01)
        seen.set()
        with pytest.raises(UsageError, match="enough was seen"):
            await running

    asyncio.run(play())
    made = store.open("active").definition
    assert (schema_text(made.schema), made.bucket_us) == ("source string, n bigint", 500_000)
    assert made.retention == Retention(acknowledged=True)


def test_a_node_that_says_what_is_kept_is_heard_also_when_its_output_is_there_already(tmp_path: Path) -> None:
    """It said `retain="all"` before, or the stream was made by hand; a retention by age or size is its owner's."""
    store, columns = holdfast.open(tmp_path), pa.schema(OWN)

    def kept(**options: Any) -> Retention:
        create_output(store, node("a", **options), columns, 1_000_000)
        return store.open("active").definition.retention

    store.create("active", columns, bucket="1s")
    made = store.open("active").definition.id
    assert kept(retain="acknowledged") == Retention(acknowledged=True)
    assert kept() == Retention()
    store.change_retention("active", Retention(age_us=7))
    assert kept(retain="acknowledged") == kept() == Retention(age_us=7)
    assert store.open("active").definition.id == made
