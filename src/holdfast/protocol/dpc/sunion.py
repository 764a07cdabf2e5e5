"""SUnion: inputs cut into buckets, closed by boundaries, timed from the first arrival (003 §4.5.1, §4.6.2).

Rules:
1. A bucket is complete once the main boundary of every input has passed its end (inequality 4.1). Complete buckets are
   read by the stable query, in order; `frontier` is the first that is not complete.
2. A bucket's clock starts when anything of it arrives. What arrives tentatively was held back upstream already, so
   its clock has run since the frontier stopped: a whole chain waits at the same time, and each node may wait the whole
   delay (§5.4.3).
3. For tentative use, main is better than a branch, closed better than open, something better than nothing.
4. Only what the stable query has not yet committed is kept. A boundary that passes over weeks at once, because a source
   was away for so long, closes its buckets without looking at each: empty ones that long ago are nobody's news.
5. A tentative bucket is worth the share of the expected tuples that went into it (§5.8.3, future work there). What an
   input is expected to bring is a moving average over its complete buckets. A complete input counts 1, a missing one 0,
   a part by its share of the expectation; a tentative one counts what its producer said. The whole is the mean over the
   inputs, weighted by what each is expected to bring.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.effects import Part
from holdfast.protocol.dpc.signals import Arrival, InputAdvanced, Lane

#: Weight of the newest complete bucket. Higher follows load changes sooner, lower evens out bursts.
_NEWEST = 0.2
#: Empty buckets that one step of a boundary may begin to wait for. Far more than fit into any delay, few enough to be
#: counted within a millisecond or two; without it a source that was away for a month would stop its readers.
EMPTY_BUCKETS_MAX = 4096
#: Gaps are mostly short: so many buckets are tried one by one before all that wait are looked through.
_NEAR = 64


class Expectation:
    """How many tuples one bucket of one input usually holds."""

    __slots__ = ("tuples",)

    def __init__(self) -> None:
        self.tuples: float | None = None

    def learn(self, tuples: int) -> None:
        """A complete bucket held so many."""
        self.tuples = float(tuples) if self.tuples is None else self.tuples + _NEWEST * (tuples - self.tuples)

    def share(self, tuples: int) -> float:
        """What part of the expected number these are, at most 1."""
        if not self.tuples:
            return 1.0 if tuples else 0.0
        return min(1.0, tuples / self.tuples)


def combine(shares: list[tuple[float | None, float]]) -> float:
    """The worth of a bucket from (expected tuples, share) per input.

    >>> combine([(10.0, 1.0), (30.0, 0.0)])
    0.25
    """
    weighted = [(expected if expected else 1.0, share) for expected, share in shares]
    total = sum(expected for expected, _ in weighted)
    return sum(expected * share for expected, share in weighted) / total


class Share(NamedTuple):
    """How much of what was expected is there."""

    mean: float
    least: float
    missing: tuple[str, ...]


class Intake:
    """What has arrived of one input."""

    __slots__ = ("closed", "expected", "fresh", "fresh_closed", "fresh_source", "main_us", "open", "stream", "top")

    def __init__(self, stream: str, first: int, main_us: int) -> None:
        self.stream = stream
        self.main_us = main_us
        #: First bucket that the main boundary has not closed.
        self.closed = first
        #: Tuples per bucket on main, as told.
        self.open: dict[int, int] = {}
        #: Tentative copies: bucket → (source, what arrived). A bucket that its fork left out is not there.
        self.fresh: dict[int, tuple[tuple[str, Lane], Arrival]] = {}
        self.fresh_source: tuple[str, Lane] | None = None
        self.fresh_closed = first
        #: One past the last bucket of which anything arrived.
        self.top = first
        self.expected = Expectation()

    def part(self, bucket: int) -> tuple[Part, Share]:
        """The best that this input has for the bucket, and its share of what was expected."""
        tuples = self.open.get(bucket, 0)
        if bucket < self.closed:
            return Part(self.stream, Lane.MAIN, None, tuples, True), Share(1.0, 1.0, ())
        if bucket in self.fresh:
            (replica, lane), copied = self.fresh[bucket]
            closed = bucket < self.fresh_closed
            if closed or copied.tuples >= tuples:
                arrived = 1.0 if closed else self.expected.share(copied.tuples)
                part = Part(self.stream, lane, replica, copied.tuples, closed)
                return part, self._share(copied.worth * arrived, copied.least, copied.missing)
        if tuples:
            return Part(self.stream, Lane.MAIN, None, tuples, False), self._share(self.expected.share(tuples))
        return Part(self.stream, None, None, 0, False), self._share(0.0)

    def _share(self, worth: float, least: float | None = None, missing: tuple[str, ...] = ()) -> Share:
        """What is missing is named by who misses it first: a source, as far as producers have said."""
        named = missing or ((self.stream,) if worth < 1.0 else ())
        return Share(worth, worth if least is None else min(worth, least), named)

    def settled(self, bucket: int, live: bool) -> bool:
        """Whether waiting longer for this bucket is idle: it is closed, was passed over, or nobody delivers it."""
        if bucket < self.closed or bucket < self.fresh_closed:
            return True
        if live:
            return False
        return bucket + 1 < self.top or not (self.open.get(bucket) or bucket in self.fresh)


class SUnion:
    """All inputs of a node, bucket by bucket."""

    __slots__ = ("_size", "first_us", "frontier", "frontier_us", "inputs", "top")

    def __init__(self, streams: tuple[str, ...], bucket_us: int, first: int, now_us: int) -> None:
        self._size = bucket_us
        self.inputs = {stream: Intake(stream, first, first * bucket_us) for stream in streams}
        self.frontier = first
        self.frontier_us = now_us
        self.first_us: dict[int, int] = {}
        self.top = first

    def advance(self, signal: InputAdvanced, now_us: int) -> bool:
        """Take in arrivals and a boundary. True if the boundary of that lane moved."""
        intake = self.inputs[signal.stream]
        if signal.lane == Lane.MAIN:
            return self._advance_main(intake, signal, now_us)
        return self._advance_fresh(intake, signal, now_us)

    def _advance_main(self, intake: Intake, signal: InputAdvanced, now_us: int) -> bool:
        for arrival in signal.arrivals:
            if arrival.bucket >= self.frontier or arrival.bucket >= intake.closed:
                intake.open[arrival.bucket] = arrival.tuples
                self._saw(intake, arrival.bucket, now_us)
        if signal.boundary_us <= intake.main_us:
            return False
        intake.main_us = signal.boundary_us
        upto = signal.boundary_us // self._size
        if signal.boundary_us < END_OF_TIME_US:
            for bucket in range(max(intake.closed, upto - EMPTY_BUCKETS_MAX), upto):
                intake.expected.learn(intake.open.get(bucket, 0))
                self._saw(intake, bucket, now_us)
        if upto > intake.closed:
            intake.closed = upto
            frontier = min(other.closed for other in self.inputs.values())
            if frontier > self.frontier:
                self.frontier, self.frontier_us = frontier, now_us
        return True

    def _advance_fresh(self, intake: Intake, signal: InputAdvanced, now_us: int) -> bool:
        source = (signal.replica, signal.lane)
        if source != intake.fresh_source:
            intake.fresh_source = source
            intake.fresh_closed = self.frontier
        for arrival in signal.arrivals:
            if arrival.bucket >= intake.closed:
                intake.fresh[arrival.bucket] = (source, arrival)
                self._saw(intake, arrival.bucket, self.frontier_us)
        upto = signal.boundary_us // self._size
        if upto <= intake.fresh_closed:
            return False
        intake.fresh_closed = upto
        return True

    def _saw(self, intake: Intake, bucket: int, now_us: int) -> None:
        if bucket not in self.first_us:
            self.first_us[bucket] = now_us
        if bucket >= intake.top:
            intake.top = bucket + 1
            self.top = max(self.top, bucket + 1)

    @property
    def newest(self) -> int:
        """The first bucket that no input which still goes on has closed."""
        end = END_OF_TIME_US // self._size
        return max((intake.closed for intake in self.inputs.values() if intake.closed < end), default=self.frontier)

    @property
    def ended(self) -> bool:
        """Whether every input is closed for ever."""
        return self.frontier >= END_OF_TIME_US // self._size

    def waiting_since(self, bucket: int) -> int | None:
        """When the bucket's clock started; None if nothing of it has arrived."""
        return self.first_us.get(bucket)

    def next_waiting(self, bucket: int) -> int:
        """The first bucket from this one on whose clock runs; `top` if there is none."""
        for near in range(bucket, min(bucket + _NEAR, self.top)):
            if near in self.first_us:
                return near
        return min((seen for seen in self.first_us if seen >= bucket), default=self.top)

    def parts(self, bucket: int) -> tuple[tuple[Part, ...], Share]:
        """What would go into a tentative bucket now, and what it is worth."""
        found = [(intake.expected.tuples, *intake.part(bucket)) for intake in self.inputs.values()]
        mean = combine([(expected, share.mean) for expected, _, share in found])
        least = combine([(expected, share.least) for expected, _, share in found])
        missing = tuple(dict.fromkeys(name for _, _, share in found for name in share.missing))
        return tuple(part for _, part, _ in found), Share(mean, least, missing)

    def settled(self, bucket: int, live: Collection[str]) -> bool:
        """Whether every input has said all it is going to say soon about the bucket."""
        return all(intake.settled(bucket, stream in live) for stream, intake in self.inputs.items())

    def closed(self, bucket: int, live: Collection[str]) -> bool:
        """Whether every input that keeps its promises has closed the bucket."""
        return all(
            bucket < intake.closed or bucket < intake.fresh_closed
            for stream, intake in self.inputs.items()
            if stream in live
        )

    def skip(self, to: int, now_us: int) -> None:
        """Everything before `to` is gone on some input: go on there."""
        for intake in self.inputs.values():
            intake.closed = max(intake.closed, to)
            intake.main_us = max(intake.main_us, to * self._size)
        self.frontier = min(intake.closed for intake in self.inputs.values())
        self.frontier_us = now_us
        self.top = max(self.top, self.frontier)

    def prune(self, below: int) -> None:
        """The stable query has committed everything before `below`."""
        for intake in self.inputs.values():
            for known in (intake.open, intake.fresh):
                for bucket in [b for b in known if b < below]:
                    del known[bucket]
        for bucket in [b for b in self.first_us if b < below]:
            del self.first_us[bucket]
