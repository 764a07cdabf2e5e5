"""Records per second from a topic of Kafka into a stream, beside a plain consumer loop of the same client.

The plain loop reads the same topic, decodes each value with `json.loads` and keeps nothing: no durability, no order
between partitions, no place to go on from. Both read from the first record to the last, in turns; the median of the
ratios counts; the ratio of the processor time of the two threads is beside it, since a busy machine disturbs it less.
Then: how long after it was sent a single record is visible to a reader of the stream.

The broker is the one of the tests (`python -m tests.inputs.kafka_server --fetch`).

    python -m benches.kafka_in [--records 1000000] [--rounds 5] [--partitions 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.inputs.kafka_server import kafka_broker

import holdfast
from benches.report import finish, table
from holdfast.clock import now_us

COLUMNS = "n bigint, customer string, amount double"


def make_topic(address: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)


def fill(address: str, records: int, partitions: int) -> None:
    make_topic(address, "bench", partitions)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "log_level": 0})
    for n in range(records):
        value = b'{"n": %d, "customer": "customer-%d", "amount": %d.25}' % (n, n % 1000, n % 97)
        while True:
            try:
                # A record each millisecond of event time: as many buckets as an hour of a busy shop.
                producer.produce("bench", value, partition=n % partitions, timestamp=1_700_000_000_000 + n // 10)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


class Took(NamedTuple):
    """Seconds by the clock and by the processor."""

    clock: float
    processor: float


def plain(address: str, records: int, partitions: int) -> Took:
    """The plain loop."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "plain", "enable.auto.commit": False, "log_level": 0}
    )
    begun, busy = time.perf_counter(), time.thread_time()
    consumer.assign([TopicPartition("bench", p, 0) for p in range(partitions)])
    read = total = 0
    while read < records:
        for message in consumer.consume(10_000, 1):
            if message.error() is None:
                total += json.loads(message.value())["n"]
                read += 1
    took = Took(time.perf_counter() - begun, time.thread_time() - busy)
    consumer.close()
    assert total == records * (records - 1) // 2
    return took


def ours(address: str, records: int, root: Path) -> Took:
    """Until all but the last, open bucket is durable in the stream; as if it were all."""
    stream = holdfast.open(root).create("bench", COLUMNS, bucket="1s")
    one = holdfast.kafka(address, topic="bench", slack="0s").open(stream, root)
    busy: list[float] = []

    def run() -> None:
        before = time.thread_time()
        one.run()
        busy.append(time.thread_time() - before)

    reading = threading.Thread(target=run)
    begun = time.perf_counter()
    reading.start()
    until(lambda: one.total.rows >= records - 10_000)
    took = time.perf_counter() - begun
    one.stop()
    reading.join()
    whole = records / one.total.rows
    return Took(took * whole, busy[0] * whole)


def delays(address: str, root: Path, samples: int) -> list[float]:
    """Milliseconds from `produce` until a reader sees the row; the slack of 50 ms and the bucket of 50 ms included."""
    make_topic(address, "live", 2)
    stream = holdfast.open(root).create("live", "n bigint", bucket="50ms")
    one = holdfast.kafka(address, topic="live", slack="50ms", idle="advance").open(stream, root)
    reading = threading.Thread(target=one.run)
    reading.start()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
    rows = stream.subscribe().rows(timeout=60)
    found = []
    try:
        until(lambda: one.status().get("lag") == 0)
        for n in range(samples):
            sent = now_us()
            producer.produce("live", b'{"n": %d}' % n, partition=n % 2)
            producer.flush(10)
            assert next(rows).values["n"] == n
            found.append((now_us() - sent) / 1000)
    finally:
        one.stop()
        reading.join()
    return found


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.kafka_in", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    found: dict[str, list[Took]] = {"plain loop": [], "Holdfast": []}
    with kafka_broker() as broker, tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        fill(broker.address, given.records, given.partitions)
        for n in range(given.rounds + 1):
            seconds = (
                plain(broker.address, given.records, given.partitions),
                ours(broker.address, given.records, Path(scratch, str(n))),
            )
            if n:  # The first round warms the broker and the page cache.
                for name, took in zip(found, seconds, strict=True):
                    found[name].append(took)
        waited = delays(broker.address, Path(scratch, "live"), 30)
    median = {name: given.records / statistics.median(t.clock for t in took) for name, took in found.items()}
    pairs = list(zip(found["plain loop"], found["Holdfast"], strict=True))
    table(f"{given.records:,} records of {given.partitions} partitions", ["", "records/s"],
          [[name, round(rate)] for name, rate in median.items()])  # fmt: skip
    p95 = sorted(waited)[round(0.95 * (len(waited) - 1))]
    table("sent to visible, ms (slack 50 ms, bucket 50 ms)", ["p50", "p95"], [[statistics.median(waited), p95]])
    finish(
        "kafka_in",
        kafka_ratio=round(statistics.median(a.clock / b.clock for a, b in pairs), 3),
        kafka_ratio_processor=round(statistics.median(a.processor / b.processor for a, b in pairs), 3),
        records_per_s=round(median["Holdfast"]),
        records_per_s_plain=round(median["plain loop"]),
        visible_ms_p50=round(statistics.median(waited)),
        visible_ms_p95=round(p95),
    )


if __name__ == "__main__":
    main()
