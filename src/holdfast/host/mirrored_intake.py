"""An input that may come from several producers, or from another host: mirrored here, so that Spark reads local logs.

Rules:
1. Main goes into one durable mirror, whoever it comes from: producers are alike bucket by bucket. Tentative lanes go
   into a volatile copy per producer and lane.
2. One lane is followed by one task. A task that ends says so, whatever it ended by; the core decides what next.
3. Mirrors count in buckets of the stream, the core in buckets of the node, which may be several of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from holdfast.clock import monotonic_us
from holdfast.host.intake import InputSignal, Intake
from holdfast.host.link import Link
from holdfast.host.mirror import Advance, Copy, Mirror
from holdfast.model.errors import HoldfastError, Mended, PeerError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.effects import Part
from holdfast.protocol.dpc.signals import Arrival, Disconnected, InputAdvanced, InputGap, Lane
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.store import Stream
from holdfast.stream.tentative import ALL_ROWS, PlannedPiece

log = logging.getLogger(__name__)

#: How often producers are asked for a stream that has not begun.
_FIND_S = 0.25
#: A lane that breaks within this time was never really followed.
_FAST_US = 1_000_000


def copies_of(home: Path) -> Path:
    """Where a replica keeps its volatile copies. They die with its process; the next one removes what is there."""
    return home / "copies"


class MirroredIntake(Intake):
    """One input of one replica, through links."""

    def __init__(
        self,
        home: Path,
        definition: Definition,
        producers: tuple[str, ...],
        bucket_us: int,
        link_to: Callable[[str], Link],
        disk: Disk | None = None,
    ) -> None:
        """`producers` are asked where the stream begins; none where that is known. `disk` is volatile for a reader who
        keeps nothing."""
        self._home, self._definition, self._size, self._link_to = home, definition, bucket_us, link_to
        self._mirror = Mirror(home / "inputs" / definition.name, definition, disk=disk)
        self._copies: dict[tuple[str, Lane], Copy] = {}
        self._tasks: dict[tuple[str, Lane], asyncio.Task[None]] = {}
        self._news: deque[InputSignal] = deque()
        self._totals: dict[tuple[str, Lane], dict[int, Arrival]] = {}
        self._first_us: int | None = None
        self._lost_us = BEGINNING_US
        self._mended: Mended | None = None
        self._finding = asyncio.ensure_future(self._find_first(producers)) if producers else None

    @property
    def stream(self) -> Stream:
        return self._mirror.stream

    def began_under(self, mends: int) -> None:
        self._mirror.began_under(mends)

    @property
    def size_bytes(self) -> int:
        """What mirror and copies take on disk."""
        return self._mirror.size_bytes + sum(copy.size_bytes for copy in self._copies.values())

    def first_us(self) -> int | None:
        return self._first_us

    def lost_until_us(self) -> int:
        return self._lost_us

    async def _find_first(self, producers: tuple[str, ...]) -> None:
        """Ask the producers where the stream begins, until one knows that has it whole, or all have said that they have
        not: then the one that has most of it counts."""
        while self._first_us is None:
            answers = [answer for producer in producers if (answer := await self._ask_first(producer)) is not None]
            whole = any(lost_us == BEGINNING_US for lost_us, _ in answers)
            if answers and (whole or len(answers) == len(producers)):
                self._lost_us, self._first_us = min(answers)
                return
            await asyncio.sleep(_FIND_S)

    async def _ask_first(self, producer: str) -> tuple[int, int] | None:
        """Up to where the producer's stream is gone, and where what is left begins; None if it does not say."""
        name, size = self._definition.name, self._definition.bucket_us
        # Whoever asks from the beginning on gets what is left; a bucket later, they are told of what is gone.
        position = (BEGINNING_US // size + 2) * size
        try:
            portion = await self._link_to(producer).pull(name, Lane.MAIN, position, 0, 1)
        except PeerError:
            return None
        except Exception:
            log.exception("%s from %s: where it begins could not be asked", name, producer)
            return None
        firsts = [event.stime_min_us for event in portion.events]
        if portion.boundary_us > BEGINNING_US:
            firsts.append(portion.boundary_us)  # Events are sent as they came: an older one may follow.
        return (BEGINNING_US if portion.gap_us is None else portion.gap_us, min(firsts)) if firsts else None

    def subscribe(self, replica: str, lane: Lane, from_us: int) -> None:
        key = (replica, lane)
        before = self._tasks.get(key)
        if before is not None:
            before.cancel()
        self._totals[key] = {}
        copy = self._mirror if lane == Lane.MAIN else self._copy(replica, lane)
        self._tasks[key] = asyncio.ensure_future(self._follow(key, copy, from_us, before))

    def _copy(self, replica: str, lane: Lane) -> Copy:
        key = (replica, lane)
        if key not in self._copies:
            folder = copies_of(self._home) / self._definition.name / f"{replica}-{lane.name.lower()}"
            self._copies[key] = Copy(folder, self._definition)
        return self._copies[key]

    async def _follow(
        self, key: tuple[str, Lane], copy: Mirror | Copy, from_us: int, before: asyncio.Task[None] | None
    ) -> None:
        replica, lane = key
        if before is not None:
            await asyncio.wait({before})
        begun_us = monotonic_us()
        try:
            await copy.follow(self._link_to(replica), lane, from_us, lambda advance: self._told(key, advance))
        except PeerError as error:
            log.info("%s from %s: %s", self._definition.name, replica, error)
        except Mended as error:
            log.error("%s from %s: %s", self._definition.name, replica, error)
            if lane == Lane.MAIN:  # A copy begins anew where main is; what is in the mirror was read.
                self._mended = error
        except HoldfastError as error:
            log.error("%s from %s: %s", self._definition.name, replica, error)
        except Exception:
            # Out of files, a fault of ours or of a library: in silence the core would wait for a lane that is dead.
            log.exception("%s from %s: the lane broke", self._definition.name, replica)
        if monotonic_us() - begun_us < _FAST_US:
            await asyncio.sleep(_FIND_S)  # The core tries again at once; a link that is down must not spin.
        self._news.append(Disconnected(replica))

    def unsubscribe(self, replica: str, lane: Lane) -> None:
        task = self._tasks.pop((replica, lane), None)
        if task is not None:
            task.cancel()

    def _told(self, key: tuple[str, Lane], advance: Advance) -> None:
        replica, lane = key
        if advance.gap_us is not None:
            self._news.append(InputGap(self._definition.name, advance.gap_us))
        arrivals = self._in_node_buckets(key, advance.arrivals)
        self._news.append(InputAdvanced(self._definition.name, replica, lane, advance.boundary_us, arrivals))

    def _in_node_buckets(self, key: tuple[str, Lane], arrivals: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
        """Rule 3."""
        ratio = self._size // self._definition.bucket_us
        if ratio == 1:
            return arrivals
        totals = self._totals[key]
        for arrival in arrivals:
            totals[arrival.bucket] = arrival
        told = []
        for bucket in sorted({arrival.bucket // ratio for arrival in arrivals}):
            within = [totals[b] for b in range(bucket * ratio, (bucket + 1) * ratio) if b in totals]
            told.append(_together(bucket, within))
        for old in [b for b in totals if b < (told[-1].bucket - 1) * ratio] if told else []:
            del totals[old]
        return tuple(told)

    def poll(self) -> list[InputSignal]:
        if self._mended is not None:
            raise self._mended  # No new try helps.
        news = list(self._news)
        self._news.clear()
        return news

    def pieces(self, source: int, start_us: int, end_us: int, part: Part) -> list[PlannedPiece]:
        copy: Mirror | Copy = self._mirror
        if part.lane != Lane.MAIN:
            assert part.lane is not None
            assert part.replica is not None
            copy = self._copy(part.replica, part.lane)
        left = None if part.closed else part.tuples
        pieces = []
        for bucket in range(start_us // self._definition.bucket_us, end_us // self._definition.bucket_us):
            for place in copy.pieces(bucket, left):
                take = place.fields.rows if left is None else min(left, place.fields.rows)
                whole = take == place.fields.rows
                if take:
                    pieces.append(PlannedPiece(source, place.path, place.fields, ALL_ROWS if whole else take))
                left = None if left is None else left - take
        return pieces

    def retain(self, from_us: int) -> None:
        self._mirror.retain(from_us)
        for copy in self._copies.values():
            copy.retain(from_us)

    def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
        for task in self._tasks.values():
            task.cancel()
        self._mirror.close()
        for copy in self._copies.values():
            copy.close()


def _together(bucket: int, within: list[Arrival]) -> Arrival:
    """What has arrived of a bucket of the node, in several of the stream."""
    least = [arrival.worth if arrival.least is None else arrival.least for arrival in within]
    missing = tuple(dict.fromkeys(name for arrival in within for name in arrival.missing))
    inputs = tuple(dict.fromkeys(name for arrival in within for name in arrival.inputs))
    return Arrival(bucket, sum(a.tuples for a in within), min(a.worth for a in within), min(least), missing, inputs)
