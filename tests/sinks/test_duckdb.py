"""A table of DuckDB holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Sink, Source, duckdb
from holdfast.testing.sinks import Seen, SinkConformance
from tests.inputs.conftest import until

library = pytest.importorskip("duckdb", reason="needs the extra duckdb")
pytestmark = pytest.mark.slow


def read(path: Path, sql: str) -> list[Any]:
    """Between two transactions of the sink; during one, DuckDB lets nobody in."""
    found: list[list[Any]] = []

    def looked() -> bool:
        try:
            with library.connect(path, read_only=True) as connection:
                found.append(connection.execute(sql).fetchall())
        except library.CatalogException:  # No such table yet.
            found.append([])
        except library.IOException:
            return False
        return True

    until(looked, 120)
    return found[0]


class TestDuckdb(SinkConformance):
    def start(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "results.duckdb"

    def sink(self, key: Sequence[str]) -> Sink:
        return duckdb(self.path, "results", key=key, tentative=True, every="20ms")

    def select(self, key: Sequence[str]) -> list[Seen]:
        return read(self.path, "select n, v, tentative from results") if self.path.exists() else []


def test_every_type_is_kept_or_refused_by_name(tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    import pyarrow as pa

    from holdfast.sinks import Changes

    columns = parse_schema("n bigint, x float, d decimal(20,3), day date, at timestamp, b binary, ok boolean, s string")
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    row = (2**62, 0.5, Decimal("12345678901234567.125"), at.date(), at, b"\0\xff", True, "é")
    sink = duckdb(tmp_path / "d", "t")
    sink.resume(Source("s", columns))
    schema = pa.schema([("tuple_id", pa.int64()), ("stime", pa.timestamp("us", "UTC")), *columns])
    rows = pa.Table.from_arrays(
        [pa.array([v], f.type) for v, f in zip((1, at, *row), schema, strict=True)], schema=schema
    )
    sink.apply(Changes(False, rows, rows.slice(0, 0)), "one")
    assert read(tmp_path / "d", "select * exclude (holdfast_id, stime) from t") == [row]
    with pytest.raises(SchemaError, match="duckdb has no type for many"):
        duckdb(tmp_path / "d", "u").resume(Source("s", parse_schema("many array<bigint>")))
    with pytest.raises(SchemaError, match="column n of table t must keep string as it is"):
        duckdb(tmp_path / "d", "t").resume(Source("s", parse_schema("n string")))


def test_rows_of_a_table_that_was_there_are_stable_and_come_back_and_it_is_found_again(tmp_path: Path) -> None:
    import pyarrow as pa

    from holdfast.sinks import Changes

    with library.connect(tmp_path / "d") as connection:
        connection.execute("create table t (shop bigint primary key, n bigint)")
        connection.execute("insert into t values (1, 10)")
        connection.execute("create table u (n bigint)")
    columns = parse_schema("shop bigint, n bigint")
    rows = pa.table({"tuple_id": [1], "stime": pa.array([0], pa.timestamp("us", "UTC")), "shop": [1], "n": [11]})
    sink = duckdb(tmp_path / "d", "t", key=["shop"], tentative=True, add_columns=True)
    sink.resume(Source("s", columns))
    sink.apply(Changes(False, rows.slice(0, 0), rows), "one")
    assert read(tmp_path / "d", "select shop, n, tentative from t") == [(1, 11, True)]
    sink.apply(Changes(True, rows.slice(0, 0), rows.slice(0, 0)), "two")
    assert read(tmp_path / "d", "select shop, n, tentative from t") == [(1, 10, False)]
    sink.close()
    for _ in range(2):  # The second time it has the index of the first.
        plain = duckdb(tmp_path / "d", "u", add_columns=True)
        plain.resume(Source("u", parse_schema("n bigint")))
        plain.close()


def test_a_file_that_cannot_be_one_is_refused_at_once(tmp_path: Path) -> None:
    source = Source("s", parse_schema("n bigint"))
    with pytest.raises(UsageError, match=r"must lie in a folder that is there; .*none is not; make it"):
        duckdb(tmp_path / "none" / "t.duckdb", "t").resume(source)
    (tmp_path / "text").write_text("no database " * 1000)
    with pytest.raises(UsageError, match="not a valid DuckDB database"):
        duckdb(tmp_path / "text", "t").resume(source)
