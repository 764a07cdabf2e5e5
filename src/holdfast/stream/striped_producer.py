"""A producer of a striped stream: deals tuples to one producer for each stripe.

Rules:
1. A row goes to the stripe of its key; without a key a unit goes to the next stripe as a whole (`stripes`). A unit
   whose keys belong to several stripes is all or nothing in each; what does not fit is refused before the first part.
2. With times of arrival each stripe's producer does as ever: boundaries follow the clock in all of them.
3. With a column as stime one boundary is kept for all: it trails the largest stime of the whole stream, and no tuple
   that is still on its way to its stripe lies below it. The stripes hear of it, all of them, when it closes a bucket:
   one that gets no tuples holds nobody back. A stream that was left with unequal boundaries goes on from the largest.
   A unit with a number that could not come to all its stripes is waited for until it is sent again.
4. A unit with a number is in its stripes once, however often it is sent. The last of its stripes has the number under
   the sender's id; the others, before it, under another token. So the largest number under the id is that of a unit
   that is there whole, as long as a sender waits for one unit before it sends the next (`last_seq`). One that is sent
   again holds the rows that it held, or its rows have numbers of their own (`send_numbered`). Only rows that their
   stripe has not got are looked at then: of those that are there nobody asks whether they come in time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.clock import ArrivalClock, Clock, monotonic_us, now_us
from holdfast.model.errors import EarlyTuple, HoldfastError, LateTuple, UsageError
from holdfast.model.names import check_name
from holdfast.model.time import (
    BEGINNING_US,
    END_OF_TIME_US,
    MAX_AHEAD,
    bucket_of,
    duration_us,
    early_boundary_text,
    early_text,
    instant_text,
)
from holdfast.stream.definition import Definition
from holdfast.stream.producer import Ack, Producer, Ticker, late_text
from holdfast.stream.rows import Columns, Row, stimes_of
from holdfast.stream.stripes import ENDED, dealt_by_key, part_token
from holdfast.stream.tables import table_batch

#: A stripe's own producer, told so, never gets to a boundary by itself: seconds, longer than there are years (rule 3).
HELD_SLACK = 20_000 * 366 * 86_400

T = TypeVar("T")

log = logging.getLogger(__name__)


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
        self._alike = all(producer.row_schema.equals(self._schema) for producer in self.producers)
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
        """The least stime of each unit that is on its way; END_OF_TIME_US where the boundary need not wait for it."""
        self._torn: dict[tuple[str, int], int] = {}
        """The same of units with a number, by sender and number, that came to some of their stripes only."""
        self._published = self._high = max(p.boundary_us for p in self.producers)
        self._data_us = monotonic_us()
        self._closed = self._stuck = False
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
            return self._stripe_of(row).send(self._named(row))
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
        return self._stripe_of(row).send_async(self._named(row))

    def advance(self, boundary: int) -> None:
        """Promise, for all stripes, that no later tuple has an stime below `boundary` (microseconds)."""
        with self._on_its_way():
            if self._stime is None:
                self._each(lambda producer: producer.advance(boundary))
                return
            if self.producers[0].checked_boundary(boundary) > self._early_us:
                raise EarlyTuple(early_boundary_text(self.definition.name, boundary, boundary - self._clock()))
            with self._changed:
                self._check_whole(boundary)
                before, self._published = self._published, max(self._published, boundary)
                # Those that were let in before are let through.
                self._changed.wait_for(lambda: all(stime_us >= boundary for stime_us in self._under_way.values()))
                try:
                    self._check_whole(boundary)
                except UsageError:
                    self._published = max(before, min(self._published, self._torn_us()))
                    raise
                self._high = max(self._high, boundary)
            self._tell(boundary)

    def _check_whole(self, boundary: int) -> None:
        if self._torn_us() < boundary:
            id, seq = min(self._torn, key=self._torn.__getitem__)
            raise UsageError(
                f"stream {self.definition.name}: unit {seq} of producer {id} came to some of its stripes only, and has "
                f"tuples before the boundary {instant_text(boundary)}; send it again before you promise that"
            )

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

    def untimely_rows(
        self,
        rows: Sequence[Row],
        *,
        seq: int | None = None,
        producer_id: str | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[int]:
        """As `Producer.untimely_rows`. Those of a unit with a number that are in their stripes already are not."""
        if self._stime is None:
            return []
        batch = self._columns.batch(rows)
        stimes = self._stimes(batch)
        untimely = (stimes < self._published) | (stimes > self._early_us)
        if seq is not None:
            each = None if numbers is None else np.asarray(numbers, np.int64)
            untimely &= self._missing(self._dealt(batch, seq), seq, producer_id or self.id, each)
        found: list[int] = np.flatnonzero(untimely).tolist()
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
        with self._changed:
            if self._closed:
                return
            self._closed = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way)
        finally:
            if self._ticker is not None:
                self._ticker.stop()
            try:
                if self._stime is not None and not end:
                    self._follow(within_bucket=True)
            finally:
                try:
                    self._each(lambda producer: producer.close(end=end, tokens={ENDED: 1}))
                finally:
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

    def _named(self, row: Row) -> Row:
        """For a stripe that has the columns in another order."""
        if self._alike or not isinstance(row, tuple | list) or len(row) != len(self._schema):
            return row
        return dict(zip(self._schema.names, row, strict=True))

    def _dealt(self, batch: pa.RecordBatch, seq: int | None) -> npt.NDArray[np.int64]:
        """Rule 1: the stripe of each row."""
        count = len(self.producers)
        if self._by is not None:
            return dealt_by_key(batch.column(self._by), count)
        # Not the number itself: inputs number units by their last row, and so often in steps of a round number.
        stripe = next(self._turns) if seq is None else zlib.crc32(b"%d" % seq)
        return np.full(batch.num_rows, stripe % count, np.int64)

    def _missing(
        self, dealt: npt.NDArray[np.int64], seq: int, id: str, numbers: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.bool_]:
        """Rule 4: which rows of a unit are not in their stripes yet."""
        whole, token = self.last_seq_of(id), part_token(id)
        there = np.array([max(whole, p.last_seq_of(token)) for p in self.producers], np.int64)
        found: npt.NDArray[np.bool_] = (seq if numbers is None else numbers) > there[dealt]
        return found

    def _send(
        self,
        batch: pa.RecordBatch,
        seq: int | None,
        producer_id: str | None,
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> Ack:
        id = self.id if producer_id is None else check_name(producer_id)
        if seq is not None:
            self.producers[0].checked_number(seq)
        with self._on_its_way() as ticket:
            if seq is not None and seq <= self.last_seq_of(id):
                return Ack(max(p.writer.state.commit_seq for p in self.producers), 0, duplicate=True)
            dealt = self._dealt(batch, seq)
            if seq is not None and not (missing := self._missing(dealt, seq, id, numbers)).all():
                batch, dealt = batch.filter(pa.array(missing)), dealt[missing]
            if self._stime is None:
                return self._deal(batch, dealt, seq, id)
            return self._send_timed(ticket, batch, dealt, seq, id)

    def _send_timed(
        self, ticket: int, batch: pa.RecordBatch, dealt: npt.NDArray[np.int64], seq: int | None, id: str
    ) -> Ack:
        timely = self._let_in(ticket, batch)
        dropped = int((~timely).sum())
        try:
            if dropped:
                batch, dealt = batch.filter(pa.array(timely)), dealt[timely]
            done = self._deal(batch, dealt, seq, id)
            with self._changed:
                self._high = max(self._high, int(self._stimes(batch).max()) if batch.num_rows else BEGINNING_US)
                self.late_dropped += dropped
        except BaseException:
            if seq is not None:
                self._hold_torn(ticket, seq, id)
            raise
        finally:
            with self._changed:
                self._under_way[ticket] = END_OF_TIME_US
                self._changed.notify_all()
        self._data_us = monotonic_us()
        self._try_to_follow()
        return done._replace(dropped=dropped)

    def _deal(self, batch: pa.RecordBatch, dealt: npt.NDArray[np.int64], seq: int | None, id: str) -> Ack:
        # Never nothing: a unit may be there for its number.
        stripes = [int(i) for i in np.unique(dealt)] or [0]
        parts = {stripes[0]: batch}
        if len(stripes) > 1:
            parts = {i: batch.take(pa.array(np.flatnonzero(dealt == i))) for i in stripes}
        # Rule 4: the last one says that the unit is whole. Without a number nothing has to wait for the others.
        if seq is None:
            acks = self._all([partial(self.producers[i].send_batch, part) for i, part in parts.items()])
        else:
            *others, last = stripes
            acks = self._all([partial(self.producers[i].send_part, parts[i], part_token(id), seq) for i in others])
            acks.append(self.producers[last].send_batch(parts[last], seq=seq, producer_id=id))
        return Ack(max(a.commit_seq for a in acks), sum(a.rows for a in acks), all(a.duplicate for a in acks))

    def _each(self, call: Callable[[Producer], Any]) -> None:
        self._all([partial(call, producer) for producer in self.producers])

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """All of them at once; the first error when all have come to an end."""
        if len(calls) < 2:
            return [call() for call in calls]
        futures = [self._pool.submit(call) for call in calls]
        try:
            errors = [error for future in futures if (error := future.exception()) is not None]
        finally:
            wait(futures)  # Also after an interrupt: nothing is on its way that nobody knows of.
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

    @contextlib.contextmanager
    def _on_its_way(self) -> Iterator[int]:
        """While somebody is in here nobody closes the stripes."""
        with self._changed:
            self._check_open()
            ticket = next(self._tickets)
            self._under_way[ticket] = END_OF_TIME_US
        try:
            yield ticket
        finally:
            with self._changed:
                del self._under_way[ticket]
                self._changed.notify_all()

    def _let_in(self, ticket: int, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Refuse what is late or early, or say what to drop; from then on the boundary waits for the rest."""
        stimes, early_us = self._stimes(batch), self._early_us
        if len(stimes) and (worst := int(stimes.max())) > early_us:
            raise EarlyTuple(early_text(self.definition.name, worst, worst - self._clock()))
        with self._changed:
            boundary = self._published
            timely: npt.NDArray[np.bool_] = stimes >= boundary
            if self._late == "refuse" and not timely.all():
                raise LateTuple(late_text(self.definition.name, int(stimes.min()), boundary, boundary - self._clock()))
            self._under_way[ticket] = int(stimes[timely].min(initial=END_OF_TIME_US))
        return timely

    def _hold_torn(self, ticket: int, seq: int, id: str) -> None:
        """Rule 3: a unit that came to some of its stripes only is still on its way to the others."""
        if not self.last_seq_of(id) < seq <= max(p.last_seq_of(part_token(id)) for p in self.producers):
            return
        with self._changed:
            self._torn[id, seq] = self._under_way[ticket]
        log.warning(
            "stream %s: unit %d of producer %s came to some of its stripes only; the boundary waits until it is sent "
            "again", self.definition.name, seq, id,
        )  # fmt: skip

    def _torn_us(self) -> int:
        """The least stime of units that are to be sent again; END_OF_TIME_US: of none."""
        self._torn = {unit: us for unit, us in self._torn.items() if self.last_seq_of(unit[0]) < unit[1]}
        return min(self._torn.values(), default=END_OF_TIME_US)

    def _follow(self, *, within_bucket: bool = False, clock_us: int = BEGINNING_US) -> None:
        """Let the boundary follow what was sent, or the clock; the stripes hear of it when it closes a bucket."""
        size = self.definition.bucket_us
        with self._changed:
            on_its_way = min(self._torn_us(), *self._under_way.values(), END_OF_TIME_US - 1)
            sent_us = self._high - self._slack_us if self._high > BEGINNING_US else BEGINNING_US
            due = min(max(sent_us, clock_us), on_its_way)
            if due > self._published and (within_bucket or bucket_of(due, size) > bucket_of(self._published, size)):
                self._published = due
            boundary_us = min(self._published, on_its_way)
        self._tell(boundary_us)  # Also a stripe that could not take the last one.

    def _try_to_follow(self) -> None:
        """The unit is in: a stripe that cannot take the boundary now does not make it fail."""
        try:
            self._follow()
            self._stuck = False
        except HoldfastError as error:
            if not self._stuck:
                log.warning("boundary of stream %s is late, and tried again: %s", self.definition.name, error)
            self._stuck = True

    def _tell(self, boundary_us: int) -> None:
        if all(p.boundary_us >= boundary_us for p in self.producers):
            return
        with self._telling:
            self._all([partial(p.advance, boundary_us) for p in self.producers if p.boundary_us < boundary_us])

    def tick(self) -> None:
        """Without tuples the boundary follows the clock, where it is to (`idle`)."""
        idle = self._idle_us is not None and monotonic_us() - self._data_us >= self._idle_us
        self._follow(clock_us=self._clock() - self._slack_us if idle else BEGINNING_US)


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


def untimely_numbered(
    producer: AnyProducer, rows: Sequence[Row], numbers: Sequence[int], seq: int | None, producer_id: str | None
) -> list[int]:
    """Which rows of what was refused as late or early are the reason. Where there are numbers for some rows only, they
    are of no use."""
    if not isinstance(producer, StripedProducer):
        return producer.untimely_rows(rows)
    each = numbers if len(numbers) == len(rows) else None
    return producer.untimely_rows(rows, seq=seq, producer_id=producer_id, numbers=each)


def dealt_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the producers of the stripes are told of the options of the whole (rules 2 and 3)."""
    if options.get("stime") is None:
        return dict(options)
    kept = ("id", "stime", "stime_unit", "full_timeout", "boundary_every", "steady")
    return {**{k: v for k, v in options.items() if k in kept}, "slack": HELD_SLACK, "max_ahead": None}
