"""Changes of a table into rows of a stream.

A row has the kind of the change, the table's columns and `old`. The columns are the row as it is afterwards; of a
deleted row they are what PostgreSQL still says of it. `old` is the key as it was before, or the whole row where the
table has replica identity full.

Rules:
1. The stream's columns are those of the table. One that was added, removed or changed since stops the input: rows that
   lack something would be wrong in silence. Where `columns` names them, others may come and go.
2. A change that does not fit is given back and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.inputs.change_position import Place
from holdfast.inputs.pgoutput import Change, Column, Relation, Row, Unchanged
from holdfast.inputs.postgres_types import Read, column_text, reads, type_of
from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.schema import STIME_TYPE, parse_schema, schema_text, type_text
from holdfast.stream.pack import stime_array
from holdfast.stream.rows import Columns, stimes_of
from holdfast.stream.values import shown

CHANGE, OLD = "change", "old"
KINDS = ("snapshot", "insert", "update", "delete", "truncate")


class Placed(NamedTuple):
    """A change and where it stands."""

    change: Change
    place: Place
    xid: int
    time_us: int
    """The stime of its transaction."""


class Refused(NamedTuple):
    """A change that does not fit, and why."""

    placed: Placed
    why: str
    kind: type[UsageError] = SchemaError


def stream_schema(relation: Relation, columns: Mapping[str, str] | None) -> pa.Schema:
    """The columns of a stream that a table's changes go into."""
    chosen = _chosen(relation, columns)
    for name in (CHANGE, OLD):
        if name in chosen.values():
            raise UsageError(
                f"table {relation.name} has a column {name!r}, which the stream needs for itself; rename it there: "
                f"columns={{…, {name!r}: 'its_{name}'}}"
            )
    kinds = {to: type_of(column) for column in relation.columns if (to := chosen.get(column.name)) is not None}
    keys = [pa.field(chosen[c.name], type_of(c)) for c in relation.columns if c.key and c.name in chosen]
    return parse_schema(pa.schema([(CHANGE, pa.string()), *kinds.items(), (OLD, pa.struct(keys))]))


