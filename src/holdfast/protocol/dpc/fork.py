"""The second query: when it is prepared, which buckets it gets and when, and when it ends (003 §4.6.2, §5.4).

Rules:
1. Prepared at the first suspicion, and early enough to be ready in time; where that would be in every pause of an
   input, one is kept ready all the time, and replaced by a successor as often as its share of time allows. Released
   when the first waiting bucket has waited the whole delay (§5.4.3), and longer than inputs that move seldom let it
   wait in quiet times (D16). A failure that heals before that leaves no trace, except that the fork is kept for a
   while: suspicions come in swarms.
2. Later buckets follow the policy: at once, as late as allowed, or not at all. None waits longer than the delay. As
   late as allowed is so much sooner as the fork takes to bring their results: measured, from giving it a bucket to its
   word that the bucket is written.
3. Buckets are given in order and never twice; one of which nothing arrived on any input is left out, and so is one
   that a missing blocking input makes void.
4. A bucket that main is about to deliver anyway, or will once it is complete, waits for main as long as the delay
   allows: so the branch ends.
5. A successor takes the place of a fork that is ready and idle, once it is ready itself. If that one is needed or lost
   before, the successor is forgotten, here and by the host.
6. Inputs that keep their promises are waited for until they have closed the bucket: given before, it would go without
   the rest of their tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from holdfast.protocol.dpc.effects import TentativeBucket
from holdfast.protocol.dpc.plan import (
    FORK_LAG_MAX,
    HANDOVER_BUCKETS,
    SETTLE_US,
    WARM_DELAY_US,
    WARM_LAG_US,
    NodePlan,
    Policy,
)
from holdfast.protocol.dpc.states import ForkState, NodeState, check_step
from holdfast.protocol.dpc.sunion import SUnion

#: What the start of a query takes on a machine that is not overloaded.
START_US = 1_000_000
#: The share of time for starting forks while inputs are suspected, again and again: the machine may be what is slow.
SUSPICIOUS = 0.25
#: Later than any deadline.
NEVER_US = 2**62
#: A batch that took long is remembered for some batches: the next may take as long.
_TAKES_KEPT = 0.8


class Fork:
    """The life of at most one fork, and the branch it leaves."""

    __slots__ = (
        "_asked_us",
        "_blocking",
        "_given",
        "_plan",
        "_start_us",
        "_takes_us",
        "done",
        "head",
        "id",
        "last_id",
        "next",
        "overdue",
        "root",
        "state",
        "successor",
        "usual_us",
    )  # fmt: skip

    def __init__(self, plan: NodePlan, first_id: int) -> None:
        self._plan = plan
        self._blocking = frozenset(spec.stream for spec in plan.inputs if spec.blocking)
        self.state = ForkState.NONE
        self.id = self.last_id = first_id
        #: The id of the one that is prepared to take the place of this one.
        self.successor: int | None = None
        self.root = 0
        #: Next bucket to give to the running fork.
        self.next = 0
        #: The running fork has written its branch up to here.
        self.done = 0
        #: One past the last tentative bucket given out since main was last level; None if main is level.
        self.head: int | None = None
        #: Whether the first delay of this failure has run out.
        self.overdue = False
        #: How long the frontier stands still in quiet times.
        self.usual_us = 0
        self._asked_us: int | None = None
        #: What it takes to start one: as measured, and until then half of the delay, but not less than is usual.
        self._start_us = max(START_US, plan.delay_us // 2)
        #: What was given and not written yet: one past its last bucket, and when.
        self._given: deque[tuple[int, int]] = deque()
        #: How long a bucket takes lately, from being given to being written.
        self._takes_us = 0

    def wanted_us(self, cadence_us: int | None) -> int:
        """How long the frontier may stand still until a fork is prepared. Whoever waits for a doubt may be late;
        whoever starts one in every pause of a slow input is never done."""
        patience = self._plan.patience
        in_time_us = self._plan.delay_us - self._start_us
        return max(patience.usual_us(cadence_us), min(patience.doubt_us(cadence_us), in_time_us))

    def kept_ready(self, cadence_us: int | None) -> bool:
        """Whether one must be ready at any time: started at a suspicion, it would not be there within the delay."""
        plan = self._plan
        late = plan.delay_us - self._start_us < plan.patience.usual_us(cadence_us)
        return late and plan.warm > 0 and plan.delay_us <= WARM_DELAY_US

    def rested(self, now_us: int, share: float | None = None) -> bool:
        """Whether one may be started again, as its share of time goes: that of quiet times, if none is given."""
        share = self._plan.warm if share is None else share
        return self._asked_us is None or (now_us - self._asked_us) * share >= self._start_us

    def stale(self, stable: int, kept: bool) -> bool:
        """Whether it lies too far behind main to be worth keeping."""
        if self.state != ForkState.READY:
            return False
        lag = stable - self.root
        return lag > max(FORK_LAG_MAX, WARM_LAG_US // self._plan.bucket_us if kept else 0)

    def renewable(self, stable: int, suspicious: bool, now_us: int) -> bool:
        """Whether a successor is worth its start. If the fork may soon be needed, any that has less to catch up on is:
        whichever is ready when the delay runs out is taken."""
        if self.state != ForkState.READY or self.successor is not None:
            return False
        if suspicious:
            return stable - self.root > HANDOVER_BUCKETS and self.rested(now_us, SUSPICIOUS)
        return stable - self.root > FORK_LAG_MAX and self.rested(now_us)

    def renew(self, now_us: int) -> int:
        """A successor is to be prepared from the last commit; its id."""
        self.last_id = self.successor = self.last_id + 1
        self._asked_us = now_us
        return self.last_id

    def move(self, after: ForkState) -> None:
        """Take one step of the fork's table."""
        check_step(self.state, after)
        self.state = after

    def prepare(self, stable: int, now_us: int) -> int:
        """A new fork is to be prepared from a commit at or after `stable`; its id."""
        self.move(ForkState.PREPARING)
        self.id = self.last_id = self.last_id + 1
        self._asked_us = now_us
        self.root = self.next = self.done = stable
        return self.id

    def prepared(self, fork: int, root: int, now_us: int) -> None:
        """The host has started it, or its successor, at `root`."""
        if fork != self.successor:
            self.move(ForkState.READY)
        self.id, self.successor = fork, None
        assert self._asked_us is not None
        self._start_us = now_us - self._asked_us
        self.root = self.next = self.done = root

    def settle(self) -> None:
        """Main is level with the branch: the failure is over as far as the output goes. Another may follow at once; a
        fork that is kept ready for it need not wait for its share of time."""
        self.head = None
        self._asked_us = None
        self.overdue = False

    def strike_again(self, stable: int) -> None:
        """Another failure, or the suspicion of one. If main is as good as level, it has a delay of its own to heal in
        (D6); otherwise readers hold tentative tuples that stay, and would gain nothing by waiting."""
        if self.head is not None and self.head - stable <= HANDOVER_BUCKETS:
            self.overdue = False

    def outstanding(self, stable: int) -> bool:
        """Whether tentative output at or after bucket `stable` went out and is not replaced by main yet."""
        return self.head is not None and self.head > stable

    def due_us(
        self, bucket: int, stable: int, sunion: SUnion, node: NodeState, live: Collection[str], failing: bool
    ) -> int:
        """When the bucket must be given to the fork."""
        since = sunion.waiting_since(bucket)
        if since is None:
            return NEVER_US
        latest = since + self._plan.delay_us
        if not self.overdue:
            if not failing:
                latest = max(latest, sunion.frontier_us + self.usual_us)
            return latest if bucket >= sunion.frontier else NEVER_US
        stabilising = node == NodeState.STABILIZATION
        policy = self._plan.during_stabilisation if stabilising else self._plan.during_failure
        if policy is Policy.SUSPEND:
            return NEVER_US
        complete = bucket < sunion.frontier or not failing
        coming = complete and bucket - stable < self._plan.near
        if coming:
            return latest
        if policy is Policy.DELAY:
            return latest - min(self._takes_us, self._plan.delay_us)
        if sunion.settled(bucket, live):
            return since
        if not sunion.closed(bucket, live):
            return latest
        return min(latest, since + self._plan.bucket_us + SETTLE_US)

    def plan_next(
        self,
        stable: int,
        ordered: int,
        sunion: SUnion,
        node: NodeState,
        live: Collection[str],
        failing: bool,
        now_us: int,
    ) -> tuple[tuple[TentativeBucket, ...], int]:
        """The buckets that are due now, and when to look again. Nothing is decided yet: see `take`. As long as the fork
        is not ready, one bucket is enough to know that it is late."""
        buckets: list[TentativeBucket] = []
        #: What main is sure to publish shortly only brings the fork's state up to date.
        quiet = stable if self.overdue else max(stable, ordered)
        ready = self.state in (ForkState.READY, ForkState.RUNNING)
        bucket = self.next if ready else quiet
        due = NEVER_US
        while bucket < sunion.top:
            if bucket >= quiet:
                bucket = sunion.next_waiting(bucket)
                if bucket >= sunion.top:
                    continue
                due = self.due_us(bucket, stable, sunion, node, live, failing)
                if now_us < due < NEVER_US:
                    break
            if bucket < quiet or due < NEVER_US:
                parts, worth = sunion.parts(bucket)
                present = any(part.lane is not None for part in parts)
                void = any(part.lane is None and part.stream in self._blocking for part in parts)
                if present and not void:
                    buckets.append(TentativeBucket(bucket, parts, bucket >= quiet, worth))
                    if not ready:
                        return tuple(buckets), NEVER_US
            bucket += 1
        else:
            due = NEVER_US
        if not buckets or not buckets[-1].emit:
            return (), due
        return tuple(buckets), due

    def completed(self, upto: int, now_us: int) -> None:
        """The fork has written all of its branch below `upto`."""
        self.done = max(self.done, upto)
        took_us = 0
        while self._given and self._given[0][0] <= upto:
            took_us = max(took_us, now_us - self._given.popleft()[1])
        if took_us:
            self._takes_us = max(took_us, int(self._takes_us * _TAKES_KEPT))

    def take(self, buckets: tuple[TentativeBucket, ...], now_us: int) -> None:
        """These buckets are given to the fork."""
        if self.state == ForkState.READY:
            self.move(ForkState.RUNNING)
            self.successor = None
        if self.overdue:  # The first ones come with all that the fork has to catch up on.
            self._given.append((buckets[-1].bucket + 1, now_us))
        self.overdue = True
        self.next = buckets[-1].bucket + 1
        self.head = self.next if self.head is None else max(self.head, self.next)

    def end(self) -> None:
        """The fork is stopped or has died. Its branch stays until main is level."""
        self._given.clear()
        self.successor = None
        self.move(ForkState.NONE)
