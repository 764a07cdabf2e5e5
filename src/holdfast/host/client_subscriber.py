"""What a program reads from a stream of other hosts: the same tuples, in the same forms, as from a local `Subscriber`.

Rules:
1. Steps come from the client's loop in another thread; their tuples are read here, from the client's folder.
2. What comes, and in which order, the core of the client decides; it is the same `Sequence` as a local subscriber's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from holdfast.clock import monotonic_us
from holdfast.host.client import Begin, Client, Ended, RecDone, Stable, Step, Tentative, Undo
from holdfast.model.errors import HoldfastError, PeerError, Removed, UsageError
from holdfast.model.time import BEGINNING_US, SECOND_US, closed_until, duration_us, instant_us
from holdfast.model.tuples import TupleType
from holdfast.stream.definition import Definition
from holdfast.stream.position import Position
from holdfast.stream.reader import LogReader, cut, read_extent
from holdfast.stream.subscriber import Marks, Row, asked_schema, control_tuple, rows_of
from holdfast.stream.worth import Worth

#: How long nothing more may come of a branch before `present` takes it for all there is.
_QUIET_US = SECOND_US
#: Worths of tentative buckets that are remembered.
_WORTHS_MAX = 4096


class ClientSubscriber:
    """Reads one stream of a deployment. Get one from `Connection.subscribe`."""

    def __init__(
        self, definition: Definition, *, end_us: int | None = None, boundaries: bool = False, name: str | None = None,
        after: Position | None = None, worth: bool = False, all_columns: bool = False,
    ) -> None:  # fmt: skip
        self.definition, self.name, self._all_columns = definition, name, all_columns
        self.schema = asked_schema(definition, worth)
        self._end_us, self._boundaries = end_us, boundaries
        self._steps: deque[Step] = deque()
        self._news = threading.Condition()
        self._trouble: HoldfastError | None = None
        self._under_way: Iterator[pa.RecordBatch] | None = None
        self._delivered_us = BEGINNING_US
        self._ended = False
        self._position = after or Position()
        self._worths: dict[int, Worth] = {}
        self._marks = Marks(self.schema, definition, self._position, self._worths.get if worth else None)
        self._files: dict[Path, int] = {}
        self._reader: LogReader | None = None
        self._client: Client | None = None
        self._let_go: Callable[[], None] = lambda: None

    def attach(self, client: Client, let_go: Callable[[], None]) -> None:
        """Where steps come from, and how that ends."""
        self._client, self._let_go = client, let_go
        stream = client.stream
        self._reader = LogReader(stream.folder / "main", stream.definition.schema, stream.definition.bucket_us)
        self._reader.all_columns = self._all_columns

    # Called by the client's loop --------------------------------------------------------------------------------

    def told(self, step: Step) -> None:
        with self._news:
            last = self._steps[-1] if self._steps else None
            if isinstance(step, Stable) and isinstance(last, Stable) and last.end_us == step.start_us:
                step = Stable(last.start_us, step.end_us)  # A slow consumer gets more at a time, not more steps.
                self._steps.pop()
            self._steps.append(step)
            self._news.notify_all()

    def behind(self) -> bool:
        """Whether there is something that was not taken yet."""
        return bool(self._steps) or self._under_way is not None

    def failed(self, error: HoldfastError) -> None:
        """Nothing more will come, and why. What came before is still handed out."""
        with self._news:
            self._trouble = error
            self._news.notify_all()

    # For programs -----------------------------------------------------------------------------------------------

    @property
    def position_us(self) -> int:
        """Everything stable before this stime was delivered."""
        return self._delivered_us

    @property
    def reach_us(self) -> int:
        """How far the stream is complete at the best of its producers, as far as is known."""
        return BEGINNING_US if self._client is None else self._client.reach_us

    @property
    def removed_us(self) -> int:
        """Tuples before this had been removed by retention when it began; BEGINNING_US: none, as far as is known."""
        return BEGINNING_US if self._client is None else self._client.removed_us

    @property
    def position(self) -> str:
        """Where a consumer goes on that has taken every batch, or row, that came so far: `subscribe(after=…)`."""
        return self._position.text(self.definition.name, self.definition.bucket_us)

    @property
    def finished(self) -> bool:
        """Nothing can follow: the stream is closed, or the end that was asked for is reached."""
        at = self._marks.position
        if at.tentative or at.undone or self._steps or self._under_way is not None:
            return False
        return self._ended or (self._end_us is not None and self._delivered_us >= self._end_us)

    def reading(self) -> list[str]:
        """Who is read now: `host/lane`."""
        return [] if self._client is None else self._client.reading()

    def poll(self) -> Iterator[pa.RecordBatch]:
        """What has come, without waiting. Whoever stops half-way finds the rest at the next call."""
        while True:
            if self._under_way is None:
                with self._news:
                    if not self._steps:
                        if self._trouble is not None:
                            raise self._trouble
                        return
                    step = self._steps.popleft()
                self._under_way = self._take(step)
            for batch in self._under_way:
                self._position = self._marks.position
                yield batch
            self._under_way, self._position = None, self._marks.position

    def _take(self, step: Step) -> Iterator[pa.RecordBatch]:
        if isinstance(step, Begin):
            self._delivered_us = step.start_us
            self._marks.passed(step.start_us)
            return
        yield from self._marks.resume()
        if isinstance(step, Stable):
            yield from self._stable(step)
        elif isinstance(step, Tentative):
            yield from self._tentative(step)
        elif isinstance(step, Undo):
            yield from self._marks.undo()
        elif isinstance(step, RecDone):
            yield from self._marks.rec_done()
        else:
            assert isinstance(step, Ended)
            self._ended = True

    def _stable(self, step: Stable) -> Iterator[pa.RecordBatch]:
        assert self._reader is not None
        assert self._client is not None
        start_us, end_us = max(step.start_us, self._delivered_us), self._until(step.end_us)
        if end_us > start_us:
            self._reader.refresh()
            self._marks.under(self._reader.mends)
            # Not strict: a gap further on is noted in the mirror while what lies before it is still to be read.
            for extent in self._reader.extents(start_us, end_us, strict=False):
                for fields, batch in cut(extent.fields, self._reader.read(extent), start_us, end_us):
                    yield from self._marks.stable(fields, batch)
            self._delivered_us = end_us
            self._marks.passed(end_us)
            if self._boundaries:
                yield control_tuple(self.schema, TupleType.BOUNDARY, 0, end_us)
        self._client.consumed_us = step.end_us

    def _tentative(self, step: Tentative) -> Iterator[pa.RecordBatch]:
        start_us = step.bucket * self.definition.bucket_us
        end_us = self._until(start_us + self.definition.bucket_us)
        if end_us <= start_us:
            return
        if step.worth is not None:
            self._worths[step.bucket] = step.worth
        while len(self._worths) > _WORTHS_MAX:
            del self._worths[next(iter(self._worths))]
        for piece in step.pieces:
            try:
                batch = read_extent(self._files, Path(piece.path), piece.fields, self.definition.stored,
                                    all_columns=self._all_columns)  # fmt: skip
            except Removed:
                return  # Let go of long ago: the UNDO that takes the rest back is among the next steps.
            for fields, rows in cut(piece.fields, batch, start_us, end_us):
                yield self._marks.tentative(fields, rows)

    def _until(self, end_us: int) -> int:
        return end_us if self._end_us is None else min(end_us, self._end_us)

    def worth(self, stime: datetime | None) -> Worth | None:
        """What the tentative results of this stime are worth; None if nobody said so."""
        return None if stime is None else self._worths.get(instant_us(stime) // self.definition.bucket_us)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, *, timeout: str | int | float | None = None) -> Iterator[pa.RecordBatch]:
        """Batches as they come; ends at the end of the stream, or when nothing came for `timeout`."""
        limit = None if timeout is None else duration_us(timeout)
        quiet_since = monotonic_us()
        while True:
            for batch in self.poll():
                yield batch
                quiet_since = monotonic_us()
            if self.finished or (limit is not None and monotonic_us() - quiet_since >= limit):
                return
            self._wait(None if limit is None else limit - (monotonic_us() - quiet_since))

    def present(self, *, until_us: int = BEGINNING_US, timeout: str | int | float = "10s") -> Iterator[pa.RecordBatch]:
        """What the producers have when they are first asked, and at least up to `until_us`, then ends; `PeerError` if
        none of them answers in time, or nothing more comes for as long.

        A producer's report may lie a moment behind its log: who has seen more there says up to where.
        """
        assert self._client is not None
        limit_us, quiet_since = duration_us(timeout), monotonic_us()
        while not self.finished:
            for batch in self.poll():
                yield batch
                quiet_since = monotonic_us()
            goal_us = self._client.present_us
            quiet_us = monotonic_us() - quiet_since
            if goal_us is not None:
                goal_us = closed_until(max(goal_us, until_us), self.definition.bucket_us)
                there = self._delivered_us >= self._until(goal_us)
                if there and (not self._client.fresh or quiet_us > _QUIET_US):
                    return
            if quiet_us > limit_us:
                why = "; ".join(self._client.silent.values()) or ("no host answered" if goal_us is None else "all wait")
                raise PeerError(f"nobody serves stream {self.definition.name} within {timeout}: {why}")
            self._wait(50_000)

    def _wait(self, us: int | None) -> None:
        with self._news:
            if not self._steps and self._trouble is None:
                self._news.wait(None if us is None else max(us, 0) / 1e6)

    def rows(self, *, timeout: str | int | float | None = None) -> Iterator[Row]:
        """Tuples one by one, for people and small programs."""
        before = self._marks.position
        for batch in self.batches(timeout=timeout):
            for row, position in self._marks.rows(batch, before):
                self._position = position
                yield row
            before = self._marks.position

    rows_of = staticmethod(rows_of)

    def ack(self) -> None:
        """Everything that came so far is taken: retention may remove it, and `resume` goes on behind it. Every host
        that produces the stream is told, soon."""
        if self.name is None:
            raise UsageError("only a named subscriber can acknowledge; give it a name: subscribe(name='dashboard')")
        assert self._client is not None
        self._client.acked = (max(self._client.acked[0], self._position.until_us), self.position)

    def close(self) -> None:
        """Stop reading, and remove what was not taken; another thread that waits for more is told."""
        with self._news:
            self._steps.clear()
            self._trouble = self._trouble or UsageError("this subscriber was closed; subscribe again to read on")
            self._news.notify_all()
        self._let_go()
        if self._reader is not None:
            self._reader.close()
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> ClientSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
