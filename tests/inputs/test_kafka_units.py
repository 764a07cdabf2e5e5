"""What a kill or a topic's end leaves between a record and its unit, over a topic in memory (K1)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.inputs import kafka_input
from holdfast.inputs.feed import DeadLetters, Sent
from holdfast.inputs.kafka import kafka
from holdfast.inputs.kafka_client import Read, Topic
from holdfast.inputs.kafka_input import KafkaInput
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.stream.producer import Producer

pytestmark = pytest.mark.timeout(60)
T0_MS = 1_700_000_000_000


class Record(NamedTuple):
    """What the client library gives, as far as it is asked for."""

    at: int
    body: bytes
    ms: int

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self.body

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return (1, self.ms)

    def headers(self) -> None:
        return None


class MemoryTopic:
    """A topic of one partition, and the client of whoever reads it: by name and offset, as Kafka's does."""

    def __init__(self) -> None:
        self.made("first")

    def made(self, id: str, *bodies: bytes) -> None:
        """Deleted and made again."""
        self.id = id
        self.records: list[Record] = []
        self.removed = 0
        self.put(*bodies)

    def put(self, *bodies: bytes) -> None:
        """One each 200 ms."""
        for body in bodies:
            at = len(self.records)
            self.records.append(Record(at, body, T0_MS + 200 * at))

    # -- as a client -------------------------------------------------------------------------------------------------

    errors, last_error = 0, None
    read_hook: Callable[[], None] | None = None
    silent = False
    """The brokers do not answer about the topic."""

    def describe(self) -> Topic:
        return Topic(self.id, (0,), now_us())

    def ask_topic(self) -> None: ...

    def topic_told(self) -> Topic | None:
        return None  # So that it is asked where it has to be.

    def topic_now(self, wait_s: float = 0) -> Topic | None:
        return None if self.silent else self.describe()

    def limits(self, partitions: Any) -> dict[int, tuple[int, int]]:
        return {0: (self.removed, len(self.records))}

    def ask_ends(self, partitions: Any) -> None: ...

    def ends_told(self) -> tuple[dict[int, int], int]:
        return {0: len(self.records)}, now_us()

    def assign(self, begins: dict[int, int]) -> None:
        self._next = begins[0]

    def pause(self, partitions: Any) -> None: ...

    resume = pause

    def read(self, wait_s: float) -> Read:
        hook, self.read_hook = self.read_hook, None
        if hook is not None:
            hook()
        if not self.removed <= self._next <= len(self.records):
            return Read({}, {}, (0,))
        found = self.records[self._next :]
        if not found:
            threading.Event().wait(0.002)
            return Read({}, {0: self._next})
        self._next = len(self.records)
        return Read({0: found}, {})  # type: ignore[dict-item]

    def close(self) -> None: ...


class Bridge:
    """A stream, and inputs that fill it one after another."""

    def __init__(self, root: Path, topic: MemoryTopic) -> None:
        self.topic, self.home = topic, root / "home"
        self.stream = holdfast.open(root / "streams").create("s", "n bigint", bucket="100ms")
        self.letters_path = self.home / "s.dead-letters.jsonl"

    def input(self, **options: Any) -> KafkaInput:
        return kafka("nowhere:9092", topic="t", slack="0s", **options).open(self.stream, self.home)

    def run(self, **options: Any) -> Sent:
        """Until all that is there was read."""
        one = self.input(**options)
        self.topic.read_hook = lambda: setattr(self.topic, "read_hook", one.stop)
        return one.run()

    def numbers(self) -> list[int]:
        with contextlib.closing(self.stream.subscribe()) as subscriber:
            return [row.values["n"] for row in subscriber.rows(timeout=0)]

    def dead(self) -> list[int]:
        return [json.loads(line)["offset"] for line in self.letters_path.read_text().splitlines()]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    made = MemoryTopic()
    monkeypatch.setattr(kafka_input, "KafkaClient", lambda *_, **__: made)
    return made


@pytest.fixture
def bridge(tmp_path: Path, topic: MemoryTopic) -> Bridge:
    return Bridge(tmp_path, topic)


class Killed(BaseException):
    pass


def nothing(producer: Producer, data: Any, **options: Any) -> None:
    raise Killed


def unit(producer: Producer, data: Any, **options: Any) -> None:
    SEND_UNIT(producer, data, **options)
    raise Killed


