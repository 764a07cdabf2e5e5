"""Why some statements of 003 §7.1 do not hold here: the same simulations with what the text leaves open done otherwise.

`benches.bpm_convergence` checks 39 statements; nine of them do not hold. For each of those the number that decides it
is computed again under changes, one at a time:

- topology: how a node chooses its first contract and the others is not said in full. "narrow": the first partner is the
  better known of two candidates, which gives the text's diameters (table 7.1) with few contracts; "even": further
  partners are first looked for among those that lack contracts themselves.
- prices: capacities "in the range [80, 120]" in one sentence, prices "within [80, 100]" in another: capacities of 80 to
  100.
- order of offers: each round in the order of the contracts, or by chance, instead of those last that refused last.
- reading: what counts as acceptable, as late, or as near the end, read in the other way that the words allow.

    python -m benches.bpm_explained [--topologies 10] [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benches.bpm_convergence import NODES, _ratio, _reached
from benches.load_levels import D_US, LevelSim
from benches.load_topology import LEVELS, Graph, System, Variant, build, connect, diameter, left_over
from benches.report import finish, table

UF, UR = Variant.UNIFORM_FIXED, Variant.UNIFORM_RANGE
HF, HR = Variant.HETEROGENEOUS_FIXED, Variant.HETEROGENEOUS_RANGE
LIGHT, HEAVY, OVER, FAR_OVER = range(4)
CHANGES = ("as published", "narrow topology", "even topology", "capacities 80 to 100", "offers in order",
           "offers by chance")  # fmt: skip


# What is changed ------------------------------------------------------------------------------------------------------


def chosen(nodes: int, least: int, rng: np.random.Generator, candidates: int, even: bool) -> Graph:
    """As `connect`, with the first partner the best connected of so many candidates; `even`: see the header."""
    partners: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(1, nodes):
        asked = rng.integers(0, node, candidates).tolist()
        first = max(asked, key=lambda other: len(partners[other]))
        partners[node].append(first)
        partners[first].append(node)
    wanting = [node for node in range(nodes) if len(partners[node]) < least]
    while wanting:
        for node in wanting:
            others = wanting if even and len(wanting) > least else range(nodes)
            other = int(others[int(rng.integers(0, len(others)))])
            if other != node and other not in partners[node] and len(partners[node]) < least:
                partners[node].append(other)
                partners[other].append(node)
        wanting = [node for node in wanting if len(partners[node]) < least]
    starts = np.concatenate(([0], np.cumsum([len(found) for found in partners])))
    return Graph(starts, np.array([other for found in partners for other in found], dtype=np.int64))


def graph_of(change: str, seed: int, least: int) -> Graph:
    rng = np.random.default_rng((seed, least))
    if change == "narrow topology":
        return chosen(NODES, least, rng, 2, even=False)
    if change == "even topology":
        return chosen(NODES, least, rng, 1, even=True)
    return connect(NODES, least, rng)


class OrderedSim(LevelSim):
    """Offers in the order of the contracts' prices and ages, whoever refused last."""

    def _order(self, node: int) -> list[int]:
        return list(self.ranked[node])


