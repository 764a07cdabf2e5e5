"""The report as one HTML page that needs nothing else: readable in light and dark, on a laptop and on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benches.evaluation.figures import TEXTS, Grid, Judged, Plot, Score, Shown
from benches.evaluation.panel import legend, panels
from benches.evaluation.results import Result

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #fafafa; --ink: #1c1e21; --soft: #5b6168; --line: #d9dce0;
  --yes: #1a7f37; --no: #b35900; --none: #6e7781;
  --c0: #0067a3; --c1: #c8500a; --c2: #00795a; --c3: #a3478a; --c4: #9a6b00; --c5: #3a8fc4; --c6: #6b6b6b;
  --c7: #8b1a1a }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1b1f23; --ink: #e6e8ea; --soft: #a0a7ae;
  --line: #343a40; --yes: #56d364; --no: #f0a040; --none: #8b949e;
  --c0: #58a6ff; --c1: #ff9a5c; --c2: #3fcf9f; --c3: #e08acb; --c4: #e3b341; --c5: #8ecbf5; --c6: #a8a8a8;
  --c7: #ff7b72 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1080px;
  margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.7rem; margin: 0 0 .3rem } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem }
h3 { font-size: 1.05rem; margin: 0 0 .2rem } h4 { font-size: .92rem; margin: .9rem 0 .2rem; font-weight: 600 }
p { margin: .4rem 0 } .soft, figcaption, .from { color: var(--soft) }
.from { font-size: .8rem; overflow-wrap: anywhere }
a { color: var(--c0) } a:focus-visible, summary:focus-visible { outline: 2px solid var(--c1) }
section.figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.1rem;
  margin: 1rem 0; break-inside: avoid }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem } .pair figure { margin: 0 }
figcaption { font-size: .82rem; text-align: center }
@media (max-width: 760px) { .pair { grid-template-columns: 1fr } }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
svg .name { fill: var(--ink) } svg .said { font-size: 13px; font-style: italic }
.grid { stroke: var(--line) } .axis { stroke: var(--soft) } .line { fill: none; stroke-width: 2 }
.law { stroke-dasharray: 6 4; stroke-width: 1.6 } .between { stroke-dasharray: 1 4; stroke-width: 1 }
.hollow { fill: var(--card); stroke-width: 2 } .error { stroke-width: 1 }
.error.ink { stroke: var(--ink) }
KINDS
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; padding: 0; margin: .3rem 0;
  font-size: .82rem }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .86rem; margin: .4rem 0; width: 100% }
td, th { border-bottom: 1px solid var(--line); padding: .28rem .6rem; text-align: left; vertical-align: top }
table.numbers td:not(:first-child), table.numbers th:not(:first-child) { text-align: right;
  font-variant-numeric: tabular-nums }
table.claims { table-layout: fixed } .claims th:nth-child(1) { width: 37% } .claims th:nth-child(3) { width: 9em }
td.verdict { white-space: nowrap; font-weight: 600 } .yes { color: var(--yes) } .no { color: var(--no) }
.none { color: var(--none) }
nav ul, .score { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .35rem .5rem; margin: .4rem 0 }
nav a { text-decoration: none; border: 1px solid var(--line); border-radius: 999px; padding: .05rem .6rem;
  font-size: .82rem; display: inline-block }
nav a .dot { font-size: .8em }
.score li { border: 1px solid var(--line); border-radius: 8px; padding: .4rem .8rem; background: var(--card) }
.score b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums }
pre { font-size: .75rem; max-height: 24rem; overflow: auto; background: var(--card); border: 1px solid var(--line);
  padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere }
"""
_KINDS = "\n".join(
    f".line.k{i}, .hollow.k{i}, .error.k{i} {{ stroke: var(--c{i}) }} .dot.k{i}, .bar.k{i} {{ fill: var(--c{i}) }} "
    f".key.k{i} {{ background: var(--c{i}) }}"
    for i in range(8)
)
_WORDS = {True: ("yes", "holds"), False: ("no", "differs"), None: ("none", "not measured")}


