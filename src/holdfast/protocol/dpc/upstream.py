"""One input stream: who produces it, in what state, and what to subscribe to (003 §4.6.1, §4.7.4).

Rules:
1. What a replica offers is derived from its last report and from what we hold ourselves:
   - main: STABLE if it says so and we are near it; STABILIZATION if it has corrections we lack, whatever it says;
   - branch: UP_FAILURE if it grows one, or is failing and may soon grow one while nobody else does;
   - head: UP_FAILURE if it is STABLE and we are far behind.
2. "Far behind" is more than the delay. The seeds' P3 (time spent in UP_FAILURE) asks the same question less directly:
   would the replay of main bring news too late?
3. A replica that claims STABLE while its boundary stands still longer than it is wont to is not believed until it
   moves: boundaries are the heartbeat of a stream (§4.5.3), each stream with a cadence of its own (`Monitor`, rule 4).
   It then counts as UP_FAILURE, since tuples may still come without promise.
4. The same holds, for a while, if it has more but does not get it to us: whoever answers has no excuse for that.
5. A connection may break in a way that nobody notices. So a subscription that brings nothing for longer than usual is
   made once more, which costs next to nothing and harms nobody if the producer was only slow.
6. Other lanes that bring nothing are left for a while for equally good ones of another replica, if there are any.
"""

from __future__ import annotations

from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.effects import Subscribe, Unsubscribe
from holdfast.protocol.dpc.monitor import Monitor
from holdfast.protocol.dpc.plan import InputPlan, Patience
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.dpc.switch import Choice, Source, choose


