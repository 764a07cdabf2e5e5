"""The changes of a table of PostgreSQL as the source of a stream, exactly once.

    app.source("orders", postgres_changes("postgresql://ann@db/shop", table="orders"))

Rules:
1. Changes come by logical replication, in the order of their commits. The place goes into the log with the rows that it
   brought (`holdfast.inputs.change_position`), and the server is told of it afterwards: its slot never stands before
   what is durable here.
2. stime is the commit's time, never below that of the commit before, nor below the stream's boundary: the log's order
   is the order of commits, though clocks may differ. All changes of a transaction have one stime, so readers see it
   whole. Or stime is a column; then rows lie in the buckets of their own times.
3. While the table is silent the boundary follows the server's clock, as far as all that its log has was read (K2).
4. A table or a slot that is not the one that was read before is refused instead of mixed: a new `id` begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from holdfast.inputs.change_rows import stream_schema
from holdfast.model.errors import UsageError
from holdfast.model.time import MAX_AHEAD, duration_us
from holdfast.stream.store import Stream

if TYPE_CHECKING:
    from holdfast.inputs.postgres_input import PostgresInput

Duration = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresChanges:
    """Made by `postgres_changes`, which says what each field means."""

    url: str = field(repr=False)
    table: str
    columns_of: Mapping[str, str] | None
    snapshot: bool
    publication: str | None
    stime: str | None
    """None: the commit's time."""
    stime_unit: Literal["s", "ms", "us"]
    slack_us: int
    late: Literal["refuse", "drop"]
    idle_us: int | None
    max_ahead_us: int | None
    id: str
    dead_letters: Path | Literal[True] | None

    @property
    def stime_of(self) -> str | None:
        """The table's column that the stream has its stime from."""
        names = {to: name for name, to in (self.columns_of or {}).items()}
        return None if self.stime is None else names.get(self.stime, self.stime)

    def columns(self, stop: threading.Event | None = None) -> pa.Schema:
        """Those of the stream, as the table is now."""
        from holdfast.inputs.postgres_client import ReplicationConnection
        from holdfast.inputs.postgres_table import describe

        connection = ReplicationConnection(self.url, stop or threading.Event())
        try:
            return stream_schema(describe(connection, self.table).relation, self.columns_of)
        finally:
            connection.close()

    def open(self, stream: Stream, home: Path) -> PostgresInput:
        from holdfast.inputs.postgres_input import PostgresInput

        path = home / f"{stream.name}.dead-letters.jsonl" if self.dead_letters is True else self.dead_letters
        return PostgresInput(self, stream, home, path)

    def text(self) -> str:
        from holdfast.inputs.postgres_client import place_of

        return f"changes of table {self.table} of {place_of(self.url)}"


def postgres_changes(
    url: str,
    *,
    table: str,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    snapshot: bool = True,
    publication: str | None = None,
    stime: str = "commit",
    stime_unit: Literal["s", "ms", "us"] = "us",
    slack: Duration = "1s",
    late: Literal["refuse", "drop"] = "refuse",
    idle: Literal["wait", "advance"] | Duration = "wait",
    max_ahead: Duration | None = MAX_AHEAD,
    id: str | None = None,
    dead_letters: str | Path | Literal[True] | None = None,
) -> PostgresChanges:
    """Changes of a table become rows of a stream: `change` says which (snapshot, insert, update, delete, truncate),
    then come the table's columns, and `old` has the key, or the whole row, as it was before.

    `url` is as libpq takes it; a password is better kept in a service or password file than in a program. `table` may
    name a schema, as in `sales.orders`. `columns`: those to take, or a mapping to their names in the stream; others may
    come and go. `snapshot`: begin with the rows that the table has. `publication`: one that is there; otherwise it is
    made. `stime`: "commit", or a column, with `slack`, `late`, `idle` and `max_ahead` as for a producer; for commits
    `slack` is how long after its commit a change may come and still have its time. A change that does not fit stops the
    input, since all behind it would be wrong without it; with `dead_letters` it is put aside instead.
    """
    if not isinstance(url, str) or not url.strip():
        raise UsageError(f"the address must look like postgresql://user@host/database; got {type(url).__name__}")
    if not isinstance(table, str) or not table.strip(". ") or table.count(".") > 1:
        raise UsageError(f"the table must be a name, or schema.name; got {table!r}")
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list of names, or a mapping to the stream's names; got {columns!r}")
    for what, value, allowed in (("stime_unit", stime_unit, ("s", "ms", "us")), ("late", late, ("refuse", "drop"))):
        if value not in allowed:
            raise UsageError(f"{what} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    if stime == "commit" and idle != "wait":
        raise UsageError("idle goes with stime='column'; times of commits follow the server's clock anyway")
    return PostgresChanges(
        url=url, table=table, snapshot=snapshot, publication=publication,
        columns_of=None if columns is None else dict(columns) if isinstance(columns, Mapping)
        else {name: name for name in columns},
        stime=None if stime == "commit" else stime, stime_unit=stime_unit, slack_us=duration_us(slack), late=late,
        idle_us=None if idle == "wait" else 0 if idle == "advance" else duration_us(idle),
        max_ahead_us=None if max_ahead is None else duration_us(max_ahead), id=id or table,
        dead_letters=dead_letters if dead_letters is None or dead_letters is True else Path(dead_letters),
    )  # fmt: skip
