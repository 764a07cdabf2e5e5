"""003, chapters 6 and 7: contracts and bounded prices."""

from __future__ import annotations

from collections.abc import Sequence

from benches.bpm_contracts import LEVELS as PRICES
from benches.bpm_contracts import P_SPIKE, TABLE_6_2
from benches.evaluation.figures import Claim, Curve, Figure, Grid, Plot, Reason, Stated
from benches.evaluation.results import Missing, Results

SELLERS = ("light", "uniform", "heavy")
SPIKES = {"a": "spikes up to 10 T", "b": "spikes up to 100 T"}
VARIANTS = ("uniform fixed", "uniform range", "heterogeneous fixed", "heterogeneous range")
LOADS = {"light load": "load not reallocated, %", "heavy load": "load not reallocated, %",
         "light overload": "capacity not used, %", "heavy overload": "capacity not used, %"}  # fmt: skip
CONTRACTS = tuple(range(11))
#: Figure 7-1: what the text states, by load and variant: contracts → per cent.
FIGURE_71 = {
    "light load": {"uniform fixed": [(0, 30), (2, 5), (5, 1)], "uniform range": [(2, 0)],
                   "heterogeneous range": [(2, 5), (6, 0)]},
    "heavy load": {"uniform fixed": [(8, 2)], "uniform range": [(2, 0)], "heterogeneous range": [(2, 5)]},
    "light overload": {"uniform fixed": [(0, 26), (4, 5)], "uniform range": [(2, 0.5)],
                       "heterogeneous range": [(2, 5)]},
    "heavy overload": {"uniform fixed": [(4, 5), (5, 1)], "uniform range": [(2, 0.5), (8, 0)],
                       "heterogeneous range": [(2, 5)]},
}  # fmt: skip
#: Table 7.1 as printed: most contracts, then diameters: mean, least, most.
TABLE_71 = {
    "most contracts": (13, 14, 15, 16, 16, 17, 18, 18, 18, 18),
    "diameter, mean": (20, 11, 8, 7, 6, 5, 5, 5, 4, 4),
    "diameter, least": (17, 10, 8, 7, 6, 5, 5, 5, 4, 4),
    "diameter, most": (22, 14, 9, 7, 6, 6, 5, 5, 5, 5),
}
TABLE_73 = {"light load": 0.50, "heavy load": 0.75, "light overload": 1.25, "heavy overload": 1.50}


def _explained(r: Results, said: str) -> Reason | None:
    """What a change of topology, prices or order of offers did to the statement, if that was tried."""
    try:
        tried = r("bpm_explained")
        return Reason(str(tried("why", said)), any(tried("holds", said).values()))
    except Missing:
        return None


def _with_reasons(draw: object, *figures: str) -> object:
    """The pictures, and below them what other topologies, prices and orders of offers do to statements that differ."""

    def drawn(r: Results) -> Sequence[Plot | Grid]:
        parts = list(draw(r))  # type: ignore[operator]
        try:
            values, holds = (r("bpm_explained")(what) for what in ("values", "holds"))
            bounds = r("bpm_explained")("bounds")
        except Missing:
            return parts
        rows: list[list[object]] = []
        ours: list[Curve] = []
        changes = list(max(values.values(), key=len))
        for said, (bound, at_least, figure, unit) in bounds.items():
            if figure not in figures:
                continue
            by = values[said]
            rows.append(
                [
                    f"{said} ({unit})",
                    f"{'at least' if at_least else 'at most'} {bound:g}",
                    *(f"{by[c]:.4g}{' ✓' if holds[said][c] else ''}" if c in by else "–" for c in changes),
                ]
            )
            off = {c: (by[c] / bound if not at_least else bound / max(by[c], 1e-9)) for c in changes if c in by}
            if bound > 0.001:
                ours.append(Curve(said, [(i, min(off[c], 3.0)) for i, c in enumerate(changes) if c in off]))
        limit = Curve("the text's bound", [(i, 1.0) for i in range(len(changes))])
        groups = [c.replace("topology", "").replace("capacities", "cap.").replace("offers ", "").replace("as ", "")
                  .strip() for c in changes]  # fmt: skip
        if rows:
            parts.append(Plot("what is changed", "ours over the bound (1 or less holds)", [limit], ours, groups=groups,
                              title="Why statements differ: what the text leaves open, done otherwise"))  # fmt: skip
            parts.append(Grid(["statement", "bound", *changes], rows, note="✓: holds. Narrow: the text's diameters."))
        return parts

    return drawn


