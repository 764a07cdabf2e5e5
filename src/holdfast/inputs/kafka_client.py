"""The client library of Kafka as the input needs it: one consumer that reads the partitions it is told to, and answers
about topics and ends that come when they come.

Rules:
1. An error that no retry can mend (authentication, authorisation, a certificate, an unknown topic) is raised at once,
   as `UsageError`. All others are counted and remembered, and the library itself tries again with growing pauses.
2. No call here waits longer than `ASK_S`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from typing import Any, NamedTuple

from holdfast.clock import Clock, monotonic_us, now_us
from holdfast.inputs.kafka_records import Message
from holdfast.model.errors import PeerError, UsageError

try:
    import confluent_kafka as library
    from confluent_kafka import admin as library_admin
except ImportError:  # The extra is optional; whoever opens a topic is told.
    library = None

#: For an answer of the brokers, before the question counts as failed and is asked again.
ASK_S = 5.0
#: How long a topic that was there may be unknown: brokers that have just started may not have heard of it.
_MISSING_US = 10_000_000
#: Records taken from the library at once: enough to make a unit worth its sync, few enough to be quick.
RECORDS_MAX = 20_000
_SETTINGS = {
    "group.id": "holdfast",  # Never joined; the library asks for one.
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "100",
    "fetch.error.backoff.ms": "100",
    "reconnect.backoff.max.ms": "2000",
    "queued.max.messages.kbytes": "32768",
    "topic.metadata.refresh.interval.ms": "5000",
}  # fmt: skip


class Topic(NamedTuple):
    """A topic as the brokers describe it."""

    id: str
    partitions: tuple[int, ...]
    asked_us: int


class Read(NamedTuple):
    """What one look brought: records by partition, and where partitions were read to their end."""

    messages: dict[int, list[Message]]
    ends: dict[int, int]
    gaps: tuple[int, ...] = ()
    """Partitions that have not the record that comes next, or never had it."""


class KafkaClient:
    """One consumer and one asker."""

    def __init__(
        self, brokers: str, topic: str, *, committed: bool, config: Mapping[str, str], clock: Clock = now_us
    ) -> None:
        """`clock` gives the times at which questions were asked."""
        if library is None:
            raise UsageError("reading Kafka needs the package confluent-kafka; install holdfast-streams[kafka]")
        self.topic, self._clock = topic, clock
        self.errors = 0
        self.last_error: str | None = None
        self._fatal: str | None = None
        ours = {"bootstrap.servers": brokers, "error_cb": self._on_error, "logger": silent(), **config}
        isolation = "read_committed" if committed else "read_uncommitted"
        try:
            self._consumer = library.Consumer({**_SETTINGS, "isolation.level": isolation, **ours})
            asking = {k: v for k, v in ours.items() if not k.startswith(("fetch.", "queued.", "group."))}
            self._admin = library_admin.AdminClient(asking)
        except (library.KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"Kafka at {brokers}: the settings of the client are refused: {_words(error)}") from None
        self._brokers = brokers
        self._ends: dict[Any, Any] | None = None
        self._ends_us = 0
        self._topic: Any = None
        self._topic_us = 0
        self._missing_us = 0

    # -- questions ---------------------------------------------------------------------------------------------------

    def describe(self) -> Topic:
        """The topic; waits for the answer. `PeerError` if there is none in time."""
        self.ask_topic()
        try:
            while not self._topic.done():
                self.read(0.02)  # What the brokers refuse is heard there.
            return self._described(self._topic.result())
        except TimeoutError:
            raise PeerError(f"Kafka at {self._brokers} does not answer; trying again") from None
        except library.KafkaException as error:
            if self._is_unknown(error.args[0]):
                raise UsageError(self._unknown) from None
            raise self._told(error) from None
        finally:
            self._topic = None

    def ask_topic(self) -> None:
        if self._topic is None:
            self._topic_us = self._clock()
            names = library.TopicCollection([self.topic])
            self._topic = self._admin.describe_topics(names, request_timeout=ASK_S)[self.topic]

    def topic_told(self) -> Topic | None:
        """The answer to `ask_topic`, once it is there."""
        if self._topic is None or not self._topic.done():
            return None
        asked, self._topic = self._topic, None
        try:
            return self._described(asked.result())
        except library.KafkaException as error:
            self._note(error.args[0])
            self._missing_us = self._missing_us or monotonic_us()
            if self._is_unknown(error.args[0]) and monotonic_us() - self._missing_us > _MISSING_US:
                raise UsageError(self._unknown) from None
            return None

    def topic_now(self, wait_s: float = ASK_S) -> Topic | None:
        """The topic as it is now; waits for the answer. None if there is none in time."""
        self._topic = None  # What was asked before says nothing of now.
        self.ask_topic()
        wait((self._topic,), wait_s)
        return self.topic_told()

    def _described(self, found: Any) -> Topic:
        self._missing_us = 0
        return Topic(str(found.topic_id), tuple(sorted(p.id for p in found.partitions)), self._topic_us)

    def check_append_times(self) -> None:
        """Refuse a topic that does not give every reader the same records with the same times, in order of time."""
        resource = library_admin.ConfigResource(library_admin.ConfigResource.Type.TOPIC, self.topic)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=ASK_S)[resource]
            found = {name: entry.value for name, entry in asked.result(ASK_S + 1).items()}
        except TimeoutError:
            raise PeerError(f"Kafka at {self._brokers} does not answer; trying again") from None
        except library.KafkaException as error:
            raise self._told(error) from None
        times, cleanup = found.get("message.timestamp.type"), found.get("cleanup.policy") or ""
        if times != "LogAppendTime":
            raise UsageError(
                f"topic {self.topic} must have message.timestamp.type=LogAppendTime to be read by several hosts; it "
                f"has {times}: late is then what comes late to a host; set it for a new topic, or name one host"
            )
        if "compact" in cleanup:
            raise UsageError(
                f"topic {self.topic} must keep its records to be read by several hosts; it has cleanup.policy="
                f"{cleanup}: who comes later finds fewer; name one host"
            )

    def limits(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """First and end offset of partitions; waits for the answers."""
        first, end = self._offsets(partitions, library_admin.OffsetSpec.earliest(), self._latest())
        return {p: (first[p], end[p]) for p in partitions}

    def begins(self, partitions: Sequence[int], since_us: int) -> dict[int, int]:
        """The offset of the first record of that time or later, of partitions that have one; waits for the answers."""
        (found,) = self._offsets(partitions, library_admin.OffsetSpec.for_timestamp(-(-since_us // 1000)))
        return {p: offset for p, offset in found.items() if offset >= 0}

    def _offsets(self, partitions: Sequence[int], *specs: Any) -> list[dict[int, int]]:
        try:
            asked = [self._list(partitions, spec) for spec in specs]
            return [{tp.partition: f.result(ASK_S + 1).offset for tp, f in one.items()} for one in asked]
        except TimeoutError:
            raise PeerError(f"Kafka at {self._brokers} does not answer; trying again") from None
        except library.KafkaException as error:
            raise self._told(error) from None

    def ask_ends(self, partitions: Sequence[int]) -> None:
        """Ask where partitions end: all records that were written, whether or not a transaction holds them back."""
        if self._ends is None and partitions:
            self._ends_us = self._clock()
            self._ends = self._list(partitions, self._latest())

    def ends_told(self) -> tuple[dict[int, int], int] | None:
        """The answer to `ask_ends`, as far as there is one, and when it was asked."""
        if self._ends is None or not all(future.done() for future in self._ends.values()):
            return None
        asked, self._ends = self._ends, None
        found = {}
        for place, future in asked.items():
            try:
                found[place.partition] = future.result().offset
            except library.KafkaException as error:
                self._note(error.args[0])
        return found, self._ends_us

    def _latest(self) -> Any:
        return library_admin.OffsetSpec.latest()

    def _list(self, partitions: Sequence[int], spec: Any) -> dict[Any, Any]:
        wanted = {library.TopicPartition(self.topic, p): spec for p in partitions}
        uncommitted = library.IsolationLevel.READ_UNCOMMITTED
        found: dict[Any, Any] = self._admin.list_offsets(wanted, isolation_level=uncommitted, request_timeout=ASK_S)
        return found

    # -- records -----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions as well, from these offsets on."""
        try:
            self._consumer.list_topics(self.topic, ASK_S)  # So that it knows them now, and not at its next look.
        except library.KafkaException as error:
            raise self._told(error) from None
        self._consumer.incremental_assign([library.TopicPartition(self.topic, p, at) for p, at in offsets.items()])

    def pause(self, partitions: set[int]) -> None:
        if partitions:
            self._consumer.pause([library.TopicPartition(self.topic, p) for p in partitions])

    def resume(self, partitions: set[int]) -> None:
        if partitions:
            self._consumer.resume([library.TopicPartition(self.topic, p) for p in partitions])

    def read(self, wait_s: float) -> Read:
        """What has come within `wait_s`, or sooner if it is much."""
        messages: dict[int, list[Message]] = {}
        ends: dict[int, int] = {}
        gaps: list[int] = []
        for message in self._consumer.consume(RECORDS_MAX, wait_s):
            error = message.error()
            if error is None:
                messages.setdefault(message.partition(), []).append(message)
            elif error.code() == library.KafkaError._PARTITION_EOF:
                ends[message.partition()] = message.offset()
            elif error.code() == library.KafkaError._AUTO_OFFSET_RESET:
                gaps.append(message.partition())
            else:
                self._note(error)
        self._admin.poll(0)
        self._check()
        return Read(messages, ends, tuple(gaps))

    def close(self) -> None:
        self._consumer.close()

    # -- errors ------------------------------------------------------------------------------------------------------

    def _on_error(self, error: Any) -> None:
        self._note(error)

    def _note(self, error: Any) -> None:
        self._fatal = self._fatal or refusal(
            error, f"Kafka at {self._brokers}", f"describe and read topic {self.topic}"
        )
        self.errors += 1
        self.last_error = error.str()

    def _told(self, error: Any) -> UsageError | PeerError:
        self._note(error.args[0])
        if self._fatal is not None:
            return UsageError(self._fatal)
        return PeerError(f"Kafka at {self._brokers}: {error.args[0].str()}; trying again")

    def _check(self) -> None:
        if self._fatal is not None:
            raise UsageError(self._fatal)

    def _is_unknown(self, error: Any) -> bool:
        codes = library.KafkaError
        return error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes.TOPIC_EXCEPTION)

    @property
    def _unknown(self) -> str:
        where = f"Kafka at {self._brokers}"
        return f"{where} must have a topic {self.topic}; there is none; check the name, or create it first"


def refusal(error: Any, where: str, what: str) -> str | None:
    """Rule 1: the sentence, if no retry can mend this error; `what` we wanted to do."""
    codes, code = library.KafkaError, error.code()
    if code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes.UNSUPPORTED_SASL_MECHANISM):
        return f"{where} must accept the name and password in config; it refuses them: {error.str()}"
    if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED,
                codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):  # fmt: skip
        return f"{where} must allow us to {what}; it refuses: {error.str()}"
    if code == codes._SSL and "verif" in error.str():
        return f"{where} must have a certificate that we trust (ssl.ca.location in config); {error.str()}"
    return None


def silent() -> logging.Logger:
    """The library's own log, which repeats what the input says itself."""
    quiet = logging.getLogger("holdfast.kafka.library")
    quiet.setLevel(logging.CRITICAL)
    return quiet


def _words(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first)
