"""The sources of a host: what may pass is tried again, whatever it is, and the status says so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from holdfast.host.sources import Sources
from holdfast.inputs.source import SourceSpec
from holdfast.model.errors import UsageError
from holdfast.stream.store import Stream, StreamStore
from tests.inputs.conftest import until


class Failing:
    """A source, and its input, that raises what it is given, one after another; then it runs."""

    def __init__(self, *errors: Exception) -> None:
        self._errors, self._stopped = list(errors), threading.Event()

    def open(self, stream: Stream, home: Path) -> Failing:
        return self

    def text(self) -> str:
        return "a test"

    def run(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def status(self) -> dict[str, Any]:
        return {"rows": 1}


def running(tmp_path: Path, source: Failing) -> Sources:
    store = StreamStore(tmp_path)
    store.create("s", "n bigint")
    found = Sources({"s": SourceSpec("s", source)}, store, tmp_path)
    found.start()
    return found


def test_a_source_survives_errors_that_nobody_expected(tmp_path: Path) -> None:
    sources = running(tmp_path, Failing(OSError("a disk"), AttributeError("half a module"), RuntimeError()))
    try:
        until(lambda: sources.status()[0]["failures"] == 3 and sources.status()[0]["state"] == "RUNNING")
    finally:
        sources.stop()
    assert sources.status()[0]["state"] == "STOPPED"


def test_a_mistake_ends_a_source_and_its_status_says_why(tmp_path: Path) -> None:
    sources = running(tmp_path, Failing(UsageError("there is no such topic")))
    until(lambda: sources.failures() == {"s": "there is no such topic"})
    sources.stop()
