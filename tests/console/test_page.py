"""The console as somebody sees it: a failure in real Chromium, from STABLE through tentative and UNDO to STABLE again.

The node is run by the plain engine; the host, its service, the page and the browser are real.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.clock import monotonic_us, pause
from holdfast.host.embedded import Running
from holdfast.model.tuples import TupleType
from tests.console.browser import browser
from tests.console.netmon import OUTPUT, netmon
from tests.console.two_hosts import OPERATOR_TOKEN, deployed

pytestmark = pytest.mark.slow


class Shown:
    """What stands on the page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def number(self, name: str) -> int:
        cell = self.page.locator("#numbers tr", has=self.page.get_by_role("rowheader", name=name, exact=True))
        return int(cell.locator("td").inner_text().replace(",", "") or 0)

    @property
    def state(self) -> str:
        return self.page.locator("#replicas tbody td.state").first.inner_text()

    @property
    def log(self) -> str:
        return str(self.page.locator("#log").inner_text())

    def until(self, condition: Any, seconds: float = 60) -> None:
        deadline = monotonic_us() + round(seconds * 1e6)
        while not condition():
            assert monotonic_us() < deadline, f"it did not come true; the page says:\n{self.page.inner_text('main')}"
            pause(50_000)

    def faults(self) -> list[str]:
        """Serious ones, as axe-core finds them."""
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        return [f"{v['id']}: {v['help']} {[n['target'] for n in v['nodes']]}" for v in found
                if v["impact"] in ("serious", "critical")]  # fmt: skip


def enter(page: Any, running: Running, token: str | None = None) -> Shown:
    assert running.console is not None
    page.goto(running.console.url)
    page.get_by_label("Token").fill(token or running.console.token)
    page.get_by_role("button", name="Look").click()
    return Shown(page)


