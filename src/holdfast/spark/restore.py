"""What the planner of a query does about state that is lost: it reads a part of the input again.

The user's own expressions stand between the source and the stage, so what a stage must see again has to come through
the query itself. The planner asks the output's log how far back that is, once per run of the query, and only if the
versions that the first batch starts from are not on scratch.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import StorageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.spark.versions import Scratch
from holdfast.stream.control import ControlLog, operator_number
from holdfast.stream.store import StreamStore


class Spec(msgspec.Struct, frozen=True):
    """How a stage's checkpoints are found."""

    stream: str
    operator: str
    partitions: int
    scratch: str
    lineage: str = "main"
    parents: tuple[str, ...] = ()
    always: bool = False
    """Scratch is local to each machine of a cluster: the planner cannot see it, so it always reads again."""


class Restore:
    def __init__(self, spec: Spec, store: StreamStore) -> None:
        self._spec, self._store = spec, store
        self._scratch = Scratch(spec.scratch, spec.operator, spec.lineage, spec.parents)
        self._done = False

    @classmethod
    def of(cls, text: str | None, store: StreamStore) -> Restore | None:
        return None if text is None else cls(msgspec.json.decode(text, type=Spec), store)

    def again_us(self, since_us: int) -> int:
        """From where the batch that starts at `since_us` must be read."""
        if self._done or since_us == BEGINNING_US:
            self._done = True
            return since_us
        self._done = True
        if not self._spec.always and self._scratch.has(self._spec.partitions, since_us):
            return since_us
        return self._oldest(since_us)

    def needed_us(self, until_us: int) -> int:
        """The input before this is not needed any more once the results up to `until_us` are written (L8)."""
        return self._oldest(until_us)

    def _oldest(self, position_us: int) -> int:
        log = ControlLog(self._store.open(self._spec.stream).reader())
        found = log.latest(operator_number(self._spec.operator), self._spec.partitions, position_us)
        if not found:
            return position_us  # The first batch of the query: there is no state yet.
        if len(found) < self._spec.partitions:
            raise StorageError(
                f"stream {self._spec.stream}: checkpoints of {self._spec.operator} to {instant_text(position_us)} "
                f"exist for partitions {sorted(found)} only, of {self._spec.partitions}; it must stay the same"
            )
        return min(position_us, *(f.since_us for f in found.values()))
