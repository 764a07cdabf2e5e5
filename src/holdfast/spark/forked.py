"""The source of a fork: exactly the buckets that the replica's controller has planned for it.

A fork begins with the offset of its parent's last commit and counts on in stime, as its parent does; so Spark, the
watermark and the sink see nothing unusual. What lies in a bucket was decided by somebody else and stands in a file.

An operator of Holdfast's gets the marks of its batch, as from any source (`ForkReader`), or reads what was planned
itself (`ForkStageReader`). It begins with its parent's version of the state. If that is lost, the parent's checkpoints
and the input in front of the fork make it again. A version of the fork's own that is lost ends the fork (`StateLost`):
the next one starts from a later commit of the parent, which is soon enough for what is tentative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from holdfast.spark.direct import decode_stage, run_stage
from holdfast.spark.grants import PROCESS, Way, way_for
from holdfast.spark.host_client import bodies_for
from holdfast.spark.idle import IdleWait
from holdfast.spark.options import READ_OPTIONS, Options
from holdfast.spark.restore import Restore
from holdfast.spark.source import Marks, boundary_row, offset_of, settled, settled_at, together, until_of
from holdfast.spark.stage import way_of
from holdfast.stream.merge import Merge, Piece, sources_of
from holdfast.stream.tentative import PlannedPiece, PlannedReader, PlanReader

#: Marks the place of a batch without tuples at the start of a fork.
_REHEARSAL = "rehearsal"
#: The answer that brings it: the first for which the reader has waited (`idle`), and in vain. A fork that somebody has
#: waited for has its plan by then.
_REHEARSED = 4


def ready_mark(plan: Path) -> Path:
    """The file by which a fork says that it could start a batch now."""
    return plan.with_suffix(".ready")


class ForkTask(InputPartition):
    """One batch of planned pieces. A tentative bucket is small: what is late has been thinned out already."""

    def __init__(self, pieces: Sequence[PlannedPiece], boundary_us: int | None) -> None:
        self.pieces, self.boundary_us = pieces, boundary_us
        self.way: Way | None = None
        self.marks: Marks | None = None
        self.before: Sequence[Piece] = ()
        """What a stage whose state is lost must see again, in front of the batch."""


class ForkStageTask(InputPartition):
    """One batch for one partition of an operator that reads itself."""

    def __init__(
        self, partition: int, pieces: Sequence[PlannedPiece], since_us: int, until_us: int, way: Way | None
    ) -> None:
        self.partition, self.pieces, self.since_us, self.until_us, self.way = partition, pieces, since_us, until_us, way


class ForkReader(DataSourceStreamReader):
    """Follows a plan."""

    def __init__(self, given: dict[str, str]) -> None:
        self._options = options = Options(given, READ_OPTIONS)
        self._path = Path(options.get("plan") or "")
        self._plan = PlanReader(self._path)
        self._boundaries = options.choice("boundaries", "before", "exact")
        self._marks, restore = options.integer("marks"), options.get("restore")
        self._restore = None if restore is None else Restore.of(restore, options.store)
        self._sources = sources_of(options.streams)
        self._stream_column = options.flag("streamcolumn", len(self._sources) > 1)
        self._step_us, self._timers = options.integer("step"), options.flag("timers", False)
        self._ready = False
        self._asked = 0
        self._idle = IdleWait()
        self._folders: set[str] = set()
        self._known_way: Way | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get a copy of the reader: they need the sources, not the plan.
        return {"_sources": self._sources, "_stream_column": self._stream_column}

    def initialOffset(self) -> dict[str, int]:
        raise AssertionError("a fork starts from its parent's checkpoint")

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if not self._ready:
            ready_mark(self._path).touch()
            self._ready = True
        since, settles = until_of(start), self._timers and not settled(start)
        if not settles or self._plan.until_us is None:
            self._idle.until(start, lambda: self._reaches(since))
        self._plan.refresh()
        until = self._plan.until_us
        if until is None:
            return self._rehearsal(start)
        if settles:
            return settled_at(since)
        if self._step_us is not None:
            until = self._plan.next_end(since)
        return start if until is None or until <= since else offset_of(until)

    def _rehearsal(self, start: dict[str, int]) -> dict[str, int]:
        """A fork that has nothing to read yet runs a batch without tuples: the first one of a query is several times
        slower than the rest, and Spark may have windows to release. Not where batches are the same in every run, and
        not for an operator of Holdfast's, whose versions of its state are told apart by where they end."""
        self._asked += 1
        exact = self._marks is not None or self._step_us is not None
        if exact or self._asked != _REHEARSED or _REHEARSAL in start:
            return start
        return {**start, _REHEARSAL: 1}

    def _reaches(self, since_us: int) -> bool:
        """Whether there is more in the plan."""
        self._plan.refresh()
        return self._plan.until_us is not None and self._plan.until_us > since_us

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        since, until, pieces = self._planned(start, end)
        if self._marks is None:
            task = ForkTask(pieces, boundary_row(self._boundaries, since, until))
            task.way = self._way(pieces)
            return [task]
        task = ForkTask(pieces, None)
        task.way = self._way(pieces)
        again = since if self._restore is None else self._restore.forked_us(since)
        if again < since:
            merge = Merge(self._options.streams)
            task.before = merge.pieces(again, since)
            merge.close()
        task.marks = (self._marks, (since, until, again))
        return [task]

    def _way(self, pieces: Sequence[PlannedPiece]) -> Way | None:
        """The way to its streams, and to copies from other hosts: a plan names files wherever they lie. One for all
        batches that need no other folders: who goes which way is told once."""
        needed = {*(s.folder for s in self._sources), *(str(Path(piece.path).parents[1]) for piece in pieces)}
        if self._known_way is None or not needed <= self._folders:
            self._folders |= needed
            self._known_way = self._way_to(sorted(self._folders))
        return self._known_way

    def _way_to(self, folders: Sequence[str]) -> Way | None:
        return way_for(folders, PROCESS)

    def _planned(self, start: dict[str, int], end: dict[str, int]) -> tuple[int, int, list[PlannedPiece]]:
        self._plan.refresh()
        since, until = until_of(start), until_of(end)
        return since, until, self._plan.pieces(since, until)

    def commit(self, end: dict[str, int]) -> None:
        self._plan.forget(until_of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ForkTask)
        bodies = bodies_for(partition.way)
        reader = PlannedReader(self._sources, stream_column=self._stream_column, bodies=bodies)
        try:
            if partition.marks is not None and partition.before:
                since, _, again = partition.marks[1]
                yield from reader.read(partition.before, again, since)
            yield from together(reader.planned(partition.pieces), reader, partition.boundary_us, partition.marks)
        finally:
            reader.close()


class ForkStageReader(ForkReader):
    """Follows a plan; its tasks run the operator."""

    def _rehearsal(self, start: dict[str, int]) -> dict[str, int]:
        return start

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self._stage = decode_stage(self._options.get("stage") or "")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stage": self._stage}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        since, until, pieces = self._planned(start, end)
        way = self._way(pieces)
        return [ForkStageTask(p, pieces, since, until, way) for p in range(self._stage.partitions)]

    def _way_to(self, folders: Sequence[str]) -> Way | None:
        return way_of(self._stage.plan, folders, PROCESS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ForkStageTask)
        task = partition
        yield from run_stage(self._stage, self._sources, task, lambda rows: rows.planned(task.pieces))
