"""Columns of tables are checked and made, values stay what they are, and what cannot be is refused by its name (T3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Changes, Sink, Source, duckdb, sqlite
from holdfast.sinks import postgres as postgres_sink

PLAIN = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, s string, x binary, day date, "
    "at timestamp, local timestamp_ntz, money decimal(12,2)"
)
VALUES: dict[str, list[Any]] = {
    "b": [True, None], "i8": [-128, None], "i16": [32767, None], "i32": [-(2**31), None], "i64": [2**63 - 1, None],
    "f": [0.5, None], "d": [0.1, None], "s": ['a "quoted", \\line\nend', ""], "x": [b"\x00\xff", None],
    "day": [date(2026, 3, 1), None], "at": [datetime(2026, 3, 1, 12, 0, 0, 1, UTC), None],
    "local": [datetime(2026, 3, 1, 12), None], "money": [Decimal("1234567890.12"), None],
}  # fmt: skip


class Base:
    """A database, for what all have to do."""

    def __init__(self, make: Callable[..., Sink], ask: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.make, self.ask = make, ask


@pytest.fixture(params=["sqlite", "postgres", "duckdb"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    if request.param == "sqlite":
        path = tmp_path / "base.db"

        def ask(sql: str) -> list[tuple[Any, ...]]:
            connection = sqlite3.connect(path)
            with connection:
                return connection.execute(sql).fetchall()

        return Base(lambda table, **options: sqlite(path, table, **options), ask)
    if request.param == "duckdb":
        library = pytest.importorskip("duckdb", reason="needs the extra duckdb")
        file = tmp_path / "base.duckdb"

        def ask_file(sql: str) -> list[tuple[Any, ...]]:
            with library.connect(file) as connection:
                connection.execute("set timezone = 'UTC'")
                return list(connection.execute(sql).fetchall())

        return Base(lambda table, **options: duckdb(file, table, every=0, **options), ask_file)
    url = request.getfixturevalue("postgres")
    psycopg = pytest.importorskip("psycopg")

    def ask_server(sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True, options="-c timezone=UTC") as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    # Each test finds a server without the tables of those before it.
    ask_server("drop schema public cascade")
    ask_server("create schema public")
    return Base(lambda table, **options: postgres_sink(url, table, **options), ask_server)


def quote(name: str) -> str:
    """Some of the names are words of the one or the other."""
    return f'"{name}"'


def source(columns: str) -> Source:
    return Source("s", parse_schema(columns))


def rows(schema: pa.Schema, first_id: int = 1, **columns: list[Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    header = {
        "tuple_id": pa.array(range(first_id, first_id + count), pa.int64()),
        "stime": pa.array(range(count), pa.timestamp("us", tz="UTC")),
    }
    return pa.table({**header, **{f.name: pa.array(columns[f.name], f.type) for f in schema}})


def stable(schema: pa.Schema, **columns: list[Any]) -> Changes:
    found = rows(schema, **columns)
    return Changes(False, found, found.slice(0, 0))


def test_every_plain_type_comes_out_as_it_went_in(base: Base) -> None:
    src = source(PLAIN)
    sink = base.make("t")
    assert sink.resume(src) is None
    sink.apply(stable(src.columns, **VALUES), "here")
    sink.close()
    first, second = base.ask(f"select {', '.join(map(quote, VALUES))} from t order by holdfast_id")
    given = {name: values[0] for name, values in VALUES.items()}
    if sink.kind == "sqlite":
        given |= {"b": 1, "day": "2026-03-01", "at": "2026-03-01 12:00:00.000001Z",
                  "local": "2026-03-01 12:00:00.000000", "money": "1234567890.12"}  # fmt: skip
    assert first == tuple(given.values())
    assert second == tuple("" if name == "s" else None for name in VALUES), "null is not the empty text"
    again = base.make("t")
    assert again.resume(src) == "here"
    again.close()


@pytest.mark.parametrize("kind", ["array<bigint>", "map<string,bigint>", "struct<a:bigint>"])
def test_a_type_that_a_database_lacks_is_named(base: Base, kind: str) -> None:
    with pytest.raises(SchemaError, match=rf"has no type for many \({kind}\)"):
        base.make("t").resume(source(f"n bigint, many {kind}"))


def test_a_missing_column_is_refused_and_added_on_request(base: Base) -> None:
    base.ask("create table t (holdfast_id bigint primary key, n bigint, own text default 'mine')")
    src = source("n bigint, v string")
    with pytest.raises(SchemaError, match=r"table t must have the columns v \((text|VARCHAR)\).*add_columns=True"):
        base.make("t").resume(src)
    sink = base.make("t", add_columns=True)
    assert sink.resume(src) is None
    sink.apply(stable(src.columns, n=[1], v=["a"]), "p")
    sink.close()
    assert base.ask("select n, v, own from t") == [(1, "a", "mine")]


def test_a_column_that_would_change_values_is_refused(base: Base) -> None:
    base.ask("create table t (holdfast_id bigint primary key, n text)")
    with pytest.raises(SchemaError, match="column n of table t must keep bigint as it is"):
        base.make("t").resume(source("n bigint"))


def test_a_column_for_the_time_that_would_change_it_is_refused(base: Base) -> None:
    base.ask("create table t (holdfast_id bigint primary key, n bigint, stime integer)")
    with pytest.raises(SchemaError, match="column stime of table t must keep timestamp as it is"):
        base.make("t").resume(source("n bigint"))


def test_a_table_without_a_unique_key_is_refused(base: Base) -> None:
    base.ask("create table t (n bigint, v bigint)")
    with pytest.raises(SchemaError, match=r"unique index on \(n\)"):
        base.make("t", key=["n"]).resume(source("n bigint, v bigint"))


def test_a_table_of_another_stream_or_shape_is_refused(base: Base) -> None:
    sink = base.make("t")
    sink.resume(source("n bigint"))
    sink.close()
    with pytest.raises(UsageError, match="holds stream s"):
        base.make("t").resume(Source("other", parse_schema("n bigint")))
    with pytest.raises(UsageError, match="was made with key="):
        base.make("t", key=["n"]).resume(source("n bigint"))


def say(sink: Sink, position: str, undo: bool, solid: dict[int, str], guess: dict[int, str]) -> None:
    schema = parse_schema("k bigint, v string")
    parts = (rows(schema, k=list(part), v=list(part.values())) for part in (solid, guess))
    sink.apply(Changes(undo, *parts), position)


def one_of_two_names(base: Base, first: str, second: str) -> None:
    """Whoever opens the table under the second name goes on where the first one was, and replaces it."""
    src = source("k bigint, v string")
    sink = base.make(first, key=["k"], tentative=True)
    assert sink.resume(src) is None
    say(sink, "here", False, {1: "a"}, {1: "A?"})
    other = base.make(second, key=["k"], tentative=True)
    assert other.resume(src) == "here"
    with pytest.raises(UsageError, match="another sink has taken over"):
        say(sink, "late", False, {1: "x"}, {})
    sink.close()
    say(other, "there", True, {2: "b"}, {})
    other.close()
    assert sorted(base.ask(f"select k, v from {second}")) == [(1, "a"), (2, "b")]
    again = base.make(first, key=["k"], tentative=True)
    assert again.resume(src) == "there"
    again.close()
    with pytest.raises(UsageError, match="holds stream s"):
        base.make(second, key=["k"], tentative=True).resume(Source("other", src.columns))


def test_two_names_of_one_table_are_one_target(base: Base) -> None:
    """T1: they had a writer each, mixed by key in silence, and took back each other's tentative rows."""
    one_of_two_names(base, *(("t", "public.t") if base.make("t").kind == "postgres" else ("T", "t")))