def _chosen(relation: Relation, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Columns of the table that are wanted, and their names in the stream."""
    names = [column.name for column in relation.columns]
    if columns is None:
        return {name: name for name in names}
    if missing := [name for name in columns if name not in names]:
        raise UsageError(
            f"table {relation.name} must have the columns that are asked for; it has no {', '.join(missing)}, it has "
            f"{', '.join(names)}"
        )
    lost = [column.name for column in relation.columns if column.key and column.name not in columns]
    if lost and relation.identity != "f":
        raise UsageError(
            f"columns of table {relation.name} must hold its key, or nobody could tell which row was changed; add "
            f"{', '.join(lost)}"
        )
    return dict(columns)


class ChangeRows:
    """Turns the changes of one table into batches for one stream."""

    def __init__(
        self, schema: pa.Schema, stream: str, table: str, *, columns: Mapping[str, str] | None, stime: str | None,
        stime_unit: str,
    ) -> None:  # fmt: skip
        self._schema, self._stream, self._table, self._wanted = schema, stream, table, columns
        self._stime, self._unit = stime, stime_unit
        self._columns = Columns(schema, f"stream {stream}")
        self.schema = pa.schema([pa.field("stime", STIME_TYPE), *schema])
        if stime is not None and stime not in schema.names:
            raise UsageError(
                f"stream {stream}: stime must be 'commit' or one of the table's columns ({schema_text(schema)}); got "
                f"{stime!r}"
            )
        old = schema.field(OLD).type if OLD in schema.names else None
        if CHANGE not in schema.names or old is None or not pa.types.is_struct(old):
            raise UsageError(
                f"stream {stream} must have the columns {CHANGE} and {OLD} beside those of table {table}; it has "
                f"({schema_text(schema)}); leave schema= out, and the stream is made as it must be"
            )
        self._old_kind = old
        self._relation: Relation | None = None

    @property
    def relation(self) -> Relation | None:
        return self._relation

    # -- the table ---------------------------------------------------------------------------------------------------

    def use(self, relation: Relation) -> None:
        """What follows has these columns; rule 1."""
        wrong: list[str] = []
        chosen = _chosen(relation, self._wanted)
        places = {to: n for n, column in enumerate(relation.columns) if (to := chosen.get(column.name)) is not None}
        names = [name for name in self._schema.names if name not in (CHANGE, OLD)]
        if added := [name for name in places if name not in names]:
            wrong.append(f"also {', '.join(added)}")
        if lost := [name for name in names if name not in places]:
            wrong.append(f"no {', '.join(lost)}")
        self._fields = [
            self._field(name, self._schema.field(name).type, places[name], relation.columns[places[name]], wrong)
            for name in names if name in places
        ]  # fmt: skip
        self._old: list[_Field] = []
        for field in self._old_kind:
            at = places.get(field.name)
            if at is None or not relation.columns[at].key:
                wrong.append(f"no {field.name} in its replica identity any more")
            else:
                self._old.append(self._field(field.name, field.type, at, relation.columns[at], wrong))
        if wrong:
            raise UsageError(
                f"stream {self._stream}: table {self._table} must have the columns of the stream "
                f"({schema_text(self._schema)}); now it has {'; '.join(dict.fromkeys(wrong))}; nothing behind that "
                "change was taken; name the columns to go on with (columns=…), or begin a new stream"
            )
        if self._stime is not None and self._stime not in [f.name for f in self._old_kind]:
            raise UsageError(
                f"stream {self._stream}: stime={self._stime!r} must be known of deleted rows, too; let table "
                f"{self._table} send them whole: alter table {self._table} replica identity full"
            )
        self._relation = relation

    def _field(self, name: str, kind: pa.DataType, at: int, column: Column, wrong: list[str]) -> _Field:
        read = reads(column, kind)
        if read is None:
            wrong.append(
                f"{name} as {type_text(type_of(column))} (it must be {column_text(column, kind)} in the stream)"
            )
            read = str
        return _Field(name, kind, at, read)

    # -- rows --------------------------------------------------------------------------------------------------------

    def batch(self, changes: Sequence[Placed], after_us: int) -> tuple[pa.RecordBatch, list[Placed], list[Refused]]:
        """Rows in the order of the changes, with the stime in front; whose they are; and those that do not fit.
        `after_us`: the stime of what has none of its own, where a column says it."""
        rows: list[tuple[Any, ...]] = []
        good: list[Placed] = []
        refused: list[Refused] = []
        for placed in changes:
            try:
                rows.append(self._row(placed.change))
                good.append(placed)
            except SchemaError as error:
                refused.append(Refused(placed, str(error)))
        try:
            return self._timed(rows, good, after_us), good, refused
        except SchemaError:
            return self._one_by_one(rows, good, refused, after_us)

    def _one_by_one(
        self, rows: list[tuple[Any, ...]], placed: list[Placed], refused: list[Refused], after_us: int
    ) -> tuple[pa.RecordBatch, list[Placed], list[Refused]]:
        good: list[int] = []
        for n, (row, one) in enumerate(zip(rows, placed, strict=True)):
            try:
                self._timed([row], [one], after_us)
                good.append(n)
            except SchemaError as error:
                refused.append(Refused(one, str(error)))
        kept = [placed[n] for n in good]
        return self._timed([rows[n] for n in good], kept, after_us), kept, refused

    def _row(self, change: Change) -> tuple[Any, ...]:
        assert self._relation is not None
        wide = {len(row) for row in (change.new, change.old) if row is not None}
        if wide - {len(self._relation.columns)}:
            raise PeerError(
                f"PostgreSQL must send rows of table {self._table} with its {len(self._relation.columns)} columns; "
                f"got one with {', '.join(map(str, sorted(wide)))}"
            )
        found: dict[str, Any] = {CHANGE: change.kind, OLD: None}
        row = change.new if change.new is not None else change.old
        if row is not None:
            for field in self._fields:
                found[field.name] = field.value(row, change.old if change.whole else None)
        if change.kind in ("update", "delete"):
            before = change.old if change.old is not None else change.new
            assert before is not None
            found[OLD] = {field.name: field.value(before, None) for field in self._old}
        return tuple(found.get(name) for name in self._schema.names)

    def _timed(self, rows: list[tuple[Any, ...]], placed: Sequence[Placed], after_us: int) -> pa.RecordBatch:
        batch = self._columns.batch(rows)
        if self._stime is None:
            stimes = np.fromiter((one.time_us for one in placed), np.int64, len(placed))
        else:
            stimes = self._by_column(batch.column(self._stime), placed, after_us)
        return pa.RecordBatch.from_arrays([stime_array(stimes), *batch.columns], schema=self.schema)

    def _by_column(self, column: pa.Array, placed: Sequence[Placed], after_us: int) -> npt.NDArray[np.int64]:
        own = np.fromiter((one.change.kind != "truncate" for one in placed), np.bool_, len(placed))
        stimes = np.full(len(placed), after_us, np.int64)
        stimes[own] = stimes_of(column.filter(pa.array(own)), self._unit, self._stream)
        # A truncation has no row that could say when it was: it happened behind what came before it.
        stimes[~own] = np.maximum.accumulate(np.where(own, stimes, after_us))[~own]
        return stimes


class _Field(NamedTuple):
    """A column of the table on its way into one of the stream."""

    name: str
    kind: pa.DataType
    at: int
    read: Read

    def value(self, row: Row, old: Row | None) -> Any:
        text = row[self.at]
        if isinstance(text, Unchanged) and old is not None:
            text = old[self.at]  # With replica identity full it is there.
        if text is None:
            return None
        if isinstance(text, Unchanged):
            raise SchemaError(
                f"column {self.name} must come with every change; PostgreSQL does not send a large value that an "
                "update left alone; let the table send old rows whole: alter table … replica identity full"
            )
        try:
            return self.read(text)
        except (ValueError, KeyError, ArithmeticError) as error:
            raise SchemaError(
                f"column {self.name} must be {type_text(self.kind)}; got {shown(text)} ({error}); in a stream where "
                "it is a string it fits"
            ) from None
