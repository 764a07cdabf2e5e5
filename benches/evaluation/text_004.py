"""004: checkpoints at the level of the language (§5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benches.evaluation.figures import Claim, Curve, Figure, Grid, Plot
from benches.evaluation.results import Missing, Results

#: Table 1: window → tuples in and out per second.
TABLE_1 = {8192: (9350.94, 25451.04), 16384: (5054.39, 27180.69), 32768: (2503.25, 25643.36), 65536: (970.19, 14099.27),
           131072: (889.64, 13062.59)}  # fmt: skip
PER_GROUP = "per group"


def _settings(r: Results, every_s: float, per_group: bool = False) -> list[Mapping[str, Any]]:
    found = [s for s in r("window_join")("settings")
             if s["every_s"] == every_s and (s["window"] == PER_GROUP) is per_group]  # fmt: skip
    if not found:
        raise Missing(f"window_join: nothing with an interval of {every_s:g} s")
    return found


def _one(r: Results, window: object, size: int, every_s: float = 1.0, zipf: bool = False) -> Mapping[str, Any]:
    for s in r("window_join")("settings"):
        if (s["window"], s["size"], s["every_s"], s["zipf"]) == (window, size, every_s, zipf):
            return dict(s)
    raise Missing(f"window_join: no window of {window} in groups of {size}, every {every_s:g} s")


def _deviation(r: Results) -> Sequence[Plot]:
    cdf = r("output_deviation")("cdf")
    ours = [Curve(label, [(max(e, 1e-4), p) for e, p in cdf[mode]])
            for label, mode in (("with checkpoints", "every"), ("without", "none"))]  # fmt: skip
    theirs = [Curve("with checkpoints", [(6, 1.0)]), Curve("without", [(52, 1.0)])]
    return [Plot("error of a prediction", "share of predictions below", theirs, ours, log_x=True,
                 note="Of one run. The text states the largest errors of its run, 6 and 52 points. Their data, a "
                      "factory's, are not to be had; ours are made: only the order compares.")]  # fmt: skip


def _spark(r: Results) -> tuple[str, bool]:
    found = r("deviation_on_spark")
    every, none, exact = (found(f"rmse_{mode}") for mode in ("every", "none", "exact"))
    return f"{every} with, {none} without, {exact} exact, {found('runs')} crashes each", every < none and exact < 1e-6


def _rates(r: Results) -> Sequence[Grid]:
    rows = []
    for window, (come, go) in TABLE_1.items():
        mine = [s for s in _settings(r, 1.0) if s["window"] == window]
        rate = mine[0]["tuples_per_s"] if mine else "–"
        rows.append([window, come, go, rate, f"{rate / come:.0f}" if mine else "–"])
    return [Grid(["window", "in, text", "out, text", "in, ours", "times theirs"], rows, title="Tuples per second")]


def _relative(every_s: float, theirs: Sequence[Curve], note: str) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        found = _settings(r, every_s)
        sizes = sorted({s["size"] for s in found})
        ours = [Curve(f"{size} in a group", [(s["window"], 1 - s["overhead"]) for s in found if s["size"] == size])
                for size in sizes]  # fmt: skip
        return [Plot("window, tuples", "rate with checkpoints, relative", theirs, ours, log_x=True, note=note)]

    return draw


def _per_group(r: Results) -> Sequence[Plot]:
    found = [s for s in _settings(r, 1.0, per_group=True) if not s["zipf"]]
    ours = [Curve("every second", [(s["size"], 1 - s["overhead"]) for s in found])]
    return [Plot("tuples in a group", "rate with checkpoints, relative", [Curve("every second", [(64, 1 - 0.0137)])],
                 ours, note="50 windows of 1,024. Stated: groups of 64 were best, 1.4 % less input.")]  # fmt: skip


def _overheads(r: Results, every_s: float) -> str:
    return ", ".join(f"{s['window']:,}/{s['size']}: {s['overhead']:.1%}" for s in _settings(r, every_s))


FIGURES = [
    Figure("004", "figure 7", "How far a crash throws a model off", _deviation, [
        Claim("with checkpoints the error after a crash is smaller (4.80 instead of 7.79, root mean square)",
              lambda r: (f"{r('output_deviation')('rmse_every')} instead of {r('output_deviation')('rmse_none')}",
                         r("output_deviation")("rmse_every") < r("output_deviation")("rmse_none"))),
        Claim("and its largest value, too (6 instead of 52)",
              lambda r: (f"{r('output_deviation')('worst', 'every'):.1f} instead of "
                         f"{r('output_deviation')('worst', 'none'):.1f}",
                         r("output_deviation")("worst", "every") < r("output_deviation")("worst", "none"))),
        Claim("the same in the whole system (here: a user-defined operator on Spark whose query is killed)", _spark),
    ]),
    Figure("004", "table 1", "Rates of the join without checkpoints", _rates, [
        Claim("the larger the window, the lower the rate",
              lambda r: (", ".join(f"{s['window']:,}: {s['tuples_per_s']:,}" for s in _settings(r, 1.0)
                                   if s["size"] == 512),
                         _falls([s["tuples_per_s"] for s in _settings(r, 1.0) if s["size"] == 512]))),
    ]),
    Figure("004", "figure 8", "A checkpoint every second", _relative(
        1.0, [Curve("512 in a group", [(8192, 0.95), (32768, 0.99)])],
        "Stated: over 5 % lost with 8,192 tuples, less than 1 % with 32,768 in groups of 512. Ours: the share of "
        "processor time that is left."), [
        Claim("a window of 32,768 in groups of 512 loses less than 1 %",
              lambda r: (f"{_one(r, 32768, 512)['overhead']:.2%}", _one(r, 32768, 512)["overhead"] < 0.01)),
        Claim("the smallest window loses most (over 5 % of 8,192)",
              lambda r: (_overheads(r, 1.0),
                         max(_settings(r, 1.0), key=lambda s: s["overhead"])["window"] == 8192),
              "at a hundred times their rate every window is new within a second, so that the larger ones have more to "
              "save; none loses as much as theirs did"),
    ]),
    Figure("004", "figure 9", "A checkpoint every ten seconds", _relative(
        10.0, [], "Ours: the window of 32,768 alone."), [
        Claim("less is lost than with one every second",
              lambda r: (f"{_one(r, 32768, 512, 10.0)['overhead']:.2%} and not {_one(r, 32768, 512)['overhead']:.2%}",
                         _one(r, 32768, 512, 10.0)["overhead"] < _one(r, 32768, 512)["overhead"])),
        Claim("large groups do better than small ones",
              lambda r: (f"{_one(r, 32768, 4096, 10.0)['overhead']:.2%} in groups of 4,096, "
                         f"{_one(r, 32768, 512, 10.0)['overhead']:.2%} in groups of 512",
                         _one(r, 32768, 4096, 10.0)["overhead"] <= _one(r, 32768, 512, 10.0)["overhead"])),
    ]),
    Figure("004", "figure 10", "A window for each of 50 keys", _per_group, [
        Claim("checkpoints cost 1.4 to 1.8 %, or little more",
              lambda r: (f"{_one(r, PER_GROUP, 256)['overhead']:.1%}", _one(r, PER_GROUP, 256)["overhead"] <= 0.02)),
        Claim("more is lost than with a single window of that many tuples",
              lambda r: (f"{_one(r, PER_GROUP, 256)['overhead']:.2%} and {_one(r, 32768, 512)['overhead']:.2%} of a "
                         "single one", _one(r, PER_GROUP, 256)["overhead"] > _one(r, 32768, 512)["overhead"])),
        Claim("keys by Zipf's law: deadlines are missed (every 6 s instead of every second)",
              lambda r: (_deadlines(r), _one(r, PER_GROUP, 256, zipf=True)["missed"] > 0),
              "groups are views of the window's columns and go to one log: a group with one new tuple is cheap, so all "
              "deadlines are met"),
    ]),
]  # fmt: skip


def _falls(values: Sequence[float]) -> bool:
    return all(a > b for a, b in pairwise(values))


def _deadlines(r: Results) -> str:
    s = _one(r, PER_GROUP, 256, zipf=True)
    return f"{s['missed']} deadlines missed" if s["missed"] else "all deadlines met"
