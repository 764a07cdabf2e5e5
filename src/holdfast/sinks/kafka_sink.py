"""A topic of Kafka that says what a stream says: stable records only, or a changelog that takes tentative ones back.

Rules:
1. Rows, retractions and the reader's position are one transaction. The position is a record of a small compacted topic
   beside the target; `resume` reads it as far as it is committed (T2).
2. A record's key is the row's: its `key` columns, or its `holdfast_id` (the tuple id; of a tentative row the negative).
   The key of a tentative row says so, and its retraction is a tombstone. So a compacted topic holds the last stable row
   of each key, and beside it a tentative one while there is one; a reader lets it cover the stable one.
3. Keys that are tentative stand in the position's topic, too: who resumes knows what there is to take back.
4. One writer: the transactional id is that of the target, and whoever begins with it fences the one before.
5. A row goes to the partition that its key gives without the mark: order between a tentative row, its retraction and
   the stable one that replaces it is kept. Kafka shows a transaction partition by partition: a look at all of them at
   one instant there is only where there is one partition (T3).
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.clock import monotonic_us, pause
from holdfast.inputs.kafka_client import refusal, silent
from holdfast.inputs.settings_file import read_settings
from holdfast.model.errors import PeerError, SchemaError, UsageError
from holdfast.model.time import SECOND_US
from holdfast.sinks.json_values import json_bytes
from holdfast.sinks.sink import Changes, Sink, Source

try:
    import confluent_kafka as library
    from confluent_kafka import admin as library_admin
except ImportError:  # The extra is optional; whoever resumes is told.
    library = None

#: For an answer of the brokers; a transaction that takes longer is begun anew.
_ANSWER_S = 30.0
#: Of these at the beginning, where a refusal may come instead.
_STEP_S = 1.0
#: How long a topic that was just made may take until all brokers know it, and how often to look.
_READY_S, _POLL_US = 10.0, 20_000
#: How long to wait where the producer's queue is full, before looking again.
_QUEUE_S = 0.1
#: Settings that the sink makes itself: with others it could lose or repeat records.
_OURS = frozenset(("bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "isolation.level"))
_ID, _TENTATIVE, _TYPE = "holdfast_id", "tentative", "type"


class _Place(msgspec.Struct, frozen=True):
    """What the position's record says."""

    stream: str
    position: str | None
    writer: int
    format: int = 1


