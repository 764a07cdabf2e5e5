"""A reader who wants news and corrections: the client proxy of 003 §4.10.1.

Rules:
1. It watches and chooses producers exactly as a node does, but holds nothing back: the nodes have done the waiting.
2. Whatever it hands on goes through `Sequence`, which alone decides on UNDO and REC_DONE.
3. Tentative buckets count only when closed: a client gets whole buckets.
4. Corrections go on as long as table 4.3 finds somebody to bring them (rows 1, 3, 6); else another failure has struck.
   Then the branch that goes on is told again from where main ends: its buckets are still in the reader's copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.errors import UsageError
from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.effects import Send, Subscribe, Unsubscribe
from holdfast.protocol.dpc.messages import Ack, KeepaliveReply, KeepaliveRequest
from holdfast.protocol.dpc.monitor import Monitor
from holdfast.protocol.dpc.plan import ACK_BUCKETS, ACK_KEEPALIVES, ClientPlan
from holdfast.protocol.dpc.sequence import Delivery, Sequence
from holdfast.protocol.dpc.signals import Disconnected, InputAdvanced, InputGap, Lane, Received, Tick
from holdfast.protocol.dpc.switch import Source
from holdfast.protocol.dpc.upstream import Upstream

_REQUEST = KeepaliveRequest()
_CORRECTING_ROWS = frozenset((1, 3, 6))

ClientSignal = Tick | InputAdvanced | InputGap | Received | Disconnected


@dataclass(frozen=True, slots=True)
class ClientEffects:
    """All that follows from one signal, in the order in which it is to be carried out."""

    deliver: tuple[Delivery, ...] = ()
    unsubscribe: tuple[Unsubscribe, ...] = ()
    subscribe: tuple[Subscribe, ...] = ()
    send: tuple[Send, ...] = ()
    wake_us: int = 0


class ClientCore:
    """The protocol of one reader of one stream."""

    def __init__(self, plan: ClientPlan, first: int, now_us: int, goal: int | None = None) -> None:
        self.plan = plan
        self.monitor = Monitor(plan.input.producers)
        self.upstream = Upstream(plan.input, self.monitor, plan.patience)
        self.sequence = Sequence(first, goal)
        #: What has arrived of each replica's branch: the first bucket, and one past the last.
        self._branches: dict[str, tuple[int, int]] = {}
        self._main_us = first * plan.bucket_us
        self._keepalive_us = now_us
        self._keepalives = 0
        self._acked = 0

    @property
    def main_us(self) -> int:
        """Main has arrived up to here."""
        return self._main_us

    def handle(self, signal: ClientSignal, now_us: int) -> ClientEffects:
        """Take in one fact; everything that follows from it."""
        deliver: list[Delivery] = []
        send: list[Send] = []
        review = False
        if isinstance(signal, InputAdvanced):
            review = self._advanced(signal, deliver, now_us)
        elif isinstance(signal, Received):
            if isinstance(signal.message, KeepaliveReply):
                review = self.monitor.answer(signal.sender, signal.message.reports, now_us)
        elif isinstance(signal, Disconnected):
            self.upstream.lost(signal.replica)
            review = True
        elif isinstance(signal, InputGap):
            self._gap(signal, deliver)
            review = True
        if now_us >= self._keepalive_us:
            self._keepalive(send, now_us)
            review = True
        gone: list[Unsubscribe] = []
        new: list[Subscribe] = []
        if review:
            fresh_from = self.sequence.next * self.plan.bucket_us
            gone, new = self.upstream.review(self._main_us, fresh_from, now_us)
            if self.upstream.choice.row == 1 and self.upstream.near(self._main_us, self.plan.bucket_us):
                deliver += self.sequence.caught_up()
        return ClientEffects(tuple(deliver), tuple(gone), tuple(new), tuple(send), self._keepalive_us)

    def _advanced(self, signal: InputAdvanced, deliver: list[Delivery], now_us: int) -> bool:
        upto = signal.boundary_us // self.plan.bucket_us
        # A subscription that was made once more begins with what we have: that is no progress.
        moved = signal.lane != Lane.MAIN or signal.boundary_us > self._main_us
        review = moved and self.upstream.progressed(Source(signal.replica, signal.lane), now_us)
        if signal.lane == Lane.MAIN:
            self._main_us = max(self._main_us, signal.boundary_us)
            if signal.boundary_us >= END_OF_TIME_US:
                upto = max((arrival.bucket + 1 for arrival in signal.arrivals), default=0)
            deliver += self.sequence.stable(upto)
            if signal.boundary_us >= END_OF_TIME_US:
                deliver += self.sequence.ended()
        else:
            self._branch_advanced(signal, upto, deliver)
        return review or self.sequence.correcting

    def _branch_advanced(self, signal: InputAdvanced, upto: int, deliver: list[Delivery]) -> None:
        """Rules 3 and 4."""
        sequence = self.sequence
        closed = [a.bucket for a in signal.arrivals if sequence.next <= a.bucket < upto]
        if not closed:
            return
        first, end = self._branches.get(signal.replica, (closed[0], closed[0]))
        if sequence.correcting and self.upstream.choice.row not in _CORRECTING_ROWS:
            deliver += sequence.stop_short()
            deliver += sequence.tentative(first, end)
        for bucket in closed:
            # If a lane is read again during corrections, an UNDO took the bucket back, and main is on its way to it.
            if bucket >= end or not sequence.correcting:
                deliver += sequence.tentative(bucket, bucket + 1)
        self._branches[signal.replica] = (min(first, closed[0]), max(end, closed[-1] + 1))

    def _gap(self, signal: InputGap, deliver: list[Delivery]) -> None:
        if not self.plan.convergent:
            raise UsageError(
                f"stream {signal.stream!r} must be complete for client {self.plan.client!r}; got a gap before "
                f"{signal.first_us} us; declare the client convergent or give the stream more room"
            )
        deliver += self.sequence.skip(-(-signal.first_us // self.plan.bucket_us))
        self._main_us = max(self._main_us, signal.first_us)

    def _keepalive(self, send: list[Send], now_us: int) -> None:
        for replica in self.monitor.ask():
            self.upstream.lost(replica)
        send.extend([Send(replica, _REQUEST) for replica in self.monitor.replicas])
        self._keepalives += 1
        unacked = self.sequence.next - self._acked
        if unacked >= ACK_BUCKETS or self._keepalives % ACK_KEEPALIVES == 0:  # Again: the last one may be lost.
            self._acked = self.sequence.next
            ack = Ack(self.plan.input.stream, self.sequence.next * self.plan.bucket_us)
            send.extend([Send(replica, ack) for replica in self.monitor.replicas])
        self._keepalive_us = now_us + self.plan.keepalive_us
