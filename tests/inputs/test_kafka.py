"""A topic of a real broker becomes a stream: once, in order, on time, whoever is killed (K1, K2, K3)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app as cli
from holdfast.clock import monotonic_us, now_us
from holdfast.inputs.kafka import KafkaSource, kafka
from holdfast.inputs.kafka_input import KafkaInput
from holdfast.model.errors import PeerError, UsageError
from tests.inputs import conftest
from tests.inputs.kafka_bridge import bridged
from tests.inputs.kafka_server import Kafka, kafka_broker

pytestmark = pytest.mark.slow

#: A moment of the past: records bring their times along.
T0_MS = 1_700_000_000_000
COLUMNS = "n bigint, part int, at bigint"
#: Raise it for a long run: HOLDFAST_KAFKA_KILLS=30 HOLDFAST_KAFKA_RECORDS=1000000
KILLS = int(os.environ.get("HOLDFAST_KAFKA_KILLS", "3"))
PLACES = {"partition": "part", "offset": "at"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with kafka_broker() as server:
        yield server


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """A JVM takes part: it may have to wait for its turn."""
    conftest.until(condition, seconds)


class Topic:
    """A topic of its own for one test."""

    def __init__(self, broker: Kafka, name: str, partitions: int = 2, **config: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.broker, self.name = broker, name
        self.admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        broker.create_topic(name, partitions, **config)
        self._connect = lambda: Producer(
            {"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0}
        )
        self._producer = self._connect()

    def send(self, partition: int, n: int, at_ms: int, **more: Any) -> None:
        self.put(partition, b'{"n": %d}' % n, at_ms, **more)

    def put(self, partition: int, value: bytes | None, at_ms: int, **more: Any) -> None:
        while True:
            try:
                return self._producer.produce(self.name, value, partition=partition, timestamp=T0_MS + at_ms, **more)
            except BufferError:
                self._producer.poll(0.1)

    def flush(self) -> None:
        assert self._producer.flush(120) == 0

    def add_partitions(self, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(60)
        self._producer = self._connect()  # The old one would hear of it in some minutes.

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(60)
        until(lambda: self.name not in self.admin.list_topics(timeout=10).topics)

    def remove_before(self, partition: int, offset: int) -> None:
        """As retention does."""
        from confluent_kafka import TopicPartition

        for future in self.admin.delete_records([TopicPartition(self.name, partition, offset)]).values():
            future.result(60)

    def content(self, partition: int) -> list[tuple[int, int]]:
        """Offsets and numbers of a partition, by a client of its own."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "oracle", "log_level": 0,
                             "enable.partition.eof": True, "enable.auto.commit": False})  # fmt: skip
        consumer.assign([TopicPartition(self.name, partition, 0)])
        found: list[tuple[int, int]] = []
        try:
            while True:
                for message in consumer.consume(10_000, 1):
                    if message.error() is not None:
                        return found
                    found.append((message.offset(), json.loads(message.value())["n"]))
        finally:
            consumer.close()


class Bank:
    """Sends transactions to a topic, with numbers below zero; every third is aborted.

    A broker that is killed may leave it unknown whether one was committed: the topic knows.
    """

    def __init__(self, broker: Kafka, topic: str, more: str = "") -> None:
        """`more`: fields of a value beside the number."""
        self._broker, self._topic, self._more = broker, topic, more
        self._producer: Any = None
        self.committed = self.aborted = self._turn = 0

    def transact(self) -> None:
        from confluent_kafka import KafkaException, Producer

        self._turn += 1
        try:
            if self._producer is None:
                self._producer = Producer({"bootstrap.servers": self._broker.address, "transactional.id": "bank",
                                           "log_level": 0})  # fmt: skip
                self._producer.init_transactions(120)
            self._producer.begin_transaction()
            for partition in range(3):
                value = f'{{"n": -{3 * self._turn + partition}{self._more}}}'
                self._producer.produce(self._topic, value.encode(), partition=partition)
            if self._turn % 3:
                self._producer.commit_transaction(120)
                self.committed += 1
            else:
                self._producer.flush(120)
                self._producer.abort_transaction(120)
                self.aborted += 1
        except KafkaException:
            self._producer = None  # The next one of this name ends whatever it has left open.


