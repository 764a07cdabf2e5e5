"""The data-source proxy (003 §4.10.2): gives tuples their header, logs them, and keeps boundaries coming.

Rules:
1. `send` returns when the tuples are durable (L1), or in memory where the stream may be (`persistence`). Callers on
   many threads share commits; `send_async` lets one thread share them with itself.
2. stime is the time of arrival, or a column of the user's with a declared slack: then the boundary trails the largest
   stime by the slack, and a tuple below the boundary is refused (D10) or, if asked for, dropped and counted.
3. Arrival times follow a steady clock (`clock.ArrivalClock`): a wall clock that jumps moves no stream (D19). A tuple
   whose own stime lies further ahead of the clock than `max_ahead` is refused, and so is such a boundary: either would
   make all others late.
4. With arrival times a boundary follows at every bucket even when no data comes. With a column it follows the data; if
   the column is wall-clock time, `idle="advance"` lets it follow the clock as well, and `idle="5s"` as soon as no
   tuple has come for so long.
5. A request may carry a sequence number. One that is not above the last committed number of its producer was committed
   before; it is acknowledged and not written again, also after a crash. Several sources may share one producer, each
   under its own id; the last `record.PRODUCERS_MAX` of them are remembered. A unit made of several sources has a
   number of each, and the boundary that follows from them.
6. A refused request changes nothing and does not disturb the others of its group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.clock import ArrivalClock, Clock, monotonic_us, now_us, pause
from holdfast.model.errors import EarlyTuple, HoldfastError, LateTuple, StreamFull, UsageError
from holdfast.model.names import check_name
from holdfast.model.schema import STIME_TYPE
from holdfast.model.time import (
    BEGINNING_US,
    END_OF_TIME_US,
    MAX_AHEAD,
    bucket_of,
    duration_shown,
    duration_us,
    early_boundary_text,
    early_text,
    instant_text,
)
from holdfast.stream.definition import Definition
from holdfast.stream.group import GroupCommit
from holdfast.stream.pack import pack, pack_arrived, stime_array
from holdfast.stream.retention import retain
from holdfast.stream.row_encoder import row_encoder
from holdfast.stream.rows import UNITS_US, Columns, Row, stimes_of
from holdfast.stream.send_window import SendWindow
from holdfast.stream.tables import table_batch
from holdfast.stream.values import STIME_US_MAX, shown
from holdfast.stream.writer import Event, LogWriter

log = logging.getLogger(__name__)

#: How long a full stream makes its producer wait before it says so; long enough for a reader to catch its breath.
FULL_TIMEOUT = "30s"
_FULL_POLL_US = 20_000


class Ack(NamedTuple):
    """The request is durable."""

    commit_seq: int
    rows: int
    duplicate: bool = False
    dropped: int = 0
    """Late tuples left out, where the producer was told to drop them."""


class _Request(NamedTuple):
    rows: Sequence[Row] | None = None
    batch: pa.RecordBatch | None = None
    numbers: Mapping[str, int] | None = None
    """Sequence numbers by producer id."""
    boundary_us: int | None = None
    close: bool = False
    beat: bool = False
    let_go: bool = False


class _Ready(NamedTuple):
    """A request's tuples with their stimes."""

    batch: pa.RecordBatch
    stimes: npt.NDArray[np.int64] | None
    dropped: int = 0


class ProducerOptions(TypedDict, total=False):
    """What `Stream.producer` takes."""

    id: str
    """Whose sequence numbers these are."""
    stime: str | None
    """The column that gives event time; None: the time of arrival."""
    stime_unit: Literal["s", "ms", "us"]
    slack: str | int | float
    """How much disorder there is."""
    late: Literal["refuse", "drop"]
    idle: Literal["wait", "advance"] | str | int | float
    """What silence means: that data is to come, or after how long that none came."""
    boundary_every: str | int | float | None
    full_timeout: str | int | float
    max_ahead: str | int | float | None
    """How far an event time, and a boundary that is promised, may lie ahead of the clock."""
    steady: Clock | None


