"""What a stream is declared to be: the part of it that never changes."""

from __future__ import annotations

import base64
from typing import Literal, TypedDict

import msgspec
import pyarrow as pa

from holdfast.model.errors import CorruptLog, UsageError
from holdfast.model.schema import SchemaLike, parse_schema, schema_text, stored_schema
from holdfast.model.time import duration_text, duration_us
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.writer import SEGMENT_BYTES

#: One Spark micro-batch takes 100 to 400 ms; finer buckets cost files and promise nothing that Spark could keep.
BUCKET_DEFAULT = "200ms"
PARTITIONS_MAX = 1024
#: Below that, headers and files weigh more than tuples.
SEGMENT_BYTES_MIN = 4096


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be removed from the front. Nothing set: everything is kept for ever."""

    age_us: int | None = None
    """Remove what was written longer ago than this."""
    size_bytes: int | None = None
    """Remove the oldest while there is more than this."""
    acknowledged: bool = False
    """Remove what every subscriber has acknowledged (003 §4.9.3)."""

    @property
    def text(self) -> str:
        parts = []
        if self.age_us is not None:
            parts.append(f"age {duration_text(self.age_us)}")
        if self.size_bytes is not None:
            parts.append(f"size {self.size_bytes} bytes")
        if self.acknowledged:
            parts.append("acknowledged")
        return ", ".join(parts) or "keep for ever"


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream with a bound pushes back when it is full (003 §4.9.4)."""

    bytes: int
    when_full: Literal["block", "drop_oldest"] = "block"
    """`drop_oldest` is for convergent queries: it keeps the newest and says what it dropped."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT_VERSION
    id: str
    name: str
    columns: str
    """The schema in words, for people; `arrow` is what counts."""
    arrow: str
    bucket_us: int
    partitions: int = 1
    partition_by: str | None = None
    retention: Retention = Retention()
    bound: Bound | None = None
    segment_bytes: int = SEGMENT_BYTES
    created_us: int = 0

    @property
    def schema(self) -> pa.Schema:
        """The user's columns."""
        try:
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptLog(f"stream {self.name}: its schema cannot be read ({error})") from error

    @property
    def stored(self) -> pa.Schema:
        return stored_schema(self.schema)

    @property
    def id_bytes(self) -> bytes:
        return bytes.fromhex(self.id)


class StreamOptions(TypedDict, total=False):
    """What `StreamStore.create` takes."""

    bucket: str | int | float
    """How much time one bucket spans."""
    partitions: int
    partition_by: str | None
    """The column whose equal values stay together."""
    retention: Retention | None
    bound: Bound | None
    segment_bytes: int


def define(
    name: str,
    schema: SchemaLike,
    *,
    id: str,
    now_us: int,
    bucket: str | int | float = BUCKET_DEFAULT,
    partitions: int = 1,
    partition_by: str | None = None,
    retention: Retention | None = None,
    bound: Bound | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Definition:
    """Check everything that a user can get wrong about a stream, before anything is written."""
    arrow = parse_schema(schema)
    bucket_us = duration_us(bucket)
    if bucket_us < 1000:
        raise UsageError(f"a bucket must last 1ms or more, because Spark counts time in milliseconds; got {bucket!r}")
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(f"partitions must be 1 to {PARTITIONS_MAX}; got {partitions}")
    if partition_by is not None and partition_by not in arrow.names:
        raise UsageError(f"partition_by must name a column of ({schema_text(arrow)}); got {partition_by!r}")
    if segment_bytes < SEGMENT_BYTES_MIN:
        raise UsageError(f"a segment must have {SEGMENT_BYTES_MIN} bytes or more; got {segment_bytes}")
    if bound is not None and bound.bytes < 2 * segment_bytes:
        segment_bytes = max(SEGMENT_BYTES_MIN, bound.bytes // 8)
    return Definition(
        id=id, name=name, columns=schema_text(arrow), arrow=base64.b64encode(arrow.serialize().to_pybytes()).decode(),
        bucket_us=bucket_us, partitions=partitions, partition_by=partition_by, retention=retention or Retention(),
        bound=bound, segment_bytes=segment_bytes, created_us=now_us,
    )  # fmt: skip
