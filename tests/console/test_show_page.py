"""The demonstration opens its page for whoever sits at a terminal with a display, and for nobody else."""

from __future__ import annotations

import webbrowser

import pytest

from holdfast.demo.failure import show_page

URL = "http://127.0.0.1:1/console"


def no_browser(url: str) -> bool:
    raise webbrowser.Error("there is none")


@pytest.mark.parametrize(
    ("at_terminal", "display", "opened"),
    [(True, {"DISPLAY": ":0"}, True), (True, {"WAYLAND_DISPLAY": "wayland-0"}, True), (True, {}, False),
     (False, {"DISPLAY": ":0"}, False)],
)  # fmt: skip
def test_only_who_sits_there_gets_a_browser(at_terminal: bool, display: dict[str, str], opened: bool) -> None:
    asked: list[str] = []

    def open_page(url: str) -> bool:
        asked.append(url)
        return True

    assert show_page(URL, at_terminal=at_terminal, environment=display, open_page=open_page) is opened
    assert asked == [URL] * opened
    assert show_page(URL, at_terminal=at_terminal, environment=display, open_page=no_browser) is False


def test_a_run_without_a_terminal_opens_nothing() -> None:
    """As `make demo` in a script: standard input is no terminal, whatever the environment says."""
    assert show_page(URL, environment={"DISPLAY": ":0"}, open_page=no_browser) is False
