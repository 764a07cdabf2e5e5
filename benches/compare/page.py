"""docs/compare.md and its pictures, from what the contenders said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benches.compare.contenders import CONTENDERS, Contender
from benches.compare.drawing import drawn
from benches.compare.judge import Figures, judge
from benches.compare.machine import CALM_MIN, CROWDED
from benches.compare.moments import moments
from benches.compare.records import Record
from benches.compare.workload import CHUNK_MS, DISORDER_MS, KEYS, ROWS_PER_TICK, SILENT, TICK_MS, WINDOW_MS, Plan, truth

DEADLINE_S = 6.0
"""By when a row is due: an X of 3 s, and as much again for what everybody needs without a failure."""
OTHER_DEADLINES_S = (4.0, 10.0, 30.0)

_INTRO = """# The same failure, side by side

Three inputs, one windowed count, and one input that falls silent for {silent} s and comes back: what did a client have
at every moment? `make compare` feeds the same files to each system, one at a time or a few, and makes this page
from what they answered. Nobody was told of the failure, and nothing was restarted.

"""

_SCENARIO = """
## The inputs

Each of three folders gets a file of JSON lines every {chunk} ms ({rate} rows a second and input, {keys} keys; event
time is a column). The query counts rows per key in windows of {window} s. From second {from_s} to second {until_s} no
file appears in folder `{silent}`; then one file brings all that was held back, in order. Nothing is lost on the way:
a system that waits long enough can be right about everything. Files, names and bytes are the same for all; every system
may expect {disorder} s of disorder. Windows between second {judged} and {last} are judged, so that everybody has
{judged} s to start and warm up.

## The rules

The client keeps one count per window and key; a later one replaces it. A row is due {deadline:g} s after the end of its
window. It is **on time** if the client had the right count from then on, not marked tentative; **late** if it was right
in the end; **lost** if in the end there was none; **wrong at end** otherwise.

Two more columns say what the client had when a row was due: **tentative on time**, a count marked as one that may
change (right or not: it is a guess, and not counted as on time), and **wrong, unmarked**, a wrong count that looked
like any other. **Silence** is the longest time without a result of a newer window. **Corrected** is how long after
the return every window that had ended before it was right. **On time in the calm** counts the rows that the failure
does not touch: it tells how quick a system was on this machine when nothing failed.

"""

_READING = """
## How to read it

- **Wait for all** (Spark with min, Flink without idleness): everything is right, nothing comes while an input is away.
- **Go on without it** (Spark with max, Flink with idleness, Bytewax, Pathway with each window once): results keep
  coming; what the silent input held back is too late for them, and its windows stay wrong for good.
- **Go on and say it again** (Spark in update mode, Flink with allowed lateness, Pathway with updates): results keep
  coming and are right in the end, as long as the failure is shorter than what is kept. Until then a count without the
  silent input looks like one that is complete: whoever reads it cannot know, nor when it is the last.
