"""A flow inside a node: the same operators for the stable query and for each of its forks.

Rules:
1. The stable query's state has the lineage of its beginning. It is checkpointed to the node's output; where the user
   names no policy, by `continuous()`: a node is to come back after anything.
2. A fork has a lineage of its own, which begins with a link to its parent's versions at the fork's root: nothing is
   copied, and what the parent forgets meanwhile stays. It writes no checkpoints. What it needs from before its root it
   finds in its parent's; behind the root it never looks there.
3. Versions lie in the replica's own folder. They need not be durable, but a host that was killed finds them again.
4. A key stays in its partition for the query's life, so their number is noted at the first start and kept.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from holdfast.diagram import NodeSpec
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.tuples import STREAM_COLUMN
from holdfast.protocol.cec.policy import continuous
from holdfast.spark.databases import UpdateStage
from holdfast.spark.flow import Flow
from holdfast.spark.restore import Origin, Restore, Spec
from holdfast.spark.versions import Scratch
from holdfast.stream.disk import Disk
from holdfast.stream.store import StreamStore

_MAIN, _FORK = "main", "fork-"


class NodeFlow:
    """The flow of one replica, as its function has described it. `generation` counts the query's beginnings."""

    def __init__(self, node: NodeSpec, flow: Flow, outputs: Path, home: Path) -> None:
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
        self._node, self._outputs, self._home = node, outputs, home
        self._scratch = home / "versions"
        policy = flow.checkpoint if flow.stage is None else flow.checkpoint or continuous()
        self._flow = replace(flow, root=str(outputs), checkpoint=policy, partitions=self._partitions(flow.partitions))
        self._operator = self._flow.operator(node.output, str(self._scratch), (_MAIN,))

    @property
    def keeps_state(self) -> bool:
        return self._flow.stage is not None

    def stable(self, options: dict[str, str], generation: int) -> DataFrame:
        """The results of the stable query."""
        return self._shaped(self._with(options).results(self._spec(generation)))

    def forked(self, options: dict[str, str], generation: int, fork: int, root_us: int) -> DataFrame:
        """Rule 2."""
        spec = self._spec(generation, fork, root_us)
        self.forget(fork)
        if self.keeps_state:
            Scratch(spec.scratch, spec.operator, spec.lineage, spec.parents).pin(spec.partitions, root_us)
        return self._shaped(self._with(options).results(spec, checkpoints=False))

    def needed_us(self, until_us: int, generation: int) -> int:
        """Input before this is not needed to restore what the windows hold at `until_us` (L8)."""
        if not self.keeps_state:
            return until_us
        return Restore(self._spec(generation), StreamStore(self._outputs)).needed_us(until_us)

    def forget(self, fork: int) -> None:
        """The versions of a fork that has ended, and of those before it: a task of theirs that was late has made their
        folder again."""
        for lineage in self._scratch.glob(f"*/{_FORK}*"):
            if int(lineage.name.removeprefix(_FORK).partition("-")[0]) <= fork:
                shutil.rmtree(lineage, ignore_errors=True)

    def clear(self, generation: int) -> None:
        """A host that starts has neither forks nor an earlier beginning."""
        for lineage in self._scratch.glob("*/*"):
            if lineage.name != _lineage(generation):
                shutil.rmtree(lineage, ignore_errors=True)

    def _with(self, options: dict[str, str]) -> Flow:
        """The flow over another view of the same inputs."""
        kept = {k: v for k, v in self._flow.options if k not in ("decision", "plan", "start")}
        return replace(self._flow, options=tuple({**kept, **options}.items()))

    def _spec(self, generation: int, fork: int | None = None, root_us: int = 0) -> Spec:
        stable = _lineage(generation)
        spec = Spec(self._node.output, self._operator, self._flow.partitions, str(self._scratch), stable)
        if fork is None:
            return spec
        # Not by its number alone: a worker of Spark's remembers what an attempt that failed has computed.
        lineage = f"{_FORK}{fork}-{os.urandom(4).hex()}"
        origin = Origin(self._node.output, root_us)
        return msgspec.structs.replace(spec, lineage=lineage, parents=(stable,), origin=origin)

    def _shaped(self, frame: DataFrame) -> DataFrame:
        """Without what only told the inputs apart."""
        return frame.drop(STREAM_COLUMN) if "tuple_id" in frame.columns else frame

    def _partitions(self, wanted: int) -> int:
        """Rule 4."""
        path = self._home / "partitions"
        try:
            return int(path.read_text())
        except FileNotFoundError:
            Disk().replace_file(path, str(wanted).encode())
            return wanted
        except ValueError as error:
            raise StorageError(
                f"{path} must hold the number of partitions of node {self._node.name}; got something else; write it "
                f"there, or remove the node's folder and begin anew"
            ) from error


def _lineage(generation: int) -> str:
    return _MAIN if generation == 0 else f"{_MAIN}-{generation}"
