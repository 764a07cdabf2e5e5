"""What is done about state that is lost: where its checkpoints are, and what of the input is read again.

Rules:
1. The user's own expressions stand between the source and a stage behind a shuffle, so what the stage must see again
   has to come through the query itself. Before each batch the planner looks whether the versions that it starts from
   are on scratch; if not, it asks the output's log how far back to read. A query that loses its scratch goes on.
2. A fork's log begins at its root. What its windows rely on from before that stands in the log of the stream that its
   parent writes, up to the root; later records there are not the fork's.
3. Where versions become durable in a store (`every`), the store is asked instead. Whoever acknowledges input after each
   batch does not wait for that: it goes by what the store had when it was looked at last, which can only be too little.
   Only with the first batch of a run it waits for a moment: there may be no other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import monotonic_us
from holdfast.model.errors import BadName, HoldfastError, PeerError, UnknownStream, UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.spark.durable import Durable
from holdfast.spark.fork import last_commit
from holdfast.spark.hadoop_path import CheckpointFolder, disk_for
from holdfast.spark.wal import read_wal
from holdfast.stream.control import Body, ControlLog, Footprint, operator_number
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import StreamStore

if TYPE_CHECKING:
    from holdfast.spark.version_store import VersionStore
    from holdfast.spark.versions import Scratch

#: Ends the names of operators that tell (null, x) from (x, null) behind a shuffle, and of those that read the log.
NULLS_APART, DIRECT = "-nulls", "-direct"
#: How long the first batch of a run waits to know what it may acknowledge (rule 3).
_LOOK_S = 1.5


class Origin(msgspec.Struct, frozen=True):
    """Where a fork comes from: the stream that its parent writes, and the position at which they parted."""

    stream: str
    root_us: int
    format: int = FORMAT_VERSION


def origin_of(checkpoint: CheckpointFolder, parent: str) -> Origin:
    """Where the query of a forked checkpoint parted from its parent. Found out at its first start, and noted there:
    later the checkpoint knows only how far it has come."""
    path = checkpoint / "forked"
    try:
        return unseal(path.read_bytes(), Origin, str(path))
    except FileNotFoundError:
        pass
    batch = last_commit(checkpoint)
    ends = None if batch < 0 else read_wal(checkpoint, batch)[1]
    if not ends:
        raise UsageError(
            f"fork_of={parent!r} needs a checkpoint that was forked from the query that writes {parent!r}; "
            f"{checkpoint} is none; make it with holdfast.spark.fork.fork_checkpoint"
        )
    origin = Origin(parent, min(ends))
    disk_for(checkpoint).replace_file(path, seal(origin))
    return origin


class Spec(msgspec.Struct, frozen=True):
    """How a stage's checkpoints are found."""

    stream: str
    operator: str
    partitions: int
    scratch: str
    lineage: str = "main"
    parents: tuple[str, ...] = ()
    always: bool = False
    """Scratch is local to each machine of a cluster: the planner cannot see it, so it reads again at every start."""
    origin: Origin | None = None
    arrived: str = ""
    """Where the versions lie that came with the query's checkpoint from another host; empty: none did."""
    arrived_of: int = 0
    """How many partitions those are of."""
    made_by: str = ""
    """What computes the state of a frame (`flow_identity`); empty: others know it, or nobody goes on from it."""
    per_query: bool = False
    """It is a frame, over which there may be several queries."""
    durable: Durable | None = None
    """Where versions become durable (rule 3)."""

    @property
    def forked_us(self) -> int | None:
        """The root, if it is a fork."""
        forked = None if self.durable is None else self.durable.forked_us
        return self.origin.root_us if self.origin is not None else forked

    @property
    def versions(self) -> Scratch:
        """Where the state lies."""
        from holdfast.spark.versions import Scratch  # Not where only tuples are read: it brings polars with it.

        return Scratch(
            self.scratch, self.operator, self.partitions, self.lineage, self.parents, self.arrived, self.arrived_of,
            shared=not self.always, per_query=self.per_query,
        )  # fmt: skip


def checkpoints(
    store: StreamStore, stream: str, origin: Origin | None, operator: str, position_us: int, partition: int | None
) -> Generator[tuple[Footprint, Body], None, None]:
    """The checkpoints of an operator up to a position, the newest first (rule 2)."""
    number = operator_number(operator)
    # A fork in a node writes no checkpoints: what stands in its stream behind the root is its parent's.
    ends = [(stream, position_us)] if origin is None or origin.stream != stream else []
    if origin is not None:
        ends.append((origin.stream, min(origin.root_us, position_us)))
    for name, end_us in ends:
        reader = store.open(name).reader()
        try:
            for footprint, body in ControlLog(reader).backwards(number, partition):
                if footprint.position_us <= end_us:
                    yield footprint, body
        finally:
            reader.close()


