"""A Delta table holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Changes, Sink, Source, delta
from holdfast.stream.position import Position
from holdfast.testing.sinks import Seen, SinkConformance
from tests.s3_server import refusing_server

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


def commits_of_others(path: Path) -> None:
    """As somebody else makes them: rows of his own, and smaller files into one."""
    table = deltalake.DeltaTable(path)
    for n in range(2):
        deltalake.write_deltalake(table, pa.table({"n": pa.array([n], pa.int64())}), mode="append", schema_mode="merge")
    table.optimize.compact()
    assert "holdfast.position" not in table.history(1)[0]


def test_whose_table_it_is_does_not_depend_on_the_last_commit(tmp_path: Path) -> None:
    """T1: a second stream was let in behind any commit of somebody else's, and its UNDO took the rows of the first."""
    path, source = tmp_path / "t", Source("s", parse_schema("n bigint"))
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    sink = delta(path, tentative=True)
    sink.resume(source)
    commits_of_others(path)
    other = delta(path, tentative=True)
    with pytest.raises(UsageError, match="holds another stream; got other"):
        other.resume(Source("other", source.columns))
    position = Position(1, 1, 0, tentative=True).text("s", 1)
    sink.apply(Changes(False, rows.slice(0, 0), rows), position)
    commits_of_others(path)
    table = deltalake.DeltaTable(path)
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.cleanup_metadata()
    with pytest.raises(UsageError, match="holds another stream; got other"):
        other.resume(Source("other", source.columns))
    assert -1 in deltalake.DeltaTable(path).to_pyarrow_table().column("holdfast_id").to_pylist()


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_of_an_earlier_version_is_known_by_its_history_or_its_rows(tmp_path: Path, rows: int) -> None:
    """It has the transaction of its stream alone."""
    path, columns = tmp_path / "t", parse_schema("n bigint")
    own = {
        "holdfast_id": pa.int64(),
        "holdfast_commit": pa.int64(),
        "stime": pa.timestamp("us", "UTC"),
        **{"n": pa.int64()},
    }
    position = Position(1, 1, 0).text("s", 1) if rows else ""
    written = pa.table({name: pa.array([1] * rows, kind) for name, kind in own.items()})
    deltalake.DeltaTable.create(path, schema=written.schema)
    deltalake.write_deltalake(
        deltalake.DeltaTable(path), written, mode="append", commit_properties=deltalake.CommitProperties(
            custom_metadata={"holdfast.position": position},
            app_transactions=[deltalake.Transaction("holdfast-sink-s", 1)],
        ),
    )  # fmt: skip
    commits_of_others(path)
    other = delta(path)
    with pytest.raises(UsageError, match="holds another stream; got other"):
        other.resume(Source("other", columns))
    if rows:
        other._noted = lambda: None  # type: ignore[method-assign]  # As where the history was cleaned.
        with pytest.raises(UsageError, match="holds another stream; got other"):
            other.resume(Source("other", columns))
    sink = delta(path)
    assert sink.resume(Source("s", columns)) == (position or None)
    sink.close()
    assert deltalake.DeltaTable(path).transaction_version("holdfast-sink") == 2


def test_who_is_not_let_in_is_told_at_once(tmp_path: Path) -> None:
    """No retry mends it; each was tried for ever."""
    with refusing_server() as url:
        storage = {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        for bucket in ("403-AccessDenied", "401-Unauthorized", "403-SignatureDoesNotMatch"):
            with pytest.raises(UsageError, match=r"must be open to us.*Generic S3 error: .* 40[13] "):
                delta(f"s3://{bucket}/t", storage=storage).resume(Source("s", parse_schema("n bigint")))
        with pytest.raises(PeerError, match="RequestTimeTooSkewed"):
            delta("s3://403-RequestTimeTooSkewed/t", storage=storage).resume(Source("s", parse_schema("n bigint")))


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
