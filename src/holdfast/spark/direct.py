"""The short way: an operator that reads its streams itself.

Where nothing of the user's stands between the streams and the operator, tuples need not travel through the JVM and a
shuffle. Each task of the source is one partition of the operator: it reads the batch's events from the log, keeps the
tuples of its own groups, and yields results. All tasks read all events, which costs less than moving the tuples once as
long as there are few of them (`TASKS_MAX`).

A task that finds no state reads what it needs again on the spot: no other task and no query has to know.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from holdfast.model.time import BEGINNING_US
from holdfast.operators.numbering import numbered, partition_of
from holdfast.spark.source import BucketReader, until_of
from holdfast.spark.stage import Batch, StagePlan, this_task
from holdfast.stream.merge import Merge, Piece, Source
from holdfast.stream.reader import cut, read_extent
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
    def __init__(self, partition: int, pieces: Sequence[Piece], since_us: int, until_us: int) -> None:
        self.partition, self.pieces, self.since_us, self.until_us = partition, pieces, since_us, until_us


class StageReader(BucketReader):
    """Offsets and admission as for any stream; tasks that run the operator."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self._stage = decode_stage(self._options.get("stage") or "")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stage": self._stage}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        since, until = until_of(start), until_of(end)
        self._check_reach(until)
        if until == BEGINNING_US:
            return []
        pieces = self._merge.pieces(since, until)
        return [StageTask(p, pieces, since, until) for p in range(self._stage.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StageTask)
        task = partition
        yield from run_stage(self._stage, self._sources, task.partition, task.since_us, task.until_us,
                             lambda rows: rows.read(task.pieces, task.since_us, task.until_us))  # fmt: skip


def run_stage(
    stage: DirectStage, sources: Sequence[Source], partition: int, since_us: int, until_us: int,
    read: Callable[[Rows], pl.DataFrame],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """One task of the operator; `read` says which tuples are new."""
    rows = Rows(stage, sources, partition)
    try:
        batch = Batch(since_us, until_us, read(rows), lambda position_us: rows.again(position_us, since_us))
        yield from this_task(stage.plan, partition).run(batch)
    finally:
        rows.close()


class Rows:
    """Tuples of one partition's groups, straight from the log, in processing order."""

    def __init__(self, stage: DirectStage, sources: Sequence[Source], partition: int) -> None:
        self._stage, self._sources, self._partition = stage, sources, partition
        self._files: dict[Path, int] = {}
        self._stored = [pa.schema([pa.field("stime", pa.timestamp("us", "UTC"), False), *s.schema]) for s in sources]
        names = dict.fromkeys((*stage.keys, *stage.values))
        types = {field.name: field for schema in self._stored for field in schema}
        self._taken = pa.schema([types["stime"], *(types[n].with_nullable(True) for n in names)])

    def read(self, pieces: Sequence[Piece], since_us: int, until_us: int) -> pl.DataFrame:
        found: list[pa.RecordBatch] = []
        for piece in pieces:
            path = Path(self._sources[piece.source].folder, "main", piece.segment)
            batch = read_extent(self._files, path, piece.fields, self._stored[piece.source])
            found += [part for _, part in cut(piece.fields, batch, since_us, until_us)]
        return self.taken(found)

    def again(self, since_us: int, until_us: int) -> pl.DataFrame:
        """What was read before, looked up anew."""
        merge = Merge([StreamStore(Path(s.folder).parent).open(s.name) for s in self._sources])
        try:
            return self.read(merge.pieces(since_us, until_us), since_us, until_us)
        finally:
            merge.close()

    def planned(self, pieces: Sequence[PlannedPiece]) -> pl.DataFrame:
        """What a fork was given."""
        found = []
        for piece in pieces:
            batch = read_extent(self._files, Path(piece.path), piece.fields, self._stored[piece.source])
            found.append(batch if piece.rows == ALL_ROWS else batch.slice(0, piece.rows))
        return self.taken(found)

    def taken(self, batches: Sequence[pa.RecordBatch]) -> pl.DataFrame:
        """The tuples of this partition's groups among these."""
        shaped = [self._shaped(batch) for batch in batches]
        frame: pl.DataFrame = pl.from_arrow(pa.Table.from_batches(shaped, self._taken))  # type: ignore[assignment]
        return self._mine(frame)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

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