class _Record(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes | None
    type: str | None


def kafka(
    brokers: str,
    topic: str,
    *,
    key: Sequence[str] = (),
    tentative: bool = False,
    config: Mapping[str, str] | None = None,
    config_file: str | os.PathLike[str] | None = None,
) -> KafkaSink:
    """Keep a topic at what a stream says; it is made if it is not there, compacted where there is a `key`.

    Values are JSON objects with `stime` and the stream's columns. `key` names the columns of the records' keys; without
    it a key is the tuple's id. `tentative` takes tentative rows as well, and retracts them with a tombstone when they
    are corrected. Readers need `isolation.level=read_committed`. `config`, `config_file`: settings of the client.
    """
    return KafkaSink(brokers, topic, key, tentative, dict(config or {}), config_file)


class KafkaSink(Sink):
    kind = "kafka"

    def __init__(
        self, brokers: str, topic: str, key: Sequence[str], tentative: bool, config: Mapping[str, str],
        config_file: str | os.PathLike[str] | None,
    ) -> None:  # fmt: skip
        for name, text in (("brokers", brokers), ("topic", topic)):
            if not isinstance(text, str) or not text.strip():
                raise UsageError(
                    f"{name} of a Kafka sink must be a text such as 'broker:9092' or 'totals'; got {text!r}"
                )
        self._brokers, self._topic, self._key, self.tentative = brokers, topic, tuple(key), tentative
        self._places = f"{topic}.holdfast"
        self._config, self._config_file = config, config_file
        self._producer: Any = None
        self._refused: str | None = None
        self._place = _Place("", None, 0)
        self._standing: dict[bytes, int] = {}
        """Tentative keys that the topic holds, and their partitions."""
        self._partitions = 1

    @property
    def target(self) -> str:
        return f"topic {self._topic} of Kafka at {self._brokers}"

    # -- opening -----------------------------------------------------------------------------------------------------

    def resume(self, source: Source) -> str | None:
        if library is None:
            raise UsageError("writing to Kafka needs the package confluent-kafka; install holdfast-streams[kafka]")
        self.close()
        self._check_columns(source)
        settings = self._settings()
        anew = self._prepare_topics(settings)
        self._producer = self._made(
            library.Producer, {**settings, "transactional.id": f"holdfast-{self._topic}", "linger.ms": 0}
        )
        self.run(self._producer.init_transactions, _ANSWER_S)  # Rule 4: what was open before is ended now.
        found = self._read_places(settings)
        if found is not None and found.stream != source.stream:
            raise UsageError(f"{self.target} holds stream {found.stream}; got {source.stream}; name another topic")
        if anew and found is not None and found.position is not None:
            raise UsageError(
                f"{self.target} was not there, though {self._places} says what it held; the rows before that would be "
                f"missing; restore the topic, or delete {self._places} as well to have it filled again"
            )
        writer = 1 if found is None else found.writer + 1
        self._place = _Place(source.stream, None if found is None else found.position, writer)
        self._commit(())
        return self._place.position

    def _check_columns(self, source: Source) -> None:
        ours = {_ID, "stime"} | ({_TENTATIVE} if self.tentative else set())
        if taken := ours & set(source.columns.names):
            raise SchemaError(
                f"stream {source.stream} must not have a column {taken.pop()!r}, which the sink uses itself; rename it "
                "in the query"
            )
        if unknown := set(self._key) - set(source.columns.names):
            raise SchemaError(
                f"the key of {self.target} must be columns of stream {source.stream}: "
                f"{', '.join(source.columns.names)}; got {', '.join(sorted(unknown))}"
            )

    def _settings(self) -> dict[str, Any]:
        asked = {**({} if self._config_file is None else read_settings(self._config_file)), **self._config}
        if forbidden := _OURS.intersection(asked):
            raise UsageError(f"the Kafka sink sets {', '.join(sorted(forbidden))} itself; leave them out of config")
        self._refused = None
        return {"bootstrap.servers": self._brokers, "error_cb": self._note, "logger": silent(), **asked}

    def _made(self, client: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
        try:
            return client(settings)
        except (library.KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"{self.target}: the settings of the client are refused: {_words(error)}") from None

    def _prepare_topics(self, settings: dict[str, Any]) -> bool:
        """Make the topics that are not there; the position's must be compacted, or it would be forgotten. Whether the
        target is new."""
        admin = self._made(library_admin.AdminClient, settings)
        known = self._topics(admin)
        compacted = {"cleanup.policy": "compact"}
        wanted = [library_admin.NewTopic(self._places, 1, config=compacted)]
        wanted += [library_admin.NewTopic(self._topic, config=compacted if self._key else {})]
        missing = [topic for topic in wanted if topic.topic not in known]
        for made in admin.create_topics(missing).values() if missing else ():
            with contextlib.suppress(_AlreadyThere):
                self.run(made.result, _ANSWER_S)
        self._partitions = self._count_partitions(admin)
        return any(topic.topic == self._topic for topic in missing)

    def _topics(self, admin: Any) -> dict[str, Any]:
        """Asked in small steps: what the brokers refuse is heard between them."""
        until = monotonic_us() + int(_ANSWER_S * SECOND_US)
        while True:
            try:
                return dict(admin.list_topics(timeout=_STEP_S).topics)
            except library.KafkaException as error:
                admin.poll(0)
                self._check()
                if monotonic_us() > until:
                    raise self._told(error.args[0]) from error

    def _count_partitions(self, admin: Any) -> int:
        until = monotonic_us() + int(_READY_S * SECOND_US)
        while True:
            found = self._topics(admin).get(self._topic)
            if found is not None and found.error is None and found.partitions:
                return len(found.partitions)
            if monotonic_us() > until:
                raise PeerError(f"{self.target} was made and is not ready yet; trying again")
            pause(_POLL_US)

    def _read_places(self, settings: dict[str, Any]) -> _Place | None:
        """Rules 1 and 3: all that is committed. Nobody else writes there, and our own transactions are ended."""
        consumer = self._made(library.Consumer, {
            **settings, "group.id": "holdfast", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed", "auto.offset.reset": "error",
        })  # fmt: skip
        place, self._standing = None, {}
        try:
            partition = library.TopicPartition(self._places, 0)
            first, _ = self.run(consumer.get_watermark_offsets, partition, _ANSWER_S)
            consumer.assign([library.TopicPartition(self._places, 0, first)])
            for key, value in self._until_end(consumer):
                if key == b"":
                    place = self._decoded(value)
                elif value is None:
                    self._standing.pop(key, None)
                else:
                    self._standing[key] = int(value)
        finally:
            consumer.close()
        return place

    def _until_end(self, consumer: Any) -> Iterator[tuple[bytes, bytes | None]]:
        while (message := consumer.poll(_ANSWER_S)) is not None:
            error = message.error()
            if error is None:
                yield message.key(), message.value()
            elif error.code() == library.KafkaError._PARTITION_EOF:
                return
            else:
                raise self._told(error)
        self._check()
        raise PeerError(f"{self.target}: its position was not read within {_ANSWER_S:g} s; trying again")

    def _decoded(self, value: bytes | None) -> _Place:
        try:
            place = msgspec.json.decode(value or b"", type=_Place)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"topic {self._places} must hold the position of this sink and nothing else; it holds a record that is "
                f"none ({error}); name another topic"
            ) from None
        if place.format != 1:
            raise UsageError(
                f"topic {self._places} was written by a later version (format {place.format}); use that one"
            )
        return place

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, position: str) -> None:
        standing = dict(self._standing)
        retracted = [self._tombstone(key, standing.pop(key)) for key in list(standing)] if changes.undo else []
        stable = list(self._records(changes.stable, False))
        tentative = list(self._records(changes.tentative, True)) if self.tentative else []
        standing.update((record.key, record.partition) for record in tentative)
        before, after = self._standing.keys(), standing.keys()
        notes = [self._standing_note(key, None) for key in before - after]
        notes += [self._standing_note(key, standing[key]) for key in after - before]
        place, self._place = self._place, msgspec.structs.replace(self._place, position=position)
        try:
            self._commit((retracted, stable, tentative, notes))
        except BaseException:
            self._place = place
            raise
        self._standing = standing

    def _tombstone(self, key: bytes, partition: int) -> _Record:
        return _Record(self._topic, partition, key, None, "UNDO")

    def _standing_note(self, key: bytes, partition: int | None) -> _Record:
        return _Record(self._places, 0, key, None if partition is None else b"%d" % partition, None)

    def _records(self, rows: pa.Table, tentative: bool) -> Iterator[_Record]:
        kind = "TENTATIVE" if tentative else "INSERTION"
        for row in rows.to_pylist():
            id = row.pop("tuple_id")
            row = {_ID: -id if tentative else id, **row, **({_TENTATIVE: tentative} if self.tentative else {})}
            plain = {name: row[name] for name in self._key} or {_ID: id}
            key = json_bytes(plain, self.target)
            partition = zlib.crc32(key) % self._partitions  # Rule 5.
            if tentative:
                key = json_bytes({**plain, _TENTATIVE: True} if self._key else {_ID: -id}, self.target)
            yield _Record(self._topic, partition, key, json_bytes(row, self.target), kind)

    def _commit(self, parts: Iterable[Sequence[_Record]]) -> None:
        """Rule 1."""
        self.run(self._producer.begin_transaction)
        for part in parts:
            self.load(part)
        self.load([_Record(self._places, 0, b"", msgspec.json.encode(self._place), None)])
        self.run(self._producer.commit_transaction, _ANSWER_S)

    def load(self, records: Sequence[_Record]) -> None:
        for record in records:
            headers = None if record.type is None else {_TYPE: record.type}
            while True:
                try:
                    self._producer.produce(
                        record.topic, record.value, record.key, partition=record.partition, headers=headers
                    )
                    break
                except BufferError:
                    self._producer.poll(_QUEUE_S)
                    self._check()
                except library.KafkaException as error:
                    raise self._told(error.args[0]) from error

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A call of the library, its errors as ours."""
        try:
            return call(*arguments)
        except library.KafkaException as error:
            raise self._told(error.args[0]) from error
        except TimeoutError:
            self._check()
            raise PeerError(f"{self.target} does not answer; trying again") from None

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def __getstate__(self) -> dict[str, Any]:
        """A description travels to other processes; a connection does not."""
        return {**self.__dict__, "_producer": None}

    # -- errors ------------------------------------------------------------------------------------------------------

    def _note(self, error: Any) -> None:
        self._refused = self._refused or refusal(error, f"Kafka at {self._brokers}", f"write to topic {self._topic}")

    def _check(self) -> None:
        if self._refused is not None:
            raise UsageError(self._refused)

    def _told(self, error: Any) -> Exception:
        self._note(error)
        codes, code = library.KafkaError, error.code()
        if self._refused is not None:
            return UsageError(self._refused)
        if code == codes.TOPIC_ALREADY_EXISTS:
            return _AlreadyThere(error.str())
        if code in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH) and self._replaced():
            return UsageError(
                f"another sink has taken over {self.target}; this one has stopped and changed nothing; run one at a "
                "time"
            )
        if code == codes.MSG_SIZE_TOO_LARGE:
            return UsageError(
                f"a row must fit into a record of {self.target}; one is too large: {error.str()}; raise "
                "message.max.bytes in config and at the topic, or leave columns out in the query"
            )
        return PeerError(f"{self.target} could not be changed: {error.str()}; nothing of this batch was")

    def _replaced(self) -> bool:
        """Whether another writer came; brokers fence one whose transaction took too long as well."""
        mine, standing = self._place.writer, self._standing
        try:
            found = self._read_places(self._settings())
        finally:
            self._standing = standing
        return found is not None and found.writer != mine


class _AlreadyThere(PeerError):
    """Somebody else made the topic meanwhile."""


def _words(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first)
