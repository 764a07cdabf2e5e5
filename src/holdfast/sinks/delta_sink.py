"""A Delta table, on a local or mounted folder or in an object store, written without Spark.

Rules:
1. One commit per transaction: rows are appended; an UNDO replaces every tentative row, in the same commit that brings
   what takes its place. Readers see a commit whole or not at all.
2. A commit carries the position behind its rows, and application transactions with a running number: one that is named
   after the stream, and one that all sinks have. Delta refuses a commit whose writer has not seen the last one of the
   same application: so a writer that was replaced changes nothing. And it never forgets them, whatever others do to the
   table: so a table with that of all sinks, and without that of the stream, holds another stream.
3. Rows have the columns `holdfast_id` (negative while tentative) and `holdfast_commit`, the number of the transaction
   that brought them. By these two a replacement names exactly what it takes away and what it brings.
4. A position is looked for in the table's history. Where that was cleaned so far that it is gone, the sink stops and
   says so instead of beginning anew.

Files of tentative rows stay until somebody runs VACUUM, as after any change of a Delta table.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
from holdfast.stream.position import stream_of

ID, COMMIT = "holdfast_id", "holdfast_commit"
_OWN = (pa.field(ID, pa.int64()), pa.field(COMMIT, pa.int64()))
_POSITION = "holdfast.position"
_ALL_SINKS = "holdfast-sink"
#: How many commits are looked at for the last position: nearly always it is the first, and a history is long.
_LOOKS = (1, 100, None)


def delta(
    uri: str | os.PathLike[str],
    *,
    tentative: bool = False,
    every: str | int | float = "2s",
    storage: Mapping[str, str] | None = None,
    add_columns: bool = False,
) -> DeltaSink:
    """Keep a Delta table at what a stream says (extra `delta`); it is made if it is not there, and with `add_columns`
    gets those that it lacks. A commit comes every `every` or so; `storage` are options of the object store, as
    `deltalake` takes them."""
    return DeltaSink(os.fspath(uri), tentative, duration_us(every), dict(storage or {}), add_columns)


class DeltaSink(Sink):
    kind = "delta"

    def __init__(
        self, uri: str, tentative: bool, every_us: int, storage: dict[str, str], add_columns: bool
    ) -> None:  # fmt: skip
        self._uri, self.tentative, self.every_us, self._storage = uri, tentative, every_us, storage
        self._add_columns = add_columns
        self._table: Any = None
        self._schema = pa.schema([])
        self._stream, self._app, self._number = "", "", 0

    @property
    def target(self) -> str:
        return f"Delta table {self._uri.partition('?')[0]}"

    def resume(self, source: Source) -> str | None:
        try:
            import deltalake
        except ImportError:
            raise UsageError("Delta needs the extra: pip install 'holdfast-streams[delta]'") from None
        self._stream, self._app = source.stream, f"{_ALL_SINKS}-{source.stream}"
        self._schema = written_columns(source, _OWN, self.tentative)
        with _told(self.target):
            if deltalake.DeltaTable.is_deltatable(self._uri, self._storage):
                self._table = deltalake.DeltaTable(self._uri, storage_options=self._storage)
                there = pa.schema(self._table.schema().to_arrow())
                self._schema = written_columns(source, _OWN, self.tentative or is_marked(there, source))
                lacking = lacking_columns(self.target, source.stream, self._schema, there, self._add_columns)
                check_mark(self.target, lacking, bool(self._table.file_uris()))
            else:
                self._table = deltalake.DeltaTable.create(
                    self._uri, schema=self._schema, storage_options=self._storage, mode="error"
                )
            position = self._position()
            self._number = (self._table.transaction_version(self._app) or 0) + 1
            self._commit(self._schema.empty_table(), position or "", None)  # From now on this is the writer (rule 2).
        return position

    def _position(self) -> str | None:
        """Rules 2 and 4."""
        known = self._table.transaction_version(self._app) is not None
        other = not known and self._table.transaction_version(_ALL_SINKS) is not None
        found = None if other else self._noted()
        if found:
            mine = stream_of(found) == self._stream or (known and not stream_of(found))
        else:
            mine = known or self._is_untouched(found)
        if other or not mine:
            raise UsageError(f"{self.target} holds another stream; got {self._stream}; name another table")
        if known and found is None:
            raise UsageError(
                f"the history of {self.target} no longer reaches back to its last rows, so their position is not "
                "known; write to another table"
            )
        return found or None

    def _is_untouched(self, found: str | None) -> bool:
        """Whether no sink has written here, nor one from before all had a transaction in common."""
        files = pa.table(self._table.get_add_actions(flatten=True))
        nulls = f"null_count.{COMMIT}"
        if COMMIT not in pa.schema(self._table.schema().to_arrow()).names:
            return True
        if found is not None or (files.num_rows and nulls not in files.column_names):
            return False
        return not files.num_rows or files.column(nulls).equals(files.column("num_records"))

    def _noted(self) -> str | None:
        """The position in the newest commit that has one; empty for the beginning."""
        for limit in _LOOKS:
            for commit in self._table.history(limit):
                if _POSITION in commit:
                    return str(commit[_POSITION])
        return None

    def apply(self, changes: Changes, position: str) -> None:
        parts = [self._rows(changes.stable, False), self._rows(changes.tentative, True)]
        rows = pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])
        with _told(self.target):
            replaces = f"{ID} < 0 OR {COMMIT} = {self._number}" if changes.undo else None
            self._commit(rows, position, replaces)

    def _rows(self, rows: pa.Table, tentative: bool) -> pa.Table:
        """Rule 3."""
        ids = rows.column("tuple_id")
        made = {ID: pc.negate(ids) if tentative else ids, COMMIT: pa.array([self._number] * len(ids), pa.int64()),
                TENTATIVE: pa.array([tentative] * len(ids), pa.bool_())}  # fmt: skip
        columns = [made[f.name] if f.name in made else rows.column(f.name) for f in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _commit(self, rows: pa.Table, position: str, replaces: str | None) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        properties = CommitProperties(
            custom_metadata={_POSITION: position},
            app_transactions=[Transaction(app, self._number) for app in (self._app, _ALL_SINKS)],
        )
        how = {"mode": "append"} if replaces is None else {"mode": "overwrite", "predicate": replaces}
        # Merged: the first commit brings columns that are to be added, and others may have more than we fill.
        write_deltalake(self._table, rows, schema_mode="merge", commit_properties=properties, **how)
        self._number += 1

    def close(self) -> None:
        self._table = None

    def __getstate__(self) -> dict[str, Any]:
        """A description travels to other processes; an open table does not."""
        return {**self.__dict__, "_table": None}


@contextlib.contextmanager
def _told(target: str) -> Iterator[None]:
    """The library's errors as ours."""
    from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

    try:
        yield
    except CommitFailedError as error:
        if "Concurrent transaction" in str(error):
            raise UsageError(
                f"another sink has taken over {target}; this one has stopped and changed nothing; run one at a time"
            ) from error
        if is_refusal(error):
            raise refusal(target, error) from error
        said = one_line(error)
        raise PeerError(f"a commit to {target} collided with another: {said}; nothing was changed") from error
    except SchemaMismatchError as error:
        raise SchemaError(f"{target} does not take these columns: {one_line(error)}; name another table") from error
    except (DeltaError, OSError) as error:
        if is_refusal(error):
            raise refusal(target, error) from error
        raise PeerError(f"{target} could not be changed: {one_line(error)}") from error
