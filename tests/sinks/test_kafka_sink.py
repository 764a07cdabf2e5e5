"""A topic of a real broker says what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Sink, Source, kafka
from holdfast.testing.sinks import KEYS, Seen, SinkConformance
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
            "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
        })  # fmt: skip
        self._admin = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        self._topic, self._place, self._end, self._next = topic, None, 0, 0

    def look(self) -> list[dict[str, Any]]:
        """Up to what is committed now, which is the end of a transaction."""
        if self._place is None:
            if self._topic not in self._consumer.list_topics(timeout=60).topics:
                return []
            self._place = library.TopicPartition(self._topic, 0, 0)
            self._consumer.assign([self._place])
        committed, silences = self._committed(), 0
        while self._end < committed:
            message = self._consumer.poll(10)
            if message is None:  # The end is told once; whoever reads anew is told again.
                silences += 1
                assert silences < 6, f"nothing comes behind offset {self._end}, and {committed} are committed"
                self._consumer.assign([library.TopicPartition(self._topic, 0, self._next)])
            elif (error := message.error()) is None:
                self._take(message)
            elif error.code() == library.KafkaError._PARTITION_EOF:
                self._end = message.offset()
        return list(self.rows.values())

    def _committed(self) -> int:
        """Kafka says that a transaction is committed a moment before its readers can see that. So where something is
        under way, it is waited for, unless it takes long: then it is open, not committed."""
        level, begun = library.IsolationLevel, time.monotonic()
        while True:
            end, committed = (self._latest(one) for one in (level.READ_UNCOMMITTED, level.READ_COMMITTED))
            if committed >= end or time.monotonic() > begun + _UNDER_WAY_S:
                return committed
            time.sleep(0.02)

    def _latest(self, level: Any) -> int:
        """A broker without a turn on a busy machine is fenced for a moment, and asked again."""
        found: list[int] = []

        def told() -> bool:
            (asked,) = self._admin.list_offsets(
                {self._place: admin.OffsetSpec.latest()}, isolation_level=level
            ).values()
            with contextlib.suppress(library.KafkaException):
                found.append(asked.result(60).offset)
            return bool(found)

        until(told, 60)
        return found[0]

    def _take(self, message: Any) -> None:
        self._next = message.offset() + 1
        self.types.append(dict(message.headers())["type"].decode())
        if message.value() is None:
            del self.rows[message.key()]
        else:
            self.rows[message.key()] = json.loads(message.value())

    def close(self) -> None:
        self._consumer.close()


class TestKafka(SinkConformance):
    @pytest.fixture(autouse=True)
    def _topic(self, broker: Kafka, request: pytest.FixtureRequest) -> Iterator[None]:
        self.broker, self.topic = broker, f"t{abs(hash(request.node.name)):x}"
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


def test_a_topic_of_stable_rows_has_no_word_about_tentative_ones(broker: Kafka) -> None:
    """And what does not fit is refused."""
    from holdfast.testing.sinks import _changes

    source = Source("s", parse_schema("n bigint, k bigint, v bigint"))
    sink = kafka(broker.address, "plain")
    assert sink.resume(source) is None
    sink.apply(_changes(0), "one")
    sink.close()
    view = View(broker, "plain")
    assert view.look()[0] == {"holdfast_id": 1, "stime": "1970-01-01T00:00:00+00:00", "n": 0, "k": 0, "v": 0}
    assert set(view.types) == {"INSERTION"}
    view.close()
    with pytest.raises(UsageError, match="holds stream s; got other"):
        kafka(broker.address, "plain").resume(Source("other", source.columns))
    with pytest.raises(SchemaError, match="must be columns of stream s: n, k, v; got shop"):
        kafka(broker.address, "plain", key=["shop"]).resume(source)
    with pytest.raises(SchemaError, match="must not have a column 'tentative'"):
        kafka(broker.address, "plain", tentative=True).resume(Source("s", parse_schema("tentative boolean")))
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader",
              "sasl.password": "wrong"}  # fmt: skip
    with pytest.raises(UsageError, match="must accept the name and password"):
        kafka(broker.sasl_address, "plain", config=config).resume(source)


def test_a_topic_is_written_over_tls_where_the_certificate_is_trusted(broker: Kafka, tmp_path: Path) -> None:
    from holdfast.testing.sinks import _changes

    source = Source("s", parse_schema("n bigint, k bigint, v bigint"))

    def trusting(authority: Path) -> Sink:
        settings = tmp_path / f"{authority.stem}.properties"
        settings.write_text(f"security.protocol=SSL\nssl.ca.location={authority}\n")
        return kafka(broker.tls_address, "sealed", config_file=settings)

    begun = time.monotonic()
    with pytest.raises(UsageError, match=r"must have a certificate that we trust \(ssl\.ca\.location in config\)"):
        trusting(broker.other_authority()).resume(source)
    assert time.monotonic() - begun < 20, "the first refusal is the last word"
    sink = trusting(broker.authority)
    assert sink.resume(source) is None
    sink.apply(_changes(0), "one")
    assert sink.resume(source) == "one"
    sink.close()
    view = View(broker, "sealed")
    assert [row["n"] for row in view.look()] == [0, 1, 2]
    view.close()


def test_a_topic_that_is_gone_while_its_position_is_there_is_refused(broker: Kafka) -> None:
    from holdfast.testing.sinks import _changes

    source = Source("s", parse_schema("n bigint, k bigint, v bigint"))
    sink = kafka(broker.address, "gone")
    sink.resume(source)
    sink.apply(_changes(0), "one")
    sink.close()
    client = admin.AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    client.delete_topics(["gone"])["gone"].result(60)
    until(lambda: "gone" not in client.list_topics(timeout=60).topics, 60)
    with pytest.raises(UsageError, match=r"was not there, though gone\.holdfast says what it held"):
        kafka(broker.address, "gone").resume(source)