def _spikes(kind: str, y: str) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        plots = []
        for letter, title in SPIKES.items():
            ours = []
            for seller in SELLERS:
                values = r("bpm_contracts")("curves", f"6-8 {letter} {seller}", "overload" if kind == "gain" else kind)
                if kind == "gain":
                    values = [P_SPIKE * (values[0] - v) for v in values]
                ours.append(Curve(f"{seller} sellers", list(enumerate(values))))
            theirs = [Curve("without contracts", [(0, 1.0)])] if kind != "gain" else []
            plots.append(Plot("contracts", y, theirs, ours, title=title))
        return plots

    return draw


def _bought(r: Results) -> Sequence[Plot]:
    plots = []
    for seller in SELLERS:
        for kind, y in (("moved", "bought, in T"), ("saved", "buyer's gain")):
            ours = [Curve(f"price at {p} T", list(enumerate(r("bpm_contracts")("curves", f"6-11 {seller} {p}", kind))))
                    for p in PRICES]  # fmt: skip
            plots.append(Plot("contracts", y, [], ours, title=f"{seller} load",
                              only="The text states which price moves most, not how much: the median with up to three "
                                   "contracts, a little less with more."))  # fmt: skip
    return plots


def _how_many(r: Results) -> Sequence[Grid]:
    found = r("bpm_contracts")("curves")
    five = min((c["overloaded"][0] - c["overloaded"][5]) / (c["overloaded"][0] - c["overloaded"][20])
               for name, c in found.items() if name.startswith("6-8"))  # fmt: skip
    six = min(found[f"6-11 {s} {p}"]["saved"][6] / found[f"6-11 {s} {p}"]["saved"][20]
              for s, p in (("light", 0.33), ("uniform", 0.5), ("heavy", 0.66)))  # fmt: skip
    return [Grid(["price at", "as", "text", "ours"], [
        ["maximum load", "buyer", "a few", f"five bring {five:.0%} of what twenty bring, or more"],
        ["median load", "buyer", "a few", f"six bring {six:.0%} of what twenty bring, or more"],
        ["maximum load", "seller", "many", "each brings the same until the room is sold"],
        ["median load", "seller", "a few", "the mirror image of the buyer's"]])]  # fmt: skip


def _counter_offers(r: Results) -> Sequence[Grid]:
    best = r("bpm_contracts")("best_counter")
    rows = []
    for competitors, printed in TABLE_6_2.items():
        rows.append([f"{competitors}, text", *printed])
        rows.append([f"{competitors}, ours", *best[str(competitors)]])
    return [Grid(["competitors", "S = 0", "0.25", "0.5", "0.75"], rows)]


def _topologies(r: Results) -> Sequence[Grid]:
    found = r("bpm_convergence")("table_7_1")
    places = {"most contracts": 2, "diameter, mean": 3, "diameter, least": 4, "diameter, most": 5}
    rows = []
    for name, printed in TABLE_71.items():
        rows.append([f"{name}, text", *printed])
        rows.append([f"{name}, ours", *(round(row[places[name]], 1) for row in found)])
    return [Grid(["least contracts", *range(1, 11)], rows)]


def _initial(r: Results) -> Sequence[Grid]:
    drawn = r("bpm_convergence")("loads_drawn")
    return [Grid(["", *TABLE_73], [["text, share of capacity", *TABLE_73.values()],
                                   ["ours, drawn", *(drawn[name] for name in TABLE_73)]])]  # fmt: skip


def _left(r: Results) -> Sequence[Plot]:
    plots = []
    for name, y in LOADS.items():
        ours, theirs = [], []
        for variant in VARIANTS:
            values = r("bpm_convergence")("left", name, variant)
            ours.append(Curve(variant, [(n, 100 * v[0]) for n, v in zip(CONTRACTS, values, strict=True)],
                              errors=[(100 * v[1], 100 * v[2]) for v in values]))  # fmt: skip
            if stated := FIGURE_71[name].get(variant):
                theirs.append(Curve(variant, stated))
        plots.append(Plot("least number of contracts", y, theirs, ours, title=name))
    return plots


