"""The state of a node's operator: which versions are whose, here and after a movement.

Rules:
1. The stable query's versions have the lineage of its beginning. Those of an earlier beginning, and of forks that have
   ended, are removed.
2. A fork has a lineage of its own, which begins with a link to its parent's versions at the fork's root: nothing is
   copied, and what the parent forgets meanwhile stays.
3. Versions lie in the replica's own folder. They need not be durable, but a host that was killed finds them again.
4. What moves to another host is the versions at the last commit. They lie inside the checkpoint that goes there, so
   that both become durable, and count, together. There the first batch begins with them, and saves all windows to the
   log, from which whatever comes later can be restored.
5. An operator that has moved, or begins anew because its definition has changed, gets a name of its own for the life
   that begins with it. The log may hold checkpoints of an earlier life of the same node, at the same positions, and a
   restore must not mix them.
6. The number of partitions is that of the session or the user, at each start anew: states are dealt out among them
   as they are loaded (`holdfast.spark.versions`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.model.errors import StorageError
from holdfast.model.time import BEGINNING_US
from holdfast.spark.arrivals import arrivals
from holdfast.spark.query_start import Beginning
from holdfast.spark.restore import DIRECT, NULLS_APART, Origin, Restore, Spec
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import StreamStore

#: The lineage of a query that has begun once; and how those of forks begin.
MAIN, _FORK = "main", "fork-"
_PARTITIONS_MAX = 1 << 16


class Arrival(msgspec.Struct, frozen=True):
    """What the versions are that came with a checkpoint."""

    operator: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}\Z")]
    """What it was called before it first moved."""
    life: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
    partitions: Annotated[int, Meta(ge=1, le=_PARTITIONS_MAX)]
    position_us: int
    format: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        """Rule 5."""
        return f"{self.life}.{self.operator}"


def arrival_in(checkpoint: Path) -> Arrival | None:
    """None if the query of this checkpoint began here, or has no operator of Holdfast's with state."""
    path = arrivals(checkpoint) / "versions"
    try:
        return unseal(path.read_bytes(), Arrival, str(path))
    except FileNotFoundError:
        return None


class Lineages:
    """The versions of one replica's operator. `operator` is what it is called where it has not moved; empty:
    there is none with state."""

    def __init__(self, home: Path, outputs: Path, stream: str, operator: str, partitions: int) -> None:
        self._home, self._outputs, self._stream, self._operator = home, outputs, stream, operator
        self._scratch, self._partitions = home / "versions", partitions

    def spec(self, generation: int) -> Spec:
        """Of the stable query."""
        checkpoint = Beginning(generation=generation).checkpoint(self._home)
        arrival = arrival_in(checkpoint)
        spec = Spec(self._stream, self._operator, self._partitions, str(self._scratch), lineage_of(generation))
        if arrival is None:
            return spec
        return msgspec.structs.replace(
            spec, operator=self._life(arrival), arrived=str(arrivals(checkpoint)), arrived_of=arrival.partitions
        )

    def _life(self, arrival: Arrival) -> str:
        # One that numbers groups in another way, because it has more partitions or is older, goes on to do so.
        if _stage(arrival.operator) != _stage(self._operator):
            raise StorageError(
                f"{self._home}: the state that came with the node must be that of {self._operator}; it is that of "
                f"{arrival.operator}; both owners must have the same definition of it"
            )
        return arrival.name

    def forked(self, generation: int, fork: int, root_us: int) -> Spec:
        """Rule 2."""
        stable = self.spec(generation)
        # Not by its number alone: a worker of Spark's remembers what an attempt that failed has computed.
        lineage = f"{_FORK}{fork}-{os.urandom(4).hex()}"
        origin = Origin(self._stream, root_us)
        spec = msgspec.structs.replace(stable, lineage=lineage, parents=(stable.lineage,), origin=origin)
        self.forget(fork)
        if self._operator:
            spec.versions.pin(root_us)
        return spec

    def needed_us(self, until_us: int, generation: int) -> int:
        """Input before this is not needed to restore what the windows hold at `until_us` (L8)."""
        return Restore(self.spec(generation), StreamStore(self._outputs)).needed_us(until_us)

    def pack(self, generation: int, position_us: int, checkpoint: Path) -> bool:
        """Rule 4: put the versions of that position into a copy of the checkpoint; False if they are not at hand."""
        if position_us <= BEGINNING_US:
            return True  # Nothing was read yet.
        spec = self.spec(generation)
        if not spec.versions.pack(position_us, arrivals(checkpoint)):
            return False
        base = spec.operator.rpartition(".")[2]
        arrival = Arrival(base, os.urandom(4).hex(), spec.partitions, position_us)
        (arrivals(checkpoint) / "versions").write_bytes(seal(arrival))
        return True

    def begin_life(self, checkpoint: Path) -> None:
        """Rule 5, for an operator that begins anew here with another definition."""
        arrival = Arrival(self._operator, os.urandom(4).hex(), self._partitions, BEGINNING_US)
        disk = Disk()
        disk.make_dir(arrivals(checkpoint))
        disk.replace_file(arrivals(checkpoint) / "versions", seal(arrival))

    def forget(self, fork: int) -> None:
        """The versions of a fork that has ended, and of those before it: a task of theirs that was late has made their
        folder again."""
        for lineage in self._scratch.glob(f"*/{_FORK}*"):
            if int(lineage.name.removeprefix(_FORK).partition("-")[0]) <= fork:
                shutil.rmtree(lineage, ignore_errors=True)

    def clear(self, generation: int) -> None:
        """A host that starts has neither forks nor an earlier beginning."""
        for lineage in self._scratch.glob("*/*"):
            if lineage.name != lineage_of(generation):
                shutil.rmtree(lineage, ignore_errors=True)
                with contextlib.suppress(OSError):
                    lineage.parent.rmdir()  # Of an operator's earlier life, if it is empty now.


def _stage(operator: str) -> str:
    return operator.removesuffix(NULLS_APART).removesuffix(DIRECT)


def lineage_of(generation: int) -> str:
    """That of the stable query that has begun so often before."""
    return MAIN if generation == 0 else f"{MAIN}-{generation}"