class Sender(threading.Thread):
    """Sends numbers to three partitions, and transactions in between, over the time of the kills: not all before the
    first."""

    def __init__(self, topic: Topic, kills: int, more: str = "") -> None:
        super().__init__(daemon=True)  # Of a test that fails, nothing is left behind.
        self.records = int(os.environ.get("HOLDFAST_KAFKA_RECORDS", "20000"))
        self.bank = Bank(topic.broker, topic.name, more)
        self._topic, self._more, self._every = topic, more, self.records // kills // 20
        self._rush = threading.Event()

    def run(self) -> None:
        for n in range(self.records):
            self._topic.put(n % 3, f'{{"n": {n}{self._more}}}'.encode(), 0)
            if n % self._every == 0:
                self.bank.transact()
                self._rush.wait(0.2)
        self._topic.flush()

    def finish(self) -> None:
        self._rush.set()
        self.join(600)
        assert not self.is_alive()
        assert min(self.bank.committed, self.bank.aborted) > 0

    def check(self, rows: list[dict[str, Any]]) -> None:
        """K1: each record is there once, in its partition's order, and of transactions the committed ones."""
        found: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
        for row in rows:
            found[row["part"]].append((row["at"], row["n"]))
        for p in range(3):
            assert found[p] == self._topic.content(p)
        assert sum(n >= 0 for numbers in found.values() for _, n in numbers) == self.records
        assert any(n < 0 for numbers in found.values() for _, n in numbers)


def run_again(one: KafkaInput) -> None:
    """As a host would: brokers may not have heard yet of a topic that was just made."""
    while True:
        with contextlib.suppress(PeerError):
            one.run()
            return


class Filled:
    """A stream that is filled from a topic, by inputs that come and go."""

    def __init__(self, root: Path, columns: str = "n bigint", bucket: str = "100ms") -> None:
        self.root = root
        self.stream = holdfast.open(root / "streams").create("s", columns, bucket=bucket)

    @contextlib.contextmanager
    def run(self, source: KafkaSource) -> Iterator[KafkaInput]:
        one = source.open(self.stream, self.root / "home")
        raised: list[BaseException] = []

        def guarded() -> None:
            try:
                run_again(one)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        try:
            yield one
        except AssertionError as error:
            if raised:  # Whatever the test waited for could not come.
                raise raised[0] from error
            raise
        finally:
            one.stop()
            thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    @contextlib.contextmanager
    def stopped_by(self, sentence: str, source: KafkaSource) -> Iterator[KafkaInput]:
        """What is done to the topic ends its input."""
        one = source.open(self.stream, self.root / "home")
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(run_again, one)
            try:
                yield one
                until(ended.done)
            finally:
                one.stop()
        with pytest.raises(UsageError, match=sentence):
            ended.result()

    def run_to_its_end(self, source: KafkaSource) -> None:
        """As a host would: what may pass is tried again."""
        while True:
            with contextlib.suppress(PeerError):
                source.open(self.stream, self.root / "home").run()
                return

    def rows(self) -> list[dict[str, Any]]:
        """What readers see: whole buckets."""
        with contextlib.closing(self.stream.subscribe()) as subscriber:
            return [row.values for row in subscriber.rows(timeout=0)]

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]

    def letters(self) -> list[dict[str, Any]]:
        path = self.root / "home" / "s.dead-letters.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def bucket_bytes(self) -> list[bytes]:
        """Every complete bucket as it lies in the log."""
        reader = self.stream.reader()
        try:
            return [reader.read(e).serialize().to_pybytes() for e in reader.extents(-(2**62), reader.boundary_us)]
        finally:
            reader.close()


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path)


def test_records_become_rows_once_and_a_second_start_goes_on_there_k1(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "once")
    for n in range(1000):
        topic.send(n % 2, n, n)
    topic.flush()
    source = kafka(broker.address, topic="once", slack="0s")
    with filled.run(source) as one:
        until(lambda: one.total.rows == 900)
        until(lambda: one.status().get("lag") == 0)
    for n in range(1000, 1300):
        topic.send(n % 2, n, n)
    topic.flush()
    with filled.run(source) as two:
        until(lambda: two.total.rows == 300)
    assert sorted(filled.numbers()) == list(range(1200))


def test_an_idle_partition_does_not_hold_results_back_k2(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "idle", partitions=4)
    with filled.run(kafka(broker.address, topic="idle", slack="0s")) as one:
        until(lambda: len(one.status().get("partitions", ())) == 4)
        for n in range(10):
            topic.send(0, n, n * 100)
        topic.flush()
        until(lambda: filled.numbers() == list(range(9)))
        assert one.status()["partitions"][3] == {"position": 0, "end": 0, "lag": 0, "committed": 0}


