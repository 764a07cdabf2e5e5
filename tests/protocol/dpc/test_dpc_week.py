"""An input is away for a week: what a convergent-capable node keeps of the others stays what it was after an hour
(003 §4.9.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.model.time import SECOND_US
from holdfast.protocol.dpc.effects import Effects
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, StreamReport
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import Full, InputPlan, NodePlan, OutputPlan, Resume
from holdfast.protocol.dpc.signals import (
    Arrival,
    ForkCompleted,
    ForkPrepared,
    InputAdvanced,
    Lane,
    Received,
    Signal,
    StableCompleted,
    Tick,
)
from holdfast.protocol.dpc.states import NodeState, StreamState

BUCKET = 60 * SECOND_US
HOUR = 60
WEEK = 7 * 24 * HOUR


class Host:
    """Does at once whatever the core wants. Buckets of a minute; `y` goes away, `x` does not."""

    def __init__(self, plan: NodePlan) -> None:
        self.core = NodeCore(plan, Resume(0, 0, 0), 0)
        self.now = 0
        self.skips: list[int] = []
        self.read = 0

    def tell(self, signal: Signal) -> None:
        waiting = [signal]
        while waiting:
            effects = self.core.handle(waiting.pop(0), self.now)
            waiting += self._done(effects)

    def _done(self, effects: Effects) -> list[Signal]:
        facts: list[Signal] = []
        if effects.skip_stable is not None:
            self.skips.append(effects.skip_stable.to)
            self.read = effects.skip_stable.to
        if effects.read_stable is not None and effects.read_stable.upto > self.read:
            self.read = effects.read_stable.upto
            facts.append(StableCompleted(self.read, self.read * BUCKET))
        if effects.prepare_fork is not None:
            facts.append(ForkPrepared(effects.prepare_fork.fork, self.core.stable))
        if effects.extend_fork is not None:
            facts.append(ForkCompleted(effects.extend_fork.fork, effects.extend_fork.buckets[-1].bucket + 1))
        for send in effects.send:
            if isinstance(send.message, KeepaliveRequest) and (send.to == "px" or self.both):
                report = StreamReport(send.to[1:], StreamState.STABLE, self.boundary, False)
                facts.append(Received(send.to, KeepaliveReply((report,))))
        return facts

    both = True
    boundary = 0

    def minute(self) -> None:
        bucket = self.boundary // BUCKET
        self.boundary += BUCKET
        self.now += BUCKET
        for stream in ("x", "y") if self.both else ("x",):
            self.tell(InputAdvanced(stream, f"p{stream}", Lane.MAIN, self.boundary, (Arrival(bucket, 5),)))
        self.tell(Tick())

    @property
    def held(self) -> int:
        """Buckets of input that the host must hold."""
        return self.boundary // BUCKET - self.core.needed_from

    @property
    def remembered(self) -> int:
        sunion = self.core.inputs.sunion
        return len(sunion.first_us) + sum(len(i.open) + len(i.fresh) for i in sunion.inputs.values())


def host(full: Full, capacity: int | None) -> Host:
    output = OutputPlan("out", ("x", "y"), (), None if capacity is None else capacity * BUCKET, full)
    inputs = (InputPlan("x", ("px",)), InputPlan("y", ("py",)))
    return Host(NodePlan("n", inputs, output, (), BUCKET, 2 * BUCKET, 20 * SECOND_US, window_us=10 * BUCKET))


def test_after_the_first_hour_of_a_week_nothing_grows_and_the_last_hour_is_corrected() -> None:
    node = host(Full.KEEP_LAST, HOUR)
    for _ in range(5):
        node.minute()
    assert node.core.state is NodeState.STABLE
    node.both = False
    held, remembered = [], []
    for _ in range(WEEK):
        node.minute()
        held.append(node.held)
        remembered.append(node.remembered)
    first = 2 * HOUR
    assert max(held[first:]) <= 1.25 * (HOUR + 10) + 2
    assert max(remembered) <= 3 * 1.25 * (HOUR + 10) + 6
    assert max(held[first:]) == max(held[-first:]), "flat"
    assert node.core.state is NodeState.UP_FAILURE
    assert len(node.skips) <= WEEK / (HOUR / 4), "a new beginning is not for every bucket"
    node.both = True
    for _ in range(3):
        node.minute()
    assert node.core.state is NodeState.STABLE
    assert node.core.stable >= node.boundary // BUCKET - 1
    assert node.skips[-1] <= WEEK - HOUR, "what the buffer holds is corrected"


@pytest.mark.parametrize(("full", "capacity"), [(Full.BLOCK, HOUR), (Full.BLOCK, None)])
def test_nothing_is_given_up_where_nobody_said_so(full: Full, capacity: int | None) -> None:
    node = host(full, capacity)
    for _ in range(5):
        node.minute()
    node.both = False
    for _ in range(5 * HOUR):
        node.minute()
    assert node.skips == []
    assert node.core.stable == 5


def test_what_is_tentative_is_kept_no_longer_than_what_is_stable_but_while_a_reader_starts_again() -> None:
    assert host(Full.BLOCK, HOUR).core.plan.tentative_us is None
    assert host(Full.KEEP_LAST, HOUR).core.plan.tentative_us == (HOUR + 10 + 2) * BUCKET
    plan = host(Full.KEEP_LAST, HOUR).core.plan
    output = replace(plan.output, capacity_us=SECOND_US)
    small = replace(
        plan,
        delay_us=2 * SECOND_US,
        bucket_us=SECOND_US,
        keepalive_us=SECOND_US // 5,
        window_us=SECOND_US,
        output=output,
    )
    assert small.tentative_us == 60 * SECOND_US
