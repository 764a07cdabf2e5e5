"""A flow inside a node: the same operators for the stable query and for each of its forks.

Rules:
1. The stable query's state is checkpointed to the node's output, or to a store (`every`); where the user names no
   policy, by `continuous()`: a node is to come back after anything. Who says `none` gets none: the state lives as long
   as its versions do, and all input before its position may go.
2. A fork begins with its parent's versions and writes no checkpoints. What it needs from before its root it finds in
   its parent's, if it has any; behind the root it never looks there.
3. Lives in a store (`holdfast.spark.durable`) are noted in the replica's own folder: they outlive the checkpoints.
4. Whose versions are whose, and what of them moves to another host, is in `holdfast.spark.state_versions`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from holdfast.checkpoint.derive import Protection
from holdfast.diagram import NodeSpec
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.model.tuples import STREAM_COLUMN
from holdfast.spark.databases import UpdateStage
from holdfast.spark.durable import life_in
from holdfast.spark.flow import Flow
from holdfast.spark.fork import LIFE
from holdfast.spark.restore import Restore, Spec
from holdfast.spark.state_versions import Lineages, lineage_of
from holdfast.spark.version_store import VersionStore
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: Notes of the lives whose versions are being removed by a thread of this process.
_forgetting: set[Path] = set()


class NodeFlow:
    """The flow of one replica, as its function has described it. `generation` counts the query's beginnings."""

    def __init__(self, node: NodeSpec, flow: Flow, outputs: Path, home: Path, generation: int = 0) -> None:
        if not flow.in_node:
            raise UsageError(
                f"node {node.name} must return a flow over its inputs; got one over {', '.join(flow.streams)}, read "
                f"elsewhere; begin with flow_of(…) and the parameters of the function"
            )
        if isinstance(flow.stage, UpdateStage):
            raise UsageError(
                f"node {node.name} must not use update: its fork would change the database for tentative tuples, too; "
                f"let a flow outside, over the node's output, do it"
            )
        self._node, self._home = node.name, home
        self._flow = replace(flow.as_in_node(), root=str(outputs))
        lineage = lineage_of(generation)
        queries = self._flow.queries(home, [(node.output, lineage)])
        operator = self._flow.operator(node.output, str(home / "versions"), (lineage,), queries)
        self._lineages = Lineages(home, outputs, node.output, operator, flow.partitions)

    @property
    def keeps_state(self) -> bool:
        return self._flow.stage is not None

    @property
    def protection(self) -> Protection:
        """What protects its operator with state."""
        return self._flow.protection

    @property
    def lines(self) -> list[str]:
        """What it computes (`flow_identity`)."""
        return self._flow.lines(self._lineages.spec(0))

    def begin_life(self, checkpoint: Path) -> None:
        """The query of that checkpoint begins with an empty state, whatever the output's log has of earlier ones."""
        if self.keeps_state:
            self._lineages.begin_life(checkpoint)

    def stable(self, options: dict[str, str], generation: int) -> DataFrame:
        """The results of the stable query."""
        return self._shaped(self._with(options).results(self._spec(generation)))

    def _spec(self, generation: int) -> Spec:
        return self._flow.with_durable(self._lineages.spec(generation), self._home)

    def forked(self, options: dict[str, str], generation: int, fork: int, root_us: int) -> DataFrame:
        """Rule 2."""
        spec = self._lineages.forked(generation, fork, root_us)
        if self._flow.policy is None:
            spec = msgspec.structs.replace(spec, origin=None)
        before = [(spec.stream, lineage, root_us) for lineage in spec.parents]
        spec = self._flow.with_durable(spec, self._home, before, saves=False)
        return self._shaped(self._with(options).results(spec, checkpoints=False))

    def needed_us(self, until_us: int, generation: int) -> int:
        """Input before this is not needed to restore what the windows hold at `until_us` (L8)."""
        # The log may have checkpoints from before the user said `none`: they would hold the input for ever.
        if self._flow.stored is not None:
            if life_in(self._home, lineage_of(generation)) is None:
                return BEGINNING_US  # It has not begun.
            return Restore(self._spec(generation), StreamStore(self._flow.root)).needed_us(until_us)
        return until_us if self._flow.policy is None else self._lineages.needed_us(until_us, generation)

    def pack(self, generation: int, position_us: int, checkpoint: Path) -> bool:
        """Put the state at that position into a copy of the checkpoint; False if it is not at hand."""
        return not self.keeps_state or self._lineages.pack(generation, position_us, checkpoint)

    def forget(self, fork: int) -> None:
        """A fork has ended."""
        self._lineages.forget(fork)

    def clear(self, generation: int) -> None:
        """A host that starts has neither forks nor an earlier beginning."""
        self._lineages.clear(generation)
        earlier = {self._note(number): number for number in range(generation)}
        earlier = {note: number for note, number in earlier.items() if note.exists() and note not in _forgetting}
        if earlier:  # Whoever clears must not wait for a store.
            _forgetting.update(earlier)
            threading.Thread(target=self._forget_earlier, args=(earlier,), name="forget", daemon=True).start()

    def _forget_earlier(self, generations: dict[Path, int]) -> None:
        try:
            for generation in generations.values():
                self.forget_stored(generation)
        finally:
            _forgetting.difference_update(generations)

    def _note(self, generation: int) -> Path:
        """Of its life."""
        return self._home / f"{LIFE}{lineage_of(generation)}"

    def forget_stored(self, generation: int) -> None:
        """Nobody will go on from what that beginning has in a store."""
        note = self._note(generation)
        if self._flow.stored is None or not note.exists():
            return
        try:
            durable = self._spec(generation).durable
            if durable is not None and durable.own is not None:
                VersionStore(durable).forget(durable.own)
            note.unlink(missing_ok=True)
        except Exception as error:  # Whatever it was: the node runs on, here or elsewhere, and that must not fail.
            log.warning("%s: versions that nobody needs any more stay in the store: %s", self._node, error)

    def _with(self, options: dict[str, str]) -> Flow:
        """The flow over another view of the same inputs."""
        kept = {k: v for k, v in self._flow.options if k not in ("decision", "plan", "start")}
        return replace(self._flow, options=tuple({**kept, **options}.items()))

    def _shaped(self, frame: DataFrame) -> DataFrame:
        """Without what only told the inputs apart."""
        return frame.drop(STREAM_COLUMN) if "tuple_id" in frame.columns else frame
