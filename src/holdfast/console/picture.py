"""The picture of a failure on a terminal (003, figures 5-4 and 5-6), for `rich.live.Live` or to print once.

From top to bottom, all on one axis of time:
1. what is the state now;
2. tuples received: stime upwards against the time of arrival. A pause is blank, corrections are a column that goes back
   to the cut;
3. what the client holds now, by stime: stable, tentative, and holes for what is missing from tentative results;
4. the latency of new tuples with the line that X allows, and what was done to the system.

Every kind has a symbol of its own besides its colour, so that it reads without colour; where the terminal knows ASCII
only, the symbols are ASCII. In a pipe or on a dumb terminal `Live` prints the last picture only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from holdfast.console.arrivals import Cell
from holdfast.console.axis import Axis, stime_axis, wall_axis
from holdfast.console.recording import Mark, Recording
from holdfast.console.verdict import seconds
from holdfast.model.tuples import TupleType

WIDTH_MIN, WIDTH_MAX = 60, 200
#: Room for the labels of the vertical axes.
_LABEL = 8
#: The squares of figure 5-4 are drawn in so many rows: with three inputs, one cut link leaves one row of holes.
_HELD_ROWS = 3

#: A control character in a mark must not move the cursor.
_SAFE = dict.fromkeys((*range(32), 127, *range(128, 160)), "?")
COLOURS = {"stable": "green", "tentative": "yellow", "hole": "bright_black", "control": "red", "mark": "cyan",
           "bound": "magenta", "axis": "bright_black"}  # fmt: skip
STATE_COLOURS = {"EMPTY": "bright_black", "STABLE": "green", "TENTATIVE": "yellow", "CORRECTING": "red"}


@dataclass(frozen=True, slots=True)
class Symbols:
    """One character for each kind of thing."""

    stable: str = "█"
    tentative: str = "▒"
    hole: str = "·"
    control: str = "┃"
    mark: str = "┊"
    bound: str = "─"
    corner: str = "└"
    side: str = "│"
    floor: str = "─"


ASCII = Symbols("#", "t", ".", "!", ":", "-", "+", "|", "-")


class Canvas:
    """A rectangle of characters, each of one kind; what is put later lies on top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._kinds: list[list[str | None]] = [[None] * width for _ in range(height)]

    def put(self, x: int | None, y: int | None, kind: str) -> None:
        """`y` counts from the bottom. What lies outside is not drawn."""
        if x is not None and y is not None and 0 <= x < self.width and 0 <= y < self.height:
            self._kinds[self.height - 1 - y][x] = kind

    def column(self, x: int | None, kind: str, low: int = 0, high: int | None = None) -> None:
        """A line upwards, behind what is there already if it is a mark."""
        for y in range(low, self.height if high is None else high + 1):
            if x is not None and not (kind == "mark" and self._kinds[self.height - 1 - y][x]):
                self.put(x, y, kind)

    def rows(self, symbols: Symbols) -> Iterator[Text]:
        """From the top downwards."""
        for row in self._kinds:
            line = Text()
            for kind in row:
                line.append(" " if kind is None else getattr(symbols, kind), None if kind is None else COLOURS[kind])
            yield line


