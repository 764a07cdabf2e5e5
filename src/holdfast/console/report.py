"""The picture of a failure as one HTML file that needs nothing else: no script, no address, no font.

Rules:
1. Everything that came from outside (marks, settings, checks) is escaped; a policy in the page forbids scripts and
   any request.
2. The size is bounded by the drawing, not by the run: arrivals are merged into squares a few pixels wide.
3. Kinds differ in shape as well as in colour, and both the light and the dark scheme of the reader are served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.console.axis import Axis, stime_axis
from holdfast.console.page import escaped, page
from holdfast.console.recording import Mark, Recording
from holdfast.console.verdict import Verdict, seconds
from holdfast.model.time import instant_text
from holdfast.model.tuples import TupleType

#: The drawing is laid out for this width and scaled by the browser.
_WIDTH, _LEFT, _RIGHT = 1000, 64, 16
_PLOT = _WIDTH - _LEFT - _RIGHT
_SQUARE = 4
_RECEIVED_HEIGHT, _LATENCY_HEIGHT = 300, 170
#: Squares of figure 5-4: up to so many columns of stime, so many squares of that height in each.
_HELD_COLUMNS, _HELD_ROWS, _HELD_HEIGHT = 92, 6, 10.0


def write_report(
    path: Path | str, recording: Recording, verdict: Verdict, *, delay_us: int, normal_us: int = 0,
    since_us: int | None = None, title: str = "A failure, as the client saw it",
    settings: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write the page and say where it is. `delay_us` is X, `normal_us` the latency without failure."""
    written = report_html(recording, verdict, delay_us=delay_us, normal_us=normal_us, since_us=since_us, title=title,
                       settings=settings)  # fmt: skip
    Path(path).write_text(written, encoding="utf-8")
    return Path(path)