def stable_since(running: Running, from_ms: int | None) -> int:
    """Tuples that a subscriber gets who begins where the page does."""
    stream = running.streams.open(OUTPUT)
    begin: Any = {} if from_ms is None else {"bucket": from_ms * 1000 // stream.definition.bucket_us}
    with stream.subscribe(**begin) as subscriber:
        return sum(batch.num_rows for batch in subscriber.poll())


def counted_from(running: Running) -> int | None:
    assert running.console is not None
    url, token = running.console
    answer = httpx.get(f"{url.removesuffix('/console')}/v1/console", headers={"Authorization": f"Bearer {token}"})
    from_ms: int | None = answer.json()["live"][OUTPUT].get("from_ms")
    return from_ms


class Reader:
    """A subscriber who counts: what it holds, and what was said to it."""

    def __init__(self, running: Running) -> None:
        self._subscriber = running.streams.open(OUTPUT).subscribe(start="live", tentative=True)
        self.standing = self.rec_dones = 0

    def poll(self) -> Reader:
        for batch in self._subscriber.poll():
            for kind in map(TupleType, batch["tuple_type"].to_pylist()):
                self.standing = 0 if kind is TupleType.UNDO else self.standing + (kind is TupleType.TENTATIVE)
                self.rec_dones += kind is TupleType.REC_DONE
        return self


def test_a_failure_is_seen_as_it_happens_with_the_numbers_of_a_subscriber(tmp_path: Path) -> None:
    """D3: STABLE, tentative, UNDO, REC_DONE, STABLE; and axe-core finds no serious fault on the way."""
    with netmon(tmp_path, max_delay="3s") as running, browser(viewport={"width": 1280, "height": 900}) as page:
        reader, shown = Reader(running), enter(page, running)
        shown.until(lambda: shown.state == "STABLE" and shown.number("stable tuples") > 0)
        shown.until(lambda: shown.number("tentative that stand") == reader.poll().standing == 0)
        # On a machine that is too busy, there may have been a failure before we began to look.
        before = shown.number("REC_DONE") - reader.rec_dones
        assert shown.faults() == []

        page.get_by_role("button", name="Cut monitor3>here").click()
        page.get_by_role("button", name="Do it").click()
        # While it lasts, each tentative tuple comes to every reader once.
        shown.until(lambda: shown.number("tentative that stand") == reader.poll().standing > 0)
        shown.until(lambda: shown.state == "UP_FAILURE")
        assert page.locator("#diagram .edge.missing").count() == 1
        # Results of the monitor that is away: missing by what is usual, and known once they are corrected.
        shown.until(lambda: "missing tuples" in (page.locator("#arrivals").get_attribute("aria-label") or ""))
        assert page.locator(".legend .mark.hole").is_visible()
        assert "tentative" in (page.locator("#arrivals").get_attribute("aria-label") or "")
        assert shown.faults() == []

        # The log is made of looks: what comes and goes between two of them is not in it.
        shown.until(lambda: re.search(r"fork \d+ is running", shown.log))
        page.get_by_role("button", name="Heal monitor3>here").click()
        page.get_by_role("button", name="Do it").click()
        shown.until(lambda: reader.poll().rec_dones > 0 and shown.state == "STABLE")
        shown.until(lambda: shown.number("REC_DONE") - before == reader.poll().rec_dones)
        shown.until(lambda: shown.number("tentative that stand") == reader.poll().standing == 0)
        from_ms = counted_from(running)
        shown.until(lambda: shown.number("stable tuples") == stable_since(running, from_ms) > 0)
        assert shown.number("UNDO") > 0
        said = ("monitor3>here was cut", "tentative results begin", "UNDO", "REC_DONE", "monitor3>here was healed")
        shown.until(lambda: all(text in shown.log for text in said))

        # From whatever the failure consisted of, its picture is a click away.
        kinds = "REC_DONE", "monitor3>here was cut", "monitor3 is missing", "is UP_FAILURE", r"fork \d+ is running"
        for text in kinds:
            if "episode" in page.url:
                page.get_by_role("button", name="Back to live").click()
            page.locator("#log li", has_text=re.compile(text)).last.get_by_role("link").click()
            shown.until(lambda: "The failure that began at" in page.inner_text("#stream-says"))
            label = re.compile(r"active_sources,.* [1-9]\d* tentative tuples; \d+ tentative buckets with missing.*UNDO")
            shown.until(lambda label=label: label.search(page.locator("#arrivals").get_attribute("aria-label") or ""))
        page.goto(re.sub("#.*", f"#stream={OUTPUT}&at=1000", page.url))
        shown.until(lambda: "is not kept any more" in page.inner_text("#stream-says"))
        assert "token" not in page.url
        assert page.complaints == []


def test_who_may_only_look_finds_no_buttons_and_a_wrong_token_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1. By keyboard alone, on a phone, in the dark."""
    from holdfast.host import embedded
    from holdfast.host.service import Service

    viewer = "viewer-viewer-viewer"

    class Lookable(Service):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "view_token": viewer})

    phone = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark", "has_touch": True}
    monkeypatch.setattr(embedded, "Service", Lookable)
    with netmon(tmp_path) as running, browser(**phone) as page:
        shown = enter(page, running, "a-token-of-somebody-else")
        # `wait_for_function` evaluates a string in the page, which the page's policy refuses.
        shown.until(lambda: page.inner_text("#refused"))
        assert page.evaluate("document.activeElement.id") == "token"
        page.keyboard.type(viewer)
        page.keyboard.press("Enter")
        shown.until(lambda: page.inner_text("#who") == "viewer, may look")
        shown.until(lambda: page.locator("#inputs tbody tr").count() == 3)
        assert page.locator("#inputs button").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing hangs out sideways"
        assert shown.faults() == []
        answer = page.evaluate(
            """async (token) => (await fetch("/v1/faults", {method: "POST", body: '{"cut": ["monitor3>here"]}',
               headers: {Authorization: `Bearer ${token}`}})).status""", viewer)  # fmt: skip
        assert answer == 403
        page.reload()
        shown.until(lambda: page.inner_text("#who") == "viewer, may look")
        page.get_by_role("button", name="Forget token").click()
        assert page.evaluate("sessionStorage.length") == 0
        assert [c for c in page.complaints if not re.search("status of 40[13]", c)] == []


def test_a_thousand_nodes_are_found_and_only_those_in_sight_are_drawn(tmp_path: Path) -> None:
    """The table stays small in the document, whatever the application is."""
    from tests.console.many import many

    with many(tmp_path, 1000) as address, browser(viewport={"width": 1280, "height": 900}) as page:
        page.goto(address.url)
        page.get_by_label("Token").fill(address.token)
        page.keyboard.press("Enter")
        shown = Shown(page)
        shown.until(lambda: page.inner_text("#replicas-shown") == "1,000 of 1,000")
        assert page.locator("#replicas tbody tr").count() < 60
        page.locator("#find-replica").fill("counts77 stable")
        # Eleven have such a name, and one more reads the first of them.
        shown.until(lambda: page.inner_text("#replicas-shown") == "12 of 1,000")
        page.locator("#find-replica").fill("")
        page.locator("#replicas .virtual").focus()
        page.keyboard.press("End")
        shown.until(lambda: "counts999@here" in page.inner_text("#replicas"))
        assert page.locator("#no-diagram").is_visible()
        assert page.complaints == []


def test_a_deployment_shows_its_operators_stores_readers_and_ledger_and_drains_and_acknowledges_when_asked_twice(
    tmp_path: Path,
) -> None:
    """Two hosts on one page, their status from a script; keyboard and mouse; both colour schemes."""
    with deployed(tmp_path) as (a, b, url), browser(viewport={"width": 1280, "height": 900}) as page:
        page.goto(url)
        page.get_by_label("Token").fill(OPERATOR_TOKEN)
        page.keyboard.press("Enter")
        shown = Shown(page)
        shown.until(lambda: page.locator("#hosts tbody tr").count() == 2)
        shown.until(lambda: page.locator("#readers tbody tr").count() == 1)
        shown.until(lambda: "continuous()" in page.inner_text("#operators"))
        assert "counts@a\t7\t12\t4.0 s\t250 ms\t2.0 s" in page.inner_text("#versions")
        assert "counts@a\tmean\t40\t1\t3\t4,000\t9\t2\t500 ms\t1.5 s" in page.inner_text("#saves")
        assert "LogStore@b\tRUNNING\t5\t40\t3\t2\t0\t1" in page.inner_text("#stores")
        assert "words@a\t9\t1" in page.inner_text("#deadlines")
        assert "period 3: 0.5 units at 2 = 1" in page.inner_text("#ledger")

        page.get_by_role("button", name="Acknowledge counts for dashboard").press("Enter")
        assert "cannot be taken back" in page.inner_text("#sure-text")
        page.get_by_role("button", name="Leave it").click()
        assert a.acknowledged() == {"dashboard": 1_000_000}, "asked, and left alone"
        page.get_by_role("button", name="Acknowledge counts for dashboard").click()
        page.get_by_role("button", name="Do it").click()
        shown.until(lambda: a.acknowledged() == b.acknowledged() == {"dashboard": a.boundary_us})

        page.get_by_role("button", name="Drain b").click()
        assert "refused if one has no stable twin" in page.inner_text("#sure-text")
        page.get_by_role("button", name="Do it").click()
        shown.until(lambda: b.drained and "DRAINED" in page.inner_text("#hosts"))
        assert not a.drained
        page.get_by_role("button", name="Move to ben").click()
        page.get_by_role("button", name="Do it").click()
        shown.until(lambda: a.moved == [{"node": "counts", "to": "ben"}])
        page.get_by_role("button", name="Take home").click()
        page.get_by_role("button", name="Do it").click()
        shown.until(lambda: a.moved[1:] == [{"node": "counts", "to": "anna"}])
        shown.until(lambda: "counts moved from ben to anna" in shown.log)
        page.locator("#log li", has_text="moved from anna to ben").get_by_role("link").click()
        shown.until(lambda: "nothing was tentative then" in page.inner_text("#stream-says"))
        assert shown.faults() == []
        page.get_by_role("button", name="Dark").click()
        page.set_viewport_size({"width": 390, "height": 800})
        # Charts follow the width in a frame of their own.
        shown.until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 390)
        assert shown.faults() == []
        assert page.complaints == []
