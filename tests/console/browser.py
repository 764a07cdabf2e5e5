"""A real Chromium, from the system's packages, driven by playwright; tests that need one say so where there is none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parent / "axe.min.js"


def chromium() -> str | None:
    """Where it is; None if there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@contextlib.contextmanager
def browser(**options: Any) -> Iterator[Any]:
    """A browser with one page; what its scripts complain of fails the test at the end."""
    program = chromium()
    if program is None:
        pytest.skip("there is no Chromium: .ci/needs installs it from the system's packages")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup brings it")
    with playwright.sync_playwright() as driver:
        # As root, in a container, Chromium has no sandbox of its own. It loads nothing but our page.
        running = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=120_000
        )
        try:
            context = running.new_context(**options)
            context.set_default_timeout(60_000)
            context.add_init_script(path=AXE)  # Not by a script element: the page's policy refuses that.
            page = context.new_page()
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.complaints = complaints
            yield page
        finally:
            running.close()
