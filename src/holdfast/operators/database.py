"""Read and Update: SQL for every tuple (003 §3.2.3), batched, against SQLite or PostgreSQL.

Rules:
1. Parameters are columns of the tuple, written `:name`; values never become part of the text.
2. A read gives one result per row that the query finds. It sees the database as it is at that moment: replays may
   differ, so a flow that must be repeatable reads what no longer changes.
3. Updates of a batch are one transaction, together with a note of the batch and its outcome in the table
   `holdfast_applied`. A batch that is executed again finds its note, changes nothing and gives the same results (S2).
   One that begins before the noted position, a task that slept through a batch or a query whose checkpoint went back,
   would do again what was done: it is refused.
4. Two attempts at the same batch take turns: the second looks for a note only when the first has committed or is gone.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.model.time import instant_text
from holdfast.operators.state import Blocks, Step

_NAME = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")
_NOTES = """create table if not exists holdfast_applied (
    operator text not null, partition_no integer not null, position_us bigint not null, outcome {bytes} not null,
    primary key (operator, partition_no))"""


@dataclass(frozen=True)
class Database:
    """`sqlite:///path/to/file` or `postgresql://…` (needs the extra `postgres`)."""

    url: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("sqlite:///", "postgresql://")):
            raise UsageError(f"a database is 'sqlite:///file' or 'postgresql://…'; got {self.url.split(':')[0]!r}")

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite:///")

    def prepared(self, sql: str) -> str:
        """The statement in the driver's own way of writing parameters."""
        return sql if self.is_sqlite else _NAME.sub(r"%(\1)s", sql.replace("%", "%%"))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor; what was done with it is committed at the end, or undone."""
        connection: Any
        if self.is_sqlite:
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
            connection.execute("pragma busy_timeout = 60000")
            errors: type[Exception] = sqlite3.Error
        else:
            try:
                import psycopg
            except ImportError:
                raise UsageError("PostgreSQL needs the extra: pip install 'holdfast-streams[postgres]'") from None
            connection, errors = psycopg.connect(self.url, autocommit=True), psycopg.Error
        try:
            cursor = connection.cursor()
            cursor.execute("begin immediate" if self.is_sqlite else "begin")
            yield cursor
            cursor.execute("commit")
        except errors as error:
            raise PeerError(f"the database refused a statement: {error}; nothing of this batch was changed") from error
        finally:
            connection.close()  # An open transaction is rolled back with it.


def parameters(sql: str) -> list[str]:
    return list(dict.fromkeys(_NAME.findall(sql)))


def read_rows(
    database: Database, sql: str, rows: pl.DataFrame, names: Sequence[str], width: int
) -> tuple[list[int], Any]:
    """Which tuple each found row belongs to, and the rows."""
    places: list[int] = []
    found: list[tuple[Any, ...]] = []
    statement = database.prepared(sql)
    with database.transaction() as cursor:
        for i, given in enumerate(rows.select(names).iter_rows(named=True)):
            cursor.execute(statement, given)
            answers = cursor.fetchall()
            if answers and len(answers[0]) != width:
                raise UsageError(f"the query gives {len(answers[0])} columns; {width} were declared")
            found += answers
            places += [i] * len(answers)
    return places, found


class UpdateKernel:
    """Runs the statement for each tuple; the result is the tuple's columns and the number of rows it changed."""

    by_group = True
    stateless = True
    keys: tuple[str, ...] = ("_h",)

    def __init__(self, database: Database, sql: str, operator: str, names: Mapping[str, str], columns: tuple[str, ...]):
        self.database, self.sql, self.operator, self.columns = database, sql, operator, columns
        self.names = dict(names)
        """Parameter → column of the rows."""
        self.partition = 0

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series:
        raise AssertionError("an update has no windows")

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step:
        counts = self._applied(rows, since_us, until_us)
        if not len(rows):
            return Step({}, None, [])
        made = rows.select(pl.col("_t").alias("stime"), *self.columns).with_columns(
            pl.Series("rows", counts, dtype=pl.Int64)
        )
        return Step({}, made, [])

    def _alone(self, cursor: Any, place: dict[str, Any]) -> None:
        """Rule 4. SQLite's transaction has the database to itself already."""
        if self.database.is_sqlite:
            cursor.execute(_NOTES.format(bytes="blob"))
            return
        cursor.execute("select to_regclass('holdfast_applied') is null")
        if cursor.fetchone()[0]:
            # "If not exists" does not help two who make it at once.
            cursor.execute("select pg_advisory_xact_lock(hashtext('holdfast_applied')::bigint)")
            cursor.execute(_NOTES.format(bytes="bytea"))
        cursor.execute(
            self.database.prepared("select pg_advisory_xact_lock(hashtext(:operator), cast(:partition as integer))"),
            place,
        )

    def _applied(self, rows: pl.DataFrame, since_us: int, until_us: int) -> list[int]:
        """Rule 3."""
        db = self.database
        given = [{p: row[c] for p, c in self.names.items()} for row in rows.iter_rows(named=True)]
        with db.transaction() as cursor:
            place = {"operator": self.operator, "partition": self.partition}
            self._alone(cursor, place)
            cursor.execute(db.prepared("select position_us, outcome from holdfast_applied "
                                       "where operator = :operator and partition_no = :partition"), place)  # fmt: skip
            note = cursor.fetchone()
            if note is not None and note[0] == until_us:
                return list(msgspec.msgpack.decode(bytes(note[1]), type=list[int]))
            if note is not None and since_us < note[0]:
                raise StorageError(
                    f"{self.operator}: the tuples of this batch begin at {instant_text(since_us)}, those up to "
                    f"{instant_text(note[0])} were applied before; nothing was changed; restore the query's newest "
                    f"checkpoint, or, to apply everything again, delete the operator's rows from holdfast_applied"
                )
            counts = []
            statement = db.prepared(self.sql)
            for values in given:
                cursor.execute(statement, values)
                counts.append(max(cursor.rowcount, 0))
            cursor.execute(db.prepared(
                "insert into holdfast_applied values (:operator, :partition, :position, :outcome) "
                "on conflict (operator, partition_no) do update set position_us = excluded.position_us, "
                "outcome = excluded.outcome"),
                place | {"position": until_us, "outcome": msgspec.msgpack.encode(counts)})  # fmt: skip
            return counts