- **Wait longer than any failure** (Bytewax with 25 s; a watermark delay does the same elsewhere): right, always late.
- **Holdfast** goes on as well, marks what lacks an input as tentative, takes it back and replaces it. During the
  failure it is on time with guesses only, as the third group is; the difference is that the client is told which rows
  are guesses, and when all of them have been replaced, however long the failure was. Its price is in
  [choosing.md](choosing.md#what-it-costs): the log, and a second query during the failure.

What is not measured here: throughput, the size of state, and what happens when a process dies.
"""


class Judged(NamedTuple):
    figures: dict[str, Figures]
    left_out: dict[str, str]
    """Who has no figures, and why."""


def judged(records: Mapping[str, Record], plan: Plan) -> Judged:
    figures = {name: judge(record.lines, truth(plan), plan, DEADLINE_S) for name, record in records.items()}
    left_out = {name: why for name, record in records.items() if (why := _left_out(record, figures[name]))}
    return Judged({name: f for name, f in figures.items() if name not in left_out}, left_out)


def _left_out(record: Record, figures: Figures) -> str:
    if record.absent:
        return record.absent.partition("\n")[0]
    if record.elsewhere > CROWDED and figures.calm_rows_on_time < CALM_MIN * figures.calm_rows:
        return (
            f"other work took {record.elsewhere:.0%} of the machine, and only {figures.calm_rows_on_time} of the "
            f"{figures.calm_rows} rows that the failure does not touch were on time; run it again on a quiet one"
        )
    return ""


def write_page(docs: Path, records: Mapping[str, Record], plan: Plan) -> Judged:
    found = judged(records, plan)
    figures = found.figures
    ran = [c for c in CONTENDERS if c.name in figures]
    text = _INTRO.format(silent=plan.silent_until_s - plan.silent_from_s) + _table(ran, figures)
    text += _missing(found.left_out) + _scenario(plan) + _pictures(docs, ran, records, plan) + _READING
    text += _settings(ran, records) + _deadlines(ran, records, plan) + _again(records)
    (docs / "compare.md").write_text(text)
    return found


def _table(ran: list[Contender], figures: Mapping[str, Figures]) -> str:
    rows = [
        [c.title, f.rows_on_time, f.rows_late, f.rows_lost, f.rows_wrong_at_end, f"{f.longest_silence_s:g} s",
         f.rows_tentative_on_time, f.rows_wrong_unmarked, "never" if f.corrected_s is None else f"{f.corrected_s:g} s",
         f"{f.calm_rows_on_time} of {f.calm_rows}"]
        for c, f in ((c, figures[c.name]) for c in ran)
    ]  # fmt: skip
    head = [
        "",
        "on time",
        "late",
        "lost",
        "wrong at end",
        "silence",
        "tentative on time",
        "wrong, unmarked",
        "corrected",
        "on time in the calm",
    ]
    total = next(iter(figures.values())).rows if figures else 0
    return _markdown(head, rows) + f"\nOf {total} rows each.\n"


_UNMEASURED = """
What is said below about those that are missing follows from their documentation; it was not measured here.
"""


def _missing(left_out: Mapping[str, str]) -> str:
    said = "".join(f"\n{name} is missing: {why}.\n" for name, why in left_out.items())
    return said + (_UNMEASURED if said else "")


def _scenario(plan: Plan) -> str:
    return _SCENARIO.format(
        chunk=CHUNK_MS, rate=ROWS_PER_TICK * 1000 // TICK_MS, keys=len(KEYS), window=WINDOW_MS // 1000,
        from_s=plan.silent_from_s, until_s=plan.silent_until_s, silent=SILENT, disorder=DISORDER_MS // 1000,
        judged=plan.judged_from_s, last=plan.judged_until_s, deadline=DEADLINE_S,
    )  # fmt: skip


def _pictures(docs: Path, ran: list[Contender], records: Mapping[str, Record], plan: Plan) -> str:
    said = "## What a client had\n\nEach line is a window, from its end on, and time goes to the right.\n"
    for c in ran:
        spans = moments(records[c.name].lines, truth(plan), plan, DEADLINE_S)
        (docs / "img" / f"compare-{c.name}.svg").write_text(drawn(c.title, spans, plan))
        said += f"\n![{c.title}: what a client had of each window](img/compare-{c.name}.svg)\n\n{c.why}\n"
    return said


def _settings(ran: list[Contender], records: Mapping[str, Record]) -> str:
    rows: list[list[object]] = []
    for c in ran:
        record = records[c.name]
        rows.append([c.title, record.version, c.settings, c.documents, f"{record.elsewhere:.0%}"])
    head = ["", "version", "settings", "where its documentation says so", "other work beside it"]
    return "\n## Versions and settings\n\n" + _markdown(head, rows) + _FAIR


_FAIR = """
Every time limit that says how long to wait for an input is 3 s: idleness, Bytewax's wait, X. Flink's watermark
alignment is left out: it makes sources that are ahead read more slowly, so that less is buffered; it is not about
silent ones. Flink's Python runs inside the JVM (*Execution Mode*), which spares it a process per operator. Spark and
Flink read the folders with their own file sources, Pathway with `pw.io.jsonlines`; Bytewax, whose own source reads a
folder once, and Holdfast, whose producers are programs, look into them every 50 ms and 20 ms. All run on the same
cores, one at a time or, with `--together`, a few. The last column is the share of the machine that other work took
meanwhile, other contenders included; beside much of it, results come later.
"""


def _deadlines(ran: list[Contender], records: Mapping[str, Record], plan: Plan) -> str:
    head = ["", *(f"{s:g} s" for s in OTHER_DEADLINES_S)]
    rows: list[list[object]] = []
    for c in ran:
        found = [judge(records[c.name].lines, truth(plan), plan, s) for s in OTHER_DEADLINES_S]
        cells = [f"{f.rows_on_time}; {f.rows_tentative_on_time}, {f.rows_wrong_unmarked}" for f in found]
        rows.append([c.title, *cells])
    said = (
        "\n## With other deadlines\n\nRows on time if they were due sooner or later than after "
        f"{DEADLINE_S:g} s; behind the semicolon what the client had instead: tentative, or wrong and unmarked.\n\n"
    )
    return said + _markdown(head, rows)


def _again(records: Mapping[str, Record]) -> str:
    dates = sorted({record.date for record in records.values()})
    return (
        "\n## Again\n\n```\nmake compare\n```\n\nIt makes an environment for each peer below `.compare`, waits for a "
        f"quiet machine, and takes half an hour. This page: {' and '.join(dates)}, on {len(os.sched_getaffinity(0))} "
        "cores of a shared virtual machine.\n"
    )


def _markdown(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)
