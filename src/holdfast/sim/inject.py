"""Carries out a fault plan: strikes, waits for states, heals."""

from __future__ import annotations

from random import Random

from holdfast.sim.faults import FIRST, HEAL_US, LINKS, REPLICAS, SOURCES, Fault, Plan
from holdfast.sim.observe import Observer
from holdfast.sim.world import World

#: How much slower a slow link is: below the shortest delay, so that it is a nuisance and not a cut.
_SLOW_US = (60_000, 350_000)
#: How long before the healing a fault gives up waiting for its state.
_PATIENCE_US = 700_000


class Injector(Observer):
    """The faults of one plan at work. It listens to states so that a fault can wait for one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._armed: list[tuple[int, Fault]] = []
        self._active: dict[int, Fault] = {}
        self.struck: dict[str, int] = {}
        self.pairs: set[tuple[str, str]] = set()
        self._over = False
        #: Replicas that are not part of the deployment now.
        self._gone: frozenset[str] = frozenset()

    def begin(self, world: World) -> None:
        """Put the plan on the clock."""
        self._world = world
        for index, fault in enumerate(self._plan.faults):
            world.at(fault.start_us, self._due, index, fault)
        world.at(HEAL_US - _PATIENCE_US, self._strike_all)
        world.at(HEAL_US, self._heal_all)

    def _due(self, index: int, fault: Fault) -> None:
        if not fault.when or self._world.hosts[fault.watch].state == fault.when:
            self._strike(index, fault)
        else:
            self._armed.append((index, fault))

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Strike what was waiting for this; not at once, since the host is in the middle of a step."""
        for index, fault in [entry for entry in self._armed if entry[1].watch == host and entry[1].when == after]:
            self._armed.remove((index, fault))
            self._world.at(now_us + 1, self._strike, index, fault)

    def _strike_all(self) -> None:
        """Whatever still waits for a state strikes now: every fault of a plan does."""
        waiting, self._armed = self._armed, []
        for index, fault in waiting:
            self._strike(index, fault)

    def _strike(self, index: int, fault: Fault) -> None:
        if self._over:
            return
        world = self._world
        victims = [host for host in self._victims(fault) if host in REPLICAS]
        for host in victims:
            self.pairs.add((world.hosts[host].state, fault.kind))
        self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1
        self._active[index] = fault
        self._apply(index, fault)
        for hook in world.observers.fault:
            hook(world.now_us, fault, True)
        world.at(world.now_us + fault.length_us, self._heal, index)

    def _victims(self, fault: Fault) -> tuple[str, ...]:
        return FIRST if fault.kind == "silent" else fault.targets

    def _apply(self, index: int, fault: Fault) -> None:
        world, hosts = self._world, self._world.hosts
        rng = Random(f"{self._plan.seed}/fault/{index}")
        if fault.kind == "crash":
            name = fault.targets[0]
            if hosts[name].up:
                hosts[name].crash()
                if fault.disk:
                    hosts[name].lose_disk()
                if fault.left:
                    self._replan(name, here=False)
                for a, b in world.links:
                    if name in (a, b):
                        world.break_link(a, b, fault.noticed)
        elif fault.kind == "pause":
            hosts[fault.targets[0]].pause()
        elif fault.kind == "hang":
            hosts[fault.targets[0]].hung += 1
        elif fault.kind == "silent":
            hosts[fault.targets[0]].silent += 1
        else:
            for a, b in self._links(fault):
                link = world.links[(a, b)]
                if fault.kind in ("cut", "oneway", "partition"):
                    world.cut(a, b)
                elif fault.kind == "slow":
                    link.extra_us += rng.randrange(*_SLOW_US)
                elif fault.kind == "lose":
                    link.lose = rng
                else:
                    link.repeat = rng

    def _replan(self, name: str, here: bool) -> None:
        """Take a replica out of the deployment, or add it again: all who have to do with it are told."""
        if here == (name not in self._gone):
            return
        self._gone = self._gone - {name} if here else self._gone | {name}
        for hook in self._world.observers.member:
            hook(self._world.now_us, name, here)
        for host in (*SOURCES, *REPLICAS):
            self._world.hosts[host].replan(self._gone)

    def _links(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.kind == "oneway":
            return [(fault.targets[0], fault.targets[1])]
        if fault.kind == "partition":
            group = fault.targets
            pairs = [(a, b) for a, b in LINKS if (a in group) != (b in group)]
        else:
            pairs = [(fault.targets[0], fault.targets[1])]
        return [way for a, b in pairs for way in ((a, b), (b, a))]

    def _heal(self, index: int) -> None:
        fault = self._active.pop(index, None)
        if fault is None:
            return
        world, hosts = self._world, self._world.hosts
        if fault.kind == "crash":
            name = fault.targets[0]
            if not hosts[name].up and not self._still("crash", name):
                self._replan(name, here=True)
                hosts[name].start()
        elif fault.kind == "pause":
            hosts[fault.targets[0]].resume()
        elif fault.kind == "hang":
            hosts[fault.targets[0]].hung -= 1
        elif fault.kind == "silent":
            hosts[fault.targets[0]].speak()
        else:
            self._heal_links(fault)
        for hook in world.observers.fault:
            hook(world.now_us, fault, False)

    def _heal_links(self, fault: Fault) -> None:
        for a, b in self._links(fault):
            link = self._world.links[(a, b)]
            if fault.kind in ("cut", "oneway", "partition"):
                self._world.mend(a, b, fault.noticed)
            elif not self._still_link(fault.kind, a, b):
                if fault.kind == "slow":
                    link.extra_us = 0
                elif fault.kind == "lose":
                    link.lose = None
                else:
                    link.repeat = None

    def _still(self, kind: str, name: str) -> bool:
        return any(f.kind == kind and name in f.targets for f in self._active.values())

    def _still_link(self, kind: str, a: str, b: str) -> bool:
        return any(f.kind == kind and set(f.targets) == {a, b} for f in self._active.values())

    def _heal_all(self) -> None:
        self._over = True
        for index in list(self._active):
            self._heal(index)