def test_two_entries_of_one_table_are_refused(base: Base) -> None:
    src, (first, second) = source("k bigint"), (("t", "public.t") if base.make("t").kind == "postgres" else ("T", "t"))
    sink = base.make(first, key=["k"])
    sink.resume(src)
    sink.close()
    base.ask(
        f"insert into holdfast_sinks select '{second}', stream, key, tentative, writer, position from holdfast_sinks"
    )
    with pytest.raises(UsageError, match="must be registered once; it is as"):
        base.make(first, key=["k"]).resume(src)
    base.ask(f"delete from holdfast_sinks where target = '{first}'")
    sink.resume(src)
    sink.close()


def test_a_table_of_another_schema_of_the_search_path_has_one_entry_whoever_names_it(postgres: str) -> None:
    """What was registered beside its search path, before tables were looked up, is found there; what is new as well."""
    psycopg = pytest.importorskip("psycopg")
    for old in (True, False):
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("drop schema if exists app cascade")
            connection.execute("drop schema public cascade")
            connection.execute("create schema public create table t (k bigint primary key, v text, tentative boolean)")
            connection.execute("create schema app")

            def ask(sql: str, connection: Any = connection) -> list[tuple[Any, ...]]:
                found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
                return found

            def make(table: str, old: bool = old, **options: Any) -> Sink:
                path = "?options=-c%20search_path%3Dapp,public" if old or "." not in table else ""
                return postgres_sink(f"{postgres}{path}", table, **options)

            if old:
                sink = make("t", key=["k"], tentative=True)
                sink.resume(source("k bigint, v string"))
                sink.close()
                connection.execute("update app.holdfast_sinks set target = 't'")
            one_of_two_names(Base(make, ask), "t", "public.t")
            assert ask("select to_regclass('public.holdfast_sinks')") == [(None,)], "one registry"
            connection.execute("drop schema app cascade")


