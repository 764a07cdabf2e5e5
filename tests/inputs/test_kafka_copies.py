"""A topic with LogAppendTime, read by several hosts: copies are alike, and a lost host is no lost input (K3, D7)."""

from __future__ import annotations

import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest

import holdfast
from holdfast.clock import now_us, pause
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.host.sources import sources_on
from holdfast.inputs.kafka import KafkaSource, kafka
from holdfast.inputs.source import SourceSpec
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.model.tuples import TupleType
from tests.checkpoint.servers import free_port
from tests.inputs.kafka_server import Kafka, kafka_broker
from tests.inputs.test_kafka import COLUMNS, KILLS, PLACES, Filled, Sender, Topic, until
from tests.spark.processes import REPOSITORY, environment

#: Brokers, hosts and whoever feeds them have to take turns.
PATIENCE_S = 240
APPENDED = {"message_timestamp_type": "LogAppendTime"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with kafka_broker() as server:
        yield server


class Feeding:
    """Sends numbers to all partitions but the last, in turn, as time goes by."""

    def __init__(self, topic: Topic, partitions: int, value: str = '{"n": %d}') -> None:
        self._topic, self._partitions, self._value = topic, partitions, value
        self._end = threading.Event()
        self.sent = 0

    def _run(self) -> None:
        while not self._end.wait(0.01):
            for p in range(self._partitions):
                self._topic.put(p, (self._value % self.sent).encode(), 0)
                self.sent += 1
            self._topic.flush()

    @contextmanager
    def on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()


@pytest.mark.slow
def test_copies_that_come_and_go_at_other_times_are_alike_byte_for_byte_k3(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "copied", partitions=3, **APPENDED)
    source = kafka(broker.address, topic="copied", slack="2s", columns=PLACES).shared()
    first, second = Filled(tmp_path / "first", COLUMNS), Filled(tmp_path / "second", COLUMNS)
    feeding = Feeding(topic, 2)  # The third partition is silent: what has ended is judged by the brokers' time.
    with feeding.on(), first.run(source):
        until(lambda: len(first.rows()) > 40, PATIENCE_S)
        for _ in range(3):
            known = len(second.rows())
            with second.run(source):
                until(lambda known=known: len(second.rows()) > known + 20, PATIENCE_S)
        topic.put(2, b'{"n": -1}', 0)
        topic.flush()
        until(lambda: -1 in first.numbers(), PATIENCE_S)
    shutil.copytree(first.root, tmp_path / "third")
    third = Filled.__new__(Filled)
    third.root, third.stream = tmp_path / "third", holdfast.open(tmp_path / "third" / "streams").open("s")
    late = Filled(tmp_path / "late", COLUMNS)
    copies = (first, second, third, late)
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy.run(source))
        # All come to the same end: where the slack lies behind the last record.
        until(lambda: len({len(copy.rows()) for copy in copies}) == 1 and -1 in late.numbers(), PATIENCE_S)
    assert len(late.rows()) > 100
    for copy in copies:
        assert copy.bucket_bytes() == first.bucket_bytes()


