"""Why statements of 003 §7.1 differ, for docs/load-sharing.md: a table and a figure, made from benches.bpm_explained.

Each statement that does not hold was computed again with what the text leaves open done otherwise. What makes it hold
explains it: another topology, other prices, another order of offers, or another reading of its words.
"""

from __future__ import annotations

from html import escape

from benches.evaluation.results import Result

#: Which of the changes belong together.
KINDS = {
    "narrow topology": "topology", "even topology": "topology", "capacities 80 to 100": "prices",
    "offers in order": "order of offers", "offers by chance": "order of offers", "other reading": "its reading",
}  # fmt: skip
CHANGES = ("as published", *KINDS)
_HEADS = ("as published", "narrow topology", "even topology", "capacities 80 to 100", "offers in order",
          "offers by chance", "read otherwise")  # fmt: skip
_LEFT, _TOP, _ROW, _COLUMN = 470, 96, 30, 74
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def explains(r: Result, said: str) -> str:
    """What makes a statement hold, in a word or two."""
    holds = r("holds", said)
    kinds = list(dict.fromkeys(kind for change, kind in KINDS.items() if holds.get(change)))
    if holds["as published"]:
        return "holds here"
    return " or ".join(kinds) if kinds else "none of these"


def table(r: Result) -> str:
    """Every statement with its numbers; a check mark where it holds."""
    lines = [
        "| the seeds say | bound | " + " | ".join(_HEADS) + " | explained by |",
        "| --- " * (len(_HEADS) + 3) + "|",
    ]
    bounds = r("bounds")
    for said, values in r("values").items():
        bound, at_least, _, unit = bounds.get(said, (18, False, "", "contracts"))
        limit = f"{'≥' if at_least else '≤'} {bound:g} {unit}".strip()
        cells = (_cell(values.get(change), r("holds", said).get(change, False)) for change in CHANGES)
        lines.append(f"| {said} | {limit} | {' | '.join(cells)} | {explains(r, said)} |")
    sure = f"Ten topologies of 995 participants; measured {r.date}, {r.commit}, in virtual time."
    return "\n".join([*lines, "", sure.replace("Ten", str(r("topologies")))]) + "\n"


def _cell(value: float | None, holds: bool) -> str:
    return "–" if value is None else f"{value:.4g}{' ✓' if holds else ''}"


def figure(r: Result) -> str:
    """The same as a picture: a filled square where the statement holds, a hollow one where it does not."""
    statements = list(r("values"))
    width, height = _LEFT + _COLUMN * len(CHANGES) + 150, _TOP + _ROW * len(statements) + 16
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" {_FONT}>',
             "<title>Which change makes each statement of chapter 7 hold</title>",
             f'<rect width="{width}" height="{height}" fill="#fff"/>']  # fmt: skip
    for n, head in enumerate(_HEADS):
        x = _LEFT + _COLUMN * n + 8
        parts.append(f'<text transform="translate({x + 8},{_TOP - 10}) rotate(-32)" fill="#1b211d">{head}</text>')
    for row, said in enumerate(statements):
        y = _TOP + _ROW * row
        parts.append(f'<text x="8" y="{y + 17}" fill="#1b211d">{escape(_short(said))}</text>')
        for n, change in enumerate(CHANGES):
            if change in r("holds", said):
                fill = "#1a7f37" if r("holds", said)[change] else "#fff"
                parts.append(f'<rect x="{_LEFT + _COLUMN * n}" y="{y + 4}" width="16" height="16" fill="{fill}" '
                             f'stroke="#545f58" stroke-width="1.5"/>')  # fmt: skip
        x = _LEFT + _COLUMN * len(CHANGES)
        parts.append(f'<text x="{x}" y="{y + 17}" fill="#1b211d">{escape(explains(r, said))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _short(said: str) -> str:
    """As much of a statement as there is room for; the table has the rest."""
    return said if len(said) <= 74 else f"{said[:73].rsplit(' ', 1)[0]} …"
