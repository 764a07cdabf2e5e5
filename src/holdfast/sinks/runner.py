"""Drives what a reader gives into a sink, for as long as it takes.

Rules:
1. The target says where to go on; nothing is remembered here. After any error everything is opened anew, so a commit
   whose answer was lost is neither missed nor repeated (T2).
2. Back-pressure: no more is read before the last transaction is through. One takes whole buckets, so a correction is
   never split (T1); some megabytes of them where a lot has gathered.
3. An UNDO is applied together with what replaces it, if that comes within a moment.
4. What no retry can mend ends the run at once with its sentence; all else is tried again, after a pause that grows, and
   `status` says how often.
5. No row is applied without its columns. Where the stream has got more, the target is opened anew with them, which adds
   them or refuses them as at any start.
6. What the target holds is acknowledged within a second, also where nothing more comes. A position that moved without
   rows is not worth a transaction: whoever resumes behind the last rows finds the same.
7. A target that holds nothing begins where the stream does. If retention has removed what was before, it is said.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import pyarrow as pa

from holdfast.clock import monotonic_us, pause
from holdfast.model.errors import ColumnsAdded, HoldfastError, PeerError, UnknownStream, UsageError
from holdfast.model.schema import reader_schema
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US, instant_text
from holdfast.model.tuples import TupleType
from holdfast.sinks.sink import Sink, Source, fold, kind_of
from holdfast.stream.definition import Definition
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.subscriber import Start

log = logging.getLogger(__name__)

#: One transaction takes no further bucket when it has this much: enough to be quick, little enough to be held in memory
#: several times over.
_ROWS_MAX, _BYTES_MAX = 200_000, 32 << 20
#: How often a reader that had nothing is asked again.
_IDLE_S = 0.02
#: How long an UNDO waits for what replaces it.
_UNDO_WAIT_US = SECOND_US // 4
#: What the target holds is acknowledged so often, since a note is durable and so costs a sync.
_ACK_US = SECOND_US
#: A position that moved although no rows came is acknowledged so often: it frees nothing, but shows where readers are.
_IDLE_ACK_US = 10 * SECOND_US
_BACK_OFF_S_MIN, _BACK_OFF_S_MAX = 0.25, 10.0
#: The rate is that of the last seconds.
_RATE_US = 10 * SECOND_US
#: As many transactions as are remembered for it, at most.
_RECENT_MAX = 20_000

State = Literal["STARTING", "RUNNING", "WAITING", "FAILED", "ENDED", "STOPPED"]


class Reader(Protocol):
    """A subscriber beside the log or over the network."""

    schema: pa.Schema

    @property
    def position(self) -> str: ...
    @property
    def position_us(self) -> int: ...
    @property
    def reach_us(self) -> int: ...
    @property
    def removed_us(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def poll(self) -> Iterator[pa.RecordBatch]: ...
    def ack(self) -> None: ...
    def close(self) -> None: ...


class Origin(Protocol):
    """Where readers of one stream come from. They refuse columns that they do not know (rule 5)."""

    def definition(self) -> Definition: ...
    def subscribe(self, *, after: str | None, start: Start, tentative: bool, name: str | None) -> Reader: ...
    def close(self) -> None: ...


class LocalOrigin:
    """A stream below a folder of this machine."""

    def __init__(self, store: StreamStore, stream: str) -> None:
        self._store, self._stream = store, stream

    def definition(self) -> Definition:
        return self._store.open(self._stream).definition

    def subscribe(self, *, after: str | None, start: Start, tentative: bool, name: str | None) -> Reader:
        stream = self._store.open(self._stream)
        return stream.subscribe(after=after, start=start, tentative=tentative, name=name, all_columns=True)

    def close(self) -> None:
        pass


class SinkRunner:
    """One sink at work. `run` it here, or `start` it in a thread of its own."""

    def __init__(
        self, name: str, stream: str, origin: Origin, sink: Sink, *, start: Start = "beginning",
        subscriber: str | None = None,
    ) -> None:  # fmt: skip
        """`subscriber` is the name under which retention waits for the sink; None: it does not."""
        self.name, self.stream, self._origin, self._sink = name, stream, origin, sink
        self._start, self._subscriber = start, subscriber
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._state: State = "STARTING"
        self._why = ""
        self._attempts = self._errors = 0
        self._rows = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_MAX)
        self._applied_us = self._reach_us = self._removed_us = BEGINNING_US
        #: The stream's columns as they were known when a tuple came that has more.
        self._outgrown: pa.Schema | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> SinkRunner:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self._run_quietly, name=f"holdfast-sink-{self.name}", daemon=True)
        self._thread.start()
        return self

    def tell_stop(self) -> None:
        """End soon, behind the transaction that is under way."""
        self._stopping.set()

    def stop(self) -> None:
        """The same, and wait for it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run_quietly(self) -> None:
        try:
            self.run()
        except HoldfastError as error:  # It stands in the status as well.
            log.error("sink %s has stopped: %s", self.name, error)

    def run(self) -> None:
        """Until the stream has ended or `stop` is called; raises what no retry can mend."""
        while not self._stopping.is_set():
            try:
                self._work()
                if self._outgrown is not None:
                    continue
                if not self._stopping.is_set():
                    self._state = "ENDED"
                break
            except Exception as error:
                if _is_permanent(error):
                    self._state, self._why = "FAILED", str(error)
                    raise
                self._back_off(error)
        if self._state != "ENDED":
            self._state = "STOPPED"

    def _back_off(self, error: Exception) -> None:
        """Rule 4."""
        self._attempts += 1
        self._errors += 1
        pause_s = min(_BACK_OFF_S_MIN * 2 ** (self._attempts - 1), _BACK_OFF_S_MAX)
        said = str(error) or repr(error)
        self._state, self._why = "WAITING", f"{said}; failed {self._attempts} times, tried again every {pause_s:g} s"
        log.warning("sink %s: %s; failed %d times, next try in %g s", self.name, said, self._attempts, pause_s)
        self._stopping.wait(pause_s)

    # -- work --------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        definition = self._origin.definition()
        self._check_grown(definition)
        try:
            position = self._sink.resume(Source(self.stream, definition.schema))
            reader = self._origin.subscribe(
                after=position, start=self._start, tentative=self._sink.tentative, name=self._subscriber
            )
            with contextlib.closing(reader):
                if not reader.schema.equals(reader_schema(definition.schema)):
                    raise PeerError(f"the columns of stream {self.stream} have changed while it was opened")
                self._state, self._why = "RUNNING", ""
                try:
                    self._drive(reader, position, definition.bucket_us)
                except ColumnsAdded as error:
                    log.info("sink %s: %s; the target is opened anew with them", self.name, error)
                    self._outgrown = definition.schema
        finally:
            self._sink.close()

    def _check_grown(self, definition: Definition) -> None:
        """Rule 5. A replica may have been asked that has not heard of the columns yet."""
        if self._outgrown is not None and definition.schema.equals(self._outgrown):
            raise PeerError(
                f"stream {self.stream} has tuples with more columns than its hosts say that it has "
                f"({definition.columns}); waiting for them to say the others"
            )
        self._outgrown = None

    def _drive(self, reader: Reader, stored: str | None, bucket_us: int) -> None:
        portions, acks = _Portions(reader, bucket_us), _Acks(reader, self._subscriber is not None)
        new = stored is None
        while not self._stopping.is_set():
            batches, position = portions.next()
            self._reach_us = reader.reach_us
            if new and self._start == "beginning":
                self._say_removed(reader.removed_us)
            # One that begins live and is killed before the first row must not begin later the next time.
            begun = stored is None and self._start == "live" and reader.position_us > BEGINNING_US
            if batches or begun or (reader.finished and position != stored):
                changes = fold(batches, reader.schema)
                self._sink.apply(changes, position)
                stored = position
                self._done(changes.rows)
            if not portions.held:
                self._applied_us = reader.position_us
                acks.look(bool(batches))
            if batches:
                if not reader.finished:
                    self._stopping.wait(self._sink.every_us / SECOND_US)
                continue
            self._attempts = 0
            if reader.finished:
                return
            self._stopping.wait(_IDLE_S)

    def _say_removed(self, removed_us: int) -> None:
        """Rule 7."""
        if removed_us > self._removed_us:
            self._removed_us = removed_us
            log.warning(
                "sink %s: %s held nothing, and lacks what stream %s had before %s: it was removed by retention",
                self.name, self._sink.target, self.stream, instant_text(removed_us),
            )  # fmt: skip

    def _done(self, rows: int) -> None:
        self._attempts, self._why, self._state = 0, "", "RUNNING"
        self._rows += rows
        self._recent.append((monotonic_us(), rows))

    # -- for people --------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why it has stopped for good; None if it has not."""
        return self._why if self._state == "FAILED" else None

    @property
    def ended(self) -> bool:
        """Whether it holds all that the stream will ever say."""
        return self._state == "ENDED"

    def status(self) -> dict[str, Any]:
        """What `status` shows."""
        return {
            "sink": self.name, "stream": self.stream, "target": self._sink.target, "promise": self._sink.promise,
            "state": self._state, "why": self._why or None, "rows": self._rows, "rows_per_s": self._rate(),
            "lag_s": self._lag_s(), "attempts": self._attempts, "errors": self._errors,
            "removed_before": None if self._removed_us <= BEGINNING_US else instant_text(self._removed_us),
        }  # fmt: skip

    def _rate(self) -> float:
        since = monotonic_us() - _RATE_US
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        return round(sum(rows for _, rows in list(self._recent)) * SECOND_US / _RATE_US, 1)

    def _lag_s(self) -> float | None:
        """How much of the stream, in its own time, the target lacks."""
        if self._applied_us <= BEGINNING_US or not BEGINNING_US < self._reach_us < END_OF_TIME_US:
            return None
        return round(max(0, self._reach_us - self._applied_us) / 1e6, 3)


