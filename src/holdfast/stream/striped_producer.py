"""A producer of a striped stream: deals tuples to one producer for each stripe.

Rules:
1. A row goes to the stripe of its key; without a key a unit goes to the next stripe as a whole (`stripes`). A unit
   whose keys belong to several stripes is all or nothing in each; what does not fit is refused before the first part.
2. With times of arrival each stripe's producer does as ever: boundaries follow the clock in all of them.
3. With a column as stime one boundary is kept for all: it trails the largest stime of the whole stream, and no tuple
   that is still on its way to its stripe lies below it. The stripes hear of it, all of them, when it closes a bucket:
   one that gets no tuples holds nobody back. A stream that was left with unequal boundaries goes on from the largest.
4. A unit with a number is in its stripes once, however often it is sent. The last of its stripes has the number under
   the sender's id; the others, before it, under another one. So the largest number under the id is that of a unit that
   is there whole, as long as a sender waits for one unit before it sends the next (`last_seq`). One that is sent again
   holds the rows that it held, or its rows have numbers of their own (`send_numbered`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.clock import ArrivalClock, Clock, monotonic_us, now_us
from holdfast.model.errors import EarlyTuple, LateTuple, UsageError
from holdfast.model.time import (
    BEGINNING_US,
    END_OF_TIME_US,
    MAX_AHEAD,
    bucket_of,
    duration_us,
    early_boundary_text,
    early_text,
)
from holdfast.stream.definition import Definition
from holdfast.stream.producer import Ack, Producer, Ticker, late_text
from holdfast.stream.rows import Columns, Row, stimes_of
from holdfast.stream.stripes import dealt_by_key
from holdfast.stream.tables import table_batch

#: A stripe's own producer, told so, never gets to a boundary by itself: seconds, longer than there are years (rule 3).
HELD_SLACK = 20_000 * 366 * 86_400

T = TypeVar("T")


class StripedProducer:
    """Sends tuples to the stripes of one stream. Get one from `StripedStream.producer`; use it as a context manager."""

    def __init__(
        self,
        definition: Definition,
        by: str | None,
        producers: Sequence[Producer],
        *,
        id: str = "producer",
        stime: str | None = None,
        stime_unit: Literal["s", "ms", "us"] = "us",
        slack: str | int | float = 0,
        late: Literal["refuse", "drop"] = "refuse",
        idle: Literal["wait", "advance"] | str | int | float = "wait",
        boundary_every: str | int | float | None = None,
        max_ahead: str | int | float | None = MAX_AHEAD,
        clock: Clock = now_us,
        steady: Clock | None = None,
    ) -> None:
        self.definition, self.producers, self.id = definition, tuple(producers), id
        self._by, self._stime, self._unit, self._late = by, stime, stime_unit, late
        self._schema = self.producers[0].row_schema
        self._columns = Columns(self._schema, f"stream {definition.name}")
        self._turns, self._tickets = itertools.count(), itertools.count()
        self._pool = ThreadPoolExecutor(len(self.producers), thread_name_prefix=f"stripes-{definition.name}")
        self._slack_us = duration_us(slack)
        self._idle_us = None if idle == "wait" else 0 if idle == "advance" else duration_us(idle)
        self._max_ahead_us = None if max_ahead is None else duration_us(max_ahead)
        self._clock = ArrivalClock(clock, steady)
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._under_way: dict[int, int] = {}
        """The least stime of each unit that is on its way."""
        self._published = self._high = max(p.boundary_us for p in self.producers)
        self._data_us = monotonic_us()
        self._closed = False
        self.late_dropped = 0
        self._ticker: Ticker | None = None
        if stime is not None:
            self._tell(self._published)
            every = definition.bucket_us if boundary_every is None else duration_us(boundary_every)
            self._ticker = Ticker(self, every)

    # -- what callers use --------------------------------------------------------------------------------------------

    def send(self, row: Row, *, seq: int | None = None, producer_id: str | None = None) -> Ack:
        """As `Producer.send`."""
        if self._stime is None and seq is None and not self._closed:
            return self._stripe_of(row).send(row)
        return self.send_many((row,), seq=seq, producer_id=producer_id)

    def send_many(
        self,
        rows: Sequence[Row],
        *,
        seq: int | None = None,
        producer_id: str | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Ack:
        """Send rows as one unit: all or none, in each stripe that they belong to (rule 1). With `numbers`, one of each
        row and none above `seq`, the rows before the next one may be cut into other units when they are sent again."""
        each = None if numbers is None else np.asarray(numbers, np.int64)
        return self._send(self._columns.batch(rows), seq, producer_id, each)

    def send_batch(self, data: Any, *, seq: int | None = None, producer_id: str | None = None) -> Ack:
        """The same with an Arrow table, an Arrow record batch or a pandas frame."""
        return self._send(table_batch(data, self._schema, self.definition.name), seq, producer_id)

    def send_async(self, row: Row, *, seq: int | None = None, producer_id: str | None = None) -> Future[Ack]:
        """As `Producer.send_async`. Rows under way to several stripes come there in any order, so they take neither
        numbers nor a time of their own."""
        self._check_open()
        if self._stime is not None or seq is not None or producer_id is not None:
            raise UsageError(
                f"stream {self.definition.name}: send_async to a striped stream goes with times of arrival and without "
                f"numbers; got stime={self._stime!r}, seq={seq!r}; use send_many or send_batch"
            )
        return self._stripe_of(row).send_async(row)

    def advance(self, boundary: int) -> None:
        """Promise, for all stripes, that no later tuple has an stime below `boundary` (microseconds)."""
        self._check_open()
        if self._stime is None:
            self._each(lambda producer: producer.advance(boundary))
            return
        if self.producers[0].checked_boundary(boundary) > self._early_us:
            raise EarlyTuple(early_boundary_text(self.definition.name, boundary, boundary - self._clock()))
        with self._changed:
            self._published, self._high = max(self._published, boundary), max(self._high, boundary)
            # Those that were let in before are let through.
            self._changed.wait_for(lambda: all(stime_us >= boundary for stime_us in self._under_way.values()))
        self._tell(boundary)

    @property
    def last_seq(self) -> int:
        """The last sequence number of this producer id that is durable; -1 before the first."""
        return self.last_seq_of(self.id)

    def last_seq_of(self, producer_id: str) -> int:
        """Rule 4."""
        return max(p.last_seq_of(producer_id) for p in self.producers)

    @property
    def row_schema(self) -> pa.Schema:
        """As `Producer.row_schema`."""
        return self._schema

    def untimely_rows(self, rows: Sequence[Row]) -> list[int]:
        """As `Producer.untimely_rows`."""
        if self._stime is None:
            return []
        stimes = self._stimes(self._columns.batch(rows))
        found: list[int] = np.flatnonzero((stimes < self._published) | (stimes > self._early_us)).tolist()
        return found

    @property
    def boundary_us(self) -> int:
        """What all stripes have promised."""
        return min(p.boundary_us for p in self.producers)

    @property
    def ahead_us(self) -> int:
        """How far the stream's boundary lies ahead of the clock; below zero: behind it."""
        return self.boundary_us - self._clock()

    @property
    def next_tuple_id(self) -> int:
        """The sum over the stripes: the difference of two looks is how many tuples were added."""
        return sum(p.next_tuple_id for p in self.producers)

    def close(self, *, end: bool = True) -> None:
        """End all stripes cleanly (`end=False` only lets go of them)."""
        if self._closed:
            return
        self._closed = True
        if self._ticker is not None:
            self._ticker.stop()
        try:
            if self._stime is not None and not end:
                self._follow(within_bucket=True)
        finally:
            self._each(lambda producer: producer.close(end=end))
            self._pool.shutdown()

    def __enter__(self) -> StripedProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(end=kind is None)

    # -- dealing -----------------------------------------------------------------------------------------------------

    def _stripe_of(self, row: Row) -> Producer:
        if self._by is None:
            return self.producers[next(self._turns) % len(self.producers)]
        keys = self._columns.batch((row,)).column(self._by)
        return self.producers[int(dealt_by_key(keys, len(self.producers))[0])]

    def _parts(
        self, batch: pa.RecordBatch, seq: int | None, id: str, numbers: npt.NDArray[np.int64] | None
    ) -> dict[int, pa.RecordBatch]:
        """Rule 1: what each stripe gets; never nothing, for a unit may be there for its number."""
        count = len(self.producers)
        if self._by is None:
            return {(next(self._turns) if seq is None else seq) % count: batch}
        dealt = dealt_by_key(batch.column(self._by), count)
        stripes = [int(i) for i in np.unique(dealt)] or [0]
        if numbers is None and len(stripes) == 1:
            return {stripes[0]: batch}
        parts: dict[int, pa.RecordBatch] = {}
        for i in stripes:
            mine = dealt == i
            if numbers is not None:
                producer = self.producers[i]
                mine &= numbers > max(producer.last_seq_of(id), producer.last_seq_of(_part_id(id)))
            if mine.any() or i == stripes[-1]:
                parts[i] = batch.take(pa.array(np.flatnonzero(mine)))
        return parts

    def _send(
        self,
        batch: pa.RecordBatch,
        seq: int | None,
        producer_id: str | None,
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> Ack:
        self._check_open()
        id = self.id if producer_id is None else producer_id
        if seq is not None and self.producers[0].checked_number(seq) <= self.last_seq_of(id):
            return Ack(max(p.writer.state.commit_seq for p in self.producers), 0, duplicate=True)
        if self._stime is None:
            return self._deal(batch, seq, id, numbers)
        ticket, timely = self._let_in(batch)
        dropped = int((~timely).sum())
        try:
            if dropped:
                batch, numbers = batch.filter(pa.array(timely)), None if numbers is None else numbers[timely]
            done = self._deal(batch, seq, id, numbers)
            with self._changed:
                self._high = max(self._high, int(self._stimes(batch).max()) if batch.num_rows else BEGINNING_US)
                self.late_dropped += dropped
        finally:
            with self._changed:
                del self._under_way[ticket]
                self._changed.notify_all()
        self._data_us = monotonic_us()
        self._follow()
        return done._replace(dropped=dropped)

    def _deal(self, batch: pa.RecordBatch, seq: int | None, id: str, numbers: npt.NDArray[np.int64] | None) -> Ack:
        parts = self._parts(batch, seq, id, None if seq is None else numbers)
        *others, last = sorted(parts)
        # Rule 4: the last one says that the unit is whole. Without a number nothing has to wait for the others.
        if seq is None:
            acks = self._all([partial(self.producers[i].send_batch, part) for i, part in parts.items()])
        else:
            acks = self._all([
                partial(self.producers[i].send_batch, parts[i], seq=seq, producer_id=_part_id(id)) for i in others
            ])  # fmt: skip
            acks.append(self.producers[last].send_batch(parts[last], seq=seq, producer_id=id))
        return Ack(max(a.commit_seq for a in acks), sum(a.rows for a in acks), all(a.duplicate for a in acks))

    def _each(self, call: Callable[[Producer], Any]) -> None:
        self._all([partial(call, producer) for producer in self.producers])

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """All of them at once; the first error when all have come to an end."""
        if len(calls) < 2:
            return [call() for call in calls]
        futures = [self._pool.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"stream {self.definition.name}: this producer was closed; open a new one")

    # -- one boundary for all stripes (rule 3) -----------------------------------------------------------------------

    def _stimes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        assert self._stime is not None
        return stimes_of(batch.column(self._stime), self._unit, self.definition.name)

    @property
    def _early_us(self) -> int:
        return END_OF_TIME_US if self._max_ahead_us is None else self._clock() + self._max_ahead_us

    def _let_in(self, batch: pa.RecordBatch) -> tuple[int, npt.NDArray[np.bool_]]:
        """Refuse what is late or early, or say what to drop; from then on the boundary waits for the rest."""
        stimes, early_us = self._stimes(batch), self._early_us
        if len(stimes) and (worst := int(stimes.max())) > early_us:
            raise EarlyTuple(early_text(self.definition.name, worst, worst - self._clock()))
        with self._changed:
            boundary = self._published
            timely: npt.NDArray[np.bool_] = stimes >= boundary
            if self._late == "refuse" and not timely.all():
                raise LateTuple(late_text(self.definition.name, int(stimes.min()), boundary, boundary - self._clock()))
            ticket = next(self._tickets)
            self._under_way[ticket] = int(stimes[timely].min(initial=END_OF_TIME_US))
        return ticket, timely

    def _follow(self, *, within_bucket: bool = False, clock_us: int = BEGINNING_US) -> None:
        """Let the boundary follow what was sent, or the clock; the stripes hear of it when it closes a bucket."""
        size = self.definition.bucket_us
        with self._changed:
            sent_us = self._high - self._slack_us if self._high > BEGINNING_US else BEGINNING_US
            due = min(max(sent_us, clock_us), *self._under_way.values(), END_OF_TIME_US - 1)
            if due <= self._published or not (within_bucket or bucket_of(due, size) > bucket_of(self._published, size)):
                return
            self._published = due
        self._tell(due)

    def _tell(self, boundary_us: int) -> None:
        with self._telling:
            if any(p.boundary_us < boundary_us for p in self.producers):
                self._each(lambda producer: producer.advance(boundary_us))

    def tick(self) -> None:
        """Without tuples the boundary follows the clock, where it is to (`idle`)."""
        if self._idle_us is not None and monotonic_us() - self._data_us >= self._idle_us:
            self._follow(clock_us=self._clock() - self._slack_us)


def _part_id(id: str) -> str:
    return f"{id}.part"


#: Whatever an input can feed.
AnyProducer = Producer | StripedProducer


def send_numbered(
    producer: AnyProducer, rows: Sequence[Row], numbers: Sequence[int], seq: int, producer_id: str | None
) -> Ack:
    """Send rows, each with a number, as one unit of the number `seq`. Whoever was killed may cut them into other units
    when they are sent again: one log has a unit or not, several stripes may have a part of it."""
    if isinstance(producer, StripedProducer):
        return producer.send_many(rows, seq=seq, producer_id=producer_id, numbers=numbers)
    return producer.send_many(rows, seq=seq, producer_id=producer_id)


def dealt_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the producers of the stripes are told of the options of the whole (rules 2 and 3)."""
    if options.get("stime") is None:
        return dict(options)
    kept = ("id", "stime", "stime_unit", "full_timeout", "boundary_every", "steady")
    return {**{k: v for k, v in options.items() if k in kept}, "slack": HELD_SLACK, "max_ahead": None}
