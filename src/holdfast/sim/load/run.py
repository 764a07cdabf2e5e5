"""One scenario from its first message to its judgement."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.sim.load.checks import Checker
from holdfast.sim.load.hostile import CHEATS, Fairness
from holdfast.sim.load.scenario import HEAL_US, HOSTILE, SECOND_US, Crash, Scenario
from holdfast.sim.load.world import Network, Violation, World

#: Static load must come to rest within this much virtual time after the faults; chains of seven nodes with forty tasks
#: to push through one by one need some eighty seconds.
REST_US = 240 * SECOND_US
#: No movement for so long, with nothing on its way, is rest.
QUIET_US = 6 * SECOND_US
#: Leases never stop being renewed; after so long without new tasks their books are compared.
DYNAMIC_US = 25 * SECOND_US
#: With cheats about, honest ones settle among themselves within this much more.
CHEATED_US = 20 * SECOND_US


@dataclass(slots=True)
class Outcome:
    """What one scenario showed."""

    seed: int
    kind: str
    violations: list[Violation]
    moves: int
    events: int
    virtual_us: int
    crashes: int = 0
    judged: dict[str, int] = field(default_factory=dict)
    loads: tuple[int, ...] = ()


def run(scenario: Scenario) -> Outcome:
    """Play a scenario and judge it."""
    world = World(list(scenario.plans), {name: list(tasks) for name, tasks in scenario.tasks.items()}, scenario.seed)
    checker = Checker(scenario, world)
    fairness = Fairness(scenario, world) if scenario.cheats else None
    world.watchers.append(checker if fairness is None else fairness)
    world.cheats = {name: CHEATS[way] for name, way in scenario.cheats.items()}
    expected = sum(map(len, scenario.tasks.values()))
    if scenario.faulty:
        world.network = Network((1_000, 30_000), lose=0.15, repeat=0.15, transfer_us=20_000, move_fails=0.1)
    else:
        world.network = Network((1_000, 5_000), transfer_us=5_000)
    for name in world.hosts:
        world.start(name)
    for crash in scenario.crashes:
        world.at(crash.at_us, _crash, world, crash)
    for change in scenario.changes:
        expected += 1 if change.task is not None else 0
        if change.task is None:
            expected -= 1
            world.at(change.at_us, _leave, world, change.participant, change.task_id)
        else:
            world.at(change.at_us, _come, world, change.participant, change.task)
    expected += _finished_twice(scenario)
    world.run(HEAL_US)
    world.network = Network((1_000, 5_000), transfer_us=5_000)
    for host in world.hosts.values():
        host.crash_after = None
    world.run(HEAL_US + 2 * SECOND_US)
    _settle(scenario, world, checker)
    if fairness is None:
        checker.judge(expected)
    else:
        fairness.judge()
        checker.violations, checker.judged = fairness.violations, fairness.judged
    loads = tuple(len(host.running) for host in world.hosts.values())
    kind = HOSTILE if scenario.cheats else scenario.kind
    return Outcome(scenario.seed, kind, checker.violations, world.moves, world.events, world.now_us,
                   len(scenario.crashes), checker.judged, loads)  # fmt: skip


def _finished_twice(scenario: Scenario) -> int:
    """A task that a schedule ends twice is one task less, not two."""
    ended = [change.task_id for change in scenario.changes if change.task is None]
    return len(ended) - len(set(ended))


def _crash(world: World, crash: Crash) -> None:
    if crash.effects is None:
        world.crash(crash.participant, crash.down_us)
    else:
        world.crash_during(crash.participant, crash.effects, crash.down_us)


def _leave(world: World, name: str, task_id: str) -> None:
    """Clients end their tasks when the participant can hear them."""
    if world.hosts[name].up:
        world.finish(name, task_id)
    else:
        world.at(world.now_us + 100_000, _leave, world, name, task_id)


def _come(world: World, name: str, task: object) -> None:
    world.add(name, task)  # type: ignore[arg-type]


def _settle(scenario: Scenario, world: World, checker: Checker) -> None:
    if not scenario.static:
        # Let leases that begin before the end reach a state in which both sides know the same.
        world.run(HEAL_US + DYNAMIC_US)
        for host in world.hosts.values():
            assert host.core is not None
            host.core.buyer.next_us = 2**62
        longest_us = REST_US if not scenario.cheats else DYNAMIC_US + CHEATED_US
        while not _books_closed(world, scenario) and world.now_us < HEAL_US + longest_us:
            world.run(world.now_us + 50_000)
        return
    while world.now_us < HEAL_US + REST_US:
        world.run(world.now_us + SECOND_US)
        if world.now_us > world.last_move_us + QUIET_US and _books_closed(world, scenario):
            return
    checker.violations.append(
        Violation("B4", world.now_us, f"still moving after {REST_US // SECOND_US} s: {world.moves}")
    )


def _books_closed(world: World, scenario: Scenario) -> bool:
    """Whether nothing is on its way between two honest sides."""
    for name, host in world.hosts.items():
        if host.core is None:
            return False
        for lease in host.core.book.leases.values():
            if name in scenario.cheats or lease.partner in scenario.cheats:
                continue
            asked = lease.role is Role.BUYER and lease.asked > host.core.ledger.last(lease.lease_id)
            if lease.state is not LeaseState.RUNNING or asked:
                return False
    return True
