"""Pathway: three folders of JSON lines, concatenated, one windowed count with a temporal behavior."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pathway as pw

from benches.compare.contender import ready, result
from benches.compare.workload import DISORDER_MS, INPUTS, WINDOW_MS

_COMMIT_MS = 200


class Row(pw.Schema):
    ts: int
    key: str


def show(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
    """An addition replaces what the client held for this window and key; the removal beside it says nothing new."""
    if is_addition:
        result(row["start"], row["key"], row["count"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--cutoff-ms", type=int)
    given = parser.parse_args()
    tables = [
        pw.io.jsonlines.read(given.root / name, schema=Row, mode="streaming", autocommit_duration_ms=_COMMIT_MS)
        for name in INPUTS
    ]  # fmt: skip
    if given.cutoff_ms:
        behavior: Any = pw.temporal.common_behavior(delay=WINDOW_MS + DISORDER_MS, cutoff=given.cutoff_ms)
    else:
        behavior = pw.temporal.exactly_once_behavior(shift=DISORDER_MS)
    rows = pw.Table.concat_reindex(*tables)
    windows = rows.windowby(
        pw.this.ts, window=pw.temporal.tumbling(duration=WINDOW_MS), instance=pw.this.key, behavior=behavior
    )  # fmt: skip
    counts = windows.reduce(start=pw.this._pw_window_start, key=pw.this._pw_instance, count=pw.reducers.count())
    pw.io.subscribe(counts, show)
    ready(version("pathway"))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