@pytest.mark.slow
def test_a_topic_that_would_give_copies_that_differ_is_refused(broker: Kafka, tmp_path: Path) -> None:
    def refused(name: str, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            Filled(tmp_path / name).run_to_its_end(kafka(broker.address, topic=name).shared())

    broker.create_topic("created")
    refused("created", "message.timestamp.type=LogAppendTime.*it has CreateTime")
    broker.create_topic("squeezed", cleanup_policy="compact", **APPENDED)
    refused("squeezed", "must keep its records.*cleanup.policy=compact")
    changed = Topic(broker, "changed", partitions=1)
    changed.send(0, 1, 0)
    changed.flush()
    set_append_time(changed)
    refused("changed", "partition 0, offset 0.*this one has its producer's|every record must have LogAppendTime")
    from confluent_kafka import TopicPartition

    removed = Topic(broker, "shortened", partitions=1, **APPENDED)
    for n in range(3):
        removed.send(0, n, 0)
    removed.flush()
    for done in removed.admin.delete_records([TopicPartition("shortened", 0, 2)]).values():
        done.result(60)
    refused("shortened", "must still have all records from the beginning on.*it has 2 to 3")
    begun = kafka(broker.address, topic="shortened", begin="2020-01-01").shared()
    with pytest.raises(UsageError, match="must still have all records"):
        Filled(tmp_path / "too-early").run_to_its_end(begun)


@pytest.mark.slow
def test_a_topic_is_begun_with_the_first_record_of_a_time_by_all_hosts(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "begun", partitions=2, **APPENDED)
    for n in range(10):
        topic.put(n % 2, b'{"n": %d}' % n, 0)
        topic.flush()
        pause(20_000)
    from confluent_kafka import TopicPartition

    for done in topic.admin.delete_records([TopicPartition("begun", p, 1) for p in (0, 1)]).values():
        done.result(60)
    times = stamps(topic)
    source = kafka(broker.address, topic="begun", slack="10ms", begin=times[5].isoformat(), idle="advance").shared()
    for copy in (Filled(tmp_path / "one", bucket="10ms"), Filled(tmp_path / "two", bucket="10ms")):
        with copy.run(source):
            until(lambda copy=copy: sorted(copy.numbers()) == [5, 6, 7, 8, 9])
    # One that comes before the time has come leaves out what others, who come later, will never see.
    early, began_us = Filled(tmp_path / "early", bucket="10ms"), now_us()
    begin = instant_text(began_us + 3_600_000_000)
    with early.run(kafka(broker.address, topic="begun", slack="10ms", begin=begin, idle="advance").shared()) as one:
        until(lambda: one.status().get("lag") == 0)
        topic.put(0, b'{"n": 10}', 0)
        topic.flush()
        until(lambda: early.stream.reader().boundary_us > began_us + 1_000_000)
    assert early.numbers() == []


def stamps(topic: Topic) -> dict[int, datetime]:
    """The time of each number's record, by a client of its own."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": topic.broker.address, "group.id": "oracle", "log_level": 0,
                         "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.assign([TopicPartition(topic.name, p, 1) for p in (0, 1)])
    found: dict[int, datetime] = {}
    while len(found) < 8:
        for message in consumer.consume(10, 1):
            found[json.loads(message.value())["n"]] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    consumer.close()
    return found


def set_append_time(topic: Topic) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name, incremental_configs=[entry])
    for done in topic.admin.incremental_alter_configs([resource]).values():
        done.result(60)


def copies(words: str = "", columns: str = "") -> tuple[str, str]:
    """Hosts a and b hold the topic, b and c count what it brings. `words`: more about the topic; `columns`: more of the
    stream's, beside those that are counted."""
    return (
        "inputs=['flows'], name='counts', max_delay='10s', replicas=2",
        f"  flows:\n    hosts: [a, b]\n    kafka: {{brokers: BROKER, slack: 2s{words}}}\n"
        f"    schema: source string, bytes bigint{columns}\n    bucket: 500ms\nnodes: {{counts: [b, c]}}\n",
    )


class Deployed:
    """Hosts as processes without Spark. `counts`: what is said of the node, and of sources and homes."""

    def __init__(self, folder: Path, broker: str, counts: tuple[str, str] | None = None) -> None:
        self.folder = folder
        node, sources = counts or copies()
        (folder / "app.py").write_text(
            f"import holdfast\napp = holdfast.App('copies')\napp.node({node})(lambda rows: rows)\n"
        )
        hosts = "".join(f"  {n}: {{address: '127.0.0.1:{free_port()}', root: {n}/}}\n" for n in "abc")
        sources = sources.replace("BROKER", f"'{broker}'")
        (folder / "d.yaml").write_text(f"app: app.py\nhosts:\n{hosts}sources:\n{sources}")
        load_deployment(folder / "d.yaml").make_token()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.load.plain_engine", str(self.folder / "d.yaml"), name]
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment(), stdout=log, stderr=log
            )  # fmt: skip

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(60)

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name, signal.SIGKILL)

    def stream(self, host: str, name: str) -> holdfast.Stream | None:
        store = holdfast.open(self.folder / host)
        return store.open(name) if name in store.names() else None

    def counts(self, host: str) -> list[tuple[object, ...]]:
        """Stable results."""
        stream = self.stream(host, "counts")
        if stream is None:
            return []
        with stream.subscribe() as subscriber:
            return [(row.stime, row.values["source"], row.values["n"]) for row in subscriber.rows(timeout=0)]

    def rows(self, host: str) -> list[dict[str, object]]:
        """What readers of the topic's stream see: whole buckets."""
        stream = self.stream(host, "flows")
        assert stream is not None
        with stream.subscribe() as subscriber:
            return [row.values for row in subscriber.rows(timeout=0)]

    def buckets(self, host: str) -> list[bytes]:
        stream = self.stream(host, "flows")
        assert stream is not None
        reader = stream.reader()
        return [reader.read(e).serialize().to_pybytes() for e in reader.extents(-(2**62), reader.closed_until_us)]


