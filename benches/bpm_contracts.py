"""How many contracts, at which price: figures 6-8 to 6-11 and tables 6.1 and 6.2 of the seeds, by Monte Carlo on Spark.

500,000 runs a point. The peers: the same kernels in one process without Spark, and, for one contract, the integral
(6.12) computed on a grid.

    python -m benches.bpm_contracts [--runs 500000] [--figures DIR]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np

from benches.bpm_statements import Statement, listed, share
from benches.figure import Chart, Page
from benches.report import console, finish, table
from holdfast.load.contract_value import SELLERS, SPIKES, Pareto, Sums, spikes, trades
from holdfast.protocol.load.counter import best_counter

CONTRACTS = 20
LEVELS = (0.25, 0.33, 0.5, 0.66, 0.75)
P_SPIKE = 0.05
#: Table 6.2 as printed, by competitors.
TABLE_6_2 = {1: (0.33, 0.50, 0.67, 0.83), 3: (0.20, 0.40, 0.60, 0.80), 5: (0.14, 0.36, 0.57, 0.79),
             7: (0.11, 0.33, 0.55, 0.78)}  # fmt: skip
#: A load of one seller's, by the level that is nearest to its median, and the next below it.
MEDIAN = {"light": (0.33, 0.25), "uniform": (0.5, 0.33), "heavy": (0.66, 0.5)}


def spike_point(a: str, b: str, runs: int, rng: np.random.Generator) -> Sums:
    return spikes(SPIKES[a], SELLERS[b], CONTRACTS, runs, rng)


def trade_point(name: str, level: float, runs: int, rng: np.random.Generator) -> Sums:
    return trades(SELLERS[name], SELLERS[name], level, CONTRACTS, runs, rng)


def integral(spike: Pareto, seller: Pareto) -> float:
    """(6.12): the probability of overload with one contract, on a grid of both distributions' quantiles."""

    def quantiles(loads: Pareto, count: int) -> np.ndarray:
        tail = 1.0 - (loads.low / loads.high) ** loads.alpha
        return loads.low * (1.0 - (np.arange(count) + 0.5) / count * tail) ** (-1.0 / loads.alpha)

    room = np.sort(1.0 - quantiles(seller, 20_000))
    x = quantiles(spike, 20_000)
    return float((np.searchsorted(room, x) / len(room)).mean())


def maximum(valuation: float, competitors: int) -> float:
    """(6.17) searched for its maximum."""
    p = np.linspace(valuation, 1, 200_001)
    return float(p[((p - valuation) * (1 - p) ** competitors * (1 - p)).argmax()])


