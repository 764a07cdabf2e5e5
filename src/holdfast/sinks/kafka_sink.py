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
   one instant there is only where there is one partition (T3). Keys are dealt among as many partitions as the topic had
   at the beginning: one that is added stays empty, since a key that moved would leave its old record behind for ever.
6. The position's record says of which topic it is (by the brokers' id), and by which key and with which kind of rows it
   is filled. Whatever of that has changed is refused, before anything is written or the topic is made.
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
#: The id of every topic where brokers have none.
_NO_ID = "A" * 22
#: Settings that the sink makes itself: with others it could lose or repeat records.
_OURS = frozenset(("bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "isolation.level"))
#: Of the position's record; the last is written.
_FORMATS = (1, 2)
_ID, _TENTATIVE, _TYPE = "holdfast_id", "tentative", "type"


class _Place(msgspec.Struct, frozen=True):
    """What the position's record says."""

    stream: str
    position: str | None
    writer: int
    key: tuple[str, ...] | None = None
    """This and what follows is not said by format 1; it is then as it is found, and said from now on."""
    tentative: bool | None = None
    partitions: int = 0
    topic_id: str = ""
    """Also empty where the brokers are too old to have ids."""
    format: int = _FORMATS[-1]


class _Topic(NamedTuple):
    """A topic as the brokers describe it; without partitions if there is none."""

    id: str
    partitions: int


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
        admin = self._made(library_admin.AdminClient, settings)
        if self._places not in self._topics(admin):
            self._make(admin, self._places, compacted=True)  # Or it would be forgotten.
        self._producer = self._made(
            library.Producer, {**settings, "transactional.id": f"holdfast-{self._topic}", "linger.ms": 0}
        )
        self.run(self._producer.init_transactions, _ANSWER_S)  # Rule 4: what was open before is ended now.
        found = self._read_places(settings)
        self._place = self._begun(admin, source, found)
        self._commit(())
        return self._place.position

    def _begun(self, admin: Any, source: Source, found: _Place | None) -> _Place:
        """Rule 6: the record with which this life of the sink begins."""
        if found is not None and found.stream != source.stream:
            raise UsageError(f"{self.target} holds stream {found.stream}; got {source.stream}; name another topic")
        writer = 1 if found is None else found.writer + 1
        known = self._topic in self._topics(admin)
        if found is None or found.position is None:
            if not known:
                self._make(admin, self._topic, compacted=bool(self._key))
            topic = self._described(admin)
            return _Place(source.stream, None, writer, self._key, self.tentative, topic.partitions, topic.id)
        topic = self._described(admin) if known else _Topic("", 0)
        self._check_same(found, topic)
        return msgspec.structs.replace(
            found, writer=writer, key=self._key, tentative=self.tentative, format=_FORMATS[-1],
            partitions=found.partitions or topic.partitions, topic_id=found.topic_id or topic.id,
        )  # fmt: skip

    def _check_same(self, found: _Place, topic: _Topic) -> None:
        """Refuse to go on in a topic that is not, or would not be, what the position says."""
        other = bool(topic.id and found.topic_id) and topic.id != found.topic_id
        if other or topic.partitions < max(1, found.partitions):
            how = "was deleted and made again" if topic.partitions else "was not there"
            raise UsageError(
                f"{self.target} {how}, though {self._places} says what it held; the rows before that would be missing; "
                f"restore the topic, or delete {self._places} as well to have it filled again"
            )
        begun = (found.key, found.tentative)
        if None not in begun and begun != (self._key, self.tentative):
            raise UsageError(
                f"{self.target} was begun with key=[{','.join(found.key or ())}] and tentative={found.tentative}; got "
                f"key=[{','.join(self._key)}] and tentative={self.tentative}, and records of before would stay beside "
                f"those of now for ever; name another topic, or delete it and {self._places} to have it filled anew"
            )

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

    def _make(self, admin: Any, topic: str, *, compacted: bool) -> None:
        wanted = library_admin.NewTopic(topic, 1, config={"cleanup.policy": "compact"} if compacted else {})
        with contextlib.suppress(_AlreadyThere):
            self.run(admin.create_topics([wanted])[topic].result, _ANSWER_S)
        until = monotonic_us() + int(_READY_S * SECOND_US)
        while (found := self._topics(admin).get(topic)) is None or found.error is not None or not found.partitions:
            if monotonic_us() > until:
                raise PeerError(
                    f"topic {topic} of Kafka at {self._brokers} was made and is not ready yet; trying again"
                )
            pause(_POLL_US)

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

    def _described(self, admin: Any) -> _Topic:
        asked = admin.describe_topics(library.TopicCollection([self._topic]), request_timeout=_ANSWER_S)
        found = self.run(asked[self._topic].result, _ANSWER_S + 1)
        id = str(found.topic_id)
        return _Topic("" if id == _NO_ID else id, len(found.partitions))

    def _read_places(self, settings: dict[str, Any]) -> _Place | None:
        """Rules 1 and 3: all that is committed. Nobody else writes there, and our own transactions are ended."""
        consumer = self._made(library.Consumer, {
            **settings, "group.id": "holdfast", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed", "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # Nothing more will come: brokers would wait half a second for it.
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
        if place.format not in _FORMATS:
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
            partition = zlib.crc32(key) % self._place.partitions  # Rule 5.
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