@pytest.mark.slow
def test_while_a_host_with_a_copy_is_lost_results_go_on_from_the_other_d7_k3(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "flows", partitions=2, **APPENDED)
    deployed = Deployed(tmp_path, broker.address)
    feeding = Feeding(topic, 2, '{"source": "north", "bytes": %d}')
    with ExitStack() as stack:
        stack.callback(deployed.close)
        stack.enter_context(feeding.on())
        for name in "abc":
            deployed.start(name)
        until(lambda: len(deployed.counts("c")) > 1 and len(deployed.counts("b")) > 1, PATIENCE_S)
        deployed.stop("a", signal.SIGKILL)  # The one that c reads first.
        known = len(deployed.counts("c"))
        until(lambda: len(deployed.counts("c")) > known + 8, PATIENCE_S)
        deployed.start("a")
        deployed.stop("b", signal.SIGKILL)
        known = len(deployed.counts("c"))
        until(lambda: len(deployed.counts("c")) > known + 4, PATIENCE_S)
        deployed.start("b")
        known = len(deployed.counts("c"))
        until(lambda: len(deployed.counts("b")) > known, PATIENCE_S)
    a, b = deployed.buckets("a"), deployed.buckets("b")
    least = min(len(a), len(b))
    assert a[:least] == b[:least]
    ours, theirs = deployed.counts("b"), deployed.counts("c")
    least = min(len(ours), len(theirs))
    assert ours[:least] == theirs[:least]
    assert least > 12


@pytest.mark.slow
def test_killed_hosts_and_brokers_lose_and_repeat_nothing_in_any_copy_k1_k3(broker: Kafka, tmp_path: Path) -> None:
    topic = Topic(broker, "killed", 3, **APPENDED)
    words = f", topic: killed, idle: advance, columns: {{{', '.join(f'{p}: {c}' for p, c in PLACES.items())}}}"
    deployed = Deployed(tmp_path, broker.address, copies(words, f", {COLUMNS}"))
    sender = Sender(topic, KILLS, ', "source": "north", "bytes": 1')
    chance = random.Random(KILLS)

    def boundary(host: str) -> int:
        stream = deployed.stream(host, "flows")
        if stream is None:
            return BEGINNING_US
        with closing(stream.reader()) as reader:
            return reader.boundary_us

    def goes_on(*hosts: str) -> None:
        before = {host: boundary(host) for host in hosts}
        until(lambda: all(boundary(host) > before[host] for host in hosts), PATIENCE_S)

    with ExitStack() as stack:
        stack.callback(deployed.close)
        for name in "abc":
            deployed.start(name)
        sender.start()
        goes_on("a", "b")
        for turn in range(KILLS):
            pause(chance.randrange(1_000_000))
            victim = ("a", "b", "the broker")[turn % 3]
            if victim == "the broker":
                broker.kill()
                broker.start()
            else:
                deployed.stop(victim, signal.SIGKILL)
                goes_on("b" if victim == "a" else "a")
                deployed.start(victim)
            goes_on("a", "b")
        sender.finish()
        done_us = now_us()
        until(lambda: min(boundary("a"), boundary("b")) > done_us, PATIENCE_S)
        until(lambda: sum(n for *_, n in deployed.counts("c")) >= len(deployed.rows("a")), PATIENCE_S)
    sender.check(deployed.rows("a"))
    a, b = deployed.buckets("a"), deployed.buckets("b")
    least = min(len(a), len(b))
    assert a[:least] == b[:least], "K3"
    sender.check(deployed.rows("b"))
    assert sum(n for *_, n in deployed.counts("c")) == len(deployed.rows("a"))


