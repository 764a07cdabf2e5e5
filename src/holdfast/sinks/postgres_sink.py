"""A table of PostgreSQL. Rows come by COPY: straight into the table without a key, into a temporary one with.

Errors: what PostgreSQL says of a connection, a lock, a shutdown or a lack of room may pass. A password, a name, a
right, a value or a constraint will be the same at every attempt.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv

from holdfast.inputs.postgres_client import REFUSALS
from holdfast.model.errors import PeerError, UsageError
from holdfast.sinks.table import REGISTRY, Column, TableSink, names_of, quote

#: Classes of SQLSTATE that may pass: connections, transactions rolled back by the server, no room, wrong state of an
#: object (locks), somebody intervened (shutdown, cancel), system error.
_PASSES = ("08", "40", "53", "55", "57", "58")
#: PostgreSQL cuts names to 63 bytes, and ours beside the table are longer than its own.
_NAME_BYTES_MAX = 40
#: Encoded at a time: the server works on one piece while the next is made.
_ROWS_AT_ONCE = 16_384
#: A server that cannot be reached is given up after this long, and tried again.
_CONNECT_S = 10


def postgres(
    url: str, table: str, *, key: Sequence[str] = (), tentative: bool = False, add_columns: bool = False
) -> PostgresSink:
    """Keep a table of PostgreSQL at what a stream says (extra `postgres`); it is made if it is not there.

    `url` is as libpq takes it; a password is better kept in a service or password file than in a program. `table` may
    name a schema, as in `reports.totals`. `key` makes it one row per key, the last one; without it every tuple is a
    row. `tentative` takes tentative rows as well, told apart by a column of that name, and takes them back when they
    are corrected.
    """
    return PostgresSink(url, table, key, tentative, add_columns)


class PostgresSink(TableSink):
    kind = "postgres"

    def __init__(self, url: str, table: str, key: Sequence[str], tentative: bool, add_columns: bool) -> None:
        super().__init__(table, key, tentative, add_columns)
        if not url.startswith(("postgresql://", "postgres://")):
            raise UsageError(f"the address must look like postgresql://user@host/database; got {url.split(':')[0]!r}")
        try:
            urlsplit(url)
        except ValueError:  # Its words may hold a password.
            raise UsageError(
                "the address must look like postgresql://user@host/database, with special characters escaped; got one "
                "that cannot be read"
            ) from None
        if table.count(".") > 1:
            raise UsageError(f"the table must be a name, or schema.name; got {table!r}")
        if len(table.rpartition(".")[2].encode()) > _NAME_BYTES_MAX:
            raise UsageError(f"the name of a table must have {_NAME_BYTES_MAX} bytes at most; got {table!r:.100}")
        self._url = url
        #: The schema in which tables are made that are named without one.
        self._first = ""
        self._connection: Any = None

    @property
    def target(self) -> str:
        parts = urlsplit(self._url)
        where = f"{parts.hostname or 'this machine'}{parts.path}"
        return f"table {self.table} of {where}"

    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        return _TYPES.get(kind)

    def takes(self, there: str, kind: pa.DataType) -> bool:
        if pa.types.is_decimal(kind):
            precision, _, scale = there.removeprefix("numeric").strip("()").partition(",")
            if there == "numeric":
                return True
            return there.startswith("numeric(") and int(scale or 0) >= kind.scale and (
                int(precision) - int(scale or 0) >= kind.precision - kind.scale
            )  # fmt: skip
        if pa.types.is_string(kind) and there.startswith("character varying"):
            return True  # What is too long is refused, never cut.
        return there in _TAKEN.get(kind, (self.type_of(kind),))

    def connect(self) -> None:
        self.close()
        try:
            import psycopg
        except ImportError:
            raise UsageError("PostgreSQL needs the extra: pip install 'holdfast-streams[postgres]'") from None
        with self._told():
            self._connection = psycopg.connect(
                self._url, autocommit=True, connect_timeout=_CONNECT_S, application_name="holdfast-sink",
                keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=30_000,
                prepare_threshold=2,
            )  # fmt: skip

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        # Names may hold a percent sign, which is the driver's own.
        cursor = self._connection.execute(sql.replace("%", "%%").replace("?", "%s") if values else sql, values or None)
        return cursor.fetchall() if cursor.description is not None else []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._told(), self._connection.transaction():
            yield

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """The driver's errors as ours."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or ""
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            said = f"PostgreSQL refused to change {self.target}: {first}"
            refused = any(words in str(error) for words in REFUSALS)
            lost = isinstance(error, psycopg.OperationalError) and not state and not refused
            if state[:2] in _PASSES or lost:
                raise PeerError(f"{said}; nothing of this batch was changed") from error
            raise UsageError(f"{said}; nothing was changed; mend the table, the value or the rights") from error

    def columns_of(self, table: str) -> list[Column]:
        return [
            Column(name, kind)
            for name, kind in self.run(
                "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
                "where attrelid = to_regclass(?) and attnum > 0 and not attisdropped order by attnum",
                self.quoted(table),
            )
        ]

    def unique(self, table: str) -> list[frozenset[str]]:
        found = self.run(
            "select array_agg(a.attname::text) from pg_index i join pg_attribute a on a.attrelid = i.indrelid "
            "and a.attnum = any(i.indkey) where i.indrelid = to_regclass(?) and i.indisunique and i.indpred is null "
            "and i.indexprs is null group by i.indexrelid",
            self.quoted(table),
        )
        return [frozenset(names) for (names,) in found]

    def load(self, table: str, columns: Sequence[str], rows: pa.Table) -> None:
        options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
        sql = f"copy {self.quoted(table)} ({names_of(columns)}) from stdin (format csv)"
        with self._connection.cursor().copy(sql) as copy:
            for first in range(0, rows.num_rows, _ROWS_AT_ONCE):
                piece = io.BytesIO()
                pa.csv.write_csv(plain(rows.slice(first, _ROWS_AT_ONCE)), piece, options)
                copy.write(piece.getbuffer())

    def quoted(self, table: str) -> str:
        schema, dot, name = table.rpartition(".")
        return f"{quote(schema)}.{quote(name)}" if dot else quote(name)

    def beside(self, name: str) -> str:
        ours = self._entry[0].rpartition(".")[0] or self.table.rpartition(".")[0] or self._first
        return f"{ours}.{name}" if ours else name

    def found(self) -> str:
        self._first = self.run("select current_schema()::text")[0][0] or ""
        return self._resolved(self.table)

    def _resolved(self, table: str) -> str:
        """With its schema: the one in which the server finds it, or would make it."""
        known = self.run(
            "select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where c.oid = to_regclass(?)", self.quoted(table),
        )  # fmt: skip
        schema, _, name = table.rpartition(".")
        return f"{known[0][0] if known else schema or self._first}.{name}"

    def registries(self) -> list[str]:
        """All that we may read: with another search path the same table is registered in another schema."""
        schemas = self.run(
            "select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relname = ? "
            "and c.relkind = 'r' and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')",
            REGISTRY,
        )
        return [f"{schema}.{REGISTRY}" for (schema,) in schemas]

    def means(self, registry: str, target: str) -> bool:
        schema = registry.rpartition(".")[0]
        if "." not in target:
            target = self._resolved(target) if schema == self._first else f"{schema}.{target}"
        return target == self._place

    @property
    def bare(self) -> str:
        return self.table.rpartition(".")[2]

    def new_entry(self) -> str:
        # Without a schema a name is taken for that of a table in the registry's.
        return self.table if self._place == self.beside(self.bare) else self._place

    def take_turns(self) -> None:
        # Two that create the same table at once: one would be refused, although "if not exists" was said.
        self.run("select pg_advisory_xact_lock(hashtext('holdfast_sinks'))")

    def clear(self, stage: str) -> None:
        self.run(f"truncate {stage}")  # Deleted rows would stay until a vacuum, and temporary tables get none.

    def make_stage(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        texts = ", ".join(f"{quote(column)} {kind}" for column, kind in columns)
        self.run(f"create temp table {quote(name)} ({texts})")

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def __getstate__(self) -> dict[str, Any]:
        """A description travels to other processes; a connection does not."""
        return {**self.__dict__, "_connection": None}


def plain(rows: pa.Table) -> pa.Table:
    """The same rows in types that Arrow writes as CSV just as PostgreSQL reads them."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            hexed = [None if v is None else "\\x" + v.hex() for v in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.array(hexed, pa.string()))
        elif pa.types.is_decimal(field.type):
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.string()))
    return rows


_TIME, _TIME_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint",
    pa.float32(): "real", pa.float64(): "double precision", pa.string(): "text", pa.binary(): "bytea",
    pa.date32(): "date", _TIME: "timestamp with time zone", _TIME_NTZ: "timestamp without time zone",
}  # fmt: skip
#: Wider types that keep every value as it is.
_TAKEN: dict[pa.DataType, tuple[str, ...]] = {
    pa.int8(): ("smallint", "integer", "bigint", "numeric"), pa.int16(): ("smallint", "integer", "bigint", "numeric"),
    pa.int32(): ("integer", "bigint", "numeric"), pa.int64(): ("bigint", "numeric"),
    pa.float32(): ("real", "double precision"),
}  # fmt: skip