def test_a_topic_that_is_silent_follows_the_clock_where_that_was_asked_for(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "silent")
    with filled.run(kafka(broker.address, topic="silent", slack="0s", idle="advance")) as one:
        until(lambda: one.status().get("lag") == 0)
        topic.put(0, b'{"n": 1}', 3_600_000_000)  # Late by years: the stream has gone on.
        topic.flush()
        until(lambda: one.total.late == 1)
    assert filled.letters()[0]["offset"] == 0
    assert "comes after the boundary" in filled.letters()[0]["error"]


def test_a_partition_that_is_added_is_taken_up_from_its_beginning_k1(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "added", partitions=1)
    topic.send(0, 0, 0)
    topic.flush()
    with filled.run(kafka(broker.address, topic="added", slack="0s")) as one:
        until(lambda: one.status().get("lag") == 0)
        topic.add_partitions(2)
        until(lambda: len(one.status()["partitions"]) == 2)
        topic.send(1, 1, 50)
        topic.send(1, 2, 60)
        topic.flush()
        until(lambda: one.status()["partitions"][1]["position"] == 2)  # Or they came late: their times are long past.
        topic.send(0, 3, 500)
        topic.flush()
        until(lambda: one.total.rows == 3)
    assert filled.numbers() == [0, 1, 2]


def test_records_of_aborted_transactions_are_left_out_and_open_ones_are_waited_for_k1_k2(
    broker: Kafka, filled: Filled
) -> None:
    from confluent_kafka import Producer

    Topic(broker, "transactions", partitions=2)
    bank = Producer({"bootstrap.servers": broker.address, "transactional.id": "bank", "log_level": 0})
    bank.init_transactions(60)

    def put(partition: int, n: int) -> None:
        bank.produce("transactions", b'{"n": %d}' % n, partition=partition, timestamp=T0_MS + 100 * n)

    def transaction(*numbers: int, commit: bool) -> None:
        bank.begin_transaction()
        for n in numbers:
            put(0, n)
        bank.flush()
        bank.commit_transaction(60) if commit else bank.abort_transaction(60)

    with filled.run(kafka(broker.address, topic="transactions", slack="0s")) as one:
        transaction(0, 1, commit=True)
        transaction(2, 3, commit=False)
        transaction(4, 5, commit=True)
        until(lambda: filled.numbers() == [0, 1, 4])
        bank.begin_transaction()
        put(0, 6)
        bank.flush()
        other = Topic(broker, "transactions-other")
        other.name = "transactions"
        other.send(1, 9, 900)
        other.flush()
        until(lambda: one.status()["partitions"][1]["position"] == 1)
        until(lambda: one.status()["partitions"][0]["lag"] == 1)  # It may come to count: it holds the others back.
        assert filled.numbers() == [0, 1, 4]
        bank.commit_transaction(60)
        until(lambda: filled.numbers() == [0, 1, 4, 5, 6])
        until(lambda: one.status()["partitions"][0]["lag"] == 0)


def test_a_compacted_topic_with_tombstones_is_read_with_its_gaps(broker: Kafka, tmp_path: Path) -> None:
    filled = Filled(tmp_path, "n bigint, who string, at bigint")
    topic = Topic(broker, "compacted", 1, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01",
                  max_compaction_lag_ms="200")  # fmt: skip
    for n in range(20):
        topic.send(0, n, n, key=b"ann")
    topic.put(0, None, 20, key=b"bob")
    topic.flush()

    clock = itertools.count(1)

    def compacted() -> bool:
        topic.put(0, b'{"n": -1}', 100 * next(clock), key=b"clock")  # Segments are rolled by what is written.
        topic.flush()
        return topic_offsets(topic) != list(range(len(topic_offsets(topic))))

    until(compacted, 60)
    topic.send(0, 21, 1_000_000, key=b"zoe")
    topic.flush()
    names = {"key": "who", "offset": "at"}
    with filled.run(kafka(broker.address, topic="compacted", slack="0s", columns=names)) as one:
        until(lambda: one.status().get("lag") == 0 and len(filled.rows()) > 0)
    rows = [row for row in filled.rows() if row["who"] != "clock"]
    assert rows[-1] == {"n": None, "who": "bob", "at": 20}
    assert len(rows) < 21
    other = Filled(tmp_path / "other", "n bigint, who string, at bigint")
    with other.run(kafka(broker.address, topic="compacted", slack="0s", columns=names, tombstones="skip")) as two:
        until(lambda: two.status().get("lag") == 0 and len(other.rows()) > 0)
    assert all(row["n"] is not None for row in other.rows())


