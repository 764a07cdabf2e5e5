"""An engine that computes nothing: its queries commit what the test says, everything around them is real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.diagram import NodeSpec
from holdfast.engine import Coverage, Description, Engine, Fork, NodeQueries, Progress, Query, Reading
from holdfast.model.errors import StorageError
from holdfast.spark.forked import ready_mark
from holdfast.spark.node_checkpoint import progress_after, progress_of
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting

SECOND = 1_000_000


class ScriptedQuery(Query):
    active = True

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def failure(self) -> None:
        return None

    def stop(self) -> None:
        self._log.append("stop")
        self.active = False

    def reading(self) -> Reading | None:
        return None


class ScriptedQueries(NodeQueries):
    """Queries of a replica that committed one batch, up to second 5."""

    decision = Path()
    keeps_state = False
    coverage = Coverage()

    def __init__(self, home: Path) -> None:
        self.home, self.log, self.refused, self.needed = home, [], 0, 0  # type: tuple[Path, list[str], int, int]
        self.decision, self.checkpoint = home / "decision", home / "checkpoint"
        self.commit(0, 5 * SECOND)

    def commit(self, batch: int, until_us: int) -> None:
        self._commit(self.checkpoint, batch, until_us)

    def _commit(self, checkpoint: Path, batch: int, until_us: int) -> None:
        for name, line in (("offsets", json.dumps({"format": 1, "until_us": until_us})), ("commits", "")):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
            (checkpoint / name / str(batch)).write_text(f"v1\n{{}}\n{line}\n")

    def fork_commits(self, fork: int, batch: int, until_us: int) -> None:
        self._commit(self.home / "forks" / str(fork) / "checkpoint", batch, until_us)

    def create_output(self, bucket_us: int) -> Stream:
        raise AssertionError("not in the script")

    def describe(self) -> Description:
        return Description("stime")

    def needed_us(self, until_us: int) -> int:
        return min(until_us, self.needed)

    def start_stable(self) -> Query:
        self.log.append("start")
        return ScriptedQuery(self.log)

    def begin_anew(self, start_us: int, right_from_us: int) -> None:
        if self.refused:
            self.refused -= 1
            self.log.append("refused")
            raise StorageError("could not write: the disk is full")
        self.log.append("anew")

    def position(self) -> Progress:
        return progress_of(self.checkpoint)

    def progress(self, since: int, fork: Fork | None = None) -> Progress | None:
        return progress_after(self.checkpoint if fork is None else fork.checkpoint, since)

    def planned(self, batch_id: int) -> bool:
        return False

    def promised_us(self, until_us: int) -> int:
        return until_us

    def copy_to(self, checkpoint: Path) -> Waiting:
        raise AssertionError("not in the script")

    def forget(self) -> None:
        self.log.append("forget")

    def start_fork(self, fork: int) -> Fork:
        plan = self.home / "forks" / str(fork) / "plan"
        plan.parent.mkdir(parents=True)
        ready_mark(plan).touch()
        query = ScriptedQuery(self.log)
        return Fork(query, plan.parent / "checkpoint", plan, "ab" * 8, 0, 5 * SECOND)

    def ready(self, fork: Fork) -> bool:
        return True

    def stop_fork(self, fork: Fork) -> None:
        fork.query.stop()

    def clear_forks(self) -> None:
        pass


class _Created(ScriptedQueries):
    """With an output of its own, like that of a node that copies one column."""

    def __init__(self, node: NodeSpec, outputs: Path, home: Path) -> None:
        shutil.rmtree(home / "checkpoint", ignore_errors=True)
        super().__init__(home)
        self._node, self._outputs = node, outputs

    def create_output(self, bucket_us: int) -> Stream:
        return StreamStore(self._outputs).create(self._node.output, "n bigint", bucket="1s", exist_ok=True)


class ScriptedEngine(Engine):
    ended: str | None = None

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def queries(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> NodeQueries:
        return _Created(node, outputs, home)

    def take_up(self, home: Path, checkpoint: Path, right_from_us: int | None) -> None:
        raise AssertionError("not in the script")

    def renew(self, checkpoint: Path) -> Any:
        raise AssertionError("not in the script")
