"""The report is one file that asks for nothing, runs nothing, and shows what was recorded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.console.recording import Recording
from holdfast.console.report import report_html, write_report
from holdfast.console.verdict import Check, Verdict, all_corrected
from tests.console.conftest import BUCKET, SECOND, Script, X

EVIL = """</title><script>alert(1)</script>"'&"""


def page(recording: Recording, **options: object) -> str:
    return report_html(recording, Verdict([all_corrected(recording)]), delay_us=X, **options)  # type: ignore[arg-type]


class Tags(HTMLParser):
    """Which tags and attributes a page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_nothing_is_fetched_and_nothing_runs(figure_5_4: Script) -> None:
    text = page(figure_5_4.recording)
    seen = Tags(text)
    assert not {"script", "link", "img", "iframe", "object", "form"} & {*seen.tags}
    assert not [name for name, _ in seen.attributes if name in ("src", "href") or name.startswith("on")]
    assert "//" not in text.replace("<!doctype html>", "")
    assert "default-src 'none'" in text


def test_what_came_from_outside_is_escaped(script: Script) -> None:
    recording = script.normal(5).recording
    recording.mark(script.now, f"cut {EVIL}")
    text = report_html(
        recording, Verdict([Check(EVIL, True, EVIL, EVIL)]), delay_us=X, title=EVIL, settings={EVIL: EVIL}
    )
    assert "script" not in Tags(text).tags
    assert "alert(1)" in text


@pytest.mark.parametrize("light", [Recording(), Script().normal(5).recording, Script().normal(5).fail(9).recording,
                                   Script().normal(5).fail(9).correct().recording])  # fmt: skip
def test_drawings_are_well_formed_and_without_nan(light: Recording) -> None:
    text = page(light)
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawing)
    assert "nan" not in text.lower()


def test_both_moments_of_figure_5_4_are_shown(figure_5_4: Script) -> None:
    text = page(figure_5_4.recording)
    during, after = text.index("just before the first UNDO"), text.index("in the end</figcaption>")
    assert 'class="hole"' in text[during:after]
    assert 'class="tentative"' in text[during:after]
    rest = text[after : text.index("What it received")]
    assert 'class="hole"' not in rest
    assert 'class="tentative"' not in rest


def test_size_is_bounded_by_the_drawing(tmp_path: Path) -> None:
    script = Script(Recording(bucket_us=BUCKET))
    for _ in range(15):
        script.normal(5).fail(8).correct()
    path = write_report(tmp_path / "r.html", script.recording, Verdict([]), delay_us=X, normal_us=SECOND // 2)
    assert path.stat().st_size < 1_500_000


def test_the_file_says_what_the_page_says(figure_5_4: Script, tmp_path: Path) -> None:
    """What came before `since_us`, a start for instance, counts in neither."""
    recording, verdict = figure_5_4.recording, Verdict([all_corrected(figure_5_4.recording)])
    since = figure_5_4.now - 2 * SECOND
    path = write_report(tmp_path / "report.html", recording, verdict, delay_us=X, since_us=since)
    assert path.read_text() == report_html(recording, verdict, delay_us=X, since_us=since)
    assert path.read_text() != report_html(recording, verdict, delay_us=X)
