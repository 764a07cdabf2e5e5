"""Several partitions of one source become one stream, bucket by bucket, in an order that only the records decide.

Rules:
1. A record is held until its bucket is complete, then given out with all others of that bucket, by partition and
   offset. So the same records give the same buckets, whoever reads them, when and in which portions (K3).
2. With the rows of a unit go, per partition, the place where reading goes on (`low`: everything before it is dealt
   with) and how far it was read (`seen`), and the boundary. After a crash a record between the two was dealt with if it
   lies below that boundary and is held again if not; the boundary stays until all of those are there. Offsets may have
   gaps: they are compared, never counted (K1).
3. A partition holds the boundary back at its largest stime, less the slack, while it has records that were not read.
   One that is read to its end does not (K2); where stimes are times of the clock it is known to be so only up to when
   its end was looked at.
4. Where several hosts read the same source (`shared`), nothing may depend on who reads. Late is a record that lies
   below what its own partition had promised by the records before it, wherever the boundary stands; how far partitions
   were promised goes into the log with the places. A record below the boundary that is not late so has come against
   the promise that its source would not go back: the others have it and this one has not, and that is an error.
5. While much is held, partitions that are ahead wait for those that are behind. What one partition alone holds within
   its slack must fit into `HELD_BYTES_MAX`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until, instant_text
from holdfast.stream.record import PRODUCERS_MAX

#: Arrow bytes of records that wait for their bucket. Beyond it partitions wait for each other.
HELD_BYTES_MAX = 256 << 20
#: Each partition has two numbers among the stream's producers, three if it is shared, and the boundary has one.
PARTITIONS_MAX = (PRODUCERS_MAX - 1) // 2
SHARED_PARTITIONS_MAX = (PRODUCERS_MAX - 1) // 3
#: How long the knowledge that a partition is read to its end holds where stimes are not the clock's: beyond it, whoever
#: would tell us of new records may be away.
END_KNOWN_US = 3_000_000


class Chunk(NamedTuple):
    """Records of one partition, in its order."""

    offsets: npt.NDArray[np.int64]
    stimes: npt.NDArray[np.int64]
    rows: pa.RecordBatch

    def only(self, which: npt.NDArray[np.bool_]) -> Chunk:
        return Chunk(self.offsets[which], self.stimes[which], self.rows.filter(pa.array(which)))


class Unit(NamedTuple):
    """What is committed at once."""

    rows: pa.Table
    numbers: dict[str, int]
    boundary_us: int


@dataclass(slots=True)
class Partition:
    """How far one partition is."""

    low: int
    seen: int
    """Below it, and below the boundary of that time, everything is in the log."""
    next: int
    top_us: int = BEGINNING_US
    before_us: int = BEGINNING_US
    """The largest stime of the records before `seen`."""
    end: int | None = None
    ended_us: int = BEGINNING_US
    """When the source said that `end` is its end."""
    held: list[Chunk] = field(default_factory=list)

    @property
    def read_to_end(self) -> bool:
        return self.end is not None and self.next >= self.end

    @property
    def seen_until(self) -> int:
        return max(self.seen, self.next)

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.next)

    @property
    def held_bytes(self) -> int:
        return sum(chunk.rows.nbytes for chunk in self.held)


class PartitionMerge:
    """`id` names the source among the stream's producers, `numbers` are those that the log has."""

    def __init__(
        self,
        schema: pa.Schema,
        id: str,
        numbers: Mapping[str, int],
        *,
        bucket_us: int,
        slack_us: int,
        boundary_us: int,
        by_clock: bool,
        idle_us: int | None = None,
        shared: bool = False,
    ) -> None:
        self._schema, self._id, self._bucket_us, self._slack_us = schema, id, bucket_us, slack_us
        self._by_clock, self._idle_us, self._shared = by_clock, idle_us, shared
        self._numbers = dict(numbers)
        #: The boundary that went with what the log has of `seen`: not one that somebody else, or this run, has set.
        self._known_us = self._numbers.get(f"{id}-boundary", 0) + BEGINNING_US
        self.boundary_us = max(boundary_us, self._known_us)
        self.partitions: dict[int, Partition] = {}
        self._data_us = BEGINNING_US
        #: Up to when it is known which partitions there are, where that matters.
        self._partitions_us = BEGINNING_US if shared else END_OF_TIME_US

    @property
    def reached_us(self) -> int:
        """The largest time that is known of the source by what the log has; the beginning where it has nothing."""
        marks = (n for name, n in self._numbers.items() if re.fullmatch(rf"{re.escape(self._id)}-t\d+", name))
        tops_us = max(marks, default=0) + BEGINNING_US
        return max(tops_us, self._known_us + self._slack_us) if self._known_us > BEGINNING_US else tops_us

    # -- partitions --------------------------------------------------------------------------------------------------

    def resume_at(self, number: int) -> int | None:
        """Where reading of a partition goes on; None: it was never read."""
        return self._numbers.get(f"{self._id}-p{number}")

    def add(self, number: int, first: int) -> None:
        """Take up a partition at `first`, or where the log says."""
        most = SHARED_PARTITIONS_MAX if self._shared else PARTITIONS_MAX
        if number >= most:
            raise UsageError(
                f"a source may have {most} partitions at most; got one with number {number}; split the topic"
            )
        low = self._numbers.get(f"{self._id}-p{number}", first)
        seen = self._numbers.get(f"{self._id}-s{number}", low)
        before_us = self._numbers.get(f"{self._id}-t{number}", 0) + BEGINNING_US
        self.partitions[number] = Partition(low, seen, low, before_us=before_us)

    def partitions_known(self, asked_us: int) -> None:
        """Whatever partitions there were at `asked_us` are among ours."""
        self._partitions_us = max(self._partitions_us, asked_us)

    def was_seen(self, number: int, offset: int) -> bool:
        """Whether a record is read again that was read before the last start."""
        return offset < self.partitions[number].seen

    def take(self, number: int, chunk: Chunk, now_us: int) -> npt.NDArray[np.int64]:
        """Hold records. Those that were dealt with before the last start are passed over; gives back the offsets of
        those whose bucket is closed."""
        partition = self.partitions[number]
        if not len(chunk.offsets):
            return chunk.offsets
        stimes = chunk.stimes
        late = stimes < self.boundary_us
        dealt_with = (chunk.offsets < partition.seen) & (stimes < self._known_us)
        refused = late & ~dealt_with
        if self._shared:
            behind = self._behind(partition, chunk)
            if (against := refused & ~behind).any():
                raise self._against(number, chunk.only(against))
            refused, late = behind & (chunk.offsets >= partition.seen), late | behind
        gone = chunk.offsets[refused]
        if late.any():
            chunk = chunk.only(~late)
        partition.top_us = max(partition.top_us, int(stimes.max()))
        if len(chunk.offsets):
            partition.held.append(chunk)
        self._data_us = now_us
        return gone

    def _behind(self, partition: Partition, chunk: Chunk) -> npt.NDArray[np.bool_]:
        """Rule 4: which records lie below what those before them in the partition have promised."""
        tops = np.maximum.accumulate(np.concatenate(([partition.top_us], chunk.stimes[:-1])))
        tops = np.where(chunk.offsets >= partition.seen, np.maximum(tops, partition.before_us), tops)
        promised: npt.NDArray[np.bool_] = chunk.stimes < (tops - self._slack_us) // self._bucket_us * self._bucket_us
        return promised

    def _against(self, number: int, chunk: Chunk) -> UsageError:
        return UsageError(
            f"a source that several hosts read must not go back in time by more than the slack; partition {number} "
            f"has at offset {chunk.offsets[0]} a record of {instant_text(int(chunk.stimes[0]))}, and this host has "
            f"closed everything before {instant_text(self.boundary_us)}; the clocks of the brokers differ by more than "
            "the slack, or it could be read that late: raise it, and let all hosts begin a new stream"
        )

    def read_until(self, number: int, next: int) -> None:
        """Every record of the partition before `next` was handed to `take`, or put aside, or never was one."""
        partition = self.partitions[number]
        partition.next = max(partition.next, next)

    def ends(self, ends: Mapping[int, int], asked_us: int) -> None:
        """The source said where its partitions end, when asked at `asked_us`."""
        for number, end in ends.items():
            if number in self.partitions:
                partition = self.partitions[number]
                partition.end, partition.ended_us = max(end, partition.end or 0), asked_us

    # -- boundaries --------------------------------------------------------------------------------------------------

    def boundary(self, now_us: int) -> int:
        """Rule 3: up to where every bucket is complete."""
        partitions = self.partitions.values()
        if any(p.next < p.seen for p in partitions):
            return (
                self.boundary_us
            )  # What was held before the last start comes first, or it could be taken for given out.
        top_us = max((max(p.top_us, p.before_us) for p in partitions), default=BEGINNING_US)
        if self._idle_us is not None and now_us - self._data_us >= self._idle_us:
            top_us = max(top_us, now_us)
        bound_us = min((self._partitions_us, *(self._bound(p, now_us) for p in partitions)))
        found_us = min(top_us, bound_us)
        if found_us <= BEGINNING_US or not partitions:
            return self.boundary_us
        return max(self.boundary_us, closed_until(found_us - self._slack_us, self._bucket_us))

    def _bound(self, partition: Partition, now_us: int) -> int:
        if not partition.read_to_end:
            return partition.top_us
        if self._by_clock:
            return max(partition.top_us, partition.ended_us)
        return END_OF_TIME_US if now_us - partition.ended_us < END_KNOWN_US else partition.top_us

    # -- giving out --------------------------------------------------------------------------------------------------

    def unit(self, now_us: int, *, positions: bool = False) -> Unit | None:
        """What is complete now; with `positions` also where only a place has changed. `committed` must follow."""
        boundary_us = self.boundary(now_us)
        moved = boundary_us > self.boundary_us
        if not moved and not positions:
            return None
        numbers: dict[str, int] = {}
        batches: list[pa.RecordBatch] = []
        for number, partition in sorted(self.partitions.items()):
            low = partition.next
            for chunk in partition.held:
                below = chunk.stimes < boundary_us
                if below.all():
                    batches.append(chunk.rows)
                    continue
                if below.any():
                    batches.append(chunk.only(below).rows)
                low = min(low, int(chunk.offsets[~below][0]))
            places = [(f"{self._id}-p{number}", low), (f"{self._id}-s{number}", partition.seen_until)]
            if self._shared:
                promised_us = max(partition.top_us, partition.before_us)
                places.append((f"{self._id}-t{number}", promised_us - BEGINNING_US))
            for key, value in places:
                if self._numbers.get(key) != value:
                    numbers[key] = value
        if moved:
            numbers[f"{self._id}-boundary"] = boundary_us - BEGINNING_US
        if not numbers:
            return None
        return Unit(pa.Table.from_batches(batches, schema=self._schema), numbers, boundary_us)

    def committed(self, unit: Unit) -> None:
        """The unit is durable."""
        self._numbers.update(unit.numbers)
        self.boundary_us = unit.boundary_us
        for number, partition in self.partitions.items():
            partition.low = self._numbers.get(f"{self._id}-p{number}", partition.low)
            partition.held = [rest for chunk in partition.held if (rest := _above(chunk, unit.boundary_us)) is not None]

    # -- room --------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return sum(p.held_bytes for p in self.partitions.values())

    def waiting(self, now_us: int, before: Iterable[int]) -> set[int]:
        """Rule 5: the partitions that should not be read on for now, where `before` did not until now."""
        held = self.held_bytes
        if held < HELD_BYTES_MAX // 2:
            return set()
        if held < HELD_BYTES_MAX:
            return set(before)
        bounds = {number: self._bound(p, now_us) for number, p in self.partitions.items()}
        least = min(bounds.values())
        behind = {number for number, bound in bounds.items() if bound <= least}
        if held > 2 * HELD_BYTES_MAX and all(self.partitions[n].held_bytes > HELD_BYTES_MAX for n in behind):
            raise UsageError(
                f"records of partition {min(behind)} within the slack must fit into {HELD_BYTES_MAX >> 20} MiB; got "
                f"{held >> 20} MiB and none of them may be given out yet; lower the slack"
            )
        return self.partitions.keys() - behind


def _above(chunk: Chunk, boundary_us: int) -> Chunk | None:
    stays = chunk.stimes >= boundary_us
    return chunk if stays.all() else chunk.only(stays) if stays.any() else None