def _traces(r: Results) -> Sequence[Plot]:
    plots = []
    for variant in VARIANTS:
        trace = r("bpm_convergence")("traces", variant)
        last = max([int(s) for s in trace["movements"]] or [0]) + 10
        excess, value = [], 0
        for second in range(last):
            value = trace["excess"].get(str(second), value)
            excess.append((float(second), float(value)))
        ours = [Curve("tasks moved", [(float(s), float(trace["tasks"].get(str(s), 0))) for s in range(last)]),
                Curve("movements", [(float(s), float(trace["movements"].get(str(s), 0))) for s in range(last)]),
                Curve("still to be moved", excess)]  # fmt: skip
        plots.append(Plot("seconds", "tasks", [], ours, title=variant, log_y=True,
                          only="The text says of its picture that its numbers do not matter, only the trend: most in "
                               "the first seconds, then a long tail with ranges."))  # fmt: skip
    return plots


def _seconds(r: Results) -> Sequence[Plot]:
    plots = []
    for name in ("light load", "heavy overload"):
        ours = []
        for variant in VARIANTS:
            values = r("bpm_convergence")("seconds", name, variant)
            ours.append(Curve(variant, [(n, v[0]) for n, v in enumerate(values, 1)]))
            if "range" in variant:
                ours.append(Curve(f"{variant}, 95 %", [(n, v[1]) for n, v in enumerate(values, 1)]))
        theirs = [Curve("uniform fixed", [(n, 5.0) for n in (1, 10)], law=True)]
        plots.append(Plot("least number of contracts", "simulated seconds", theirs, ours, title=name))
    return plots


def _above(r: Results) -> Sequence[Plot]:
    found = r("bpm_convergence")
    ours = [Curve(f"valuation + {extra}", list(enumerate(found("above", extra), 1))) for extra in range(3)]
    return [Plot("least number of contracts", "simulated seconds", [], ours,
                 only="The text states that from three contracts on the curves lie on each other.")]  # fmt: skip


def _swings(figure: str) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        plots = []
        for name in ("light load", "heavy load"):
            curves = r("bpm_convergence")("swings", f"{figure} {name}")
            ours = [Curve(name, [(20.0 * i + 10, v) for i, v in enumerate(values)]) for name, values in curves.items()]
            theirs = [Curve("offered load varies by", [(50, 13.2), (299, 13.2), (300, 66), (599, 66), (600, 660),
                                                       (880, 660)], law=True)]  # fmt: skip
            plots.append(Plot("seconds", "tasks per second", theirs, ours, title=name, log_y=True,
                              note="Theirs: 330 nodes that each get and lose a task every 50, 10, 1 s."))  # fmt: skip
        return plots

    return draw


def _prototype(r: Results) -> Sequence[Plot]:
    found = r("bpm_prototype")
    ours = [Curve(name, [(at, load) for at, load in samples]) for name, samples in found("loads").items() if samples]
    moved = "; ".join(f"{at:.0f} s {task}: {source} → {target}{' (home)' if back else ''}"
                      for at, task, source, target, back in found("moves"))  # fmt: skip
    return [Plot("seconds", "load, cores of the contracts", [], ours, note=f"Movements here: {moved}",
                 only="The text states the order of movements: at about 650 s node 0 moves load to node 1 twice, then "
                      "to node 2; at about 800 s node 1 has a spike and moves load to node 2.")]  # fmt: skip


def _fourth(r: Results) -> Sequence[Grid]:
    rows = r("bpm_prototype")("phases_shown")
    return [Grid(["phase", "node 0", "node 1", "node 2", "node 3", "tasks", "acceptable"], rows,
                 title="Loads at the end of each phase",
                 note="The fourth joins at the end, with a contract with node 2 alone, at a lower price.")]  # fmt: skip


def _moved(r: Results, source: str, target: str) -> int:
    return sum(1 for _, _, s, t, back in r("bpm_prototype")("moves") if (s, t, back) == (source, target, False))


