"""One replica of one node: the door through which everything goes (003 §4.2, figure 4-4).

Rules:
1. The stable query reads complete buckets only, in order, and never goes back. Whatever else happens, that is all that
   reaches main; so stable output is right by construction.
2. The state says what the output is worth: STABLE, UP_FAILURE (an input has no stable producer, or is late),
   STABILIZATION (main is replacing what went out as tentative).
3. A replica that starts, for the first time or again, answers nobody until it is level with its inputs (§4.8, D12).
4. Decisions are made from everything known, at the end of `handle`; a signal only records a fact.
5. One `handle`, one `Effects`. No clock: `now_us` never goes back.
"""

from __future__ import annotations

from collections import deque

from holdfast.model.errors import InputLost, UsageError
from holdfast.protocol.dpc.buffers import Buffer
from holdfast.protocol.dpc.effects import (
    Effects,
    ExtendFork,
    PrepareFork,
    ReadStable,
    Send,
    SkipStable,
    StopFork,
    Subscribe,
    TentativeBucket,
    Unsubscribe,
)
from holdfast.protocol.dpc.fork import NEVER_US, Fork
from holdfast.protocol.dpc.inputs import Inputs
from holdfast.protocol.dpc.messages import (
    Ack,
    AuthorisationDone,
    AuthorisationReply,
    AuthorisationRequest,
    KeepaliveReply,
    KeepaliveRequest,
    StreamReport,
)
from holdfast.protocol.dpc.plan import FORK_LINGER_US, NodePlan, Policy, Resume
from holdfast.protocol.dpc.signals import (
    Disconnected,
    ForkFailed,
    ForkPrepared,
    ForkSignal,
    InputAdvanced,
    InputGap,
    Received,
    Replanned,
    Signal,
    StableCompleted,
    Tick,
)
from holdfast.protocol.dpc.stagger import Stagger
from holdfast.protocol.dpc.states import ForkState, NodeState, StreamState, check_step, output_state

#: A batch of main that took long in quiet times is remembered for some dozens: the machine may be that slow again.
_MAIN_KEPT = 0.95


