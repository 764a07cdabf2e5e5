"""Several streams as one, in bucket order: what a query with many inputs reads.

Rules:
1. Complete is what every open stream has completed: the smallest of their closed ends (003, equation 4.1). A closed
   stream holds nobody back; when all are closed, everything is complete until `FOREVER_US`.
2. The order is (begin of the bucket, stream as listed, tuple_id). It is the same for the same range, in whatever
   portions the range was read (D9).
3. The columns are those of all streams by name; a stream that lacks one shows nulls. The same name means the same type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema, reader_schema, stored_schema
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.model.tuples import STREAM_COLUMN, TupleType
from holdfast.stream.index import Fields
from holdfast.stream.reader import LogReader, cut, decode_body, raw_body, with_header
from holdfast.stream.store import Stream

#: The year 9999, the end of time as Spark can write it.
FOREVER_US = 253_402_214_400_000_000


#: Rows of control for each partition of a stage: begin of the batch, its end, begin of what is read again.
MARKS = 4


#: How far `admit` looks at first; a batch usually takes fewer buckets than this.
_LOOK_AHEAD_BUCKETS = 256


class Source(NamedTuple):
    """One stream of a merge, as much as an executor must know of it."""

    name: str
    folder: str
    schema: pa.Schema


class Piece(NamedTuple):
    """One event of one stream, with all that is needed to read it anywhere."""

    source: int
    segment: str
    fields: Fields


def path_of(sources: Sequence[Source], piece: Piece) -> Path:
    """The file that holds a piece, where its stream's folder is mounted."""
    return Path(sources[piece.source].folder, "main", piece.segment)


class Merge:
    """The streams of one query. Executors get `sources` and pieces; only the planner refreshes."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.sources = sources_of(streams)
        self.bucket_us = [s.definition.bucket_us for s in streams]
        self.readers: list[LogReader] = [s.reader() for s in streams]

    def refresh(self) -> None:
        for reader in self.readers:
            reader.refresh()

    def close(self) -> None:
        for reader in self.readers:
            reader.close()

    @property
    def complete_until_us(self) -> int:
        """Rule 1."""
        still_open = [r for r in self.readers if r.boundary_us < END_OF_TIME_US]
        return min((r.closed_until_us for r in still_open), default=FOREVER_US)

    def check_present(self, start_us: int) -> None:
        for reader in self.readers:
            reader.check_present(start_us)

    @property
    def mends(self) -> dict[str, int]:
        """How often the boundary of each stream was taken back, of those where it was."""
        return {s.name: r.mends for s, r in zip(self.sources, self.readers, strict=True) if r.mends}

    def check_unmended(self, position_us: int, mends: Mapping[str, int]) -> None:
        """As `LogReader.check_unmended`, of every stream."""
        for source, reader in zip(self.sources, self.readers, strict=True):
            reader.check_unmended(position_us, mends.get(source.name, 0))

    def pieces(self, start_us: int, end_us: int, *, strict: bool = True) -> list[Piece]:
        """Events with tuples in [start, end), in the order of rule 2; `strict` as in `LogReader.extents`."""
        if end_us <= start_us:
            return []
        found = []
        for i, reader in enumerate(self.readers):
            size = self.bucket_us[i]
            for extent in reader.extents(start_us, end_us, strict=strict):
                f = extent.fields
                found.append((f.bucket * size, i, f.first_tuple_id, Piece(i, extent.segment, f)))
        found.sort(key=lambda entry: entry[:3])
        return [entry[3] for entry in found]

    def admit(self, start_us: int, end_us: int, *, rows_max: int | None = None, bytes_max: int | None = None) -> int:
        """See `admitted`."""
        return admitted(self.readers, self.bucket_us, start_us, end_us, rows_max=rows_max, bytes_max=bytes_max)

    def step(self, start_us: int, end_us: int, step_us: int, *, begins: bool = False) -> int:
        """The end of one step of stime behind `start_us`. The first one, where a query begins, is that of the first
        tuple; behind the last tuple of closed streams there is one more, to the end."""
        if begins or start_us <= BEGINNING_US:
            firsts = [r.stime_min_us for r in self.readers if r.stime_min_us is not None]
            start_us = max(start_us, min(firsts, default=end_us))
        last = max((r.stime_max_us for r in self.readers if r.stime_max_us is not None), default=start_us)
        if start_us > last and end_us >= FOREVER_US:
            return end_us
        return min((start_us // step_us + 1) * step_us, end_us)


def admitted(
    readers: Sequence[LogReader],
    bucket_us: Sequence[int],
    start_us: int,
    end_us: int,
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> int:
    """The furthest end of a bucket up to which the limits hold; at least one bucket, to get on at all.

    Looks ahead in growing steps, so that catching up on a long history costs what is admitted, not what is left.
    """
    if rows_max is None and bytes_max is None:
        return end_us
    firsts = [r.stime_min_us for r in readers if r.stime_min_us is not None]
    begin = max(start_us, min(firsts, default=end_us))
    step = _LOOK_AHEAD_BUCKETS * max(bucket_us)
    while begin + step < end_us:
        found = _within_limits(readers, bucket_us, start_us, begin + step, rows_max, bytes_max)
        if found < begin + step:
            return found
        step *= 4
    return _within_limits(readers, bucket_us, start_us, end_us, rows_max, bytes_max)


def _within_limits(
    readers: Sequence[LogReader],
    bucket_us: Sequence[int],
    start_us: int,
    end_us: int,
    rows_max: int | None,
    bytes_max: int | None,
) -> int:
    looks = [(r.entries(start_us, end_us), size) for r, size in zip(readers, bucket_us, strict=True)]
    ends = np.concatenate([(entries["bucket"] + 1) * size for entries, size in looks])
    order = np.argsort(ends, kind="stable")
    over = np.zeros(len(ends), bool)
    for limit, column in ((rows_max, "rows"), (bytes_max, "length")):
        if limit is not None:
            sizes = np.concatenate([entries[column] for entries, _ in looks]).astype(np.int64)
            over |= np.cumsum(sizes[order]) > limit
    if not over.any():
        return end_us
    ends = ends[order]
    first_over = int(ends[int(np.argmax(over))])
    before = ends[ends < first_over]
    return min(end_us, int(before[-1]) if len(before) else first_over)


def sources_of(streams: Sequence[Stream]) -> tuple[Source, ...]:
    if not streams:
        raise UsageError("name at least one stream to read, for example .load('monitor1,monitor2')")
    return tuple(Source(s.name, str(s.folder), s.definition.schema) for s in streams)


def merged_schema(sources: Sequence[Source], *, stream_column: bool) -> pa.Schema:
    """Rule 3: what a reader of the merge sees."""
    columns: dict[str, pa.DataType] = {}
    for source in sources:
        for field in source.schema:
            known = columns.setdefault(field.name, field.type)
            if known != field.type:
                raise SchemaError(
                    f"streams read together must agree on their columns; {field.name!r} is {field.type} on "
                    f"{source.name} and {known} elsewhere; read them apart or rename it"
                )
    schema = reader_schema(parse_schema(pa.schema(list(columns.items()))))
    return schema.append(pa.field(STREAM_COLUMN, pa.string())) if stream_column else schema


class Bodies:
    """The bytes of events, from where the folder is mounted. Keeps files open between events."""

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}

    def expect(self, events: Sequence[tuple[Path, Fields]]) -> None:
        """These will be asked for next, each once and in this order: for who brings them from afar."""

    def raw(self, path: Path, fields: Fields) -> bytes | pa.Buffer:
        """The padded body of an event, unchecked."""
        return raw_body(self._files, path, fields)

    def read(
        self, path: Path, fields: Fields, stored: pa.Schema, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The tuples of an event, or these columns of theirs, checksum first."""
        return decode_body(self.raw(path, fields), fields, stored, f"{path} at byte {fields.offset}", columns)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}