def statements(found: dict[str, Sums]) -> list[Statement]:
    chance = {(a, b): found[f"6-8 {a} {b}"].overloaded / found[f"6-8 {a} {b}"].runs for a in SPIKES for b in SELLERS}
    excess = {(a, b): found[f"6-8 {a} {b}"].overload / found[f"6-8 {a} {b}"].runs for a in SPIKES for b in SELLERS}
    moved = {(n, v): found[f"6-11 {n} {v}"].moved / found[f"6-11 {n} {v}"].runs for n in SELLERS for v in LEVELS}
    saved = {(n, v): found[f"6-11 {n} {v}"].saved / found[f"6-11 {n} {v}"].runs for n in SELLERS for v in LEVELS}
    five = min((p[0] - p[5]) / (p[0] - p[20]) for p in chance.values())
    falls = all((np.diff(p) <= 0).all() and (np.diff(e) <= 0).all()
                for p, e in zip(chance.values(), excess.values(), strict=True))  # fmt: skip
    steep = all((np.diff(e, 2) >= -2e-3).all() for e in excess.values())
    linear = [e[10] - e[20] for (a, _), e in excess.items() if a == "b"]
    part = [(e[0] - e[10]) / (e[0] - e[20]) for (a, _), e in excess.items() if a == "a"]
    gain = {k: P_SPIKE * (e[0] - e) for k, e in excess.items()}
    best = {k: int((g - 0.002 * np.arange(21)).argmax()) for k, g in gain.items()}
    none = all((g - 0.05 * np.arange(21)).argmax() == 0 for g in gain.values())
    few = {n: [max(LEVELS, key=lambda v, n=n, c=c: moved[n, v][c]) for c in (2, 3)] for n in SELLERS}
    many = {n: max(LEVELS, key=lambda v, n=n: moved[n, v][10]) for n in SELLERS}
    use = {n: max(LEVELS, key=lambda v, n=n: saved[n, v][10]) for n in SELLERS}
    nearly = min(saved[n, MEDIAN[n][0]][6] / saved[n, MEDIAN[n][0]][20] for n in SELLERS)
    wrong = max(abs(best_counter(s, c) - maximum(s, c)) for c in TABLE_6_2 for s in (0, 0.25, 0.5, 0.75))
    printed = max(abs(best_counter(s, c) - p) for c, row in TABLE_6_2.items()
                  for s, p in zip((0, 0.25, 0.5, 0.75), row, strict=True))  # fmt: skip
    over = max(best_counter(s, 5) - s for s in (0, 0.25, 0.5, 0.75))
    off = max(abs(chance[a, b][1] - integral(SPIKES[a], SELLERS[b])) for a in SPIKES for b in SELLERS)
    error = 4 * 0.5 / min(sums.runs for sums in found.values()) ** 0.5
    return [
        Statement("fig. 6-8", "sellers' mean loads are 0.37, 0.505 and 0.67; spikes have mean T",
                  ", ".join(f"{x.mean:.3f}" for x in (*SELLERS.values(), *SPIKES.values())),
                  all(abs(x.mean - m) < 0.01 for x, m in zip((*SELLERS.values(), *SPIKES.values()),
                                                            (0.37, 0.505, 0.67, 1, 1), strict=True))),
        Statement("fig. 6-8", "without contracts a spike always overloads", share(min(p[0] for p in chance.values())),
                  all(p[0] == 1 for p in chance.values())),
        Statement("fig. 6-8", f"with one contract, as the integral (here: within four standard errors, {share(error)})",
                  share(off), off < error),
        Statement("fig. 6-8", "the first three to five contracts bring most (here: over 80 % of what 20 bring)",
                  share(five), five > 0.8),
        Statement("fig. 6-8", "with spikes of 100 T the probability stays above zero",
                  share(min(p[20] for (a, _), p in chance.items() if a == "b")),
                  all(p[20] > 0 for (a, _), p in chance.items() if a == "b")),
        Statement("fig. 6-9", "probability and magnitude fall with each contract", str(falls), falls),
        Statement("fig. 6-9", "the fall is sharpest for the first few", str(steep), steep),
        Statement("fig. 6-10", "spikes of 100 T: ten more contracts still bring much (here: over 0.1 T a spike)",
                  f"{min(linear):.3f} T", min(linear) > 0.1),
        Statement("fig. 6-10", "spikes of 10 T: most is had with ten (here: over 75 % of what 20 bring)",
                  share(min(part)), min(part) > 0.75),
        Statement("fig. 6-10", "at 0.002 a contract fewer than 10 are worth it against spikes of 10 T",
                  str({b: n for (a, b), n in best.items() if a == "a"}),
                  all(n < 10 for (a, _), n in best.items() if a == "a"), "partners with room are worth a few more"),
        Statement("fig. 6-10", "if contracts are very expensive, none is worth it", str(none), none),
        Statement("fig. 6-11", "up to three contracts the median price moves most (0.3, 0.5, 0.7)", str(few),
                  all(level == MEDIAN[n][0] for n, levels in few.items() for level in levels)),
        Statement("fig. 6-11", "with more contracts a price a little below the median moves more", str(many),
                  all(many[n] <= MEDIAN[n][0] for n in SELLERS) and any(many[n] < MEDIAN[n][0] for n in SELLERS)),
        Statement("fig. 6-11", "and gives the buyer most", str(use), all(use[n] <= MEDIAN[n][0] for n in SELLERS)),
        Statement("table 6.1", "around the median five or six contracts nearly do (here: over 90 % of what 20 bring)",
                  share(nearly), nearly > 0.9),
        Statement("table 6.2", "best counter-offers, as printed (within rounding)", f"{printed:.4f}", printed < 0.006),
        Statement("table 6.2", "and as a search for the maximum finds them", f"{wrong:.1e}", wrong < 1e-5),
        Statement("table 6.2", "five competitors: never more than 15 % above", share(over), over <= 0.15),
    ]  # fmt: skip


