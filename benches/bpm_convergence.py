"""How contracts spread load: figures 7-1 to 7-6 and tables 7.1 to 7.3 of the seeds, every statement of §7.1 checked.

995 participants, 1 to 10 contracts each, four variants, four load levels, ten topologies; then 330 under varying load;
then 100,000. The peer is the seeds' own result: each statement stands beside what came out here.

    python -m benches.bpm_convergence [--topologies 10] [--figures DIR] [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benches.bpm_statements import Findings, Statement, check, listed
from benches.figure import Chart, Page
from benches.load_levels import D_US, DynamicSim, LevelSim
from benches.load_topology import (
    CAPACITY,
    LEVELS,
    Variant,
    acceptable,
    build,
    connect,
    diameter,
    left_over,
    loads,
)
from benches.report import console, finish, table

NODES, CONTRACTS = 995, tuple(range(1, 11))
NODES_DYNAMIC, NODES_MANY = 330, 100_000
#: Figure 7-6 starts from acceptable allocations: loads in [1, 100] with means of about 50 and 75.
BOUNDED = {"light load": -1.0, "heavy load": -3.0}
SPANS = ((60, 300), (300, 600), (600, 900))


@dataclass(frozen=True)
class Job:
    seed: int
    least: int
    variant: Variant
    level: int
    extra: int = 0


@dataclass(frozen=True)
class Result:
    """What one simulation showed."""

    before: float
    left: float
    good: bool
    seconds: float
    full_s: float
    most_s: float
    near_s: float
    """Simulated seconds to the last movement, to 95 % of what was gained, and to within 5 % of all load (or capacity)
    of where it ends."""
    early: float
    late: float
    """Tasks per movement within the first three seconds, and after ten."""
    tasks_by_second: dict[int, int]
    movements_by_second: dict[int, int]
    excess_by_second: dict[int, int]


def simulate(job: Job) -> Result:
    graph = connect(NODES, job.least, np.random.default_rng((job.seed, job.least)))
    rng = np.random.default_rng((job.seed, job.least, job.level, list(Variant).index(job.variant)))
    level = LEVELS[job.level]
    system = build(graph, job.variant, level, rng, spread=1)
    sim = LevelSim(system, extra=job.extra)
    began = time.perf_counter()
    first = sim.excess
    trace = sim.run()
    took = time.perf_counter() - began
    whole = int((system.capacity if level.overloaded else system.load).sum())
    keep = job.seed == 0 and job.least == 3
    return Result(
        left_over(system.load, system.capacity, level.overloaded),
        left_over(sim.loads, system.capacity, level.overloaded),
        acceptable(sim.loads, system.capacity), took, trace.last_us / D_US,
        _reached(sim, 0.05 * (first - sim.excess)), _reached(sim, 0.05 * whole),
        _ratio(trace.tasks_by_second, trace.movements_by_second, 0, 3),
        _ratio(trace.tasks_by_second, trace.movements_by_second, 10, 10**9),
        trace.tasks_by_second if keep else {}, trace.movements_by_second if keep else {},
        sim.excess_by_second if keep else {},
    )  # fmt: skip


def _reached(sim: LevelSim, within: float) -> float:
    """When what was left came so near to what is left in the end."""
    near = [second for second, excess in sorted(sim.excess_by_second.items()) if excess - sim.excess <= within]
    return near[0] + 1.0 if near else 0.0


def _ratio(tasks: dict[int, int], movements: dict[int, int], first: int, last: int) -> float:
    within = [second for second in movements if first <= second < last]
    return sum(tasks[s] for s in within) / max(1, sum(movements[s] for s in within))


def vary(job: tuple[str, Variant, bool]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """One curve of figures 7-5 and 7-6."""
    name, variant, returns = job
    graph = connect(NODES_DYNAMIC, 10, np.random.default_rng(7))
    level = next(level for level in LEVELS if level.name == name)
    if returns:
        level = replace(level, high=100, alpha=BOUNDED[name])
    rng = np.random.default_rng(11)
    sim = DynamicSim(build(graph, variant, level, rng), rng, returns)
    swings = sim.vary()
    return swings.variation, swings.moved, [swings.between(*span) for span in SPANS]


def many_nodes(quick: bool) -> dict[str, float]:
    """Seconds for 100,000 participants with at least five contracts, building the graph included."""
    took = {}
    # All at light load, and what took longest of all with 995: heterogeneous ranges at 75 %.
    wanted = [(Variant.UNIFORM_RANGE, 0)] if quick else [*((v, 0) for v in Variant), (Variant.HETEROGENEOUS_RANGE, 1)]
    for variant, k in wanted:
        name = f"{variant.value}, {LEVELS[k].name}"
        began = time.perf_counter()
        graph = connect(NODES_MANY, 5, np.random.default_rng(1))
        system = build(graph, variant, LEVELS[k], np.random.default_rng(2))
        sim = LevelSim(system)
        sim.run()
        took[name] = time.perf_counter() - began
        console.print(f"{NODES_MANY:,} participants, {name}: {took[name]:.1f} s, "
                      f"{sim.trace.moved:,} movements, "
                      f"{left_over(sim.loads, system.capacity, False):.4%} left")  # fmt: skip
    return took


def topologies(count: int) -> list[tuple[int, int, int, float, int, int]]:
    """Table 7.1: (least, most contracts, then diameters: mean, least, most)."""
    rows = []
    for least in CONTRACTS:
        graphs = [connect(NODES, least, np.random.default_rng((seed, least))) for seed in range(count)]
        wide = [diameter(graph) for graph in graphs]
        most = max(int(graph.degrees.max()) for graph in graphs)
        rows.append(
            (least, min(int(g.degrees.min()) for g in graphs), most, float(np.mean(wide)), min(wide), max(wide))
        )
    return rows


def draw(page: Page, found: Findings, samples: dict[tuple[Variant, int], Result]) -> None:
    groups = ["0", *map(str, CONTRACTS)]
    for k, level in enumerate(LEVELS):
        series, errors = {}, {}
        for variant in Variant:
            runs = [[r.before for r in found.runs[variant, k, 1]]] + [
                [r.left for r in found.runs[variant, k, least]] for least in CONTRACTS
            ]
            series[variant.value] = [100 * float(np.mean(values)) for values in runs]
            errors[variant.value] = [(100 * min(values), 100 * max(values)) for values in runs]
        what = "% of capacity not used" if level.overloaded else "% of load not reallocated"
        note = "Bars are means, lines from the least to the most over topologies; 0 contracts: before any movement."
        chart = Chart(f"Figure 7-1({'abcd'[k]}): {level.name}", "least number of contracts", what, note=note)
        page.add(chart.bars(groups, series, errors))
    for variant in Variant:
        run = samples[variant, 1]
        last = max(run.movements_by_second, default=0) + 10
        seconds = list(range(last))
        excess, value = [], 0
        for second in seconds:
            value = run.excess_by_second.get(second, value)
            excess.append(value)
        chart = Chart(f"Figure 7-2: {variant.value}", "seconds", "tasks (log)", log=True,
                      note="75 % load, at least three contracts.")  # fmt: skip
        chart.line("tasks moved", seconds, [run.tasks_by_second.get(s, 0) for s in seconds])
        chart.line("movements", seconds, [run.movements_by_second.get(s, 0) for s in seconds])
        page.add(chart.line("still to be moved", seconds, excess))
    for k in (0, 3):
        chart = Chart(f"Figure 7-3: {LEVELS[k].name}", "least number of contracts", "seconds")
        for variant in Variant:
            runs = [found.runs[variant, k, least] for least in CONTRACTS]
            chart.line(variant.value, CONTRACTS, [float(np.mean([r.full_s for r in rs])) for rs in runs])
            chart.line(
                f"{variant.value}, 95 %", CONTRACTS, [float(np.mean([r.most_s for r in rs])) for rs in runs], True
            )
        page.add(chart)
    chart = Chart("Figure 7-4: counter-offers above valuation", "least number of contracts", "seconds",
                  note="Uniform range, light load.")  # fmt: skip
    for extra in (0, 1, 2):
        chart.line(f"valuation + {extra}", CONTRACTS,
                   [float(np.mean([r.full_s for r in found.above[extra, c]])) for c in CONTRACTS])  # fmt: skip
    page.add(chart)
    for (name, returns), curves in found.series.items():
        figure = "7-6" if returns else "7-5"
        chart = Chart(f"Figure {figure}: {name}", "seconds", "tasks per second (log)", log=True)
        for label, values in curves.items():
            smooth = [float(np.mean(values[s : s + 10])) for s in range(0, 890, 10)]
            chart.line(label, list(range(0, 890, 10)), smooth)
        page.add(chart)


def detail(
    found: Findings, samples: dict[tuple[Variant, int], Result], checked: list[Statement], drawn: dict[str, float]
) -> dict[str, object]:
    """What figures 7-1 to 7-6 are drawn from, rounded."""

    def spread(values: list[float], digits: int) -> list[float]:
        return [round(v, digits) for v in (float(np.mean(values)), min(values), max(values))]

    left = {level.name: {v.value: [spread([r.before for r in found.runs[v, k, 1]], 6)]
                         + [spread([r.left for r in found.runs[v, k, n]], 6) for n in CONTRACTS] for v in Variant}
            for k, level in enumerate(LEVELS)}  # fmt: skip
    seconds = {LEVELS[k].name: {v.value: [[round(float(np.mean([getattr(r, what) for r in found.runs[v, k, n]])), 2)
                                           for what in ("full_s", "most_s")] for n in CONTRACTS] for v in Variant}
               for k in (0, 3)}  # fmt: skip
    above = {extra: [round(float(np.mean([r.full_s for r in found.above[extra, n]])), 2) for n in CONTRACTS]
             for extra in (0, 1, 2)}  # fmt: skip
    traces = {v.value: {name: {str(s): n for s, n in getattr(samples[v, 1], f"{name}_by_second").items()}
                        for name in ("tasks", "movements", "excess")} for v in Variant}  # fmt: skip
    swings = {f"{'7-6' if returns else '7-5'} {name}":
              {label: [round(float(np.mean(values[s : s + 20])), 1) for s in range(0, 880, 20)]
               for label, values in curves.items()} for (name, returns), curves in found.series.items()}  # fmt: skip
    return {"table_7_1": found.topologies, "left": left, "seconds": seconds, "above": above, "traces": traces,
            "swings": swings, "loads_drawn": {k: round(float(v), 4) for k, v in drawn.items()},
            "statements": listed(checked)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.bpm_convergence", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--topologies", type=int, default=10)
    parser.add_argument("--figures", type=Path, help="write the figures into this folder")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="two topologies, one variant of 100,000")
    given = parser.parse_args()
    count = 2 if given.quick else given.topologies

    rows = topologies(count)
    table("Table 7.1: topologies", ("least contracts", "least", "most", "diameter", "from", "to"), rows)
    drawn = {level.name: loads(500_000, level, np.random.default_rng(0)).mean() / CAPACITY for level in LEVELS}
    table("Table 7.3: initial loads", ("", "share of capacity", "drawn", "k", "T", "alpha"),
          [(v.name, v.share, float(drawn[v.name]), v.low, v.high, v.alpha) for v in LEVELS])  # fmt: skip
    table("Table 7.2: variants", ("", "capacities", "prices, in tasks"), [
        ("uniform fixed", "100", "100"), ("uniform range", "100", "95 to 100"),
        ("heterogeneous fixed", "80 to 120", "the lower capacity"),
        ("heterogeneous range", "80 to 120", "5 below the lower capacity, to it"),
    ])  # fmt: skip
    jobs = [Job(seed, least, variant, level)
            for least in CONTRACTS for variant in Variant for level in range(4) for seed in range(count)]  # fmt: skip
    above = [Job(seed, least, Variant.UNIFORM_RANGE, 0, extra)
             for extra in (1, 2) for least in CONTRACTS for seed in range(count)]  # fmt: skip
    swings = [(level.name, variant, returns) for returns in (False, True) for level in LEVELS[:2]
              for variant in (Variant.UNIFORM_FIXED, Variant.UNIFORM_RANGE)]  # fmt: skip
    found = Findings(rows, defaultdict(list), defaultdict(list), {}, {})
    samples: dict[tuple[Variant, int], Result] = {}
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        varied = [pool.submit(vary, job) for job in swings]
        for job, result in zip(jobs + above, pool.map(simulate, jobs + above, chunksize=8), strict=True):
            if job.extra:
                found.above[job.extra, job.least].append(result)
                continue
            found.runs[job.variant, job.level, job.least].append(result)
            if job.seed == 0 and job.least == 3:
                samples[job.variant, job.level] = result
            if job.variant is Variant.UNIFORM_RANGE and job.level == 0:
                found.above[0, job.least].append(result)
        for (name, variant, returns), done in zip(swings, varied, strict=True):
            variation, moved, spans = done.result()
            found.swings[name, variant, returns] = spans
            curves = found.series.setdefault((name, returns), {"offered load varies by": variation})
            curves["fixed" if variant is Variant.UNIFORM_FIXED else "range"] = moved

    slowest = max(result.seconds for results in found.runs.values() for result in results)
    took = many_nodes(given.quick)
    checked = check(found)
    for k, level in enumerate(LEVELS):
        what = "capacity not used" if level.overloaded else "load not reallocated"
        shown = [[least, *(f"{np.mean([r.left for r in found.runs[v, k, least]]):.3%}" for v in Variant)]
                 for least in CONTRACTS]  # fmt: skip
        table(f"Figure 7-1({'abcd'[k]}), {level.name}: {what}", ("contracts", *(v.value for v in Variant)), shown)
    table("Statements of §7.1", ("", "seeds", "here", "holds"),
          [(s.where, s.text, s.here, "yes" if s.holds else f"no: {s.reason}") for s in checked])  # fmt: skip
    if given.figures:
        page = Page("How contracts spread load (003 §7.1)")
        page.table("Statements", ("section", "seeds", "here", "holds"),
                   [(s.where, s.text, s.here, "yes" if s.holds else f"no: {s.reason}") for s in checked])  # fmt: skip
        page.table("Table 7.1", ("least contracts", "least", "most", "diameter, mean", "least", "most"), rows)
        draw(page, found, samples)
        page.write(given.figures / "bpm-convergence.html")
        console.print(f"figures: {given.figures / 'bpm-convergence.html'}")
    finish("bpm_convergence", detail=detail(found, samples, checked, drawn),
           statements_checked=len(checked), statements_failed=sum(not s.holds for s in checked),
           failed=[s.text for s in checked if not s.holds], topologies=count, seconds_995=round(slowest, 2),
           seconds_100000=round(max(took.values()), 1),
           seconds_100000_by_variant={k: round(v, 1) for k, v in took.items()})  # fmt: skip


if __name__ == "__main__":
    main()
