"""The checkpoint of a replica's queries: where the stable one stands, and copies of it for forks and other hosts.

Rules:
1. The folder has Spark's layout: what a batch reads stands in it before the batch, and its commit after it. So a batch
   that was cut short is done again, and reads the same.
2. A fork or a copy is taken between two batches, together with the results that were computed and not yet filed: they
   are no longer in the query's state, so nobody could compute them again.
3. Which generation of the checkpoint counts is in `holdfast.spark.query_start`; what it computes in a note beside it.
4. Spark's part of it may lie elsewhere (`holdfast.spark.checkpoint_place`). All here go by the replica's own folder.

How a query is described and run is its subclass's: `holdfast.spark.node` for Spark.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast.clock import monotonic_us, pause
from holdfast.diagram import NodeSpec
from holdfast.engine import Fork, NodeQueries, Progress, Query
from holdfast.model.errors import StorageError
from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.spark.arrivals import pack_operators
from holdfast.spark.checkpoint_place import forget_elsewhere, remove_checkpoint, settle_fork, spark_part
from holdfast.spark.fork import fork_checkpoint, last_commit
from holdfast.spark.forked import ready_mark
from holdfast.spark.hadoop_path import CheckpointFolder
from holdfast.spark.keyed_task import Task
from holdfast.spark.node_flow import NodeFlow
from holdfast.spark.query_start import Beginning, begin_anew, load_beginning
from holdfast.spark.wal import read_mends_of, read_wal
from holdfast.stream.identity import Identity, note_identity, read_identity
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting, keep_waiting, waiting_results

log = logging.getLogger(__name__)

#: Between the sink's commit and Spark's own lie some milliseconds; a query that stays there longer has failed.
_SETTLE_US_MAX = 10 * SECOND_US
_SETTLE_POLL_US = 2_000


class CheckpointedQueries(NodeQueries):
    """Everything about the queries of one replica but running them. `home` is the replica's own folder."""

    def __init__(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> None:
        self._node, self._inputs, self._outputs, self._home = node, tuple(inputs), outputs, home
        self._beginning = load_beginning(home)
        self._flow: NodeFlow | None = None
        self._operators: list[Task] = []

    @property
    def checkpoint(self) -> Path:
        return self._beginning.checkpoint(self._home)

    @property
    def decision(self) -> Path:
        return self._home / "decision"

    def _begin_life(self, checkpoint: Path) -> None:
        if self._flow is not None:
            self._flow.begin_life(checkpoint)

    # -- the stable query --------------------------------------------------------------------------------------------

    def _forget_start(self) -> None:
        """A start that has read nothing yet, from before somebody said where the node begins, does not count."""
        batch, until_us = progress_of(self.checkpoint)
        if until_us is not None and until_us <= BEGINNING_US and not self.planned(batch + 1):
            known = read_identity(self.checkpoint)
            remove_checkpoint(self.checkpoint)
            self._keep_identity(known, self.checkpoint)

    @staticmethod
    def _keep_identity(known: Identity | None, checkpoint: Path) -> None:
        """A query that begins anew computes what it did: its next start is compared with that (C12)."""
        if known is not None:
            note_identity(checkpoint, known)

    @property
    def keeps_state(self) -> bool:
        """Operators of Holdfast's own do: their state lies here, and is restored from output and inputs."""
        return self._flow is not None and self._flow.keeps_state

    def needed_us(self, until_us: int) -> int:
        return until_us if self._flow is None else self._flow.needed_us(until_us, self._beginning.generation)

    def begin_anew(self, start_us: int, right_from_us: int) -> None:
        place = Beginning(generation=self._beginning.generation + 1).checkpoint(self._home)
        self._keep_identity(read_identity(self.checkpoint), place)  # First: the old checkpoint goes with its note.
        self._beginning = begin_anew(self._home, self._beginning, start_us, right_from_us)

    def position(self) -> Progress:
        return progress_of(self.checkpoint)

    def mends(self) -> Mapping[str, int]:
        part = spark_part(self.checkpoint)
        batch = last_commit(part)
        return {} if batch < 0 else read_mends_of(part, batch)

    def progress(self, since: int, fork: Fork | None = None) -> Progress | None:
        return progress_after(self.checkpoint if fork is None else fork.checkpoint, since)

    def planned(self, batch_id: int) -> bool:
        return (spark_part(self.checkpoint) / "offsets" / str(batch_id)).exists()

    # -- movement ----------------------------------------------------------------------------------------------------

    def copy_to(self, checkpoint: Path) -> Waiting:
        waiting = self._copied(checkpoint, lambda: checkpoint, lambda: self._pack_state(checkpoint))
        self._keep_identity(read_identity(self.checkpoint), checkpoint)
        return waiting

    def _copied(
        self, checkpoint: Path, place: Callable[[], CheckpointFolder], take_states: Callable[[], bool]
    ) -> Waiting:
        """Fork the query together with the states that its operators had then. `place` gives Spark's part a new one."""
        deadline = monotonic_us() + _SETTLE_US_MAX
        while True:
            waiting = self._fork_at_rest(checkpoint, place)
            if take_states():
                return waiting
            remove_checkpoint(checkpoint)
            if monotonic_us() > deadline:
                raise StorageError(
                    f"node {self._node.name}: the state of its operators at the last commit must be at hand to be "
                    f"copied; it is lost, or goes by too quickly; try again later"
                )
            pause(_SETTLE_POLL_US)

    def _pack_state(self, checkpoint: Path) -> bool:
        """Add what Holdfast's own operators and the user's know at the batch that the copy stands at."""
        batch, until_us = progress_of(checkpoint)
        if self._flow is not None and until_us is not None:
            return self._flow.pack(self._beginning.generation, until_us, checkpoint)
        return pack_operators(self._operators, query_id(self.checkpoint), batch + 1, checkpoint)

    def forget(self) -> None:
        """Operators may keep something elsewhere, and Spark."""
        if self._flow is not None:
            self._flow.forget_stored(self._beginning.generation)
        for operator in self._operators:
            try:
                operator.forget(query_id(self.checkpoint))
            except Exception as error:  # Whatever it was: the node runs elsewhere, and that must not fail here.
                log.warning("%s: states of %s that nobody needs any more stay where they are: %s", self._node.name,
                            operator.name, error)  # fmt: skip
        forget_elsewhere(self.checkpoint)

    # -- forks -------------------------------------------------------------------------------------------------------

    def start_fork(self, fork: int) -> Fork:
        home = self._home / "forks" / str(fork)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            return self._started_fork(fork, home / "checkpoint", home / "plan")
        except BaseException:
            # It is tried again every few seconds, each time with links that keep the parent's old state on the disk.
            forget_elsewhere(home / "checkpoint")
            shutil.rmtree(home, ignore_errors=True)
            if self._flow is not None:
                self._flow.forget(fork)
            raise

    @abstractmethod
    def _run_fork(self, fork: int, checkpoint: Path, plan: Path, branch: str) -> Query:
        """Start the query of a fork whose checkpoint is there. Beside the plan lie states of the user's operators, and
        what waits for the branch."""

    def _started_fork(self, fork: int, checkpoint: Path, plan: Path) -> Fork:
        begun = monotonic_us()
        place = partial(settle_fork, checkpoint, spark_part(self.checkpoint))
        waiting = self._copied(checkpoint, place, lambda: self._take_states(checkpoint, states_beside(plan)))
        rested = monotonic_us()
        forked = progress_of(checkpoint)
        assert forked.until_us is not None, "every batch of ours has one input with an stime"
        keep_waiting(waiting_beside(plan), waiting)
        branch = os.urandom(8).hex()
        query = self._run_fork(fork, checkpoint, plan, branch)
        log.info("%s: fork %d of batch %d taken in %d ms, started in %d ms", self._node.name, fork, forked.batch_id,
                 (rested - begun) // 1000, (monotonic_us() - rested) // 1000)  # fmt: skip
        return Fork(query, checkpoint, plan, branch, forked.batch_id, forked.until_us)

    def _take_states(self, checkpoint: Path, operators: Path) -> bool:
        """The user's operators keep two versions of their states: after two more batches, a fork that waited to be
        released would find neither. On a cluster they lie elsewhere, and the fork looks for them when it runs."""
        if self.stays_because is not None:
            return True
        shutil.rmtree(operators, ignore_errors=True)
        batch, query = progress_of(checkpoint).batch_id + 1, query_id(self.checkpoint)
        return all(operator.pack(query, batch, operators) for operator in self._operators)

    def _fork_at_rest(self, checkpoint: Path, place: Callable[[], CheckpointFolder]) -> Waiting:
        """Fork between two batches, so that checkpoint and waiting results are of the same moment."""
        token, part = f"spark-{query_id(self.checkpoint)}", spark_part(self.checkpoint)
        output = StreamStore(self._outputs).open(self._node.output)
        deadline = monotonic_us() + _SETTLE_US_MAX
        while True:
            before = last_commit(part)
            waiting = waiting_results(output)
            if waiting is not None and waiting.tokens.get(token, before) == before:
                if fork_checkpoint(part, place()).batch_id == before:
                    return waiting
                remove_checkpoint(checkpoint)
            if monotonic_us() > deadline:
                raise StorageError(
                    f"node {self._node.name}: the stable query has filed results of a batch after {before} but does "
                    f"not commit it; it must have stopped there; look for its error in the log"
                )
            pause(_SETTLE_POLL_US)

    def ready(self, fork: Fork) -> bool:
        return ready_mark(fork.plan).exists()

    def stop_fork(self, fork: Fork) -> None:
        try:
            fork.query.stop()
        finally:
            self._remove_fork(fork.checkpoint)

    def clear_forks(self) -> None:
        for checkpoint in (self._home / "forks").glob("*/checkpoint"):
            self._remove_fork(checkpoint)
        if self._flow is not None:
            self._flow.clear(self._beginning.generation)
        shutil.rmtree(self._home / "forks", ignore_errors=True)

    def _remove_fork(self, checkpoint: Path) -> None:
        """Its folder, and large results that its last batch has staged beside the output: nobody will ask for them."""
        with contextlib.suppress(OSError, ValueError, KeyError, StorageError):
            for staged in (self._outputs / self._node.output / "staging").glob(f"{query_id(checkpoint)}.*"):
                staged.unlink(missing_ok=True)
        forget_elsewhere(checkpoint)
        shutil.rmtree(checkpoint.parent, ignore_errors=True)
        if self._flow is not None and checkpoint.parent.name.isdigit():
            self._flow.forget(int(checkpoint.parent.name))


def states_beside(plan: Path) -> Path:
    """Where a fork finds the states of the user's operators at its parent's commit."""
    return plan.with_name("operators")


def waiting_beside(plan: Path) -> Path:
    """Where a fork keeps results for the time when it has a branch."""
    return plan.with_name("waiting")


def query_id(checkpoint: Path) -> str:
    return str(json.loads((spark_part(checkpoint) / "metadata").read_text())["id"])


def progress_of(checkpoint: Path) -> Progress:
    """The last committed batch of a checkpoint."""
    part = spark_part(checkpoint)
    batch = last_commit(part)
    if batch < 0:
        return Progress(-1, None)
    _, ends = read_wal(part, batch)
    return Progress(batch, min(ends) if ends else None)


def progress_after(checkpoint: Path, since: int) -> Progress | None:
    """The same for who looks often: one look for a file, as long as nothing has happened."""
    if not os.path.exists(f"{checkpoint}/commits/{since + 1}"):
        return None
    return progress_of(checkpoint)
