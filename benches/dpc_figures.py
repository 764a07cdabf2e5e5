"""The figures of `dpc_tradeoff`: what was measured, and beside it what the text of the seeds (003 §5.4 to §5.6) says.

Their laws and numbers are in `dpc_laws`; the dashed curves are drawn from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benches.curves import Chart, Series, Sheet, write_page
from benches.dpc_laws import (
    SEED_DURATIONS,
    SEED_NORMAL_S,
    SEED_RECONCILE,
    SEED_TABLE_52,
    seed_proc_new,
    seed_tentative,
)
from benches.report import console, finish
from holdfast.demo.failure import JAVA_OPTIONS

if TYPE_CHECKING:
    from benches.dpc_tradeoff import Point

#: What is measured while others have more than this part of the machine says more about them: it is shown, not judged.
OTHERS_MAX = 0.15


def draw(path: Path, points: Sequence[Point]) -> None:
    points = [p for p in points if p.others <= OTHERS_MAX] or points
    said = (
        "One of three inputs is cut off and comes back. Dots: measured on Holdfast. Dashes: what the seeds' text says "
        f"of Borealis, with its own settings (its plots are pictures without numbers). Java: {JAVA_OPTIONS}."
    )
    parts: list[Chart | Sheet] = [*_by_delay(points), *_by_policy(points), *_chains(points), *_whole_delay(points)]
    parts += _tables(points)
    write_page(path, "Availability against consistency (003 §5.4–5.6)", said, parts)


def _of(points: Iterable[Point], figure: str, depth: int = 1) -> list[Point]:
    """The last measurement of each setting."""
    chosen = {(p.policy, p.delay_s, p.failure_s, p.bucket_ms): p for p in points
              if p.figure == figure and p.depth == depth}  # fmt: skip
    return sorted(chosen.values(), key=lambda p: (p.policy, p.delay_s, p.failure_s, p.bucket_ms))


def _series(points: Sequence[Point], x: str, y: str) -> list[Series]:
    policies = dict.fromkeys(p.policy for p in points)
    return [Series(name, [(getattr(p, x), getattr(p, y)) for p in points if p.policy == name]) for name in policies]


def _by_delay(points: Sequence[Point]) -> list[Chart]:
    own = _of(points, "5-7")
    if not own:
        return []
    names = ("process & process", "delay & delay")
    delays = (0.5, 1, 2, 3, 4, 5, 5.01, 6)
    proc = [Series(n, [(d, seed_proc_new(n, d, 5)) for d in delays], seed=True) for n in names[:1]]
    tentative = [Series(names[0], [(d, 5.0 if d <= 5 else 0.0) for d in delays], seed=True)]
    tentative += [Series(names[1], [(d, max(0.0, 5 - d)) for d in delays], seed=True)]
    return [
        Chart("Figure 5-7: Proc_new, 5-second failure", "D, s", "s", [*_series(own, "delay_s", "proc_new_s"), *proc]),
        Chart("Figure 5-7: N_tentative, 5-second failure", "D, s", "s of output",
              [*_series(own, "delay_s", "tentative_s"), *tentative],
              "Here a fork takes about a second to get ready, so D below that cannot be kept."),
    ]  # fmt: skip


def _by_policy(points: Sequence[Point]) -> list[Chart]:
    own = _of(points, "5-8")
    if not own:
        return []
    names = [n for n in dict.fromkeys(p.policy for p in own) if not n.startswith("suspend")]
    proc = [Series(n, [(f, seed_proc_new(n, 2.7, f)) for f in SEED_DURATIONS], seed=True) for n in names]
    tentative = [Series(n, [(f, seed_tentative(n, 2.7, f)) for f in SEED_DURATIONS], seed=True) for n in names]
    return [
        Chart("Figure 5-8: Proc_new, D = 2.7 s", "failure, s", "s", [*_series(own, "failure_s", "proc_new_s"), *proc]),
        Chart("Figure 5-8: N_tentative, D = 2.7 s", "failure, s", "s of output",
              [*_series(own, "failure_s", "tentative_s"), *tentative]),
        Chart("From healing to REC_DONE (table 5.1)", "failure, s", "s",
              [*(Series(s.name, [(x, y) for x, y in s.points if y is not None])
                 for s in _series(own, "failure_s", "correct_s")),
               Series("reconciliation", [(f, f * SEED_RECONCILE) for f in SEED_DURATIONS], seed=True)]),
    ]  # fmt: skip


def _chains(points: Sequence[Point]) -> list[Chart]:
    depths = [_of(points, "5-10", depth) for depth in range(1, _deepest(points, "5-10") + 1)]
    if len(depths) < 2:
        return []
    longest = max((f for f in {p.failure_s for p in depths[-1]} if f <= 30), default=0)
    at = [p for own in depths for p in own if p.failure_s == longest]
    seed = [Series("process & process", [(n, 2 + SEED_NORMAL_S * n) for n in (1, 2, 3, 4)], seed=True),
            Series("delay & delay", [(n, 2.0 * n + SEED_NORMAL_S) for n in (1, 2, 3, 4)], seed=True)]  # fmt: skip
    tentative = [
        Series(f"{s.name}, {n} node{'s' * (n > 1)}", s.points)
        for n, own in enumerate(depths, 1)
        for s in _series(own, "failure_s", "tentative_s")
    ]
    laws = [
        Series(f"process & process, {n} node{'s' * (n > 1)}",
               [(f, seed_tentative("process & process", 2, f)) for f in SEED_DURATIONS], seed=True)
        for n in (1,)
    ] + [
        Series(f"delay & delay, {n} node{'s' * (n > 1)}",
               [(f, max(0.0, f * (1 + SEED_RECONCILE) - 2.0 * (n if f < 60 else 1))) for f in SEED_DURATIONS[2:]],
               seed=True)
        for n in range(1, len(depths) + 1)
    ]  # fmt: skip
    return [
        Chart(f"Figure 5-10: Proc_new along a chain, {longest:g}-second failure, D = 2 s", "nodes", "s",
              [*_series(at, "depth", "proc_new_s"), *seed]),
        Chart("Figures 5-11 and 5-13: N_tentative along a chain, D = 2 s", "failure, s", "s of output",
              [*tentative, *laws]),
    ]  # fmt: skip


def _whole_delay(points: Sequence[Point]) -> list[Chart]:
    nodes = _deepest(points, "5-14")
    whole, shared = _of(points, "5-14", nodes), _of(points, "5-10", nodes)
    if not whole:
        return []
    each = whole[0].delay_s
    proc, tentative = [], []
    for label, own in (("whole X each", whole), (f"X/{nodes} each", shared)):
        for y, into in (("proc_new_s", proc), ("tentative_s", tentative)):
            into += [Series(f"{s.name}, {label}", s.points) for s in _series(own, "failure_s", y)]
    label = "process & process, whole X each"
    bound = Series(label, [(f, seed_proc_new("process & process", each, f)) for f in SEED_DURATIONS], seed=True)
    law = Series(label, [(f, seed_tentative("process & process", each, f)) for f in SEED_DURATIONS], seed=True)
    note = f"Seeds: X = 8 s over four nodes, 6.5 s for each. Here X = {each:g} s over {nodes}, the whole for each."
    by = f"by assignment of delays, {nodes} nodes"
    return [Chart(f"Figure 5-14: Proc_new {by}", "failure, s", "s", [*proc, bound], note),
            Chart(f"Figure 5-15: N_tentative {by}", "failure, s", "s of output",
                  [*tentative, law], note)]  # fmt: skip


def _deepest(points: Sequence[Point], figure: str) -> int:
    """How many nodes the longest chain of a figure has."""
    return max((p.depth for p in points if p.figure == figure), default=0)


def _tables(points: Sequence[Point]) -> list[Sheet]:
    buckets, single = _of(points, "5.2"), _of(points, "5-8")
    sheets = []
    if single:
        costs = [p for p in single if p.correct_s is not None]
        sheets.append(Sheet(
            "Table 5.1: what reconciliation costs",
            ["policy", "failure, s", "healing to REC_DONE, s", "fork, ms", "files"],
            [[p.policy, p.failure_s, p.correct_s, p.fork_ms, p.fork_files] for p in costs],
            "The seeds: S·p_copy + (F + 0.5·l)·λ·p_proc. A fork links files instead of copying S, so the first term is "
            "the milliseconds in the table, whatever the state; l is a micro-batch. The stable query never rolls back: "
            "what is redone is what it could not read."))  # fmt: skip
    if buckets:
        sheets.append(Sheet(
            "Table 5.2: latency by bucket (boundary interval)",
            ["bucket, ms", "Holdfast, median ms", "less the bucket", "seeds, average ms", "less the bucket"],
            [[p.bucket_ms, round(1000 * p.normal_s), round(1000 * p.normal_s - p.bucket_ms),
              SEED_TABLE_52[round(p.bucket_ms)], SEED_TABLE_52[round(p.bucket_ms)] - round(p.bucket_ms)]
             for p in buckets],
            "Tuples that pass through one node. A Spark micro-batch is the constant part."))  # fmt: skip
    return sheets


#: The figures of short X, and the names of what is judged by them.
JUDGED = {"x:1s": "1s", "x:chain": "chain4_2s", "x:delay": "delay"}


def summary(points: Sequence[Point], cuts: Mapping[str, int], warm_cost: tuple[float, float] | None) -> None:
    """The last line: what matters of all points, and nothing of what was not measured. `cuts`: how many failures each
    figure should rest on; `warm_cost`: what a fork that is kept ready costs, and what others had meanwhile."""
    calm = [p for p in points if p.others <= OTHERS_MAX]
    short, remarks = short_delays(points, cuts, warm_cost)
    for remark in remarks:
        console.print(remark)
    finish(
        "dpc_tradeoff",
        # Who draws it takes the last of each setting: what was not disturbed.
        detail={"points": [{**msgspec.to_builtins(p), "added_s": p.added_s}
                           for p in sorted(points, key=lambda p: p.others <= OTHERS_MAX)]},
        **_text_figures(calm),
        **short,
        fork_ms=max((p.fork_ms for p in points), default=None),
        disturbed=len(points) - len(calm),
        remarks=remarks,
        java=JAVA_OPTIONS,
    )  # fmt: skip


def _text_figures(points: Sequence[Point]) -> dict[str, object]:
    nodes = _deepest(points, "5-10")
    single, chain = _of(points, "5-8"), _of(points, "5-10", nodes) + _of(points, "5-14", nodes)
    bound = [p for p in (*single, *chain) if "suspend" not in p.policy and p.failure_s]
    limit = {"5-8": 2.7, "5-10": 2.0 * nodes, "5-14": 2.0 * nodes}  # D = 2 s for each.
    longest = max((p.failure_s for p in single), default=0)
    found: dict[str, object] = {}
    if bound:
        found |= {
            "delay_added_max_s": {figure: max(p.added_s for p in bound if p.figure == figure)
                                  for figure in dict.fromkeys(p.figure for p in bound)},
            "within_x": all(p.added_s < limit[p.figure] for p in bound),
            "masked": all(p.tentative == 0 for p in (*single, *chain) if p.failure_s < p.delay_s),
        }  # fmt: skip
    if single:
        found |= {
            "failure_s_max": longest,
            "tentative_by_policy": {p.policy: p.tentative_s for p in single if p.failure_s == longest},
            "added_s_by_policy": {p.policy: p.added_s for p in single if p.failure_s == longest},
            "correct_s_by_policy": {p.policy: p.correct_s for p in single if p.failure_s == longest},
        }
    if chain:
        found["chain"] = {f"{p.policy}, D {p.delay_s:g} s, {p.failure_s:g} s":
                          {"added_s": p.added_s, "tentative_s": p.tentative_s} for p in chain}  # fmt: skip
    if buckets := _of(points, "5.2"):
        found["latency_ms_by_bucket"] = {f"{p.bucket_ms:g}": round(1000 * p.normal_s) for p in buckets}
    return found


def short_delays(
    points: Sequence[Point], cuts: Mapping[str, int], warm_cost: tuple[float, float] | None
) -> tuple[dict[str, object], list[str]]:
    """Whether X was kept where it is short, on how many undisturbed failures each figure rests, and a sentence for each
    that rests on fewer than it should."""
    found: dict[str, object] = {}
    remarks = []
    for figure, name in JUDGED.items():
        if not cuts.get(figure) and all(p.figure != figure for p in points):
            continue
        key = "delay_policy_excess" if name == "delay" else f"kept_{name}"
        every = [(_excess(p) if name == "delay" else p.added_s, p) for p in points if p.figure == figure]
        calm = [value for value, p in every if p.others <= OTHERS_MAX]
        judged = sum(p.depth == 1 and p.others <= OTHERS_MAX for _, p in every)
        found |= {key: max(calm, default=None), f"points_{name}": judged}
        if judged < cuts.get(figure, 0):
            remarks.append(f"{key} rests on {judged} of {cuts[figure]} failures: during the others other processes "
                           f"had more than {OTHERS_MAX:.0%} of the machine; with those it would be "
                           f"{max((value for value, _ in every), default=None)}")  # fmt: skip
    if warm_cost is not None:
        found["warm_cost"] = warm_cost[0]
        if warm_cost[1] > OTHERS_MAX:
            remarks.append(f"warm_cost was measured while other processes had {warm_cost[1]:.0%} of the machine")
    return found, remarks


def _excess(p: Point) -> float:
    return max(0.0, round(p.added_s - p.delay_s, 3))
