"""Runs the core of one replica against the real world.

Rules:
1. Everything about a core happens in the host's event loop, in order: facts go in one by one, and the effects of each
   are carried out before the next.
2. The world is looked at a hundred times a second: inputs, commits, forks. That bounds what detection adds to latency;
   a look that finds nothing costs some microseconds.
3. What takes the engine long happens elsewhere (`fork_runner`); the loop only asks whether it is done.
4. A stable query that dies is started again from its checkpoint, with growing pauses; meanwhile the replica answers
   nobody, so readers go to its peers. A batch that has died so often of the same cause in its rows will do so for ever:
   then the replica has failed, with the sentence and the batch.
5. A replica that cannot go on (its input is gone and its query is not convergent-capable, its disk is full or refuses,
   its query died of what no new start can mend) says why and stops; the other replicas of the host go on. It does not
   matter in whose turn that was found out. Its host may have it rebuilt from a twin (`holdfast.host.rebuild`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.clock import monotonic_us
from holdfast.engine import Failure, NodeQueries, Query, Recovery
from holdfast.host.fork_runner import CAUSE_DEATHS_MAX, HEALTH_US, ForkRunner
from holdfast.host.intake import Intake
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.reader_acks import ReaderAcks
from holdfast.host.replica_counts import ReplicaCounts
from holdfast.host.replica_status import (
    FIRST_BATCH,
    QUERY_STARTS,
    Wait,
    failed,
    full,
    no_fork,
    recovery,
    status_of,
    unheard_inputs,
    waiting,
)
from holdfast.model.errors import CorruptLog, HoldfastError, InputLost, StorageError, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US, instant_text
from holdfast.protocol.dpc.effects import Effects, ExtendFork, Send, SkipStable, Truncate
from holdfast.protocol.dpc.messages import Ack, KeepaliveReply, KeepaliveRequest, Message, StreamReport
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import NodePlan, Resume
from holdfast.protocol.dpc.signals import ForkPrepared, InputGap, Received, Replanned, Signal, StableCompleted, Tick
from holdfast.protocol.dpc.states import NodeState, StreamState
from holdfast.stream.acks import REPLICAS
from holdfast.stream.decision import Decision
from holdfast.stream.disk import Disk
from holdfast.stream.holes import note_hole
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.reader import LogReader
from holdfast.stream.report import ReportWriter
from holdfast.stream.retention import retention_text
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlannedPiece
from holdfast.stream.waiting import Waiting

log = logging.getLogger(__name__)

_RESTART_US_MIN, _RESTART_US_MAX = SECOND_US, 30 * SECOND_US
#: A batch that takes longer is spoken of: a hundred times what one takes.
_LONG_US = 60 * SECOND_US
#: Input that is no longer needed is let go of in steps of this many buckets.
_RETAIN_BUCKETS = 64

Say = Callable[[str, Send], None]


class _Anew(NamedTuple):
    """A beginning behind a gap, and the query before it."""

    start_us: int
    right_from_us: int
    running: Query | None
    starting: Future[Query] | None


class Controller:
    """One replica of one node on this host."""

    def __init__(
        self, plan: NodePlan, queries: NodeQueries, intakes: Mapping[str, Intake], output: Stream, home: Path, say: Say
    ) -> None:
        self.plan, self.output, self._home, self._say = plan, output, home, say
        self._queries, self._intakes = queries, dict(intakes)
        self._size = plan.bucket_us
        self._operators = [operator._asdict() for operator in queries.operators()]
        self._decision = Decision(queries.decision)
        self._main = LogReader(output.folder / "main", output.definition.schema, output.definition.bucket_us)
        self._report = ReportWriter(output.folder)
        self._log = ReplicaLog(log, plan.replica, self._standing)
        self._forking = ForkRunner(queries, output, plan.bucket_us, plan.replica, self._standing,
                                   kept_us=plan.tentative_us)  # fmt: skip
        self._starter = ThreadPoolExecutor(1, thread_name_prefix=f"stable-{plan.replica}")
        self._starting: Future[Query] | None = None
        self._stable: Query | None = None
        #: Until it is durable, the query must not be started: it would go on where the gap is.
        self._anew: _Anew | None = None
        self._died_of: str | None = None
        #: How often the query has stopped since it last committed a batch.
        self._deaths = 0
        #: And of what, where the batch that it dies in is the cause.
        self._causes: Counter[str] = Counter()
        self._batch = -1
        #: The batch that Spark has planned and not committed, and since when we see it so; the last that was spoken of.
        self._busy: tuple[int, int] | None = None
        self._told_busy: tuple[int, int] | None = None
        self._health_us = self._restart_us = 0
        self._pause_us = _RESTART_US_MIN
        self._retained = 0
        #: The first bucket that a copy of the query, on its way elsewhere, may have to read here after all; by whose.
        self._kept_from: dict[str, int] = {}
        #: Input from here on may be needed to restore the state of Holdfast's own operators; who is finding out.
        self._relied_us = BEGINNING_US if queries.keeps_state else END_OF_TIME_US
        self._relying: Future[tuple[int, Recovery | None]] | None = None
        self._recovery: Recovery | None = None
        self.core: NodeCore | None = None
        self._effects: Effects | None = None
        self.stopped = self._leaving = False
        self._acks = ReaderAcks(output) if plan.output.readers else None
        self.counts = ReplicaCounts(plan.delay_us, monotonic_us())
        #: Why this replica cannot go on without somebody's help.
        self.trouble: str | None = None
        #: Whether that may pass, as far as the replica can tell: a disk is full, and then it is not.
        self.may_return = False
        #: Whether it is because its inputs no longer reach back: then a twin may help, and no new start (D18).
        self.lacks_input = False

    # -- life --------------------------------------------------------------------------------------------------------

    def pulse(self) -> None:
        """Look at the world once; called by the host's loop."""
        if self.trouble is None:
            self._alone(self._pulse)

    def _alone(self, work: Callable[[], None]) -> None:
        """Rule 5."""
        try:
            work()
        except (HoldfastError, OSError) as error:
            self._log.error("cannot go on: %s", error)
            self.trouble = str(error)
            self.counts.enter("FAILED", monotonic_us())
            self.lacks_input = isinstance(error, InputLost)
            passing = isinstance(error, StorageError | OSError) and not isinstance(error, CorruptLog)
            self.may_return = passing or (self.lacks_input and bool(self.plan.peers))
            threading.Thread(target=self._stop_aside, name=f"stop-{self.plan.replica}", daemon=True).start()

    def _stop_aside(self) -> None:
        try:
            self.stop_queries()
        except Exception as error:
            self._log.error("could not be stopped: %s", error)

    def _pulse(self) -> None:
        now = monotonic_us()
        if self.core is None and not self._begin(now):
            return
        self._watch_stable(now)
        for intake in self._intakes.values():
            for signal in intake.poll():
                self.tell(signal)
        if (fork := self._forking.poll(now)) is not None:
            if isinstance(fork, ForkPrepared):
                fork = ForkPrepared(fork.fork, max(fork.root, self._first))
            self.tell(fork)
        if self._effects is None or now >= self._effects.wake_us:
            self.tell(Tick())
        self._report.renew()

    def _begin(self, now: int) -> bool:
        """Start the stable query; once it runs, build the core from what is on disk. A query that has committed nothing
        could not be forked, and the time that Spark takes to start is not a failure of the inputs."""
        if self._stable is None:
            self._watch_start(now)
            return False
        if self._build(now):
            return True
        self._watch_health(now)
        return False

    def _build(self, now: int) -> bool:
        progress = self._queries.position()
        if progress.until_us is None:
            return False
        if progress.until_us <= BEGINNING_US and self._queries.planned(progress.batch_id + 1):
            return False  # An earlier life has begun to read: where it stands is known when that batch is done again.
        fresh = progress.until_us <= BEGINNING_US
        first = self._first_bucket() if fresh else progress.until_us // self._size
        if first is None:
            return False
        if not fresh:
            mends = self._queries.mends()
            for stream, intake in self._intakes.items():
                intake.began_under(mends.get(stream, 0))
        self._first, self._batch = first, progress.batch_id
        self._main.refresh()
        self._forking.clear()
        resume = Resume(first, max(self._main.boundary_us, 0), self._kept_us(first), self._last_fork())
        self.core = NodeCore(self.plan, resume, now)
        self.counts.enter(self.core.state.name, now)
        if fresh and (lost := self._lost()) is not None:
            self.tell(InputGap(*lost))
        return True

    def _first_bucket(self) -> int | None:
        """Where the inputs begin; None while one of them has not said so. A query that is not convergent begins where
        its inputs began, like its twins, or not at all (D18); a convergent one behind what is gone, which is told to
        the core as any other gap.

        One that is silent may have begun before all others. To begin without it would be to differ from a twin that
        heard it, and gains nothing: until it has been level with every input, the replica answers nobody (D12)."""
        lost = self._lost()
        if lost is not None and self.plan.window_us is None:
            raise InputLost(
                f"{self.plan.replica} must begin where its input {lost[0]} began, as its twins did, since its query is "
                f"not convergent-capable; but what lies before {instant_text(lost[1])} was removed there; let a twin "
                f"run, from which it is rebuilt, or, if none has ever run, say where the node begins: "
                f"begin={instant_text(lost[1])!r} or later, the same for all replicas"
            )
        firsts = [intake.first_us() for intake in self._intakes.values()]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return None
        first = min(known) // self._size
        return first if lost is None else min(first, -(-lost[1] // self._size) - 1)

    @property
    def _unheard(self) -> list[str]:
        """Inputs that have not said where they begin."""
        return [stream for stream, intake in self._intakes.items() if intake.first_us() is None]

    def _lost(self) -> tuple[str, int] | None:
        """The input of which most is gone, and up to where; None if all reach back to where they began."""
        stream, lost_us = max(((s, i.lost_until_us()) for s, i in self._intakes.items()), key=lambda lost: lost[1])
        return (stream, lost_us) if lost_us > BEGINNING_US else None

    def _kept_us(self, first: int) -> int:
        """What readers have acknowledged, as noted durably; the log may hold much more (`retain="all"`)."""
        kept_us = self._main.stime_min_us
        acked = self.output.acks().get(REPLICAS)
        acked_us = BEGINNING_US if acked is None else acked.until_us
        return max(first * self._size if kept_us is None else kept_us, acked_us)

    def _last_fork(self) -> int:
        try:
            return int((self._home / "fork").read_text())
        except (FileNotFoundError, ValueError):
            return 0  # No fork of an earlier process is left: a number that got lost costs nothing.

    def stop_queries(self) -> None:
        """Stop both queries; what they have committed is the next start's beginning. Takes Spark a moment."""
        self.stopped = True
        try:  # First, whatever becomes of the fork: a query that ran on would write beside the next one.
            self._starter.shutdown()
            if self._starting is not None and self._starting.exception() is None:
                self._stable = self._starting.result()
            if self._stable is not None:
                self._stable.stop()
        finally:
            self._forking.close()

    def forget(self) -> None:
        """After `stop_queries`, of a node that others go on with: nothing of it stays elsewhere than in its folder."""
        self._queries.forget()

    def close(self) -> None:
        """Let go of files and connections."""
        for intake in self._intakes.values():
            intake.close()
        self._decision.close()
        self._main.close()

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def answers_messages(self) -> bool:
        return self.core is not None and not self.stopped and self.trouble is None

    @property
    def serves(self) -> bool:
        """Whether readers may be served (D12)."""
        return self.answers_messages and self.core is not None and self.core.answers and self._stable is not None

    @property
    def state(self) -> str:
        """A word of `holdfast status`."""
        return self.counts.state

    @property
    def at_rest(self) -> bool:
        """Whether a copy of the query can be made: the node is STABLE, and its query has committed something."""
        return self.serves and self.core is not None and self.core.state is NodeState.STABLE and self._batch >= 0

    @property
    def movable(self) -> bool:
        """Whether the node could run elsewhere as well as here, and there is more to come."""
        return self.at_rest and not self.ended

    @property
    def ended(self) -> bool:
        """All inputs have ended, and so has the output, as of the last batch."""
        return self._main.closed

    @property
    def stays_because(self) -> str | None:
        """Why the node can never run elsewhere; None if it can."""
        return self._queries.stays_because

    @property
    def begins(self) -> bool:
        """Whether the query is on its way to its first start: what Spark refuses, it refuses there."""
        return self.trouble is None and self._stable is None and not self._deaths and not self.stopped

    @property
    def query(self) -> Query | None:
        """The stable query, while it runs."""
        return self._stable

    @property
    def batches(self) -> int:
        """How many the stable query has committed since the node began."""
        return self._batch + 1

    @property
    def forking(self) -> ForkRunner:
        """The fork, if there is one, and the counts of all."""
        return self._forking

    @property
    def relied_us(self) -> int | None:
        """Input from here on would be read again to restore the state of operators, as of the last look; None if there
        is none, or nobody has looked."""
        return self._relied_us if BEGINNING_US < self._relied_us < END_OF_TIME_US else None

    @property
    def recovery(self) -> Recovery | None:
        """What its operator's checkpoints cost and are worth, as of the same look."""
        return self._recovery

    @property
    def boundary_us(self) -> int:
        """What the output promises, as of the last batch."""
        return self._main.boundary_us

    def keep(self, holder: str, bucket: int | None = None) -> None:
        """A copy of the query is about to be made, or needs input from `bucket` on: what it would read stays, until
        this holder's `release` or the end."""
        assert self.core is not None
        self._kept_from[holder] = self.core.needed_from if bucket is None else bucket

    def release(self, holder: str) -> None:
        """Nobody needs the holder's copy any more."""
        self._kept_from.pop(holder, None)

    @property
    def _needed_from(self) -> int:
        assert self.core is not None
        return min((self.core.needed_from, *self._kept_from.values()))

    def copy_to(self, checkpoint: Path) -> Waiting:
        """A copy of where the stable query stands; takes a moment, so not in the loop's thread."""
        return self._queries.copy_to(checkpoint)

    def report(self) -> StreamReport | None:
        """How the output does; None while the replica answers nobody (D12)."""
        return self._as_said(self.core.report()) if self.serves and self.core is not None else None

    def leave(self) -> None:
        """It is about to stop (`holdfast.host.drain`): from now on readers are told to go elsewhere, while they can
        still read here."""
        self._leaving = True

    def _as_said(self, report: StreamReport) -> StreamReport:
        return replace(report, state=StreamState.FAILURE, fresh=False) if self._leaving else report

    def deliver(self, sender: str, message: Message) -> None:
        """A message came for this replica."""
        asked = isinstance(message, KeepaliveRequest)
        if self.answers_messages and (self._stable is not None or not asked):
            self._alone(lambda: self.tell(Received(sender, message)))

    def replan(self, plan: NodePlan) -> None:
        """It has other neighbours now: producers, peers, readers. It runs on."""
        self.plan = plan
        if plan.output.readers and self._acks is None:
            self._acks = ReaderAcks(self.output)
        if self.core is not None and self.trouble is None:
            self._alone(lambda: self.tell(Replanned(plan)))

    def tell(self, signal: Signal) -> None:
        """Rule 1."""
        assert self.core is not None
        before, now = self.core.state, monotonic_us()
        self.counts.before(signal, self.core, now)
        effects = self.core.handle(signal, now)
        if effects.state != before:
            self._log.info("%s after %s", effects.state.name, type(signal).__name__)
        self.counts.after(effects, self.core, now)
        self._carry_out(effects)
        self._effects = effects

    def _watch_start(self, now: int) -> None:
        """Start the stable query if it is time to, and take note when it has started."""
        if self._starting is None:
            if now >= self._restart_us:
                anew = self._anew
                start = self._queries.start_stable if anew is None else partial(self._start_anew, anew)
                self._starting = self._starter.submit(start)
        elif self._starting.done():
            starting, self._starting = self._starting, None
            if (error := starting.exception()) is not None:
                self._died(now, error)
            else:
                self._stable, self._died_of = starting.result(), None

    def _watch_stable(self, now: int) -> None:
        if self._stable is None:
            self._watch_start(now)
            return
        self._take_relied()
        progress = self._queries.progress(self._batch)
        if progress is not None:
            self._batch, self._pause_us, self._deaths = progress.batch_id, _RESTART_US_MIN, 0
            self._causes.clear()
            self._main.refresh()
            if progress.until_us is not None:
                ended = progress.until_us >= FOREVER_US
                upto = END_OF_TIME_US // self._size if ended else max(progress.until_us // self._size, self._first)
                self.tell(StableCompleted(upto, self._main.boundary_us))
                self._retain()
        self._watch_health(now)

    def _watch_health(self, now: int) -> None:
        """Rule 4, also of a query that has never committed anything."""
        assert self._stable is not None
        if now >= self._health_us:
            self._health_us = now + HEALTH_US
            if not self._stable.active:
                self._died(now, self._stable.failure())
            else:
                self._watch_batch(now)

    def _watch_batch(self, now: int) -> None:
        """Spark does not say that a batch hangs: a function that waits for a server, a worker that was stopped."""
        if not self._queries.planned(self._batch + 1):
            self._busy = None
        elif self._busy is None or self._busy[0] != self._batch + 1:
            self._busy = (self._batch + 1, now)
        elif self._told_busy != self._busy and now - self._busy[1] >= _LONG_US:
            self._told_busy = self._busy
            self._log.warning("%s", self._long_batch(now))

    def _long_batch(self, now: int) -> str | None:
        if self._busy is None or now - self._busy[1] < _LONG_US:
            return None
        batch, since = self._busy
        return (
            f"batch {batch} is not done after {(now - since) // SECOND_US} s; it has much to read, or its function "
            "waits for something"
        )

    def _died(self, now: int, error: BaseException | None) -> None:
        failure = self._queries.explain(error)
        self._stable, self._died_of = None, failure.sentence
        self._deaths += 1
        self.counts.deaths += 1
        gaps = self._gaps(now)
        if failure.permanent and not gaps:
            raise UsageError(self._died_of)
        if failure.cause is not None:
            self._causes[failure.cause] += 1
            if self._causes[failure.cause] >= CAUSE_DEATHS_MAX and not gaps:
                raise UsageError(self._same_batch(failure))
        self._log.error("the stable query stopped (%s); starting it again in %d s, for the %d. time",
                        self._died_of, self._pause_us // SECOND_US, self._deaths)  # fmt: skip
        self._log.debug("in full: %s", error)
        self._restart_us = now + self._pause_us
        self._pause_us = min(2 * self._pause_us, _RESTART_US_MAX)
        for stream, removed_us in gaps.items():
            self.tell(InputGap(stream, removed_us))

    def _same_batch(self, failure: Failure) -> str:
        assert failure.cause is not None
        standing = self._standing()
        since = "" if standing is None else f", of the input from {instant_text(standing * self._size)} on"
        return (
            f"{failure.sentence}; the query has died of this {self._causes[failure.cause]} times in the same batch "
            f"({self._batch + 1}{since}) and would do so at every start: correct the function so that it takes such "
            f"rows and start again, with `holdfast upgrade {self.plan.replica.partition('@')[0]} --compatible` if the "
            f"state fits"
        )

    def _gaps(self, now: int) -> dict[str, int]:
        """Inputs that lack what the query was to read next, and up to where."""
        if self.core is None and not self._build(now):
            return {}
        assert self.core is not None
        removed = {stream: intake.removed_until_us() for stream, intake in self._intakes.items()}
        return {stream: us for stream, us in removed.items() if us > self.core.stable * self._size}

    def _retain(self) -> None:
        """Let go of input that nobody needs. What an operator's open windows rely on stands in the output's log, which
        takes a moment to look at: so that happens on the starter's thread."""
        assert self.core is not None
        needed = self._needed_from
        if needed - self._retained < _RETAIN_BUCKETS or self._relying is not None:
            return
        self._retained = needed
        if self._queries.keeps_state:
            self._relying = self._starter.submit(self._look_back, self.core.stable * self._size, self._stable)
        else:
            self._let_go(needed * self._size)

    def _look_back(self, until_us: int, stable: Query | None) -> tuple[int, Recovery | None]:
        """What the state at that position relies on, and what a recovery from there would take."""
        needed_us, reading = self._queries.needed_us(until_us), None
        if stable is not None:
            with contextlib.suppress(Exception):  # A query that is just being stopped has no progress.
                reading = stable.reading()
        return needed_us, None if reading is None else reading.recovery

    def _take_relied(self) -> None:
        if self._relying is None or not self._relying.done():
            return
        relying, self._relying = self._relying, None
        if (error := relying.exception()) is not None:
            self._log.warning("keeps its input for now: %s", error)
            return
        said = None if self._recovery is None else self._recovery.broken_goal
        self._relied_us, self._recovery = relying.result()
        if said is None and self._recovery is not None and self._recovery.broken_goal is not None:
            self._log.warning("%s", self._recovery.broken_goal)
        self._let_go(min(self._retained * self._size, self._relied_us))

    def _let_go(self, upto_us: int) -> None:
        for intake in self._intakes.values():
            intake.retain(upto_us)

    # -- effects -----------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects) -> None:
        if effects.stop_fork is not None:
            self._forking.stop(effects.stop_fork)
        if effects.skip_stable is not None:
            self._skip(effects.skip_stable)
        if effects.read_stable is not None:
            self._decision.decide(min(effects.read_stable.upto * self._size, FOREVER_US))
        if effects.prepare_fork is not None:
            # Whole or not at all: a host that was killed here must be able to start again.
            Disk().replace_file(self._home / "fork", str(effects.prepare_fork.fork).encode())
            self._forking.prepare(effects.prepare_fork.fork)
        if effects.extend_fork is not None:
            self._forking.extend(effects.extend_fork, self._planned(effects.extend_fork))
        for gone in effects.unsubscribe:
            self._intakes[gone.stream].unsubscribe(gone.replica, gone.lane)
        for new in effects.subscribe:
            self._intakes[new.stream].subscribe(new.replica, new.lane, new.from_us)
        if effects.publish is not None:
            self._report.publish(effects.publish)
        if effects.truncate is not None:
            self._truncate(effects.truncate)
        for send in effects.send:
            self._say(self.plan.replica, Send(send.to, self._held_back(send.message)))

    def _held_back(self, message: Message) -> Message:
        """A fork may be on an older checkpoint than the stable query, and an operator's state may have to be made again
        from earlier input; where there is no mirror, they read the origin."""
        if isinstance(message, KeepaliveReply):
            return KeepaliveReply(tuple(self._as_said(report) for report in message.reports))
        if not isinstance(message, Ack) or not self._intakes[message.stream].in_place:
            return message
        return Ack(message.stream, min(message.upto_us, self._needed_from * self._size, self._relied_us))

    def _skip(self, order: SkipStable) -> None:
        """The query begins anew behind the gap; what it cannot say is a hole of its output (§4.9.4)."""
        start_us, right_from_us = order.to * self._size, order.stable_from * self._size
        self._log.warning("input before %s is gone; going on there, results follow from %s",
                          instant_text(start_us), instant_text(right_from_us))  # fmt: skip
        self._anew = _Anew(start_us, right_from_us, self._stable, self._starting)
        self._stable, self._batch, self._first = None, -1, order.to
        self._decision.decide(start_us)
        self._starting = self._starter.submit(self._start_anew, self._anew)

    def _start_anew(self, anew: _Anew) -> Query:
        """In the starter's thread. What fails is tried again (`_watch_start`) for as long as it takes."""
        query = anew.running
        if query is None and anew.starting is not None and anew.starting.exception() is None:
            query = anew.starting.result()
        if query is not None:
            query.stop()
        # Not before: until it has stopped, the query may still file results of complete buckets before the gap.
        written_us = boundary_of(self.output)
        if written_us < anew.right_from_us:
            note_hole(self.output.folder, written_us, anew.right_from_us, Disk())
        self._queries.begin_anew(anew.start_us, anew.right_from_us)
        if self._anew is anew:
            self._anew = None
        return self._queries.start_stable()

    def _planned(self, order: ExtendFork) -> list[tuple[int, tuple[PlannedPiece, ...]]]:
        """The exact events of each bucket, inputs in the order of the plan as in any merge."""
        planned = []
        for item in order.buckets:
            start, end = item.bucket * self._size, (item.bucket + 1) * self._size
            pieces: list[PlannedPiece] = []
            for part in item.parts:
                if part.lane is not None:
                    source = [spec.stream for spec in self.plan.inputs].index(part.stream)
                    pieces += self._intakes[part.stream].pieces(source, start, end, part)
            pieces.sort(key=lambda p: (p.fields.bucket * self._bucket_us(p.source), p.source, p.fields.first_tuple_id))
            planned.append((end, tuple(pieces)))
        return planned

    def _bucket_us(self, source: int) -> int:
        return self._intakes[self.plan.inputs[source].stream].stream.definition.bucket_us

    def _truncate(self, order: Truncate) -> None:
        by_acks = self.output.definition.retention.acknowledged
        if self._acks is not None and (by_acks or not order.lost_us):  # What is not dropped must not count as read.
            self._acks.note(order.upto_us)

    # -- for people --------------------------------------------------------------------------------------------------

    def _standing(self) -> int | None:
        """The first bucket that the stable query has not committed; None while that is not known."""
        return None if self.core is None else self.core.stable

    def status(self) -> dict[str, Any]:
        """What `holdfast status` shows."""
        node = self.plan.replica.partition("@")[0]
        if self.trouble is not None:
            return failed(self.plan.replica, node, self.trouble)
        wait = self._wait()
        if self.core is None:
            return waiting(self.plan.replica, node, wait or FIRST_BATCH)
        said = status_of(self.core, self._forking.state, wait, self._recovery)
        said["output"]["retention"] = retention_text(self.output.folder / "main", self.output.definition)
        said["operators"], said["batch"] = self._operators, self._batch
        if self._stable is not None and (saves := self._stable.saves()):
            said["saves"] = [saved._asdict() for saved in saves]
        return said

    def _wait(self) -> Wait | None:
        """What keeps this replica from serving, if anything does."""
        if self._stable is None:
            if self._died_of is not None:
                times = "" if self._deaths < 2 else f", {self._deaths} times so far"
                return Wait("spark", f"the stable query stopped ({self._died_of}); it is started again{times}")
            return QUERY_STARTS
        if (long := self._long_batch(monotonic_us())) is not None:
            return Wait("spark", long)
        if self.core is not None:
            # One that is full cannot catch up.
            return full(self.core) or recovery(self.core) or no_fork(self._forking.given_up)
        return unheard_inputs(unheard) if (unheard := self._unheard) else FIRST_BATCH


def boundary_of(stream: Stream) -> int:
    """What main promises now, seen from any thread."""
    reader = stream.reader()
    try:
        return reader.boundary_us
    finally:
        reader.close()