def half(letters: DeadLetters, at: int, text: bytes) -> None:
    if text:  # At the start nothing is written.
        letters._append(text[: len(text) // 2])
        raise Killed


def whole(letters: DeadLetters, at: int, text: bytes) -> None:
    if text:
        COMPLETE(letters, at, text)
        raise Killed


SEND_UNIT, COMPLETE = Producer.send_unit, DeadLetters.complete
#: The process is killed in one of these.
STEPS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "before the unit": (Producer, "send_unit", nothing),
    "behind the unit": (Producer, "send_unit", unit),
    "amid the letters": (DeadLetters, "complete", half),
    "behind the letters": (DeadLetters, "complete", whole),
}


def row(n: int) -> bytes:
    return b'{"n": %d}' % n


@contextlib.contextmanager
def killed(step: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*STEPS[step])
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("step", STEPS)
def test_a_bad_record_is_in_the_dead_letters_once_wherever_the_kill_comes_k1(step: str, bridge: Bridge) -> None:
    bridge.topic.put(row(0), b"bad", row(2), b"worse", row(4))
    with killed(step):
        bridge.run()
    bridge.topic.put(row(5), b"bad", row(7))
    bridge.run()
    bridge.run()
    assert bridge.numbers() == [0, 2, 4, 5]
    assert bridge.dead() == [1, 3, 6]


def test_what_is_judged_otherwise_at_the_second_reading_is_in_one_of_the_two_k1(bridge: Bridge) -> None:
    """It was far ahead of the clock, and the process was away until it was not."""
    bridge.topic.put(row(0))
    ahead = Record(1, row(1), now_us() // 1000 + 3_700_000)
    bridge.topic.records.append(ahead)
    with killed("before the unit"):
        bridge.run()
    bridge.run(max_ahead="2h")
    bridge.topic.records.append(Record(2, row(2), ahead.ms + 1000))
    bridge.run(max_ahead="2h")
    assert bridge.numbers() == [0, 1]
    assert bridge.dead() == []


def test_letters_of_a_unit_that_is_there_are_kept_though_none_are_wanted_any_more_k1(bridge: Bridge) -> None:
    bridge.topic.put(row(0), b"bad", row(2))
    with killed("behind the unit"):
        bridge.run()
    bridge.run(dead_letters=None)
    assert bridge.dead() == [1]


def test_many_letters_do_not_wait_in_memory_until_places_are_due(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.inputs.unit_letters.WAITING_BYTES_MAX", 100)
    monkeypatch.setattr(kafka_input, "_PLACES_US", 10**12)
    bridge.topic.put(*[b"bad"] * 3)
    one = bridge.input()

    def written() -> None:
        if one.total.dead and bridge.letters_path.read_text():
            one.stop()
            return
        bridge.topic.read_hook = written

    bridge.topic.read_hook = written
    one.run()
    assert bridge.dead() == [0, 1, 2]


def test_a_note_of_another_format_is_refused(bridge: Bridge) -> None:
    bridge.topic.put(b"bad")
    with killed("behind the unit"):
        bridge.run()
    note = bridge.home / "s.kafka-put-aside"
    text = note.read_text()
    note.write_text(text.replace('"format":1', '"format":2'))
    with pytest.raises(StorageError, match="has format 2; this Holdfast reads 1"):
        bridge.run()


@pytest.mark.parametrize("more", [0, 3])
def test_a_topic_that_is_made_again_while_it_is_read_brings_nothing_into_the_old_ones_place_k1(
    more: int, bridge: Bridge
) -> None:
    """The client goes on by name: it reads a longer successor at the old offset, and a shorter one has no such."""
    bridge.topic.put(row(0), row(1), row(2))
    one = bridge.input()

    def made_again() -> None:
        bridge.topic.made("second", *(row(10 + n) for n in range(1 + more)))

    bridge.topic.read_hook = lambda: setattr(bridge.topic, "read_hook", made_again)
    with pytest.raises(UsageError, match=r"must be the one that was read before, .* it was deleted and made again"):
        one.run()
    assert not set(bridge.numbers()) & {10, 11, 12, 13}
    before = bridge.numbers()
    with pytest.raises(UsageError, match="it was deleted and made again"):
        bridge.run()
    bridge.run(id="second")
    assert bridge.numbers()[: len(before)] == before


def test_nothing_is_committed_while_the_brokers_do_not_say_that_the_topic_is_the_same_k1(bridge: Bridge) -> None:
    bridge.topic.put(row(0), row(1))
    bridge.topic.silent = True
    assert bridge.run().rows == 0
    bridge.topic.silent = False
    assert bridge.run().rows == 1
    assert bridge.numbers() == [0]


def test_records_that_are_removed_while_they_wait_to_be_read_are_said_as_at_a_start_k1(bridge: Bridge) -> None:
    bridge.topic.put(row(0), row(1))
    one = bridge.input()

    def removed() -> None:
        bridge.topic.put(row(2), row(3), row(4))
        bridge.topic.removed = 4

    bridge.topic.read_hook = lambda: setattr(bridge.topic, "read_hook", removed)
    sentence = "partition 0 must still have the record at offset 2, where reading goes on; it has 4 to 5; records were"
    with pytest.raises(UsageError, match=sentence):
        one.run()


def test_an_offset_that_is_refused_and_yet_there_is_tried_again(bridge: Bridge) -> None:
    """A broker that had not heard yet of what another one gave us."""
    bridge.topic.put(row(0))
    one = bridge.input()
    read = bridge.topic.read
    bridge.topic.read = lambda wait_s: Read({}, {}, (0,))  # type: ignore[method-assign]
    with pytest.raises(PeerError, match="partition 0 at offset 0; trying again"):
        one.run()
    bridge.topic.read = read  # type: ignore[method-assign]
