"""A Delta table holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Changes, Sink, Source, delta
from holdfast.testing.sinks import Seen, SinkConformance

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
pytestmark = pytest.mark.slow


class TestDelta(SinkConformance):
    keyed = False

    def start(self, folder: Path) -> None:
        self.path = folder / "results"

    def sink(self, key: Sequence[str]) -> Sink:
        return delta(self.path, tentative=True, every=0)

    def select(self, key: Sequence[str]) -> list[Seen]:
        if not deltalake.DeltaTable.is_deltatable(str(self.path)):
            return []
        rows = deltalake.DeltaTable(str(self.path)).to_pyarrow_table(columns=["n", "v", "tentative"])
        return [(row["n"], row["v"], row["tentative"]) for row in rows.to_pylist()]


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = delta(path)
    assert first.resume(Source("s", parse_schema("n bigint, many array<struct<a:bigint>>"))) is None
    first.close()
    with pytest.raises(UsageError, match="holds another stream"):
        delta(path).resume(Source("other", parse_schema("n bigint")))
    with pytest.raises(SchemaError, match="must have the columns v string"):
        delta(path).resume(Source("s", parse_schema("n bigint, v string")))
    with pytest.raises(SchemaError, match="must have the columns tentative boolean"):
        delta(path, tentative=True).resume(Source("s", parse_schema("n bigint")))


@pytest.mark.parametrize(("there", "kind"), [(pa.int32(), "int"), (pa.string(), "string"), (pa.float64(), "double")])
def test_a_column_that_would_change_values_is_refused_before_anything_is_written(
    tmp_path: Path, there: pa.DataType, kind: str
) -> None:
    """Rule 4 of a sink: the library would cast in silence."""
    path = tmp_path / "t"
    own = {"holdfast_id": pa.int64(), "holdfast_commit": pa.int64(), "stime": pa.timestamp("us", "UTC"), "n": there}
    deltalake.DeltaTable.create(path, schema=pa.schema(list(own.items())))
    with pytest.raises(SchemaError, match=f"column n of Delta table .* must be bigint for stream s, .* it is {kind}"):
        delta(path).resume(Source("s", parse_schema("n bigint")))
    assert deltalake.DeltaTable(path).version() == 0


def test_tentative_rows_go_though_the_sink_no_longer_takes_any(tmp_path: Path) -> None:
    columns, path = parse_schema("n bigint"), tmp_path / "t"
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    sink = delta(path, tentative=True)
    sink.resume(Source("s", columns))
    sink.apply(Changes(False, rows.slice(0, 0), rows), "one")
    sink.close()
    later = delta(path)
    assert later.resume(Source("s", columns)) == "one"
    later.apply(Changes(True, rows, rows.slice(0, 0)), "two")
    later.close()
    (left,) = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert (left["holdfast_id"], left["tentative"]) == (1, False), "where not tentative finds it"


def test_columns_that_a_table_lacks_are_added_on_request_and_its_rows_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    stimes = pa.array([0], pa.timestamp("us", "UTC"))
    first = delta(path)
    first.resume(Source("s", parse_schema("n bigint")))
    rows = pa.table({"tuple_id": [1], "stime": stimes, "n": [1]})
    first.apply(Changes(False, rows, rows.slice(0, 0)), "one")
    first.close()
    wider = Source("s", parse_schema("n bigint, v string, many array<struct<a:bigint>>"))
    with pytest.raises(SchemaError, match=r"must have the columns v string, many array.*add_columns=True"):
        delta(path).resume(wider)
    second = delta(path, add_columns=True)
    assert second.resume(wider) == "one"
    more = pa.table({
        "tuple_id": [2], "stime": stimes, "n": [2], "v": ["a"],
        "many": pa.array([[{"a": 3}]], pa.list_(pa.struct([("a", pa.int64())]))),
    })  # fmt: skip
    second.apply(Changes(False, more, more.slice(0, 0)), "two")
    assert second.resume(wider) == "two"
    second.close()
    found = sorted(deltalake.DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["holdfast_id"])
    assert [(row["n"], row["v"], row["many"]) for row in found] == [(1, None, None), (2, "a", [{"a": 3}])]
    with pytest.raises(SchemaError, match=r"column v of Delta table .* must be bigint"):
        delta(path, add_columns=True).resume(Source("s", parse_schema("n bigint, v bigint")))
    with pytest.raises(SchemaError, match=r"must have the column tentative from the first row on"):
        delta(path, tentative=True, add_columns=True).resume(wider)


def test_a_table_that_others_filled_keeps_their_rows_and_gets_the_sinks_columns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"n": pa.array([7], pa.int64()), "own": ["mine"]}))
    sink = delta(path, add_columns=True)
    assert sink.resume(Source("s", parse_schema("n bigint"))) is None
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    sink.apply(Changes(True, rows, rows.slice(0, 0)), "one")
    sink.close()
    found = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted((row["n"], row["own"], row["holdfast_id"]) for row in found) == [(1, None, 1), (7, "mine", None)]