def topic_offsets(topic: Topic) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": topic.broker.address, "group.id": "oracle", "log_level": 0,
                         "enable.partition.eof": True, "enable.auto.commit": False})  # fmt: skip
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    found: list[int] = []
    try:
        while True:
            for message in consumer.consume(1000, 1):
                if message.error() is not None:
                    return found
                found.append(message.offset())
    finally:
        consumer.close()


def test_a_bad_record_goes_to_the_dead_letters_with_its_place_and_once(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "bad", 1, message_timestamp_after_max_ms=str(2**62))
    topic.send(0, 0, 0)
    topic.put(0, b'{"n": "one"}', 1)
    topic.put(0, b"\xff\x00", 2)
    topic.send(0, 3, 3)
    topic.send(0, 4, 500)
    topic.send(0, 5, now_us() // 1000 - T0_MS + 7_200_000)  # Two hours ahead of the clock.
    topic.flush()
    for _ in range(2):
        with filled.run(kafka(broker.address, topic="bad", slack="0s")) as one:
            until(lambda: filled.numbers() == [0, 3])
            until(lambda one=one: one.status().get("lag") == 0)
    first, second, third = filled.letters()
    assert (first["topic"], first["partition"], first["offset"], first["text"]) == ("bad", 0, 1, '{"n": "one"}')
    assert "column 'n' must be bigint" in first["error"]
    assert (second["offset"], second["base64"]) == (2, "/wA=")
    assert third["offset"] == 5
    assert "too far ahead of the clock" in third["error"]


def test_what_was_there_before_can_be_left_out_and_partitions_that_come_later_cannot_k1(
    broker: Kafka, filled: Filled
) -> None:
    topic = Topic(broker, "latest", partitions=1)
    topic.send(0, 0, 0)
    topic.flush()
    source = kafka(broker.address, topic="latest", slack="0s", begin="latest")
    with filled.run(source) as one:
        until(lambda: one.status().get("lag") == 0)
        topic.send(0, 1, 100)
        topic.send(0, 2, 200)
        topic.flush()
        until(lambda: filled.numbers() == [1])
    topic.add_partitions(2)
    topic.send(1, 3, 300)
    topic.send(0, 4, 400)
    topic.flush()
    with filled.run(source):
        until(lambda: filled.numbers() == [1, 2, 3])


def test_without_dead_letters_a_bad_record_stops_the_input_and_nothing_before_it_is_lost(
    broker: Kafka, filled: Filled
) -> None:
    topic = Topic(broker, "stops", partitions=1)
    topic.send(0, 0, 0)
    topic.send(0, 1, 500)
    topic.put(0, b"{", 501)
    topic.flush()
    source = kafka(broker.address, topic="stops", slack="0s", dead_letters=None)
    with pytest.raises(UsageError, match=r"stream s: topic stops partition 0 offset 2: .*it must be JSON"):
        filled.run_to_its_end(source)
    assert filled.numbers() == [0]


def test_a_topic_that_is_not_there_is_said_at_once(broker: Kafka, filled: Filled) -> None:
    with pytest.raises(UsageError, match=r"must have a topic nowhere; there is none; check the name"):
        filled.run_to_its_end(kafka(broker.address, topic="nowhere"))


def test_a_wrong_password_is_said_at_once_and_a_right_one_is_let_in(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "secret", partitions=1)
    topic.send(0, 0, 0)
    topic.send(0, 1, 500)
    topic.flush()

    def with_password(word: str) -> KafkaSource:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
        return kafka(broker.sasl_address, topic="secret", slack="0s", config={**settings, "sasl.password": word})

    with pytest.raises(UsageError, match="it refuses them"):
        filled.run_to_its_end(with_password("wrong"))
    with filled.run(with_password("right")):
        until(lambda: filled.numbers() == [0])


def test_a_certificate_that_is_not_trusted_is_said_at_once_and_a_trusted_one_is_taken(
    broker: Kafka, filled: Filled
) -> None:
    topic = Topic(broker, "sealed", partitions=1)
    topic.send(0, 0, 0)
    topic.send(0, 1, 500)
    topic.flush()

    def trusting(authority: Path) -> KafkaSource:
        settings = filled.root / f"{authority.stem}.properties"
        settings.write_text(f"security.protocol=SSL\nssl.ca.location={authority}\n")
        return kafka(broker.tls_address, topic="sealed", slack="0s", config_file=settings)

    begun = monotonic_us()
    with pytest.raises(UsageError, match=r"must have a certificate that we trust \(ssl\.ca\.location in config\)"):
        filled.run_to_its_end(trusting(broker.other_authority()))
    assert monotonic_us() - begun < 20_000_000, "the first refusal is the last word"
    with filled.run(trusting(broker.authority)):
        until(lambda: filled.numbers() == [0])


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "again", partitions=1)
    for n in range(3):
        topic.send(0, n, n * 200)
    topic.flush()
    with filled.run(kafka(broker.address, topic="again", slack="0s")):
        until(lambda: filled.numbers() == [0, 1])
    topic.delete()
    Topic(broker, "again", partitions=1)
    with pytest.raises(UsageError, match="deleted and made again"):
        filled.run_to_its_end(kafka(broker.address, topic="again"))


