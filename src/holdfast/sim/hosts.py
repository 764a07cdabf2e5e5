"""Hosts of the simulator: a source, a replica, a client. Thin adapters between a core and the world.

Rules:
1. A host does what its core says and tells it what happened; it decides nothing about DPC.
2. On disk: a source's log; a replica's output and its checkpoint, committed together. Everything else dies with the
   process.
3. A source goes on logging while its proxy is down (003 §4.1.2); only the sending stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.buffers import Buffer
from holdfast.protocol.dpc.client import ClientCore
from holdfast.protocol.dpc.effects import Subscribe, Unsubscribe
from holdfast.protocol.dpc.messages import Ack, KeepaliveReply, KeepaliveRequest, StreamReport
from holdfast.protocol.dpc.plan import ClientPlan, OutputPlan
from holdfast.protocol.dpc.signals import Arrival, Disconnected, InputAdvanced, InputGap, Lane, Received, Tick
from holdfast.protocol.dpc.states import StreamState
from holdfast.sim.query import Rows
from holdfast.sim.upstream_server import MainLog, Push, StreamServer
from holdfast.sim.world import World


class Machine:
    """What all hosts share: being up, paused, and talking."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.paused = 0
        #: Its queries stand still while it goes on answering.
        self.hung = 0
        self.backlog: list[tuple[str, Any]] = []
        #: Counts starts; a timer of an earlier life is void.
        self.life = 0
        world.hosts[name] = self

    def receive(self, sender: str, payload: Any) -> None:
        """A message has arrived."""

    def disconnected(self, peer: str) -> None:
        """The connection with the peer is known to be broken."""

    def pause(self) -> None:
        """Stand still without dying."""
        self.paused += 1

    def resume(self) -> None:
        """Go on with everything that waited."""
        self.paused -= 1
        if not self.paused and self.up:
            waiting, self.backlog = self.backlog, []
            for sender, payload in waiting:
                self.receive(sender, payload)
            self.wake(self.life)

    def crash(self) -> None:
        """Lose everything but the disk."""
        self.up = False
        self.life += 1
        self.backlog.clear()

    def start(self) -> None:
        """Come back from the disk."""
        self.up = True

    def wake(self, life: int) -> None:
        """A timer of this life has run out."""

    def say(self, to: str, message: Any, state: str) -> None:
        """Send a control message. Questions and acknowledgements interest no observer."""
        if not isinstance(message, KeepaliveRequest | Ack):
            for hook in self.world.observers.message:
                hook(self.world.now_us, self.name, to, message, state)
        self.world.send(self.name, to, message)


class Mirror:
    """The local copy of one input: main in order, and the fresh copies beside."""

    __slots__ = ("fresh", "have", "next")

    def __init__(self, first: int) -> None:
        self.next = first
        self.have: dict[int, Rows] = {}
        self.fresh: dict[int, Rows] = {}

    def take(self, push: Push) -> int:
        """Store a push; the boundary that holds here now, as the first bucket that is not closed."""
        if push.lane != Lane.MAIN:
            for bucket, rows, _ in push.items:
                self.fresh[bucket] = rows
            return push.closed
        if push.gap > self.next:
            self.next = push.gap
        for bucket, rows, _ in push.items:
            if bucket >= self.next:
                self.have[bucket] = rows
        while self.next < push.closed and self.next in self.have:
            self.next += 1
        return self.next

    def forget(self, below: int) -> None:
        """Nobody will read this again."""
        for known in (self.have, self.fresh):
            for bucket in [b for b in known if b < below]:
                del known[bucket]