class PieceReader:
    """Reads pieces: in an executor, for instance."""

    def __init__(self, sources: Sequence[Source], *, stream_column: bool, bodies: Bodies | None = None) -> None:
        self._sources = sources
        self._stored = [stored_schema(s.schema) for s in sources]
        self._own = [reader_schema(s.schema) for s in sources]
        self.schema = merged_schema(sources, stream_column=stream_column)
        self._stream_column = stream_column
        self._bodies = bodies or Bodies()

    def read(self, pieces: Sequence[Piece], start_us: int, end_us: int) -> Iterator[pa.RecordBatch]:
        """The tuples of the pieces within [start, end), in order."""
        paths = [path_of(self._sources, piece) for piece in pieces]
        self._bodies.expect([(path, piece.fields) for path, piece in zip(paths, pieces, strict=True)])
        for path, piece in zip(paths, pieces, strict=True):
            batch = self._bodies.read(path, piece.fields, self._stored[piece.source])
            for fields, part in cut(piece.fields, batch, start_us, end_us):
                yield self._shaped(piece.source, fields, part)

    def boundary(self, stime_us: int) -> pa.RecordBatch:
        """A control row: no later tuple has a smaller stime."""
        values: dict[str, object] = {"tuple_type": int(TupleType.BOUNDARY), "tuple_id": 0, "stime": stime_us}
        arrays = [pa.array([values.get(f.name)], f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def marks(self, partitions: int, times_us: Sequence[int]) -> pa.RecordBatch:
        """Control rows for the stages of a batch: each partition gets one for each of the times.

        `tuple_id` says which: partition · MARKS + index of the time.
        """
        ids = [p * MARKS + i for p in range(partitions) for i in range(len(times_us))]
        stimes = [times_us[i % MARKS] for i in ids]
        columns: dict[str, pa.Array] = {
            "tuple_type": pa.array([int(TupleType.BOUNDARY)] * len(ids), pa.int8()),
            "tuple_id": pa.array(ids, pa.int64()),
            "stime": pa.array(stimes, pa.int64()).cast(self.schema.field("stime").type),
        }
        arrays = [columns.get(f.name) for f in self.schema]
        filled = [pa.nulls(len(ids), f.type) if a is None else a for a, f in zip(arrays, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(filled, schema=self.schema)

    def _shaped(self, source: int, fields: Fields, batch: pa.RecordBatch) -> pa.RecordBatch:
        full = with_header(fields, batch, TupleType.INSERTION, self._own[source])
        if full.schema.equals(self.schema):
            return full
        rows = full.num_rows
        arrays = []
        for field in self.schema:
            if field.name == STREAM_COLUMN and self._stream_column:
                arrays.append(pa.repeat(self._sources[source].name, rows))
            elif field.name in full.schema.names:
                arrays.append(full.column(field.name))
            else:
                arrays.append(pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def close(self) -> None:
        self._bodies.close()