def draw(page: Page, found: dict[str, Sums]) -> None:
    x = list(range(CONTRACTS + 1))
    for a in SPIKES:
        top = f"spikes up to {SPIKES[a].high:.0f} T"
        charts = [Chart(f"Figure 6-8({a}): {top}", "contracts", "probability of overload"),
                  Chart(f"Figure 6-9({a}): {top}", "contracts", "expected overload, in T"),
                  Chart(f"Figure 6-10({a}): {top}", "contracts", "benefit and cost")]  # fmt: skip
        for b in SELLERS:
            sums = found[f"6-8 {a} {b}"]
            charts[0].line(b, x, (sums.overloaded / sums.runs).tolist())
            charts[1].line(b, x, (sums.overload / sums.runs).tolist())
            charts[2].line(b, x, (P_SPIKE * (sums.overload[0] - sums.overload) / sums.runs).tolist())
        for price in (0.001, 0.002, 0.005):
            charts[2].line(f"cost {price}", x, [price * n for n in x], dashed=True)
        for chart in charts:
            page.add(chart)
    for name in SELLERS:
        bought = Chart(f"Figure 6-11: {name}, bought", "contracts", "expected purchases, in T")
        gained = Chart(f"Figure 6-11: {name}, gained", "contracts", "buyer's gain")
        for level in LEVELS:
            sums = found[f"6-11 {name} {level}"]
            bought.line(f"at {level} T", x, (sums.moved / sums.runs).tolist())
            gained.line(f"at {level} T", x, (sums.saved / sums.runs).tolist())
        page.add(bought)
        page.add(gained)


def detail(found: dict[str, Sums], checked: list[Statement]) -> dict[str, object]:
    """Every curve: means by number of contracts."""
    curves = {}
    for name, sums in found.items():
        kinds = ("overloaded", "overload") if name.startswith("6-8") else ("moved", "saved")
        curves[name] = {kind: (getattr(sums, kind) / sums.runs).round(5).tolist() for kind in kinds}
    best = {str(c): [round(best_counter(s, c), 4) for s in (0, 0.25, 0.5, 0.75)] for c in TABLE_6_2}
    return {"curves": curves, "best_counter": best, "statements": listed(checked)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.bpm_contracts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=500_000)
    parser.add_argument("--figures", type=Path, help="write the figures into this folder")
    given = parser.parse_args()
    from benches.monte_carlo import Point, run_points
    from holdfast.spark import session

    points = [Point(f"6-8 {a} {b}", partial(spike_point, a, b)) for a in SPIKES for b in SELLERS]
    points += [Point(f"6-11 {n} {v}", partial(trade_point, n, v)) for n in SELLERS for v in LEVELS]
    spark = session("bench-bpm-contracts")
    spark.sparkContext.setLogLevel("OFF")
    run_points(spark, points[:1], 1000)  # Workers start once; that is not what is measured.
    began = time.perf_counter()
    found = run_points(spark, points, given.runs)
    on_spark = time.perf_counter() - began
    spark.stop()
    began = time.perf_counter()
    for number, point in enumerate(points):
        point.kernel(given.runs, np.random.default_rng(number))
    alone = time.perf_counter() - began
    checked = statements(found)
    table("Table 6.2: best counter-offers", ("competitors", "S = 0", "0.25", "0.5", "0.75"),
          [(c, *(f"{best_counter(s, c):.3f}" for s in (0, 0.25, 0.5, 0.75))) for c in TABLE_6_2])  # fmt: skip
    table("Table 6.1: how many contracts", ("priced at", "direction", "number", "because"), [
        ("maximum load", "buyer", "a few", "five bring over 80 % of what twenty bring against overload"),
        ("median load", "buyer", "a few", "six bring over 90 % of what twenty bring"),
        ("maximum load", "seller", "many", "each brings the same until the room is sold"),
        ("median load", "seller", "a few", "the mirror image of the buyer's"),
    ])  # fmt: skip
    table("Statements of §6.5 and §6.6.2", ("", "seeds", "here", "holds"),
          [(s.where, s.text, s.here, "yes" if s.holds else f"no: {s.reason}") for s in checked])  # fmt: skip
    if given.figures:
        page = Page("What contracts are worth (003 §6.5)")
        page.table("Statements", ("section", "seeds", "here", "holds"),
                   [(s.where, s.text, s.here, "yes" if s.holds else f"no: {s.reason}") for s in checked])  # fmt: skip
        draw(page, found)
        page.write(given.figures / "bpm-contracts.html")
        console.print(f"figures: {given.figures / 'bpm-contracts.html'}")
    finish("bpm_contracts", detail=detail(found, checked),
           statements_checked=len(checked), statements_failed=sum(not s.holds for s in checked),
           failed=[s.text for s in checked if not s.holds], points=len(points), runs_per_point=given.runs,
           seconds_spark=round(on_spark, 1), seconds_one_process=round(alone, 1),
           times_as_fast=round(alone / on_spark, 2))  # fmt: skip


if __name__ == "__main__":
    main()