def test_a_table_that_was_dropped_without_its_position_is_not_filled_from_the_middle(base: Base) -> None:
    src = source("n bigint, v string")
    sink = base.make("t", tentative=True)
    sink.resume(src)
    found = rows(src.columns, n=[1], v=["a"])
    sink.apply(Changes(False, found, found), "here")
    sink.close()
    base.ask("delete from holdfast_sinks")
    again = base.make("t", tentative=True)
    assert again.resume(src) is None
    again.close()
    assert base.ask("select holdfast_id from t") == [(1,)], "nothing tentative is left from before"
    base.ask("update holdfast_sinks set position = 'here'")
    base.ask("drop table t")
    with pytest.raises(UsageError, match="table t is gone"):
        base.make("t", tentative=True).resume(src)


def test_names_and_values_never_become_sql(base: Base) -> None:
    """X3."""
    src = source('`a"; drop table t; --` string')
    sink = base.make('we"ird; --')
    sink.resume(src)
    sink.apply(stable(src.columns, **{src.columns.names[0]: ["'); drop table x; --"]}), "p")
    sink.close()
    assert base.ask('select "a""; drop table t; --" from "we""ird; --"') == [("'); drop table x; --",)]


def test_of_equal_keys_in_one_transaction_the_last_counts_and_null_is_refused(base: Base) -> None:
    src = source("k bigint, v string")
    sink = base.make("t", key=["k"], tentative=True)
    sink.resume(src)
    sink.apply(stable(src.columns, k=[1, 2, 1], v=["a", "b", "c"]), "p")
    assert sorted(base.ask("select k, v from t")) == [(1, "c"), (2, "b")]
    with pytest.raises(SchemaError, match="part of the key"):
        sink.apply(stable(src.columns, k=[None], v=["x"]), "q")
    sink.close()


def test_a_tentative_row_covers_a_stable_one_which_comes_back(base: Base) -> None:
    """T1, by key: also where the stable row beneath changes meanwhile, and columns of others stay."""
    base.ask("create table t (k bigint primary key, v text, tentative boolean, own text default 'mine')")
    src = source("k bigint, v string")
    sink = base.make("t", key=["k"], tentative=True)
    sink.resume(src)

    def say(undo: bool, solid: dict[int, str], guess: dict[int, str]) -> list[tuple[Any, ...]]:
        parts = (rows(src.columns, k=list(part), v=list(part.values())) for part in (solid, guess))
        sink.apply(Changes(undo, *parts), "p")
        return sorted((k, v, bool(t)) for k, v, t in base.ask("select k, v, tentative from t"))

    assert say(False, {1: "a", 2: "b"}, {}) == [(1, "a", False), (2, "b", False)]
    base.ask("update t set own = 'changed' where k = 2")
    assert say(False, {}, {2: "B?", 3: "C?"}) == [(1, "a", False), (2, "B?", True), (3, "C?", True)]
    assert say(False, {}, {2: "BB?"}) == [(1, "a", False), (2, "BB?", True), (3, "C?", True)]
    assert say(False, {1: "aa", 2: "bb"}, {}) == [(1, "aa", False), (2, "BB?", True), (3, "C?", True)]
    assert say(True, {}, {}) == [(1, "aa", False), (2, "bb", False)]
    assert base.ask("select own from t where k = 2") == [("changed",)]
    sink.close()


def test_sqlite_refuses_nan_instead_of_making_it_null(tmp_path: Path) -> None:
    src = source("d double")
    sink = sqlite(tmp_path / "a.db", "t")
    sink.resume(src)
    with pytest.raises(SchemaError, match="must not hold NaN"):
        sink.apply(stable(src.columns, d=[float("nan")]), "p")
    sink.close()


def test_errors_that_may_pass_are_told_from_those_that_cannot(tmp_path: Path, postgres: str) -> None:
    nobody = postgres.replace("test@", "nobody_here@")
    with pytest.raises(UsageError, match="does not exist"):
        postgres_sink(nobody, "t").resume(source("n bigint"))
    with pytest.raises(PeerError, match="refused"):
        postgres_sink("postgresql://test@127.0.0.1:1/postgres", "t").resume(source("n bigint"))
    with pytest.raises(UsageError, match="unable to open"):
        sqlite(tmp_path / "no" / "such" / "folder.db", "t").resume(source("n bigint"))
