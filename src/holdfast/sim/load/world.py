"""Participants with real cores, a network and hosts that crash, under virtual time.

Rules:
1. Time and chance come from the scenario's seed; what a seed does never depends on anything else.
2. A host keeps its records and its running tasks through a crash, and nothing else. A crash may strike between any two
   of the effects of one signal, in the order in which `Effects` says they are carried out; its records are one effect.
3. A task is moved in one step here, when both hosts are up: what happens at every point of a real movement is not this
   simulator's matter (B7).
4. Observers see everything and change nothing.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.protocol.load.effects import Drop, Effects, Fetch, Move, Reclaim, Send
from holdfast.protocol.load.leases import LeaseState
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.records import Record
from holdfast.protocol.load.signals import (
    Arrived,
    Finished,
    Measured,
    Moved,
    MoveFailed,
    Received,
    Returned,
    Signal,
    Tick,
)
from holdfast.protocol.load.usage import Task


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    label: str
    time_us: int
    text: str


class Watcher:
    """What can be seen from outside. Checkers override what they need."""

    def on_record(self, now_us: int, host: str, record: Record) -> None:
        """Something became durable."""

    def on_send(self, now_us: int, sender: str, to: str, message: Message) -> None:
        """A message left."""

    def on_deliver(self, now_us: int, sender: str, to: str, message: Message) -> None:
        """A message is about to be handled."""

    def on_move(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """A task is about to change hands under a lease."""

    def on_return(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """A task is about to come back."""

    def on_crash(self, now_us: int, host: str) -> None:
        """A host went down."""


@dataclass(frozen=True, slots=True)
class Network:
    """How messages travel."""

    latency_us: tuple[int, int] = (0, 0)
    """Shortest and longest."""
    lose: float = 0.0
    repeat: float = 0.0
    transfer_us: int = 0
    """How long a movement takes."""
    move_fails: float = 0.0


@dataclass(slots=True)
class Host:
    """One participant's process and disk."""

    plan: ParticipantPlan
    running: dict[str, Task]
    core: ParticipantCore | None = None
    journal: list[Record] = field(default_factory=list)
    life: int = 0
    started_us: int = 0
    wake_us: int = 0
    crash_after: int | None = None
    """Go down after so many more effects."""
    down_us: int = 0

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return self.core is not None


