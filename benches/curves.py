"""Curves as one HTML page that needs nothing else: measured points beside what the seeds say.

Measured series are solid with dots, the seeds' are dashed without. Every chart begins at zero, so that heights can be
compared.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 460, 300, 46, 38, 12, 12
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
_TICKS = 5


class Series(NamedTuple):
    """One curve. A seed's curve has the colour of the measured one with the same name."""

    name: str
    points: Sequence[tuple[float, float]]
    seed: bool = False


class Chart(NamedTuple):
    title: str
    x: str
    y: str
    series: Sequence[Series]
    note: str = ""


class Sheet(NamedTuple):
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


def write_page(path: Path, title: str, said: str, parts: Iterable[Chart | Sheet]) -> None:
    body = "".join(_chart(part) if isinstance(part, Chart) else _sheet(part) for part in parts)
    path.write_text(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222 }}
section {{ display: inline-block; vertical-align: top; width: {_WIDTH}px; margin: 0 1em 1.5em 0 }}
h2 {{ font-size: 1em }} p.note, li {{ font-size: 13px; color: #444 }} svg {{ width: 100% }}
text {{ font: 11px sans-serif; fill: #333 }} ul {{ list-style: none; padding: 0; columns: 2 }}
table {{ border-collapse: collapse; font-size: 13px }} td, th {{ border: 1px solid #bbb; padding: 2px 7px }}
td {{ text-align: right }}
</style></head><body><h1>{_e(title)}</h1><p>{_e(said)}</p>{body}</body></html>
""", encoding="utf-8")  # fmt: skip


def _chart(chart: Chart) -> str:
    names = list(dict.fromkeys(s.name for s in chart.series))
    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    points = [p for s in chart.series for p in s.points]
    x_max, y_max = _round_up(max((x for x, _ in points), default=1)), _round_up(max((y for _, y in points), default=1))

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = _LEFT + point[0] / x_max * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - point[1] / y_max * (_HEIGHT - _BOTTOM - _TOP)

    drawn = [_frame(chart, x_max, y_max, at)]
    for s in chart.series:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, s.points))
        dash, width = (' stroke-dasharray="5 4"', 1.3) if s.seed else ("", 2)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour[s.name]}" stroke-width="{width}"{dash}/>')
        if not s.seed:
            dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in map(at, s.points))
            drawn.append(f'<g fill="{colour[s.name]}">{"".join(dots)}</g>')
    legend = "".join(
        f'<li><span style="color:{colour[s.name]}">{"┄┄" if s.seed else "●━"}</span> {_e(s.name)}'
        f"{' (seed)' if s.seed else ''}</li>"
        for s in chart.series
    )
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_e(chart.title)}">{"".join(drawn)}</svg>'
    return f"<section><h2>{_e(chart.title)}</h2>{svg}<ul>{legend}</ul>{_note(chart.note)}</section>"


def _frame(chart: Chart, x_max: float, y_max: float, at: object) -> str:
    assert callable(at)
    parts = []
    for i in range(_TICKS + 1):
        x, y = x_max * i / _TICKS, y_max * i / _TICKS
        px, py = at((x, y))
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>')
        parts.append(f'<text x="{px:.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{x:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{_e(chart.x)}</text>')
    parts.append(f'<text transform="translate(11 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{_e(chart.y)}</text>')
    return "".join(parts)


def _round_up(value: float) -> float:
    """The next number that divides into ticks people can read."""
    step = 1.0
    while step * 1000 < value:
        step *= 10
    while step > value / 10 and step > 1e-6:
        step /= 10
    for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 150, 250, 500, 1000):
        if factor * step >= value:
            return round(factor * step, 9)
    return value


def _sheet(sheet: Sheet) -> str:
    head = "".join(f'<th scope="col">{_e(column)}</th>' for column in sheet.columns)
    rows = "".join("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in sheet.rows)
    shown = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div><h2>{_e(sheet.title)}</h2>{shown}{_note(sheet.note)}</div>"


def _note(text: str) -> str:
    return f'<p class="note">{_e(text)}</p>' if text else ""


def _e(value: object) -> str:
    return html.escape(f"{value:,.2f}" if isinstance(value, float) else str(value))
