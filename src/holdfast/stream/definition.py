"""What a stream is declared to be: the part of it that never changes."""

from __future__ import annotations

import base64
from typing import ClassVar, Literal, TypedDict, get_args

import msgspec
import pyarrow as pa

from holdfast.model.errors import CorruptLog, UsageError
from holdfast.model.schema import SchemaLike, parse_schema, schema_text, stored_schema
from holdfast.model.time import duration_text, duration_us
from holdfast.stream.archive.objects import check_url
from holdfast.stream.columns import ADDED
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.writer import SEGMENT_BYTES

#: One Spark micro-batch takes 100 to 400 ms; finer buckets cost files and promise nothing that Spark could keep.
BUCKET_DEFAULT = "200ms"
PARTITIONS_MAX = 1024
#: Of a stream that is not always persisted: an older Holdfast would take what lies in memory for durable.
MEMORY_FORMAT = 2
#: Of a stream with an archive: an older Holdfast would take what is archived for removed.
ARCHIVE_FORMAT = 3
#: Of a stream that got columns later: an older Holdfast would take events from before for damaged.
COLUMNS_FORMAT = 4
#: What a stream holds in memory at most for readers that have not acknowledged it: some seconds of a fast one, and what
#: a disk takes in a second when a reader goes away.
MEMORY_BYTES = 128 << 20
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


_ACKNOWLEDGED = Retention(acknowledged=True)


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream with a bound pushes back when it is full (003 §4.9.4)."""

    bytes: int
    when_full: Literal["block", "drop_oldest"] = "block"
    """`drop_oldest` is for convergent queries: it keeps the newest and says what it dropped."""


#: When tuples are made durable: before `send` returns; while a known reader is away or behind; at the end only.
Persist = Literal["always", "on_demand", "never"]


class ArchivePolicy(msgspec.Struct, frozen=True):
    """Which archive a stream has, and what each tier keeps."""

    url: str
    disk: Retention | None = None
    """None: what the stream has."""
    archive: Retention = Retention()


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    FORMATS: ClassVar[tuple[int, ...]] = (FORMAT_VERSION, MEMORY_FORMAT, ARCHIVE_FORMAT, COLUMNS_FORMAT)

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
    persist: Persist = "always"
    memory_bytes: int = MEMORY_BYTES
    """Where it is not always persisted: what may wait in memory for its readers."""
    archive: str | None = None
    """The address of the object store that sealed segments go to. Then `retention` says what stays on the disk."""
    archive_retention: Retention = Retention()
    """What may be removed from the archive, and so for good."""
    first_arrow: str = ""
    """`arrow` as it was when the stream was created, where columns were added since (`stream.columns`)."""

    @property
    def limit(self) -> Bound | None:
        """What retention holds the stream to, whether its readers like it or not."""
        return Bound(self.memory_bytes, "drop_oldest") if self.persist == "never" else self.bound

    def require_replay(self, who: str) -> None:
        """Refuse the stream for somebody who must be able to read it, or what it wrote to it, again."""
        if self.persist != "always":
            raise UsageError(
                f"{who} must find every tuple of stream {self.name} again after any failure; it is kept "
                f"persist={self.persist!r}, which loses what lies in memory with the machine; create it with "
                f"persist='always'"
            )

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
    persist: Persist
    """When tuples are made durable."""
    memory_bytes: int
    archive: str | None
    """Where sealed segments go: s3://bucket/prefix, or file:///a/folder."""
    archive_retention: Retention | None
    """What may be removed from there; nothing set: everything is kept for ever."""


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
    persist: Persist = "always",
    memory_bytes: int = MEMORY_BYTES,
    archive: str | None = None,
    archive_retention: Retention | None = None,
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
    if persist not in get_args(Persist):
        raise UsageError(f"persist must be one of {', '.join(get_args(Persist))}; got {persist!r}")
    if persist != "always":
        if bound is not None or (retention or Retention()) not in (Retention(), _ACKNOWLEDGED):
            raise UsageError(
                f"a stream with persist={persist!r} keeps what its readers have not acknowledged, in memory up to "
                f"memory_bytes; retention and bound must not be set; leave them out, or use persist='always'"
            )
        if memory_bytes < 8 * SEGMENT_BYTES_MIN:
            raise UsageError(f"memory_bytes must be {8 * SEGMENT_BYTES_MIN} or more; got {memory_bytes}")
        retention = _ACKNOWLEDGED
        segment_bytes = min(segment_bytes, max(memory_bytes // 8, SEGMENT_BYTES_MIN))
    if bound is not None and bound.bytes < 2 * segment_bytes:
        segment_bytes = max(SEGMENT_BYTES_MIN, bound.bytes // 8)
    check_archive(archive, archive_retention, persist, bound)
    return Definition(
        id=id, name=name, columns=schema_text(arrow), arrow=_text_of(arrow),
        bucket_us=bucket_us, partitions=partitions, partition_by=partition_by, retention=retention or Retention(),
        bound=bound, segment_bytes=segment_bytes, created_us=now_us, persist=persist, memory_bytes=memory_bytes,
        archive=None if archive is None else check_url(archive), archive_retention=archive_retention or Retention(),
        format=ARCHIVE_FORMAT if archive is not None else FORMAT_VERSION if persist == "always" else MEMORY_FORMAT,
    )  # fmt: skip


def added_columns(definition: Definition, wanted: pa.Schema) -> pa.Schema | None:
    """Columns of a result that the stream has not got; None if it lacks some that the stream has, or types differ."""
    given = {field.name: field for field in wanted}
    if any(field.name not in given or given[field.name].type != field.type for field in definition.schema):
        return None
    return pa.schema([field.with_nullable(True) for field in wanted if field.name not in definition.schema.names])


def with_columns(definition: Definition, added: pa.Schema) -> Definition:
    """The same stream with more columns (`stream.columns`)."""
    schema = pa.schema([*definition.schema, *(field.with_metadata(ADDED) for field in added)])
    return msgspec.structs.replace(
        definition, columns=schema_text(schema), arrow=_text_of(schema), format=COLUMNS_FORMAT,
        first_arrow=definition.first_arrow or definition.arrow,
    )  # fmt: skip


def _text_of(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def check_archive(
    archive: str | None, archive_retention: Retention | None, persist: Persist, bound: Bound | None
) -> None:
    if archive is None:
        if archive_retention not in (None, Retention()):
            raise UsageError("archive_retention is what an archive keeps; give the stream an archive, or leave it out")
        return
    if persist != "always":
        raise UsageError(f"a stream with an archive must be kept persist='always'; got {persist!r}")
    if bound is not None and bound.when_full == "drop_oldest":
        raise UsageError(
            "a stream with an archive must not be bounded by drop_oldest: what is dropped before it is archived would "
            "be a gap in it; use when_full='block', which waits for the archive"
        )
