"""The input of a `holdfast.inputs.kafka` source at work: reads a topic's partitions and commits whole buckets.

One thread: look what came, decode it, hold it (`holdfast.inputs.partition_merge`), commit what is complete. The client
library fetches meanwhile.

The library goes on by the topic's name: of one that was deleted and made again it reads the successor, at the old
places. So the brokers are asked for the topic's id behind what was read, before a unit with it is committed.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.clock import ArrivalClock, Clock, monotonic_us
from holdfast.inputs.broker_clock import BrokerClock
from holdfast.inputs.feed import Sent, letter_text
from holdfast.inputs.kafka import KafkaSource
from holdfast.inputs.kafka_client import ASK_S, KafkaClient, Read, Topic
from holdfast.inputs.kafka_records import Message, Records, Refused
from holdfast.inputs.partition_merge import Chunk, PartitionMerge
from holdfast.inputs.unit_letters import UnitLetters
from holdfast.model.errors import EarlyTuple, LateTuple, PeerError, UsageError
from holdfast.model.names import check_name
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.stream.frame import crc32c
from holdfast.stream.producer import Producer
from holdfast.stream.store import Stream

#: How long one look waits for records: what it adds to the latency of a record that comes alone.
_LOOK_S = 0.02
#: How often the ends of partitions are asked for. A silent partition is known to be silent up to then.
_ENDS_US = 200_000
#: How often new partitions are looked for, and whether the topic is still the same where nothing is read.
_TOPIC_US = 500_000
#: How often places are committed where records brought no rows (bad ones, tombstones).
_PLACES_US = 1_000_000
#: How long an input that is to stop waits for the brokers, to commit what it has: it would be read again.
_LAST_WORD_S = 1.0
#: What a record's timestamp is, in the words of the protocol: 1 is its producer's.
APPEND_TIME = 2
#: Over how many seconds the rate is taken.
_RATE_S = 5


class KafkaInput:
    """Feeds one stream from one topic. `home`: a folder of ours, where the dead letters lie unless the source names
    another place. `producer`: one that is open already, for rows with their own stime."""

    def __init__(self, source: KafkaSource, stream: Stream, home: Path, producer: Producer | None = None) -> None:
        self._source, self._stream, self._given = source, stream, producer
        beside = home / f"{stream.name}.dead-letters.jsonl"
        self._dead_path = beside if source.dead_letters is True else source.dead_letters
        self._letters = UnitLetters(home / f"{stream.name}.kafka-put-aside", self._dead_path)
        # Offsets lost with their rows would be read again below a boundary that was promised: those rows were late.
        stream.definition.require_replay("a topic of Kafka that fills it")
        schema = stream.definition.schema
        self._records = Records(
            schema, stream.name, source.topic, values=source.decoder(), parts=source.parts, stime=source.stime,
            stime_unit=source.stime_unit, tombstones=source.tombstones,
        )  # fmt: skip
        self._brokers = BrokerClock() if source.copies else None
        # Where nothing comes the boundary follows this clock: it must not jump with the wall clock (D19).
        self._clock: Clock = ArrivalClock() if self._brokers is None else self._brokers.now_us
        self._stop = threading.Event()
        self.total = Sent()
        self._read = 0
        self._rate: deque[tuple[int, int]] = deque()
        self._status: dict[str, Any] = {}

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> dict[str, Any]:
        return self._status

    # -- life --------------------------------------------------------------------------------------------------------

    def run(self) -> Sent:
        """Read until `stop`."""
        source = self._source
        with contextlib.ExitStack() as stack:
            self._client = KafkaClient(
                source.brokers, source.topic, committed=source.committed, config=source.settings(), clock=self._clock
            )
            stack.callback(self._client.close)
            topic = self._client.describe()
            if source.copies:
                self._client.check_append_times()
            if self._given is None:
                self._producer = self._stream.producer(stime="stime", max_ahead=None)
                stack.callback(lambda: self._producer.close(end=False))
            else:
                self._producer = self._given
            self._letters.begin(self._producer.writer.state.tokens)
            self._topic_id, self._is_confirmed = topic.id, True
            self._topic: Topic | None = None  # Told when a unit was committed; the loop takes up its partitions.
            self._merge = self._begin(topic.id)
            if self._brokers is not None and self._merge.reached_us > BEGINNING_US:
                self._brokers.saw(self._merge.reached_us)  # Or a silent topic stood still until its next record.
            begun = any(self._merge.resume_at(p) is not None for p in topic.partitions)
            self._take_up(topic.partitions, first=not begun)
            self._loop()
        return self.total

    def _begin(self, topic_id: str) -> PartitionMerge:
        source, state = self._source, self._producer.writer.state
        name = re.sub(r"[^a-z0-9_.-]|\.(?=\.)", "-", source.id.lower())[:60]
        stem = f"kafka-{name}-{crc32c(source.id.encode()):08x}"
        # What decides which bucket a record goes to, or whether it is late.
        decides = f"{topic_id} {source.stime} {source.stime_unit}"
        decides += f" shared {source.slack_us} {source.begin}" * source.copies
        id = check_name(f"{stem}-{crc32c(decides.encode()):08x}")
        others = [i for i in state.tokens if i.startswith(f"{stem}-") and not i.startswith(f"{id}-")]
        if others:
            raise self._other_topic()
        return PartitionMerge(
            self._records.schema, id, state.tokens, bucket_us=self._stream.definition.bucket_us,
            slack_us=source.slack_us, boundary_us=state.boundary_us,
            by_clock=source.stime == "timestamp" or source.idle_us is not None, idle_us=source.idle_us,
            shared=source.copies,
        )  # fmt: skip

    def _other_topic(self) -> UsageError:
        return UsageError(
            f"stream {self._stream.name}: topic {self._source.topic} must be the one that was read before, with the "
            "same stime (with several hosts also slack and begin); it was deleted and made again, or one of these was "
            "changed; choose a new id to read it from its beginning, with several hosts into a new stream"
        )

    def _take_up(self, partitions: tuple[int, ...], *, first: bool) -> None:
        """Begin with partitions that are new to us, where the log says or at their beginning (or end, if asked for)."""
        new = [p for p in partitions if p not in self._merge.partitions]
        if not new:
            return
        asked_us = self._clock()
        limits = self._client.limits(new)
        begins: dict[int, int] = {}
        for p, (low, end) in limits.items():
            at = self._merge.resume_at(p)
            if at is None:
                at = self._beginning(p, low, end, first=first)
            self._merge.add(p, at)
            if not low <= at <= self._merge.partitions[p].seen <= end:
                raise self._gap(p, at, low, end)
            begins[p] = at
        self._merge.ends({p: end for p, (_, end) in limits.items()}, asked_us)
        self._client.assign(begins)

    def _gap(self, number: int, at: int, low: int, end: int) -> UsageError:
        return UsageError(
            f"topic {self._source.topic} partition {number} must still have the record at offset {at}, where reading "
            f"goes on; it has {low} to {end}; records were removed before they were read, or lost; choose a new id to "
            "begin with what is there"
        )

    def _beginning(self, number: int, low: int, end: int, *, first: bool) -> int:
        """Where a partition begins that was never read; partitions that came later begin with their first record."""
        source = self._source
        at = end if first and source.begin == "latest" else low
        if isinstance(source.begin, int):
            at = self._client.begins([number], source.begin).get(number, end)
        if source.copies and at == low > 0:
            # Whoever began before has read more, or would have.
            raise UsageError(
                f"topic {source.topic} partition {number} must still have all records from the beginning on where "
                f"several hosts read it and a copy begins; it has {low} to {end}; say a later time (begin=…) where no "
                "copy has begun, copy the stream's folder of another host, stopped meanwhile, or name one host"
            )
        return at

    # -- reading -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        paused: set[int] = set()
        ends_us = topic_us = places_us = monotonic_us()
        while not self._stop.is_set():
            read = self._client.read(_LOOK_S)
            self._hold(read)
            if read.gaps:
                raise self._stopped_by(read.gaps)
            steady_us = monotonic_us()
            if steady_us >= ends_us:
                ends_us = steady_us + _ENDS_US
                self._client.ask_ends(tuple(self._merge.partitions))
                self._tell(steady_us)
            if steady_us >= topic_us:
                topic_us = steady_us + _TOPIC_US
                self._client.ask_topic()
            if (told := self._client.ends_told()) is not None:
                self._merge.ends(*told)
            if (topic := self._client.topic_told() or self._topic) is not None:
                self._check_topic(topic)
                self._take_up(topic.partitions, first=False)
                self._merge.partitions_known(topic.asked_us)
                self._topic = None
            if self._commit(places=steady_us >= places_us):
                places_us = steady_us + _PLACES_US
            wanted = self._merge.waiting(self._clock(), paused)
            self._client.pause(wanted - paused)
            self._client.resume(paused - wanted)
            paused = wanted
        self._commit(places=True)
        self._tell(monotonic_us())

    def _check_topic(self, topic: Topic) -> None:
        if topic.id != self._topic_id:
            raise self._other_topic()

    def _is_same_topic(self) -> bool:
        """Whether all that was read is the topic's that we began with: it is if the topic is still there now. False:
        the brokers do not say."""
        if not self._is_confirmed:
            self._topic = self._client.topic_now(_LAST_WORD_S if self._stop.is_set() else ASK_S)
            if self._topic is None:
                return False
            self._check_topic(self._topic)
            self._is_confirmed = True
        return True

    def _stopped_by(self, gaps: Sequence[int]) -> UsageError | PeerError:
        """Kafka refuses the offset that comes next: it is another topic, or it removed or lost records."""
        places = {number: self._merge.partitions[number].next for number in gaps}
        if (topic := self._client.topic_now()) is not None:
            self._check_topic(topic)
            for number, (low, end) in self._client.limits(gaps).items():
                if not low <= places[number] <= end:
                    return self._gap(number, places[number], low, end)
        at = ", ".join(f"partition {number} at offset {place}" for number, place in places.items())
        return PeerError(f"topic {self._source.topic} cannot be read on for now, {at}; trying again")

    def _hold(self, read: Read) -> None:
        if read.messages or read.ends:
            self._is_confirmed = False
        for number, messages in read.messages.items():
            chunk, refused = self._records.chunk(messages)
            if self._brokers is not None:
                self._check_stamps(messages)
                self._brokers.saw(max(m.timestamp()[1] for m in messages) * 1000)
                if isinstance(self._source.begin, int):  # Who begins before that time finds records that others do not.
                    chunk = chunk.only(chunk.stimes >= self._source.begin)
            if early := self._early(chunk, messages):
                refused += early
                chunk = chunk.only(~np.isin(chunk.offsets, [r.message.offset() for r in early]))
            refused = [r for r in refused if not self._merge.was_seen(number, r.message.offset())]
            if refused and not self._letters.is_wanted:
                self._stop_before(min(refused, key=lambda r: r.message.offset()), number, chunk, messages)
            self._put_aside(refused)
            self.total += Sent(dead=len(refused))
            self._take(number, chunk, messages)
            self._merge.read_until(number, messages[-1].offset() + 1)
            self._read += len(messages)
        for number, at in read.ends.items():
            self._merge.read_until(number, at)

    def _check_stamps(self, messages: list[Message]) -> None:
        """The topic may have had other times before, or has them since we asked."""
        for message in messages:
            if message.timestamp()[0] != APPEND_TIME:
                raise UsageError(
                    f"{self._records.where(message)}: every record must have LogAppendTime where several hosts "
                    "read the topic; this one has its producer's; begin with a new topic, or name one host"
                )

    def _stop_before(self, refused: Refused, number: int, chunk: Chunk, messages: list[Message]) -> None:
        """What came before the poison is sound and must not be held back by it."""
        first = refused.message.offset()
        self._take(number, chunk.only(chunk.offsets < first), messages)
        self._merge.read_until(number, first)
        self._commit(places=True)
        raise self._error(refused)

    def _take(self, number: int, chunk: Chunk, messages: list[Message]) -> None:
        late = self._merge.take(number, chunk, self._clock())
        if not len(late):
            return
        boundary = instant_text(self._merge.boundary_us)
        why = f"it comes after the boundary {boundary}; declare more slack, or let it be dropped (late='drop')"
        self.total += Sent(late=len(late))
        if self._source.late == "refuse":
            found = _of(messages, late, why, LateTuple)
            if not self._letters.is_wanted:
                raise self._error(found[0])
            self._put_aside(found)

    def _early(self, chunk: Chunk, messages: list[Message]) -> list[Refused]:
        """Those that lie so far ahead of the clock that everything behind them would be late."""
        ahead = self._source.max_ahead_us
        if ahead is None or not len(chunk.stimes) or int(chunk.stimes.max()) <= (early_us := self._clock() + ahead):
            return []
        why = "its stime lies too far ahead of the clock: what follows would be late; correct it, or raise max_ahead"
        return _of(messages, chunk.offsets[chunk.stimes > early_us], why, EarlyTuple)

    def _put_aside(self, refused: list[Refused]) -> None:
        """Rule 4 of `kafka`."""
        self._letters.put([
            {
                "where": self._records.where(r.message), "topic": self._source.topic,
                "partition": r.message.partition(), "offset": r.message.offset(), "error": r.why,
                **letter_text(r.message.value()),
            }
            for r in refused
        ])  # fmt: skip

    def _error(self, refused: Refused) -> UsageError:
        return refused.kind(f"stream {self._stream.name}: {self._records.where(refused.message)}: {refused.why}")

    def _commit(self, *, places: bool) -> bool:
        unit = self._merge.unit(self._clock(), positions=places or self._letters.is_full)
        if unit is None or not self._is_same_topic():
            return False
        self._letters.before_unit(unit.numbers)
        ack = self._producer.send_unit(unit.rows, numbers=unit.numbers, boundary=unit.boundary_us)
        self._merge.committed(unit)
        self._letters.behind_unit()
        self.total += Sent(rows=ack.rows)
        return True

    # -- for people --------------------------------------------------------------------------------------------------

    def _tell(self, steady_us: int) -> None:
        self._rate.append((steady_us, self._read))
        while steady_us - self._rate[0][0] > _RATE_S * 1_000_000:
            self._rate.popleft()
        since_us, before = self._rate[0]
        partitions = self._merge.partitions
        lags = [p.lag for p in partitions.values()]
        self._status = {
            "topic": self._source.topic,
            "partitions": {
                n: {"position": p.next, "end": p.end, "lag": p.lag, "committed": p.low} for n, p in partitions.items()
            },
            "lag": None if None in lags else sum(lag for lag in lags if lag is not None),
            "rate": (self._read - before) / max((steady_us - since_us) / 1e6, 0.2),
            "rows": self.total.rows, "late": self.total.late, "dead": self.total.dead,
            "dead_letters": None if self._dead_path is None else str(self._dead_path),
            "boundary": instant_text(self._merge.boundary_us), "held_bytes": self._merge.held_bytes,
            "errors": self._client.errors, "last_error": self._client.last_error,
        }  # fmt: skip


def _of(messages: list[Message], offsets: npt.NDArray[np.int64], why: str, kind: type[UsageError]) -> list[Refused]:
    wanted = set(offsets.tolist())
    return [Refused(m, why, kind) for m in messages if m.offset() in wanted]
