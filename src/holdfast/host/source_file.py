"""How a deployment file says where the rows of a source come from.

sources:
  orders:
    host: a
    kafka: {brokers: "broker:9092", topic: orders, slack: 2s, columns: {key: customer}, config_file: client.properties}
    schema: "customer string, amount double"      # where set, the stream is made if it is not there
    bucket: 1s

The words below `kafka` are those of `holdfast.inputs.kafka.kafka`; paths are relative to the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.inputs.kafka import kafka
from holdfast.inputs.source import SourceSpec
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


class SourceWords(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    kafka: KafkaWords | None = None
    schema: str | None = None
    bucket: str | None = None


def source_spec(file: Path, stream: str, said: SourceWords) -> SourceSpec | None:
    """The source that the file describes; None if it says only where the stream lives."""
    if said.kafka is None:
        if said.schema is not None or said.bucket is not None:
            raise UsageError(f"source {stream!r} in {file}: schema and bucket go with kafka; add it, or leave them out")
        return None
    options: dict[str, Any] = {"topic": stream, **msgspec.to_builtins(said.kafka)}
    for path in ("avro_schema", "dead_letters", "config_file"):
        if path in options:
            options[path] = file.parent / options[path]
    if options.get("max_ahead") == "none":
        options["max_ahead"] = None
    try:
        source = kafka(options.pop("brokers"), **options)
        schema = None if said.schema is None else parse_schema(said.schema)
        return SourceSpec(stream, source, schema, None if said.bucket is None else duration_us(said.bucket))
    except UsageError as error:
        raise UsageError(f"source {stream!r} in {file}: {error}") from None
