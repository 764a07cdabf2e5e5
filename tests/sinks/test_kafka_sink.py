"""A topic of a real broker says what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Sink, Source, kafka
from holdfast.testing.sinks import KEYS, KILLS, Seen, SinkConformance, _changes
from tests.inputs.conftest import until
from tests.inputs.kafka_server import Kafka, kafka_broker

library = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
admin = pytest.importorskip("confluent_kafka.admin")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with kafka_broker() as server:
        yield server


#: How long Kafka may take to tell readers of a commit; an open transaction is looked at for so long, too.
_UNDER_WAY_S = 1.0


class View:
    """What a reader of a topic has made of it: the last record of each key, without those that were taken back."""

    def __init__(self, broker: Kafka, topic: str) -> None:
        self.rows: dict[bytes, dict[str, Any]] = {}
        self.types: list[str] = []
        self._consumer = library.Consumer({
            "bootstrap.servers": broker.address, "group.id": "view", "isolation.level": "read_committed",
            "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0, "fetch.wait.max.ms": 50,
        })  # fmt: skip
        self._admin = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        self._topic = topic
        self._read: dict[int, int] = {}
        """How far each partition was read, and what of it lies beyond the last look."""
        self._waiting: dict[int, deque[Any]] = {}

    def look(self) -> list[dict[str, Any]]:
        """Up to what is committed now, which is the end of a transaction."""
        if not self._read:
            topic = self._consumer.list_topics(timeout=60).topics.get(self._topic)
            if topic is None or not topic.partitions:
                return []
            self._read, self._waiting = dict.fromkeys(topic.partitions, 0), {p: deque() for p in topic.partitions}
            self._assign()
        committed, silences = self._committed(), 0
        while any(self._read[p] < end for p, end in committed.items()):
            message = self._consumer.poll(10)
            if message is None:  # The end is told once; whoever reads anew is told again.
                silences += 1
                assert silences < 6, f"nothing comes behind offsets {self._read}, and {committed} are committed"
                self._assign()
            elif (error := message.error()) is None:
                self._waiting[message.partition()].append(message)
                self._read[message.partition()] = message.offset() + 1
            elif error.code() == library.KafkaError._PARTITION_EOF:
                self._read[message.partition()] = message.offset()
        for p, end in committed.items():
            while self._waiting[p] and self._waiting[p][0].offset() < end:
                self._take(self._waiting[p].popleft())
        return list(self.rows.values())

    def _assign(self) -> None:
        self._consumer.assign([library.TopicPartition(self._topic, p, at) for p, at in self._read.items()])

    def _committed(self) -> dict[int, int]:
        """Kafka says that a transaction is committed a moment before its readers can see that, and in one partition
        before the other. So where something is under way, it is waited for, unless it takes long: then it is open, not
        committed."""
        level = library.IsolationLevel
        seen, since = None, 0.0
        while True:
            now = [self._latest(one) for one in (level.READ_UNCOMMITTED, level.READ_COMMITTED)]
            ends, committed = now
            through = all(committed[p] >= end for p, end in ends.items())
            if now != seen and not (through and len(ends) == 1):
                seen, since = now, time.monotonic()
            elif through or time.monotonic() > since + _UNDER_WAY_S:
                return committed
            time.sleep(0.02)

    def _latest(self, level: Any) -> dict[int, int]:
        """A broker without a turn on a busy machine is fenced for a moment, and asked again."""
        found: dict[int, int] = {}
        asked = {library.TopicPartition(self._topic, p): admin.OffsetSpec.latest() for p in self._read}

        def told() -> bool:
            with contextlib.suppress(library.KafkaException):
                for place, answer in self._admin.list_offsets(asked, isolation_level=level).items():
                    found[place.partition] = answer.result(60).offset
                return True
            return False

        until(told, 60)
        return found

    def _take(self, message: Any) -> None:
        self.types.append(dict(message.headers())["type"].decode())
        if message.value() is None:
            del self.rows[message.key()]
        else:
            self.rows[message.key()] = json.loads(message.value())

    def close(self) -> None:
        self._consumer.close()


class TestKafka(SinkConformance):
    #: More than one, and the topic is there before the sink is.
    partitions = 1

    @pytest.fixture(autouse=True)
    def _topic(self, broker: Kafka, request: pytest.FixtureRequest) -> Iterator[None]:
        self.broker, self.topic = broker, f"t{abs(hash(request.node.nodeid)):x}"
        if self.partitions > 1:
            make(broker, self.topic, self.partitions)
        self.view = View(broker, self.topic)
        yield
        self.view.close()

    def start(self, folder: Path) -> None:
        pass

    def sink(self, key: Sequence[str]) -> Sink:
        return kafka(self.broker.address, self.topic, key=key, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        rows = self.view.look()
        covered = {row["n"] % KEYS for row in rows if key and row["tentative"]}
        shown = [row for row in rows if row["tentative"] or row["n"] % KEYS not in covered]
        return [(row["n"], row["v"], row["tentative"]) for row in shown]


class TestSeveralPartitions(TestKafka):
    """Who looks at all of them between two transactions sees what the promise allows."""

    kills = max(2, KILLS // 4)
    partitions = 3
    replaced = False  # As with one partition.


SOURCE = Source("s", parse_schema("n bigint, k bigint, v bigint"))


def make(broker: Kafka, topic: str, partitions: int = 1, **config: str) -> None:
    """A topic, as somebody else would."""
    client = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    client.create_topics([admin.NewTopic(topic, partitions, config=config)])[topic].result(60)
    until(lambda: topic in client.list_topics(timeout=60).topics, 60)


def remove(broker: Kafka, topic: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    client.delete_topics([topic])[topic].result(60)
    until(lambda: topic not in client.list_topics(timeout=60).topics, 60)


def written(sink: Sink, first: int, position: str) -> str | None:
    """One life of a sink; where it began."""
    found = sink.resume(SOURCE)
    sink.apply(_changes(first), position)
    sink.close()
    return found


def placed(broker: Kafka, topic: str) -> dict[int, set[bytes]]:
    """Partition → the keys in it."""
    view = View(broker, topic)
    kept: dict[int, set[bytes]] = {}
    view._take = lambda message: kept.setdefault(message.partition(), set()).add(message.key())  # type: ignore[method-assign]
    view.look()
    view.close()
    return kept


def test_keys_stay_where_they_are_when_partitions_are_added(broker: Kafka) -> None:
    """T2: the old record of a key that moved would stay in a compacted topic for ever."""
    assert written(kafka(broker.address, "grown", key=["k"]), 0, "one") is None
    before = placed(broker, "grown")
    client = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    client.create_partitions([admin.NewPartitions("grown", 7)])["grown"].result(60)
    until(lambda: len(client.list_topics(timeout=60).topics["grown"].partitions) == 7, 60)
    assert written(kafka(broker.address, "grown", key=["k"]), 0, "two") == "one"
    assert placed(broker, "grown") == before


def test_another_key_or_kind_of_rows_is_refused(broker: Kafka) -> None:
    """T2: records under the keys of before would stay beside those of now."""
    assert written(kafka(broker.address, "keyed", key=["k"]), 0, "one") is None
    for key, tentative in ((["n"], False), ([], False), (["k"], True)):
        with pytest.raises(UsageError, match=r"was begun with key=\[k\] and tentative=False; got key=.*; name another"):
            kafka(broker.address, "keyed", key=key, tentative=tentative).resume(SOURCE)
    assert written(kafka(broker.address, "keyed", key=["k"]), 3, "two") == "one"


def test_a_topic_that_was_made_again_is_not_filled_from_the_middle(broker: Kafka) -> None:
    """T2."""
    assert written(kafka(broker.address, "anew"), 0, "one") is None
    remove(broker, "anew")
    make(broker, "anew")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"was deleted and made again, though anew\.holdfast says what it held"):
            kafka(broker.address, "anew").resume(SOURCE)
    remove(broker, "anew.holdfast")
    assert written(kafka(broker.address, "anew"), 0, "one") is None


def test_a_position_of_an_earlier_version_is_taken_and_completed(broker: Kafka) -> None:
    make(broker, "older", 2)
    make(broker, "older.holdfast", **{"cleanup.policy": "compact"})
    producer = library.Producer({"bootstrap.servers": broker.address, "log_level": 0})
    said = {"stream": "s", "position": "one", "writer": 4, "format": 1}
    producer.produce("older.holdfast", json.dumps(said).encode(), b"", partition=0)
    assert producer.flush(60) == 0
    assert written(kafka(broker.address, "older", key=["k"]), 0, "two") == "one"
    view = View(broker, "older.holdfast")
    places: list[dict[str, Any]] = []
    view._take = lambda message: places.append(json.loads(message.value()))  # type: ignore[method-assign]
    view.look()
    view.close()
    id = places[-1].pop("topic_id")
    assert id
    assert places[-1] == {"stream": "s", "position": "two", "writer": 5, "key": ["k"], "tentative": False,
                          "partitions": 2, "format": 2}  # fmt: skip
    with pytest.raises(UsageError, match=r"was begun with key=\[k\]"):
        kafka(broker.address, "older").resume(SOURCE)


def test_a_topic_of_stable_rows_has_no_word_about_tentative_ones(broker: Kafka) -> None:
    """And what does not fit is refused."""
    sink = kafka(broker.address, "plain")
    assert sink.resume(SOURCE) is None
    sink.apply(_changes(0), "one")
    sink.close()
    view = View(broker, "plain")
    assert view.look()[0] == {"holdfast_id": 1, "stime": "1970-01-01T00:00:00+00:00", "n": 0, "k": 0, "v": 0}
    assert set(view.types) == {"INSERTION"}
    view.close()
    with pytest.raises(UsageError, match="holds stream s; got other"):
        kafka(broker.address, "plain").resume(Source("other", SOURCE.columns))
    with pytest.raises(SchemaError, match="must be columns of stream s: n, k, v; got shop"):
        kafka(broker.address, "plain", key=["shop"]).resume(SOURCE)
    with pytest.raises(SchemaError, match="must not have a column 'tentative'"):
        kafka(broker.address, "plain", tentative=True).resume(Source("s", parse_schema("tentative boolean")))
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader",
              "sasl.password": "wrong"}  # fmt: skip
    with pytest.raises(UsageError, match="must accept the name and password"):
        kafka(broker.sasl_address, "plain", config=config).resume(SOURCE)


def test_a_topic_is_written_over_tls_where_the_certificate_is_trusted(broker: Kafka, tmp_path: Path) -> None:
    def trusting(authority: Path) -> Sink:
        settings = tmp_path / f"{authority.stem}.properties"
        settings.write_text(f"security.protocol=SSL\nssl.ca.location={authority}\n")
        return kafka(broker.tls_address, "sealed", config_file=settings)

    begun = time.monotonic()
    with pytest.raises(UsageError, match=r"must have a certificate that we trust \(ssl\.ca\.location in config\)"):
        trusting(broker.other_authority()).resume(SOURCE)
    assert time.monotonic() - begun < 20, "the first refusal is the last word"
    sink = trusting(broker.authority)
    assert sink.resume(SOURCE) is None
    sink.apply(_changes(0), "one")
    assert sink.resume(SOURCE) == "one"
    sink.close()
    view = View(broker, "sealed")
    assert [row["n"] for row in view.look()] == [0, 1, 2]
    view.close()


def test_a_topic_that_is_gone_while_its_position_is_there_is_refused(broker: Kafka) -> None:
    written(kafka(broker.address, "gone"), 0, "one")
    remove(broker, "gone")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"was not there, though gone\.holdfast says what it held"):
            kafka(broker.address, "gone").resume(SOURCE)
