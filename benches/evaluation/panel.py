"""Plots as SVG for the report's page: two panels with the same axes, coloured by the page's own variables.

Colours come from CSS (`--c0` to `--c7`), so that light and dark need one drawing. Numbers that a text states are hollow
points, its laws dashed lines, ours solid with dots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benches.evaluation.figures import Curve, Plot
from benches.figure import ticks

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 10, 40
COLOURS = 8


class Scale(NamedTuple):
    """One axis: from and to, in data; and whether it counts powers of ten."""

    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def marks(self, most: int) -> list[float]:
        if not self.log:
            return ticks(self.low, self.high, most)
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        return [10.0**k for k in range(first, last + 1, max(1, math.ceil((last - first) / most)))]


def scale(values: Sequence[float], log: bool, zero: bool = True) -> Scale:
    if log:
        positive = [v for v in values if v > 0] or [1.0]
        low, high = math.floor(math.log10(min(positive)) + 1e-9), math.ceil(math.log10(max(positive)) - 1e-9)
        return Scale(10.0**low, 10.0 ** max(high, low + 1), True)
    low, high = (min([0.0, *values]) if zero else min(values)), max(values)
    if high <= low:
        high = low + 1
    return Scale(low, high + (high - low) * 0.06 * zero, False)


def panels(plot: Plot) -> tuple[str, str]:
    """Theirs and ours."""
    curves = [*plot.theirs, *plot.ours]
    ys = [y for c in curves for _, y in c.points] + [v for c in curves for pair in c.errors for v in pair]
    down = scale(ys or [1.0], plot.log_y)
    across = (Scale(-0.5, len(plot.groups) - 0.5, False) if plot.groups else
              scale([x for c in curves for x, _ in c.points] or [0.0, 1.0], plot.log_x, zero=False))  # fmt: skip
    names = list(dict.fromkeys(c.name for c in curves))
    return (_panel(plot, plot.theirs, across, down, names, "the text"),
            _panel(plot, plot.ours, across, down, names, "Holdfast"))  # fmt: skip


def _panel(plot: Plot, curves: Sequence[Curve], across: Scale, down: Scale, names: list[str], whose: str) -> str:
    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * across.share(value)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - down.share(value))

    drawn = _axes(plot, across, down, x, y)
    if not curves:
        drawn.append(_said(plot.only or "The text states no number for this picture."))
    for i, curve in enumerate(curves):
        colour = f"k{names.index(curve.name) % COLOURS}"
        drawn += _bars(curve, i, len(curves), colour, x, y) if plot.groups else _line(curve, colour, whose, x, y)
    label = escape(f"{plot.title or plot.y}, {whose}: {plot.y} over {plot.x}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _axes(plot: Plot, across: Scale, down: Scale, x: object, y: object) -> list[str]:
    assert callable(x)
    assert callable(y)
    drawn, floor = [], HEIGHT - BOTTOM
    for mark in down.marks(5):
        at = y(mark)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    drawn.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    marks = across.marks(8)
    whole = all(float(a).is_integer() for c in (*plot.theirs, *plot.ours) for a, _ in c.points)
    if whole and not across.log:  # Nodes and contracts do not come in halves.
        marks = [mark for mark in marks if float(mark).is_integer()]
    places = list(enumerate(plot.groups)) or [(mark, number(mark)) for mark in marks]
    for mark, said in places:
        drawn.append(f'<text x="{x(mark):.1f}" y="{floor + 14}" text-anchor="middle">{escape(str(said))}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(f'<text x="{middle}" y="{HEIGHT - 7}" text-anchor="middle" class="name">{escape(plot.x)}</text>')
    drawn.append(f'<text transform="translate(12 {(TOP + floor) / 2}) rotate(-90)" text-anchor="middle" class="name">'
                 f"{escape(plot.y)}</text>")  # fmt: skip
    return drawn


def _line(curve: Curve, colour: str, whose: str, x: object, y: object) -> list[str]:
    assert callable(x)
    assert callable(y)
    if curve.dots:
        return [f'<circle class="dot {colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2"/>' for a, b in curve.points]
    way = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve.points)
    kind = " law" if curve.law else " between" if whose == "the text" else ""
    drawn = [f'<polyline class="line {colour}{kind}" points="{way}"/>']
    for (a, _), (least, most) in zip(curve.points, curve.errors, strict=False):
        drawn.append(f'<line class="error {colour}" x1="{x(a):.1f}" x2="{x(a):.1f}" y1="{y(least):.1f}" '
                     f'y2="{y(most):.1f}"/>')  # fmt: skip
    if not curve.law and len(curve.points) <= 40:
        kind = "hollow" if whose == "the text" else "dot"
        drawn += [f'<circle class="{kind} {colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.4"/>' for a, b in curve.points]
    return drawn


def _bars(curve: Curve, place: int, count: int, colour: str, x: object, y: object) -> list[str]:
    assert callable(x)
    assert callable(y)
    wide = (x(1) - x(0)) * 0.8 / count
    drawn = []
    for k, (at, value) in enumerate(curve.points):
        left = x(at) - (x(1) - x(0)) * 0.4 + wide * place
        top = min(y(value), HEIGHT - BOTTOM)
        drawn.append(f'<rect class="bar {colour}" x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(1.0, wide - 1):.1f}" '
                     f'height="{max(0.5, HEIGHT - BOTTOM - top):.1f}"><title>{escape(curve.name)}: {number(value)}'
                     "</title></rect>")  # fmt: skip
        if k < len(curve.errors):
            least, most = curve.errors[k]
            drawn.append(f'<line class="error ink" x1="{left + wide / 2:.1f}" x2="{left + wide / 2:.1f}" '
                         f'y1="{y(least):.1f}" y2="{y(most):.1f}"/>')  # fmt: skip
    return drawn


def _said(text: str) -> str:
    """A few lines in the middle of an empty panel."""
    words, lines, line = text.split(), [], ""
    for word in words:
        if len(line) + len(word) > 46:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    lines.append(line)
    first = HEIGHT / 2 - 8 * len(lines)
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(f'<text class="said" x="{middle}" y="{first + 16 * i}" text-anchor="middle">{escape(line)}</text>'
                   for i, line in enumerate(lines))  # fmt: skip


def legend(plot: Plot) -> str:
    names = list(dict.fromkeys(c.name for c in (*plot.theirs, *plot.ours)))
    if len(names) < 2:
        return ""
    items = [f'<li><span class="key k{i % COLOURS}"></span>{escape(name)}</li>' for i, name in enumerate(names)]
    return f'<ul class="legend">{"".join(items)}</ul>'


def number(value: float) -> str:
    """Short enough for an axis."""
    if value == 0:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
