"""The fork of one replica as the host sees it: a second query that is started, fed, watched and stopped.

Rules:
1. Starting and stopping take Spark a second or more; they happen on threads of their own. A fork does not wait for the
   end of its predecessor, which may hang in a batch: each has its own checkpoint, and its own branch to write to.
2. The branch is created with the first bucket that is to be seen, at that bucket: before it, main speaks.
3. Whoever asks is told what is true: prepared when the fork could run a batch, completed when Spark has committed it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from holdfast.clock import monotonic_us
from holdfast.engine import Fork, NodeQueries
from holdfast.host.log_lines import Bucket, ReplicaLog
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.time import SECOND_US, closed_until
from holdfast.protocol.dpc.effects import ExtendFork, StopFork, TentativeBucket
from holdfast.protocol.dpc.signals import ForkCompleted, ForkFailed, ForkPrepared, ForkSignal
from holdfast.stream.branch import BranchReader
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlannedPiece, PlanWriter
from holdfast.stream.worth import Worth, note_worth

log = logging.getLogger(__name__)

#: A fork that could not start is tried again after this long; at once would keep Spark busy with failing.
_RETRY_US = 2_000_000

#: A fork that is not ready by then hangs. On a crowded machine one takes half a minute.
_READY_US_MAX = 180 * SECOND_US
_THREADS = 4
#: How long the end of a host waits for a fork that is being stopped.
_CLOSE_S = 60.0

#: Asking Spark whether a query lives costs a call into the JVM; a dead one is noticed this much later.
HEALTH_US = 1_000_000


@dataclass(slots=True)
class ForkCounts:
    """What forks have cost and given so far."""

    started: int = 0
    failed: int = 0
    ready: int = 0
    start_us: int = 0
    """What those that came to be ready took until then."""
    kept_us: int = 0
    """Those that have ended, from their beginning to their end."""
    standing_tuples: int = 0
    """Tentative tuples of the branch that is there."""
    undone_tuples: int = 0
    """Those of branches that were dropped."""


class ForkRunner:
    """At most one fork at a time, and its branch."""

    def __init__(
        self, queries: NodeQueries, output: Stream, bucket_us: int, label: str, standing: Bucket = lambda: None
    ) -> None:
        self._queries, self._output, self._size = queries, output, bucket_us
        self._log = ReplicaLog(log, label, standing)
        # Of each two or more: what hangs in Spark must not keep the next one from its start.
        self._starter = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"fork-{label}")
        self._stopper = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"unfork-{label}")
        self._id = 0
        self._asked_us = 0
        self._starting: Future[Fork] | None = None
        self._ending: list[Future[None]] = []
        self._running: Fork | None = None
        self._ready = False
        self._plan: PlanWriter | None = None
        self._batch = -1
        self._failed_us: int | None = None
        self._health_us = 0
        self.counts = ForkCounts()
        self._branch = BranchReader(output.folder, output.definition)

    @property
    def state(self) -> str:
        """For people."""
        if self._plan is not None:
            return "running"
        return "ready" if self._ready else "preparing" if self._starting or self._running else "none"

    def kept_us(self, now_us: int) -> int:
        """For how long forks were there, the one that is there now included."""
        here = self._starting is not None or self._running is not None
        return self.counts.kept_us + (now_us - self._asked_us if here else 0)

    def clear(self) -> None:
        """Nothing of an earlier life is left: neither forks nor a branch that nobody would correct."""
        self._queries.clear_forks()
        self._output.drop_branch()  # Not counted: it was another life's.

    def prepare(self, fork: int) -> None:
        self._id, self._ready, self._failed_us = fork, False, None
        self._asked_us = monotonic_us()
        self.counts.started += 1
        self._starting = self._starter.submit(self._queries.start_fork, fork)

    def extend(self, order: ExtendFork, planned: Sequence[tuple[int, tuple[PlannedPiece, ...]]]) -> None:
        """Let the fork have the buckets. One that cannot be fed, since the disk is full, has failed like any other:
        main goes on without it."""
        fork = self._running
        if fork is None or order.fork != self._id:
            return
        try:
            self._feed(fork, order, planned)
        except (OSError, StorageError) as error:
            self._failed(monotonic_us(), error)

    def _feed(self, fork: Fork, order: ExtendFork, planned: Sequence[tuple[int, tuple[PlannedPiece, ...]]]) -> None:
        """Rule 2."""
        if self._plan is None:
            first = next(b.bucket for b in order.buckets if b.emit) * self._size
            # Where main's results end that come of the input before: a join's lie behind its input.
            root_us = closed_until(self._queries.promised_us(first), self._output.definition.bucket_us)
            self._drop_branch()
            self._output.create_branch(root_us, id=fork.branch, pending=fork.waiting.since(root_us))
            self._plan = PlanWriter(fork.plan)
        note_worth(self._output.folder, [self._worth(bucket) for bucket in order.buckets if bucket.emit])
        self._plan.append(planned)

    def _worth(self, given: TentativeBucket) -> Worth:
        inputs = tuple(part.stream for part in given.parts if part.lane is not None)
        return Worth(given.bucket * self._size // self._output.definition.bucket_us, round(given.worth, 4), inputs)

    def stop(self, order: StopFork) -> None:
        if order.fork == self._id:
            self._end()
        if order.drop_branch:
            self._drop_branch()

    def _drop_branch(self) -> None:
        self._count_branch()
        self._branch.close()
        self._output.drop_branch()
        self.counts.undone_tuples += self.counts.standing_tuples
        self.counts.standing_tuples = 0

    def _count_branch(self) -> None:
        """After each batch of the fork; its reader has been there since the first, so it costs next to nothing."""
        try:
            found = self._branch.refresh()
            if found is not None and self._branch.log is not None:
                self.counts.standing_tuples = self._branch.log.rows
        except (HoldfastError, OSError) as error:
            self._log.debug("the tentative branch cannot be counted: %s", error)

    def _end(self) -> None:
        if self._plan is not None:
            self._plan.close()
        starting, running = self._starting, self._running
        self._starting = self._running = self._plan = None
        self._ready = False
        if starting is not None or running is not None:
            self.counts.kept_us += monotonic_us() - self._asked_us
            self._ending = [ending for ending in self._ending if not ending.done()]
            self._ending.append(self._stopper.submit(self._stop, self._id, starting, running))

    def _stop(self, fork: int, starting: Future[Fork] | None, running: Fork | None) -> None:
        begun = monotonic_us()
        try:
            if running is None and starting is not None:
                running = starting.result()
            if running is not None:
                self._queries.stop_fork(running)
        except Exception as error:
            self._log.warning("a fork could not be stopped: %s", error)
        else:
            self._log.info("fork %d stopped after %.1f s", fork, (monotonic_us() - begun) / SECOND_US)

    def poll(self, now_us: int) -> ForkSignal | None:
        """What has become true since the last look."""
        if self._failed_us is not None:
            if now_us < self._failed_us + _RETRY_US:
                return None
            self._failed_us = None
            return ForkFailed(self._id)
        if self._starting is not None and self._starting.done():
            starting, self._starting = self._starting, None
            if (error := starting.exception()) is not None:
                self._failed(now_us, error)
                return None
            self._running = starting.result()
            self._batch = self._running.batch_id
        if not self._ready and self._asked_us and now_us - self._asked_us > _READY_US_MAX:
            if self._starting is not None or self._running is not None:
                self._failed(now_us, TimeoutError(f"it was not ready after {_READY_US_MAX // SECOND_US} s"))
            return None
        if self._running is None:
            return None
        if now_us >= self._health_us:
            self._health_us = now_us + HEALTH_US
            if (error := _trouble(self._running)) is not None:
                self._failed(now_us, error)
                return None
        if not self._ready:
            self._ready = self._queries.ready(self._running)
            if not self._ready:
                return None
            self.counts.ready += 1
            took_us = monotonic_us() - self._asked_us  # Not `now_us`: it may have been asked in the same turn.
            self.counts.start_us += took_us
            self._log.info("fork %d ready after %.1f s", self._id, took_us / SECOND_US)
            return ForkPrepared(self._id, self._running.root_us // self._size)
        progress = self._queries.progress(self._batch, self._running)
        if progress is None or progress.until_us is None:
            return None
        self._batch = progress.batch_id
        if self._plan is None:
            return None
        self._count_branch()
        return ForkCompleted(self._id, progress.until_us // self._size)

    def _failed(self, now_us: int, error: BaseException) -> None:
        self._log.warning("fork %d failed: %s", self._id, error)
        self.counts.failed += 1
        self._end()
        self._failed_us = now_us

    def close(self) -> None:
        """What hangs in Spark is left there."""
        self._end()
        self._starter.shutdown(wait=False)
        self._stopper.shutdown(wait=False)
        if wait(self._ending, _CLOSE_S).not_done:
            self._log.warning("a fork is not stopped after %.0f s; it is left alone", _CLOSE_S)
        self._drop_branch()


def _trouble(fork: Fork) -> BaseException | None:
    """Why the query has ended, if it has."""
    if fork.query.active:
        return None
    return fork.query.failure() or RuntimeError("the query ended by itself")
