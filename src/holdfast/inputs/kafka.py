"""A topic of Kafka as the source of a stream, exactly once.

    app.source("orders", kafka("broker:9092", topic="orders", slack="2s"), schema="customer string, amount double")

Rules:
1. Offsets go into the log with the rows that they brought (`holdfast.inputs.partition_merge`); nothing is committed to
   Kafka, and no consumer group is joined: the stream has one writer, so its input reads every partition itself and
   takes up new ones when they appear.
2. A topic that was deleted and made again, also while it is read, is another topic, even under the same name; one whose
   stime is read from another place gives other buckets. Both are refused instead of mixed: a new `id` begins anew.
3. Offsets that Kafka has removed before they were read are an error; nothing is passed over in silence.
4. A record that does not fit, is too late or far too early goes to the dead letters, once, settled by the unit with its
   place (`holdfast.inputs.unit_letters`); where there are none, it stops the input with the reason.
5. A topic with LogAppendTime may be read by several hosts (`shared`), each with a copy of the stream of its own. Then
   no decision depends on a host's clock: time is the brokers' (`holdfast.inputs.broker_clock`), late is what its own
   partition makes late, every copy begins with the same record. So the copies are alike, byte for byte (K3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from holdfast.inputs.kafka_records import JsonValues, Values
from holdfast.inputs.kafka_values import AvroValues, ProtobufClass, ProtobufValues, given_schema, is_message
from holdfast.inputs.schema_registry import PREFIX, Registry
from holdfast.inputs.settings_file import read_settings
from holdfast.model.errors import UsageError
from holdfast.model.time import MAX_AHEAD, duration_us, instant_us
from holdfast.stream.store import Stream

if TYPE_CHECKING:
    from holdfast.inputs.kafka_input import KafkaInput

Duration = str | int | float
#: Settings of the client that the input makes itself: with others it could lose or repeat records.
OURS = frozenset((
    "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof",
    "isolation.level",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """Made by `kafka`, which says what each field means."""

    brokers: str
    topic: str
    values: Callable[[pa.Schema, str], Values] | None
    stime: str
    stime_unit: Literal["s", "ms", "us"]
    slack_us: int
    late: Literal["refuse", "drop"]
    idle_us: int | None
    max_ahead_us: int | None
    parts: Mapping[str, str]
    tombstones: Literal["row", "skip"]
    begin: Literal["earliest", "latest"] | int
    """Or the time, in microseconds, of the first record."""
    committed: bool
    id: str
    dead_letters: Path | Literal[True] | None
    config: Mapping[str, str] = field(repr=False)
    config_file: Path | None
    copies: bool = False
    """Rule 5; see `shared`."""

    def shared(self) -> KafkaSource:
        """The same source, read by several hosts."""
        if self.stime != "timestamp":
            raise UsageError(
                f"topic {self.topic} must have its stime from the broker (LogAppendTime) to be read by several hosts; "
                f"got stime={self.stime!r}; leave it out, or name one host"
            )
        if self.begin == "latest":
            raise UsageError(
                f"topic {self.topic} must be begun at the same record by several hosts, which come at different times; "
                "got begin='latest'; leave it out, say a time, or name one host"
            )
        return replace(self, copies=True, max_ahead_us=None)

    def check(self) -> None:
        """Refuse what can be seen to be wrong on the host that is to read it."""
        if isinstance(self.values, ProtobufClass):
            self.values.load()

    def open(self, stream: Stream, home: Path) -> KafkaInput:
        from holdfast.inputs.kafka_input import KafkaInput

        return KafkaInput(self, stream, home)

    def decoder(self) -> Callable[[pa.Schema, str], Values] | None:
        """`values` with what the registry wants to see of us."""
        if not isinstance(self.values, _Encoding) or self.values.registry is None:
            return self.values
        ours = {name.removeprefix(PREFIX): value for name, value in self._settings().items() if name.startswith(PREFIX)}
        return replace(self.values, registry=self.values.registry.let_in(ours))

    def _settings(self) -> dict[str, str]:
        """The file is read here: tools that only look at a deployment need not have it."""
        return {**({} if self.config_file is None else read_settings(self.config_file)), **self.config}

    def settings(self) -> dict[str, str]:
        """Those of the client."""
        found = {name: value for name, value in self._settings().items() if not name.startswith(PREFIX)}
        if forbidden := OURS.intersection(found):
            raise UsageError(f"the Kafka input sets {', '.join(sorted(forbidden))} itself; leave them out of config")
        return found

    def text(self) -> str:
        return f"topic {self.topic} of Kafka at {self.brokers}"


def kafka(
    brokers: str,
    *,
    topic: str,
    value: Literal["json", "avro", "columns"] | type | ProtobufClass = "json",
    avro_schema: str | Path | Mapping[str, Any] | None = None,
    registry: str | None = None,
    stime: str = "timestamp",
    stime_unit: Literal["s", "ms", "us"] = "us",
    slack: Duration = "1s",
    late: Literal["refuse", "drop"] = "refuse",
    idle: Literal["wait", "advance"] | Duration = "wait",
    max_ahead: Duration | None = MAX_AHEAD,
    columns: Mapping[str, str] | None = None,
    extra: Literal["refuse", "ignore"] = "refuse",
    tombstones: Literal["row", "skip"] = "row",
    begin: str = "earliest",
    committed: bool = True,
    id: str | None = None,
    dead_letters: str | Path | Literal[True] | None = True,
    config: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> KafkaSource:
    """Records of a topic become rows of a stream.

    `value`: how values are encoded: "json", "avro" (with `avro_schema`, or the address of a schema `registry`), a class
    generated by Protocol Buffers, or "columns", which takes the parts of a record as they are. `extra`: whether a field
    that the stream has no column for is refused. `columns` puts parts of a record (key, topic, partition, offset,
    timestamp, headers) into columns: `{"key": "customer"}`. `stime`: "timestamp" of the
    record, or a column; `slack` is how much disorder it has. A record below the boundary is `late`. `idle`: as for a
    producer; "advance" lets the boundary follow the clock where everything is read. `committed`: leave out records of
    transactions that were aborted, and wait for those that are open. `begin`: where a topic is begun that was never
    read: "earliest", "latest", or a time, that of the first record. `config`, `config_file`: settings of the client,
    such as those of SASL and TLS, and with `schema.registry.` in front of the registry.
    """
    values = _values(value, _word("extra", extra, "refuse", "ignore") == "ignore", avro_schema, registry)
    for name, text in (("brokers", brokers), ("topic", topic)):
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{name} of a Kafka source must be a text such as 'broker:9092' or 'orders'; got {text!r}")
    return KafkaSource(
        brokers=brokers, topic=topic, values=values, stime=stime,
        stime_unit=_word("stime_unit", stime_unit, "s", "ms", "us"), slack_us=duration_us(slack),
        late=_word("late", late, "refuse", "drop"),
        idle_us=None if idle == "wait" else 0 if idle == "advance" else duration_us(idle),
        max_ahead_us=None if max_ahead is None else duration_us(max_ahead), parts=dict(columns or {}),
        tombstones=_word("tombstones", tombstones, "row", "skip"), begin=_begin(begin),
        committed=committed, id=id or topic,
        dead_letters=dead_letters if dead_letters is None or dead_letters is True else Path(dead_letters),
        config=dict(config or {}), config_file=None if config_file is None else Path(config_file),
    )  # fmt: skip


def _begin(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    try:
        return instant_us(text)
    except UsageError:
        raise UsageError(
            f"begin must be 'earliest', 'latest', or a time such as '2026-03-01T12:00'; got {text!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Encoding:
    """Makes the decoder of values, once the columns are known. Those of the same words are equal, so that who reads a
    deployment file again sees whether it has changed."""

    extra: bool
    schema: str | Path | Mapping[str, Any] | None = None
    registry: Registry | None = None
    message: Any = None

    def __call__(self, schema: pa.Schema, stream: str) -> Values:
        if self.message is not None:
            return ProtobufValues(schema, self.extra, self.message)
        if self.schema is None and self.registry is None:
            return JsonValues(schema, stream, self.extra)
        return AvroValues(schema, self.extra, self.registry or given_schema(self.schema or ""))


def _values(
    value: str | type | ProtobufClass,
    extra: bool,
    avro_schema: str | Path | Mapping[str, Any] | None,
    registry: str | None,
) -> Callable[[pa.Schema, str], Values] | None:
    if value == "avro":
        if (avro_schema is None) == (registry is None):
            raise UsageError("value='avro' needs avro_schema= or registry=, and one of them only")
        return _Encoding(extra, schema=avro_schema, registry=None if registry is None else Registry(registry))
    if avro_schema is not None or registry is not None:
        raise UsageError(f"avro_schema and registry go with value='avro'; got value={value!r}")
    if value == "json":
        return _Encoding(extra)
    if isinstance(value, ProtobufClass):
        return replace(value, extra=extra)
    if is_message(value):
        return _Encoding(extra, message=value)
    if value != "columns":
        raise UsageError(
            f"value must be 'json', 'avro', 'columns', or a class generated by Protocol Buffers; got {value!r}"
        )
    return None


def _word(what: str, value: Any, *allowed: str) -> Any:
    if value not in allowed:
        raise UsageError(f"{what} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    return value
