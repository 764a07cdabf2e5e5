"""Virtual time and a network of connections: what every simulated host stands on.

Rules:
1. Time is a heap of (time, sequence): nothing happens twice at the same place in it, so a run is repeatable.
2. The network carries connections, not packets (003 §4.1.2 assumes TCP): messages on a link arrive in order; a break
   loses whatever is in flight and everything later, until the receiver subscribes again.
3. A paused host loses nothing: messages and timers wait. A crashed one loses everything but its disk.
4. Cuts nest: a link works when no fault holds it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from holdfast.sim.observe import Observers


class Host(Protocol):
    """What the world needs to know of a host."""

    name: str
    up: bool
    paused: int

    def receive(self, sender: str, payload: Any) -> None:
        """A message has arrived."""

    def disconnected(self, peer: str) -> None:
        """A connection with the peer is known to be broken."""


class Link:
    """One direction between two hosts."""

    __slots__ = ("cuts", "epoch", "extra_us", "last_us", "latency_us", "lose", "repeat")

    def __init__(self, latency_us: int) -> None:
        self.latency_us = latency_us
        self.extra_us = 0
        self.cuts = 0
        #: Counts the breaks: what was sent in an earlier epoch does not arrive.
        self.epoch = 0
        self.last_us = 0
        #: The chance generators of the faults that lose or repeat messages here.
        self.lose: Random | None = None
        self.repeat: Random | None = None


class World:
    """The clock, the hosts and the links between them."""

    def __init__(self, observers: Observers) -> None:
        self.now_us = 0
        self.observers = observers
        self.hosts: dict[str, Any] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.events = 0

    def at(self, time_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do something at a later time."""
        self._sequence += 1
        heapq.heappush(self._heap, (time_us, self._sequence, action, args))

    def run(self, until_us: int) -> None:
        """Let time pass."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_us:
            self.now_us, _, action, args = pop(heap)
            self.events += 1
            action(*args)
        self.now_us = until_us

    # The network ------------------------------------------------------------------------------------------------

    #: Chance that a faulty link loses a message of the control kind, or repeats one; data losses break the connection.
    LOSE = 0.25
    BREAK = 0.03
    REPEAT = 0.4

    def send(self, sender: str, to: str, payload: Any, data: bool = False) -> None:
        """Put a message on the link; it arrives, or not."""
        link = self.links[(sender, to)]
        if link.cuts:
            return
        if link.lose is not None:
            chance = link.lose.random()
            if data and chance < self.BREAK:
                self.break_link(sender, to, noticed=False)
                return
            if not data and chance < self.LOSE:
                return
        arrival = max(link.last_us + 1, self.now_us + link.latency_us + link.extra_us)
        link.last_us = arrival
        self.at(arrival, self._arrive, link, link.epoch, sender, to, payload)
        if link.repeat is not None and link.repeat.random() < self.REPEAT:
            again = arrival if data else arrival + link.repeat.randrange(200_000)
            self.at(again, self._arrive, link, link.epoch, sender, to, payload)

    def _arrive(self, link: Link, epoch: int, sender: str, to: str, payload: Any) -> None:
        if link.epoch != epoch:
            return
        host = self.hosts[to]
        if host.up:
            if host.paused:
                host.backlog.append((sender, payload))
            else:
                host.receive(sender, payload)

    def break_link(self, sender: str, to: str, noticed: bool) -> None:
        """Whatever is in flight on this link is lost."""
        link = self.links[(sender, to)]
        link.epoch += 1
        link.last_us = self.now_us
        if noticed:
            self.at(self.now_us + link.latency_us, self._notice, to, sender)

    def cut(self, sender: str, to: str) -> None:
        """The link goes down."""
        self.break_link(sender, to, noticed=False)
        self.links[(sender, to)].cuts += 1

    def mend(self, sender: str, to: str, noticed: bool) -> None:
        """One fault less holds the link; the receiver may learn that the old connection is dead."""
        link = self.links[(sender, to)]
        link.cuts -= 1
        if noticed and not link.cuts:
            self.at(self.now_us + link.latency_us, self._notice, to, sender)

    def _notice(self, host: str, peer: str) -> None:
        if self.hosts[host].up and not self.hosts[host].paused:
            self.hosts[host].disconnected(peer)
