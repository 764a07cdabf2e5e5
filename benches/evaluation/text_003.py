"""003, chapter 5: delays and tentative tuples, reconciliation, the cost of order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benches.dpc_laws import SEED_TABLE_52, seed_proc_new, seed_tentative
from benches.evaluation.figures import Claim, Curve, Figure, Grid, Plot
from benches.evaluation.results import Missing, Results

PROCESS, DELAY = "process & process", "delay & delay"
NORMAL_S = 0.3
STRATEGIES = ("undo/redo", "checkpoint/redo", "forking")
_ADDED = "seconds added to new results"
_TENTATIVE = "tentative, seconds of output"
_LAW = "The text's pictures have no numbers in our copy; dashed is the rule that it states, with its own settings."


#: The chain of four, whose nodes have 2 s each, is what figures 5-10 to 5-13 look at.
_ALSO = {"x:chain": "5-10"}


class Point(NamedTuple):
    """What one failure did, as the bench has it."""

    policy: str
    delay_s: float
    failure_s: float
    depth: int
    bucket_ms: float
    normal_s: float | None
    added_s: float
    tentative_s: float
    correct_s: float | None


def points(r: Results, figure: str, **only: object) -> list[Point]:
    """The last measurement of each setting."""
    chosen: dict[tuple[Any, ...], Point] = {}
    for p in r("dpc_tradeoff")("points"):
        made = Point(*(p.get(name) for name in Point._fields))
        if figure in (p["figure"], _ALSO.get(p["figure"])) and all(getattr(made, k) == v for k, v in only.items()):
            chosen[made.policy, made.delay_s, made.failure_s, made.depth, made.bucket_ms] = made
    if not chosen:
        raise Missing(f"dpc_tradeoff: no points of figure {figure} with {only}")
    return sorted(chosen.values(), key=lambda p: (p.policy, p.depth, p.delay_s, p.failure_s, p.bucket_ms))


def curves(found: Sequence[Point], x: str, y: str) -> list[Curve]:
    names = dict.fromkeys(p.policy for p in found)
    return [Curve(name, [(getattr(p, x), getattr(p, y)) for p in found if p.policy == name]) for name in names]


def _by_delay(r: Results) -> Sequence[Plot]:
    found = points(r, "5-7", depth=1)
    delays = (0.5, 1, 2, 3, 4, 5, 5.01, 6)
    added = [Curve(n, [(d, min(d, 5.0)) for d in delays], law=True) for n in (PROCESS, DELAY)]
    tentative = [Curve(PROCESS, [(d, 5.0 if d <= 4 else max(0.0, 5 - d) * 5) for d in delays], law=True),
                 Curve(DELAY, [(d, max(0.0, 5 - d)) for d in delays], law=True)]  # fmt: skip
    return [Plot("D, s", _ADDED, added, curves(found, "delay_s", "added_s"), note=_LAW),
            Plot("D, s", _TENTATIVE, tentative, curves(found, "delay_s", "tentative_s"))]  # fmt: skip


def _by_policy(r: Results) -> Sequence[Plot]:
    found = points(r, "5-8", depth=1)
    names = [n for n in dict.fromkeys(p.policy for p in found) if not n.startswith("suspend")]
    durations = (2, 2.7, 3, 5, 8, 10, 20, 30, 45, 60)
    added = [Curve(n, [(f, seed_proc_new(n, 2.7, f) - NORMAL_S) for f in durations], law=True) for n in names]
    tentative = [Curve(n, [(f, seed_tentative(n, 2.7, f)) for f in durations], law=True) for n in names]
    ours = [p for p in found if not p.policy.startswith("suspend")]
    return [Plot("failure, s", _ADDED, added, curves(ours, "failure_s", "added_s"), note=_LAW),
            Plot("failure, s", _TENTATIVE, tentative, curves(ours, "failure_s", "tentative_s"))]  # fmt: skip


def _longest(found: Sequence[Point], below: float) -> float:
    times = [p.failure_s for p in found if p.failure_s <= below]
    if not times:
        raise Missing("dpc_tradeoff: no failure of that length")
    return max(times)


def _along_a_chain(r: Results) -> Sequence[Plot]:
    found = points(r, "5-10")
    deepest = max(p.depth for p in found)
    longest = _longest([p for p in found if p.depth == deepest], 30)
    at = [p for p in found if p.failure_s == longest]
    theirs = [Curve(PROCESS, [(n, 2 + NORMAL_S * (n - 1)) for n in (1, 2, 3, 4)], law=True),
              Curve(DELAY, [(n, 2.0 * n) for n in (1, 2, 3, 4)], law=True)]  # fmt: skip
    return [Plot("nodes in a chain", _ADDED, theirs, curves(at, "depth", "added_s"),
                 title=f"Failure of {longest:g} s (there 30 s), D = 2 s", note=_LAW)]  # fmt: skip


def _tentative_along(failures: tuple[float, float]) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        found = [p for p in points(r, "5-10") if failures[0] <= p.failure_s <= failures[1]]
        if not found:
            raise Missing(f"dpc_tradeoff: no failure of {failures[0]:g} to {failures[1]:g} s along a chain")
        times = sorted({p.failure_s for p in found})
        ours = [Curve(f"{policy}, {t:g} s",
                      [(p.depth, p.tentative_s) for p in found if (p.policy, p.failure_s) == (policy, t)])
                for t in times for policy in (PROCESS, DELAY)]  # fmt: skip
        theirs = [Curve(f"{policy}, {t:g} s",
                        [(n, max(0.0, seed_tentative(PROCESS, 2, t) - (2.0 * (n if t < 60 else 1)
                                                                       if policy == DELAY else 0)))
                         for n in (1, 2, 3, 4)], law=True) for t in times for policy in (PROCESS, DELAY)]  # fmt: skip
        return [Plot("nodes in a chain", _TENTATIVE, theirs, [c for c in ours if c.points], note=_LAW)]

    return draw


def _assigned(y: str) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        whole = points(r, "5-14")
        deepest = max(p.depth for p in whole)
        part = [p for p in points(r, "5-10") if p.depth == deepest]
        whole = [p for p in whole if p.depth == deepest]
        each, total = max(p.delay_s for p in part), max(p.delay_s for p in whole)
        label = f"{PROCESS}, {total:g} s each"
        ours = [Curve(f"{c.name}, {each:g} s each", c.points) for c in curves(part, "failure_s", y)]
        ours += [Curve(label, c.points) for c in curves(whole, "failure_s", y)]
        durations = (5, 6.4, 6.6, 10, 30, 60)
        if y == "added_s":
            theirs = [Curve(f"{PROCESS}, 2 s each", [(f, 2 + 3 * NORMAL_S) for f in durations], law=True),
                      Curve(f"{DELAY}, 2 s each", [(f, 8.0) for f in durations[3:]], law=True),
                      Curve(f"{PROCESS}, 6.5 s each", [(f, min(f, 6.5)) for f in durations], law=True)]  # fmt: skip
        else:
            theirs = [Curve(f"{PROCESS}, 6.5 s each", [(f, seed_tentative(PROCESS, 6.5, f)) for f in durations],
                            law=True),
                      Curve(f"{DELAY}, 2 s each", [(f, max(0.0, f * 4 / 3 - (8 if f < 60 else 2))) for f in durations],
                            law=True)]  # fmt: skip
        name = _ADDED if y == "added_s" else _TENTATIVE
        return [Plot("failure, s", name, theirs, ours, title=f"Behind {deepest} nodes (there four)", note=_LAW)]

    return draw


def _buckets(r: Results) -> Sequence[Plot | Grid]:
    found = [p for p in points(r, "5.2") if p.normal_s is not None]
    ours = [(p.bucket_ms, round(1000 * p.normal_s)) for p in found if p.normal_s is not None]
    note = "Theirs: averages; ours: medians, of tuples that pass one node."
    theirs = [Curve("latency", list(SEED_TABLE_52.items()))]
    plot = Plot("boundary interval, ms", "latency, ms", theirs, [Curve("latency", ours)], note=note)
    rows = [["text", *SEED_TABLE_52.values()], ["ours", *(dict(ours).get(b, "–") for b in SEED_TABLE_52)]]
    return [plot, Grid(["ms", *SEED_TABLE_52], rows)]


def _seen(act: str, only: str) -> object:
    """What a client got, by arrival and stime."""

    def draw(r: Results) -> Sequence[Plot]:
        found = r("dpc_sequences")("acts", act)
        names = {"INSERTION": "stable", "TENTATIVE": "tentative", "UNDO": "UNDO", "REC_DONE": "REC_DONE"}
        ours = [Curve(label, [(a, b) for a, b in found["points"].get(kind, [])], dots=True)
                for kind, label in names.items()]  # fmt: skip
        marks = "; ".join(f"{at:g} s {text}" for at, text in found["marks"])
        return [
            Plot("arrival, s", "stime, s", [], ours, only=only, note=f"X = 2 s. {marks}. UNDO and REC_DONE at zero.")
        ]

    return draw


def _order_of(act: str, corrections: int) -> object:
    def judge(r: Results) -> tuple[str, bool]:
        found = r("dpc_sequences")("acts", act)
        undo, done = found["undo_s"], found["rec_done_s"]
        said = f"UNDO at {undo}, REC_DONE at {done}, last healed at {found['healed_s']} s"
        return said, len(done) == corrections and bool(undo) and found["healed_s"] <= done[-1] and undo[-1] <= done[-1]

    return judge


def _suspends_first(r: Results) -> tuple[str, bool]:
    first = r("dpc_sequences")("acts", "single", "first_tentative_s")
    return f"the first tentative result {first:g} s after the cut, X = 2 s", 0.5 <= first <= 3.5


def _once(r: Results) -> tuple[str, bool]:
    found = r("dpc_sequences")
    twice, left = found("stable_twice"), found("tentative_left")
    return f"{twice} of {found('stable'):,} stable tuples came twice, {left} are left tentative", twice == left == 0


def _reconciled(kind: str, what: str, x: str, y: str, theirs: Sequence[Curve], only: str = "") -> object:
    def draw(r: Results) -> Sequence[Plot]:
        plots = []
        for operator, kinds in r("reconcile")("found").items():
            ours = [
                Curve(name, [(int(size), by[name][what]) for size, by in kinds[kind].items()]) for name in STRATEGIES
            ]
            plots.append(Plot(x, y, theirs, ours, title=f"A windowed {operator}" if operator != "join" else "A join",
                              log_x=True, log_y=True, only=only))  # fmt: skip
        return plots

    return draw


def _both(*draws: object) -> object:
    return lambda r: [plot for draw in draws for plot in draw(r)]  # type: ignore[operator]


def _table_51(r: Results) -> Sequence[Grid]:
    rows = []
    laws = {"undo/redo": ("S(p_comp + p_proc) + (F + l/2)λ(p_comp + p_proc)", "S·p_comp / l", "S + (l + F)λ"),
            "checkpoint/redo": ("S·p_copy + (F + l/2)λ·p_proc", "S·p_copy / l", "S + (l + F)λ_in"),
            "forking": ("none in the text; here Fλ·p_proc", "here none before a suspicion",
                        "here the fork's own state")}  # fmt: skip
    size = max(r("reconcile")("found", "aggregate", "state"), key=int)
    for name, (time, quiet, memory) in laws.items():
        mine = [r("reconcile")("found", operator, "state", size, name) for operator in ("aggregate", "join")]
        rows.append([name, time, " / ".join(f"{1000 * m['correct_s']:.1f} ms" for m in mine), quiet,
                     " / ".join(f"{m['quiet']:.1%}" for m in mine), memory,
                     " / ".join(f"{m['bytes'] / 1e6:.1f} MB" for m in mine)])  # fmt: skip
    return [Grid(["", "time, text", "ours", "overhead, text", "ours", "memory, text", "ours"], rows,
                 note=f"Ours: aggregate / join with a state of {int(size):,} tuples, 5,000 tuples to be redone, copies "
                      "and markers every 200 ms. S: state, F: failure, l: interval, λ: rates.")]  # fmt: skip


def _cells(r: Results) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{operator}, {kind} {int(size):,}", by) for operator, kinds in r("reconcile")("found").items()
            for kind, sizes in kinds.items() for size, by in sizes.items()]  # fmt: skip


def _always_less(r: Results, what: str, less: str, more: str, slack: float = 1.0) -> tuple[str, bool]:
    cells = _cells(r)
    lost = [name for name, by in cells if by[less][what] > slack * by[more][what]]
    return f"in {len(cells) - len(lost)} of {len(cells)} settings" + (
        f"; not in {'; '.join(lost)}" if lost else ""
    ), not lost


def _grows(r: Results, kind: str) -> tuple[str, bool]:
    said, rises = [], []
    for operator, kinds in r("reconcile")("found").items():
        sizes = sorted(kinds[kind], key=int)
        for name in ("undo/redo", "checkpoint/redo"):
            first, last = (kinds[kind][size][name]["correct_s"] for size in (sizes[0], sizes[-1]))
            said.append(f"{operator}, {name}: {1000 * first:.1f} to {1000 * last:.1f} ms")
            rises.append(last > first)
    return "; ".join(said), all(rises)


# Statements -----------------------------------------------------------------------------------------------------------


def _kept(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5-8", depth=1, policy=PROCESS) if p.failure_s > 2.7]
    return f"{max(p.added_s for p in found):.1f} s at most, X = 2.7 s", all(p.added_s < 2.7 for p in found)


def _fewest(r: Results) -> tuple[str, bool]:
    found = points(r, "5-8", depth=1)
    longest = _longest([p for p in found if p.policy == DELAY], 60)
    by = {p.policy: p.tentative_s for p in found if p.failure_s == longest and not p.policy.startswith("suspend")}
    said = ", ".join(f"{k}: {v:g} s" for k, v in by.items())
    return f"{said} after {longest:g} s", min(by, key=by.__getitem__) == DELAY


def _masked(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5-8", depth=1) if p.failure_s < 2.7]
    return f"{sum(p.tentative_s for p in found):g} s of output tentative in {len(found)} trials", not any(
        p.tentative_s for p in found
    )


def _suspended(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5-8", depth=1, policy="delay & suspend") if p.failure_s > 2.7]
    return f"{max(p.added_s for p in found):.1f} s at most", max(p.added_s for p in found) > 2.7


def _fewer_with_delay(r: Results) -> tuple[str, bool]:
    found = points(r, "5-7", depth=1)
    by = {(p.policy, p.delay_s): p.tentative_s for p in found}
    pairs = [(by[PROCESS, d], by[DELAY, d]) for _, d in by if 1 < d < 5 and (PROCESS, d) in by and (DELAY, d) in by]
    if not pairs:
        raise Missing("dpc_tradeoff: no D between 1 and 5 s under both policies")
    return ", ".join(f"{b:g} instead of {a:g} s" for a, b in dict.fromkeys(pairs)), all(b < a for a, b in pairs)


def _grows_with_delay(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5-7", depth=1, policy=PROCESS) if p.delay_s <= 4]
    return ", ".join(f"D {p.delay_s:g}: {p.added_s:g}" for p in found) + " s", found[-1].added_s > found[0].added_s


def _chain_bound(policy: str) -> object:
    def judge(r: Results) -> tuple[str, bool]:
        found = [p for p in points(r, "5-10", policy=policy) if p.failure_s > p.delay_s]
        return (", ".join(f"{n}: {max(p.added_s for p in found if p.depth == n):.1f} s"
                          for n in sorted({p.depth for p in found})) + " by nodes",
                all(p.added_s <= 2.0 * p.depth for p in found))  # fmt: skip

    return judge


def _quicker_in_a_chain(r: Results) -> tuple[str, bool]:
    found = points(r, "5-10")
    deepest = max(p.depth for p in found)
    longest = _longest([p for p in found if p.depth == deepest], 30)
    at = {p.policy: p.added_s for p in found if p.depth == deepest and p.failure_s == longest}
    return f"{at[PROCESS]:.1f} and {at[DELAY]:.1f} s behind {deepest} nodes", at[PROCESS] < at[DELAY]


def _gain(r: Results, low: float, high: float) -> list[tuple[float, int, float]]:
    """What delaying saves, by failure and depth."""
    found = {(p.policy, p.failure_s, p.depth): p.tentative_s for p in points(r, "5-10")}
    gains = [(t, n, value - found[DELAY, t, n]) for (policy, t, n), value in found.items()
             if policy == PROCESS and low <= t <= high and (DELAY, t, n) in found]  # fmt: skip
    if not gains:
        raise Missing("dpc_tradeoff: no pair of policies for such failures")
    return sorted(gains)


def _short_gain(r: Results) -> tuple[str, bool]:
    gains = [g for g in _gain(r, 3, 30) if g[1] == max(n for _, n, _ in _gain(r, 3, 30))]
    return ", ".join(f"{t:g} s: {g:.1f} s less" for t, _, g in gains), all(g > 0 for *_, g in gains)


def _long_gain(r: Results) -> tuple[str, bool]:
    gains = _gain(r, 60, 60)
    return (", ".join(f"{n} nodes: {g:.1f} of {t:g} s" for t, n, g in gains), all(g < 0.1 * t for t, _, g in gains))


def _whole(r: Results) -> tuple[str, bool]:
    found = points(r, "5-14")
    deepest = max(p.depth for p in found)
    mine = [p for p in found if p.depth == deepest]
    bound = max(p.delay_s for p in mine)  # D = 2 s for each of them, as a whole.
    return (f"{max(p.added_s for p in mine):.1f} s at most behind {deepest} nodes; {bound:g} s are allowed",
            all(p.added_s <= bound for p in mine))  # fmt: skip


def _whole_masks(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5-14") if p.failure_s < p.delay_s]
    if not found:
        raise Missing("dpc_tradeoff: no failure that is shorter than the whole delay")
    return f"{max(p.tentative_s for p in found):g} s tentative", not any(p.tentative_s for p in found)


def _linear(r: Results) -> tuple[str, bool]:
    found = [p for p in points(r, "5.2") if p.normal_s is not None]
    first, last = found[0], found[-1]
    assert first.normal_s is not None
    assert last.normal_s is not None
    rise = 1000 * (last.normal_s - first.normal_s) / (last.bucket_ms - first.bucket_ms)
    return f"{rise:.2f} ms of latency per ms of interval", 0.7 <= rise <= 1.5


_ORDER = "The text states an order and a growth: undo takes longer, both grow linearly; its curves are pictures."
_CHAIN = "a node's own fork has to catch up when the first tentative results reach it: a batch or two more per node"

FIGURES = [
    Figure("003", "figure 5-4", "What a client sees of a failure", _seen(
        "single", "The text has two screenshots: results stop, go on as tentative, and are replaced by stable ones."), [
        Claim("the node first suspends results, then gives tentative ones", _suspends_first,
              "on a machine that others use a fork takes longer than X to be ready"),
        Claim("when the failure has healed they are replaced by stable ones", _order_of("single", 1),
              "a batch that came late on a busy machine opened another doubt"),
    ]),
    Figure("003", "figure 5-6", "Two failures at once, and one during a recovery", _both(
        _seen("overlapping", "The text describes (a): what follows the pause is tentative; corrections and REC_DONE "
                             "come when both have healed."),
        _seen("during recovery", "The text describes (b): REC_DONE closes the first corrections; after the second "
                                 "failure only its own tentative tuples are corrected.")), [
        Claim("two at once: corrected once, when both have healed, up to a REC_DONE", _order_of("overlapping", 1),
              "buckets that are whole on all inputs are corrected when the first failure heals, and the rest when the "
              "second does: what the text proposes for many inputs and frequent failures"),
        Claim("during a recovery: a REC_DONE for each of two corrections", _order_of("during recovery", 2),
              "main had not yet corrected a whole bucket when the second input failed: nothing had to be closed"),
        Claim("no stable tuple comes twice, and nothing stays tentative", _once),
    ]),
    Figure("003", "figure 5-7", "What delaying saves, a failure of 5 s", _by_delay, [
        Claim("delaying gives fewer tentative tuples than processing", _fewer_with_delay,
              "the output of the bucket at hand is counted as well when corrections take as long as the failure"),
        Claim("the latency grows with D under both", _grows_with_delay),
    ]),
    Figure("003", "figure 5-8", "Six policies by length of the failure, D = 2.7 s", _by_policy, [
        Claim("processing in both states keeps the latency below D for failures of any length", _kept),
        Claim("delaying in both states gives the fewest tentative tuples", _fewest,
              "a bucket that is handed over at the last moment still has to be computed in a batch; what delaying "
              "saves is gone after ten seconds, while suspending during a correction of a second saves that second"),
        Claim("a failure below D leaves nothing tentative", _masked),
        Claim("delaying and then suspending breaks the bound", _suspended),
    ]),
    Figure("003", "figure 5-10", "Latency along a chain", _along_a_chain, [
        Claim("processing stays within 2 s per node", _chain_bound(PROCESS), _CHAIN),
        Claim("delaying stays within 2 s per node", _chain_bound(DELAY),
              "a delayed bucket still has to be computed: D plus a batch"),
        Claim("processing is much quicker than delaying behind the last node", _quicker_in_a_chain, _CHAIN),
    ]),
    Figure("003", "figure 5-11", "Tentative tuples along a chain, short failures", _tentative_along((3, 30)), [
        Claim("delaying saves tentative tuples at the end of a chain", _short_gain,
              "single trials; what a delay of 2 s saves is as large as a batch"),
    ]),
    Figure("003", "figure 5-13", "Tentative tuples along a chain, a failure of 60 s", _tentative_along((60, 60)), [
        Claim("delaying saves next to nothing after a long failure", _long_gain,
              "corrections are over sooner here, so that delaying still saves what it delays"),
    ]),
    Figure("003", "figure 5-14", "Latency by how the delay is assigned", _assigned("added_s"), [
        Claim("the whole delay at every node keeps the bound of all of them", _whole, _CHAIN),
    ]),
    Figure("003", "figure 5-15", "Tentative tuples by how the delay is assigned", _assigned("tentative_s"), [
        Claim("the whole delay at every node masks a failure that is shorter than it", _whole_masks,
              "the first node's delay has run out before its input is back; those behind it have theirs to go"),
    ]),
    Figure("003", "table 5.1", "What reconciliation costs", _table_51, [
        Claim("undo keeps more memory than a checkpoint does",
              lambda r: _always_less(r, "bytes", "checkpoint/redo", "undo/redo"),
              "an aggregate's state has more columns than the tuples that it was made of, where each group had one; "
              "with several tuples in each group undo keeps more there, too"),
        Claim("(not in the text) forking takes no longer than either, and nothing in quiet times where no fork is kept "
              "ready (what one costs, with X of 2 s or less, is `warm_cost` of dpc_tradeoff)",
              lambda r: (f"{len(r('reconcile')('forking_behind'))} settings in which it is not ahead: "
                         + ("; ".join(r("reconcile")("forking_behind")) or "none"),
                         not any("correct_s" in said or "quiet" in said for said in r("reconcile")("forking_behind"))),
              "with a state of 20 tuples there is nothing to copy: all three do the same work, and the rest is noise"),
    ]),
    Figure("003", "figure 5-17", "Time to correct by state and by failure", _both(
        _reconciled("state", "correct_s", "state, tuples", "seconds to correct", [], _ORDER),
        _reconciled("failure", "correct_s", "tuples to be redone", "seconds to correct", [], _ORDER)), [
        Claim("checkpoint/redo takes less than undo/redo in all settings",
              lambda r: _always_less(r, "correct_s", "checkpoint/redo", "undo/redo", 1.05),
              "with a state of 20 tuples both redo the same tuples in the same batches; there it is a draw"),
        Claim("both grow with the state", lambda r: _grows(r, "state")),
        Claim("and with what has to be redone", lambda r: _grows(r, "failure")),
    ]),
    Figure("003", "figure 5-18", "What is spent in quiet times", _reconciled(
        "state", "quiet", "state, tuples", "share of the time", [],
        "The text states an order: checkpoints cost more than markers, because they copy the state."), [
        Claim("checkpoints cost more than stream markers",
              lambda r: _always_less(r, "quiet", "undo/redo", "checkpoint/redo")),
    ]),
    Figure("003", "table 5.2", "Latency by boundary interval", _buckets, [
        Claim("latency grows by as much as the interval", _linear,
              "a micro-batch of Spark takes longer than any of these intervals, and it is what one waits for"),
    ]),
]  # fmt: skip
