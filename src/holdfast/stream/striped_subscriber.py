"""Follows a striped stream: its stripes, merged in bucket order.

Rules:
1. Complete is what every stripe has completed (003, equation 4.1); one that was closed at its end holds nobody back. A
   stripe that is away is one that completes nothing more.
2. The order is (bucket, stripe, tuple_id), the same for every reader and whatever portions it reads (D9).
3. Each stripe is read by a subscriber of its own, so what holds for those holds for it: history into live without a
   gap, acknowledgements that its retention waits for, holes, mends, refusals. A position is theirs, side by side.
4. Tuple ids count within a stripe. There is nothing tentative: nodes do not write stripes.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.time import END_OF_TIME_US, bucket_of
from holdfast.model.tuples import TupleType
from holdfast.stream.definition import Definition
from holdfast.stream.holes import Hole
from holdfast.stream.position import Position
from holdfast.stream.subscriber import Row, Subscriber, control_tuple, polled, rows_of

_PREFIX = "holdfast-stripes:1:"


class _Part(NamedTuple):
    """A batch of one stripe, with the positions ahead of it and behind it."""

    bucket: int
    stripe: int
    batch: pa.RecordBatch
    before: Position
    after: Position


class StripedSubscriber:
    """Reads a striped stream. Get one from `StripedStream.subscribe`."""

    def __init__(self, definition: Definition, stripes: Sequence[Subscriber], *, boundaries: bool = False) -> None:
        self.definition, self.stripes = definition, tuple(stripes)
        self.name, self.schema = self.stripes[0].name, self.stripes[0].schema
        self._boundaries = boundaries
        self._positions = [stripe.at for stripe in self.stripes]
        self._delivered_us = self.position_us
        self._under_way: Iterator[_Part | pa.RecordBatch] | None = None
        self._trouble: HoldfastError | None = None

    @property
    def position_us(self) -> int:
        """Everything before this stime was delivered. A stripe that was read to its end holds nobody back."""
        going_on = [stripe.position_us for stripe in self.stripes if not stripe.finished]
        return min(going_on) if going_on else max(stripe.position_us for stripe in self.stripes)

    @property
    def position(self) -> str:
        """Where a consumer goes on that has taken every batch, or row, that came so far: `subscribe(after=…)`."""
        return self._text(self._positions)

    @property
    def holes(self) -> list[Hole]:
        """Ranges that were passed and never written, of all stripes."""
        return [hole for stripe in self.stripes for hole in stripe.holes]

    @property
    def finished(self) -> bool:
        """Nothing can follow: all stripes were closed, or the end that was asked for is reached."""
        return self._under_way is None and all(stripe.finished for stripe in self.stripes)

    def poll(self) -> Iterator[pa.RecordBatch]:
        """What is there now, without waiting. Whoever stops half-way finds the rest at the next call."""
        with self._interrupts_noted():
            for part in self._parts():
                if isinstance(part, _Part):
                    self._positions[part.stripe] = part.after
                    yield part.batch
                else:
                    yield part

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, *, timeout: str | int | float | None = None) -> Iterator[pa.RecordBatch]:
        """Batches as they come; ends at the end of the stream, or when nothing came for `timeout`."""
        return polled(self.poll, lambda: self.finished, timeout)

    def rows(self, *, timeout: str | int | float | None = None) -> Iterator[Row]:
        """Tuples one by one, for people and small programs."""
        for part in polled(self._parts, lambda: self.finished, timeout):
            with self._interrupts_noted():
                if not isinstance(part, _Part):
                    yield from (row._replace(position=self.position) for row in rows_of(part))
                    continue
                for row, at in self.stripes[part.stripe].positioned_rows(part.batch, part.before):
                    self._positions[part.stripe] = at
                    yield row._replace(position=self.position)
                self._positions[part.stripe] = part.after

    rows_of = staticmethod(rows_of)

    def worth(self, stime: object) -> None:
        """As of `Subscriber`; nothing here is tentative."""

    def ack(self) -> None:
        """Everything that came so far is taken, in every stripe."""
        if self.name is None:
            raise UsageError("only a named subscriber can acknowledge; give it a name: subscribe(name='dashboard')")
        for stripe, position in zip(self.stripes, self._positions, strict=True):
            stripe.ack_at(position)

    def close(self) -> None:
        for stripe in self.stripes:
            stripe.close()

    def __enter__(self) -> StripedSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self) -> Iterator[_Part | pa.RecordBatch]:
        if self._trouble is not None:
            raise self._trouble  # What could not be read is not passed over.
        if self._under_way is None:
            self._under_way = self._merged()
        with self._interrupts_noted():
            for part in self._under_way:  # noqa: UP028 - with `yield from`, whoever stops here would end it
                yield part
            self._under_way = None

    @contextlib.contextmanager
    def _interrupts_noted(self) -> Iterator[None]:
        """What was read ahead is lost with whatever interrupts it. Who stops (`GeneratorExit`) interrupts nothing."""
        try:
            yield
        except GeneratorExit:
            raise
        except HoldfastError as error:
            self._trouble = error
            raise
        except BaseException as error:
            self._trouble = UsageError(
                f"stream {self.definition.name}: this subscriber was interrupted while it read "
                f"({type(error).__name__}); go on with a new one: subscribe(after=position)"
            )
            raise

    def _merged(self) -> Iterator[_Part | pa.RecordBatch]:
        """Rules 1 and 2: one look at all stripes."""
        ends = [stripe.look_up() for stripe in self.stripes]
        limit_us, before_us = min(ends), self._delivered_us
        runs = [self._run(i, limit_us) for i in range(len(self.stripes))]
        yield from heapq.merge(*runs, key=lambda part: (part.bucket, part.stripe))
        self._positions = [stripe.at for stripe in self.stripes]
        self._delivered_us = self.position_us
        if self._boundaries and self._delivered_us > before_us:
            yield control_tuple(self.schema, TupleType.BOUNDARY, 0, self._delivered_us)

    def _run(self, i: int, limit_us: int) -> Iterator[_Part]:
        """The next batches of one stripe: of one bucket each, in order."""
        stripe = self.stripes[i]
        before = stripe.at
        for batch in stripe.poll(None if limit_us >= END_OF_TIME_US else limit_us):
            after = stripe.at
            if batch.schema.names != self.schema.names:
                batch = batch.select(self.schema.names)  # The same columns in another order.
            yield _Part(bucket_of(batch.column(2)[0].value, self.definition.bucket_us), i, batch, before, after)
            before = after

    def _text(self, positions: Sequence[Position]) -> str:
        said = [p.text(s.definition.name, s.definition.bucket_us) for p, s in zip(positions, self.stripes, strict=True)]
        return _PREFIX + ",".join(said)


def parted_position(text: str, stream: str, stripes: int) -> list[str]:
    """The positions of the stripes; each is checked by who goes on there."""
    found = text.removeprefix(_PREFIX).split(",") if isinstance(text, str) and text.startswith(_PREFIX) else []
    if len(found) != stripes:
        raise UsageError(
            f"after must be a position that a subscriber of striped stream {stream} gave (row.position), unchanged; "
            f"got {text!r:.120}; give none to start at the beginning"
        )
    return found


def check_asked(stream: str, options: dict[str, Any]) -> None:
    """What a reader of a striped stream cannot have."""
    for option in ("tentative", "worth"):
        if options.get(option):
            raise UsageError(
                f"stream {stream} is striped and has no tentative branch; leave out {option}=True, or read the "
                f"results of a node over it"
            )
