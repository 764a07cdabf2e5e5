"""The second query: when it is prepared, which buckets it gets and when, and when it ends (003 §4.6.2, §5.4).

Rules:
1. Prepared at the first suspicion, and early enough to be ready in time. Where the delay is so short that nobody can
   wait for its start and first batch, one is kept ready all the time. Released when the first waiting bucket has waited
   the whole delay (§5.4.3), and longer than inputs that move seldom let it wait in quiet times (D16). A failure that
   heals before that leaves no trace, except that the fork is kept for a while: suspicions come in swarms.
2. Later buckets follow the policy: at once, as late as allowed, or not at all. None waits longer than the delay. As
   late as allowed is so much sooner as the fork takes to bring their results: measured, from giving it a bucket to its
   word that the bucket is written.
3. Buckets are given in order and never twice; one of which nothing arrived on any input is left out, and so is one
   that a missing blocking input makes void.
4. A bucket that main is about to deliver anyway, or will once it is complete, waits for main as long as the delay
   allows, or as long as main takes in quiet times, if that is longer: so the branch ends, also on a machine that is too
   slow for the delay.
5. A fork that is ready and idle follows main in steps, over complete buckets whose results nobody sees: in quiet times
   one that is kept ready, as often as its share of time allows; at a suspicion any, unless it would not be back before
   the delay is over. So what is left to catch up on is little, and its first batch, the slowest, lies behind it. It
   gives what one that is started now would give (D17).
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
#: The share of time for steps while inputs are suspected, again and again: the machine may be what is slow.
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
        "_bucket_us",
        "_busy_us",
        "_given",
        "_least_us",
        "_plan",
        "_start_us",
        "_step_us",
        "_stepped_us",
        "_takes_us",
        "done",
        "first",
        "head",
        "id",
        "last_id",
        "main_us",
        "next",
        "overdue",
        "state",
        "usual_us",
    )  # fmt: skip

    def __init__(self, plan: NodePlan, first_id: int) -> None:
        self._plan = plan
        self._blocking = frozenset(spec.stream for spec in plan.inputs if spec.blocking)
        self.state = ForkState.NONE
        self.id = self.last_id = first_id
        #: Next bucket to give to the fork.
        self.next = 0
        #: The fork is through with all buckets below.
        self.done = 0
        #: One past the last tentative bucket given out since main was last level; None if main is level.
        self.head: int | None = None
        #: The first of these buckets: everything below is main's, however late it is.
        self.first = 0
        #: Whether the first delay of this failure has run out.
        self.overdue = False
        #: How long the frontier stands still in quiet times, and what main takes then for a complete bucket.
        self.usual_us = self.main_us = 0
        self._asked_us: int | None = None
        #: What it takes to start one: as measured, and until then half of the delay, but not less than is usual.
        self._start_us = max(START_US, plan.delay_us // 2)
        #: What was given and not written yet: one past its last bucket, when, and how many they are.
        self._given: deque[tuple[int, int, int]] = deque()
        #: How long a bucket takes lately, from being given to being written.
        self._takes_us = 0
        #: When the fork was last given a step; what the last took, None before its first is done; and how long the fork
        #: was busy with it.
        self._stepped_us = self._busy_us = 0
        self._step_us: int | None = None
        #: What the quickest step took, which is the price of a batch, and what each bucket of the last took above that.
        self._least_us: int | None = None
        self._bucket_us = 0.0

    def wanted_us(self, cadence_us: int | None) -> int:
        """How long the frontier may stand still until a fork is prepared. Whoever waits for a doubt may be late;
        whoever starts one in every pause of a slow input is never done."""
        patience = self._plan.patience
        in_time_us = self._plan.delay_us - self._start_us
        return max(patience.usual_us(cadence_us), min(patience.doubt_us(cadence_us), in_time_us))

    @property
    def kept_ready(self) -> bool:
        """Whether one must be ready at any time."""
        return self._plan.warm > 0 and self._plan.delay_us <= WARM_DELAY_US

    def rested(self, now_us: int) -> bool:
        """Whether one may be started again, as its share of time goes."""
        return self._asked_us is None or (now_us - self._asked_us) * self._plan.warm >= self._start_us

    def stale(self, stable: int, kept: bool, suspicious: bool = False) -> bool:
        """Whether it lies too far behind main to be worth keeping: what must be kept for it piles up, or it is about to
        be needed and a new one would be there sooner. A query that is busy all the time anyway is not followed with a
        small share of it."""
        if self.state != ForkState.READY:
            return False
        lag = stable - self.done
        if suspicious and lag * self._bucket_us > self._start_us + self._plan.delay_us:
            return True
        return lag > max(FORK_LAG_MAX, self._lag_max if kept else 0)

    @property
    def _lag_max(self) -> int:
        return WARM_LAG_US // self._plan.bucket_us

    def quiet(self, stable: int, ordered: int) -> int:
        """Main is sure to publish everything below shortly: it only brings the fork's state up to date."""
        return stable if self.overdue else max(stable, ordered)

    def steps(self, quiet: int, kept: bool, suspicious: bool, due_us: int, now_us: int) -> bool:
        """Whether it is to follow main now (rule 5). `due_us`: it may be needed then."""
        if self.state != ForkState.READY or self.done < self.next or self.next >= quiet:
            return False
        if self._step_us is None:
            return kept or suspicious
        rested_us = now_us - self._stepped_us
        if suspicious:
            return rested_us * SUSPICIOUS >= self._step_us and now_us + self._step_us <= due_us
        return kept and rested_us * self._plan.warm >= self._busy_us

    def step(self, quiet: int, sunion: SUnion, now_us: int) -> tuple[TentativeBucket, ...]:
        """All that main has and the fork has not."""
        upto = min(quiet, sunion.top, self.next + self._lag_max)
        buckets = tuple(_unseen(sunion, b) for b in range(self.next, upto))
        if buckets:
            self._given.append((upto, now_us, upto - self.next))
            self.next, self._stepped_us = upto, now_us
        return buckets

    def move(self, after: ForkState) -> None:
        """Take one step of the fork's table."""
        check_step(self.state, after)
        self.state = after

    def prepare(self, stable: int, now_us: int) -> int:
        """A new fork is to be prepared from a commit at or after `stable`; its id."""
        self.move(ForkState.PREPARING)
        self.id = self.last_id = self.last_id + 1
        self._asked_us = now_us
        self.next = self.done = stable
        self._step_us = self._least_us = None
        self._bucket_us = 0.0
        return self.id

    def prepared(self, root: int, now_us: int) -> None:
        """The host has started it at `root`."""
        self.move(ForkState.READY)
        assert self._asked_us is not None
        self._start_us = now_us - self._asked_us
        self.next = self.done = root

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
        size_us = self._plan.bucket_us
        if complete and bucket - stable < max(self._plan.near, self.main_us // size_us + 1):
            return max(latest, since + self.main_us + size_us)
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
        quiet = self.quiet(stable, ordered)
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
                parts, share = sunion.parts(bucket)
                present = any(part.lane is not None for part in parts)
                void = any(part.lane is None and part.stream in self._blocking for part in parts)
                if present and not void:
                    buckets.append(TentativeBucket(bucket, parts, bucket >= quiet, *share))
                    if not ready:
                        return tuple(buckets), NEVER_US
            bucket += 1
        else:
            due = NEVER_US
        if not buckets or not buckets[-1].emit:
            return (), due
        return tuple(buckets), due

    def completed(self, upto: int, now_us: int) -> None:
        """The fork is through with everything below `upto`."""
        self.done = max(self.done, upto)
        took_us = count = 0
        while self._given and self._given[0][0] <= upto:
            _, given_us, buckets = self._given.popleft()
            took_us, count = max(took_us, now_us - given_us), count + buckets
        if not count:
            if self._step_us and not self._given:  # A batch without tuples, in which windows are released.
                self._busy_us = now_us - self._stepped_us
            return
        if self._step_us is None:  # The first batch of a query says nothing about later ones.
            self._step_us = 0
            return
        self._takes_us = max(took_us, int(self._takes_us * _TAKES_KEPT))
        self._step_us = self._busy_us = took_us
        self._least_us = took_us if self._least_us is None else min(took_us, self._least_us)
        self._bucket_us = (took_us - self._least_us) / count

    def take(self, buckets: tuple[TentativeBucket, ...], now_us: int) -> None:
        """These buckets are given to the fork."""
        if self.state == ForkState.READY:
            self.move(ForkState.RUNNING)
        self._given.append((buckets[-1].bucket + 1, now_us, len(buckets)))
        self.overdue = True
        if self.head is None:
            self.first = next(bucket.bucket for bucket in buckets if bucket.emit)
        self.next = buckets[-1].bucket + 1
        self.head = self.next if self.head is None else max(self.head, self.next)

    def end(self) -> None:
        """The fork is stopped or has died. Its branch stays until main is level."""
        self._given.clear()
        self.move(ForkState.NONE)


def _unseen(sunion: SUnion, bucket: int) -> TentativeBucket:
    """What goes into a bucket that is complete."""
    parts, share = sunion.parts(bucket)
    return TentativeBucket(bucket, parts, False, *share)