X_S = 4.0
#: One host that holds two topics and counts what both bring.
STALLING = (
    f"inputs=['busy', 'stalling'], name='counts', max_delay='{X_S}s'",
    "".join(
        f"  {name}: {{host: a, kafka: {{brokers: BROKER, slack: 1s, idle: advance}},"
        " schema: 'source string, bytes bigint', bucket: 500ms}\n"
        for name in ("busy", "stalling")
    )
    + "nodes: {counts: [a]}\n",
)


class Delays:
    """When each window's result was first seen, stable or tentative, after the window's end."""

    def __init__(self, subscriber: holdfast.Subscriber) -> None:
        self._subscriber = subscriber
        self.seen: dict[tuple[int, TupleType], float] = {}
        self.corrected = False

    def look(self) -> None:
        for row in self._subscriber.rows(timeout=0):
            if row.stime is not None and row.type in (TupleType.INSERTION, TupleType.TENTATIVE):
                delay_s = now_us() / 1e6 - row.stime.timestamp()
                self.seen.setdefault((round(row.stime.timestamp()), row.type), delay_s)
            self.corrected |= row.type == TupleType.REC_DONE

    def of(self, kind: TupleType, since_s: float = 0) -> list[float]:
        return [delay for (end, found), delay in self.seen.items() if found == kind and end > since_s]


@pytest.mark.slow
@pytest.mark.alone
def test_a_silent_partition_delays_nothing_and_a_stalled_one_its_neighbours_by_less_than_x_k2_d5(
    broker: Kafka, tmp_path: Path
) -> None:
    """A partition stalls where a transaction stays open: its records are there, and nobody may read them yet."""
    from confluent_kafka import Producer

    topic = Topic(broker, "busy", partitions=2, **APPENDED)
    Topic(broker, "stalling", partitions=1, **APPENDED)
    client = {"bootstrap.servers": broker.address, "transactional.id": "stalling", "log_level": 0}
    transaction = Producer(client)
    transaction.init_transactions(60)
    deployed = Deployed(tmp_path, broker.address, STALLING)
    feeding = Feeding(topic, 1, '{"source": "north", "bytes": %d}')  # The other partition is silent from the beginning.
    with ExitStack() as stack:
        stack.callback(deployed.close)
        stack.enter_context(feeding.on())
        deployed.start("a")
        until(lambda: len(deployed.counts("a")) > 3, PATIENCE_S)
        counts = deployed.stream("a", "counts")
        assert counts is not None
        calm_s = now_us() / 1e6
        delays = Delays(stack.enter_context(counts.subscribe(tentative=True)))

        def seen(kind: TupleType, since_s: float, enough: int) -> bool:
            delays.look()
            return len(delays.of(kind, since_s)) >= enough

        until(lambda: seen(TupleType.INSERTION, calm_s, 5), PATIENCE_S)
        usual = delays.of(TupleType.INSERTION, calm_s)
        transaction.begin_transaction()
        transaction.produce("stalling", b'{"source": "south", "bytes": 1}', partition=0)
        assert transaction.flush(60) == 0
        stalled_s = now_us() / 1e6
        until(lambda: seen(TupleType.TENTATIVE, stalled_s, 2 * round(X_S)), PATIENCE_S)
        added = [delay - statistics.median(usual) for delay in delays.of(TupleType.TENTATIVE)]
        transaction.commit_transaction(60)
        until(lambda: seen(TupleType.INSERTION, stalled_s, 2 * round(X_S)) and delays.corrected, PATIENCE_S)
    assert max(usual) < X_S  # Nobody waits for the partition that is silent.
    assert max(added) < X_S, f"added {added}, usually {usual}"


# -- without a broker --------------------------------------------------------------------------------------------------