class Producer:
    """Sends tuples to one stream. Get one from `Stream.producer`; use it as a context manager."""

    def __init__(
        self,
        definition: Definition,
        writer: LogWriter,
        *,
        id: str = "producer",
        stime: str | None = None,
        stime_unit: Literal["s", "ms", "us"] = "us",
        slack: str | int | float = 0,
        late: Literal["refuse", "drop"] = "refuse",
        idle: Literal["wait", "advance"] | str | int | float = "wait",
        boundary_every: str | int | float | None = None,
        full_timeout: str | int | float = FULL_TIMEOUT,
        max_ahead: str | int | float | None = MAX_AHEAD,
        clock: Clock = now_us,
        steady: Clock | None = None,
    ) -> None:
        schema = definition.schema
        if stime is not None and stime != "stime" and stime not in schema.names:
            raise UsageError(f"stream {definition.name}: stime must name one of ({definition.columns}); got {stime!r}")
        if stime_unit not in UNITS_US:
            raise UsageError(f"stime_unit must be one of {', '.join(UNITS_US)}; got {stime_unit!r}")
        self.definition, self.writer, self.id = definition, writer, check_name(id)
        self._schema = pa.schema([pa.field("stime", STIME_TYPE), *schema]) if stime == "stime" else schema
        self._columns = Columns(self._schema, f"stream {definition.name}")
        self._user = schema
        self._stored = definition.stored
        # A row that came alone is encoded by itself, where nothing but its arrival and its values is to be looked at.
        alone = stime is None and definition.partition_by is None
        self._encoder = row_encoder(definition.stored) if alone else None
        self._stime, self._unit = stime, stime_unit
        self._slack_us, self._late = duration_us(slack), late
        # None: the boundary waits for data, however long. Otherwise it follows the clock after so long without any.
        self._idle_us = None if idle == "wait" else 0 if idle == "advance" else duration_us(idle)
        self._data_us = monotonic_us()
        self._full_timeout_us = duration_us(full_timeout)
        self._max_ahead_us = None if max_ahead is None else duration_us(max_ahead)
        self._clock, self._arrival = ArrivalClock(clock, steady), ArrivalClock(clock, steady)
        self._arrival.not_before(writer.state.boundary_us)
        self._stime_max = writer.state.boundary_us
        self._say_if_ahead()
        self._group: GroupCommit[_Request, Ack] = GroupCommit(self._commit)
        self._sends: SendWindow[_Request, Ack] = SendWindow(f"sends-{definition.name}", self._group.submit_all)
        self._closed = self._strayed = False
        self.late_dropped = 0
        every = definition.bucket_us if boundary_every is None else duration_us(boundary_every)
        self._ticker = Ticker(self, every)

    def _say_if_ahead(self) -> None:
        if not self.writer.state.closed and self.ahead_us > duration_us(MAX_AHEAD):
            log.warning("%s", ahead_text(self.definition.name, self.boundary_us, self.ahead_us))

    def _say_if_strayed(self) -> None:
        """A clock that was set right for good, as on a machine that starts without one, is followed at twice the pace:
        in a case like that somebody must know, and can do better."""
        strayed_us = self._clock.strayed_us
        far = abs(strayed_us) > duration_us(MAX_AHEAD)
        if far and not self._strayed:
            log.warning(
                "stream %s: the wall clock has jumped and lies %s %s the times that this producer gives; it follows "
                "step by step; if the wall clock is right, open the stream anew to follow at once",
                self.definition.name, duration_shown(strayed_us), "ahead of" if strayed_us > 0 else "behind",
            )  # fmt: skip
        self._strayed = far

    # -- what callers use --------------------------------------------------------------------------------------------

    def send(self, row: Row, *, seq: int | None = None, producer_id: str | None = None) -> Ack:
        """Send one row; return when it is durable. `seq` counts per `producer_id` (this producer's own if unset)."""
        return self._submit(_Request((row,), None, self._numbers(seq, producer_id)))

    def send_many(self, rows: Sequence[Row], *, seq: int | None = None, producer_id: str | None = None) -> Ack:
        """Send rows as one atomic unit."""
        return self._submit(_Request(rows=rows, numbers=self._numbers(seq, producer_id)))

    def send_batch(self, data: Any, *, seq: int | None = None, producer_id: str | None = None) -> Ack:
        """Send an Arrow table, an Arrow record batch or a pandas frame as one atomic unit."""
        batch = table_batch(data, self._schema, self.definition.name)
        return self._submit(_Request(batch=batch, numbers=self._numbers(seq, producer_id)))

    def send_unit(self, data: Any, *, numbers: Mapping[str, int], boundary: int | None = None) -> Ack:
        """Send what several sources brought as one atomic unit: the rows, as for `send_batch`, the number that each
        source has then, and the boundary from then on. It was committed before if no number is above the last one."""
        batch = table_batch(data, self._schema, self.definition.name)
        counted = {check_name(i): self.checked_number(n) for i, n in numbers.items()}
        promised = None if boundary is None else self.checked_boundary(boundary)
        return self._submit(_Request(batch=batch, numbers=counted, boundary_us=promised))

    def send_part(self, batch: pa.RecordBatch, token: str, seq: int) -> Ack:
        """Send a part of a unit that several stripes share, under a token that is no producer's id."""
        part = table_batch(batch, self._schema, self.definition.name)
        return self._submit(_Request(batch=part, numbers={token: seq}))

    def send_async(self, row: Row, *, seq: int | None = None, producer_id: str | None = None) -> Future[Ack]:
        """Send one row without waiting for it: the future has its `Ack` once it is durable. One thread so shares
        commits with itself; it waits only while `send_window.OUTSTANDING_MAX` rows are under way."""
        if self._closed:
            raise self._was_closed()
        return self._sends.put(_Request(rows=(row,), numbers=self._numbers(seq, producer_id)))

    def advance(self, boundary: int) -> Ack:
        """Promise that no later tuple has an stime below `boundary` (microseconds), which may lie no further ahead of
        the clock than `max_ahead`."""
        return self._submit(_Request(boundary_us=self.checked_boundary(boundary)))

    @property
    def last_seq(self) -> int:
        """The last sequence number of this producer id that is durable; -1 before the first."""
        return self.last_seq_of(self.id)

    def last_seq_of(self, producer_id: str) -> int:
        """The same for any source that shares this producer."""
        return self.writer.state.tokens.get(producer_id, -1)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns that a row handed to `send` has: the stream's, and `stime` where the rows bring it themselves."""
        return self._schema

    def untimely_rows(self, rows: Sequence[Row]) -> list[int]:
        """Which of the rows would be refused as late or early now, for whoever wants to send the others."""
        if self._stime is None:
            return []
        stimes = stimes_of(self._columns.batch(rows).column(self._stime), self._unit, self.definition.name)
        found: list[int] = np.flatnonzero((stimes < self.boundary_us) | (stimes > self._early_us)).tolist()
        return found

    @property
    def ahead_us(self) -> int:
        """How far the stream's boundary lies ahead of the clock; below zero: behind it."""
        return self.boundary_us - self._clock()

    @property
    def _early_us(self) -> int:
        return END_OF_TIME_US if self._max_ahead_us is None else self._clock() + self._max_ahead_us

    def _numbers(self, seq: int | None, producer_id: str | None) -> Mapping[str, int] | None:
        if seq is None and producer_id is None:
            return None
        id = self.id if producer_id is None else check_name(producer_id)
        return None if seq is None else {id: self.checked_number(seq)}

    def checked_number(self, seq: int) -> int:
        """Refused before it can spoil the commit that it shares with others (rule 6)."""
        if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 1 << 63:
            raise UsageError(
                f"stream {self.definition.name}: a sequence number must be whole, from 0 to 2^63 - 1; got {shown(seq)}"
            )
        return seq

    def checked_boundary(self, boundary_us: int) -> int:
        if not isinstance(boundary_us, int) or not BEGINNING_US <= boundary_us <= STIME_US_MAX:
            raise UsageError(
                f"stream {self.definition.name}: a boundary must be microseconds since 1970, in the years to 9999; got "
                f"{shown(boundary_us)}"
            )
        if boundary_us > self._early_us:
            raise EarlyTuple(early_boundary_text(self.definition.name, boundary_us, boundary_us - self._clock()))
        return boundary_us

    @property
    def boundary_us(self) -> int:
        return self.writer.state.boundary_us

    @property
    def next_tuple_id(self) -> int:
        """Tuples get consecutive ids: the difference of two looks is how many were added."""
        return self.writer.state.next_tuple_id

    def close(self, *, end: bool = True, tokens: Mapping[str, int] | None = None) -> None:
        """End the stream cleanly (`end=False` only lets go of it, so that a later producer can go on). `tokens` go
        into the unit that ends it."""
        if self._closed:
            return
        self._closed = True
        self._sends.close()
        self._ticker.stop()
        end = end and not self.writer.state.closed
        # Let go as part of a group: no other thread can be in the middle of a commit then.
        self._group.submit(_Request(close=end, beat=not end, let_go=True, numbers=tokens if end else None))

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # After an error the stream is not at its end: somebody may well go on with it.
        self.close(end=kind is None)

    def _submit(self, request: _Request) -> Ack:
        if self._closed:
            raise self._was_closed()
        return self._group.submit(request)

    def _was_closed(self) -> UsageError:
        return UsageError(f"stream {self.definition.name}: this producer was closed; open a new one")

    # -- committing a group (one thread at a time) -------------------------------------------------------------------

    def _commit(self, requests: Sequence[_Request]) -> list[Ack | BaseException]:
        if len(requests) == 1 and (ack := self._answer_row(requests[0])) is not None:
            return [ack]
        try:
            return self._answer(requests)
        finally:
            if any(r.let_go for r in requests):
                self.writer.release(self._clock())

    def _answer(self, requests: Sequence[_Request]) -> list[Ack | BaseException]:
        now = self._clock()
        arrival = self._arrival()
        if all(r.beat for r in requests):
            self.writer.beat(now)
            return [Ack(self.writer.state.commit_seq, 0)] * len(requests)
        answers: list[Ack | BaseException | None] = [None] * len(requests)
        ready: dict[int, _Ready] = {}
        tokens: dict[str, int] = {}
        repeats: list[int] = []
        rows: list[int] = []
        for i, request in enumerate(requests):
            if request.numbers is None:
                if request.rows is not None:
                    rows.append(i)
                elif request.batch is not None:
                    self._prepare(i, request, ready, answers)
            elif all(n <= tokens.get(id, self.last_seq_of(id)) for id, n in request.numbers.items()):
                repeats.append(i)
            else:
                self._prepare(i, request, ready, answers)
                if answers[i] is None:  # A refused request does not use up its number.
                    tokens.update(request.numbers)
        self._prepare_rows(rows, requests, ready, answers)
        events, high = self._events(ready, arrival)
        if events:
            self._data_us = monotonic_us()
        if self._make_room(sum(len(e.body) for e in events)):
            events, high = self._events(ready, self._arrival())
        asked = [
            r.boundary_us for r, a in zip(requests, answers, strict=True) if a is None and r.boundary_us is not None
        ]
        boundary, stime_max = self._boundary(asked, now if self._stime is not None else arrival, high)
        state = self.writer.commit(
            events, now_us=now, boundary_us=boundary, tokens=tokens, closed=any(r.close for r in requests)
        )
        self._stime_max = stime_max
        self._arrival.not_before(boundary)
        self.late_dropped += sum(one.dropped for one in ready.values())
        for i in range(len(requests)):
            if answers[i] is None:
                one = ready.get(i)
                count = one.batch.num_rows if one else len(requests[i].rows or ())
                answers[i] = Ack(state.commit_seq, count, dropped=one.dropped if one else 0)
        for i in repeats:
            answers[i] = Ack(state.commit_seq, 0, duplicate=True)
        return answers  # type: ignore[return-value]

    def _answer_row(self, request: _Request) -> Ack | None:
        """One plain row that came alone: the steps of a group without what only others need. None if it is not that, or
        does not fit."""
        if self._encoder is None or request.rows is None or len(request.rows) != 1 or request.numbers is not None:
            return None
        arrival = self._arrival()
        arrived = max(arrival, self._stime_max, self.writer.state.boundary_us)
        body = self._encoder.encode(arrived, request.rows[0])
        if body is None:
            return None
        definition = self.definition
        if definition.bound is not None and self._make_room(len(body)):
            return self._answer_row(request)
        bucket = arrived // definition.bucket_us
        event = Event(bucket, bucket % definition.partitions, 1, arrived, arrived, body)
        state = self.writer.commit((event,), now_us=self._clock(), boundary_us=arrived)
        self._stime_max = arrived
        if arrived > arrival:
            self._arrival.not_before(arrived)
        return Ack(state.commit_seq, 1)

    def _prepare_rows(
        self,
        which: list[int],
        requests: Sequence[_Request],
        ready: dict[int, _Ready],
        answers: list[Ack | BaseException | None],
    ) -> None:
        """Turn the rows of all callers into one batch; if that fails, find out whose row it was."""
        if not which:
            return
        if len(which) == 1 or self._stime is not None:
            for i in which:
                self._prepare(i, requests[i], ready, answers)
            return
        rows = [row for i in which for row in requests[i].rows or ()]
        try:
            # Under a number that is nobody's: the group's rows are one batch now.
            ready[-1] = _Ready(self._columns.batch(rows), None)
        except HoldfastError:
            for i in which:
                self._prepare(i, requests[i], ready, answers)

    def _prepare(
        self, i: int, request: _Request, ready: dict[int, _Ready], answers: list[Ack | BaseException | None]
    ) -> None:
        try:
            batch = request.batch if request.batch is not None else self._columns.batch(request.rows or ())
            ready[i] = self._timed(batch)
        except HoldfastError as error:
            answers[i] = error

    def _timed(self, batch: pa.RecordBatch) -> _Ready:
        """Rule 2: the stimes of a batch; late tuples refused or dropped."""
        if self._stime is None:
            return _Ready(batch, None)
        stimes = stimes_of(batch.column(self._stime), self._unit, self.definition.name)
        boundary = self.boundary_us
        if len(stimes) and int(stimes.max()) > self._early_us:
            worst = int(stimes.max())
            raise EarlyTuple(early_text(self.definition.name, worst, worst - self._clock()))
        late = stimes < boundary
        if not late.any():
            return _Ready(batch, stimes)
        if self._late == "refuse":
            raise LateTuple(late_text(self.definition.name, int(stimes.min()), boundary, self.ahead_us))
        dropped = int(late.sum())
        keep = pa.array(~late)
        return _Ready(batch.filter(keep), stimes[~late], dropped)

    def _events(self, ready: dict[int, _Ready], arrived: int) -> tuple[list[Event], int]:
        """Events of all prepared batches, and the largest stime among them."""
        events: list[Event] = []
        high = self._stime_max
        arrival = max(arrived, high, self.boundary_us)  # Also where a boundary was asked for ahead of the clock.
        for one in ready.values():
            batch = one.batch
            if not batch.num_rows:
                continue
            if one.stimes is None:
                events += pack_arrived(batch, arrival, self.definition, self._stored)
                high = arrival
                continue
            columns = [batch.column(n) for n in self._user.names]
            stored = pa.RecordBatch.from_arrays([stime_array(one.stimes), *columns], schema=self._stored)
            events += pack(stored, self.definition)
            high = max(high, int(one.stimes.max()))
        return events, high

    def _boundary(self, asked_for: Sequence[int], now: int, high: int) -> tuple[int, int]:
        """The boundary to promise, and the largest stime from then on."""
        asked = max(asked_for, default=BEGINNING_US)
        if self._stime is None:
            # Never behind what was handed out.
            return max(asked, now, high), high
        trailing = high - self._slack_us if high > BEGINNING_US else BEGINNING_US
        if self._is_idle():
            trailing = max(trailing, now - self._slack_us)
        return max(asked, trailing), max(high, asked)

    def _is_idle(self) -> bool:
        return self._idle_us is not None and monotonic_us() - self._data_us >= self._idle_us

    def _make_room(self, size: int) -> bool:
        """Whether the boundary moved meanwhile: what arrives is dated behind it."""
        bound = self.definition.bound
        if bound is None or not size or self.writer.size_bytes + size <= bound.bytes:
            return False
        deadline = monotonic_us() + self._full_timeout_us
        rolled = moved = False
        while True:
            retain(self.writer.folder, self.definition, self._clock(), disk=self.writer.disk, need_bytes=size)
            if self.writer.size_bytes + size <= bound.bytes:
                return moved
            if not rolled:
                # The segment being written is never removed; what is acknowledged in it can go once it is sealed.
                self.writer.roll(self._clock())
                rolled = True
                continue
            if monotonic_us() >= deadline:
                raise StreamFull(
                    f"stream {self.definition.name}: it may hold {bound.bytes} bytes and is full; nothing was written; "
                    f"let its subscribers acknowledge, raise the bound, or use when_full='drop_oldest'"
                )
            moved = self._close_bucket() or moved
            pause(_FULL_POLL_US)

    def _close_bucket(self) -> bool:
        """Where time of arrival is the tuples' time, a bucket ends with it, though nobody can write: its readers could
        not acknowledge it otherwise, and there would never be room."""
        size, arrival = self.definition.bucket_us, self._arrival()
        open_until = bucket_of(self._stime_max, size)
        if self._stime is not None or not bucket_of(self.boundary_us, size) <= open_until < bucket_of(arrival, size):
            return False
        self.writer.commit((), now_us=self._clock(), boundary_us=arrival)
        return True

    def tick(self) -> None:
        """Rule 4: a boundary when a bucket has ended; otherwise only a sign of life."""
        self._say_if_strayed()
        if self._stime is None:
            boundary = self._arrival()
        else:
            boundary = self._clock() - self._slack_us if self._is_idle() else BEGINNING_US
        size = self.definition.bucket_us
        if boundary > self.boundary_us and bucket_of(boundary, size) > bucket_of(self.boundary_us, size):
            self._group.submit(_Request(boundary_us=min(boundary, END_OF_TIME_US - 1)))
        else:
            self._group.submit(_Request(beat=True))


