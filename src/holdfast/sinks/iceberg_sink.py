"""An Iceberg table, through any catalog that PyIceberg knows, written without Spark.

Rules:
1. One commit to the catalog per transaction: an UNDO deletes every tentative row, then stable and tentative rows are
   appended, each in files of their own, so that an UNDO drops files instead of rewriting them. Readers see a commit
   whole or not at all.
2. Stream, position and the number of the writer are properties of the table, set in the same commit.
3. A commit asks that the table's snapshot is still the one that the writer has seen, and is not tried again by itself:
   a writer that was replaced, which begins with a snapshot of its own, changes nothing.
4. Rows have the column `holdfast_id`: the tuple id, of a tentative row the negative.

Snapshots, and files of tentative rows, stay until somebody expires them, as after any change of an Iceberg table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.inputs.postgres_client import REFUSALS
from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.time import duration_us
from holdfast.sinks.appended_table import (
    TENTATIVE,
    check_mark,
    is_marked,
    is_refusal,
    lacking_columns,
    one_line,
    refusal,
    written_columns,
)
from holdfast.sinks.sink import Changes, Sink, Source

_ID = "holdfast_id"
_STREAM, _POSITION, _WRITER = "holdfast.stream", "holdfast.position", "holdfast.writer"
#: With it PyIceberg would put our rows behind somebody else's (rule 3).
_RETRIES = "commit.retry.num-retries"
#: Without it every commit leaves a manifest, and the next one has to list them all.
_MERGE = "commit.manifest-merge.enabled"


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str] = "default",
    tentative: bool = False,
    every: str | int | float = "5s",
    add_columns: bool = False,
) -> IcebergSink:
    """Keep an Iceberg table (`namespace.table`) at what a stream says (extra `iceberg`); it is made if it is not there,
    and with `add_columns` gets those that it lacks. `catalog` is the name of one that PyIceberg is configured for, or
    its properties: `{"type": "sql", "uri": …, "warehouse": …}`, with a `name` if that is not "default". A commit comes
    every `every` or so."""
    properties = {"name": catalog} if isinstance(catalog, str) else {"name": "default", **catalog}
    return IcebergSink(table, properties, tentative, duration_us(every), add_columns)


class IcebergSink(Sink):
    kind = "iceberg"

    def __init__(
        self, table: str, catalog: dict[str, str], tentative: bool, every_us: int, add_columns: bool
    ) -> None:  # fmt: skip
        if "." not in table:
            raise UsageError(f"an Iceberg table must be named with its namespace, such as shop.totals; got {table!r}")
        self._name, self._properties, self.tentative, self.every_us = table, catalog, tentative, every_us
        self._add_columns = add_columns
        self._table: Any = None
        self._schema = pa.schema([])
        self._stream, self._writer = "", 0

    @property
    def target(self) -> str:
        return f"Iceberg table {self._name}"

    # -- opening -----------------------------------------------------------------------------------------------------

    def resume(self, source: Source) -> str | None:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise UsageError("Iceberg needs the extra: pip install 'holdfast-streams[iceberg]'") from None
        self._stream, self._schema = source.stream, self._columns(source, self.tentative)
        with self._told():
            try:
                catalog = load_catalog(**self._properties)
            except (ValueError, ImportError) as error:  # A catalog that is away is another error.
                raise UsageError(
                    f"{self.target}: the catalog {self._properties['name']} must be one that PyIceberg is configured "
                    f"for; it says: {one_line(error)}; write a .pyiceberg.yaml, or give its properties as `catalog`"
                ) from error
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self._table = self._made(catalog)
            there = self._table.schema().as_arrow()
            self._schema = self._columns(source, self.tentative or is_marked(there, source))
            lacking = self._lacking(there)
            position = self._table.properties.get(_POSITION) or None
            self._writer = int(self._table.properties.get(_WRITER, "0")) + 1
            # From now on this is the writer.
            self._commit([self._schema.empty_table()], position or "", False, lacking)
        return position

    def _made(self, catalog: Any) -> Any:
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        try:
            return catalog.create_table_if_not_exists(self._name, schema=self._schema)
        except UnsupportedPyArrowTypeException as error:
            raise SchemaError(
                f"iceberg has no type for {error.field.name} ({error.field.type}) of stream {self._stream}; leave the "
                "column out, or turn it into plain ones in the query (to_json makes text of anything)"
            ) from None

    def _columns(self, source: Source, marked: bool) -> pa.Schema:
        fields = written_columns(source, [pa.field(_ID, pa.int64())], marked)
        return pa.schema([field.with_type(self._type(field)) for field in fields])

    def _type(self, field: pa.Field) -> pa.DataType:
        """The type under which Iceberg keeps such values as they are: small integers are of 32 bits there."""
        if pa.types.is_integer(field.type) and field.type.bit_width < 32:
            return pa.int32()
        return field.type

    def _lacking(self, there: pa.Schema) -> list[pa.Field]:
        """The columns that the table has to get."""
        stream = self._table.properties.get(_STREAM, self._stream)
        if stream != self._stream:
            raise UsageError(f"{self.target} holds stream {stream}; got {self._stream}; name another table")
        lacking = lacking_columns(self.target, self._stream, self._schema, there, self._add_columns)
        check_mark(self.target, lacking, any(True for _ in self._table.scan().plan_files()))
        return lacking

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, position: str) -> None:
        parts = [self._rows(rows, marked) for rows, marked in ((changes.stable, False), (changes.tentative, True))]
        with self._told():
            # Without rows, too: a commit that brings no snapshot would not find out that we were replaced.
            self._commit([rows for rows in parts if rows.num_rows] or parts[:1], position, changes.undo)

    def _rows(self, rows: pa.Table, tentative: bool) -> pa.Table:
        """Rule 4."""
        ids = rows.column("tuple_id")
        made = {_ID: pc.negate(ids) if tentative else ids, TENTATIVE: pa.array([tentative] * len(ids), pa.bool_())}
        columns = [made[f.name] if f.name in made else rows.column(f.name).cast(f.type) for f in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _commit(
        self, parts: list[pa.Table], position: str, undo: bool, lacking: Sequence[pa.Field] = ()
    ) -> None:  # fmt: skip
        """Rules 1 to 3."""
        metadata = self._table.metadata
        properties = {_MERGE: "true", **metadata.properties, _RETRIES: "0"}
        self._table.metadata = metadata.model_copy(update={"properties": properties})
        with self._table.transaction() as transaction:
            if lacking:
                with transaction.update_schema() as update:
                    update.union_by_name(pa.schema(lacking))
            if undo and self._has_tentative():  # Also where an earlier life of the sink took tentative rows.
                transaction.delete(f"{_ID} < 0")
            for rows in parts:
                transaction.append(rows)
            transaction.set_properties({_STREAM: self._stream, _POSITION: position, _WRITER: str(self._writer)})

    def _has_tentative(self) -> bool:
        """Asked of the files' statistics: PyIceberg warns about a delete that finds nothing."""
        return any(True for _ in self._table.scan(row_filter=f"{_ID} < 0").plan_files())

    def close(self) -> None:
        self._table = None

    def __getstate__(self) -> dict[str, Any]:
        """A description travels to other processes; an open table does not."""
        return {**self.__dict__, "_table": None}

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """The library's errors as ours."""
        from pyiceberg.exceptions import (
            CommitFailedException,
            ForbiddenError,
            NotInstalledError,
            OAuthError,
            UnauthorizedError,
        )

        try:
            yield
        except (UsageError, PeerError):
            raise
        except CommitFailedException as error:
            if self._replaced():
                raise UsageError(
                    f"another sink has taken over {self.target}; this one has stopped and changed nothing; run one at "
                    "a time"
                ) from error
            raise PeerError(f"a commit to {self.target} collided with another; nothing was changed") from error
        except NotInstalledError as error:
            raise UsageError(f"{self.target} needs a library that is not installed: {one_line(error)}") from error
        except (UnauthorizedError, ForbiddenError, OAuthError) as error:
            raise refusal(self.target, error) from error
        except Exception as error:
            sql = type(error).__module__.startswith("sqlalchemy") and any(words in str(error) for words in REFUSALS)
            if is_refusal(error) or sql:
                raise refusal(self.target, error) from error
            raise PeerError(f"{self.target} could not be changed: {one_line(error)}") from error

    def _replaced(self) -> bool:
        return int(self._table.refresh().properties.get(_WRITER, "0")) != self._writer
