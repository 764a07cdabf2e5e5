"""What the registry says about a figure or a table of a text: how it is drawn, and what the text states about it.

Rules:
1. A statement is ours in words and theirs in content; its judge looks at our numbers and says whether it holds.
2. A statement that does not hold needs a reason, else it stands on the page as unexplained. That causes were sought and
   not found is said there, and is none.
3. A picture without numbers in our copies is drawn from what the text states: single points, or a law (dashed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benches.evaluation.results import Missing, Result, Results, Sources

TEXTS = {
    "000": "Sebepou 2010, persistent streams and continuous eventual checkpoints",
    "002": "checkpoint backends for S4, 2012",
    "003": "Balazinska 2005, DPC and bounded prices",
    "004": "Jacques-Silva et al. 2009, checkpoints in SPADE",
}
#: 001 has no evaluation in our copy, which ends within its third section.


class Curve(NamedTuple):
    """A line through points, or the heights of bars. `law`: what the text states as a rule, not as numbers."""

    name: str
    points: Sequence[tuple[float, float]]
    law: bool = False
    errors: Sequence[tuple[float, float]] = ()
    """Least and most at each point."""
    dots: bool = False
    """Single events, with no line between them."""


class Plot(NamedTuple):
    """Two pictures with the same axes. With `groups`, bars: a point's x is the place of its group."""

    x: str
    y: str
    theirs: Sequence[Curve]
    ours: Sequence[Curve]
    title: str = ""
    groups: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    only: str = ""
    """What stands where theirs would be, if the text has nothing that can be drawn."""


class Grid(NamedTuple):
    """A table, theirs and ours in one."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    note: str = ""


class Claim(NamedTuple):
    """One statement. `judge` gives ours in a few words and whether it holds; `why` is said if it does not."""

    said: str
    judge: Callable[[Results], tuple[str, bool]]
    why: str = ""


class Reason(NamedTuple):
    """Why a statement does not hold. `found`: something was found that makes it hold."""

    said: str
    found: bool


class Stated(NamedTuple):
    """Statements that a bench has judged itself: those of its list whose place has one of these words."""

    bench: str
    words: Sequence[str]
    why: Callable[[Results, str], Reason | None] | None = None


class Judged(NamedTuple):
    said: str
    ours: str
    holds: bool | None
    """None: not measured."""
    why: str = ""
    explained: bool = False


class Figure(NamedTuple):
    """A figure or a table with results in it."""

    text: str
    number: str
    title: str
    draw: Callable[[Results], Sequence[Plot | Grid]] | None
    claims: Sequence[Claim | Stated]
    absent: str = ""
    """Why there is nothing of ours, if there is no way to measure it."""
    about: str = ""

    @property
    def anchor(self) -> str:
        return f"{self.text}-{self.number}".replace(" ", "-").replace(".", "-")


class Shown(NamedTuple):
    """A figure with what was found for it."""

    figure: Figure
    parts: Sequence[Plot | Grid]
    judged: Sequence[Judged]
    used: Sequence[Result]
    missing: str = ""

    @property
    def drawn(self) -> bool:
        return bool(self.parts)


def show(figure: Figure, sources: Sources) -> Shown:
    parts: Sequence[Plot | Grid] = ()
    used: list[Result] = []
    missing = figure.absent
    if figure.draw is not None:
        try:
            parts, used = sources.first(figure.draw)
        except Missing as reason:
            missing = missing or str(reason)
    judged: list[Judged] = []
    for claim in figure.claims:
        try:
            found, made_from = sources.first(lambda results, claim=claim: _judge(claim, results))
        except Missing as reason:
            said = claim.said if isinstance(claim, Claim) else f"statements on {', '.join(claim.words)}"
            found, made_from = [Judged(said, "not measured", None, figure.absent or str(reason))], []
        judged += found
        used += [result for result in made_from if result not in used]
    return Shown(figure, parts, judged, used, missing)


def _judge(claim: Claim | Stated, results: Results) -> list[Judged]:
    if isinstance(claim, Claim):
        ours, holds = claim.judge(results)
        return [Judged(claim.said, ours, bool(holds), "" if holds else claim.why, not holds and bool(claim.why))]
    listed = [s for s in results(claim.bench)("statements") if any(word in s["where"] for word in claim.words)]
    if not listed:
        raise Missing(f"{claim.bench}: no statements on {claim.words}")
    return [_stated(claim, results, s) for s in listed]


def _stated(claim: Stated, results: Results, s: Mapping[str, Any]) -> Judged:
    if s["holds"]:
        return Judged(s["text"], s["here"], True)
    tried = claim.why(results, s["text"]) if claim.why is not None else None
    why = tried or Reason(s["reason"], bool(s["reason"]))
    return Judged(s["text"], s["here"], s["holds"], *why)


class Score(NamedTuple):
    """The last line of the report."""

    figures_in_texts: int
    figures_drawn: int
    statements: int
    statements_hold: int
    statements_explained: int
    statements_unexplained: int
    statements_not_measured: int


def score(shown: Sequence[Shown]) -> Score:
    judged = [j for s in shown for j in s.judged]
    failed = [j for j in judged if j.holds is False]
    return Score(len(shown), sum(s.drawn for s in shown), len(judged), sum(j.holds is True for j in judged),
                 sum(j.explained for j in failed), sum(not j.explained for j in failed),
                 sum(j.holds is None for j in judged))  # fmt: skip