@pytest.mark.parametrize(
    ("name", "partitions", "records"), [("longer", 2, 9), ("shorter", 2, 1), ("fewer", 1, 9), ("idle-again", 2, 0)]
)
def test_a_topic_that_is_made_again_under_a_running_bridge_ends_it_and_leaves_nothing_in_its_place_k1(
    name: str, partitions: int, records: int, broker: Kafka, filled: Filled
) -> None:
    topic = Topic(broker, name, partitions=2)
    for n in range(3):
        topic.send(0, n, n * 200)
    topic.flush()
    source = kafka(broker.address, topic=name, slack="0s")
    sentence = r"must be the one that was read before, .* it was deleted and made again"
    with filled.stopped_by(sentence, source) as one:
        until(lambda: filled.numbers() == [0, 1] and one.status().get("lag") == 0)
        topic.delete()
        successor = Topic(broker, name, partitions=partitions)
        for n in range(records):
            successor.send(n % partitions, 100 + n, 1000 + n * 200)
        successor.flush()
    with pytest.raises(UsageError, match=sentence):
        filled.run_to_its_end(source)
    with filled.run(kafka(broker.address, topic=name, slack="0s", id="second")) as one:
        until(lambda: one.status().get("lag") == 0)
        until(lambda: len(filled.numbers()) >= 2 + max(0, records - 1))
    assert [n for n in filled.numbers() if n >= 100] == list(range(100, 100 + max(0, records - 1)))


def test_records_that_kafka_removes_while_they_wait_are_said_as_at_a_start_k1(broker: Kafka, filled: Filled) -> None:
    """A partition that is far ahead waits for the others; retention does not."""
    topic = Topic(broker, "passed", partitions=1)
    for n in range(3):
        topic.send(0, n, n * 200)
    topic.flush()
    sentence = "partition 0 must still have the record at offset 3, where reading goes on; it has 5 to 6; records were"
    with filled.stopped_by(sentence, kafka(broker.address, topic="passed")) as one:
        until(lambda: one.status().get("lag") == 0)
        one._client.pause({0})
        for n in range(3, 6):
            topic.send(0, n, n * 200)
        topic.flush()
        topic.remove_before(0, 5)
        one._client.resume({0})


def test_records_that_kafka_removed_before_they_were_read_are_not_passed_over(broker: Kafka, filled: Filled) -> None:
    topic = Topic(broker, "removed", partitions=1)
    for n in range(3):
        topic.send(0, n, n * 200)
    topic.flush()
    with filled.run(kafka(broker.address, topic="removed", slack="0s")):
        until(lambda: filled.numbers() == [0, 1])
    topic.send(0, 3, 800)
    topic.send(0, 4, 900)
    topic.flush()
    topic.remove_before(0, 4)
    with pytest.raises(UsageError, match="offset 2, where reading goes on; it has 4 to 5; records were removed"):
        filled.run_to_its_end(kafka(broker.address, topic="removed"))