class Picture:
    """The picture at one moment. `now_us` is the right end of a run that goes on; for a still picture, its end."""

    def __init__(
        self, recording: Recording, delay_us: int, now_us: int, *, normal_us: int = 0, window_us: int | None = None,
        height: int | None = None,
    ) -> None:  # fmt: skip
        """`delay_us` is X; `normal_us` the latency without failure, on top of which X is allowed."""
        self.recording, self.delay_us, self.now_us = recording, delay_us, now_us
        self.normal_us, self.window_us, self.height = normal_us, window_us, height

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(WIDTH_MIN, options.max_width), min(WIDTH_MAX, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        symbols = ASCII if options.ascii_only or options.legacy_windows else Symbols()
        lines = self.lines(min(options.max_width, WIDTH_MAX), self._height(console), symbols)
        for line in lines:
            if symbols is ASCII:
                line.plain = line.plain.encode("ascii", "replace").decode()  # Marks are somebody's own words.
            line.no_wrap, line.overflow = True, "crop"
            yield line

    def _height(self, console: Console) -> int:
        if self.height is not None:
            return self.height
        return console.height - 1 if console.is_terminal and not console.is_dumb_terminal else 34

    def lines(self, width: int, height: int, symbols: Symbols) -> list[Text]:
        """All lines of the picture."""
        plot = max(8, width - _LABEL - 1)
        room = max(10, height - _HELD_ROWS - 10)  # State, titles, axis, marks and legend take the rest.
        upper, lower = room - room * 2 // 5, room * 2 // 5
        wall = wall_axis(self.recording, self.now_us, self.window_us)
        cells = [c for c in self.recording.cells() if wall.low_us <= c.wall_us < wall.high_us]
        return [
            self._state_line(),
            Text("tuples received: stime against time of arrival", "bold"),
            *self._received(cells, wall, Canvas(plot, upper), symbols),
            Text("what the client holds now, by stime", "bold"),
            *self._held(wall, Canvas(plot, _HELD_ROWS), symbols),
            Text("latency of new tuples", "bold"),
            *self._latency(cells, wall, Canvas(plot, lower), symbols),
            *_time_labels(wall, plot, symbols),
            *_mark_lines(self._events(wall), wall, plot),
            self._legend(symbols),
        ]

    def _state_line(self) -> Text:
        recording, state = self.recording, self.recording.state
        line = Text()
        line.append(f" {state} ", f"bold reverse {STATE_COLOURS[state]}")
        began = recording.began_us if recording.began_us is not None else self.now_us
        line.append(f" {max(0, self.now_us - began) / 1e6:.0f} s  ")
        line.append(f"{recording.stable:,} stable", "green")
        line.append(", ")
        line.append(f"{recording.standing:,} tentative now", "yellow" if recording.standing else "")
        line.append(f" ({recording.tentative:,} in all)")
        if latency := recording.latency():
            line.append(f", latency max {seconds(latency.us_max)}")
        return line

    def _events(self, wall: Axis) -> list[Mark]:
        controls = [Mark(c.wall_us, c.type.name, "note") for c in self.recording.controls]
        shown = [m for m in (*self.recording.marks, *controls) if wall.low_us <= m.wall_us < wall.high_us]
        return sorted(shown, key=lambda mark: mark.wall_us)

    def _received(self, cells: list[Cell], wall: Axis, canvas: Canvas, symbols: Symbols) -> Iterator[Text]:
        stimes = stime_axis(self.recording, wall)
        slot = self.recording.slot_us
        for cell in cells:
            low = stimes.cell(cell.stime_us, canvas.height)
            high = stimes.cell(cell.stime_us + slot - 1, canvas.height)
            for y in {low, high}:
                canvas.put(wall.cell(cell.wall_us, canvas.width), y, _kind(cell.type))
        for control in self.recording.controls:
            at = None if control.stime_us is None else stimes.cell(control.stime_us, canvas.height)
            canvas.put(wall.cell(control.wall_us, canvas.width), at or 0, "control")
        self._draw_marks(wall, canvas)
        labels = {stimes.cell(us, canvas.height): stimes.text(us) for us in stimes.ticks(canvas.height // 3)}
        return _labelled(canvas, labels, symbols)

    def _held(self, wall: Axis, canvas: Canvas, symbols: Symbols) -> Iterator[Text]:
        stimes = stime_axis(self.recording, wall)
        axis = wall if stimes.zero_us == wall.zero_us else stimes
        for held in self.recording.held(self.now_us, axis.span_us // canvas.width):
            low, high = (round(axis.share(us) * canvas.width) for us in (held.stime_us, held.until_us))
            for x in range(max(0, low), min(high, canvas.width)):
                for y in range(_HELD_ROWS):
                    canvas.put(x, y, _kind(held.type) if y < held.full(_HELD_ROWS) else "hole")
        for control in self.recording.controls:
            if control.stime_us is not None and control.wall_us <= self.now_us:
                canvas.put(axis.cell(control.stime_us, canvas.width), _HELD_ROWS - 1, "control")
        return _labelled(canvas, {}, symbols)

    def _latency(self, cells: list[Cell], wall: Axis, canvas: Canvas, symbols: Symbols) -> Iterator[Text]:
        bound = self.delay_us + self.normal_us
        top = max([bound * 5 // 4, *(c.latency_us_max * 11 // 10 for c in cells if c.new), 1])
        scale = Axis(0, top, 0)
        for x in range(canvas.width):
            canvas.put(x, scale.cell(bound, canvas.height), "bound")
        for cell in cells:
            if cell.new:
                at = scale.cell(max(0, cell.latency_us_max), canvas.height)
                canvas.put(wall.cell(cell.wall_us, canvas.width), at, _kind(cell.type))
        self._draw_marks(wall, canvas)
        labels = {scale.cell(us, canvas.height): scale.text(us) for us in scale.ticks(max(1, canvas.height // 2))}
        labels[scale.cell(bound, canvas.height)] = "X" if not self.normal_us else "normal+X"
        return _labelled(canvas, labels, symbols)

    def _draw_marks(self, wall: Axis, canvas: Canvas) -> None:
        for mark in self.recording.marks:
            canvas.column(wall.cell(mark.wall_us, canvas.width), "mark")

    def _legend(self, symbols: Symbols) -> Text:
        line = Text()
        names = {"stable": "stable", "tentative": "tentative", "hole": "missing", "control": "UNDO, REC_DONE",
                 "mark": "cut, healed", "bound": f"X = {seconds(self.delay_us)}"}  # fmt: skip
        for kind, name in names.items():
            line.append(getattr(symbols, kind), COLOURS[kind]).append(f" {name}  ")
        return line


def _kind(type: int) -> str:
    return "stable" if type == TupleType.INSERTION else "tentative"


def _labelled(canvas: Canvas, labels: dict[int | None, str], symbols: Symbols) -> Iterator[Text]:
    for i, row in enumerate(canvas.rows(symbols)):
        label = labels.get(canvas.height - 1 - i, "")[:_LABEL]
        yield Text(label.rjust(_LABEL), COLOURS["axis"]).append(symbols.side, COLOURS["axis"]).append_text(row)


def _time_labels(wall: Axis, plot: int, symbols: Symbols) -> Iterator[Text]:
    yield Text(" " * _LABEL + symbols.corner + symbols.floor * plot, COLOURS["axis"])
    line = _Line(plot)
    for us in wall.ticks(plot // 10):
        line.place(wall.cell(us, plot), wall.text(us))
    yield Text(line.text, COLOURS["axis"])


def _mark_lines(events: list[Mark], wall: Axis, plot: int) -> Iterator[Text]:
    """Marks and controls below the axis, on three lines so that neighbours do not hide each other."""
    together: dict[int, list[str]] = {}
    for event in events:
        if (x := wall.cell(event.wall_us, plot)) is not None:
            together.setdefault(x, []).append(event.text.translate(_SAFE))
    lines = (_Line(plot), _Line(plot), _Line(plot))
    for x, texts in together.items():
        text = ", ".join(dict.fromkeys(texts))
        any(line.place(x, f"^{text}") or line.place(x - len(text), f"{text}^") for line in lines)
    for line in lines:
        yield Text(line.text, COLOURS["mark"])


class _Line:
    """Words at given columns; a word that finds no room is refused."""

    def __init__(self, plot: int) -> None:
        self._plot, self._words = plot, ""

    @property
    def text(self) -> str:
        return " " * (_LABEL + 1) + self._words

    def place(self, x: int | None, text: str) -> bool:
        free_from = len(self._words) + 1 if self._words else 0
        if x is None or x < free_from or x + len(text) > self._plot:
            return False
        self._words = self._words.ljust(x) + text
        return True
