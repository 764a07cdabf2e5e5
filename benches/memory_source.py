"""The limit that `spark_read` measures against: a source that yields prepared batches from memory, and nothing else.

A module of its own, so that Python workers import it and keep the prepared batch from task to task.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import holdfast
from holdfast.stream.merge import merged_schema, sources_of

COLUMNS = "source string, destination string, bytes bigint, duration double"
ROWS_PER_EVENT = 16_384


def example(rows: int, seed: int) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    return pa.record_batch({
        "source": pa.array([f"10.0.{h // 256}.{h % 256}" for h in random.integers(0, 5000, rows)]),
        "destination": pa.array([f"192.0.2.{h}" for h in random.integers(0, 256, rows)]),
        "bytes": random.integers(40, 1500, rows),
        "duration": random.random(rows),
    })  # fmt: skip


@functools.cache
def prepared(schema: pa.Schema) -> pa.RecordBatch:
    batch = example(ROWS_PER_EVENT, 0)
    ids = pa.array(np.arange(ROWS_PER_EVENT))
    stimes = pa.array(np.full(ROWS_PER_EVENT, 1_700_000_000_000_000), pa.timestamp("us", "UTC"))
    types = pa.array(np.ones(ROWS_PER_EVENT, np.int8))
    return pa.RecordBatch.from_arrays([types, ids, stimes, *batch.columns], schema=schema)


class MemoryTask(InputPartition):
    def __init__(self, events: int, last: bool) -> None:
        self.events, self.last = events, last


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields one prepared batch again and again; nothing else."""

    def __init__(self, schema: pa.Schema, events: int, tasks: int) -> None:
        self.schema, self.events, self.tasks = schema, events, tasks

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": 1}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start == end:
            return [MemoryTask(0, True)]
        share = -(-self.events // self.tasks)
        return [MemoryTask(min(share, self.events - i * share), False) for i in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MemoryTask)
        ready = prepared(self.schema)
        for _ in range(partition.events):
            yield ready


class Memory(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_limit"

    def schema(self) -> StructType:
        return from_arrow_schema(self._arrow())

    def _arrow(self) -> pa.Schema:
        store = holdfast.open(self.options["root"])
        return merged_schema(sources_of([store.open("bench")]), stream_column=False)

    def streamReader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(self._arrow(), int(self.options["events"]), int(self.options["tasks"]))
