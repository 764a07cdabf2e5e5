"""The sources of a host: what may pass is tried again, whatever it is, and the status says so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.sources import Sources
from holdfast.inputs.source import DiedOfRows, SourceSpec
from holdfast.model.errors import UsageError
from holdfast.stream.store import Stream, StreamStore
from tests.inputs.conftest import until


def died(batch: int, cause: str = "DIVIDE_BY_ZERO") -> DiedOfRows:
    return DiedOfRows(f"the ingest query of stream s: {cause}", cause, batch)


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


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.host.sources._PAUSE_S", 0.001)
    monkeypatch.setattr("holdfast.host.sources._PAUSE_S_MAX", 0.001)


@pytest.mark.usefixtures("_soon")
def test_a_batch_that_dies_five_times_of_its_rows_ends_the_source_with_the_sentence(tmp_path: Path) -> None:
    """It was started again for ever."""
    passing = [OSError("a disk"), died(7, "CAST_INVALID_INPUT")]
    sources = running(tmp_path, Failing(*[died(7)] * 4, *passing, died(7)))
    until(lambda: sources.status()[0]["state"] == "FAILED")
    sources.stop()
    assert sources.failures()["s"] == (
        "the ingest query of stream s: DIVIDE_BY_ZERO; the query has died of this 5 times in the same batch (7) and "
        "would do so at every start: correct the source so that it takes such rows, and start again"
    )


@pytest.mark.usefixtures("_soon")
def test_batches_that_go_on_begin_a_new_count(tmp_path: Path) -> None:
    sources = running(tmp_path, Failing(*[died(7)] * 4, *[died(8)] * 4))
    try:
        until(lambda: sources.status()[0]["failures"] == 8 and sources.status()[0]["state"] == "RUNNING")
    finally:
        sources.stop()