class SourceHost(Machine):
    """A data source and its proxy (003 §4.10.2): logs, timestamps, promises, and sends to all who ask."""

    def __init__(
        self, world: World, name: str, plan: OutputPlan, size: int, rows: list[Rows], jitter_us: int, promises: int
    ) -> None:
        super().__init__(world, name)
        self._promises = promises
        self.plan = plan
        self.size = size
        self.rows = rows
        self.log = MainLog()
        self.buffer = Buffer(plan, 0)
        self.silent = 0
        self._produced = 0
        self.serving = StreamServer(world, name, plan.stream, size, self.log, lambda: ({}, 0), lambda: "SOURCE")
        world.at(size + jitter_us, self._produce)

    def replan(self, gone: frozenset[str]) -> None:
        """Other replicas read it."""
        self.buffer.replan(replace(self.plan, readers=tuple(r for r in self.plan.readers if r not in gone)))

    def _produce(self) -> None:
        now = self.world.now_us
        self.world.at(now + self.size, self._produce)
        bucket = self._produced
        limit_us = self.buffer.limit_us()
        if limit_us is not None and (bucket + 1) * self.size > limit_us:
            self.rows[bucket] = ()
            for hook in self.world.observers.produce:
                hook(now, self.name, -1, self._produced, self.log.kept)
        self._produced += 1
        for hook in self.world.observers.produce:
            hook(now, self.name, bucket, self._produced, self.log.kept)
        if self.silent or self._produced % self._promises:
            self.serving.open_rows[bucket] = self.rows[bucket]
        else:
            self._promise()
        self._truncate()
        if self.up and not self.paused:
            self.serving.flush()

    def _promise(self) -> None:
        while self.log.next < self._produced:
            self.log.append(self.rows[self.log.next])
        self.serving.open_rows.clear()

    def speak(self) -> None:
        """Boundaries are sent again."""
        self.silent -= 1
        if not self.silent:
            self._promise()
            if self.up and not self.paused:
                self.serving.flush()

    def _truncate(self) -> None:
        order = self.buffer.truncate(self.log.next * self.size)
        if order is not None:
            for hook in self.world.observers.truncate:
                hook(self.world.now_us, self.name, order.upto_us, order.lost_us)
            self.log.truncate(order.upto_us // self.size)

    def receive(self, sender: str, payload: Any) -> None:
        """Requests, subscriptions and acknowledgements from the first nodes."""
        if isinstance(payload, KeepaliveRequest):
            report = StreamReport(self.plan.stream, StreamState.STABLE, self.log.next * self.size, False)
            self.say(sender, KeepaliveReply((report,)), "SOURCE")
        elif isinstance(payload, Subscribe):
            self.serving.subscribe(sender, payload)
        elif isinstance(payload, Unsubscribe):
            self.serving.unsubscribe(sender, payload)
        elif isinstance(payload, Ack):
            self.buffer.ack(sender, payload.upto_us)
            self._truncate()

    def crash(self) -> None:
        """The proxy dies; the log stays."""
        super().crash()
        self.serving.clear()

    def wake(self, life: int) -> None:
        """After a pause: send what has come in meanwhile."""
        self.serving.flush()


def arrivals_of(push: Push) -> tuple[Arrival, ...]:
    """What a push brings, as a core wants to hear it."""
    return tuple([Arrival(bucket, len(rows), worth) for bucket, rows, worth in push.items])


class ClientHost(Machine):
    """The client and its proxy on one machine (003 §4.10.1)."""

    def __init__(self, world: World, plan: ClientPlan) -> None:
        super().__init__(world, plan.client)
        self.core = ClientCore(plan, 0, world.now_us)
        self.size = plan.bucket_us
        self.mirror = Mirror(0)
        self._timer_us = 0
        world.at(world.now_us, self.wake, 0)

    @property
    def table_rows(self) -> set[int]:
        """Rows of table 4.3 taken."""
        return self.core.upstream.rows

    def receive(self, sender: str, payload: Any) -> None:
        """Tuples or an answer from the last node."""
        if isinstance(payload, Push):
            if payload.gap > self.mirror.next:
                self._do(InputGap(payload.stream, payload.gap * self.size))
                for hook in self.world.observers.hole:
                    hook(self.world.now_us, self.name, self.mirror.next, payload.gap)
            closed = self.mirror.take(payload)
            arrivals = arrivals_of(payload)
            self._do(InputAdvanced(payload.stream, sender, payload.lane, closed * self.size, arrivals))
        else:
            self._do(Received(sender, payload))

    def disconnected(self, peer: str) -> None:
        """Tell the core."""
        if peer in self.core.monitor.replicas:
            self._do(Disconnected(peer))

    def wake(self, life: int) -> None:
        """Tell the core what time it is."""
        if self.up and not self.paused and self.world.now_us >= self._timer_us:
            self._do(Tick())

    def _do(self, signal: Any) -> None:
        now = self.world.now_us
        effects = self.core.handle(signal, now)
        for step in effects.deliver:
            have = self.mirror.have if step.kind is TupleType.INSERTION else self.mirror.fresh
            self.world.observers.delivered(now, self.name, step.kind.name, step.bucket, step.end, have)
        for gone in effects.unsubscribe:
            self.world.send(self.name, gone.replica, gone)
        for new in effects.subscribe:
            self.world.send(self.name, new.replica, new)
        for send in effects.send:
            self.say(send.to, send.message, "CLIENT")
        if effects.deliver:
            self.mirror.forget(self.core.sequence.next)
        if effects.wake_us != self._timer_us:
            self._timer_us = effects.wake_us
            self.world.at(self._timer_us, self.wake, self.life)
