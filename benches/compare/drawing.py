"""The pictures: for each contender what a client had of every window at every moment, as SVG by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benches.compare.moments import Span, State
from benches.compare.workload import SILENT, WINDOW_MS, Plan, since_begin_s

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 640, 56, 14, 34, 72
_ROW = 8
#: Distinguishable without red and green alike (Okabe and Ito), and the worst are the darkest.
LOOK = {
    State.RIGHT: ("#009e73", "right"),
    State.TENTATIVE: ("#f0e442", "marked tentative"),
    State.MISSING: ("#bbbbbb", "missing, comes later"),
    State.WRONG: ("#e69f00", "wrong and not marked, right later"),
    State.WRONG_FOR_GOOD: ("#b3000c", "wrong for good"),
    State.LOST: ("#222222", "lost"),
}
_STYLE = "text{font:11px sans-serif;fill:#222}.t{font-size:13px;font-weight:bold}.s{font-size:10px}"


def drawn(title: str, windows: Mapping[int, Sequence[Span]], plan: Plan) -> str:
    height = TOP + _ROW * len(windows) + BOTTOM
    floor = height - BOTTOM
    begin_s = plan.judged_from_s

    def at(moment_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (moment_s - begin_s) / (plan.stopped_at_s - begin_s)

    silent = f'x="{at(plan.silent_from_s):.1f}" width="{at(plan.silent_until_s) - at(plan.silent_from_s):.1f}"'
    parts = [
        f'<rect {silent} y="{TOP}" height="{floor - TOP}" fill="#eaf2fb"/>',
        f'<text x="{at((plan.silent_from_s + plan.silent_until_s) / 2):.1f}" y="{TOP - 4}" class="s" '
        f'text-anchor="middle">input {SILENT} is silent</text>',
    ]
    for place, (window, spans) in enumerate(windows.items()):
        y = floor - _ROW * (place + 1)
        parts += [
            f'<rect x="{at(span.from_s):.1f}" y="{y}" width="{max(0.5, at(span.until_s) - at(span.from_s)):.1f}" '
            f'height="{_ROW - 1}" fill="{LOOK[span.state][0]}"/>'
            for span in spans if span.state in LOOK
        ]  # fmt: skip
        if place % 5 == 4:
            said = f"{since_begin_s(window + WINDOW_MS):g}"
            parts.append(f'<text x="{LEFT - 5}" y="{y + _ROW}" text-anchor="end" class="s">{said}</text>')
    parts += _axis(plan, at, floor)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="16" class="t">{escape(title)}</text>{"".join(parts)}{_legend(height)}</svg>\n'
    )


def _axis(plan: Plan, at: object, floor: float) -> list[str]:
    assert callable(at)
    middle = (TOP + floor) / 2
    marks = [
        f'<text x="{at(s):.1f}" y="{floor + 13}" text-anchor="middle" class="s">{s}</text>'
        for s in range(plan.judged_from_s, plan.stopped_at_s + 1, 10)
    ]  # fmt: skip
    return [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" stroke="#222"/>', *marks,
        f'<text x="{(LEFT + WIDTH) / 2}" y="{floor + 26}" text-anchor="middle" class="s">seconds</text>',
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle" class="s">end of the window</text>',
    ]  # fmt: skip


def _legend(height: int) -> str:
    """Two rows of three."""
    parts = []
    for place, (colour, words) in enumerate(LOOK.values()):
        x, y = LEFT + place % 3 * 200, height - 34 + place // 3 * 16
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y + 9}" class="s">{words}</text>')
    return "".join(parts)
