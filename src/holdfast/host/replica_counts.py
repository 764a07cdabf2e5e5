"""What a replica has given so far, counted against what it promised. Plain numbers, read when somebody asks.

Rules:
1. A bucket's wait is from its first tuple here (`SUnion`, rule 2) to its results in the log. X is about what a failure
   adds to that: so what buckets wait in quiet times is taken off, as a benchmark would do with a run without failures.
2. Quiet is a bucket whose clock started after the replica was last out of STABLE. The usual wait is the largest of
   those lately: it rises at once and falls slowly, over some dozens of batches.
3. A bucket counts once, when its first results are written: by the fork, or by the stable query if no fork gave it.
   What a replica writes before it serves anybody (D12) counts for nothing.
4. Nothing here decides anything; a batch costs a look at its buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from holdfast.model.time import SECOND_US
from holdfast.protocol.dpc.effects import Effects
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.signals import ForkCompleted, InputAdvanced, Lane, Signal, StableCompleted
from holdfast.protocol.dpc.states import NodeState

#: How much of the way to a smaller wait the usual one falls with each batch (rule 2).
_FALLS = 0.05
#: So old, the last results no longer say how the replica does: perhaps nothing comes that could be late.
_LAST_US = 60 * SECOND_US


class ReplicaCounts:
    """The counts of one replica since it was set up."""

    def __init__(self, delay_us: int, now_us: int) -> None:
        self._delay_us = delay_us
        self.state, self.since_us = "WAITING", now_us
        self._state_us: Counter[str] = Counter()
        #: Buckets by kind ("stable", "tentative") and whether they came in time.
        self.results: Counter[tuple[str, bool]] = Counter()
        self.wait_us: int | None = None
        self.usual_us: int | None = None
        #: What was added to the wait of the last results, and when they were written.
        self._added_us = self._written_us = 0
        self.corrections = self.corrected_us = 0
        self.gaps = self.dropped_us = self.deaths = 0
        #: When the boundary of each input last moved.
        self.moved_us: dict[str, int] = {}
        #: The replica was out of STABLE last at this time (rule 2).
        self._disturbed_us = now_us
        #: Tentative buckets that the fork was given and has not written, and when their clocks started.
        self._given: dict[int, int] = {}
        #: One past the last bucket of which tentative results were written.
        self._head = 0

    # Facts ------------------------------------------------------------------------------------------------------

    def enter(self, state: str, now_us: int) -> None:
        """The replica is in this state from now on."""
        if self.state == NodeState.STABILIZATION.name:
            self.corrections += 1
            self.corrected_us += now_us - self.since_us
        self._state_us[self.state] += now_us - self.since_us
        if NodeState.STABLE.name != self.state:
            self._disturbed_us = now_us
        self.state, self.since_us = state, now_us

    def before(self, signal: Signal, core: NodeCore, now_us: int) -> None:
        """The core is about to hear this; afterwards it has forgotten what was waiting."""
        if isinstance(signal, InputAdvanced):
            known = core.inputs.sunion.inputs.get(signal.stream)
            if known is not None and signal.lane == Lane.MAIN and signal.boundary_us > known.main_us:
                self.moved_us[signal.stream] = now_us
        elif isinstance(signal, StableCompleted):
            self._stable(core, signal.upto, now_us)
        elif isinstance(signal, ForkCompleted) and signal.fork == core.fork.id:
            self._tentative(signal.upto, now_us)

    def after(self, effects: Effects, core: NodeCore, now_us: int) -> None:
        """What follows from a signal."""
        if effects.state.name != self.state:
            self.enter(effects.state.name, now_us)
        if effects.skip_stable is not None:
            self.gaps += 1
        if effects.truncate is not None:
            self.dropped_us += effects.truncate.lost_us
        if effects.stop_fork is not None:
            self._given.clear()
        if effects.extend_fork is not None:
            first_us = core.inputs.sunion.first_us
            for item in effects.extend_fork.buckets:
                if item.emit:
                    self._given[item.bucket] = first_us.get(item.bucket, now_us)

    def _stable(self, core: NodeCore, upto: int, now_us: int) -> None:
        if core.state == NodeState.RECOVERING:
            return
        first_us = core.inputs.sunion.first_us
        # The last batch of a stream that ends reaches to the end of time: what waits is gone through, not the range.
        written = {b: at for b, at in first_us.items() if max(core.stable, self._head) <= b < upto}
        self._count("stable", written, now_us)
        quiet = [now_us - at for at in written.values() if at > self._disturbed_us]
        if quiet and core.state == NodeState.STABLE:
            wait_us = max(quiet)
            usual_us = wait_us if self.usual_us is None else self.usual_us
            self.usual_us = max(wait_us, usual_us - round(_FALLS * (usual_us - wait_us)))

    def _tentative(self, upto: int, now_us: int) -> None:
        written = {bucket: at for bucket, at in self._given.items() if bucket < upto}
        for bucket in written:
            del self._given[bucket]
            self._head = max(self._head, bucket + 1)
        self._count("tentative", written, now_us)

    def _count(self, kind: str, written: Mapping[int, int], now_us: int) -> None:
        for since_us in written.values():
            self.results[kind, self._added(now_us - since_us) <= self._delay_us] += 1
        if written:
            self.wait_us = now_us - min(written.values())
            self._added_us, self._written_us = self._added(self.wait_us), now_us

    def _added(self, wait_us: int) -> int:
        return max(0, wait_us - (self.usual_us or 0))

    # For people -------------------------------------------------------------------------------------------------

    def state_us(self, now_us: int) -> dict[str, int]:
        """Time spent in each state so far."""
        return {**self._state_us, self.state: self._state_us[self.state] + now_us - self.since_us}

    def delay_used(self, core: NodeCore, now_us: int) -> float:
        """The share of X that the last results, or what waits now, have used."""
        added_us = self._added_us if now_us - self._written_us < _LAST_US else 0
        sunion, first = core.inputs.sunion, max(core.stable, self._head)
        if core.state != NodeState.RECOVERING and not sunion.ended:
            waiting = [since_us for bucket, since_us in sunion.first_us.items() if bucket >= first]
            added_us = max(added_us, self._added(now_us - min(waiting, default=now_us)))
        return added_us / self._delay_us
