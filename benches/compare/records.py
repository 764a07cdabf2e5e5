"""What runs left behind: a file per contender, so that one can be run again without the others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from benches.compare.judge import Line
from benches.compare.run import Run
from benches.compare.workload import Plan


class Record(NamedTuple):
    version: str
    date: str
    elsewhere: float
    lines: list[Line]
    absent: str = ""
    """Why it could not be run; then there are no lines."""


def record_of(run: Run) -> Record:
    return Record(run.version, time.strftime("%Y-%m-%d"), run.elsewhere, run.lines)


def absent(reason: str) -> Record:
    return Record("", time.strftime("%Y-%m-%d"), 0.0, [], reason)


def keep(folder: Path, name: str, plan: Plan, record: Record) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"plan": plan, **record._asdict()}))


def kept(folder: Path, name: str, plan: Plan) -> Record | None:
    """The record of a contender, if it was made with this plan."""
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    if Plan(*found.pop("plan")) != plan:
        return None
    lines = [Line(*line) for line in found.pop("lines")]
    return Record(**found, lines=lines)
