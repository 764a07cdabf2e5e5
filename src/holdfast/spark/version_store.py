"""Versions of a flow's state in a store that outlives the machine: what `every(…)` saves for an operator of a flow.

Rules:
1. A checkpoint is a version as scratch has it (`holdfast.spark.versions`), in pieces, each of which says whose it is
   and of which position. Only the pieces of one version, whole, make one again. The newest two of a partition stay
   (`Slots`), so that one that is torn or damaged costs no more than input that is read once more (C6, C8).
2. When one is due is judged as for user-defined operators (`holdfast.spark.save_counts`), and the keeper writes it
   beside the stream. *Exact* writes one with each batch, before its results leave the task, and waits for the store.
3. In its first batch a partition itself gives the store what that batch begins with, at the beginning nothing: only so
   is it known where the query began, and only so is a wrong password said at once. What the store has from before that
   does not count: it may need input that is gone. Each query has a name of its own there (`query_name`). What it cannot
   have saved is therefore no earlier life's; it is never replaced, and the query is refused (C12).
4. A restore takes the newest version of a partition up to the batch's beginning, and computes again what lies between.
   So the state is exact, though checkpoints are periodic. A version is the same whoever computed it: how runs of the
   query overlap makes no difference.
5. Input is needed from the older of the two on, of the partition that is furthest behind; before there are two, all of
   it (L8). One that a restore found damaged counts as torn from then on: the next takes its place, not the good one's.
6. Another number of partitions takes its groups out of all versions of the one before, until it has two of its own.
7. Of a query that it is a fork of, a fork uses what was saved up to its root. One in a node saves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import struct
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.checkpoint.deadlines import Kept
from holdfast.checkpoint.slots import BATCH, Slots, WentBack
from holdfast.checkpoint.store import VERSION_MAX
from holdfast.clock import now_us
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.spark.durable import Durable
from holdfast.spark.durable_state import Far, folder_of
from holdfast.spark.keeper import Checkpoint, Ended, keep_beside, keep_now
from holdfast.spark.own_folder import own_folder
from holdfast.spark.save_counts import SaveCounts
from holdfast.spark.save_figures import Saving
from holdfast.spark.scratch import of_this_boot, partition_name
from holdfast.spark.versions import Version, decoded, encoded, owned
from holdfast.stream.merge import FOREVER_US

#: Bytes of a piece: stores take four times that, and whoever reads one has it in memory twice.
PIECE_BYTES = 64 << 20
#: In front of each piece: mark and format, the position, which piece of how many, which partition of how many.
_PIECE = struct.Struct("<4sIqIIII")
_MAGIC, _FORMAT = b"HFVP", 1
#: The marks of how many pieces there are, and from where on versions count (rule 3).
_PIECES, _BEGUN = b"pieces", b"begun"
#: Where it stands of which numbers of partitions there is something, and its mark.
_INDEX, _NUMBERS = "partitions", b"numbers"
#: Added to a position, so that a store can count with it: times from 36,000 years before 1970 on.
_ZERO = 1 << 60


class Found(NamedTuple):
    """A version that a state can be made of again."""

    position_us: int
    version: Version
    of: int | None = None
    """The partition that left it, of as many as were found; None: the one that asks."""


@dataclass(frozen=True)
class _Place:
    """As its store knows an operator. Damage is passed over: an earlier version and the input make up for it."""

    name: str
    store: str
    exact: bool = False


class VersionStore:
    """All partitions of an operator in the store."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self._place = _Place(durable.operator, durable.address)

    def far(self, query: str, partition: str) -> Far:
        """That of one partition."""
        return Far(self._place, query, partition)

    def needed_us(self, position_us: int, *, twice: bool = False) -> int | None:
        """From where on input is needed to have the state of a position again; None if nothing is there. `twice`: also
        where any one version is damaged (rule 5)."""
        enough = _twice if twice else bool
        for query, until_us in self._queries(position_us):
            with self._index(query) as far:
                layouts = [_positions(far, names, until_us) for names in _layouts(far)]
            if whole := [found for found in layouts if all(map(enough, found))]:
                return min(positions[-1] for found in whole for positions in found)
        return None

    def find(self, partition: int, position_us: int) -> list[Found]:
        """What makes the state of a partition at a position: its own version, or those of another number of them (rule
        6). Nothing if there is none."""
        name = partition_name(partition, self._durable.partitions)
        for query, until_us in self._queries(position_us):
            own = query == self._durable.own
            with self._index(query) as far:
                for names in sorted(_layouts(far), key=lambda names: name not in names):
                    wanted = [name] if name in names else names
                    found = [part for other in wanted if (part := _newest(far, other, until_us, own)) is not None]
                    if len(found) == len(wanted):
                        return found if name in names else [self._owned(partition, *part) for part in enumerate(found)]
        return []

    def _owned(self, partition: int, q: int, found: Found) -> Found:
        """Of what partition q has left, the groups that are another one's now."""
        return found._replace(version=owned([found.version], partition, self._durable.partitions), of=q)

    def check_begins(self, query: str, partition: int, ends_us: Iterable[int], *, patient: bool) -> None:
        """Rule 3, for one partition; the first looks after those of other numbers of them. Of the first batch, an
        earlier execution may have saved what it begins and ends with."""
        mine = partition_name(partition, self._durable.partitions)
        with self._index(query, patient=patient) as far:
            others = [] if partition else [number for number in _numbers(far) if number != self._durable.partitions]
            names = [mine, *itertools.chain.from_iterable(map(_names, others))]
            found = {at for positions in _positions(far, names, FOREVER_US) for at in positions} - set(ends_us)
        if found:
            raise UsageError(
                f"{self._durable.operator}: {self._durable.shown} must have nothing of a query that begins; it has "
                f"versions up to {instant_text(max(found))} of one that wrote the same stream; go on with that one's "
                f"checkpoint, or name another stream or another store="
            )

    def settle(self, query: str, position_us: int, *, patient: bool) -> None:
        """Rule 6: note that there is something of this number of partitions, and remove what another one has left, once
        nobody can need it."""
        mine = self._durable.partitions
        with self._index(query, patient=patient) as far:
            numbers = _numbers(far)
            others = [number for number in numbers if number != mine]
            if mine not in numbers:
                _note_numbers(far, [*numbers, mine], position_us)
            elif others and all(len(positions) > 1 for positions in _positions(far, _names(mine), FOREVER_US)):
                with contextlib.suppress(StorageError):  # Such as a folder that is in use; the next one does it.
                    for name in itertools.chain.from_iterable(map(_names, others)):
                        far.forget(name)
                    _note_numbers(far, [mine], position_us)

    def forget(self, query: str) -> None:
        """Nobody will go on with that query."""
        if self._is_there(query):
            with self._index(query) as far:
                far.forget_all([*itertools.chain.from_iterable(_layouts(far)), _INDEX])

    def knows(self, query: str) -> bool:
        """Whether it has saved anything."""
        if not self._is_there(query):
            return False
        with self._index(query) as far:
            return bool(_numbers(far))

    def _is_there(self, query: str) -> bool:
        """Of a store in folders: a look would make one."""
        folder = folder_of(self._place, query)
        return folder is None or folder.exists()

    @contextlib.contextmanager
    def _index(self, query: str, *, patient: bool = False) -> Iterator[Far]:
        """Where it stands of which numbers of partitions there is something; the partitions themselves are its `of`."""
        with closing(self.far(query, _INDEX)) as far, contextlib.nullcontext() if patient else far.once():
            yield far

    def _queries(self, position_us: int) -> list[tuple[str, int]]:
        """Those whose versions are the operator's, and up to where."""
        own = [] if self._durable.own is None else [(self._durable.own, position_us)]
        before = [(query, min(root_us, position_us)) for query, root_us in self._durable.before]
        return [(query, until_us) for query, until_us in (*own, *before) if self._is_there(query)]


