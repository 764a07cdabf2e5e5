"""The picture fits any terminal, tells kinds apart without colour, and is printed once where nobody watches."""

from __future__ import annotations

import io
import threading

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live

from holdfast.console.picture import Picture
from holdfast.console.recording import Recording
from tests.console.conftest import SECOND, Script, X


class Latin(io.StringIO):
    """A file that knows ASCII only."""

    encoding = "ascii"


def drawn(script: Script, width: int = 100, file: io.StringIO | None = None, **options: object) -> list[str]:
    out = file or io.StringIO()
    Console(file=out, width=width).print(Picture(script.recording, X, script.now, **options))  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def panel(lines: list[str], title: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 1
    rest = lines[start:]
    return rest[: next(i for i, line in enumerate(rest) if "│" not in line)]


@pytest.mark.parametrize("width", [40, 80, 81, 120, 200, 300])
def test_it_fits_the_terminal(width: int, figure_5_4: Script) -> None:
    lines = drawn(figure_5_4, width)
    assert all(cell_len(line) <= width for line in lines)
    assert any("█" in line for line in lines)


@pytest.mark.parametrize("height", [5, 24, 50])
def test_it_keeps_to_the_height(height: int, figure_5_4: Script) -> None:
    assert len(drawn(figure_5_4, height=height)) <= max(height, 24)


def test_kinds_differ_without_colour(script: Script) -> None:
    script.normal(15).fail(20)
    lines = drawn(script)
    held = panel(lines, "what the client holds")
    assert {*held[0][9:].strip()} == {"█", "·", "▒"}
    assert {*held[-1][9:].strip()} == {"█", "▒"}
    assert "TENTATIVE" in lines[0]
    script.correct().normal(10)
    lines = drawn(script)
    assert {*panel(lines, "what the client holds")[0][9:].strip()} == {"█", "┃"}
    assert any("^cut monitor3" in line for line in lines)
    assert any("UNDO" in line and "REC_DONE" in line for line in lines)
    assert "STABLE" in lines[0]


def test_the_pause_at_the_cut_is_blank_and_the_corrections_go_back_to_it(figure_5_4: Script) -> None:
    rows = panel(drawn(figure_5_4, 120), "tuples received")
    columns = ["".join(row[9 + x] for row in rows if len(row) > 9 + x) for x in range(100)]
    kinds = ["█" if "█" in c else "▒" if "▒" in c else " " for c in columns]
    said = "".join(kinds).strip()
    assert said.startswith("███")
    assert " " in said[: said.index("▒")]
    assert said.rstrip("█").endswith("▒")
    tallest = max(columns, key=lambda c: c.count("█"))
    assert tallest.count("█") + tallest.count("┃") >= 6
    assert "┃" in tallest


def test_an_ascii_terminal_gets_ascii(figure_5_4: Script) -> None:
    figure_5_4.recording.mark(figure_5_4.now - 5 * SECOND, "câble")
    text = "\n".join(drawn(figure_5_4, file=Latin()))
    assert text.isascii()
    assert "#" in text
    assert "tttt" in text
    assert "c?ble" in text


@pytest.mark.parametrize(
    "recording", [Recording(), Script().normal(1).recording, Script().fail(9, heal=False).recording]
)
def test_any_recording_can_be_drawn(recording: Recording) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(Picture(recording, X, recording.ended_us or 0, window_us=2 * SECOND))
    assert "latency of new tuples" in out.getvalue()


def test_a_pipe_gets_the_last_picture_only(figure_5_4: Script) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80)
    with Live(Picture(Recording(), X, 0), console=console, auto_refresh=False) as live:
        for _ in range(3):
            live.update(Picture(figure_5_4.recording, X, figure_5_4.now), refresh=True)
    assert out.getvalue().count("latency of new tuples") == 1
    assert "STABLE" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_it_can_be_drawn_while_the_recording_grows() -> None:
    script = Script(Recording(cells_max=200))
    reader = threading.Thread(target=lambda: script.normal(60).fail(20).correct().normal(20))
    reader.start()
    while reader.is_alive():
        drawn(script)
    reader.join()
    assert "STABLE" in drawn(script)[0]


def test_a_mark_cannot_move_the_cursor(script: Script) -> None:
    script.normal(5).recording.mark(script.now - SECOND, "cut \x1b[2J[bold]x")
    text = "\n".join(drawn(script, 200))
    assert "\x1b" not in text
    assert "[bold]x" in text
