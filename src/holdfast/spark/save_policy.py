"""What a batch of a user-defined operator leaves behind, where it goes, and when.

Rules:
1. To scratch, the state at the end of each batch: states, the parts of them that changed, marks.
2. *Exact*: the same to the store, first, so that whatever is in scratch is in the store as well: whoever executes the
   batch elsewhere must find what this execution noted. While the store is away, the batch waits.
3. *Best effort*: when it is due, all that changed since the last time goes to the keeper, which saves it beside the
   stream (`holdfast.spark.keeper`). What is in the store and what is noted as pending are together what is in scratch:
   names stay pending until the store has them. With a policy of time, what is due is judged over all keys of the
   partition: their states of this moment belong together. With `every(events=…)` each key is judged on its own, by the
   tuples since its last checkpoint (`Instances.due`): those that are due are saved, as they are now, and the others are
   not. Then the store's states are not of one moment, and it says so (`BEHIND`): nobody takes them for a state at the
   beginning of a batch.
4. Deadlines are judged, and what became of a checkpoint is counted and said, as `holdfast.spark.save_counts` has it.
5. What a checkpoint was to save that the store did not take stays pending, for the next deadline or, by events, the
   next batch. If the store refused it for good, that batch saves it itself, and ends with the store's error if that has
   not been put right. In its first batch a partition asks the store itself, so that a wrong password is said at once,
   and not after the first deadline.
6. The counts are noted in scratch and go with each checkpoint into the store, where the driver reads them (`report`).
7. A state that is away from scratch was saved. It is pending only where somebody else has saved meanwhile; then it
   comes back first, with the next batch, and the checkpoint waits for that: the store has the newest two versions only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.checkpoint.deadlines import Kept
from holdfast.checkpoint.policy import Every, Groups, Policy
from holdfast.checkpoint.slots import BATCH, Away, Names, Slots, key_of
from holdfast.checkpoint.store import VERSION_MAX
from holdfast.clock import now_us
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.operators.udop import unsaved_since
from holdfast.spark.durable_state import Far, far_of
from holdfast.spark.keeper import Checkpoint, Ended, keep_beside, keep_now
from holdfast.spark.save_counts import SaveCounts
from holdfast.spark.save_figures import Saving

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: The mark of how many keys there are.
KEYS = b"keys"
#: The mark and the note of the counts; the note of what has changed since the last checkpoint was handed over.
KEPT, _SINCE = b"kept", b"since"
#: The note of the keys of rule 7.
_WANTED = b"wanted"
#: The mark, in scratch, of what is not due yet (`Unsaved`).
_UNSAVED = b"unsaved"
#: The mark, in a store, of how many keys have gone on since the store was given their states (rule 3).
BEHIND = b"behind"


class Unsaved(NamedTuple):
    """Keys of which no checkpoint was made since they changed; and those of them that never had one."""

    keys: int = 0
    new: int = 0

    @classmethod
    def at(cls, near: Slots, batch: int) -> Unsaved:
        noted = near.mark(_UNSAVED, batch)
        return cls() if noted is None else cls(*map(int, noted.split()))

    def and_of(self, state: bytes | None, sign: int = 1) -> Unsaved:
        since = None if state is None else unsaved_since(state)
        return self if since is None else Unsaved(self.keys + sign, self.new + sign * (since == 0))

    @property
    def mark(self) -> dict[bytes, bytes]:
        """For scratch."""
        return {_UNSAVED: b"%d %d" % self}


@dataclass(frozen=True)
class Left:
    """What a batch leaves."""

    states: Mapping[bytes, bytes | None]
    parts: Mapping[bytes, bytes | None]
    marks: Mapping[bytes, bytes]
    begun_us: int
    due: Names
    """Of these, those that a checkpoint is to be made of; parts whatever comes of their keys."""
    unsaved: Unsaved | None = None
    """Where each key is judged on its own."""
    away: Mapping[bytes, Away] = field(default_factory=dict)
    """States that leave scratch, with the names of their parts."""
    away_parts: Sequence[bytes] = ()
    scratch_marks: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyedCheckpoint(Checkpoint):
    """What changed in a partition, as of `version` (rule 8)."""

    plan: Keyed
    query: str
    partition: str
    bases: tuple[int, ...]
    version: int
    states: Mapping[bytes, bytes | None]
    parts: Mapping[bytes, bytes | None]
    marks: Mapping[bytes, bytes]
    told: Path

    def save(self) -> Ended:
        far = Far(self.plan, self.query, self.partition)
        try:
            with far.once() as slots:
                newest = int(slots.mark(BATCH, VERSION_MAX) or 0)
                if newest not in self.bases:
                    unknown = slots.leftovers(self.bases[0])
                    return Ended(self.version, "older", "", newest, unknown.states, unknown.parts)
                slots.save(self.states, self.version, self.marks, self.parts)
                return Ended(self.version, "durable")
        finally:
            with contextlib.suppress(Exception):  # What was saved is safe, whatever comes of the connection.
                far.close()


def keep(plan: Keyed, left: Left, batch: int, near: Slots, far: Far | None, told: Path) -> Saving | None:
    """Save what the batch leaves; `far` is None where nothing is to be saved beyond scratch. `told` is where the keeper
    says how a checkpoint ended. What that has come to; None where nothing is to be saved."""
    if far is not None and far.exact:
        far.slots.save(left.states, batch + 1, left.marks, left.parts)
    noted = {} if left.unsaved is None else left.unsaved.mark
    near.save({**left.states, **left.away}, batch + 1, {**left.marks, **noted, **left.scratch_marks},
              {**left.parts, **dict.fromkeys(left.away_parts)})  # fmt: skip
    if far is None:
        return None
    if far.exact:
        return Saving(batch, durable=1, bytes=_size(left.states) + _size(left.parts))
    return _Effort(plan, near, far, told).keep(left, batch)


def _size(saved: Mapping[bytes, bytes | None]) -> int:
    return sum(len(key) + len(value or b"") for key, value in saved.items())


class _Effort:
    """Rules 3 to 5."""

    def __init__(self, plan: Keyed, near: Slots, far: Far, told: Path) -> None:
        self._plan, self._near, self._far, self._told = plan, near, far, told
        policy = plan.checkpoint
        assert isinstance(policy, Every | Groups)
        self._us = policy.us
        self._by_key = events_per_key(policy) is not None
        noted, since = near.noted(KEPT), near.noted(_SINCE)
        self._first = noted is None
        self._counts = SaveCounts(Kept(self._us or 0)) if noted is None else _decode(noted)
        self._counts.kept.every_us = self._us or 0
        self._pending = near.pending
        self._since = Names([], []) if since is None else Names(*msgspec.msgpack.decode(since, type=_Lists))
        self._wanted = wanted(near)
        self._durable = 0
        self._bytes: int | None = None

    def keep(self, left: Left, batch: int) -> Saving:
        if self._first:
            with contextlib.suppress(PeerError, StorageError), self._far.once() as slots:
                slots.mark(BATCH, VERSION_MAX)
            self._far.close()
            if self._near.mark(BATCH, batch) == b"%d" % batch:  # The policy was another one: the store has none of it.
                self._pending, self._counts.again = self._near.names(), 1
        refused = self._learn()
        idle, counts = not any(self._pending), self._counts
        self._pending, self._since = _both(self._pending, left.due), _both(self._since, left.due)
        by_time = not self._by_key
        due = counts.due(self._plan.name, left.begun_us, now_us(), idle=idle) if by_time else self._due_by_key(left)
        if due or refused or self._wanted:
            self._hand_over(left, batch + 1, beside=not refused)
            self._learn()
        self._near.note(self._pending, {KEPT: msgspec.msgpack.encode(counts),
                                        _SINCE: msgspec.msgpack.encode(tuple(self._since)),
                                _WANTED: msgspec.msgpack.encode(self._wanted)})  # fmt: skip
        kept = counts.kept
        return Saving(batch, durable=self._durable, dropped=kept.dropped, met=kept.met, missed=kept.missed,
                      late_us_max=kept.late_us_max, waiting=bool(counts.flying), bytes=self._bytes)  # fmt: skip

    def _learn(self) -> bool:
        """How the checkpoint that was handed over last has ended, if it has; whether one was refused for good."""
        how = self._counts.heard(self._plan.name, self._told)
        if how is None:
            return False
        if how.outcome == "durable":
            self._durable += 1
            self._pending, self._since = self._since, Names([], [])
        elif how.outcome == "older":  # Somebody else saved what is not of this run: it must be replaced.
            self._pending = _both(self._pending, Names(how.states, how.parts))
        return how.refused

    def _due_by_key(self, left: Left) -> bool:
        return bool(left.due.states) or (bool(self._counts.again) and bool(self._pending.states))

    def _hand_over(self, left: Left, version: int, *, beside: bool) -> None:
        pending, counts = self._pending, self._counts
        going, rest = _of_keys(pending) if self._by_key else (pending, Names([], []))
        states: dict[bytes, bytes | None] = dict.fromkeys(going.states)
        self._wanted = []
        for key, state in self._near.lie(going.states, version).items():
            if isinstance(state, Away):
                self._wanted.append(key)
            else:
                states[key] = state
        if self._wanted:  # Rule 7.
            return
        parts = {**dict.fromkeys(going.parts), **self._near.read_parts(going.parts, version)}
        unsaved = left.unsaved or Unsaved()
        marks = {**left.marks, KEPT: msgspec.msgpack.encode(counts.kept)}
        marks[KEYS] = b"%d" % (int(left.marks[KEYS]) - unsaved.new)
        marks[BEHIND] = b"%d" % unsaved.keys if unsaved.keys else b""
        self._bytes = _size(states) + _size(parts)
        far = self._far
        far.close()  # One at a time has a store in a folder; this batch does not need it any more.
        bases = (counts.base, *counts.flying)
        counts.sent(version)
        self._since = rest
        new = KeyedCheckpoint(self._plan, far.query, far.partition, bases, version, states, parts, marks, self._told)
        if beside:
            # An earlier execution of this batch may have left how a checkpoint of the same version ended.
            self._told.unlink(missing_ok=True)
            keep_beside(new)
        else:
            keep_now(new)


def wanted(near: Slots) -> list[bytes]:
    """Keys whose states must come back before the next checkpoint (rule 7)."""
    noted = near.noted(_WANTED)
    return [] if noted is None else msgspec.msgpack.decode(noted, type=list[bytes])


def events_per_key(policy: Policy) -> int | None:
    """After how many tuples of a key that key is saved; None where states are saved all together."""
    return policy.events if isinstance(policy, Every) and not policy.exact else None


def _of_keys(pending: Names) -> tuple[Names, Names]:
    """The parts that go with the keys that are due, and those that stay until theirs are."""
    keys = set(pending.states)
    going: list[bytes] = []
    rest: list[bytes] = []
    for part in pending.parts:
        (going if key_of(part) in keys else rest).append(part)
    return Names(pending.states, going), Names([], rest)


def counts_from(kept: bytes | None, far: Far) -> dict[bytes, bytes]:
    """What to note where the next checkpoint goes on top of what the store has now, with these counts if any."""
    counts = SaveCounts(Kept(0) if kept is None else msgspec.msgpack.decode(kept, type=Kept))
    counts.base = int(far.slots.mark(BATCH, VERSION_MAX) or 0)
    return {KEPT: msgspec.msgpack.encode(counts), _SINCE: msgspec.msgpack.encode(([], []))}


def counts_again(near: Slots, far: Far) -> dict[bytes, bytes]:
    """The same with the counts that are noted already."""
    noted = near.noted(KEPT)
    return counts_from(None if noted is None else msgspec.msgpack.encode(_decode(noted).kept), far)


def _both(one: Names, other: Names) -> Names:
    states, parts = (list(dict.fromkeys((*a, *b))) for a, b in zip(one, other, strict=True))
    return Names(states, parts)


def report(plan: Keyed, query_id: str) -> dict[int, Kept]:
    """How the partitions of a query kept their deadlines, as of the last checkpoint of each in the store."""
    if not isinstance(plan.checkpoint, Every | Groups) or plan.checkpoint.exact:
        raise UsageError(
            f"{plan.name}: only policies of best effort have deadlines or drop; {plan.checkpoint} has none to report"
        )
    found: dict[str, dict[int, tuple[int, Kept]]] = {}
    with far_of(plan, query_id, "") as far:
        assert far is not None
        with far.once():  # Who asks is told that a server is away.
            for name in far.names():
                with far.of(name) as slots:
                    kept, batch = slots.mark(KEPT, VERSION_MAX), int(slots.mark(BATCH, VERSION_MAX) or 0)
                if kept is not None:
                    partition, _, of = name.partition("-")
                    found.setdefault(of, {})[int(partition)] = (batch, msgspec.msgpack.decode(kept, type=Kept))
    # There may be some of another number of partitions, from before the query was started with this one.
    newest = max(found.values(), key=lambda counts: max(batch for batch, _ in counts.values()), default={})
    return {partition: kept for partition, (_, kept) in sorted(newest.items())}


_Lists = tuple[list[bytes], list[bytes]]
_decode = msgspec.msgpack.Decoder(SaveCounts).decode
