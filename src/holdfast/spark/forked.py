"""The source of a fork: exactly the buckets that the replica's controller has planned for it.

A fork begins with the offset of its parent's last commit and counts on in stime, as its parent does; so Spark, the
watermark and the sink see nothing unusual. What lies in a bucket was decided by somebody else and stands in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from holdfast.spark.options import READ_OPTIONS, Options
from holdfast.spark.source import boundary_row, offset_of, together, until_of
from holdfast.stream.merge import sources_of
from holdfast.stream.tentative import PlannedPiece, PlannedReader, PlanReader


def ready_mark(plan: Path) -> Path:
    """The file by which a fork says that it could start a batch now."""
    return plan.with_suffix(".ready")


class ForkTask(InputPartition):
    """One batch of planned pieces. A tentative bucket is small: what is late has been thinned out already."""

    def __init__(self, pieces: Sequence[PlannedPiece], boundary_us: int | None) -> None:
        self.pieces, self.boundary_us = pieces, boundary_us


class ForkReader(DataSourceStreamReader):
    """Follows a plan."""

    def __init__(self, given: dict[str, str]) -> None:
        options = Options(given, READ_OPTIONS)
        self._path = Path(options.get("plan") or "")
        self._plan = PlanReader(self._path)
        self._boundaries = options.choice("boundaries", "before", "exact")
        self._sources = sources_of(options.streams)
        self._stream_column = options.flag("streamcolumn", len(self._sources) > 1)
        self._ready = False

    def initialOffset(self) -> dict[str, int]:
        raise AssertionError("a fork starts from its parent's checkpoint")

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if not self._ready:
            ready_mark(self._path).touch()
            self._ready = True
        self._plan.refresh()
        until = self._plan.until_us
        return start if until is None or until <= until_of(start) else offset_of(until)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._plan.refresh()
        since, until = until_of(start), until_of(end)
        return [ForkTask(self._plan.pieces(since, until), boundary_row(self._boundaries, since, until))]

    def commit(self, end: dict[str, int]) -> None:
        self._plan.forget(until_of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ForkTask)
        reader = PlannedReader(self._sources, stream_column=self._stream_column)
        try:
            yield from together(reader.planned(partition.pieces), reader, partition.boundary_us)
        finally:
            reader.close()