def write_page(path: Path, shown: Sequence[Shown], score: Score, machine: Mapping[str, object], date: str) -> None:
    used = {result.bench: result for s in shown for result in s.used}
    texts = [(text, [s for s in shown if s.figure.text == text]) for text in TEXTS]
    body = "".join(
        f'<h2 id="{text}">{text}: {escape(TEXTS[text])}</h2>{"".join(_figure(s) for s in mine)}' for text, mine in texts
    )
    title = "The evaluation of the five texts, repeated with Holdfast"
    path.write_text(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{_STYLE.replace("KINDS", _KINDS)}</style></head><body>
<header><h1>{title}</h1>{_intro(machine, date)}{_score(score)}</header>
<nav aria-label="Figures and tables">{"".join(_nav(text, mine) for text, mine in texts)}</nav>
<main>{body}</main>
<h2 id="json">The JSON behind it</h2>
<p class="soft">One file per bench; the same files lie in benches/results where they were published.</p>
{"".join(_json(result) for result in used.values())}
</body></html>
""", encoding="utf-8")  # fmt: skip


def _intro(machine: Mapping[str, object], date: str) -> str:
    what = escape("{cores} cores, {memory_gib} GiB, {system}, Python {python}".format(**machine))
    return (
        f"<p>Drawn {escape(date)} on a machine with {what}. Left: the numbers that the texts state, as hollow points; "
        "dashed: a rule that they state in words; our copies are plain text, so that curves which were only pictures "
        "cannot be had. Right: ours, on the same axes. Below: each statement of the text about the picture, what we "
        "found, and why, where it differs. The text 001 has no evaluation in our copy. Figures of a mechanism or "
        "of a set-up and no result are not listed.</p>"
    )


def _score(score: Score) -> str:
    said = {
        "figures and tables with results": score.figures_in_texts, "of them drawn": score.figures_drawn,
        "statements": score.statements, "hold": score.statements_hold, "differ, explained": score.statements_explained,
        "differ, unexplained": score.statements_unexplained, "not measured": score.statements_not_measured,
    }  # fmt: skip
    return f'<ul class="score">{"".join(f"<li><b>{n}</b> {escape(what)}</li>" for what, n in said.items())}</ul>'


def _nav(text: str, mine: Sequence[Shown]) -> str:
    links = []
    for s in mine:
        holds = [j.holds for j in s.judged]
        kind, word = _WORDS[False if False in holds else None if None in holds or not s.drawn else True]
        links.append(f'<li><a href="#{s.figure.anchor}" title="{word}"><span class="dot {kind}">●</span> '
                     f"{escape(s.figure.number)}</a></li>")  # fmt: skip
    return f'<ul><li><a href="#{text}"><b>{text}</b></a></li>{"".join(links)}</ul>'


def _figure(s: Shown) -> str:
    figure = s.figure
    parts = "".join(_plot(part) if isinstance(part, Plot) else _grid(part) for part in s.parts)
    if not s.drawn:
        parts = f'<p class="none">Not drawn: {escape(s.missing)}</p>'
    about = f'<p class="soft">{escape(figure.about)}</p>' if figure.about else ""
    links = "<br>".join(f'<a href="#json-{r.bench}">{escape(r.provenance())}</a>' for r in s.used)
    return (
        f'<section class="figure" id="{figure.anchor}"><h3>{escape(figure.text)} · {escape(figure.number)}: '
        f"{escape(figure.title)}</h3>{about}{parts}{_claims(s.judged)}"
        f'<p class="from">{links}</p></section>'
    )


def _plot(plot: Plot) -> str:
    theirs, ours = panels(plot)
    title = f"<h4>{escape(plot.title)}</h4>" if plot.title else ""
    note = f'<p class="soft">{escape(plot.note)}</p>' if plot.note else ""
    return (
        f'{title}<div class="pair"><figure>{theirs}<figcaption>the text</figcaption></figure>'
        f"<figure>{ours}<figcaption>Holdfast</figcaption></figure></div>{legend(plot)}{note}"
    )


def _grid(grid: Grid) -> str:
    title = f"<h4>{escape(grid.title)}</h4>" if grid.title else ""
    head = "".join(f'<th scope="col">{escape(str(c))}</th>' for c in grid.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(_cell(v))}</td>" for v in row) + "</tr>" for row in grid.rows)
    note = f'<p class="soft">{escape(grid.note)}</p>' if grid.note else ""
    return (
        f'{title}<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{note}"
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _claims(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    rows = []
    for j in judged:
        kind, word = _WORDS[j.holds]
        why = f'<br><span class="soft">{escape(j.why)}</span>' if j.why and not j.holds else ""
        rows.append(f"<tr><td>{escape(j.said)}</td><td>{escape(j.ours)}{why}</td>"
                    f'<td class="verdict {kind}">{word}</td></tr>')  # fmt: skip
    head = "".join(f'<th scope="col">{said}</th>' for said in ("The text says", "Ours", ""))
    return (
        f'<div class="scroll"><table class="claims"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )


def _json(result: Result) -> str:
    held = {"date": result.date, "commit": result.commit, "command": result.command, "machine": result.machine,
            "form": "full" if result.full else "short", "others": result.others, "source": result.source,
            **result.values}  # fmt: skip
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in held.items() if v not in (None, ""))
    return (
        f'<details id="json-{result.bench}"><summary>{escape(result.bench)}</summary><p class="from">'
        f"{escape(result.provenance())}</p><pre>{{\n{escape(lines)}\n}}</pre></details>"
    )
