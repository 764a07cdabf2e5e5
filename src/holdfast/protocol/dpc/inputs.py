"""All that a node knows of its inputs: who produces them, in what state, and what has arrived.

Rules:
1. One keepalive round asks every replica of every input once, however many inputs it produces.
2. A replica that fails, or whose connection breaks, takes its subscriptions with it.
3. What is committed is acknowledged to *all* replicas that produce the input: any of them may be read from later
   (003 §4.9.3). It is said again when nothing is new: the last word may be lost, or its receiver may have started anew,
   and a producer without room would wait for it for ever.
"""

from __future__ import annotations

from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.effects import Send, Subscribe, Unsubscribe
from holdfast.protocol.dpc.messages import Ack, KeepaliveRequest
from holdfast.protocol.dpc.monitor import Monitor
from holdfast.protocol.dpc.plan import ACK_BUCKETS, ACK_KEEPALIVES, NodePlan
from holdfast.protocol.dpc.signals import InputAdvanced
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.dpc.sunion import SUnion
from holdfast.protocol.dpc.switch import Source
from holdfast.protocol.dpc.upstream import Upstream

_REQUEST = KeepaliveRequest()


class Inputs:
    """The input side of one replica."""

    __slots__ = ("_acked", "_plan", "_rounds", "cadence_us", "failing", "monitor", "sunion", "upstreams")

    def __init__(self, plan: NodePlan, first: int, now_us: int) -> None:
        self._plan = plan
        self.sunion = SUnion(tuple(spec.stream for spec in plan.inputs), plan.bucket_us, first, now_us)
        self.monitor = Monitor(_producers(plan))
        self.upstreams = {spec.stream: Upstream(spec, self.monitor, plan.patience) for spec in plan.inputs}
        #: How seldom the slowest input moves, as far as known at the last review.
        self.cadence_us: int | None = None
        #: Whether some input has no stable producer, as of the last review.
        self.failing = True
        self._rounds = 0
        self._acked: int | None = None

    def replan(self, plan: NodePlan) -> None:
        """Others produce the same inputs. Who is read and no longer produces is left at the next review."""
        self._plan = plan
        self.monitor.watch(_producers(plan))
        for spec in plan.inputs:
            self.upstreams[spec.stream].plan = spec

    def advance(self, signal: InputAdvanced, now_us: int) -> bool:
        """Take in what arrived. True if producers should be looked at again."""
        upstream = self.upstreams.get(signal.stream)
        if upstream is None:
            raise UsageError(
                f"replica {self._plan.replica!r} must be told of its own inputs {sorted(self.upstreams)}; "
                f"got stream {signal.stream!r}; check the subscription"
            )
        moved = self.sunion.advance(signal, now_us)
        return moved and upstream.progressed(Source(signal.replica, signal.lane), now_us)

    def lost(self, replica: str) -> None:
        """The replica or the connection to it is gone."""
        for upstream in self.upstreams.values():
            upstream.lost(replica)

    def ask(self, stable: int) -> list[Send]:
        """One keepalive round (figure 4-10), and acknowledgements when they are due."""
        for replica in self.monitor.ask():
            self.lost(replica)
        send = [Send(replica, _REQUEST) for replica in self.monitor.replicas]
        self._rounds += 1
        unacked = ACK_BUCKETS if self._acked is None else stable - self._acked
        if unacked >= ACK_BUCKETS or self._rounds % ACK_KEEPALIVES == 0:
            self._acked = stable
            upto_us = stable * self._plan.bucket_us
            for spec in self._plan.inputs:
                send += [Send(replica, Ack(spec.stream, upto_us)) for replica in spec.producers]
        return send

    def review(self, fresh_from_us: int | None, now_us: int) -> tuple[list[Unsubscribe], list[Subscribe]]:
        """Look at all producers of all inputs again."""
        unsubscribe: list[Unsubscribe] = []
        subscribe: list[Subscribe] = []
        for stream, upstream in self.upstreams.items():
            gone, new = upstream.review(self.sunion.inputs[stream].main_us, fresh_from_us, now_us)
            unsubscribe += gone
            subscribe += new
        self.failing = any(upstream.failing for upstream in self.upstreams.values())
        known = [upstream.cadence_us() for upstream in self.upstreams.values()]
        self.cadence_us = max((cadence for cadence in known if cadence is not None), default=None)
        return unsubscribe, subscribe

    def live(self) -> list[str]:
        """The inputs on which closed buckets can be expected."""
        return [stream for stream, upstream in self.upstreams.items() if upstream.live]

    def level(self) -> bool:
        """Whether every input's main is level with that of a stable producer."""
        size = self._plan.bucket_us
        return all(u.near(self.sunion.inputs[s].main_us, size) for s, u in self.upstreams.items())

    def states(self) -> dict[str, StreamState]:
        """The best state of each input over all its replicas."""
        return {stream: upstream.best for stream, upstream in self.upstreams.items()}


def _producers(plan: NodePlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(replica for spec in plan.inputs for replica in spec.producers))