def _names(partitions: int) -> list[str]:
    return [partition_name(partition, partitions) for partition in range(partitions)]


def _numbers(index: Far) -> list[int]:
    """Of partitions, of which there is something."""
    noted = index.slots.mark(_NUMBERS, VERSION_MAX)
    index.close()  # One at a time has a store in a folder, and all partitions look here.
    return [] if noted is None else msgspec.msgpack.decode(noted, type=list[int])


def _note_numbers(index: Far, numbers: list[int], position_us: int) -> None:
    number = max(_number(position_us), int(index.slots.mark(BATCH, VERSION_MAX) or 0) + 1)
    index.slots.save({}, number, {BATCH: b"%d" % number, _NUMBERS: msgspec.msgpack.encode(numbers)})


def _layouts(index: Far) -> list[list[str]]:
    return [_names(number) for number in _numbers(index)]


def _positions(far: Far, names: Iterable[str], until_us: int) -> list[list[int]]:
    found = []
    for name in names:
        with far.of(name) as slots:
            found.append(positions_in(slots, until_us))
    return found


def positions_in(slots: Slots, until_us: int) -> list[int]:
    """Those of whole checkpoints of a partition up to there, the newest first."""
    found: list[int] = []
    at = _number(until_us)
    begun = int(slots.mark(_BEGUN, at) or 0)
    while (mark := slots.mark(BATCH, at)) is not None and int(mark) >= begun:
        found.append(_position(int(mark)))
        at = int(mark) - 1
    return found


