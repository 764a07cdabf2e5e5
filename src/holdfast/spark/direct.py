"""The short way: an operator that reads its streams itself.

Where nothing of the user's stands between the streams and the operator, tuples need not travel through the JVM and a
shuffle. Each task of the source is one partition of the operator: it reads the batch's events from the log, keeps the
tuples of its own groups, and yields results. All tasks read all events, which costs less than moving the tuples once as
long as there are few of them (`TASKS_MAX`).

A task that finds no state reads what it needs again on the spot: no other task and no query has to know.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from holdfast.model.time import BEGINNING_US
from holdfast.operators.numbering import numbered, partition_of
from holdfast.spark.archived_segments import archived_places
from holdfast.spark.grants import PROCESS, Way
from holdfast.spark.host_client import bodies_for, pieces_between
from holdfast.spark.source import BucketReader, until_of
from holdfast.spark.stage import Batch, StagePlan, this_task, way_of
from holdfast.stream.index import Fields
from holdfast.stream.merge import Merge, Piece, Source, path_of
from holdfast.stream.reader import cut
from holdfast.stream.store import StreamStore
from holdfast.stream.tentative import ALL_ROWS, PlannedPiece

#: Beyond this many partitions a shuffle is cheaper than reading everything everywhere.
TASKS_MAX = 8


@dataclass(frozen=True)
class DirectStage:
    """What a task must know. Made in the driver, read in executors of the same owner (Spark's own pickling)."""

    plan: StagePlan
    partitions: int
    keys: tuple[str, ...]
    values: tuple[str, ...]
    salt: int = 0


def encode_stage(stage: DirectStage) -> str:
    return base64.b64encode(cloudpickle.dumps(stage)).decode()


def decode_stage(text: str) -> DirectStage:
    stage = cloudpickle.loads(base64.b64decode(text))
    assert isinstance(stage, DirectStage)
    return stage


class StageTask(InputPartition):
    def __init__(self, partition: int, pieces: Sequence[Piece], since_us: int, until_us: int, way: Way | None) -> None:
        self.partition, self.pieces, self.since_us, self.until_us, self.way = partition, pieces, since_us, until_us, way


class StageReader(BucketReader):
    """Offsets and admission as for any stream; tasks that run the operator."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self._stage = decode_stage(self._options.get("stage") or "")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stage": self._stage}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        since, until = until_of(start), until_of(end)
        self._check_unmended(end)
        self._check_reach(until)
        if until == BEGINNING_US:
            return []
        pieces = self._merge.pieces(since, until)
        if self._way is None:
            self._way = way_of(self._stage.plan, [source.folder for source in self._sources], PROCESS)
        way = self._way and self._way._replace(archived=archived_places(self._sources, pieces))
        return [StageTask(p, pieces, since, until, way) for p in range(self._stage.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StageTask)
        task = partition
        yield from run_stage(self._stage, self._sources, task,
                             lambda rows: rows.read(task.pieces, task.since_us, task.until_us))  # fmt: skip


class PlannedTask(Protocol):
    """As much as every task of an operator has, whatever it reads."""

    partition: int
    since_us: int
    until_us: int
    way: Way | None


def run_stage(
    stage: DirectStage, sources: Sequence[Source], task: PlannedTask, read: Callable[[Rows], pl.DataFrame]
) -> Iterator[pa.RecordBatch]:
    """One task of the operator; `read` says which tuples are new."""
    rows = Rows(stage, sources, task.partition, task.way)
    try:
        batch = Batch(task.since_us, task.until_us, read(rows), lambda at_us: rows.again(at_us, task.since_us))
        yield from this_task(stage.plan, task.way, task.partition).run(batch)
    finally:
        rows.close()


class Rows:
    """Tuples of one partition's groups, straight from the log, in processing order."""

    def __init__(self, stage: DirectStage, sources: Sequence[Source], partition: int, way: Way | None = None) -> None:
        self._stage, self._sources, self._partition, self._way = stage, sources, partition, way
        self._bodies = bodies_for(way, shared=stage.partitions > 1)
        self._stored = [pa.schema([pa.field("stime", pa.timestamp("us", "UTC"), False), *s.schema]) for s in sources]
        names = dict.fromkeys((*stage.keys, *stage.values))
        types = {field.name: field for schema in self._stored for field in schema}
        self._wanted = [[n for n in ("stime", *names) if n in schema.names] for schema in self._stored]
        self._taken = pa.schema([types["stime"], *(types[n].with_nullable(True) for n in names)])

    def read(self, pieces: Sequence[Piece], since_us: int, until_us: int) -> pl.DataFrame:
        found: list[pa.RecordBatch] = []
        paths = [path_of(self._sources, piece) for piece in pieces]
        self._bodies.expect([(path, piece.fields) for path, piece in zip(paths, pieces, strict=True)])
        for path, piece in zip(paths, pieces, strict=True):
            batch = self._event(path, piece.source, piece.fields)
            found += [part for _, part in cut(piece.fields, batch, since_us, until_us)]
        return self.taken(found)

    def _event(self, path: Path, source: int, fields: Fields) -> pa.RecordBatch:
        return self._bodies.read(path, fields, self._stored[source], self._wanted[source])

    def again(self, since_us: int, until_us: int) -> pl.DataFrame:
        """What was read before, looked up anew."""
        if self._way is not None and not self._way.sees_folder():
            return self.read(pieces_between(self._way, since_us, until_us), since_us, until_us)
        merge = Merge([StreamStore(Path(s.folder).parent).open(s.name) for s in self._sources])
        try:
            return self.read(merge.pieces(since_us, until_us), since_us, until_us)
        finally:
            merge.close()

    def planned(self, pieces: Sequence[PlannedPiece]) -> pl.DataFrame:
        """What a fork was given."""
        found = []
        self._bodies.expect([(Path(piece.path), piece.fields) for piece in pieces])
        for piece in pieces:
            batch = self._event(Path(piece.path), piece.source, piece.fields)
            found.append(batch if piece.rows == ALL_ROWS else batch.slice(0, piece.rows))
        return self.taken(found)

    def taken(self, batches: Sequence[pa.RecordBatch]) -> pl.DataFrame:
        """The tuples of this partition's groups among these."""
        shaped = [self._shaped(batch) for batch in batches]
        frame: pl.DataFrame = pl.from_arrow(pa.Table.from_batches(shaped, self._taken))  # type: ignore[assignment]
        return self._mine(frame)

    def close(self) -> None:
        self._bodies.close()

    def _shaped(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are wanted; one that the stream lacks is null, as for every reader of several streams."""
        known = part.schema.names
        arrays = [part.column(f.name) if f.name in known else pa.nulls(part.num_rows, f.type) for f in self._taken]
        return pa.RecordBatch.from_arrays(arrays, schema=self._taken)

    def _mine(self, frame: pl.DataFrame) -> pl.DataFrame:
        stage = self._stage
        keys = [frame[k] for k in stage.keys]
        numbers = numbered(keys, stage.salt) if keys else pl.Series("_h", np.zeros(len(frame), np.int64))
        columns = [numbers, frame["stime"].cast(pl.Int64).alias("_t")]
        if stage.plan.kernel_keys != ("_h",):
            columns += [k.alias(f"_k{i}") for i, k in enumerate(keys)]
        columns += [frame[v].alias(f"_v{i}") for i, v in enumerate(stage.values)]
        every = pl.DataFrame(columns)
        if stage.partitions == 1:
            return every
        mine = partition_of(np.ascontiguousarray(numbers.to_numpy()), stage.partitions) == self._partition
        return every.filter(pl.Series(mine))