def report_html(
    recording: Recording, verdict: Verdict, *, delay_us: int, normal_us: int = 0,
    since_us: int | None = None, title: str = "A failure, as the client saw it",
    settings: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """The whole page."""
    good = "pass" if verdict.passed else "fail"
    said = "every promise was kept" if verdict.passed else "a promise was broken"
    given = (settings or {}).items()
    rows = "".join(f"<tr><th scope='row'>{escaped(k)}</th><td>{escaped(v)}</td></tr>" for k, v in given)
    table = f"<h2>Settings</h2><table class='settings'>{rows}</table>" if rows else ""
    when = "" if recording.began_us is None else f"{instant_text(recording.began_us)[:19]} UTC"
    badge = f'<p class="badge {good}">{said}</p>'
    body = f"""<ul class="figures">{"".join(_figures(recording, delay_us, normal_us, since_us))}</ul>
{_Drawing(recording, delay_us, normal_us).html()}
<h2>Verdict</h2>
{verdict.html()}
{table}"""
    return page(title, when, body, badge=badge)


_LEGEND = (
    '<li><svg viewBox="0 0 10 10"><rect class="stable" width="10" height="10"/></svg>stable</li>'
    '<li><svg viewBox="0 0 10 10"><circle class="tentative" cx="5" cy="5" r="4.5"/></svg>tentative</li>'
    '<li><svg viewBox="0 0 10 10"><rect class="hole" x="1" y="1" width="8" height="8"/></svg>missing</li>'
    '<li><svg viewBox="0 0 10 10"><path class="control" d="M5 0L10 5L5 10L0 5Z"/></svg>UNDO, REC_DONE</li>'
    '<li><svg viewBox="0 0 10 10"><path class="mark" d="M5 0V10"/></svg>cut, healed</li>'
    '<li><svg viewBox="0 0 10 10"><path class="bound" d="M0 5H10"/></svg>what X allows</li>'
)


def _figures(recording: Recording, delay_us: int, normal_us: int, since_us: int | None) -> Iterator[str]:
    latency = recording.latency(since_us)
    failures = recording.failures()
    times = [failure.to_correct_us for failure in failures if failure.to_correct_us is not None]
    added = "–" if latency is None else seconds(max(0, latency.us_max - normal_us))
    for value, name in (
        (added, f"added delay at most, X = {seconds(delay_us)}"),
        (f"{recording.tentative:,}", f"tentative tuples, {recording.standing:,} of them left"),
        (f"{recording.stable:,}", "stable tuples"),
        (seconds(max(times)) if times else "–", "from healing to REC_DONE"),
    ):
        yield f"<li><b>{escaped(value)}</b><span>{escaped(name)}</span></li>"


class _Drawing:
    """The two figures, on one axis of time."""

    def __init__(self, recording: Recording, delay_us: int, normal_us: int) -> None:
        self.recording, self.delay_us, self.normal_us = recording, delay_us, normal_us
        began = recording.began_us if recording.began_us is not None else 0
        ended = recording.ended_us if recording.ended_us is not None else began
        span = max(ended - began, 1_000_000)
        self.wall = Axis(began, began + span + span // 50, began)
        self.stimes = stime_axis(recording, self.wall)

    def html(self) -> str:
        """Both, with the legend."""
        if self.recording.began_us is None:
            return "<p>Nothing was received.</p>"
        return (
            f'<ul class="legend">{_LEGEND}</ul><h2>What the client held, by stime</h2>{self._held()}'
            f"<h2>What it received, and how late</h2>{self._over_time()}"
        )

    # As in figure 5-4: before the first UNDO, and in the end.

    def _held(self) -> str:
        """What the client held during the failure and in the end."""
        moments = [(self.recording.ended_us, "in the end")]
        undone = next((c.wall_us for c in self.recording.controls if c.type is TupleType.UNDO), None)
        if undone is not None:
            moments.insert(0, (undone - 1, "just before the first UNDO"))
        return "".join(self._held_at(at, text) for at, text in moments)

    def _held_at(self, at_us: int | None, text: str) -> str:
        axis, top, parts = self.stimes, 14.0, []
        for held in self.recording.held(at_us, axis.span_us // _HELD_COLUMNS):
            left, right = (max(0.0, axis.share(us)) * _PLOT + _LEFT for us in (held.stime_us, held.until_us))
            if right <= _LEFT:
                continue
            said = f"stime {axis.text(held.stime_us)}: {held.tuples:,} of {held.expected:,} tuples"
            squares = "".join(
                _square(_kind(held.type) if row < held.full(_HELD_ROWS) else "hole", left,
                        top + (_HELD_ROWS - 1 - row) * _HELD_HEIGHT, right - left - 1.4, _HELD_HEIGHT - 1.4)
                for row in range(_HELD_ROWS)
            )  # fmt: skip
            parts.append(f"<g><title>{escaped(said)}</title>{squares}</g>")
        for control in self.recording.controls:
            if control.stime_us is not None and at_us is not None and control.wall_us <= at_us:
                x = _LEFT + self.stimes.share(control.stime_us) * _PLOT
                parts.append(_diamond(x, top - 7, f"{control.type.name} after stime {axis.text(control.stime_us)}"))
        height = top + _HELD_ROWS * _HELD_HEIGHT
        parts.append(_bottom_axis(axis, height + 2, "stime"))
        return (
            f"<figure><figcaption>{escaped(text)}</figcaption>"
            f'<svg class="plot" viewBox="0 0 {_WIDTH} {height + 34:.0f}" role="img" aria-label="{escaped(text)}">'
            f"{''.join(parts)}</svg></figure>"
        )

    # As in figures 5-6 and 5-4: sequence and latency over time.

    def _over_time(self) -> str:
        """Arrivals above, latency below, and what was done to the system."""
        events = self._events()
        labels, top = _event_labels(events, self.wall)
        received, latency = top + 8, top + 8 + _RECEIVED_HEIGHT + 34
        bottom = latency + _LATENCY_HEIGHT
        lines = "".join(
            f'<path class="{"mark" if kind != "control" else "moment"}" d="M{self._x(mark.wall_us):.1f} '
            f'{received}V{bottom}"/>'
            for mark, kind in events
        )
        parts = [lines, labels, *self._received(received), *self._latency(latency)]
        parts.append(_bottom_axis(self.wall, bottom, "time of arrival"))
        return (
            f'<figure><svg class="plot" viewBox="0 0 {_WIDTH} {bottom + 34}" role="img" '
            f'aria-label="tuples received and their latency over time">{"".join(parts)}</svg></figure>'
        )

    def _x(self, wall_us: int) -> float:
        return _LEFT + self.wall.share(wall_us) * _PLOT

    def _events(self) -> list[tuple[Mark, str]]:
        events = [(mark, mark.kind) for mark in self.recording.marks]
        controls = [(Mark(c.wall_us, c.type.name, "note"), "control") for c in self.recording.controls]
        return sorted([*events, *controls], key=lambda event: event[0].wall_us)

    def _received(self, top: float) -> Iterator[str]:
        yield _left_axis(self.stimes, top, _RECEIVED_HEIGHT, 7, "stime")
        columns, rows = _PLOT // _SQUARE, _RECEIVED_HEIGHT // _SQUARE
        squares: dict[tuple[int, int], tuple[int, int]] = {}
        for cell in self.recording.cells():
            x, y = self.wall.cell(cell.wall_us, columns), self.stimes.cell(cell.stime_us, rows)
            if x is not None and y is not None:
                before = squares.get((x, y), (cell.type, 0))
                squares[x, y] = (cell.type, cell.tuples + (before[1] if before[0] == cell.type else 0))
        for (x, y), (kind, tuples) in squares.items():
            drawn = _square(_kind(kind), _LEFT + x * _SQUARE, top + (rows - 1 - y) * _SQUARE, _SQUARE - 0.4)
            yield f"<g><title>{tuples:,} {_kind(kind)}</title>{drawn}</g>"
        for control in self.recording.controls:
            share = 0.0 if control.stime_us is None else self.stimes.share(control.stime_us)
            x_at, y_at = self._x(control.wall_us), top + (1 - min(1, max(0, share))) * _RECEIVED_HEIGHT
            yield _diamond(x_at, y_at, f"{control.type.name} at {self.wall.text(control.wall_us)}")

    def _latency(self, top: float) -> Iterator[str]:
        bound = self.delay_us + self.normal_us
        cells = [cell for cell in self.recording.cells() if cell.new]
        scale = Axis(0, max([bound * 6 // 5, *(c.latency_us_max * 21 // 20 for c in cells), 1]), 0)
        yield _left_axis(scale, top, _LATENCY_HEIGHT, 5, "latency of new tuples")
        columns, rows = _PLOT // _SQUARE, _LATENCY_HEIGHT // 2
        largest: dict[tuple[int, int], tuple[int, int]] = {}
        for cell in cells:
            x, y = self.wall.cell(cell.wall_us, columns), scale.cell(max(0, cell.latency_us_max), rows)
            if x is not None and y is not None:
                largest[x, y] = (cell.type, max(cell.latency_us_max, largest.get((x, y), (0, 0))[1]))
        for (x, y), (kind, us) in largest.items():
            y_at = top + (1 - (y + 0.5) / rows) * _LATENCY_HEIGHT - _SQUARE / 2
            drawn = _square(_kind(kind), _LEFT + x * _SQUARE, y_at, _SQUARE - 0.4)
            yield f"<g><title>{escaped(seconds(us))}, {_kind(kind)}</title>{drawn}</g>"
        y_bound = top + (1 - scale.share(bound)) * _LATENCY_HEIGHT
        text = f"X = {seconds(self.delay_us)}" + (f" + {seconds(self.normal_us)} as usual" if self.normal_us else "")
        yield f'<path class="bound" d="M{_LEFT} {y_bound:.1f}h{_PLOT}"/>'
        yield f'<text class="bound-text" x="{_LEFT + 6}" y="{y_bound - 5:.1f}">{escaped(text)}</text>'


def _kind(type: int) -> str:
    return "stable" if type == TupleType.INSERTION else "tentative"


def _square(kind: str, x: float, y: float, width: float, height: float | None = None) -> str:
    """Tentative ones are round: a circle, or what comes nearest to it."""
    width, height = max(0.6, width), width if height is None else height
    radius = f' rx="{min(width, height) / 2:.1f}"' if kind == "tentative" else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{radius}/>'


def _diamond(x: float, y: float, text: str) -> str:
    return f'<path class="control" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z"><title>{escaped(text)}</title></path>'


def _bottom_axis(axis: Axis, y: float, name: str) -> str:
    parts = [f'<path class="axis" d="M{_LEFT} {y:.1f}h{_PLOT}"/>']
    for us in axis.ticks(12):
        x = _LEFT + axis.share(us) * _PLOT
        parts.append(f'<path class="axis" d="M{x:.1f} {y:.1f}v5"/>')
        if x < _WIDTH - 110:  # The name of the axis stands at its end.
            parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{y + 18:.1f}">{axis.text(us)}</text>')
    parts.append(f'<text class="tick" text-anchor="end" x="{_WIDTH - _RIGHT}" y="{y + 18:.1f}">{escaped(name)}</text>')
    return "".join(parts)


def _left_axis(axis: Axis, top: float, height: float, ticks: int, name: str) -> str:
    parts = [f'<path class="axis" d="M{_LEFT} {top:.1f}v{height}"/>']
    for us in axis.ticks(ticks):
        y = top + (1 - axis.share(us)) * height
        parts.append(f'<path class="grid" d="M{_LEFT - 5} {y:.1f}h{_PLOT + 5}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 9}" y="{y + 4:.1f}">{axis.text(us)}</text>')
    parts.append(f'<text class="name" x="{_LEFT + 6}" y="{top - 6:.1f}">{escaped(name)}</text>')
    return "".join(parts)


def _event_labels(events: list[tuple[Mark, str]], wall: Axis) -> tuple[str, float]:
    """Labels above the plot, on as many lines as they need, and where they end."""
    line_height, ends, parts = 16, [], []  # type: int, list[float], list[str]
    for mark, kind in events:
        x = _LEFT + wall.share(mark.wall_us) * _PLOT
        width = 7.0 * len(mark.text) + 10
        start = x if x + width <= _WIDTH else x - width
        line = next((i for i, end in enumerate(ends) if end <= start), len(ends))
        if line >= 6:
            continue  # So many at once cannot be read; their lines are drawn all the same.
        ends[line : line + 1] = [start + width]
        anchor, at = ("start", x + 3) if start == x else ("end", x - 3)
        y = (line + 1) * line_height
        parts.append(
            f'<text class="event {kind}-text" text-anchor="{anchor}" x="{at:.1f}" y="{y}">{escaped(mark.text)}</text>'
        )
    return "".join(parts), len(ends) * line_height + 14.0
