"""A simulated reader on the machine of a replica: it looks at the report, main and branch as they lie on disk.

Rules:
1. It runs the core that every local subscriber runs (`protocol.dpc.local`), in a process of its own: it lives on when
   the replica is killed, stands still or starts again.
2. A look is not a moment: between the report, main and the branch the replica may do anything.
3. It is named, so the replica keeps what it has not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import BranchView, LocalReader, View
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.sim.query import Rows
from holdfast.sim.replica import ReplicaHost
from holdfast.sim.world import World

#: How long until the next look, at most; and how long between two parts of one, now and then.
LOOK_US_MAX = 60_000
PART_US_MAX = 40_000
_PARTED = 0.15
#: Faults of the simulator last some seconds; so must a reader's patience with a producer that gives no sign of life.
PATIENCE_US = 1_000_000


class LocalHost:
    """One local reader of one replica's output."""

    def __init__(self, world: World, name: str, replica: ReplicaHost, rng: Random) -> None:
        self.world, self.name, self._replica, self._rng = world, name, replica, rng
        self.core: LocalReader | None = None
        self._report: tuple[StreamReport | None, int] = (None, 0)
        self._main = 0

    def begin(self) -> None:
        """Subscribe to what is complete from now on."""
        first = self._replica.log.next
        self.core = LocalReader(first, PATIENCE_US)
        self._replica.local.append(self.core)
        self._passed(0, first)
        self._look()

    def _look(self) -> None:
        self._report = (self._replica.report, self._replica.renewed_us)
        self._then(self._see_main)

    def _see_main(self) -> None:
        self._main = self._replica.log.next
        self._then(self._see_branch)

    def _see_branch(self) -> None:
        assert self.core is not None
        branch, view = self._replica.branch_on_disk, None
        if branch is not None:
            view = BranchView(str(branch.id), min(branch.rows), branch.closed)
        now = self.world.now_us
        for step in self.core.look(View(*self._report, self._main, False, view), now):
            if step.kind is TupleType.INSERTION:
                self._stable(step.bucket, step.end)
            else:
                rows = {} if branch is None else {bucket: found for bucket, (found, _) in branch.rows.items()}
                self._told(step.kind, step.bucket, step.end, rows)
        self.world.at(now + self._rng.randrange(5_000, LOOK_US_MAX), self._look)

    def _stable(self, first: int, end: int) -> None:
        log = self._replica.log
        for hole_first, hole_end in [hole for hole in log.holes if hole[0] < end and hole[1] > first]:
            self._told(TupleType.INSERTION, first, hole_first, log.rows)
            self._passed(hole_first, hole_end)
            first = hole_end
        self._told(TupleType.INSERTION, first, end, log.rows)

    def _told(self, kind: TupleType, first: int, end: int, rows: Mapping[int, Rows]) -> None:
        self.world.observers.delivered(self.world.now_us, self.name, kind.name, first, end, rows)

    def _passed(self, first: int, end: int) -> None:
        for hook in self.world.observers.hole:
            hook(self.world.now_us, self.name, first, end)

    def _then(self, part: Callable[[], None]) -> None:
        """Rule 2."""
        if self._rng.random() < _PARTED:
            self.world.at(self.world.now_us + self._rng.randrange(PART_US_MAX), part)
        else:
            part()
