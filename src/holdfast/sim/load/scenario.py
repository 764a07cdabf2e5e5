"""A random contract graph with participants, tasks and faults: everything that one seed decides.

Rules:
1. Four kinds. "lemma": homogeneous nodes, tasks and contracts with exactly the price range of Lemma 1, static load;
   what theorem 2 promises must come about. "fixed": static load, fixed prices that differ. "mixed": tasks of different
   size and kind, contracts with different ranges, clauses and periods, static load. "dynamic": the same, with tasks
   that come and go and leases that end.
2. In every tenth graph, which is then of the kind "dynamic" with cheats in it, some participants are hostile
   (`hostile`).
3. Half of the schedules have faults for the first seconds: lost, late and repeated messages, crashes between any two
   effects, movements that fail. Then everything is healed, and what must hold in the end is checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import MM1, Cost, Levels
from holdfast.protocol.load.counter import AboveValuation, Asking, AtValuation, Equilibrium
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Task, Usage

KINDS = ("lemma", "fixed", "mixed", "dynamic")
HOSTILE = "hostile"
#: Ways to cheat; `hostile.CHEATS` says what each of them does.
CHEATS = (
    "never-pays", "pays-for-nothing", "calls-it-failed", "vanishes", "admits-nothing", "pays-ahead",
    "offers-less-than-nothing", "overcharges", "charges-ahead", "puts-out", "keeps", "recalls", "never-ends", "forges",
)  # fmt: skip
SECOND_US = 1_000_000
HEAL_US = 6 * SECOND_US
#: One graph in so many has cheats in it, unless another kind was asked for.
HOSTILE_EVERY, _HOSTILE = 10, 3
#: Definitions that tasks are instances of; contracts may permit only some.
DEFINITIONS = ("count", "join", "filter")


@dataclass(frozen=True, slots=True)
class Change:
    """A task that comes (with a task) or goes."""

    at_us: int
    participant: str
    task_id: str
    task: Task | None


@dataclass(frozen=True, slots=True)
class Crash:
    """A host goes down: at once, or after so many effects of what it does next."""

    at_us: int
    participant: str
    down_us: int
    effects: int | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One seed's world."""

    seed: int
    kind: str
    faulty: bool
    plans: tuple[ParticipantPlan, ...]
    contracts: tuple[Contract, ...]
    tasks: dict[str, list[Task]]
    changes: tuple[Change, ...]
    crashes: tuple[Crash, ...]
    diameter: int
    cheats: dict[str, str]
    """Participants that cheat, and how."""

    @property
    def static(self) -> bool:
        """Load is moved by the mechanism alone."""
        return self.kind != "dynamic"


def draw(seed: int, kind: str = "", faulty: bool | None = None) -> Scenario:
    """The scenario of a seed; kind and faults can be asked for."""
    chance = random.Random(seed)
    hostile = kind == HOSTILE or (not kind and seed % HOSTILE_EVERY == _HOSTILE)
    kind = ("dynamic" if hostile else kind) or chance.choice(KINDS)
    faulty = chance.random() < 0.5 if faulty is None else faulty
    names = [f"p{i}" for i in range(chance.randint(2, 7))]
    pairs = _graph(names, chance)
    width = _diameter(names, pairs)
    cost, unit, price = _prices(kind, width, chance)
    contracts = _contracts(kind, pairs, price, width, cost, unit, chance)
    plans = tuple(_plan(name, kind, cost, contracts, chance) for name in names)
    tasks = {name: _tasks(name, kind, unit, price, cost, chance) for name in names}
    changes = _changes(names, tasks, unit, chance) if kind == "dynamic" else ()
    crashes = _crashes(names, chance) if faulty else ()
    return Scenario(seed, kind, faulty, plans, contracts, tasks, changes, crashes, width,
                    _cheats(names, seed) if hostile else {})  # fmt: skip


