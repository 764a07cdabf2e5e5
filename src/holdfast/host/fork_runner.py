"""The fork of one replica as the host sees it: a second query that is started, fed, watched and stopped.

Rules:
1. Starting and stopping take Spark a second or more; they happen on threads of their own. A fork does not wait for the
   end of its predecessor, which may hang in a batch: each has its own checkpoint, and its own branch to write to.
2. The branch is created with the first bucket that is to be seen, at that bucket: before it, main speaks. Until then
   the fork follows main, and nothing of what it computes is filed.
3. Whoever asks is told what is true: prepared when the fork could run a batch, completed when Spark has committed it.
4. The next fork after one that failed is started with growing pauses, until one commits. Where forks have died so often
   of the same cause in their rows, none is started before main has gone on: it may be spared those rows, since they may
   be tentative themselves, or it fails of them. Meanwhile the fork that was asked for is being prepared.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from holdfast.clock import monotonic_us
from holdfast.engine import Coverage, Failure, Fork, NodeQueries
from holdfast.host.log_lines import Bucket, ReplicaLog
from holdfast.host.span_worth import SpanWorth
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.time import BEGINNING_US, SECOND_US, closed_until
from holdfast.protocol.dpc.effects import ExtendFork, StopFork
from holdfast.protocol.dpc.signals import ForkCompleted, ForkFailed, ForkPrepared, ForkSignal
from holdfast.stream.branch import BranchReader
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlannedPiece, PlanWriter
from holdfast.stream.worth import note_worth

log = logging.getLogger(__name__)

#: A fork that could not start is tried again after this long; at once would keep Spark busy with failing.
_RETRY_US = 2_000_000
#: The longest pause before a start, beside that (rule 4).
_PAUSE_US_MAX = 30 * SECOND_US
#: How often the same batch may die of the same cause in its rows, with growing pauses in between: a quarter of a minute
#: for whoever misjudges as his rows' what was his server's.
CAUSE_DEATHS_MAX = 5

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
        #: The fork that is to be prepared and is not started yet, and when it may be (rule 4).
        self._waiting: int | None = None
        self._pause_us = self._due_us = 0
        #: Of what forks have died since the stable query stood there, and the sentence if it was too often.
        self._stood: int | None = None
        self._causes: Counter[str] = Counter()
        self._given_up: str | None = None
        self._standing = standing
        self._ending: list[Future[None]] = []
        self._plan: PlanWriter | None = None
        #: Whether the fork at work has its branch, and up to where it has committed its input.
        self._branched = False
        self._done_us = BEGINNING_US
        self._spans = SpanWorth(Coverage(), bucket_us, bucket_us)
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
        if self._fork is None:
            return "none" if self._waiting is None else "preparing"
        return "ready" if self._fork.ready else "preparing"

    @property
    def given_up(self) -> str | None:
        """Why no fork is started until the stable query has gone on; None if one would be (rule 4)."""
        return self._given_up if self._standing() == self._stood else None

    def kept_us(self, now_us: int) -> int:
        """For how long forks were there, those that are there now included."""
        return self.counts.kept_us + (0 if self._fork is None else now_us - self._fork.asked_us)

    def clear(self) -> None:
        """Nothing of an earlier life is left: neither forks nor a branch that nobody would correct."""
        self._queries.clear_forks()
        self._output.drop_branch()  # Not counted: it was another life's.

    def prepare(self, fork: int) -> None:
        if self._held_back(monotonic_us()):
            self._waiting = fork
        else:
            self._begin(fork)

    def _held_back(self, now_us: int) -> bool:
        """Rule 4."""
        return self.given_up is not None or now_us < self._due_us

    def _begin(self, fork: int) -> None:
        self._waiting = None
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
        size = self._output.definition.bucket_us
        if self._plan is None:
            self._plan = PlanWriter(fork.plan)
            self._spans = SpanWorth(self._queries.coverage, self._size, size)
        seen = [bucket for bucket in order.buckets if bucket.emit]
        if seen and not self._branched:
            # Where main's results end that come of the input before: a join's lie behind its input.
            promised_us = self._queries.promised_us(seen[0].bucket * self._size)
            self._drop_branch()
            root_us = closed_until(promised_us, size)
            self._output.create_branch(root_us, id=fork.branch, kept_us=self._kept_us)
            self._spans.begin(root_us // size)
            self._branched = True
        if told := [worth for bucket in order.buckets for worth in self._spans.take(bucket)]:
            note_worth(self._output.folder, self._output.definition, told)
        self._plan.append(planned, self._done_us)

    def stop(self, order: StopFork) -> None:
        if self._fork is not None and order.fork == self._fork.id:
            self._end()
        if self._failed is not None and order.fork == self._failed[1]:
            self._failed = None
        if order.fork == self._waiting:
            self._waiting = None
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
        if self._waiting is not None and not self._held_back(now_us):
            self._begin(self._waiting)
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
        self._pause_us = 0
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
        failure = self._queries.explain(error)
        self._log.warning("fork %d failed: %s", self._fork.id, failure.sentence)
        self._log.debug("in full: %s", error)
        self.counts.failed += 1
        self._failed = now_us, self._fork.id
        self._due_us = now_us + _RETRY_US + self._pause_us if self._pause_us else 0
        self._pause_us = min(2 * self._pause_us or _RETRY_US, _PAUSE_US_MAX)
        self._note(failure)
        self._end()

    def _note(self, failure: Failure) -> None:
        """Rule 4."""
        if self._standing() != self._stood:
            self._stood, self._given_up = self._standing(), None
            self._causes.clear()
        cause = failure.sentence if failure.permanent else failure.cause
        if cause is None:
            return
        self._causes[cause] += 1
        if self._causes[cause] >= CAUSE_DEATHS_MAX:
            self._given_up = (
                f"{self._causes[cause]} forks have died of this: {failure.sentence}; none is started, and nothing new "
                f"is tentative, until the stable query has gone on; correct the function, or bring the inputs back"
            )
            self._log.error("%s", self._given_up)

    def close(self) -> None:
        """What hangs in Spark is left there."""
        self._end()
        self._waiting = None
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
