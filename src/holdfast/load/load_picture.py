"""Loads of participants over time, with the movements of tasks between them (as 003 figure 7-9): one HTML file.

Rules:
1. Everything that came from outside is escaped; a policy in the page forbids scripts and any request.
2. One strip for each participant, all on one axis of time: its load as a line, its capacity as a dashed one, a mark
   where a task left or came. The size is bounded by the drawing: a point for every two pixels at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.console.axis import Axis
from holdfast.console.page import escaped, page
from holdfast.load.history import Movement, Sample
from holdfast.model.time import SECOND_US, instant_text

_WIDTH, _LEFT, _RIGHT = 1000, 90, 16
_PLOT = _WIDTH - _LEFT - _RIGHT
_STRIP, _GAP, _TOP = 110, 34, 20
_POINTS_MAX = _PLOT // 2
_MORE = (
    ".load{stroke:var(--stable);stroke-width:1.8;fill:none}.out{stroke:var(--control);fill:var(--control)}"
    ".in{stroke:var(--mark);fill:var(--mark)}"
)


def write_load_picture(
    path: Path | str, lines: Sequence[Sample | Movement], title: str = "Load between owners"
) -> Path:
    """Write the page and say where it is."""
    Path(path).write_text(load_html(lines, title), encoding="utf-8")
    return Path(path)


def load_html(lines: Sequence[Sample | Movement], title: str = "Load between owners") -> str:
    """The whole page."""
    samples = [line for line in lines if isinstance(line, Sample)]
    moves = sorted((line for line in lines if isinstance(line, Movement)), key=lambda move: move.at_us)
    drawing = "<p>Nothing was measured yet.</p>"
    when = ""
    if samples:
        low, high = min(s.at_us for s in samples), max(s.at_us for s in samples)
        axis = Axis(low, max(high, low + SECOND_US) + 1, low)
        drawing = "".join(_drawing(samples, moves, axis))
        when = f"{instant_text(low)[:19]} UTC"
    rows = "".join(_row(move, samples) for move in moves)
    table = (
        "<h2>Movements</h2><table><thead><tr><th>after</th><th>task</th><th>from</th><th>to</th><th>price</th>"
        f"<th>took</th></tr></thead><tbody>{rows}</tbody></table>"
        if rows
        else "<p>No task has moved.</p>"
    )
    return page(title, when, f"{drawing}\n{table}", style=_MORE)


def _row(move: Movement, samples: Sequence[Sample]) -> str:
    began = min((s.at_us for s in samples), default=move.at_us)
    back = " (back)" if move.back else ""
    cells = (f"{(move.at_us - began) / SECOND_US:.1f} s", move.task, move.source, move.target + back,
             f"{move.price:.3g}", f"{move.took_us / SECOND_US:.1f} s")  # fmt: skip
    return "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in cells) + "</tr>"


def _drawing(samples: Sequence[Sample], moves: Sequence[Movement], axis: Axis) -> Iterator[str]:
    names = sorted({sample.participant for sample in samples})
    height = _TOP + len(names) * (_STRIP + _GAP) + 20
    yield f'<figure><svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="loads over time">'
    for number, name in enumerate(names):
        own = [s for s in samples if s.participant == name]
        yield from _strip(name, own, moves, axis, _TOP + number * (_STRIP + _GAP))
    bottom = _TOP + len(names) * (_STRIP + _GAP)
    for tick in axis.ticks(8):
        yield f'<text x="{_x(axis, tick):.1f}" y="{bottom}" text-anchor="middle">{escaped(axis.text(tick))}</text>'
    yield "</svg><figcaption>CPU of each participant; dashed: its capacity; ▲ a task left, ▼ a task came</figcaption>"
    yield "</figure>"


def _strip(
    name: str, own: Sequence[Sample], moves: Sequence[Movement], axis: Axis, top: float
) -> Iterator[str]:  # fmt: skip
    capacity = max(s.capacity for s in own)
    highest = max([capacity, *(s.cpu for s in own)]) * 1.05 or 1.0
    base = top + _STRIP

    def y(value: float) -> float:
        return base - _STRIP * value / highest

    yield f'<text class="name" x="4" y="{top + 14:.0f}">{escaped(name)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {top:.0f}V{base:.0f}H{_WIDTH - _RIGHT}"/>'
    yield f'<path class="bound" d="M{_LEFT} {y(capacity):.1f}H{_WIDTH - _RIGHT}"/>'
    for value in (0.0, capacity):
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    step = -(-len(own) // _POINTS_MAX)
    points = " ".join(f"{_x(axis, s.at_us):.1f},{y(s.cpu):.1f}" for s in own[::step])
    yield f'<polyline class="load" points="{points}"/>'
    for move in moves:
        if name not in (move.source, move.target):
            continue
        x, out = _x(axis, move.at_us), move.source == name
        tip, kind = (-9, "out") if out else (9, "in")
        middle = base + 8
        yield (
            f'<path class="{kind}" d="M{x - 5:.1f} {middle - tip / 2:.1f}h10l-5 {tip}z"><title>{escaped(move.task)} '
            f"{escaped(move.source)} → {escaped(move.target)}</title></path>"
        )


def _x(axis: Axis, us: int) -> float:
    return _LEFT + _PLOT * axis.share(us)