def run_sink(stream: Stream, sink: Sink, *, start: Start = "beginning", name: str | None = None) -> None:
    """Keep the target at what the stream says, until that has ended. `start` counts for a target that holds nothing
    yet; `name` lets retention wait for the sink."""
    origin = LocalOrigin(StreamStore(stream.folder.parent), stream.name)
    SinkRunner(name or stream.name, stream.name, origin, sink, start=start, subscriber=name).run()


class _Acks:
    """Rule 6: when a reader acknowledges."""

    def __init__(self, reader: Reader, wanted: bool) -> None:
        self._reader, self._wanted = reader, wanted
        self._last_us, self._acked = 0, ""
        self._owed = False
        """The target holds rows that were not acknowledged."""

    def look(self, rows: bool) -> None:
        """The target holds all that the reader gave, `rows` since the last look."""
        self._owed |= rows
        position, since_us = self._reader.position, monotonic_us() - self._last_us
        due = self._reader.finished or since_us >= (_ACK_US if self._owed else _IDLE_ACK_US)
        if self._wanted and due and position != self._acked:
            self._reader.ack()
            self._last_us, self._owed, self._acked = monotonic_us(), False, position


class _Portions:
    """Rules 2 and 3: what a reader has, cut into transactions."""

    def __init__(self, reader: Reader, bucket_us: int) -> None:
        self._reader, self._bucket_us = reader, bucket_us
        #: A batch that was read already and belongs to the next transaction.
        self.held: pa.RecordBatch | None = None

    def next(self) -> tuple[list[pa.RecordBatch], str]:
        """Batches for one transaction, and the position behind them; none if there is nothing now."""
        batches = [] if self.held is None else [self.held]
        self.held = None
        rows, size = sum(b.num_rows for b in batches), sum(b.nbytes for b in batches)
        position, waited_us = self._reader.position, 0
        while True:
            for batch in self._reader.poll():
                full = rows >= _ROWS_MAX or size >= _BYTES_MAX
                if full and self._may_cut(batches[-1], batch):
                    self.held = batch
                    return batches, position
                batches.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                position = self._reader.position
            position = self._reader.position
            if not batches or kind_of(batches[-1]) is not TupleType.UNDO or self._reader.finished:
                return batches, position
            began = monotonic_us()
            if waited_us >= _UNDO_WAIT_US:
                return batches, position
            pause(round(_IDLE_S * SECOND_US))
            waited_us += monotonic_us() - began

    def _may_cut(self, last: pa.RecordBatch, following: pa.RecordBatch) -> bool:
        """Between buckets, and not behind an UNDO."""
        if kind_of(last) is TupleType.UNDO or kind_of(following) is TupleType.REC_DONE:
            return False
        return kind_of(following) is TupleType.UNDO or self._bucket(last) != self._bucket(following)

    def _bucket(self, batch: pa.RecordBatch) -> tuple[int, int]:
        stime_us = batch.column(2).cast(pa.int64())[0].as_py()
        return int(kind_of(batch)), (stime_us or 0) // self._bucket_us


def _is_permanent(error: Exception) -> bool:
    """A stream that is not there yet may come; every other mistake of the user's will be the same next time."""
    return isinstance(error, UsageError) and not isinstance(error, UnknownStream)
