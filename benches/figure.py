"""Figures for benches: line and bar charts as SVG, gathered on one HTML page. Nothing but the standard library.

    page = Page("Convergence")
    page.add(Chart("Figure 7-1(a)", "contracts per node", "share left").bars(names, {"uniform fixed": values}))
    page.add(Chart("Figure 7-2", "seconds", "tasks").line("moved", xs, ys))
    page.write(Path("figures/convergence.html"))

Each chart is also written as an .svg of its own beside the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 64
COLOURS = ("#33658a", "#f26419", "#55a630", "#9d4edd", "#c1121f", "#6c757d", "#e0a100", "#008b8b")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two values."""
    if high <= low:
        high = low + 1
    raw = (high - low) / most
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= raw)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    return f"{value:.6g}"


class Chart:
    """One chart. Lines and bars may not be mixed; `log` makes the value axis logarithmic."""

    def __init__(self, title: str, x: str, y: str, log: bool = False, note: str = "") -> None:
        self.title, self.x, self.y, self.log, self.note = title, x, y, log, note
        self._lines: list[tuple[str, Sequence[float], Sequence[float], bool]] = []
        self._groups: Sequence[str] = ()
        self._bars: dict[str, Sequence[float]] = {}
        self._errors: dict[str, Sequence[tuple[float, float]]] = {}

    def line(self, name: str, xs: Sequence[float], ys: Sequence[float], dashed: bool = False) -> Chart:
        self._lines.append((name, list(xs), list(ys), dashed))
        return self

    def bars(
        self,
        groups: Sequence[str],
        series: dict[str, Sequence[float]],
        errors: dict[str, Sequence[tuple[float, float]]] | None = None,
    ) -> Chart:
        """Groups of bars; `errors` are (least, most) of each."""
        self._groups, self._bars, self._errors = groups, series, errors or {}
        return self

    # Drawing ----------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        names = list(self._bars) or [name for name, *_ in self._lines]
        body = self._draw_bars() if self._bars else self._draw_lines()
        legend = []
        for i, name in enumerate(names):
            x, y = LEFT + (i % 4) * 122, HEIGHT - 24 + (i // 4) * 14
            legend.append(f'<rect x="{x}" y="{y - 8}" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
            legend.append(f'<text x="{x + 14}" y="{y + 1}" class="s">{escape(name)}</text>')
        style = "text{font:11px sans-serif;fill:#222}.s{font-size:10px}.t{font-size:13px;font-weight:bold}"
        height = HEIGHT + 14 * max(0, (len(names) - 1) // 4)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
            f'<style>{style}</style><rect width="100%" height="100%" fill="white"/>'
            f'<text x="{LEFT}" y="18" class="t">{escape(self.title)}</text>{"".join(body)}{"".join(legend)}'
            f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 38}" text-anchor="middle">{escape(self.x)}</text>'
            f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y)}</text></svg>"
        )

    def _scale(self, values: Sequence[float]) -> tuple[float, float, list[float]]:
        if self.log:
            positive = [v for v in values if v > 0] or [1.0]
            low = 10.0 ** math.floor(math.log10(min(positive)))
            high = 10.0 ** math.ceil(math.log10(max(positive)) + 1e-9)
            return low, high, [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        low, high = min(0.0, *values), max(values)
        high = high + (high - low) * 0.05 or 1.0
        return low, high, ticks(low, high)

    def _y(self, value: float, low: float, high: float) -> float:
        if self.log:
            value, low, high = (math.log10(max(v, low)) for v in (value, low, high))
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    def _axes(self, low: float, high: float, marks: list[float]) -> list[str]:
        drawn = []
        for mark in marks:
            y = self._y(mark, low, high)
            drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="s">{short(mark)}</text>')
        floor = HEIGHT - BOTTOM
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" stroke="#222"/>')
        return drawn

    def _draw_lines(self) -> list[str]:
        xs = [x for _, line, _, _ in self._lines for x in line]
        ys = [y for _, _, line, _ in self._lines for y in line]
        low, high, marks = self._scale(ys)
        drawn = self._axes(low, high, marks)
        first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

        def at(x: float) -> float:
            return LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / (last - first)

        for mark in ticks(first, last, 10):
            drawn.append(f'<text x="{at(mark):.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle" class="s">'
                         f"{short(mark)}</text>")  # fmt: skip
        for i, (_, line, values, dashed) in enumerate(self._lines):
            points = " ".join(f"{at(x):.1f},{self._y(y, low, high):.1f}" for x, y in zip(line, values, strict=True))
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            drawn.append(f'<polyline points="{points}" fill="none" stroke-width="1.6"{dash} '
                         f'stroke="{COLOURS[i % len(COLOURS)]}"/>')  # fmt: skip
        return drawn

    def _draw_bars(self) -> list[str]:
        values = [v for line in self._bars.values() for v in line]
        values += [most for line in self._errors.values() for _, most in line]
        low, high, marks = self._scale(values)
        drawn = self._axes(low, high, marks)
        room = (WIDTH - LEFT - RIGHT) / len(self._groups)
        wide = room * 0.8 / len(self._bars)
        for g, group in enumerate(self._groups):
            x = LEFT + room * g
            drawn.append(f'<text x="{x + room / 2:.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle" class="s">'
                         f"{escape(group)}</text>")  # fmt: skip
            for i, (name, line) in enumerate(self._bars.items()):
                left = x + room * 0.1 + wide * i
                y = self._y(line[g], low, high)
                drawn.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" fill="{COLOURS[i % len(COLOURS)]}" '
                             f'height="{max(0.0, HEIGHT - BOTTOM - y):.1f}"/>')  # fmt: skip
                if name in self._errors:
                    least, most = (self._y(v, low, high) for v in self._errors[name][g])
                    middle = left + wide / 2
                    drawn.append(f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{least:.1f}" y2="{most:.1f}" '
                                 'stroke="#222"/>')  # fmt: skip
        return drawn


class Page:
    """Charts and tables, one below the other."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []
        self._charts: list[Chart] = []

    def add(self, chart: Chart) -> None:
        self._charts.append(chart)
        note = f"<figcaption>{escape(chart.note)}</figcaption>" if chart.note else ""
        self._parts.append(f"<figure>{chart.svg()}{note}</figure>")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
        self._parts.append(f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>")

    def write(self, path: Path) -> None:
        """The page, and every chart beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        style = (
            "body{font:14px sans-serif;max-width:1180px;margin:2em auto}figure{display:inline-block;margin:6px}"
            "figcaption{width:540px;color:#444}table{border-collapse:collapse}"
            "td,th{border:1px solid #ccc;padding:3px 8px}"
        )
        head = f'<meta charset="utf-8"><title>{escape(self.title)}</title><style>{style}</style>'
        path.write_text(f"<!doctype html><html><head>{head}</head><body><h1>{escape(self.title)}</h1>"
                        f"{''.join(self._parts)}</body></html>")  # fmt: skip
        for chart in self._charts:
            name = re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-")
            (path.parent / f"{name}.svg").write_text(chart.svg())