def deployment(tmp_path: Path, sources: str) -> tuple[holdfast.App, Path]:
    app = holdfast.App("shop")
    app.node(inputs=["orders"], name="totals")(lambda rows: rows)
    path = tmp_path / "d.yaml"
    hosts = "".join(f"  {n}: {{address: '127.0.0.1:{7401 + i}', root: {n}/}}\n" for i, n in enumerate("abc"))
    path.write_text(f"app: x.py\nhosts:\n{hosts}sources:\n  orders: {sources}\nnodes: {{totals: [b, c]}}\n")
    return app, path


def test_each_of_the_hosts_reads_the_topic_and_readers_begin_with_their_own(tmp_path: Path) -> None:
    app, path = deployment(tmp_path, "{hosts: [a, b], kafka: {brokers: 'x:9092'}, schema: n bigint}")
    file = load_deployment(path)
    for host in "ab":
        source = sources_on(host, app, file)["orders"].source
        assert isinstance(source, KafkaSource)
        assert source.copies
    assert sources_on("c", app, file) == {}
    catalog = Catalog(app.diagram(), file)
    assert catalog.producers("orders") == ("orders@a", "orders@b")
    assert catalog.sources_on("b") == ("orders",)
    assert catalog.plan_of("totals", "b", 1_000_000).inputs[0].producers == ("orders@b", "orders@a")
    assert catalog.plan_of("totals", "c", 1_000_000).inputs[0].producers == ("orders@a", "orders@b")


def test_one_host_reads_as_before(tmp_path: Path) -> None:
    app, path = deployment(tmp_path, "{hosts: [a], kafka: {brokers: 'x:9092'}, schema: n bigint}")
    source = sources_on("a", app, load_deployment(path))["orders"].source
    assert isinstance(source, KafkaSource)
    assert not source.copies


@pytest.mark.parametrize(
    "value", ["json", "columns", 'avro, avro_schema: \'{"type": "string"}\'', "avro, registry: 'http://registry:8081'"]
)
def test_a_topic_that_a_file_describes_is_the_same_until_the_file_is_edited(tmp_path: Path, value: str) -> None:
    def read(words: str) -> object:
        app, path = deployment(tmp_path, f"{{host: a, kafka: {{brokers: 'x:9092', {words}}}, schema: n bigint}}")
        return sources_on("a", app, load_deployment(path))["orders"].source

    assert read(f"value: {value}") == read(f"value: {value}")
    assert read(f"value: {value}") != read(f"value: {value}, slack: 7s")
    assert read(f"value: {value}") != read(f"value: {value}, extra: ignore") or value == "columns"


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ("{hosts: [a, a], kafka: {brokers: x}}", r"each once; got \[a, a\]"),
        ("{hosts: [], kafka: {brokers: x}}", "one or more"),
        ("{kafka: {brokers: x}}", "must have host: NAME or hosts"),
        ("{host: a, hosts: [b], kafka: {brokers: x}}", "one of them only"),
        ("{hosts: [a, d], kafka: {brokers: x}}", "no host 'd'"),
        ("{hosts: [a, b]}", "nothing is said to fill it; name one host"),
        ("{hosts: [a, b], kafka: {brokers: x, stime: at}}", "got stime='at'"),
        ("{hosts: [a, b], kafka: {brokers: x, begin: latest}}", "got begin='latest'"),
    ],
)
def test_hosts_that_would_hold_copies_that_differ_are_refused(tmp_path: Path, sources: str, why: str) -> None:
    app, path = deployment(tmp_path, sources)
    with pytest.raises(UsageError, match=why):
        sources_on("a", app, load_deployment(path))


def test_a_source_of_another_kind_cannot_have_several_hosts(tmp_path: Path) -> None:
    class Other:
        def text(self) -> str:
            return "a pipe"

    class Shop:
        sources: ClassVar = {"orders": SourceSpec("orders", Other())}  # type: ignore[arg-type]

    _, path = deployment(tmp_path, "{hosts: [a, b]}")
    with pytest.raises(UsageError, match="filled by a pipe; name one host"):
        sources_on("a", Shop(), load_deployment(path))  # type: ignore[arg-type]
