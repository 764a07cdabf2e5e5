"""What a batch of a user-defined operator leaves behind, where it goes, and when.

Rules:
1. To scratch, the state at the end of each batch: states, the parts of them that changed, marks.
2. *Exact*: the same to the store, first, so that whatever is in scratch is in the store as well: whoever executes the
   batch elsewhere must find what this execution noted. While the store is away, the batch waits.
3. *Best effort*: to the store when it is due, all that changed since the last time: what is in the store and what is
   noted as pending are together what is in scratch. What is due is judged over all keys of the partition: their states
   of this moment belong together.
4. With a policy of time, deadlines stand on a grid (`holdfast.checkpoint.deadlines`), judged at the end of each batch;
   the next chance is as far away as batches lately were apart. Deadlines that passed before the batch began while there
   was nothing to save are neither met nor missed.
5. A checkpoint that the store does not take is dropped, counted and said; what it was to save stays pending, for the
   next deadline or, by events, the next batch.
6. The counts are noted in scratch and go with each checkpoint into the store, where the driver reads them (`report`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.checkpoint.deadlines import TOLERANCE, Kept, judge
from holdfast.checkpoint.policy import Every, Groups
from holdfast.checkpoint.slots import Names, Slots, WentBack
from holdfast.checkpoint.store import VERSION_MAX
from holdfast.clock import now_us
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.spark.far import Far, far_of, folder_of

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: The mark and the note of the counts.
KEPT = b"kept"
#: The share of the newest batch in how far batches are apart.
_NEWEST = 0.25


@dataclass(frozen=True)
class Left:
    """What a batch leaves."""

    states: Mapping[bytes, bytes | None]
    parts: Mapping[bytes, bytes | None]
    marks: Mapping[bytes, bytes]
    rows: int
    begun_us: int


class _Counts(msgspec.Struct, array_like=True):
    """How deadlines were kept, and what the next judgement needs."""

    kept: Kept
    at_us: int = 0
    """The next deadline; 0 before there is one."""
    judged_us: int = 0
    apart_us: float = 0.0
    events: int = 0


def keep(plan: Keyed, left: Left, batch: int, near: Slots, far: Far | None) -> None:
    """Save what the batch leaves; `far` is None where nothing is to be saved beyond scratch."""
    if far is not None and far.exact:
        far.slots.save(left.states, batch + 1, left.marks, left.parts)
    near.save(left.states, batch + 1, left.marks, left.parts)
    if far is not None and not far.exact:
        _Effort(plan, near, far).keep(left, batch)


class _Effort:
    """Rules 3 to 5."""

    def __init__(self, plan: Keyed, near: Slots, far: Far) -> None:
        self._plan, self._near, self._far = plan, near, far
        policy = plan.checkpoint
        assert isinstance(policy, Every | Groups)
        self._us = policy.us
        self._events = policy.events if isinstance(policy, Every) else None
        noted = near.noted(KEPT)
        self._counts = _Counts(Kept(self._us or 0)) if noted is None else _decode(noted)
        self._counts.kept.every_us = self._us or 0

    def keep(self, left: Left, batch: int) -> None:
        before, counts = self._near.pending, self._counts
        pending = Names(
            list(dict.fromkeys((*before.states, *left.states))), list(dict.fromkeys((*before.parts, *left.parts)))
        )
        counts.events += left.rows
        if self._due(left.begun_us, now_us(), idle=not any(before)) and self._saved(pending, left, batch):
            pending, counts.events = Names([], []), 0
        self._near.note(pending, {KEPT: msgspec.msgpack.encode(counts)})

    def _due(self, begun_us: int, now: int, *, idle: bool) -> bool:
        if self._us is None:
            return self._counts.events >= (self._events or 1)
        counts, every_us = self._counts, self._us
        if not counts.at_us or counts.at_us - now > (1 + TOLERANCE) * every_us:  # The clock was set back.
            counts.at_us = begun_us + every_us
        if idle and counts.at_us <= begun_us:
            counts.at_us += ((begun_us - counts.at_us) // every_us + 1) * every_us
        if counts.judged_us:
            apart = max(0, now - counts.judged_us)
            counts.apart_us = _NEWEST * apart + (1 - _NEWEST) * counts.apart_us if counts.apart_us else float(apart)
        counts.judged_us = now
        missed = counts.kept.missed
        following = judge(counts.kept, counts.at_us, now, int(counts.apart_us))
        if following is None:
            return False
        counts.at_us = following
        if _another(missed, counts.kept.missed):
            self._tell(f"{counts.kept.missed} deadlines missed so far, by {counts.kept.late_us_max} µs at most")
        return True

    def _saved(self, pending: Names, left: Left, batch: int) -> bool:
        version = batch + 1
        states = {key: self._near.read(key, version) for key in pending.states}
        parts = {**dict.fromkeys(pending.parts), **self._near.read_parts(pending.parts, version)}
        marks = {**left.marks, KEPT: msgspec.msgpack.encode(self._counts.kept)}
        try:
            with self._far.once() as slots:
                slots.save(states, version, marks, parts)
        except WentBack:
            raise
        except (PeerError, StorageError) as error:
            kept = self._counts.kept
            kept.dropped += 1
            if _another(kept.dropped - 1, kept.dropped):
                self._tell(f"{kept.dropped} checkpoints dropped so far: {error}")
            return False
        return True

    def _tell(self, problem: str) -> None:
        warnings.warn(f"{self._plan.name}: {problem} (best effort)", RuntimeWarning, stacklevel=4)


def _another(before: int, now: int) -> bool:
    """Whether a count is to be told: the first, the tenth, the hundredth… A slow batch misses with each deadline."""
    return now > before and len(str(now)) > (len(str(before)) if before else 0)


def counts_from(kept: bytes | None) -> dict[bytes, bytes]:
    """What to note where states are taken over with these counts."""
    if kept is None:
        return {}
    return {KEPT: msgspec.msgpack.encode(_Counts(msgspec.msgpack.decode(kept, type=Kept)))}


def report(plan: Keyed, query_id: str) -> dict[int, Kept]:
    """How the partitions of a query kept their deadlines, as of the last checkpoint of each in the store."""
    if not isinstance(plan.checkpoint, Every | Groups) or plan.checkpoint.exact:
        raise UsageError(
            f"{plan.name}: only policies of best effort have deadlines or drop; {plan.checkpoint} has none to report"
        )
    folder, found = folder_of(plan, query_id), {}
    numbers = [0] if folder is None else sorted(int(p.name) for p in folder.glob("*") if p.name.isdigit())
    for partition in numbers:
        with far_of(plan, query_id, partition) as far:
            assert far is not None
            with far.once() as slots:  # Who asks is told that a server is away.
                kept = slots.mark(KEPT, VERSION_MAX)
                if kept is not None:
                    found[partition] = msgspec.msgpack.decode(kept, type=Kept)
                if folder is None and partition == 0:
                    numbers += range(1, int(slots.mark(b"partitions", VERSION_MAX) or 1))
    return found


_decode = msgspec.msgpack.Decoder(_Counts).decode