def test_after_the_disk_is_lost_the_same_topic_gives_the_same_buckets_byte_for_byte_k3(
    broker: Kafka, tmp_path: Path
) -> None:
    topic = Topic(broker, "lost", partitions=3)
    chance = random.Random(7)
    source = kafka(broker.address, topic="lost", slack="200ms", columns=PLACES)
    first = Filled(tmp_path / "first", COLUMNS)
    sent = 0
    for _ in range(3):  # Read in portions, by inputs that are stopped in between: held records are read again.
        for n in range(sent, sent + 500):
            topic.send(chance.randrange(3), n, n * 2 - chance.randrange(100))
        sent += 500
        topic.flush()
        with first.run(source) as one:
            until(lambda one=one: one.status().get("lag") == 0)
    second = Filled(tmp_path / "second", COLUMNS)
    with second.run(source) as one:
        until(lambda: one.status().get("lag") == 0)
        until(lambda: len(second.rows()) == len(first.rows()))
    assert len(first.rows()) > 1200
    assert first.bucket_bytes() == second.bucket_bytes()


def test_killed_bridges_and_brokers_lose_and_repeat_nothing_k1(broker: Kafka, tmp_path: Path) -> None:
    filled = Filled(tmp_path, COLUMNS)
    sender = Sender(Topic(broker, "killed", 3, message_timestamp_type="LogAppendTime"), KILLS)
    chance = random.Random(KILLS)
    sender.start()
    for turn in range(KILLS):
        program = [sys.executable, "-m", "tests.inputs.kafka_bridge"]
        bridge = subprocess.Popen([*program, str(tmp_path / "streams"), broker.address, "killed"])
        try:
            before = boundary_of(filled)
            until(lambda before=before: boundary_of(filled) > before, 120)
            threading.Event().wait(chance.random())
            if turn % 3 == 2:  # The bridge lives through it.
                broker.kill()
                broker.start()
                before = boundary_of(filled)
                until(lambda before=before: boundary_of(filled) > before, 120)
        finally:
            bridge.kill()
            bridge.wait()
    sender.finish()
    with filled.run(bridged(broker.address, "killed")) as one:
        until(lambda: one.status().get("lag") == 0, 300)
        done_us = now_us()
        until(lambda: boundary_of(filled) > done_us, 60)
    sender.check(filled.rows())


def boundary_of(filled: Filled) -> int:
    with contextlib.closing(filled.stream.reader()) as reader:
        return reader.boundary_us


def test_an_application_shows_how_its_source_does_and_stops_it(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "app", partitions=1)
    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("orders", kafka(broker.address, topic="app", slack="0s"), schema="n bigint", bucket="100ms")
    with app.start() as running:
        topic.send(0, 1, 0)
        topic.put(0, b"no", 1)
        topic.send(0, 2, 500)
        topic.flush()
        until(lambda: running.status()["sources"][0].get("rows") == 1)
        until(lambda: running.status()["sources"][0].get("dead") == 1)
        (source,) = running.status()["sources"]
    assert (source["stream"], source["state"], source["lag"], source["errors"]) == ("orders", "RUNNING", 0, 0)
    assert source["partitions"][0]["position"] == 3
    assert source["from"] == f"topic app of Kafka at {broker.address}"
    assert [row.values["n"] for row in running.streams.open("orders").subscribe().rows(timeout=0)] == [1]


def test_an_application_whose_source_cannot_run_says_so_where_it_was_started(broker: Kafka, tmp_path: Path) -> None:
    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("orders", kafka(broker.address, topic="nowhere"), schema="n bigint")
    with pytest.raises(UsageError, match=r"the source of stream orders does not run: .* must have a topic nowhere"):
        app.start()


def test_the_command_reads_a_topic_and_says_what_it_sent(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "orders", partitions=2)
    for n in range(10):
        topic.send(n % 2, n, n * 100, key=b"ann")
    topic.flush()

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli, words, env={"HOLDFAST_ROOT": str(tmp_path)}, prog_name="holdfast")

    assert run("create", "orders", "--schema", "n bigint, who string", "--bucket", "100ms").exit_code == 0
    words = ("send", "orders", "--kafka", broker.address, "--slack", "0s", "--column", "key=who", "--until-read")
    assert run(*words).stdout == "orders: 9 tuples sent\n"
    assert run(*words).stdout == "orders: 0 tuples sent\n"
    refused = run("send", "orders", "--kafka", broker.address, "--topic", "nowhere", "--until-read")
    assert "must have a topic nowhere; there is none" in str(refused.exception) + refused.output
    assert run("send", "orders", "--topic", "orders").exit_code == 2
