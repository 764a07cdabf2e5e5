"""A table of a SQLite file. The file is put into WAL mode, so that whoever reads it is never in the way.

Types: whole numbers and booleans are integers, times and dates ISO text in UTC, decimals text that loses no digit.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import SchemaError, StorageError, UsageError
from holdfast.sinks.table import Column, TableSink, names_of, plain_case, quote

#: How long it waits for another writer of the file, which may be about something long of its own.
_BUSY_S = 60
#: What passes by itself: somebody writes, the disk is full, or does not answer.
_PASSES = frozenset((
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA,
))  # fmt: skip
_ROWS_AT_ONCE = 10_000


def sqlite(
    path: str | os.PathLike[str],
    table: str,
    *,
    key: Sequence[str] = (),
    tentative: bool = False,
    add_columns: bool = False,
) -> SqliteSink:
    """Keep a table of a SQLite file at what a stream says; it is made if it is not there.

    `key` makes it one row per key, the last one; without it every tuple is a row. `tentative` takes tentative rows as
    well, told apart by a column of that name, and takes them back when they are corrected.
    """
    return SqliteSink(path, table, key, tentative, add_columns)


class SqliteSink(TableSink):
    kind = "sqlite"
    tentative_default = " not null default 0"

    def __init__(
        self, path: str | os.PathLike[str], table: str, key: Sequence[str], tentative: bool, add_columns: bool
    ) -> None:
        super().__init__(table, key, tentative, add_columns)
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None

    @property
    def target(self) -> str:
        return f"table {self.table} of {self._path}"

    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return "integer"
        if pa.types.is_floating(kind):
            return "real"
        if pa.types.is_binary(kind):
            return "blob"
        plain = (pa.types.is_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal)
        return "text" if any(one(kind) for one in plain) else None

    def takes(self, there: str, kind: pa.DataType) -> bool:
        wanted, affinity = self.type_of(kind), affinity_of(there)
        if wanted == "blob" or affinity == "blob":
            return True  # No value is changed there.
        return affinity == wanted or (wanted in ("integer", "real") and affinity == "numeric")

    def connect(self) -> None:
        self.close()
        with _told(self.target):
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute("pragma temp_store = memory")
            self._connection = connection

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "resume first"
        return self._connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._open.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with _told(self.target):
            self._open.execute("begin immediate")
            try:
                yield
                self._open.execute("commit")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._open.execute("rollback")
                raise

    def columns_of(self, table: str) -> list[Column]:
        return [Column(name, kind) for _, name, kind, *_ in self.run(f"pragma table_info({quote(table)})")]

    def unique(self, table: str) -> list[frozenset[str]]:
        found = [frozenset(name for _, name, *_, part in self.run(f"pragma table_info({quote(table)})") if part)]
        for _, index, is_unique, _, partial in self.run(f"pragma index_list({quote(table)})"):
            if is_unique and not partial:
                found.append(frozenset(name for _, _, name in self.run(f"pragma index_info({quote(index)})")))
        return found

    def load(self, table: str, columns: Sequence[str], rows: pa.Table) -> None:
        sql = f"insert into {quote(table)} ({names_of(columns)}) values ({', '.join('?' * len(columns))})"
        for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            values = [self._values(name, column) for name, column in zip(columns, batch.columns, strict=True)]
            self._open.executemany(sql, zip(*values, strict=True))

    def _values(self, name: str, column: pa.Array) -> list[Any]:
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            raise SchemaError(
                f"column {name} of {self.target} must not hold NaN, which SQLite turns into null; a row does; replace "
                "it in the query"
            )
        text = self.type_of(column.type) == "text" and not pa.types.is_string(column.type)
        return list((column.cast(pa.string()) if text else column).to_pylist())

    def quoted(self, table: str) -> str:
        return quote(table)

    def found(self) -> str:
        known = self.run("select name from sqlite_master where type in ('table', 'view')")
        return next((name for (name,) in known if plain_case(name) == plain_case(self.table)), self.table)

    def beside(self, name: str) -> str:
        return name

    def make_stage(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        texts = ", ".join(f"{quote(column)} {kind}" for column, kind in columns)
        self.run(f"create temp table {quote(name)} ({texts})")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def _told(target: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        said = f"SQLite refused to change {target}: {error}"
        if code in _PASSES:
            raise StorageError(f"{said}; nothing of this batch was changed") from error
        raise UsageError(f"{said}; nothing was changed; mend the table or the file") from error


def affinity_of(declared: str) -> str:
    """How SQLite keeps values of a column, by its rules (datatype3, section 3.1)."""
    text = declared.upper()
    if "INT" in text:
        return "integer"
    if any(word in text for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in text or not text:
        return "blob"
    return "real" if any(word in text for word in ("REAL", "FLOA", "DOUB")) else "numeric"