BPM = "bpm_convergence"
FIGURES = [
    Figure("003", "figure 6-8", "Probability of overload by number of contracts",
           _spikes("overloaded", "probability of overload"), [Stated("bpm_contracts", ["fig. 6-8"])]),
    Figure("003", "figure 6-9", "Expected overload by number of contracts",
           _spikes("overload", "expected overload, in T"), [Stated("bpm_contracts", ["fig. 6-9"])]),
    Figure("003", "figure 6-10", "What contracts are worth", _spikes("gain", "benefit"),
           [Stated("bpm_contracts", ["fig. 6-10"])]),
    Figure("003", "figure 6-11", "Contracts below the threshold", _bought, [Stated("bpm_contracts", ["fig. 6-11"])]),
    Figure("003", "table 6.1", "How many contracts", _how_many, [Stated("bpm_contracts", ["table 6.1"])]),
    Figure("003", "table 6.2", "The best counter-offers", _counter_offers, [Stated("bpm_contracts", ["table 6.2"])]),
    Figure("003", "table 7.1", "Ten topologies", _topologies, [Stated(BPM, ["table 7.1"], _explained)]),
    Figure("003", "table 7.3", "Initial loads", _initial, [
        Claim("the four distributions give 50, 75, 125 and 150 % of the capacity",
              lambda r: (", ".join(f"{v:.1%}" for v in r(BPM)("loads_drawn").values()),
                         all(abs(r(BPM)("loads_drawn", k) - v) < 0.03 for k, v in TABLE_73.items())),
              "drawn from the printed parameters as they are")]),
    Figure("003", "figure 7-1", "How far from acceptable", _with_reasons(_left, "fig. 7-1"),
           [Stated(BPM, ["fig. 7-1"], _explained)]),
    Figure("003", "figure 7-2", "How load spreads", _with_reasons(_traces, "fig. 7-2"),
           [Stated(BPM, ["fig. 7-2"], _explained)]),
    Figure("003", "figure 7-3", "How long it takes", _with_reasons(_seconds, "fig. 7-3"),
           [Stated(BPM, ["fig. 7-3"], _explained)]),
    Figure("003", "figure 7-4", "Counter-offers above valuation", _above, [Stated(BPM, ["fig. 7-4"], _explained)]),
    Figure("003", "figure 7-5", "Load that varies", _swings("7-5"), [Stated(BPM, ["fig. 7-5"], _explained)]),
    Figure("003", "figure 7-6", "Load that varies, leases that end", _swings("7-6"),
           [Stated(BPM, ["fig. 7-6"], _explained)]),
    Figure("003", "figure 7-9", "Loads of three nodes over time", _prototype, [
        Claim("node 0 sheds load to node 1 first, when its own rises",
              lambda r: (f"{_moved(r, 'node0', 'node1')} movements", _moved(r, "node0", "node1") >= 1)),
        Claim("then to node 2, when node 1 has enough",
              lambda r: (f"{_moved(r, 'node0', 'node2')} from node 0 and {_moved(r, 'node1', 'node2')} from node 1",
                         _moved(r, "node0", "node2") + _moved(r, "node1", "node2") >= 1)),
        Claim("the allocation is acceptable after each change",
              lambda r: (f"at the end of {r('bpm_prototype')('acceptable_phases')} of {r('bpm_prototype')('phases')} "
                         "phases", r("bpm_prototype")("acceptable_phases") >= r("bpm_prototype")("phases") - 1),
              "a phase of the short form ends while a movement is under way on a busy machine; in the last full run "
              "six of seven were, in another all"),
        Claim("the query's results are right all along (here: equal to those of tasks that never moved)",
              lambda r: (f"{r('bpm_prototype')('outputs_equal')} of {r('bpm_prototype')('outputs')} outputs",
                         r("bpm_prototype")("outputs_equal") == r("bpm_prototype")("outputs"))),
    ]),
    Figure("003", "figure 7-10", "A fourth node joins", _fourth, [
        Claim("load moves on to the new node, by way of its only partner",
              lambda r: (f"{r('bpm_prototype')('moved_to_the_fourth')} movements",
                         r("bpm_prototype")("moved_to_the_fourth") >= 1)),
    ]),
]  # fmt: skip
