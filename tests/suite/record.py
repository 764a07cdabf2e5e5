"""A pytest plugin that writes down what became of every test: `-p tests.suite.record --record=FILE`.

One line of JSON per test, and one for every worker that died; with workers, it is their leader who writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.suite.promises import labels_of

Outcome = Literal["passed", "failed", "skipped"]


class Record(msgspec.Struct):
    """One test of one run, with set-up and tear-down; or a worker that died, which has no name of a test."""

    test: str
    outcome: Outcome = "passed"
    why: str = ""
    seconds: float = 0.0
    alone: bool = False
    labels: list[str] = []


def read_records(path: Path) -> list[Record]:
    """What was written down; nothing if the run did not come so far."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Record) for line in lines]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", help="write down what became of every test in this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "holdfast-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Before it may be skipped. Not of all that are collected, in every worker: it takes a look into their text."""
    if isinstance(item, pytest.Function):
        item.user_properties.append(("labels", sorted(labels_of(item))))


class Recorder:
    """Gathers the reports of a test (set-up, call, tear-down) into one record."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._open: dict[str, Record] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        record = self._open.setdefault(report.nodeid, Record(report.nodeid))
        record.labels = properties.get("labels", record.labels)
        record.alone = record.alone or "alone" in report.keywords
        record.seconds += report.duration
        if report.failed:
            record.outcome, record.why = "failed", f"in its {report.when}"
        elif report.skipped and record.outcome == "passed":
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            record.outcome, record.why = "skipped", why.removeprefix("Skipped: ")
        if report.when == "teardown":
            self._write(self._open.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Record(report.nodeid, "failed", "it cannot be collected"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Of xdist: a worker is gone; without an error, because there was nothing left to do."""
        if error is not None:
            self._write(Record("", "failed", f"worker {node.gateway.id} died: {error}"))

    def pytest_unconfigure(self) -> None:
        # What a dead worker was doing has no tear-down.
        for record in self._open.values():
            self._write(record)
        self._file.close()

    def _write(self, record: Record) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