def _cheats(names: list[str], seed: int) -> dict[str, str]:
    """A third of the participants, at least one; from chances of their own, so that the graph is the same."""
    chance = random.Random(f"{seed}/cheats")
    chosen = chance.sample(names, max(1, len(names) // 3))
    return {name: chance.choice(CHEATS) for name in chosen}


def _graph(names: list[str], chance: random.Random) -> list[tuple[str, str]]:
    """A random tree and a few more edges."""
    edges = {(names[chance.randrange(i)], names[i]) for i in range(1, len(names))}
    for _ in range(chance.randrange(len(names))):
        a, b = chance.sample(range(len(names)), 2)
        edges.add((names[min(a, b)], names[max(a, b)]))
    return sorted(edges)


def _diameter(names: list[str], pairs: list[tuple[str, str]]) -> int:
    far = len(names) * 2
    steps = {(a, b): 0 if a == b else far for a in names for b in names}
    for a, b in pairs:
        steps[a, b] = steps[b, a] = 1
    for via in names:
        for a in names:
            for b in names:
                steps[a, b] = min(steps[a, b], steps[a, via] + steps[via, b])
    return max(steps.values())


def _prices(kind: str, width: int, chance: random.Random) -> tuple[Cost, Usage, float]:
    """A cost function, the usual task, and the price at which a node of it is full."""
    tasks = chance.randint(width + 3, width + 10)
    if chance.random() < 0.7:
        return Levels(), Usage(1.0), float(tasks)
    # M/M/1 with room for about twice as many: the price is the marginal cost between the last task and one more.
    unit = Usage(1.0)
    cost = MM1(Usage(cpu=tasks * 2.0))
    below, above = cost.marginal(unit, unit.times(tasks - 1)), cost.marginal(unit, unit.times(tasks))
    return cost, unit, (below + above) / 2


def _contracts(
    kind: str, pairs: list[tuple[str, str]], price: float, width: int, cost: Cost, unit: Usage, chance: random.Random
) -> tuple[Contract, ...]:
    found = []
    lowest = _lowest(price, width, cost, unit)
    for a, b in pairs:
        for buyer, seller in ((a, b), (b, a)):
            name = f"{buyer}>{seller}"
            if kind == "lemma":
                found.append(Contract(name, buyer, seller, lowest, price))
                continue
            high = price * chance.choice((0.7, 0.85, 1.0))
            low = high if kind == "fixed" or chance.random() < 0.3 else high * chance.choice((0.6, 0.8))
            period_us = chance.choice((1, 1, 2)) * SECOND_US
            permits = None if chance.random() < 0.7 else tuple(chance.sample(DEFINITIONS, 2))
            onward = chance.random() < 0.7
            found.append(Contract(name, buyer, seller, low, high, period_us, permits, onward))
    return tuple(found)


def _lowest(price: float, width: int, cost: Cost, unit: Usage) -> float:
    """Lemma 1, computed here by counting tasks up: the oracle must not be the code that it judges.

    With steps of equal height the seeds' own FixedPrice − δ is enough; see `protocol.load.band` for the others.
    """
    full = 0
    while cost.total(unit.times(full + 1)) - cost.total(unit.times(full)) <= price:
        full += 1
    top = cost.total(unit.times(full)) - cost.total(unit.times(full - 1))
    keep = full - (width - 1)
    bottom = cost.total(unit.times(keep)) - cost.total(unit.times(keep - 1))
    return price - (top - bottom) if isinstance(cost, Levels) else bottom


def _plan(name: str, kind: str, cost: Cost, contracts: tuple[Contract, ...], chance: random.Random) -> ParticipantPlan:
    mine = tuple(c for c in contracts if name in (c.buyer, c.seller))
    asking: Asking = chance.choice((AtValuation(), AboveValuation(1.0), Equilibrium(4)))
    gather_us = 0 if chance.random() < 0.6 else 60_000
    margin = 0.0 if kind == "lemma" or chance.random() < 0.6 else 0.02
    start_us = chance.randrange(SECOND_US)
    return ParticipantPlan(name, cost, mine, gather_us=gather_us, margin=margin, asking=asking,
                           returns=kind == "dynamic", start_us=start_us)  # fmt: skip


def _tasks(name: str, kind: str, unit: Usage, price: float, cost: Cost, chance: random.Random) -> list[Task]:
    full = 1
    while cost.marginal(unit, unit.times(full)) <= price:
        full += 1
    count = chance.choice((0, 1, full // 2, full, full * 2, full * 3))
    return [task(f"{name}.{k}", kind, unit, chance) for k in range(count)]


def task(task_id: str, kind: str, unit: Usage, chance: random.Random) -> Task:
    """One task; of different sizes and kinds unless all must be alike."""
    if kind in ("lemma", "fixed"):
        return Task(task_id, unit, DEFINITIONS[0])
    migration = chance.choice((0.0, 0.0, 0.05))
    return Task(task_id, unit.times(chance.choice((0.5, 1.0, 1.0, 2.0))), chance.choice(DEFINITIONS), migration)


def _changes(names: list[str], tasks: dict[str, list[Task]], unit: Usage, chance: random.Random) -> tuple[Change, ...]:
    """Bursts and departures within the first seconds."""
    found = []
    for k in range(chance.randrange(4, 20)):
        name = chance.choice(names)
        at_us = chance.randrange(HEAL_US)
        if chance.random() < 0.5 or not tasks[name]:
            found.append(Change(at_us, name, f"{name}.n{k}", task(f"{name}.n{k}", "dynamic", unit, chance)))
        else:
            found.append(Change(at_us, name, chance.choice(tasks[name]).task_id, None))
    return tuple(sorted(found, key=lambda change: (change.at_us, change.task_id)))


def _crashes(names: list[str], chance: random.Random) -> tuple[Crash, ...]:
    found = []
    for _ in range(chance.randrange(1, 8)):
        effects = None if chance.random() < 0.3 else chance.choice((0, 1, 2, 2, 3, 5))
        down_us = chance.choice((3_000, 50_000, 400_000, 1_500_000))
        at_us = int(HEAL_US * chance.random() ** 2)  # Most is agreed at the beginning.
        found.append(Crash(at_us, chance.choice(names), down_us, effects))
    return tuple(sorted(found, key=lambda crash: (crash.at_us, crash.participant)))