def late_text(stream: str, stime_us: int, boundary_us: int, ahead_us: int) -> str:
    """A tuple below the boundary, which lies so far ahead of the clock."""
    return (
        f"stream {stream}: a tuple at {instant_text(stime_us)} comes after the boundary "
        f"{instant_text(boundary_us)}; it is {(boundary_us - stime_us) / 1e6:.3f} s too late; "
        f"declare that much more slack, or let late tuples be dropped (late='drop')"
        + (f"; {ahead_text('', boundary_us, ahead_us)}" if ahead_us > duration_us(MAX_AHEAD) else "")
    )


def ahead_text(stream: str, boundary_us: int, ahead_us: int) -> str:
    """What to know of a stream whose boundary lies far ahead of the clock."""
    whose = f"stream {stream}: its" if stream else "its"
    return (
        f"{whose} boundary {instant_text(boundary_us)} lies {duration_shown(ahead_us)} ahead of the clock; if the "
        f"clock is right, a wrong time was written: `holdfast mend-boundary` puts it right and says what readers get"
    )


class Ticking(Protocol):
    definition: Definition

    def tick(self) -> None: ...


class Ticker:
    """The one thread of a producer: it calls `tick` on schedule."""

    def __init__(self, producer: Ticking, every_us: int) -> None:
        self._producer, self._every_us = producer, every_us
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"boundary-{producer.definition.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        failing = False
        while not self._stop.wait(self._every_us / 1e6):
            try:
                self._producer.tick()
                failing = False
            except Exception as error:  # This thread must not end: without boundaries readers take the stream for dead.
                if not failing:
                    log.warning("boundary of stream %s is late: %s", self._producer.definition.name, error)
                failing = True

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