def _number(position_us: int) -> int:
    return 1 if position_us <= BEGINNING_US else position_us + _ZERO


def _position(number: int) -> int:
    return BEGINNING_US if number == 1 else number - _ZERO


def _twice(positions: list[int]) -> bool:
    """Whether one of them may be damaged and nothing is lost: at the beginning there is nothing to lose."""
    return len(positions) > 1 or positions == [BEGINNING_US]


def _newest(far: Far, name: str, until_us: int, own: bool) -> Found | None:
    """The newest that is whole. A query of others is left as it is."""
    with far.of(name) as slots:
        for position_us in positions_in(slots, until_us):
            version = _read(slots, position_us, name)
            if version is not None:
                return Found(position_us, version)
            warnings.warn(
                f"{name}: its version at {instant_text(position_us)} is damaged in the store; an earlier one is used, "
                f"and more input is read again", RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            if own:
                slots.tear(_number(position_us))
    return None


def _read(slots: Slots, position_us: int, name: str) -> Version | None:
    """Rule 1."""
    pieces: list[bytes] = []
    count = 1
    while len(pieces) < count:
        piece = slots.read(b"%d" % len(pieces), _number(position_us)) or b""
        if len(piece) < _PIECE.size:
            return None
        magic, format, position, index, count, partition, partitions = _PIECE.unpack_from(piece)
        whose = (magic, format, position, index, partition_name(partition, partitions))
        if whose != (_MAGIC, _FORMAT, position_us, len(pieces), name):
            return None
        pieces.append(piece[_PIECE.size :])
    return decoded(pa.py_buffer(b"".join(pieces)), foreign=True)


@dataclass(frozen=True)
class VersionCheckpoint(Checkpoint):
    """A version on its way into the store."""

    durable: Durable
    partition: int
    position_us: int
    state: Version
    version: int
    told: Path
    begun: int
    """From where on versions count (rule 3)."""
    newest: bool = False
    """Whoever saves it is as far as the query has come: a later one that is there is not the query's."""

    def save(self, *, patient: bool = False) -> Ended:
        durable, versions = self.durable, VersionStore(self.durable)
        assert durable.own is not None
        name = partition_name(self.partition, durable.partitions)
        with contextlib.ExitStack() as stack:
            far = stack.enter_context(closing(versions.far(durable.own, name)))
            slots = far.slots if patient else stack.enter_context(far.once())
            newest = positions_in(slots, FOREVER_US)[:1]
            if newest and newest[0] > self.position_us:
                later = f"{durable.shown} has a later one, of {instant_text(newest[0])}"
                if self.newest:
                    raise WentBack(
                        f"{durable.operator}: its state at {instant_text(self.position_us)} cannot be saved: {later}; "
                        f"a query must not go back by more than one batch"
                    )
                return Ended(self.version, "older", later, _number(newest[0]))
            size = self._save(slots)
        if self.partition == 0:
            with contextlib.suppress(*() if patient else (PeerError, StorageError)):  # The next one does it.
                versions.settle(durable.own, self.position_us, patient=patient)
        return Ended(self.version, "durable", size=size)

    def _save(self, slots: Slots) -> int:
        """How many bytes it took."""
        whole, partitions = b"".join(encoded(self.state)), self.durable.partitions
        cuts = range(0, len(whole), PIECE_BYTES)
        states: dict[bytes, bytes | None] = {}
        for index, cut in enumerate(cuts):
            head = _PIECE.pack(_MAGIC, _FORMAT, self.position_us, index, len(cuts), self.partition, partitions)
            states[b"%d" % index] = head + whole[cut : cut + PIECE_BYTES]
        before = int(slots.mark(_PIECES, self.version) or 0)
        gone = {b"%d" % index: None for index in range(len(cuts), before)}
        marks = {BATCH: b"%d" % self.version, _PIECES: b"%d" % len(cuts), _BEGUN: b"%d" % self.begun}
        slots.save({**states, **gone}, self.version, marks)
        return len(whole)


class _Noted(msgspec.Struct):
    """What goes with a version from batch to batch."""

    place: str
    counts: SaveCounts
    begun: int
    """From where on versions in the store count."""


class VersionSaves:
    """What one partition's batch does about the store."""

    def __init__(self, durable: Durable, partition: int) -> None:
        self._durable, self._partition = durable, partition
        place = f"{durable.shown} {durable.operator} {durable.own} {partition_name(partition, durable.partitions)}"
        self._place = hashlib.sha256(place.encode()).hexdigest()[:32]
        # On this machine, whether it sees scratch or not: whoever runs the partition elsewhere need not know.
        self._told = of_this_boot(own_folder() / "told") / self._place

    def keep(
        self, began: Version, since_us: int, version: Version, until_us: int, *, batch: int, begun_us: int
    ) -> tuple[Version, Saving]:
        """Save the version at a batch's end if it is due. It, with what the next batch must know, and what that is."""
        noted = self._noted(began.saves)
        if noted is None:
            begins = batch == 0 or since_us == BEGINNING_US
            noted = self._begin(began, since_us, until_us, begins=begins)
        counts = noted.counts
        counts.kept.every_us = self._durable.every_us
        heard: list[Ended | None] = []
        if self._durable.always:
            heard.append(self._save_now(version, until_us, noted))
        else:
            idle = counts.base >= _number(since_us)
            heard += self._save_when_due(version, until_us, noted, idle=idle, begun_us=begun_us)
        durable = [how for how in heard if how is not None and how.outcome == "durable"]
        kept = counts.kept
        return _with(version, noted), Saving(
            batch, self._durable.partitions, len(durable), kept.dropped, kept.met, kept.missed, kept.late_us_max,
            bool(counts.flying), durable[-1].size if durable else None,
        )  # fmt: skip

    def restored(self, found: list[Found], version: Version) -> Version:
        """One that was made of these: what was on its way when they were saved is of no interest any more."""
        noted = self._noted(found[0].version.saves)
        if noted is None or found[0].of is not None:
            return version
        counts = SaveCounts(noted.counts.kept, base=_number(found[0].position_us))
        return _with(version, _Noted(self._place, counts, noted.begun))

    def _begin(self, began: Version, since_us: int, until_us: int, *, begins: bool) -> _Noted:
        """Rule 3. Should the server of a policy of best effort be away, the first that is due takes its place."""
        durable, number = self._durable, _number(since_us)
        assert durable.own is not None
        noted = _Noted(self._place, SaveCounts(Kept(durable.every_us), base=number), number)
        try:
            if begins:
                ends_us, patient = (since_us, until_us), durable.always
                VersionStore(durable).check_begins(durable.own, self._partition, ends_us, patient=patient)
            how = self._checkpoint(began._replace(mark=None), since_us, noted).save(patient=durable.always)
        except (PeerError, StorageError) as error:
            if durable.always:
                raise
            noted.counts.base = 0
            noted.counts.dropped(durable.operator, str(error))
            return noted
        noted.counts.base = how.base if how.outcome == "older" else number
        return noted

    def _save_now(self, version: Version, until_us: int, noted: _Noted) -> Ended:
        how = self._checkpoint(version, until_us, noted, newest=True).save(patient=True)
        noted.counts.base = how.version
        return how

    def _save_when_due(
        self, version: Version, until_us: int, noted: _Noted, *, idle: bool, begun_us: int
    ) -> list[Ended | None]:
        name, counts = self._durable.operator, noted.counts
        before = counts.heard(name, self._told)
        # What the query cannot have saved itself is said by the task, until it was put right.
        refused = (before is not None and before.refused) or counts.base > _number(until_us)
        if not counts.due(name, begun_us, now_us(), idle=idle) and not refused:
            return [before]
        checkpoint = self._checkpoint(version, until_us, noted, newest=refused)
        counts.sent(checkpoint.version)
        if refused:
            keep_now(checkpoint)
        else:
            # An earlier execution of this batch may have left how a checkpoint of the same version ended.
            self._told.unlink(missing_ok=True)
            keep_beside(checkpoint)
        return [before, counts.heard(name, self._told)]

    def _checkpoint(
        self, state: Version, position_us: int, noted: _Noted, *, newest: bool = False
    ) -> VersionCheckpoint:
        self._told.parent.mkdir(parents=True, exist_ok=True)
        return VersionCheckpoint(
            self._durable, self._partition, position_us, _with(state, noted), _number(position_us), self._told,
            noted.begun, newest,
        )  # fmt: skip

    def _noted(self, saves: str) -> _Noted | None:
        """None if the version has been nowhere, or elsewhere."""
        with contextlib.suppress(msgspec.MsgspecError):
            noted = msgspec.json.decode(saves or "null", type=_Noted | None)
            return noted if noted is not None and noted.place == self._place else None
        return None


def _with(version: Version, noted: _Noted) -> Version:
    return version._replace(saves=msgspec.json.encode(noted).decode())