def operator_name(
    names: Sequence[str], store: StreamStore, stream: str, scratch: str, lineages: Sequence[str],
    versions: str | None = None, queries: Sequence[str] = (),
) -> str:  # fmt: skip
    """What an operator is called: its name stands for the way its groups are numbered. Of those that it might have, it
    keeps the one under which it has left state or checkpoints, in the log or, by these names of queries, in the store
    of that address (`versions`); else it gets the first."""
    for name in names:
        if any(Path(scratch, name, lineage).is_dir() for lineage in lineages):
            return name
    try:
        reader = store.open(stream).reader()
    except (UnknownStream, BadName):  # The first start; or a frame, which writes no stream.
        return names[0]
    try:
        log = ControlLog(reader)
        wrote = (name for name in names if any(True for _ in log.backwards(operator_number(name))))
        if (found := next(wrote, None)) is not None or versions is None:
            return found or names[0]
    finally:
        reader.close()
    return _stored_name(names, versions, queries)


def _stored_name(names: Sequence[str], address: str, queries: Sequence[str]) -> str:
    from holdfast.spark.version_store import VersionStore

    for name in names:
        versions = VersionStore(Durable(name, address, 1, 1, None))
        if any(versions.knows(query) for query in queries):
            return name
    return names[0]


class Restore:
    def __init__(self, spec: Spec, store: StreamStore) -> None:
        self._spec, self._store = spec, store
        self._scratch = spec.versions
        self._first = True
        self._looked_us: int | None = None
        self._looking: threading.Thread | None = None
        self._known_us = BEGINNING_US

    @classmethod
    def of(cls, text: str | None, store: StreamStore) -> Restore | None:
        return None if text is None else cls(msgspec.json.decode(text, type=Spec), store)

    def again_us(self, since_us: int) -> int:
        """From where the batch that starts at `since_us` must be read."""
        first, self._first = self._first, False
        if since_us == BEGINNING_US:
            return since_us
        at_hand = not first if self._spec.always else self._scratch.has(since_us)
        if at_hand or self._spec.durable is None:
            return since_us if at_hand else self._oldest(since_us)
        try:
            needed_us = self._stored().needed_us(since_us)
        except PeerError:
            if not self._spec.always:
                raise
            needed_us = None  # Most often the versions are on the machines, and nobody has to ask.
        return since_us if needed_us is None else needed_us  # A task that lacks its own says what is lost.

    def forked_us(self, since_us: int) -> int:
        """The same in a fork, of which nothing but the beginning can be read again: later it is started anew."""
        root_us = self._spec.forked_us
        return since_us if root_us is None or since_us > root_us else self.again_us(since_us)

    def needed_us(self, until_us: int) -> int:
        """The input before this is not needed any more once the results up to `until_us` are written (L8)."""
        if self._spec.durable is None:
            return self._oldest(until_us)
        needed_us = self._stored().needed_us(until_us, twice=True)
        return BEGINNING_US if needed_us is None else min(needed_us, until_us)

    def needed_by_now_us(self, until_us: int) -> int:
        """The same for who must not wait for a store (rule 3)."""
        if self._spec.durable is None:
            return self._oldest(until_us)
        now = monotonic_us()
        first = self._looked_us is None
        due = self._looked_us is None or now - self._looked_us >= self._spec.durable.every_us
        if due and (self._looking is None or not self._looking.is_alive()):
            self._looked_us = now
            self._looking = threading.Thread(target=self._look, args=(until_us,), name="needed", daemon=True)
            self._looking.start()
            if first:
                self._looking.join(_LOOK_S)
        return min(self._known_us, until_us)

    def _look(self, until_us: int) -> None:
        with contextlib.suppress(HoldfastError):  # Then the input stays for longer.
            self._known_us = max(self._known_us, self.needed_us(until_us))

    def _stored(self) -> VersionStore:
        from holdfast.spark.version_store import VersionStore  # It brings polars with it.

        assert self._spec.durable is not None
        return VersionStore(self._spec.durable)

    def _oldest(self, position_us: int) -> int:
        """Every batch has a checkpoint of every partition, however many there were."""
        spec, newest, oldest = self._spec, None, position_us
        logged = checkpoints(self._store, spec.stream, spec.origin, spec.operator, position_us, None)
        with contextlib.closing(logged):
            for footprint, _ in logged:
                newest = newest or footprint.position_us
                if footprint.position_us != newest:
                    break
                oldest = min(oldest, footprint.since_us)
        return oldest  # Before the first batch, where it is.