class NodeCore:
    """The protocol of one replica. Build it at every start with what the host found on disk."""

    def __init__(self, plan: NodePlan, resume: Resume, now_us: int) -> None:
        self.plan = plan
        self.state = NodeState.RECOVERING
        self.stable = resume.next_bucket
        self._ordered = resume.next_bucket
        self.main_us = resume.boundary_us
        self.inputs = Inputs(plan, resume.next_bucket, now_us)
        self.fork = Fork(plan, resume.fork)
        self.stagger = Stagger(plan, now_us)
        self.buffer = Buffer(plan.output, resume.kept_us)
        self._blocking = frozenset(spec.stream for spec in plan.inputs if spec.blocking)
        self._out_state = StreamState.FAILURE
        self._published: tuple[StreamState, bool] | None = None
        self._keepalive_us = now_us
        self._branch_left = False
        #: Behind a gap the stable query begins anew: until its first commit there is nothing to fork from.
        self._begun = True
        #: When a fork was last needed, or might soon have been.
        self._wanted_us = now_us
        #: How long the frontier may stand still until a fork is prepared.
        self._wanted_after_us = self.fork.wanted_us(None)
        #: Whether a fork is kept ready in quiet times.
        self._kept_ready = False
        self._wake_us = now_us
        #: What main was given and has not committed: one past its last bucket, and when.
        self._orders: deque[tuple[int, int]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._send: list[Send] = []
        self._subscribe: list[Subscribe] = []
        self._unsubscribe: list[Unsubscribe] = []
        self._stop: StopFork | None = None
        self._skip: SkipStable | None = None
        self._review = False
        self._acks_changed = False

    # The door ---------------------------------------------------------------------------------------------------

    def handle(self, signal: Signal, now_us: int) -> Effects:
        """Take in one fact; everything that follows from it."""
        self._clear()
        if isinstance(signal, Received):
            if self._message(signal, now_us):
                return Effects(self.state, send=tuple(self._send), wake_us=self._wake_us)
        elif isinstance(signal, InputAdvanced):
            self._review = self.inputs.advance(signal, now_us)
            self._bound(now_us)
        elif isinstance(signal, Tick):
            pass
        elif isinstance(signal, StableCompleted):
            self._committed(signal, now_us)
        elif isinstance(signal, Disconnected):
            self.inputs.lost(signal.replica)
            self._review = True
        elif isinstance(signal, InputGap):
            self._gap(signal, now_us)
        elif isinstance(signal, Replanned):
            self._replan(signal.plan)
        else:
            self._fork_signal(signal, now_us)
        if now_us >= self._keepalive_us:
            self._send += self.inputs.ask(self.stable)
            self._keepalive_us = now_us + self.plan.keepalive_us
            self._review = True
        return self._decide(now_us)

    @property
    def answers(self) -> bool:
        """Whether others may be served: not before the first STABLE (D12)."""
        return self.state != NodeState.RECOVERING

    @property
    def needed_from(self) -> int:
        """The first bucket of the inputs that the host must still hold: for the stable query, or for a fork on an older
        checkpoint."""
        return self.stable if self.fork.state == ForkState.NONE else min(self.stable, self.fork.done)

    @property
    def blocked(self) -> bool:
        """Whether complete input waits because readers have not acknowledged the results of earlier input (§4.9.4)."""
        limit_us = self.buffer.limit_us()
        full = limit_us is not None and limit_us // self.plan.bucket_us <= self._ordered
        return full and self.inputs.sunion.frontier > self._ordered

    def report(self) -> StreamReport:
        """What the replica says of its output."""
        fresh = self.fork.state == ForkState.RUNNING
        return StreamReport(self.plan.output.stream, self._out_state, self.main_us, fresh)

    def snapshot(self) -> Resume:
        """Where a replica restarted now would go on."""
        return Resume(self.stable, self.main_us, self.buffer.kept_us, self.fork.last_id)

    # Facts ------------------------------------------------------------------------------------------------------

    def _message(self, signal: Received, now_us: int) -> bool:
        """Take in a message. True if nothing can follow from it but what was just sent."""
        sender, message = signal.sender, signal.message
        if isinstance(message, KeepaliveReply):
            self._review = self.inputs.monitor.answer(sender, message.reports, now_us)
            return not self._review
        if isinstance(message, Ack):
            self.buffer.ack(sender, message.upto_us)
            self._acks_changed = True
            return False
        if not self.answers:
            return True
        if isinstance(message, KeepaliveRequest):
            self._send.append(Send(sender, KeepaliveReply((self.report(),))))
            return True
        if sender not in self.plan.peers:
            return True
        if isinstance(message, AuthorisationRequest):
            forked = self.fork.state in (ForkState.READY, ForkState.RUNNING)
            available = self.state == NodeState.STABLE or (self.state == NodeState.UP_FAILURE and forked)
            self._send.append(self.stagger.requested(sender, message.asked_us, available, now_us))
        elif isinstance(message, AuthorisationReply):
            self.stagger.replied(sender, message.granted, message.asked_us)
        elif isinstance(message, AuthorisationDone):
            self.stagger.released(sender, message.asked_us)
        return False

    def _committed(self, signal: StableCompleted, now_us: int) -> None:
        took_us = 0
        while self._orders and self._orders[0][0] <= signal.upto:
            took_us = max(took_us, now_us - self._orders.popleft()[1])
        if took_us and self.state == NodeState.STABLE:
            self.fork.main_us = max(took_us, int(self.fork.main_us * _MAIN_KEPT))
        if signal.upto > self.stable:
            self.stable = signal.upto
            self.inputs.sunion.prune(signal.upto)
        self.main_us = max(self.main_us, signal.boundary_us)
        self._begun = self._acks_changed = True

    def _gap(self, signal: InputGap, now_us: int) -> None:
        window_us = self.plan.window_us
        if window_us is None:
            raise InputLost(
                f"input {signal.stream!r} of {self.plan.replica!r} must be complete, since the query is not "
                f"convergent-capable; got a gap before {signal.first_us} us; restore the stream or start the node anew"
            )
        self._skip_to(-(-signal.first_us // self.plan.bucket_us), window_us, now_us)

    def _bound(self, now_us: int) -> None:
        """Inputs that go on while another is away pile up. A convergent-capable query gives up the oldest, in large
        steps since each is a new beginning, and corrects what is left when the input is back (§4.9.4)."""
        kept, window_us, frontier = self.plan.kept, self.plan.window_us, self.inputs.sunion.frontier
        if kept is None or window_us is None or self.stable < frontier:
            return
        newest = self.inputs.sunion.newest
        if newest - frontier > kept + max(kept // 4, 1):
            self._skip_to(newest - kept, window_us, now_us)

    def _skip_to(self, to: int, window_us: int, now_us: int) -> None:
        size = self.plan.bucket_us
        if to <= self.stable:
            return
        self.inputs.sunion.skip(to, now_us)
        self.inputs.sunion.prune(to)
        self.stable = self._ordered = to
        self._orders.clear()
        if self.fork.state in (ForkState.PREPARING, ForkState.READY):  # What it has yet to read is gone.
            self._stop = StopFork(self.fork.id, drop_branch=not self._branch_left)
            self.fork.end()
        self._begun = False
        self._skip = SkipStable(to, to + -(-window_us // size))
        self._review = True

    def _replan(self, plan: NodePlan) -> None:
        if not plan.same_but_neighbours(self.plan):
            raise UsageError(
                f"a replica that runs can only be given other neighbours; the plan of {self.plan.replica!r} differs in "
                f"more than that; start its host again"
            )
        self.plan = plan
        self.inputs.replan(plan)
        self.buffer.replan(plan.output)
        self.stagger.replan(plan)
        self._review = self._acks_changed = True

    def _fork_signal(self, signal: ForkSignal, now_us: int) -> None:
        fork = self.fork
        if signal.fork != fork.id or fork.state == ForkState.NONE:
            return
        if isinstance(signal, ForkFailed):
            fork.end()
        elif isinstance(signal, ForkPrepared):
            if fork.state == ForkState.PREPARING:
                fork.prepared(signal.root, now_us)
        else:
            fork.completed(signal.upto, now_us)

    # Decisions --------------------------------------------------------------------------------------------------

    def _decide(self, now_us: int) -> Effects:
        before = self.state
        fork, sunion = self.fork, self.inputs.sunion
        if self._review:
            fresh_from_us = fork.next * self.plan.bucket_us if fork.state == ForkState.RUNNING else None
            self._unsubscribe, self._subscribe = self.inputs.review(fresh_from_us, now_us)
            fork.usual_us = self.plan.patience.usual_us(self.inputs.cadence_us)
            self._wanted_after_us = fork.wanted_us(self.inputs.cadence_us)
            suspends = self.plan.during_failure is Policy.SUSPEND
            self._kept_ready = not suspends and not sunion.ended and fork.kept_ready
        if fork.head is not None and fork.head <= self.stable:
            self._hand_over()
        failing = self.inputs.failing
        stalled = now_us - sunion.frontier_us > self._wanted_after_us and not sunion.ended
        if not failing and not stalled and self._calm(now_us):
            self._wake_us = self._keepalive_us
            return self._effects(now_us)
        buckets: tuple[TentativeBucket, ...] = ()
        due_us = NEVER_US
        if self.answers:
            live = self.inputs.live()
            buckets, due_us = fork.plan_next(self.stable, self._ordered, sunion, self.state, live, failing, now_us)
        late = bool(buckets) and not fork.overdue
        self._next_state(failing or late, now_us)
        prepare, extend = self._drive_fork(buckets, failing or stalled or late, due_us, now_us)
        publish = None
        if self._review or self.state != before or buckets or self._stop:
            publish = self._publish()
        self._wake_us = min(self._keepalive_us, due_us)
        return self._effects(now_us, prepare, extend, publish)

    def _calm(self, now_us: int) -> bool:
        """Whether nothing but reading on can follow: the usual case, decided without looking further."""
        settled = self.state == NodeState.STABLE and self._out_state == StreamState.STABLE and self._stop is None
        if not self._kept_ready:
            return settled and self.fork.state == ForkState.NONE
        fork, quiet = self.fork, self.fork.quiet(self.stable, self._ordered)
        kept = fork.state == ForkState.READY and not fork.stale(self.stable, kept=True)
        return settled and kept and not fork.steps(quiet, True, False, NEVER_US, now_us)

    def _effects(
        self,
        now_us: int,
        prepare: PrepareFork | None = None,
        extend: ExtendFork | None = None,
        publish: StreamReport | None = None,
    ) -> Effects:
        truncate = self.buffer.truncate(self.main_us) if self._acks_changed else None
        read = self._read_stable()
        if read is not None:
            self._orders.append((read.upto, now_us))
        return Effects(
            self.state,
            self._stop,
            self._skip,
            read,
            prepare,
            extend,
            tuple(self._unsubscribe),
            tuple(self._subscribe),
            publish,
            truncate,
            tuple(self._send),
            self._wake_us,
        )

    def _next_state(self, failing: bool, now_us: int) -> None:
        stable, frontier = self.stable, self.inputs.sunion.frontier
        outstanding = self.fork.outstanding(stable)
        if self.state == NodeState.RECOVERING:
            if not failing and frontier - stable <= self.plan.level and self.inputs.level():
                self._move(NodeState.STABLE)
            return
        # What is complete below the branch was main's all the time: no tentative bucket is complete yet.
        if not outstanding or (failing and frontier <= max(stable, self.fork.first)):
            self._send += self.stagger.done()
            self._move(NodeState.UP_FAILURE if failing else NodeState.STABLE)
            return
        self._send += self.stagger.ask(now_us)
        if self.state == NodeState.STABILIZATION or self.stagger.may(now_us):
            self._move(NodeState.STABILIZATION)

    def _move(self, after: NodeState) -> None:
        if after == self.state:
            return
        check_step(self.state, after)
        if (self.state, after) == (NodeState.STABILIZATION, NodeState.UP_FAILURE):
            self.fork.strike_again(self.stable)
        self.state = after

    def _drive_fork(
        self, buckets: tuple[TentativeBucket, ...], suspicious: bool, due_us: int, now_us: int
    ) -> tuple[PrepareFork | None, ExtendFork | None]:
        fork, plan = self.fork, self.plan
        relieved = self.state == NodeState.STABILIZATION and self.stagger.relieved(now_us)
        behind = fork.outstanding(self.stable) and self.inputs.sunion.frontier - self.stable > plan.near
        wanted = (suspicious or behind) and not relieved and self.state != NodeState.RECOVERING
        wanted = wanted and plan.during_failure is not Policy.SUSPEND
        if wanted:
            self._wanted_us = now_us
        kept = self._kept_ready and self.state in (NodeState.STABLE, NodeState.UP_FAILURE)
        if fork.state == ForkState.NONE:
            due = self._begun and (wanted or (kept and fork.rested(now_us)))
            return (PrepareFork(fork.prepare(self.stable, now_us)), None) if due else (None, None)
        idle = fork.state != ForkState.RUNNING and not kept and now_us - self._wanted_us > FORK_LINGER_US
        if relieved or idle or fork.stale(self.stable, kept, suspicious):
            self._branch_left = fork.state == ForkState.RUNNING
            self._stop = StopFork(fork.id, drop_branch=not self._branch_left)
            fork.end()
            return None, None
        if fork.state == ForkState.PREPARING:
            return None, None
        if buckets:
            fork.take(buckets, now_us)
            return None, ExtendFork(fork.id, buckets)
        quiet = fork.quiet(self.stable, self._ordered)
        if not fork.steps(quiet, kept, suspicious, due_us, now_us):
            return None, None
        step = fork.step(quiet, self.inputs.sunion, now_us)
        return None, ExtendFork(fork.id, step) if step else None

    def _hand_over(self) -> None:
        """Main is level with the branch: the branch goes, and the fork with it."""
        fork = self.fork
        if fork.state != ForkState.NONE:
            fork.end()
            self._branch_left = True
        if self._branch_left:
            self._stop = StopFork(fork.id, drop_branch=True)
            self._branch_left = False
        fork.settle()

    def _read_stable(self) -> ReadStable | None:
        upto = self.inputs.sunion.frontier
        if self.fork.outstanding(self.stable) and self.state != NodeState.STABILIZATION:
            upto = min(upto, self.fork.first)
        limit_us = self.buffer.limit_us()
        if limit_us is not None:
            upto = min(upto, limit_us // self.plan.bucket_us)
        if upto <= self._ordered:
            return None
        self._ordered = upto
        return ReadStable(upto)

    def _publish(self) -> StreamReport | None:
        """Appendix A; the report if it is news. The first one says that a replica which starts has nothing to give."""
        if self.answers:
            self._out_state = output_state(self.state, self._out_state, self.inputs.states(), self._blocking)
        report = self.report()
        if (report.state, report.fresh) == self._published:
            return None
        self._published = (report.state, report.fresh)
        return report
