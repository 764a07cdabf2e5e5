"""One SparkSession for all tests of this folder: starting one takes longer than most of them.

A process has one SparkContext. Tests of other folders that run in between start and stop their own, so this one ends
with the folder, not with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark import session

T0 = 1_700_000_000


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    spark = session("holdfast-tests", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def store(tmp_path: Path) -> holdfast.StreamStore:
    return holdfast.open(tmp_path / "streams")


def at(seconds: float) -> datetime:
    """A time that many seconds after the tests' own zero."""
    return datetime.fromtimestamp(T0 + seconds, UTC)


def fill(store: holdfast.StreamStore, name: str, rows: list[tuple[float, str, int]], *, end: bool = True,
         bucket: str = "1s", until: float | None = None, **options: Any) -> holdfast.Stream:  # fmt: skip
    """A stream (key string, value bigint) with the given (seconds, key, value) rows."""
    stream = store.create(name, "key string, value bigint", bucket=bucket, exist_ok=True, **options)
    producer = stream.producer(stime="stime", slack="0s")
    if rows:
        producer.send_many([{"stime": at(t), "key": k, "value": v} for t, k, v in rows])
    if until is not None:
        producer.advance(round((T0 + until) * 1e6))
    producer.close(end=end)
    return stream


def tuples(stream: holdfast.Stream) -> list[tuple[Any, ...]]:
    """All complete tuples as (id, stime, values…)."""
    found: list[tuple[Any, ...]] = []
    for batch in stream.subscribe().poll():
        found += [tuple(r.values())[1:] for r in batch.to_pylist()]
    return found


def layout(stream: holdfast.Stream) -> list[tuple[Any, ...]]:
    """Everything of a stream that replicas must have in common, down to the bytes."""
    reader = stream.reader()
    found = []
    for extent in reader.extents(-(2**62), 2**62):
        f = extent.fields
        body = reader.read(extent)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, body.schema) as writer:
            writer.write_batch(body)
        found.append((f.bucket, f.partition, f.rows, f.first_tuple_id, f.body_crc, sink.getvalue().to_pybytes()))
    return found
