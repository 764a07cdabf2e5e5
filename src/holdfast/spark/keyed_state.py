"""Where the states of a user-defined operator lie, and how a batch comes by those that it begins with.

Rules:
1. States lie by partition, under its number and how many there are: in scratch, in the store, and in a checkpoint that
   came from another host. A batch begins with those of exactly its beginning, wherever they are: in its own scratch; in
   what came; in scratch and store as another number of partitions has left them.
2. Of states that lie otherwise, a partition takes those of its own keys, by Spark's hash (C13), into its scratch and,
   once, into the store. What lies otherwise goes when nobody can begin with it any more, two batches later.
3. Where nobody has them, *exact* refuses to go on, and *best effort* goes on from the newest that there is, saying so.
4. A state is used by the operator that made it (`holdfast.spark.keyed_identity`).
5. A state may be away from scratch: it lies in the partition's own store only (`Slots.beyond`), because its key was
   quiet, or because the partition was restored lazily: then scratch begins with a list of what the store has. Who takes
   states to another place (a fork, another host, another number of partitions) takes those that are away along.
6. A fork takes its parent's over once, at its root, and then has its own, beside its checkpoint. Batches of both have
   the same numbers; behind the root, the parent's are not the fork's. It never writes to what is its parent's (S1).
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.checkpoint.slots import BATCH, Away, Names, Slots, key_of, part_key
from holdfast.model.errors import CorruptLog, PeerError, StorageError, UsageError
from holdfast.operators.numbering import can_hash, hash_of
from holdfast.operators.state_parts import sorted_out
from holdfast.operators.udop import directory_of, settled
from holdfast.spark.durable_state import Far, far_of
from holdfast.spark.expiry import CAME_TO, Passing
from holdfast.spark.keyed_identity import MADE_BY, check_made_by
from holdfast.spark.own_folder import own_folder
from holdfast.spark.save_policy import BEHIND, KEPT, KEYS, Unsaved, counts_again, counts_from
from holdfast.spark.scratch import is_of, layouts, of_this_boot, opened, partition_name

if TYPE_CHECKING:
    from holdfast.spark.keyed import ForkOf, Keyed

#: The mark of the batch at which states were dealt out anew.
_DEALT = b"dealt"
#: Of those, how many may come with one batch: a read from a server that takes some ten milliseconds.
_BESIDE = 1024


def _is_whole(kept: Slots, batch: int) -> bool:
    """Whether it has all states as of exactly the beginning of that batch."""
    return kept.mark(BATCH, batch) == b"%d" % batch and kept.mark(BEHIND, batch) is None


class Layout(NamedTuple):
    """States of all partitions in one place, as some number of them has left them (rule 2)."""

    names: list[str]
    open: Callable[[str], AbstractContextManager[Slots]]


class Taken(NamedTuple):
    """States with their parts as of a version, and what time it was then."""

    states: dict[bytes, bytes]
    parts: dict[bytes, bytes]
    times: dict[bytes, bytes]
    version: int
    dealt: bool = False
    """Whether they lay otherwise (rule 2)."""
    away: Mapping[bytes, Away] = {}
    """Instead of states that come later, and how many keys those are."""
    keys: int = 0

    @classmethod
    def together(cls, found: list[Taken]) -> Taken:
        """Of several partitions. Time does not go back, and a look that is due in one of them is due. Where they have
        executed the batch already, it was when the last of them did."""
        states = {key: state for some in found for key, state in some.states.items()}
        parts = {name: part for some in found for name, part in some.parts.items()}
        times = {name: value for some in found for name, value in some.times.items()}
        for name, choose in ((b"now_us", max), (b"looked_us", min)):
            if name in times:
                times[name] = b"%d" % choose(int(t.times.get(name, b"0")) for t in found)
        if executed := [t.times[b"executed"] for t in found if b"executed" in t.times]:
            times[b"executed"] = max(executed, key=lambda noted: [int(number) for number in noted.split()])
        return cls(states, parts, times, max(t.version for t in found), dealt=True)


class KeyedStates:
    """Those of one operator in one query. `key_type` is Spark's short name of it; `arrived` the folder of what came."""

    def __init__(
        self, plan: Keyed, partitions: int, fork: ForkOf | None, arrived: str, key_type: str, made_by: bytes,
        in_node: bool,
    ) -> None:  # fmt: skip
        self._plan, self.partitions, self._fork = plan, partitions, fork
        self._arrived, self._key_type, self._made_by, self._in_node = arrived, key_type, made_by, in_node
        self._exact = plan.exact
        # A fork cannot: what its parent's store has changes.
        self._lazily = plan.restore != "all" and fork is None

    def make_whole(self, batch: int, near: Slots, far: Far) -> None:
        """The store of a query that was not exact until now lacks what changed since it was last saved there."""
        if batch and not _is_whole(far.slots, batch):
            self._take_over(far.slots, self._taken(near, batch), batch)

    def marks(self, batch: int, keys: int) -> dict[bytes, bytes]:
        known = {b"partitions": b"%d" % self.partitions, KEYS: b"%d" % keys, BATCH: b"%d" % batch}
        return {**known, MADE_BY: self._made_by}

    def _check(self, kept: Slots, version: int) -> None:
        """Rule 4."""
        if not self._in_node:
            check_made_by(self._plan, kept.mark(MADE_BY, version), self._made_by)

    def begin(self, owner: str, batch: int, partition: int, near: Slots, far: Far | None) -> bool:
        """The states at the beginning of the batch come into scratch, from wherever they are; False if they are there,
        or nowhere."""
        mine = near.mark(BATCH, batch)
        if mine is not None:
            self._check(near, batch)
        if not batch or mine == b"%d" % batch:
            return False
        # Batches of parent and fork have the same numbers: behind the root, the parent's are not the fork's.
        lost = self._fork is not None and (mine is not None or self._fork.root not in (None, batch))
        taken = None if lost else self._elsewhere(owner, batch, partition, far, self._lazily)
        if taken is not None:
            self._settle(taken, batch, near, far)
            return True
        if self._fork is None:
            return self._recover(owner, batch, partition, near, far)
        raise StorageError(
            f"{self._plan.name}: a fork needs {'its own state' if lost else 'the state of its parent'} at the "
            f"beginning of batch {batch}, which {'is lost' if lost else 'has gone by'}; it is taken anew"
        )

    def _settle(self, taken: Taken, batch: int, near: Slots, far: Far | None) -> None:
        """Go on from what lay elsewhere."""
        self._take_over(near, taken, batch)
        if far is None or self._fork is not None:
            return
        # Once only: the batch that follows may have been saved there before scratch was lost.
        if not _is_whole(far.slots, batch):
            self._take_over(far.slots, taken, batch)
        # What later saves left in the store is of a run that goes on no more: it must be saved anew before a later mark
        # could speak of it.
        pending = Names([], []) if self._exact else far.slots.leftovers(batch)
        near.note(pending, counts_from(far.slots.mark(KEPT, batch), far))

    def _elsewhere(
        self, owner: str, batch: int, partition: int, far: Far | None, lazily: bool = False
    ) -> Taken | None:  # fmt: skip
        """The states of a partition at exactly the beginning of that batch, if they are not in its own scratch."""
        arrived = self._layouts(Path(self._arrived)) if self._arrived else []
        own = self.own_name(partition) if self._fork is None else ""
        scratch = self._layouts(self._scratch() / owner, own, far=far)
        # A fork looks last at what came: its parent may have gone on since.
        for layout in [*arrived, *scratch] if self._fork is None else scratch:
            if (taken := self._dealt(layout, batch, partition)) is not None:
                return taken
        if far is not None:
            if _is_whole(far.slots, batch):
                return self._stored_at(far.slots, batch, lazily)
            for layout in self._stored(far, partition):
                if (taken := self._dealt(layout, batch, partition)) is not None:
                    return taken
        found = (self._dealt(layout, batch, partition) for layout in arrived)
        return None if self._fork is None else next((taken for taken in found if taken is not None), None)

    def _layouts(
        self, folder: Path, without: str = "", *, whole: bool = True, far: Far | None = None
    ) -> list[Layout]:  # fmt: skip
        """Those in scratch, each with its store behind it."""
        found = layouts((path.name for path in (folder / self._plan.name).glob("*")), whole=whole)
        return [Layout(names, partial(self._with_store, folder, far)) for names in found if without not in names]

    @contextlib.contextmanager
    def _with_store(self, folder: Path, far: Far | None, name: str) -> Iterator[Slots]:
        with self.near(folder, name) as near, contextlib.nullcontext() if far is None else far.of(name) as near.beyond:
            yield near

    def _stored(self, far: Far, partition: int, *, whole: bool = True) -> list[Layout]:
        found = layouts(far.names(), whole=whole)
        return [Layout(names, far.of) for names in found if self.own_name(partition) not in names]

    def _dealt(self, layout: Layout, batch: int, partition: int) -> Taken | None:
        """Rule 2: what a partition gets of a layout; None if that does not have the batch."""
        several = len(layout.names) != self.partitions
        found = []
        for name in layout.names if several else [layout.names[partition]]:
            with layout.open(name) as kept:
                # Names of before do not say the number: some of them may be missing.
                number = int(kept.mark(b"partitions", batch) or 0)
                if not _is_whole(kept, batch) or number != len(layout.names):
                    return None
                taken = self._taken(kept, batch)
            found.append(self._own_keys(taken, partition, number) if several else taken)
        return Taken.together(found)

    def _own_keys(self, taken: Taken, partition: int, before: int) -> Taken:
        if not can_hash(self._key_type):
            raise UsageError(
                f"{self._plan.name}: its state lies in {before} partitions, the query has {self.partitions}, and keys "
                f"of type {self._key_type or 'unknown'} cannot be dealt out anew; set spark.sql.shuffle.partitions to "
                f"{before}, or start it anew"
            )
        states = {
            key: state for key, state in taken.states.items()
            if hash_of(key, self._key_type) % self.partitions == partition
        }  # fmt: skip
        parts = {name: part for name, part in taken.parts.items() if key_of(name) in states}
        return taken._replace(states=states, parts=parts)

    def _recover(self, owner: str, batch: int, partition: int, near: Slots, far: Far | None) -> bool:
        """Nobody has the beginning of this batch: another machine had it, or it was lost. Whether something came."""
        plan = self._plan
        mine = int(near.mark(BATCH, batch) or 0)
        theirs = int((far.slots.mark(BATCH, batch) if far is not None else None) or 0)
        if self._exact:
            raise StorageError(
                f"{plan.name}: the state at the beginning of batch {batch} is neither on this machine nor in "
                f"{plan.store}, whose newest is {theirs or 'none'}; start the query from that batch"
            )
        taken = self._best(owner, batch, partition, far)
        left = max(mine, theirs, 0 if taken is None else taken.version)
        how = f"goes on with the state of batch {left}" if left else "begins anew, without any state,"
        if left == batch:
            how = "goes on with what was saved of each of its keys"
        warnings.warn(f"{plan.name}: {how} in batch {batch} (best effort)", RuntimeWarning, stacklevel=1)
        if taken is not None and taken.version > max(mine, theirs):
            self._settle(taken, batch, near, far)
            return True
        if far is not None and (theirs > mine or (theirs == mine and _is_whole(far.slots, theirs))):
            # What scratch has and the store has not is of a run that the store knows nothing of. So is what later
            # saves left in the store: it must be saved anew before a later mark could speak of it.
            self._take_over(near, self._stored_at(far.slots, theirs, self._lazily), batch)
            near.note(far.slots.leftovers(theirs), counts_from(far.slots.mark(KEPT, theirs), far))
            return theirs > 0
        if far is not None:
            # Whoever ran it meanwhile may have left a save half done, which ours must not complete.
            mine_too, others = near.pending, far.slots.leftovers(theirs)
            pending = Names([*mine_too.states, *others.states], [*mine_too.parts, *others.parts])
            near.note(pending, counts_again(near, far))
        return False

    def _best(self, owner: str, batch: int, partition: int, far: Far | None) -> Taken | None:
        """The newest that another number of partitions has left; a partition without tuples may have left nothing."""
        if not can_hash(self._key_type):
            return None
        places = self._layouts(self._scratch() / owner, self.own_name(partition), whole=False, far=far)
        places += [] if far is None else self._stored(far, partition, whole=False)
        best: Taken | None = None
        for layout in places:
            found = []
            for name in layout.names:
                with layout.open(name) as kept:
                    if version := int(kept.mark(BATCH, batch) or 0):
                        found.append(self._own_keys(self._taken(kept, version), partition, len(layout.names)))
            if found and (best is None or best.version < max(taken.version for taken in found)):
                best = Taken.together(found)
        return best

    def _taken(self, kept: Slots, version: int) -> Taken:
        """All states as of a version. One that is damaged as a whole cannot be listed, but it was counted (C11)."""
        self._check(kept, version)
        states, known = kept.states(version), kept.mark(KEYS, version)
        if known is not None and len(states) < int(known):
            self._tell_lost(int(known) - len(states), int(known), "states")
        parts = {name: part for name, part in kept.parts(version).items() if key_of(name) in states}
        named = (part_key(key, name) for key, saved in states.items() for name in directory_of(saved))
        parts |= kept.read_parts([name for name in named if name not in parts], version)
        self._count_parts(states, parts)
        return Taken(states, parts, Passing.taken_over(kept, version), version)

    def _stored_at(self, far: Slots, version: int, lazily: bool) -> Taken:
        """What the partition's store has; lazily, where it stands instead of the states."""
        if not lazily:
            return self._taken(far, version)
        self._check(far, version)
        listed, known = far.names().states, int(far.mark(KEYS, version) or 0)
        if len(listed) < known:
            self._tell_lost(known - len(listed), known, "states")
        places = dict.fromkeys(listed, Away(version))
        return Taken({}, {}, Passing.taken_over(far, version), version, away=places, keys=min(known, len(listed)))

    def bring_more(self, batch: int, near: Slots, far: Far) -> dict[bytes, bytes]:
        """After a lazy restore: some of the rest, if it is to come; the mark that says how far that is."""
        came = near.mark(CAME_TO, batch)
        if came is None or self._plan.restore == "lazily":
            return {}
        with contextlib.suppress(PeerError), far.once():
            last = near.bring(batch, directory_of, came[1:], _BESIDE)
            return {CAME_TO: b"" if last is None else b"+" + last}
        return {}

    def _take_over(self, near: Slots, taken: Taken, batch: int) -> None:
        # Whoever takes states over has all of them, and so has its store.
        marks = self.marks(batch, len(taken.states) + taken.keys) | taken.times | {BEHIND: b""} | Unsaved().mark
        marks[CAME_TO] = b"+" if taken.away else b""
        if taken.dealt:
            marks[_DEALT] = b"%d" % batch
        before = near.names()
        here = {key: settled(state) for key, state in taken.states.items()}
        states: dict[bytes, bytes | Away | None] = {**dict.fromkeys(before.states), **here, **taken.away}
        near.save(states, batch, marks, {**dict.fromkeys(before.parts), **taken.parts})

    def forget_others(self, owner: str, batch: int, partition: int, near: Slots, far: Far | None) -> dict[bytes, bytes]:
        """Rule 2: once the batch after the dealing is committed, nobody begins with what lay otherwise. The marks that
        say so."""
        dealt = near.mark(_DEALT, batch)
        if partition or self._fork is not None or dealt is None or batch < int(dealt) + 2:
            return {}
        for path in (self._scratch() / owner / self._plan.name).glob("*"):
            if not is_of(path.name, self.partitions):
                shutil.rmtree(path, ignore_errors=True)
        if far is not None:
            try:
                with far.once():
                    for name in far.names():
                        if not is_of(name, self.partitions):
                            far.forget(name)
            except PeerError:
                return {}  # The next batch tries again.
        return {_DEALT: b""}

    def _count_parts(self, states: dict[bytes, bytes], parts: dict[bytes, bytes]) -> None:
        """Whether all parts that the heads name are there, as they were saved."""
        named = lost = 0
        for key, saved in states.items():
            directory = directory_of(saved)
            found = {name: parts[part] for name in directory if (part := part_key(key, name)) in parts}
            named, lost = named + len(directory), lost + len(sorted_out(directory, found)[1])
        if lost:
            self._tell_lost(lost, named, "parts of states")

    def _tell_lost(self, lost: int, known: int, what: str) -> None:
        problem = f"{self._plan.name}: {lost} of {known} {what} cannot be read any more"
        if self._exact:
            raise CorruptLog(f"{problem}; restore {self._plan.store} from a copy, or start the query anew")
        warnings.warn(f"{problem}; goes on without them (best effort)", RuntimeWarning, stacklevel=1)

    def pack(self, query: str, batch: int, to: Path) -> bool:
        """Copy the states at the beginning of that batch, of all partitions; False if they are not at hand."""
        return all(self._pack(query, batch, partition, to) for partition in range(self.partitions))

    def _pack(self, query: str, batch: int, partition: int, to: Path) -> bool:
        name = self.own_name(partition)
        # Whoever holds scratch is the only one in the store as well.
        with self.near(self.own(query), name) as near, self.near(to, name) as there:
            with far_of(self._plan, query, name) as far, contextlib.ExitStack() as stack:
                if far is not None:  # The node can stay; that is better than to wait for a server.
                    near.beyond = stack.enter_context(far.once())
                whole = _is_whole(near, batch)
                taken = self._taken(near, batch) if whole else self._elsewhere(query, batch, partition, far)
            if taken is not None:
                self._take_over(there, taken._replace(dealt=False), batch)
            return taken is not None

    def forget(self, query: str) -> None:
        """Leave nothing behind. A store whose server is away is a `PeerError`: it keeps what it has."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._scratch() / query)
        if self._plan.store is not None:
            with contextlib.closing(Far(self._plan, query, "")) as far:
                far.forget_all()

    def _scratch(self) -> Path:
        given = self._plan.scratch
        return of_this_boot(Path(given) if given is not None else own_folder() / "operators")

    def own(self, query: str) -> Path:
        return self._scratch() / query if self._fork is None else Path(self._fork.scratch)

    def own_name(self, partition: int) -> str:
        return partition_name(partition, self.partitions)

    def near(self, folder: Path, name: str) -> AbstractContextManager[Slots]:
        return opened(folder / self._plan.name / name)