class ChanceSim(LevelSim):
    """Offers in an order that is drawn for each round."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._rng = np.random.default_rng(5)

    def _order(self, node: int) -> list[int]:
        ranked = self.ranked[node]
        return [ranked[i] for i in self._rng.permutation(len(ranked))]


def lowered(system: System) -> System:
    """Capacities of 80 to 100 instead of 80 to 120, prices with them."""
    capacity = 80 + (system.capacity - 80) // 2
    owners = np.repeat(np.arange(system.graph.nodes), system.graph.degrees)
    high = np.minimum(capacity[owners], capacity[system.graph.partners])
    low = high - (system.price_high - system.price_low)
    return System(system.graph, capacity, low, high, system.load, system.phase_us)


# What is looked at ----------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    change: str
    seed: int
    variant: Variant
    level: int
    least: int


class Found(NamedTuple):
    left: float
    idle_tasks: int
    """The largest distance of a node below its capacity."""
    good: bool
    full_s: float
    most: float
    near: float
    """Shares of the time until 95 % was gained, and until within 5 % of all load of the end."""
    late: float
    """Tasks per movement after ten seconds."""
    later: float
    """And between three and ten."""


def simulate(job: Job) -> Found:
    rng = np.random.default_rng((job.seed, job.least, job.level, list(Variant).index(job.variant)))
    level = LEVELS[job.level]
    system = build(graph_of(job.change, job.seed, job.least), job.variant, level, rng, spread=1)
    if job.change == "capacities 80 to 100" and not job.variant.uniform:
        system = lowered(system)
    kind = {"offers in order": OrderedSim, "offers by chance": ChanceSim}.get(job.change, LevelSim)
    sim = kind(system)
    first = sim.excess
    trace = sim.run()
    loads, capacity = sim.loads, system.capacity
    full = trace.last_us / D_US
    whole = int((capacity if level.overloaded else system.load).sum())
    short = int(np.maximum(capacity - loads, 0).max())
    good = bool((loads >= capacity).all() if level.overloaded else (loads <= capacity).all())
    moved = (trace.tasks_by_second, trace.movements_by_second)
    return Found(
        left_over(loads, capacity, level.overloaded),
        short,
        good,
        full,
        _reached(sim, 0.05 * (first - sim.excess)) / max(full, 1e-9),
        _reached(sim, 0.05 * whole) / max(full, 1e-9),
        _ratio(*moved, 10, 10**9),
        _ratio(*moved, 3, 10),
    )


def simulated(jobs: Sequence[Job], processes: int) -> Iterator[Found]:
    """All of them in their order, in so many processes; 0: in this one."""
    if processes == 0:
        yield from map(simulate, jobs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(simulate, jobs, chunksize=8)


Runs = dict[tuple[Variant, int, int], list[Found]]


class Question(NamedTuple):
    """A statement that does not hold: the runs that decide it, its number, its bound, and the other reading."""

    figure: str
    said: str
    needs: Callable[[bool], list[tuple[Variant, int, int]]]
    number: Callable[[Runs], float]
    bound: float
    at_least: bool
    reading: str = ""
    read: Callable[[Runs], float] | None = None
    unit: str = ""

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def _all(runs: Runs, *which: tuple[Variant, int, int]) -> list[Found]:
    return [found for key in which for found in runs[key]]


def _mean(runs: Runs, what: str, *which: tuple[Variant, int, int]) -> float:
    return float(np.mean([getattr(found, what) for found in _all(runs, *which)]))


_EIGHT = [(UR, FAR_OVER, n) for n in (8, 9, 10)]
_FIVE = [(UF, LIGHT, n) for n in range(5, 11)]


def _few(quick: bool) -> list[int]:
    return [1, 3, 5] if quick else list(range(1, 8))


def _some(quick: bool) -> list[int]:
    return [1, 3, 5, 10] if quick else [1, 2, 3, 4, 5, 7, 10]


def _slow(runs: Runs, what: str) -> float:
    found = [
        f for (v, k, _), fs in runs.items() if v in (UR, HR) and k in (LIGHT, FAR_OVER) for f in fs if f.full_s > 20
    ]
    return float(np.mean([getattr(f, what) for f in found]))


def _slower(runs: Runs) -> float:
    """The least of how much longer heterogeneous systems take, over all points with one contract."""
    pairs = [(HF, UF), (HR, UR)]
    return min(_mean(runs, "full_s", (a, k, 1)) / _mean(runs, "full_s", (b, k, 1)) for a, b in pairs
               for k in (LIGHT, FAR_OVER))  # fmt: skip


def _gain(runs: Runs) -> float:
    """The least gain of heterogeneous over uniform fixed prices."""
    points = {(k, n) for v, k, n in runs if v is HF and k in (LIGHT, HEAVY)}
    return min(_mean(runs, "left", (UF, k, n)) - _mean(runs, "left", (HF, k, n)) for k, n in points)


QUESTIONS = (
    Question("fig. 7-1", "uniform range, heavy overload: acceptable with 8 contracts in all topologies",
             lambda _: _EIGHT, lambda r: float(np.mean([f.good for f in _all(r, *_EIGHT)])), 1.0, True,
             "a node is full if it is no more than a task below its capacity",
             lambda r: float(np.mean([f.idle_tasks <= 1 for f in _all(r, *_EIGHT)])), "of the runs"),
    Question("fig. 7-1", "uniform range, light overload: some acceptable with 10 contracts",
             lambda _: [(UR, OVER, 10)],
             lambda r: float(np.mean([f.good for f in _all(r, (UR, OVER, 10))])), 1e-3, True,
             "a node is full if it is no more than a task below its capacity",
             lambda r: float(np.mean([f.idle_tasks <= 1 for f in _all(r, (UR, OVER, 10))])), "of the runs"),
    Question("fig. 7-1", "fixed, light load, two contracts: 5 % left on average",
             lambda _: [(UF, LIGHT, 2)], lambda r: _mean(r, "left", (UF, LIGHT, 2)), 0.05, False,
             "to the whole per cent, as the text has it", lambda r: round(_mean(r, "left", (UF, LIGHT, 2)), 2), "left"),
    Question("fig. 7-1", "fixed, light load, five contracts: under 1 % in all",
             lambda _: _FIVE, lambda r: max(f.left for f in _all(r, *_FIVE)), 0.01, False,
             "on average instead of in all", lambda r: _mean(r, "left", (UF, LIGHT, 5)), "left"),
    Question("fig. 7-1", "heterogeneous fixed places up to 2 % more than uniform, to 7 contracts (here: no less)",
             lambda q: [(v, k, n) for v in (UF, HF) for k in (LIGHT, HEAVY) for n in _few(q)], _gain, 0.0, True,
             "no worse by more than a tenth of a per cent", lambda r: _gain(r) + 0.001, "gained at the worst point"),
    Question("fig. 7-2", "heterogeneous range: later movements still carry groups (here: two or more on average)",
             lambda _: [(HR, HEAVY, 3)], lambda r: _mean(r, "late", (HR, HEAVY, 3)), 2.0, True,
             "later is from the third to the tenth second", lambda r: _mean(r, "later", (HR, HEAVY, 3)),
             "tasks a movement"),
    Question("fig. 7-3", "price ranges: 95 % of the benefit in the first 15 % of the time",
             lambda q: [(v, k, n) for v in (UR, HR) for k in (LIGHT, FAR_OVER) for n in _some(q)],
             lambda r: _slow(r, "most"), 0.15, False, "within 5 % of all load, not of what is gained",
             lambda r: _slow(r, "near"), "of the time"),
    Question("fig. 7-3", "heterogeneous systems are slower than uniform ones",
             lambda _: [(v, k, 1) for v in Variant for k in (LIGHT, FAR_OVER)], _slower, 1.0, True,
             unit="times as long, at the worst point"),
)  # fmt: skip
MOST = "with at least 10 contracts no node has more than 18"


def topology(change: str, count: int) -> tuple[int, float, float]:
    """Most contracts with at least ten, and mean diameters with at least one and ten."""
    wide = {least: [diameter(graph_of(change, seed, least)) for seed in range(count)] for least in (1, 10)}
    most = max(int(graph_of(change, seed, 10).degrees.max()) for seed in range(count))
    return most, float(np.mean(wide[1])), float(np.mean(wide[10]))


def answer(values: dict[str, float], question: Question) -> str:
    """In one sentence, which change makes the statement hold."""
    made = [change for change in CHANGES[1:] if question.holds(values[change])]
    said = f"Holds with {_listed(made)}" if made else "Holds with none of the other topologies, prices and orders"
    if question.read is not None:
        kept = "holds" if question.holds(values["other reading"]) else "does not hold either"
        said += f"; read otherwise ({question.reading}) it {kept}: {_shown(values['other reading'], question)}"
    return said + "."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shown(value: float, question: Question) -> str:
    return f"{value:.2f} {question.unit}" if question.bound >= 1 and "runs" not in question.unit else (
        f"{value:.2%} {question.unit}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.bpm_explained", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--topologies", type=int, default=10)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="0: none beside this one")
    parser.add_argument("--quick", action="store_true", help="three topologies, fewer points")
    given = parser.parse_args()
    count = 3 if given.quick else given.topologies
    wanted = sorted({need for q in QUESTIONS for need in q.needs(given.quick)}, key=str)
    jobs = [Job(change, seed, *need) for change in CHANGES for need in wanted for seed in range(count)]
    runs: dict[str, Runs] = {change: {} for change in CHANGES}
    for job, found in zip(jobs, simulated(jobs, given.processes), strict=True):
        runs[job.change].setdefault((job.variant, job.level, job.least), []).append(found)
    values: dict[str, dict[str, float]] = {}
    why: dict[str, str] = {}
    holds: dict[str, dict[str, bool]] = {}
    for q in QUESTIONS:
        by = {change: float(q.number({k: runs[change][k] for k in q.needs(given.quick)})) for change in CHANGES}
        if q.read is not None:
            by["other reading"] = float(q.read({k: runs[CHANGES[0]][k] for k in q.needs(given.quick)}))
        values[q.said] = {change: round(value, 6) for change, value in by.items()}
        holds[q.said] = {change: q.holds(value) for change, value in by.items()}
        why[q.said] = answer(by, q)
    shapes: dict[str, Any] = {change: topology(change, count) for change in CHANGES[:3]}
    values[MOST] = {change: most for change, (most, _, _) in shapes.items()}
    holds[MOST] = {change: most <= 18 for change, (most, _, _) in shapes.items()}
    made = [change for change in CHANGES[1:3] if shapes[change][0] <= 18]
    seen = "; ".join(f"{c} {m}, {a:.0f}, {b:.1f}" for c, (m, a, b) in shapes.items())
    why[MOST] = (f"Holds with {_listed(made)}." if made else "Holds with neither topology.") + (
        f" Most contracts, and diameters with 1 and 10: {seen} (text: 18, 20, 4)."
    )
    table("statements that do not hold, by what is changed", ["", *CHANGES, "other reading"],
          [[said, *(f"{by[c]:.4g}{' ✓' if holds[said][c] else ''}" if c in by else "–"
                    for c in (*CHANGES, "other reading"))] for said, by in values.items()])  # fmt: skip
    bounds = {q.said: [q.bound, q.at_least, q.figure, q.unit] for q in QUESTIONS}
    finish("bpm_explained", why=why, topologies=count,
           explained=sum(any(ok for change, ok in by.items() if change != CHANGES[0]) for by in holds.values()),
           statements=len(why),
           detail={"values": values, "holds": holds, "bounds": bounds, "shapes": shapes})  # fmt: skip


if __name__ == "__main__":
    main()