class Upstream:
    """The producers of one input, and the subscriptions held with them."""

    __slots__ = ("_ahead_us", "_idle_until_us", "_monitor", "_patience", "_renewed", "_stalled", "best", "choice",
                 "failing", "live", "plan", "rows", "subscribed")  # fmt: skip

    def __init__(self, plan: InputPlan, monitor: Monitor, patience: Patience) -> None:
        self.plan = plan
        self._monitor = monitor
        self._patience = patience
        self.choice = Choice(11, None, None)
        #: Rows of table 4.3 taken since the start; for people and tests.
        self.rows: set[int] = set()
        #: What we read, and when it last brought a boundary.
        self.subscribed: dict[Source, int] = {}
        #: Replicas not believed: the boundary at which they stood still, and until when they are doubted at least.
        self._stalled: dict[str, tuple[int, int]] = {}
        #: Since when a replica that we read main from has more of it than it got to us.
        self._ahead_us: dict[str, int] = {}
        #: Lanes that brought nothing, and until when others are preferred.
        self._idle_until_us: dict[Source, int] = {}
        #: Subscriptions to main that were made once more since they last brought anything.
        self._renewed: set[Source] = set()
        #: Whether no replica produces the stable stream (appendix A, line 07). This and the next two are as of the last
        #: review.
        self.failing = True
        #: Whether closed buckets can be expected to come on Curr(s).
        self.live = False
        #: The best state of the stream over all its replicas, as appendix A uses it.
        self.best = StreamState.FAILURE

    def progressed(self, source: Source, now_us: int) -> bool:
        """The lane's boundary moved. True if that calls for a review."""
        if source in self.subscribed:
            self.subscribed[source] = now_us
            self._renewed.discard(source)
            self._idle_until_us.pop(source, None)
            if source.lane == Lane.MAIN:
                self._ahead_us.pop(source.replica, None)
        if source.lane == Lane.MAIN and self._stalled:
            self._stalled.pop(source.replica, None)
            return True
        return self.choice.row != 1

    def lost(self, replica: str) -> None:
        """The connection to the replica is gone, and the subscriptions with it."""
        for lane in Lane:
            self.subscribed.pop(Source(replica, lane), None)
        self._ahead_us.pop(replica, None)

    def cadence_us(self) -> int | None:
        """How seldom the slowest producer moves its boundary, as far as known."""
        known = [self._monitor.cadence_us(replica, self.plan.stream) for replica in self.plan.producers]
        return max((cadence for cadence in known if cadence is not None), default=None)

    def believed(self, replica: str) -> bool:
        """Whether the replica is STABLE, as far as we can see."""
        report = self._monitor.report(replica, self.plan.stream)
        return report is not None and report.state == StreamState.STABLE and replica not in self._stalled

    def near(self, main_us: int, slack_us: int) -> bool:
        """Whether our main is level with that of some stable producer."""
        for replica in self.plan.producers:
            report = self._monitor.report(replica, self.plan.stream)
            if report is not None and self.believed(replica) and main_us >= report.main_us - slack_us:
                return True
        return False

    def review(self, main_us: int, fresh_from_us: int | None, now_us: int) -> tuple[list[Unsubscribe], list[Subscribe]]:
        """Look at all producers again; what to unsubscribe and subscribe now.

        `fresh_from_us` is where tentative reading goes on, None if nothing was read tentatively yet.
        """
        if self._all_well(main_us, now_us):
            return [], []
        again = self._find_silent(main_us, now_us)
        states = self._offers(main_us, now_us)
        curr, bck = self.choice.curr, self.choice.bck
        self.choice, rows = choose(curr, bck, states, self._advance_of)
        self.rows.update(rows)
        wanted = [s for s in (self.choice.curr, self.choice.bck) if s is not None and s in states]
        gone = [s for s in self.subscribed if s not in wanted]
        for source in gone:
            del self.subscribed[source]
        stream = self.plan.stream
        subscribe = []
        for source in wanted:
            if source not in self.subscribed:
                self.subscribed[source] = now_us
                self._renewed.discard(source)
            elif source not in again:
                continue
            start = main_us if source.lane == Lane.MAIN else self._fresh_start(main_us, source, fresh_from_us)
            subscribe.append(Subscribe(stream, source.replica, source.lane, start))
        self._conclude(main_us)
        return [Unsubscribe(stream, s.replica, s.lane) for s in gone], subscribe

    def _all_well(self, main_us: int, now_us: int) -> bool:
        """Whether row 1 goes on: the usual case, decided without looking further."""
        curr = self.choice.curr
        if self.choice.row != 1 or self.failing or self._stalled or curr is None or len(self.subscribed) != 1:
            return False
        report = self._monitor.report(curr.replica, self.plan.stream)
        return (
            report is not None
            and report.state == StreamState.STABLE
            and curr in self.subscribed
            and report.main_us - main_us <= self._far_us(curr.replica)
            and not self._silent(curr, now_us)
        )

    def _far_us(self, replica: str) -> int:
        """Rule 2; one step of a boundary that moves seldom is no distance."""
        return max(self._patience.delay_us, 2 * (self._monitor.cadence_us(replica, self.plan.stream) or 0))

    def _silent(self, source: Source, now_us: int) -> bool:
        """Whether nothing came on the lane for longer than usual."""
        cadence_us = self._monitor.cadence_us(source.replica, self.plan.stream)
        return now_us - self.subscribed[source] > self._patience.usual_us(cadence_us)

    def _without_reason(self, source: Source, ahead: bool, now_us: int) -> bool:
        """Whether a silent lane is so for longer than there is a reason for (rules 3 and 4)."""
        if source.lane == Lane.MAIN and ahead:
            return now_us - self._ahead_us.setdefault(source.replica, now_us) > self._patience.dead_us
        cadence_us = self._monitor.cadence_us(source.replica, self.plan.stream)
        return now_us - self.subscribed[source] > self._patience.doubt_us(cadence_us)

    def _conclude(self, main_us: int) -> None:
        if main_us >= END_OF_TIME_US:
            self.failing, self.live, self.best = False, True, StreamState.STABLE
            return
        replicas = self.plan.producers
        self.failing = not any(self.believed(replica) for replica in replicas)
        curr = self.choice.curr
        self.live = self.choice.row in (1, 3, 4) and curr is not None and curr.replica not in self._stalled
        best = StreamState.FAILURE
        for replica in replicas:
            report = self._monitor.report(replica, self.plan.stream)
            if report is not None:
                best = min(best, StreamState.UP_FAILURE if replica in self._stalled else report.state)
        self.best = best

    def _fresh_start(self, main_us: int, source: Source, fresh_from_us: int | None) -> int:
        """News older than the delay are not news: whoever has fallen far behind begins near the head."""
        start = main_us if fresh_from_us is None else max(main_us, fresh_from_us)
        report = self._monitor.report(source.replica, self.plan.stream)
        if source.lane == Lane.HEAD and report is not None:
            return max(start, report.main_us - self._far_us(source.replica))
        return start

    def _advance_of(self, source: Source) -> int:
        report = self._monitor.report(source.replica, self.plan.stream)
        return report.main_us if report is not None else 0

    def _offers(self, main_us: int, now_us: int) -> dict[Source, StreamState]:
        """The state of every lane that flows, in the plan's order."""
        offers: dict[Source, StreamState] = {}
        known = [(replica, self._monitor.report(replica, self.plan.stream)) for replica in self.plan.producers]
        grows = any(report is not None and report.fresh for _, report in known)
        for replica, report in known:
            if report is None:
                continue
            main = Source(replica, Lane.MAIN)
            ahead = report.main_us > main_us
            far = report.main_us - main_us > self._far_us(replica)
            if report.state == StreamState.STABLE:
                if replica in self._stalled:
                    offers[main] = StreamState.UP_FAILURE
                elif far:
                    offers[main] = StreamState.STABILIZATION
                    offers[Source(replica, Lane.HEAD)] = StreamState.UP_FAILURE
                else:
                    offers[main] = StreamState.STABLE
                continue
            if ahead or report.state == StreamState.STABILIZATION:
                offers[main] = StreamState.STABILIZATION
            if report.fresh or (report.state == StreamState.UP_FAILURE and not grows):
                offers[Source(replica, Lane.BRANCH)] = StreamState.UP_FAILURE
        return self._without_idle(offers, now_us) if self._idle_until_us else offers

    def _without_idle(self, offers: dict[Source, StreamState], now_us: int) -> dict[Source, StreamState]:
        """Rule 6."""
        idle = [source for source in offers if now_us < self._idle_until_us.get(source, now_us)]
        lively = {state for source, state in offers.items() if source not in idle}
        return {source: state for source, state in offers.items() if source not in idle or state not in lively}

    def _find_silent(self, main_us: int, now_us: int) -> list[Source]:
        """Find out who is not believed; the subscriptions to make once more."""
        again: list[Source] = []
        for replica, (stood_us, until_us) in list(self._stalled.items()):
            report = self._monitor.report(replica, self.plan.stream)
            if report is not None and report.main_us > stood_us and now_us >= until_us:
                del self._stalled[replica]
        for source in list(self.subscribed):
            report = self._monitor.report(source.replica, self.plan.stream)
            if report is None or main_us >= END_OF_TIME_US:
                continue
            ahead = report.main_us > main_us
            if not ahead and source.lane == Lane.MAIN:
                self._ahead_us.pop(source.replica, None)
            if not self._silent(source, now_us):
                continue
            if source.lane == Lane.MAIN and source not in self._renewed:
                self._renewed.add(source)
                again.append(source)
            if not self._without_reason(source, ahead, now_us):
                continue
            if source.lane != Lane.MAIN or ahead:
                del self.subscribed[source]
                self._ahead_us.pop(source.replica, None)
            until_us = now_us + 2 * self._patience.least_us
            if source.lane == Lane.MAIN and report.state == StreamState.STABLE:
                self._stalled[source.replica] = (report.main_us, until_us if ahead else now_us)
            else:
                self._idle_until_us[source] = until_us
        return again
