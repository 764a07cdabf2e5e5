"""An Iceberg table holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Changes, Sink, Source, iceberg
from holdfast.testing.sinks import Seen, SinkConformance
from tests.s3_server import refusing_server

catalogs = pytest.importorskip("pyiceberg.catalog", reason="needs the extra iceberg")
exceptions = pytest.importorskip("pyiceberg.exceptions")
pytestmark = pytest.mark.slow


def properties(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/tables"}


def rows_of(catalog: dict[str, str], table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        catalogs.load_catalog("default", **catalog).load_table(table).scan().to_arrow().to_pylist()
    )
    return found


class TestIceberg(SinkConformance):
    keyed = False

    def start(self, folder: Path) -> None:
        self.catalog = properties(folder)
        catalogs.load_catalog("default", **self.catalog)  # Makes the catalog's tables: two at once would collide.

    def sink(self, key: Sequence[str]) -> Sink:
        return iceberg("shop.results", catalog=self.catalog, tentative=True, every=0)

    def select(self, key: Sequence[str]) -> list[Seen]:
        try:
            rows = rows_of(self.catalog, "shop.results")
        except exceptions.NoSuchTableError:
            return []
        return [(row["n"], row["v"], row["tentative"]) for row in rows]


def test_every_type_is_kept_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    catalog = properties(tmp_path)
    columns = parse_schema("n bigint, tiny tinyint, d decimal(20,3), many array<struct<a:bigint>>, m map<string,int>")
    row = {"n": 2**62, "tiny": -128, "d": None, "many": [{"a": 1}], "m": [("x", 1)]}
    sink = iceberg("shop.t", catalog=catalog)
    assert sink.resume(Source("s", columns)) is None
    schema = pa.schema([("tuple_id", pa.int64()), ("stime", pa.timestamp("us", "UTC")), *columns])
    rows = pa.Table.from_pylist([{"tuple_id": 1, "stime": 0, **row}], schema=schema)
    sink.apply(Changes(False, rows, rows.slice(0, 0)), "one")
    (found,) = rows_of(catalog, "shop.t")
    assert {name: found[name] for name in row} == row
    assert sink.resume(Source("s", columns)) == "one"
    sink.close()
    with pytest.raises(UsageError, match="holds stream s; got other"):
        iceberg("shop.t", catalog=catalog).resume(Source("other", columns))
    with pytest.raises(SchemaError, match="must have the columns v string"):
        iceberg("shop.t", catalog=catalog).resume(Source("s", parse_schema("n bigint, v string")))
    with pytest.raises(SchemaError, match=r"column n of Iceberg table shop.t must be int .* it is bigint"):
        iceberg("shop.t", catalog=catalog).resume(Source("s", parse_schema("n int")))
    with pytest.raises(UsageError, match=r"must be one that PyIceberg is configured for; it says: .*; write a .pyiceb"):
        iceberg("shop.t", catalog="nosuch").resume(Source("s", columns))
    with pytest.raises(UsageError, match="named with its namespace"):
        iceberg("t", catalog=catalog)


def test_tentative_rows_go_though_the_sink_no_longer_takes_any(tmp_path: Path) -> None:
    catalog, columns = properties(tmp_path), parse_schema("n bigint")
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    sink = iceberg("shop.t", catalog=catalog, tentative=True)
    sink.resume(Source("s", columns))
    sink.apply(Changes(False, rows.slice(0, 0), rows), "one")
    sink.close()
    later = iceberg("shop.t", catalog=catalog)
    assert later.resume(Source("s", columns)) == "one"
    later.apply(Changes(True, rows, rows.slice(0, 0)), "two")
    later.close()
    assert [(row["holdfast_id"], row["tentative"]) for row in rows_of(catalog, "shop.t")] == [(1, False)]


def test_manifests_are_merged_and_what_was_taken_back_stays_so(tmp_path: Path) -> None:
    catalog = properties(tmp_path)
    sink = iceberg("shop.t", catalog=catalog, tentative=True)
    sink.resume(Source("s", parse_schema("n bigint")))
    sink.close()
    table = catalogs.load_catalog("default", **catalog).load_table("shop.t")
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "4"})
    sink.resume(Source("s", parse_schema("n bigint")))
    for n in range(12):
        rows = pa.table({"tuple_id": [n + 1], "stime": pa.array([n], pa.timestamp("us", "UTC")), "n": [n]})
        none, tentative = rows.slice(0, 0), n % 3 == 2
        sink.apply(Changes(n % 3 == 0, none if tentative else rows, rows if tentative else none), str(n))
    sink.close()
    table = table.refresh()
    assert len(table.current_snapshot().manifests(table.io)) < 8
    assert sorted(row["n"] for row in rows_of(catalog, "shop.t")) == [0, 1, 3, 4, 6, 7, 9, 10, 11]


def test_columns_that_a_table_lacks_are_added_on_request_and_its_rows_stay(tmp_path: Path) -> None:
    catalog, stimes = properties(tmp_path), pa.array([0], pa.timestamp("us", "UTC"))
    first = iceberg("shop.t", catalog=catalog)
    first.resume(Source("s", parse_schema("n bigint")))
    rows = pa.table({"tuple_id": [1], "stime": stimes, "n": [1]})
    first.apply(Changes(False, rows, rows.slice(0, 0)), "one")
    wider = Source("s", parse_schema("n bigint, v string, many array<struct<a:bigint>>"))
    with pytest.raises(SchemaError, match=r"must have the columns v string, many array.*add_columns=True"):
        iceberg("shop.t", catalog=catalog).resume(wider)
    second = iceberg("shop.t", catalog=catalog, add_columns=True)
    assert second.resume(wider) == "one"
    with pytest.raises(UsageError, match="another sink has taken over"):
        first.apply(Changes(False, rows, rows.slice(0, 0)), "late")
    more = pa.table({
        "tuple_id": [2], "stime": stimes, "n": [2], "v": ["a"],
        "many": pa.array([[{"a": 3}]], pa.list_(pa.struct([("a", pa.int64())]))),
    })  # fmt: skip
    second.apply(Changes(False, more, more.slice(0, 0)), "two")
    assert second.resume(wider) == "two"
    second.close()
    found = sorted(rows_of(catalog, "shop.t"), key=lambda row: row["holdfast_id"])
    assert [(row["n"], row["v"], row["many"]) for row in found] == [(1, None, None), (2, "a", [{"a": 3}])]
    with pytest.raises(SchemaError, match=r"column v of Iceberg table .* must be bigint"):
        iceberg("shop.t", catalog=catalog, add_columns=True).resume(Source("s", parse_schema("n bigint, v bigint")))
    with pytest.raises(SchemaError, match=r"must have the column tentative from the first row on"):
        iceberg("shop.t", catalog=catalog, tentative=True, add_columns=True).resume(wider)


def test_whose_table_it_is_does_not_depend_on_the_last_commit(tmp_path: Path) -> None:
    catalog, columns = properties(tmp_path), parse_schema("n bigint")
    sink = iceberg("shop.t", catalog=catalog)
    sink.resume(Source("s", columns))
    sink.close()
    table = catalogs.load_catalog("default", **catalog).load_table("shop.t")
    for n in range(2):
        table.append(pa.table({"n": pa.array([n], pa.int64())}))
    table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    with pytest.raises(UsageError, match="holds stream s; got other"):
        iceberg("shop.t", catalog=catalog).resume(Source("other", columns))


def test_who_is_not_let_in_is_told_at_once(tmp_path: Path) -> None:
    """By a catalog, and by the store of the table's files. No retry mends it; each was tried for ever."""
    source = Source("s", parse_schema("n bigint"))
    with refusing_server() as url:
        for status in ("401-x", "403-x"):
            for login in ({"token": "q"}, {"credential": "q:a"}):
                catalog = {"type": "rest", "uri": f"{url}/{status}", "oauth2-server-uri": f"{url}/{status}", **login}
                with pytest.raises(UsageError, match="must be open to us"):
                    iceberg("shop.t", catalog=catalog).resume(source)
        with pytest.raises(PeerError, match="could not be changed"):
            iceberg("shop.t", catalog={"type": "rest", "uri": f"{url}/419-x", "token": "q"}).resume(source)
        store = {
            "warehouse": "s3://403-AccessDenied/tables", "s3.endpoint": url, "s3.access-key-id": "a",
            "s3.secret-access-key": "b", "s3.region": "us-east-1",
        }  # fmt: skip
        with pytest.raises(UsageError, match=r"must be open to us.*ACCESS_DENIED"):
            iceberg("shop.t", catalog=properties(tmp_path) | store).resume(source)


def test_a_table_that_others_filled_keeps_their_rows_and_gets_the_sinks_columns(tmp_path: Path) -> None:
    catalog = properties(tmp_path)
    loaded = catalogs.load_catalog("default", **catalog)
    loaded.create_namespace("shop")
    theirs = pa.table({"n": pa.array([7], pa.int64()), "own": ["mine"]})
    loaded.create_table("shop.t", schema=theirs.schema).append(theirs)
    sink = iceberg("shop.t", catalog=catalog, add_columns=True)
    assert sink.resume(Source("s", parse_schema("n bigint"))) is None
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    sink.apply(Changes(True, rows, rows.slice(0, 0)), "one")
    sink.close()
    found = rows_of(catalog, "shop.t")
    assert sorted((row["n"], row["own"], row["holdfast_id"]) for row in found) == [(1, None, 1), (7, "mine", None)]