class World:
    """Hosts, a network, and a queue of what happens next."""

    def __init__(self, plans: list[ParticipantPlan], tasks: dict[str, list[Task]], seed: int = 0) -> None:
        self.now_us = 0
        self.network = Network()
        self.random = random.Random(seed)
        self.watchers: list[Watcher] = []
        self.hosts = {p.name: Host(p, {t.task_id: t for t in tasks.get(p.name, [])}) for p in plans}
        self.cheats: dict[str, Callable[[Message, random.Random], list[Message]]] = {}
        """Hosts that say something else than their cores mean."""
        self.moves = 0
        self.last_move_us = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0

    def at(self, time_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do this then."""
        self._seq += 1
        heapq.heappush(self._heap, (time_us, self._seq, action, args))

    def run(self, until_us: int) -> None:
        """Everything up to then."""
        while self._heap and self._heap[0][0] <= until_us:
            self.now_us, _, action, args = heapq.heappop(self._heap)
            self.events += 1
            action(*args)
        self.now_us = until_us

    # Hosts ------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """A host comes up with what its disk holds."""
        host = self.hosts[name]
        if host.up:
            return
        host.life += 1
        host.started_us = self.now_us
        host.core = ParticipantCore(host.plan, host.journal, self.now_us)
        self.tell(name, Measured(tuple(host.running.values())))
        for task_id in list(host.running):
            self.tell(name, Arrived(task_id))

    def crash(self, name: str, down_us: int) -> None:
        """A host goes down for a while; what it had not recorded is gone."""
        host = self.hosts[name]
        if not host.up:
            return
        self.at(self.now_us + down_us, self.start, name)
        host.core = None
        host.crash_after = None
        for watcher in self.watchers:
            watcher.on_crash(self.now_us, name)

    def crash_during(self, name: str, effects: int, down_us: int) -> None:
        """The host goes down while it carries out what follows from something, after so many effects."""
        if self.hosts[name].up:
            self.hosts[name].crash_after = effects
            self.hosts[name].down_us = down_us

    def finish(self, name: str, task_id: str) -> None:
        """A client ends a task of its own."""
        self.hosts[name].running.pop(task_id, None)
        self.tell(name, Finished(task_id))

    def add(self, name: str, task: Task) -> None:
        """A client brings a task."""
        host = self.hosts[name]
        host.running[task.task_id] = task
        self.tell(name, Measured(tuple(host.running.values())))

    def tell(self, name: str, signal: Signal) -> None:
        """A signal to a core, if it lives."""
        host = self.hosts[name]
        if host.core is None:
            return
        effects = host.core.handle(signal, self.now_us)
        self._carry_out(name, host, effects)

    def _tick(self, name: str, life: int, wake_us: int) -> None:
        host = self.hosts[name]
        if host.up and host.life == life and host.wake_us == wake_us:
            self.tell(name, Tick())

    def _carry_out(self, name: str, host: Host, effects: Effects) -> None:
        steps: list[Any] = [effects.record, *effects.send, *effects.move, *effects.fetch, *effects.reclaim,
                            *effects.drop]  # fmt: skip
        for step in steps[0 if effects.record else 1 :]:
            if host.crash_after is not None:
                if host.crash_after == 0:
                    self.crash(name, host.down_us)
                    return
                host.crash_after -= 1
            if isinstance(step, Send):
                self._send(name, step.to, step.message)
            elif isinstance(step, Move):
                self.at(self.now_us + self.network.transfer_us, self._move, name, host.life, step)
            elif isinstance(step, Fetch):
                self.at(self.now_us + self.network.transfer_us, self._fetch, name, host.life, step)
            elif isinstance(step, Reclaim):
                self.at(self.now_us + self.network.transfer_us, self._reclaim, name, host.life, step)
            elif isinstance(step, Drop):
                host.running.pop(step.lease_id, None)
            else:
                self._keep(name, host, step)
        if host.crash_after == 0:
            self.crash(name, host.down_us)
            return
        host.wake_us = effects.wake_us
        self.at(effects.wake_us, self._tick, name, host.life, effects.wake_us)

    def _keep(self, name: str, host: Host, records: tuple[Record, ...]) -> None:
        host.journal += records
        for watcher in self.watchers:
            for record in records:
                watcher.on_record(self.now_us, name, record)

    # The network ------------------------------------------------------------------------------------------------

    def _send(self, sender: str, to: str, message: Message) -> None:
        cheat = self.cheats.get(sender)
        for said in [message] if cheat is None else cheat(message, self.random):
            self._say(sender, to, said)

    def _say(self, sender: str, to: str, message: Message) -> None:
        for watcher in self.watchers:
            watcher.on_send(self.now_us, sender, to, message)
        network, chance = self.network, self.random
        copies = 1
        if network.lose and chance.random() < network.lose:
            copies = 0
        elif network.repeat and chance.random() < network.repeat:
            copies = 2
        for _ in range(copies):
            low, high = network.latency_us
            latency = low if high <= low else chance.randint(low, high)
            self.at(self.now_us + latency, self._arrive, sender, to, message)

    def _arrive(self, sender: str, to: str, message: Message) -> None:
        if not self.hosts[to].up:
            return
        for watcher in self.watchers:
            watcher.on_deliver(self.now_us, sender, to, message)
        self.tell(to, Received(sender, message))

    # Movements --------------------------------------------------------------------------------------------------

    def _move(self, name: str, life: int, step: Move) -> None:
        source, target = self.hosts[name], self.hosts[step.to]
        if not source.up or source.life != life:
            return
        if step.lease_id in target.running:
            self.tell(name, Moved(step.lease_id))
            return
        lost = self.network.move_fails and self.random.random() < self.network.move_fails
        lease = None if target.core is None else target.core.book.leases.get(step.lease_id)
        expected = lease is not None and lease.state is LeaseState.MOVING  # No lease, no guest.
        if not expected or lost or step.task.task_id not in source.running:
            self.tell(name, MoveFailed(step.lease_id))
            return
        for watcher in self.watchers:
            watcher.on_move(self.now_us, name, step.to, step.lease_id, step.task)
        task = source.running.pop(step.task.task_id)
        target.running[step.lease_id] = replace(task, task_id=step.lease_id)
        self.moves += 1
        self.last_move_us = self.now_us
        self.tell(step.to, Arrived(step.lease_id))
        self.tell(name, Moved(step.lease_id))

    def _fetch(self, name: str, life: int, step: Fetch) -> None:
        home, away = self.hosts[name], self.hosts[step.from_]
        if not home.up or home.life != life:
            return
        if step.task.task_id in home.running:
            self.tell(name, Returned(step.lease_id))
            return
        if not away.up or step.lease_id not in away.running:
            return
        for watcher in self.watchers:
            watcher.on_return(self.now_us, step.from_, name, step.lease_id, step.task)
        task = away.running.pop(step.lease_id)
        home.running[step.task.task_id] = replace(task, task_id=step.task.task_id)
        self.moves += 1
        self.last_move_us = self.now_us
        self.tell(name, Returned(step.lease_id))

    def _reclaim(self, name: str, life: int, step: Reclaim) -> None:
        """The task goes on at home, whatever became of it there: results count once (`load.mover`, rule 4)."""
        home = self.hosts[name]
        if not home.up or home.life != life:
            return
        if step.task.task_id not in home.running:
            home.running[step.task.task_id] = step.task
            self.moves += 1
            self.last_move_us = self.now_us
        self.tell(name, Returned(step.lease_id))
