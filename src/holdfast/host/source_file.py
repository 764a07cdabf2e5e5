"""How a deployment file says where the rows of a source come from.

sources:
  orders:
    host: a
    kafka: {brokers: "broker:9092", topic: orders, slack: 2s, columns: {key: customer}, config_file: client.properties}
    schema: "customer string, amount double"      # where set, the stream is made if it is not there
    bucket: 1s

  stock:
    host: b
    postgres: {url: "postgresql://ann@db/shop", table: stock}   # the table says the columns

With `hosts: [a, b]` instead of `host`, each of them reads the topic into a copy of its own.

The words below `kafka` are those of `holdfast.inputs.kafka.kafka`, those below `postgres` those of
`holdfast.inputs.postgres_changes.postgres_changes`; paths are relative to the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.inputs.kafka import kafka
from holdfast.inputs.postgres_changes import postgres_changes
from holdfast.inputs.source import Source, SourceSpec
from holdfast.model.errors import UsageError
from holdfast.model.schema import parse_schema
from holdfast.model.time import duration_us


class KafkaWords(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    brokers: str
    topic: str | None = None
    value: str | None = None
    avro_schema: str | None = None
    registry: str | None = None
    stime: str | None = None
    stime_unit: str | None = None
    slack: str | None = None
    late: str | None = None
    idle: str | None = None
    max_ahead: str | None = None
    columns: dict[str, str] | None = None
    extra: str | None = None
    tombstones: str | None = None
    begin: str | None = None
    id: str | None = None
    dead_letters: str | None = None
    config: dict[str, str] | None = None
    config_file: str | None = None


class PostgresWords(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    url: str
    table: str | None = None
    columns: list[str] | dict[str, str] | None = None
    snapshot: Literal["true", "false"] | None = None
    publication: str | None = None
    stime: str | None = None
    stime_unit: str | None = None
    slack: str | None = None
    late: str | None = None
    idle: str | None = None
    max_ahead: str | None = None
    id: str | None = None
    dead_letters: str | None = None


class SourceWords(msgspec.Struct, forbid_unknown_fields=True):
    host: str | None = None
    hosts: list[str] | None = None
    kafka: KafkaWords | None = None
    postgres: PostgresWords | None = None
    schema: str | None = None
    bucket: str | None = None


def homes(file: Path, stream: str, said: str | SourceWords) -> tuple[str, ...]:
    """The hosts that hold the stream."""
    if isinstance(said, str):
        return (said,)
    if (said.host is None) == (said.hosts is None):
        raise UsageError(f"source {stream!r} in {file} must have host: NAME or hosts: [NAME, …], and one of them only")
    found = (said.host,) if said.host is not None else tuple(said.hosts or ())
    if not found or len(set(found)) != len(found):
        raise UsageError(
            f"the hosts of source {stream!r} in {file} must be one or more, each once; got [{', '.join(found)}]"
        )
    return found


def source_spec(file: Path, stream: str, said: SourceWords) -> SourceSpec | None:
    """The source that the file describes; None if it says only where the stream lives."""
    if said.kafka is not None and said.postgres is not None:
        raise UsageError(f"source {stream!r} in {file}: kafka or postgres, not both; a stream has one writer")
    if said.kafka is not None:
        options: dict[str, Any] = {"topic": stream, **msgspec.to_builtins(said.kafka)}
    elif said.postgres is not None:
        options = {"table": stream, **msgspec.to_builtins(said.postgres)}
        options["snapshot"] = said.postgres.snapshot != "false"
    else:
        if said.schema is not None or said.bucket is not None:
            raise UsageError(
                f"source {stream!r} in {file}: schema and bucket go with kafka or postgres; add it, or leave them out"
            )
        return None
    for path in ("avro_schema", "dead_letters", "config_file"):
        if path in options:
            options[path] = file.parent / options[path]
    if options.get("max_ahead") == "none":
        options["max_ahead"] = None
    try:
        source: Source = (
            kafka(options.pop("brokers"), **options)
            if said.kafka is not None
            else postgres_changes(options.pop("url"), **options)
        )
        schema = None if said.schema is None else parse_schema(said.schema)
        return SourceSpec(stream, source, schema, None if said.bucket is None else duration_us(said.bucket))
    except UsageError as error:
        raise UsageError(f"source {stream!r} in {file}: {error}") from None
