"""The fork of one replica as the host sees it: a second query that is started, fed, watched and stopped.

Rules:
1. Starting and stopping take Spark a second or more; they happen on threads of their own. A fork does not wait for the
   end of its predecessor, which may hang in a batch: each has its own checkpoint, and its own branch to write to.
2. The branch is created with the first bucket that is to be seen, at that bucket: before it, main speaks. Until then
   the fork follows main, and nothing of what it computes is filed.
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
from holdfast.host.span_worth import SpanWorth
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.time import BEGINNING_US, SECOND_US, closed_until
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


class _Start:
    """A fork from the moment that it is asked for."""

    def __init__(self, fork: int, coming: Future[Fork]) -> None:
        self.id, self.coming, self.asked_us = fork, coming, monotonic_us()
        self.started: Fork | None = None
        self.ready = False


class ForkRunner:
    """At most one fork at work, and its branch."""

    def __init__(
        self, queries: NodeQueries, output: Stream, bucket_us: int, label: str, standing: Bucket = lambda: None,
        *, kept_us: int | None = None,
    ) -> None:  # fmt: skip
        self._queries, self._output, self._size = queries, output, bucket_us
        self._log, self._kept_us = ReplicaLog(log, label, standing), kept_us
        # Of each two or more: what hangs in Spark must not keep the next one from its start.
        self._starter = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"fork-{label}")
        self._stopper = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"unfork-{label}")
        self._fork: _Start | None = None
        self._ending: list[Future[None]] = []
        self._plan: PlanWriter | None = None
        #: Whether the fork at work has its branch, and up to where it has committed its input.
        self._branched = False
        self._done_us = BEGINNING_US
        self._spans = SpanWorth(None, bucket_us)
        self._batch = -1
        self._failed: tuple[int, int] | None = None
        self._health_us = 0
        self.counts = ForkCounts()
        self._branch = BranchReader(output.folder, output.definition)

    @property
    def state(self) -> str:
        """For people."""
        if self._branched:
            return "running"
        return "none" if self._fork is None else "ready" if self._fork.ready else "preparing"

    def kept_us(self, now_us: int) -> int:
        """For how long forks were there, those that are there now included."""
        return self.counts.kept_us + (0 if self._fork is None else now_us - self._fork.asked_us)

    def clear(self) -> None:
        """Nothing of an earlier life is left: neither forks nor a branch that nobody would correct."""
        self._queries.clear_forks()
        self._output.drop_branch()  # Not counted: it was another life's.

    def prepare(self, fork: int) -> None:
        self.counts.started += 1
        self._fork = _Start(fork, self._starter.submit(self._queries.start_fork, fork))

    def extend(self, order: ExtendFork, planned: Sequence[tuple[int, tuple[PlannedPiece, ...]]]) -> None:
        """Let the fork have the buckets. One that cannot be fed, since the disk is full, has failed like any other:
        main goes on without it."""
        current = self._fork
        if current is None or current.started is None or order.fork != current.id:
            return
        try:
            self._feed(current.started, order, planned)
        except (OSError, StorageError) as error:
            self._fail(monotonic_us(), error)

    def _feed(self, fork: Fork, order: ExtendFork, planned: Sequence[tuple[int, tuple[PlannedPiece, ...]]]) -> None:
        """Rule 2."""
        seen = [bucket for bucket in order.buckets if bucket.emit]
        if seen and not self._branched:
            # Where main's results end that come of the input before: a join's lie behind its input.
            promised_us = self._queries.promised_us(seen[0].bucket * self._size)
            self._drop_branch()
            root_us = closed_until(promised_us, self._output.definition.bucket_us)
            self._output.create_branch(root_us, id=fork.branch, kept_us=self._kept_us)
            self._branched = True
        if self._plan is None:
            self._plan = PlanWriter(fork.plan)
            self._spans = SpanWorth(self._queries.span_us, self._size)
        worths = [self._worth(bucket) for bucket in order.buckets]
        if seen:
            told = [worth for worth, bucket in zip(worths, order.buckets, strict=True) if bucket.emit]
            note_worth(self._output.folder, self._output.definition, told)
        self._plan.append(planned, self._done_us)

    def _worth(self, given: TentativeBucket) -> Worth:
        inputs = tuple(part.stream for part in given.parts if part.lane is not None)
        mean, least, missing = self._spans.of(given)
        bucket = given.bucket * self._size // self._output.definition.bucket_us
        return Worth(bucket, round(mean, 4), inputs, round(least, 4), missing)

    def stop(self, order: StopFork) -> None:
        if self._fork is not None and order.fork == self._fork.id:
            self._end()
        if self._failed is not None and order.fork == self._failed[1]:
            self._failed = None
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
                self.counts.standing_tuples = self._branch.log.rows + self._branch.cut_rows
        except (HoldfastError, OSError) as error:
            self._log.debug("the tentative branch cannot be counted: %s", error)

    def _end(self) -> None:
        if self._plan is not None:
            self._plan.close()
        ended, self._fork, self._plan = self._fork, None, None
        self._branched, self._done_us = False, BEGINNING_US
        if ended is not None:
            self._let_go(ended)

    def _let_go(self, ended: _Start) -> None:
        """Rule 1."""
        self.counts.kept_us += monotonic_us() - ended.asked_us
        if ended.coming.done() and ended.coming.exception() is not None:
            return
        self._ending = [ending for ending in self._ending if not ending.done()]
        self._ending.append(self._stopper.submit(self._stop, ended))

    def _stop(self, ended: _Start) -> None:
        begun = monotonic_us()
        try:
            self._queries.stop_fork(ended.coming.result())
        except Exception as error:
            self._log.warning("a fork could not be stopped: %s", error)
        else:
            self._log.info("fork %d stopped after %.1f s", ended.id, (monotonic_us() - begun) / SECOND_US)

    def poll(self, now_us: int) -> ForkSignal | None:
        """What has become true since the last look."""
        if self._failed is not None:
            failed_us, fork = self._failed
            if now_us < failed_us + _RETRY_US:
                return None
            self._failed = None
            return ForkFailed(fork)
        if self._fork is None:
            return None
        current = self._fork
        if current.started is not None and now_us >= self._health_us:
            self._health_us = now_us + HEALTH_US
            if (error := _trouble(current.started)) is not None:
                self._fail(now_us, error)
                return None
        if not current.ready:
            return self._poll_start(current, now_us)
        assert current.started is not None
        progress = self._queries.progress(self._batch, current.started)
        if progress is None or progress.until_us is None:
            return None
        self._batch, self._done_us = progress.batch_id, progress.until_us
        if self._branched:
            self._count_branch()
        return ForkCompleted(current.id, progress.until_us // self._size)

    def _poll_start(self, start: _Start, now_us: int) -> ForkSignal | None:
        """Whether it is ready; an error of it is the fork's."""
        try:
            return self._prepared(start, now_us)
        except Exception as error:
            self._fail(now_us, error)
            return None

    def _prepared(self, start: _Start, now_us: int) -> ForkPrepared | None:
        """Word that it could run a batch, once it could. Raises what it failed of."""
        if now_us - start.asked_us > _READY_US_MAX:
            raise TimeoutError(f"it was not ready after {_READY_US_MAX // SECOND_US} s")
        if start.started is None:
            if not start.coming.done():
                return None
            start.started = start.coming.result()
        if (error := _trouble(start.started)) is not None:
            raise error
        if not self._queries.ready(start.started):
            return None
        start.ready, self._batch = True, start.started.batch_id
        took_us = monotonic_us() - start.asked_us  # Not `now_us`: it may have been asked in the same turn.
        self.counts.ready += 1
        self.counts.start_us += took_us
        self._log.info("fork %d ready after %.1f s", start.id, took_us / SECOND_US)
        return ForkPrepared(start.id, start.started.root_us // self._size)

    def _fail(self, now_us: int, error: BaseException) -> None:
        assert self._fork is not None
        self._log.warning("fork %d failed: %s", self._fork.id, error)
        self.counts.failed += 1
        self._failed = now_us, self._fork.id
        self._end()

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
