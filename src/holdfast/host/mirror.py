"""Local copies of streams that are produced elsewhere, so that Spark reads local logs only.

Rules:
1. A mirror is the durable copy of main: a stream like any other, in a folder of its own. A copy is a volatile one of a
   branch, or of main near its end, from one replica.
2. What is told is readable here already, durably where it is a mirror (signals, rule 1).
3. A copy begins anew whenever it is followed again and whenever the remote branch is another one. What was told before
   stays readable until nobody needs it. A copy that nobody follows has no file open: otherwise each lane of each
   producer that was ever read would keep six.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.clock import Clock, now_us
from holdfast.host.link import Link
from holdfast.host.replica_log import Held, Place
from holdfast.host.wire import Portion, Position, Since, same_columns
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.protocol.dpc.signals import Arrival, Lane
from holdfast.stream.definition import COLUMNS_FORMAT, Definition, Retention
from holdfast.stream.disk import Disk, VolatileDisk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.head import read_head
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import Stream

#: How long a producer may hold a pull that brings nothing: long enough to cost nothing, short enough that a broken
#: connection which nobody noticed is found.
WAIT_S = 2.0
#: Empty buckets that one portion of a head tells of. Older ones are not news.
_EMPTY_BUCKETS_MAX = 4096
#: Beginnings of a copy that are kept at most, however often its link breaks.
_INCARNATIONS_MAX = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Advance:
    """More lies in the local copy: what `InputAdvanced` and `InputGap` need."""

    boundary_us: int
    arrivals: tuple[Arrival, ...] = ()
    gap_us: int | None = None
    """Everything before it that had not arrived is gone for ever."""
    branch: str | None = None
    """Id of the branch that a copy follows; None for main, and when the branch was dropped."""


Told = Callable[[Advance], None]


def ignore(advance: Advance) -> None:
    """For whoever looks at the copy itself."""


class Mirror:
    """The durable local copy of main of one input."""

    def __init__(
        self, folder: Path, definition: Definition, *, clock: Clock = now_us, disk: Disk | None = None
    ) -> None:
        disk = disk or Disk()
        self.folder = Path(folder).absolute()
        self.definition = _adopted(self.folder, definition, disk)
        self.stream = Stream(self.folder, self.definition, disk, clock)
        self._held = Held(self.folder / "main", self.definition, disk, clock)
        self._mends: int | None = None

    def began_under(self, mends: int) -> None:
        """Whoever reads this has read the stream before, elsewhere, when its boundary had been taken back so often."""
        self._mends = mends

    @property
    def boundary_us(self) -> int:
        """What main promises here."""
        return self._held.boundary_us

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return self._held.size_bytes

    async def follow(
        self,
        link: Link,
        lane: Lane = Lane.MAIN,
        from_us: int = BEGINNING_US,
        told: Told = ignore,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        """Append what the host behind `link` has, until cancelled or `PeerError`.

        First tells what is here already from `from_us` on.
        """
        if lane != Lane.MAIN:
            raise UsageError(f"a mirror of {self.definition.name} follows main; got {lane.name}; use a Copy for that")
        from_us = from_us // self.definition.bucket_us * self.definition.bucket_us
        self._tell_present(from_us, told)
        start = max(from_us, self._held.closed_until_us)
        position = self._position(start)
        begin: int | None = start
        while True:
            portion = await link.pull(self.definition.name, lane, position, wait_s)
            before = self._held.boundary_us
            totals = await _aside(partial(self._held.take, portion, begin))
            position, begin = portion.cursor, None
            arrivals = tuple(Arrival(bucket, tuples) for bucket, tuples in totals.items())
            if arrivals or portion.gap_us is not None or self._held.boundary_us > before:
                told(Advance(self._held.boundary_us, arrivals, portion.gap_us))

    def _position(self, start_us: int) -> Position:
        if self._held.reach_us > BEGINNING_US:
            return Since(start_us, self._held.mends, max(self._held.reach_us, start_us))
        return start_us if self._mends is None else Since(start_us, self._mends, start_us)

    def _tell_present(self, from_us: int, told: Told) -> None:
        arrivals = tuple(Arrival(bucket, tuples) for bucket, tuples in self._held.tuples_from(from_us).items())
        removed = read_head(self._held.folder).removed_until_us
        gap = removed if from_us < removed else None
        if arrivals or gap is not None or self._held.reader.boundary_us > BEGINNING_US:
            told(Advance(self._held.reader.boundary_us, arrivals, gap))

    def pieces(self, bucket: int, tuples: int | None = None) -> list[Place]:
        """Where the events of a bucket lie, in order; with `tuples` as many as hold the first so many tuples."""
        return self._held.pieces(bucket, tuples)

    def retain(self, from_us: int) -> None:
        """Nobody needs what lies before `from_us` any more; whole segments of it go when the next portion comes."""
        self._held.retain(from_us)

    def close(self) -> None:
        self._held.close()


def _adopted(folder: Path, definition: Definition, disk: Disk) -> Definition:
    """The definition of the mirror in `folder`, made if there is none. It keeps what was mirrored from any replica."""
    path = folder / "stream"
    try:
        present = unseal(path.read_bytes(), Definition, str(path))
    except FileNotFoundError:
        disk.make_dir(folder / "main")
        # How long the origin keeps its tuples is the origin's affair; here the readers decide.
        present = msgspec.structs.replace(
            definition,
            retention=Retention(),
            bound=None,
            persist="always",
            archive=None,
            archive_retention=Retention(),
            format=COLUMNS_FORMAT if definition.first_arrow else FORMAT_VERSION,
        )
        disk.replace_file(path, seal(present))
    if present.name != definition.name or not same_columns(present, definition):
        raise UsageError(
            f"{folder} mirrors stream {present.name} ({present.columns}); asked for {definition.name} "
            f"({definition.columns}); choose another folder or remove this one"
        )
    if len(definition.schema) > len(present.schema):  # Added at the origin since; another replica may not know yet.
        present = msgspec.structs.replace(
            present, columns=definition.columns, arrow=definition.arrow, first_arrow=definition.first_arrow,
            format=COLUMNS_FORMAT,
        )  # fmt: skip
        disk.replace_file(path, seal(present))
    return present


class _Incarnation:
    """One beginning of a copy."""

    def __init__(self, folder: Path, branch: str | None, first: int, held: Held) -> None:
        self.folder, self.branch, self.first, self.held = folder, branch, first, held
        self.told_until = first

    def covers(self, bucket: int) -> bool:
        return self.first <= bucket < self.held.closed_until_us // self.held.definition.bucket_us

    def remove(self) -> None:
        self.held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Copy:
    """The volatile local copy of one replica's branch, or of its main near the end."""

    def __init__(self, folder: Path, definition: Definition, *, clock: Clock = now_us) -> None:
        self.folder, self._clock = Path(folder).absolute(), clock
        # The archive is the origin's: nothing here would ever be in it, and so go.
        self.definition = msgspec.structs.replace(definition, archive=None)
        shutil.rmtree(self.folder, ignore_errors=True)  # A fork that could still read it died with its process.
        os.makedirs(self.folder)
        self._incarnations: list[_Incarnation] = []
        self._followed: _Incarnation | None = None
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return sum(incarnation.held.size_bytes for incarnation in self._incarnations)

    async def follow(
        self,
        link: Link,
        lane: Lane = Lane.BRANCH,
        from_us: int = BEGINNING_US,
        told: Told = ignore,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        """Copy the lane of the host behind `link` from the bucket at `from_us` on, until cancelled or `PeerError`."""
        if lane == Lane.MAIN:
            raise UsageError(f"a copy of {self.definition.name} follows a branch or a head; use a Mirror for main")
        position: Position = from_us
        current: _Incarnation | None = None
        try:
            while True:
                portion = await link.pull(self.definition.name, lane, position, wait_s)
                position = portion.cursor
                if lane == Lane.BRANCH and portion.branch is None:
                    if current is not None:
                        told(Advance(BEGINNING_US))
                        self._leave(current)
                    current = None
                    continue
                if current is None or current.branch != portion.branch:
                    current = self._begin(portion, from_us)
                advance = await self._take(current, portion)
                if advance is not None:
                    told(advance)
        finally:
            if current is not None:
                self._leave(current)

    def _leave(self, incarnation: _Incarnation) -> None:
        """Nobody follows it any more; somebody may have begun the next one already."""
        incarnation.held.close()
        if self._followed is incarnation:
            self._followed = None

    def _begin(self, portion: Portion, from_us: int) -> _Incarnation:
        size = self.definition.bucket_us
        self._count += 1
        if self._followed is not None:
            self._leave(self._followed)
        folder = self.folder / f"{self._count:06d}"
        held = Held(folder, self.definition, VolatileDisk(), self._clock)
        first_us = max(from_us, portion.root_us, portion.gap_us or BEGINNING_US)
        self._incarnations.append(_Incarnation(folder, portion.branch, first_us // size, held))
        for old in self._incarnations[:-_INCARNATIONS_MAX]:
            old.remove()
        del self._incarnations[:-_INCARNATIONS_MAX]
        self._followed = self._incarnations[-1]
        return self._followed

    async def _take(self, current: _Incarnation, portion: Portion) -> Advance | None:
        before = current.held.boundary_us
        totals = await _aside(partial(current.held.take, portion))
        worth = dict(portion.worth)
        if portion.lane == Lane.HEAD:
            for bucket in self._empty(current, portion):
                totals.setdefault(bucket, 0)
        else:
            for bucket in worth:
                totals.setdefault(bucket, 0)
        spans = {span.bucket: (span.least, span.missing, span.inputs) for span in portion.spans}
        arrivals = tuple(Arrival(b, totals[b], worth.get(b, 1.0), *spans.get(b, ())) for b in sorted(totals))
        if not arrivals and current.held.boundary_us <= before:
            return None
        return Advance(current.held.boundary_us, arrivals, None, portion.branch)

    def _empty(self, current: _Incarnation, portion: Portion) -> range:
        """Buckets of a head that are closed now: those without a tuple are news as well."""
        if portion.boundary_us >= END_OF_TIME_US:
            return range(0)
        upto = portion.boundary_us // self.definition.bucket_us
        first = max(current.told_until, upto - _EMPTY_BUCKETS_MAX)
        current.told_until = max(current.told_until, upto)
        return range(first, upto)

    def pieces(self, bucket: int, tuples: int | None = None) -> list[Place]:
        """As `Mirror.pieces`, from the newest beginning that has the bucket (and `tuples` of it, if given)."""
        for incarnation in reversed(self._incarnations):
            found = incarnation.held.pieces(bucket, tuples)
            if incarnation is not self._followed:
                incarnation.held.close()
            if tuples is not None and sum(place.fields.rows for place in found) < tuples:
                continue
            if found or incarnation.covers(bucket):
                return found
        return []

    def retain(self, from_us: int) -> None:
        """Nobody needs what lies before `from_us` any more."""
        for old in [i for i in self._incarnations if i is not self._followed and i.held.boundary_us <= from_us]:
            self._incarnations.remove(old)
            old.remove()
        for incarnation in self._incarnations:
            incarnation.held.retain(from_us)

    def close(self) -> None:
        for incarnation in self._incarnations:
            incarnation.held.close()


async def _aside(work: Callable[[], T]) -> T:
    """Run what waits for the disk in a thread, so that the host's other affairs go on.

    Whoever is cancelled meanwhile ends when the work does: the next follower tells what it finds here, and must find it
    whole. Otherwise what came in between is told by nobody.
    """
    under_way = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        await asyncio.wait({under_way})
        raise
