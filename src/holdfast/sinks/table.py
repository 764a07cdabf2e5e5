"""A table of a SQL database that is corrected in place: what SQLite and PostgreSQL have in common.

Rules:
1. Without a key a row is known by its tuple id, in the column `holdfast_id`: the id of a stable row, its negative while
   the row is tentative. So both have one unique index, and an UNDO deletes what lies below zero.
2. With a key the table has one row per key: that of the last stable tuple, with the last tentative one over it. The
   stable row that a tentative one covers is kept in `<table>_holdfast`, and an UNDO brings it back.
3. `holdfast_sinks` beside the table has a row per table: stream, key, position, and the number of its writer. It is
   changed first in every transaction, under the writer's own number: a writer that was replaced changes nothing.
   A table has one row there, however it is written (`totals` and `public.totals`, `T` and `t`): the one that it was
   registered under first.
4. Columns have the stream's names. `stime` is filled where the table has it, and made where we make the table. Columns
   that the stream does not have are left alone.
5. All names are quoted, all values are parameters or COPY data: nothing from a stream becomes SQL text (X3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import STIME_TYPE, type_text
from holdfast.sinks.sink import Changes, Sink, Source

ID, TENTATIVE, STIME = "holdfast_id", "tentative", "stime"
REGISTRY = "holdfast_sinks"
#: What a column of ours is called in a table; a stream's own column must not be.
_OURS = (ID, TENTATIVE)
_STAGE = "holdfast_stage"


class Column(NamedTuple):
    """A column of a table that is there."""

    name: str
    type: str


class TableSink(Sink):
    """Rules 1 to 5, in SQL that both databases understand. Those that extend it know the driver and the types."""

    #: Of the column `tentative` where it is added to a table: what is there already is stable.
    tentative_default = " not null default false"

    def __init__(self, table: str, key: Sequence[str], tentative: bool, add_columns: bool) -> None:
        if isinstance(key, str):
            raise UsageError(f"key must be a list of columns; got {key!r}; write key=[{key!r}]")
        if len(set(key)) != len(tuple(key)):
            raise UsageError(f"key must name each column once; got {', '.join(key)}")
        self.table, self.key, self.tentative = table, tuple(key), tentative
        self._add_columns = add_columns
        #: The table as the database finds it, and where it is registered: registry and target.
        self._place, self._entry = table, ("", "")
        self._epoch = 0
        self._with_stime = False
        self._names: tuple[str, ...] = ()

    # -- what the databases do each in their own way -----------------------------------------------------------------

    @abstractmethod
    def type_of(self, kind: pa.DataType) -> str | None:
        """The type of a column; None if there is none that holds it unchanged."""

    @abstractmethod
    def takes(self, there: str, kind: pa.DataType) -> bool:
        """Whether a column of the type `there` keeps such values as they are."""

    @abstractmethod
    def connect(self) -> None:
        """Open a connection, anew if there is one."""

    @abstractmethod
    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement; `?` stands for a value."""

    @abstractmethod
    def transaction(self) -> Any:
        """A context: committed at its end, rolled back by an error, which becomes one of ours."""

    @abstractmethod
    def columns_of(self, table: str) -> list[Column]:
        """The columns of a table that is there; none if it is not."""

    @abstractmethod
    def unique(self, table: str) -> list[frozenset[str]]:
        """Sets of columns that are unique in the table."""

    @abstractmethod
    def load(self, table: str, columns: Sequence[str], rows: pa.Table) -> None:
        """Put rows into the table, in bulk."""

    @abstractmethod
    def quoted(self, table: str) -> str:
        """The name of a table as it stands in SQL."""

    @abstractmethod
    def beside(self, name: str) -> str:
        """The name of a table of ours, in the same schema."""

    @abstractmethod
    def found(self) -> str:
        """The table's name as the database has it, however it was written; as it was written if it is not there."""

    def registries(self) -> list[str]:
        """Registries that are there and may know the table."""
        registry = self.beside(REGISTRY)
        return [registry] if self.columns_of(registry) else []

    def means(self, registry: str, target: str) -> bool:
        """Whether a target of the registry is this table."""
        return plain_case(target) == plain_case(self._place)

    @property
    def bare(self) -> str:
        """The table's name without what tells where it lies."""
        return self._place

    def new_entry(self) -> str:
        """How a table that no registry knows is registered in the one beside it."""
        return self.table

    def clear(self, stage: str) -> None:
        """Empty a table of this connection alone."""
        self.run(f"delete from {stage}")

    def take_turns(self) -> None:
        """In a transaction: wait for others that make tables."""

    @abstractmethod
    def make_stage(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        """An empty table of this connection alone."""

    # -- the beginning -----------------------------------------------------------------------------------------------

    def resume(self, source: Source) -> str | None:
        self._check(source)
        self.connect()
        with self.transaction():
            self.take_turns()
            self._place, self._entry = self.found(), ("", "")
            position = self._become_writer(source.stream)
            if position is not None and not self.columns_of(self._place):
                raise UsageError(
                    f"table {self.table} is gone, although {REGISTRY} says how far it was filled; remove its row there "
                    "to have it filled anew"
                )
            self._prepare_table(source.columns)
            if position is None:
                self._take_back()  # Of a table that was there, and whose row in the registry somebody has removed.
        with self.transaction():
            self._prepare_stage(source.columns)
        return position

    def _check(self, source: Source) -> None:
        for name in _OURS:
            if name in source.columns.names:
                raise SchemaError(
                    f"stream {source.stream} must not have a column {name!r}, which the sink uses itself; rename it in "
                    "the query"
                )
        for name in self.key:
            if name not in source.columns.names and name != STIME:
                raise UsageError(
                    f"key must name columns of stream {source.stream}: {', '.join(source.columns.names)}; got {name!r}"
                )
        lacking = [f"{f.name} ({type_text(f.type)})" for f in source.columns if self.type_of(f.type) is None]
        if lacking:
            raise SchemaError(
                f"{self.kind} has no type for {', '.join(lacking)} of stream {source.stream}; leave the column out, or "
                "turn it into plain ones in the query (to_json makes text of anything)"
            )

    def _become_writer(self, stream: str) -> str | None:
        """Rule 3."""
        key, tentative = ",".join(self.key), int(self.tentative)
        known = self._registered()
        if known is None:
            registry, target = self._entry = self.beside(REGISTRY), self.new_entry()
            self.run(
                f"create table if not exists {self.quoted(registry)} (target text primary key, stream text not null, "
                "key text not null, tentative integer not null, writer integer not null, position text)"
            )
            self.run(
                f"insert into {self.quoted(registry)} values (?, ?, ?, ?, 1, null)", target, stream, key, tentative
            )
            self._epoch = 1
            return None
        self._entry, (stream_then, key_then, tentative_then, epoch, position) = known
        registry, target = self._entry
        if stream_then != stream:
            raise UsageError(
                f"table {self.table} holds stream {stream_then}, as {REGISTRY} says; got {stream}; choose another table"
            )
        if (key_then, tentative_then) != (key, tentative):
            raise UsageError(
                f"table {self.table} was made with key=[{key_then}] and tentative={bool(tentative_then)}; got "
                f"key=[{key}] and tentative={bool(tentative)}; choose another table, or drop it and its row in "
                f"{REGISTRY}"
            )
        self._epoch = epoch + 1
        self.run(f"update {self.quoted(registry)} set writer = ? where target = ?", self._epoch, target)
        return None if position is None else str(position)

    def _registered(self) -> tuple[tuple[str, str], tuple[Any, ...]] | None:
        """Where the table stands, and what is said of it."""
        found = [
            ((registry, target), tuple(said))
            for registry in self.registries()
            for target, *said in self.run(
                f"select target, stream, key, tentative, writer, position from {self.quoted(registry)}"
            )
            if self.means(registry, target)
        ]
        if len(found) > 1:
            names = " and ".join(f"{target} ({registry})" for (registry, target), _ in found)
            raise UsageError(
                f"table {self.table} must be registered once; it is as {names}, by sinks that may have mixed their "
                "rows; drop the table and those entries to have it filled anew, or remove the entry that is out of use"
            )
        return found[0] if found else None

    def _prepare_table(self, columns: pa.Schema) -> None:
        self._names = tuple(columns.names)
        wanted = [(f.name, self._type(f.type)) for f in columns]
        ours = [(ID, self._type(pa.int64()))] if not self.key else []
        ours += [(TENTATIVE, self._type(pa.bool_()))] if self.tentative else []
        there = self.columns_of(self._place)
        if not there:
            self._create_table([*ours, (STIME, self._type(STIME_TYPE)), *wanted])
            self._with_stime = True
        else:
            self._with_stime = STIME in self.key or STIME in {column.name for column in there}
            if self._with_stime:
                wanted.append((STIME, self._type(STIME_TYPE)))
            self._fit(there, [*ours, *wanted], columns)
        if self.key and self.tentative:
            self._prepare_covered(columns)

    def _type(self, kind: pa.DataType) -> str:
        found = self.type_of(kind)
        assert found is not None
        return found

    def _create_table(self, columns: Sequence[tuple[str, str]]) -> None:
        unique = self.key or (ID,)
        texts = [f"{quote(name)} {kind}{' not null' if name in (*unique, TENTATIVE) else ''}" for name, kind in columns]
        self.run(f"create table {self.quoted(self._place)} ({', '.join(texts)}, primary key ({names_of(unique)}))")
        self.index_tentative()

    def index_tentative(self) -> None:
        """So that an UNDO finds its rows at once."""
        if self.key and self.tentative:
            name = quote(f"{self.table.rpartition('.')[2]}_holdfast_tentative")
            self.run(f"create index if not exists {name} on {self.quoted(self._place)} ({TENTATIVE}) where {TENTATIVE}")

    def _fit(self, there: list[Column], wanted: Sequence[tuple[str, str]], columns: pa.Schema) -> None:
        """Columns of a table that was there before."""
        known = {column.name: column.type for column in there}
        missing = [(name, kind) for name, kind in wanted if name not in known]
        if missing and not self._add_columns:
            raise SchemaError(
                f"table {self.table} must have the columns {', '.join(f'{n} ({t})' for n, t in missing)}; it has "
                f"{', '.join(known)}; add them, or let the sink do so with add_columns=True"
            )
        for name, kind in missing:
            rest = self.tentative_default if name == TENTATIVE else ""
            self.run(f"alter table {self.quoted(self._place)} add column {quote(name)} {kind}{rest}")
        kinds = {f.name: f.type for f in columns} | {ID: pa.int64(), TENTATIVE: pa.bool_(), STIME: STIME_TYPE}
        for name, kind in wanted:
            if name in known and not self.takes(known[name], kinds[name]):
                raise SchemaError(
                    f"column {name} of table {self.table} must keep {type_text(kinds[name])} as it is, like {kind}; "
                    f"it is {known[name]}; change its type, or cast in the query"
                )
        unique = frozenset(self.key or (ID,))
        if unique not in self.unique(self._place):
            if missing and ID in dict(missing):
                name = quote(f"{self.table.rpartition('.')[2]}_{ID}")
                self.run(f"create unique index {name} on {self.quoted(self._place)} ({quote(ID)})")
            else:
                raise SchemaError(
                    f"table {self.table} must have a unique index on ({', '.join(sorted(unique))}), by which rows are "
                    "found again; create one"
                )
        self.index_tentative()

    def _prepare_covered(self, columns: pa.Schema) -> None:
        """Rule 2."""
        kinds = {f.name: self._type(f.type) for f in columns} | {STIME: self._type(STIME_TYPE)}
        wanted = [(name, kinds[name]) for name in self._columns]
        there = {column.name for column in self.columns_of(self._covered)}
        if not there:
            texts = ", ".join(f"{quote(name)} {kind}" for name, kind in wanted)
            self.run(f"create table {self.quoted(self._covered)} ({texts}, primary key ({names_of(self.key)}))")
        for name, kind in wanted:
            if there and name not in there:
                self.run(f"alter table {self.quoted(self._covered)} add column {quote(name)} {kind}")

    @property
    def _covered(self) -> str:
        return self.beside(f"{self.bare}_holdfast")

    def _prepare_stage(self, columns: pa.Schema) -> None:
        if self.key:
            kinds = [(f.name, self._type(f.type)) for f in columns]
            stage = [(ID, self._type(pa.int64())), (STIME, self._type(STIME_TYPE)), *kinds]
            self.make_stage(_STAGE, stage)

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, position: str) -> None:
        self._check_keys(changes)
        with self.transaction():
            self._note(position)
            if changes.undo:
                self._take_back()
            if self.key:
                self._apply_by_key(changes)
            else:
                self._apply_by_id(changes)

    def _note(self, position: str) -> None:
        """Rule 3."""
        registry, target = self._entry
        found = self.run(
            f"update {self.quoted(registry)} set position = ? where target = ? and writer = ? returning 1",
            position, target, self._epoch,
        )  # fmt: skip
        if not found:
            raise UsageError(
                f"another sink has taken over table {self.table}; this one has stopped and changed nothing; run one at "
                "a time"
            )

    def _check_keys(self, changes: Changes) -> None:
        for name in self.key:
            if any(part.column(name).null_count for part in (changes.stable, changes.tentative)):
                raise SchemaError(
                    f"column {name} is part of the key of table {self.table} and must not be null; a row has null "
                    "there; leave such rows out in the query"
                )

    @property
    def _columns(self) -> tuple[str, ...]:
        return (STIME, *self._names) if self._with_stime else self._names

    def _take_back(self) -> None:
        """Every tentative row goes, and the stable ones beneath come back."""
        if not self.tentative:
            return
        if not self.key:
            self.run(f"delete from {self.quoted(self._place)} where {ID} < 0")
            return
        self._upsert(self._place, self.quoted(self._covered), False)
        self.run(f"delete from {self.quoted(self._place)} where {TENTATIVE}")
        self.run(f"delete from {self.quoted(self._covered)}")

    def _apply_by_id(self, changes: Changes) -> None:
        """Rule 1."""
        for rows, sign in ((changes.stable, 1), (changes.tentative, -1)):
            if rows.num_rows:
                ids = rows.column("tuple_id") if sign > 0 else pc.negate(rows.column("tuple_id"))
                rows = rows.rename_columns({"tuple_id": ID}).set_column(0, ID, ids)
                columns = [ID, *self._columns]
                if self.tentative:
                    rows = rows.append_column(TENTATIVE, pa.array([sign < 0] * rows.num_rows))
                    columns.append(TENTATIVE)
                self.load(self._place, columns, rows.select(columns))

    def _apply_by_key(self, changes: Changes) -> None:
        """Rule 2."""
        for rows, marked in ((changes.stable, False), (changes.tentative, True)):
            if not rows.num_rows:
                continue
            self.clear(_STAGE)
            rows = last_of(rows, self.key).rename_columns({"tuple_id": ID})
            self.load(_STAGE, rows.column_names, rows)
            if marked:
                self._cover()
            elif self.tentative:
                self._under_tentative()
            self._upsert(self._place, _STAGE, marked)

    def _cover(self) -> None:
        """Keep the stable rows that tentative ones are about to cover."""
        mine = ", ".join(f"t.{quote(name)}" for name in self._columns)
        self.run(
            f"insert into {self.quoted(self._covered)} ({names_of(self._columns)}) select {mine} "
            f"from {self.quoted(self._place)} t join {_STAGE} s on {self._same('t', 's')} where not t.{TENTATIVE}"
        )

    def _under_tentative(self) -> None:
        """Stable rows whose key a tentative row covers go beneath it."""
        table = self.quoted(self._place)
        hidden = f"exists (select 1 from {table} t where {self._same('t', _STAGE)} and t.{TENTATIVE})"
        self._upsert(self._covered, _STAGE, None, hidden)
        self.run(f"delete from {_STAGE} where {hidden}")

    def _upsert(self, table: str, source: str, marked: bool | None, where: str = "true") -> None:
        columns = list(self._columns)
        values = names_of(columns)
        if self.tentative and marked is not None:
            columns.append(TENTATIVE)
            values += f", {'true' if marked else 'false'}"
        changed = [f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in self.key]
        action = f"update set {', '.join(changed)}" if changed else "nothing"
        self.run(
            f"insert into {self.quoted(table)} ({names_of(columns)}) select {values} from {source} where {where} "
            f"on conflict ({names_of(self.key)}) do {action}"
        )

    def _same(self, one: str, other: str) -> str:
        return " and ".join(f"{one}.{quote(name)} = {other}.{quote(name)}" for name in self.key)


def plain_case(name: str) -> str:
    """A name as SQLite and DuckDB compare it: letters of ASCII count as small ones, all others as they are."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def quote(name: str) -> str:
    """A name as it stands in SQL."""
    if "\0" in name:
        raise UsageError(f"a name in a database must not hold a zero character; got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def names_of(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def last_of(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of rows with the same key the last."""
    at = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select(list(key)).append_column("__at", at).group_by(list(key)).aggregate([("__at", "max")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(last.column("__at_max").combine_chunks().sort())
