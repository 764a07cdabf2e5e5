"""Updates are applied once, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.operators.database import Database, UpdateKernel, read_rows
from tests.postgres_server import postgres_server

SQL = "update stock set left_over = left_over - :n where item = :item"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    found = Database(url)
    with found.transaction() as cursor:
        for table in ("stock", "holdfast_applied"):
            cursor.execute(f"drop table if exists {table}")
        cursor.execute("create table stock (item text primary key, left_over integer)")
        cursor.execute("insert into stock values ('ale', 10), ('bread', 5)")
    return found


def left(database: Database) -> dict[str, int]:
    with database.transaction() as cursor:
        cursor.execute("select item, left_over from stock")
        return dict(cursor.fetchall())


def rows(*given: tuple[str, int]) -> pl.DataFrame:
    return pl.DataFrame(
        [(0, i, item, n) for i, (item, n) in enumerate(given)],
        schema={"_h": pl.Int64, "_t": pl.Int64, "_v0": pl.String, "_v1": pl.Int64},
        orient="row",
    )


def test_a_batch_that_is_executed_again_changes_nothing_and_says_the_same(database: Database) -> None:
    kernel = UpdateKernel(database, SQL, "op", {"item": "_v0", "n": "_v1"}, ("_v0", "_v1"))
    given = rows(("ale", 3), ("cake", 1), ("ale", 2))
    first = kernel.step({}, given, 0, 100)
    assert first.results is not None
    assert first.results["rows"].to_list() == [1, 0, 1]
    again = kernel.step({}, given, 0, 100)
    assert again.results is not None
    assert again.results.equals(first.results)
    assert left(database) == {"ale": 5, "bread": 5}
    kernel.step({}, rows(("bread", 1)), 100, 200)
    assert left(database) == {"ale": 5, "bread": 4}


def test_a_batch_that_was_passed_already_is_refused_and_not_applied_again(database: Database) -> None:
    """A task that slept through a batch, or a checkpoint that went back: both would take the same stock twice."""
    kernel = UpdateKernel(database, SQL, "op", {"item": "_v0", "n": "_v1"}, ("_v0", "_v1"))
    kernel.step({}, rows(("ale", 3)), 0, 100)
    kernel.step({}, rows(("ale", 2)), 100, 200)
    for since, until in ((0, 100), (0, 300), (100, 300)):
        with pytest.raises(StorageError, match="were applied before"):
            kernel.step({}, rows(("ale", 1)), since, until)
    assert left(database) == {"ale": 5, "bread": 5}
    kernel.step({}, rows(("ale", 1)), 200, 300)
    assert left(database) == {"ale": 4, "bread": 5}


@pytest.mark.parametrize("first", [True, False])
def test_attempts_at_once_apply_a_batch_once(database: Database, first: bool) -> None:
    """A task that is taken for dead and one in its place: the second waits for the first, and finds its note."""
    sql = "update stock set left_over = left_over - :n where item = :item"
    if not database.is_sqlite:  # The first is still under way when the second comes.
        sql += " and pg_sleep(0.3) is not null"
    if not first:
        UpdateKernel(database, SQL, "op", {"item": "_v0", "n": "_v1"}, ("_v0",)).step({}, rows(("bread", 1)), -100, 0)
    given, gate = rows(("ale", 3)), threading.Barrier(3)
    found: list[list[int] | Exception] = []

    def attempt() -> None:
        kernel = UpdateKernel(database, sql, "op", {"item": "_v0", "n": "_v1"}, ("_v0", "_v1"))
        gate.wait(30)
        try:
            results = kernel.step({}, given, 0, 100).results
            assert results is not None
            found.append(results["rows"].to_list())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[1], [1], [1]]
    assert left(database) == {"ale": 7, "bread": 5 if first else 4}


def test_a_statement_that_fails_leaves_nothing_behind(database: Database) -> None:
    kernel = UpdateKernel(database, "insert into stock values (:item, :n)", "op", {"item": "_v0", "n": "_v1"}, ("_v0",))
    with pytest.raises(PeerError, match="nothing of this batch"):
        kernel.step({}, rows(("wine", 3), ("ale", 1)), 0, 100)
    assert left(database) == {"ale": 10, "bread": 5}


def test_a_value_never_becomes_part_of_the_statement(database: Database) -> None:
    kernel = UpdateKernel(database, SQL, "op", {"item": "_v0", "n": "_v1"}, ("_v0",))
    kernel.step({}, rows(("ale'; drop table stock; --", 3)), 0, 100)
    assert left(database) == {"ale": 10, "bread": 5}


def test_a_read_gives_every_row_that_is_found(database: Database) -> None:
    given = rows(("ale", 6), ("none", 0), ("any", 4))
    sql = "select item, left_over from stock where left_over > :_v1 order by item"
    places, found = read_rows(database, sql, given, ["_v1"], 2)
    assert [(p, *f) for p, f in zip(places, found, strict=True)] == [
        (0, "ale", 10), (1, "ale", 10), (1, "bread", 5), (2, "ale", 10), (2, "bread", 5)]  # fmt: skip


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(UsageError, match="sqlite"):
        Database("mysql://secret@host")
