"""A table of a DuckDB file.

DuckDB lets one process write a file, or several read it. So the file is opened for each transaction and closed behind
it, and transactions are `every` (1 s) apart: readers have their turn in between. A reader that stays keeps the sink
waiting; one that comes during a transaction is refused by DuckDB and comes again (T3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.clock import monotonic_us, pause
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import SECOND_US, duration_us
from holdfast.sinks.table import Column, TableSink, names_of, plain_case, quote

#: How long it waits for others to let go of the file, and how often it looks.
_BUSY_US, _LOOK_US = 60 * SECOND_US, 20_000
_ROWS = "holdfast_rows"
_HERE = "database_name = current_database() and schema_name = current_schema()"
#: DuckDB compares names without regard to case, but these are texts.
_NAMED = f"lower(table_name) = lower(?) and {_HERE}"
_TIME, _TIME_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.date32(): "DATE",
    _TIME: "TIMESTAMP WITH TIME ZONE", _TIME_NTZ: "TIMESTAMP",
}  # fmt: skip
#: From narrow to wide: each keeps every value of those before it.
_WIDER = (("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), ("FLOAT", "DOUBLE"))


def duckdb(
    path: str | os.PathLike[str],
    table: str,
    *,
    key: Sequence[str] = (),
    tentative: bool = False,
    every: str | int | float = "1s",
    add_columns: bool = False,
) -> DuckdbSink:
    """Keep a table of a DuckDB file at what a stream says; it is made if it is not there. As for `sqlite`; `every` is
    how long to gather between two transactions."""
    return DuckdbSink(path, table, key, tentative, duration_us(every), add_columns)


class DuckdbSink(TableSink):
    kind = "duckdb"
    tentative_default = " default false"  # DuckDB adds no column with a constraint.

    def __init__(
        self, path: str | os.PathLike[str], table: str, key: Sequence[str], tentative: bool, every_us: int,
        add_columns: bool,
    ) -> None:  # fmt: skip
        super().__init__(table, key, tentative, add_columns)
        self._path, self.every_us = Path(path), every_us
        self._connection: Any = None
        self._stage: str | None = None

    @property
    def target(self) -> str:
        return f"table {self.table} of {self._path}"

    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_decimal128(kind):
            return f"DECIMAL({kind.precision},{kind.scale})"
        return _TYPES.get(kind)

    def takes(self, there: str, kind: pa.DataType) -> bool:
        wanted = self.type_of(kind)
        for row in _WIDER:
            if wanted in row:
                return there in row[row.index(wanted) :]
        return there == wanted

    # -- the file ----------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Nothing stays open but during a transaction."""
        self.close()
        if not self._path.absolute().parent.is_dir():
            raise UsageError(
                f"{self.target}: the file must lie in a folder that is there; {self._path.parent} is not; make it, or "
                "name another file"
            )
        self._stage = None

    def _opened(self) -> Any:
        try:
            import duckdb as library
        except ImportError:
            raise UsageError("DuckDB needs the extra: pip install 'holdfast-streams[duckdb]'") from None
        until = monotonic_us() + _BUSY_US
        while True:
            try:
                return library.connect(self._path)
            except library.IOException as error:
                if "lock" not in str(error) or monotonic_us() > until:
                    raise
            pause(_LOOK_US)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._told():
            self._connection = self._opened()
            try:
                if self._stage is not None:
                    self.run(self._stage)
                self.run("begin")
                yield
                self.run("commit")
            finally:
                self.close()  # What was not committed is forgotten.

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """The library's errors as ours."""
        try:
            yield
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb"):
                raise
            said = f"DuckDB refused to change {self.target}: {str(error).splitlines()[0]}"
            passes = "not a valid DuckDB database" not in said
            if passes and type(error).__name__ in ("IOException", "OutOfMemoryException", "TransactionException"):
                raise StorageError(f"{said}; nothing of this batch was changed") from error
            raise UsageError(f"{said}; nothing was changed; mend the table or the file") from error

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(sql, values or None).fetchall()
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the table ---------------------------------------------------------------------------------------------------

    def columns_of(self, table: str) -> list[Column]:
        found = self.run(
            f"select column_name, data_type from duckdb_columns() where {_NAMED} order by column_index", table,
        )  # fmt: skip
        return [Column(name, kind) for name, kind in found]

    def unique(self, table: str) -> list[frozenset[str]]:
        found = self.run(
            f"select constraint_column_names from duckdb_constraints() where {_NAMED} and constraint_type in "
            "('PRIMARY KEY', 'UNIQUE')",
            table,
        )
        indexes = self.run(f"select expressions from duckdb_indexes() where is_unique and {_NAMED}", table)
        return [frozenset(names) for (names,) in found] + [
            frozenset(name.strip().strip("'").strip('"') for name in text.strip("[]").split(",")) for (text,) in indexes
        ]

    def load(self, table: str, columns: Sequence[str], rows: pa.Table) -> None:
        self._connection.register(_ROWS, rows)
        self.run(f"insert into {quote(table)} ({names_of(columns)}) select {names_of(columns)} from {_ROWS}")
        self._connection.unregister(_ROWS)

    def index_tentative(self) -> None:
        """DuckDB has no partial index, and scans quickly."""

    def quoted(self, table: str) -> str:
        return quote(table)

    def found(self) -> str:
        known = self.run(f"select table_name from duckdb_tables() where {_HERE}")
        return next((name for (name,) in known if plain_case(name) == plain_case(self.table)), self.table)

    def beside(self, name: str) -> str:
        return name

    def make_stage(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        texts = ", ".join(f"{quote(column)} {kind}" for column, kind in columns)
        self._stage = f"create temp table {quote(name)} ({texts})"

    def __getstate__(self) -> dict[str, Any]:
        """A description travels to other processes; a connection does not."""
        return {**self.__dict__, "_connection": None}
