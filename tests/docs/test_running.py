"""The application of docs/static-tables.md, started as docs/running.md says, and the options that it names."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.host.embedded import Running, start
from holdfast.spark.engine import node_session
from tests.docs.test_docs import HOME, blocks

RUNNING = HOME / "docs" / "running.md"


def table(after: str) -> list[str]:
    """The words in the first column of the table below a heading."""
    rows = RUNNING.read_text().partition(after)[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    return re.findall(r"`([a-z_]+)", " ".join(row.split("|")[1] for row in rows))


def test_the_options_and_methods_that_the_page_names_are_those_that_there_are() -> None:
    options = [
        name
        for function in (start, node_session)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert table("## Options of") == [*options, "spark_"]
    methods = {name for name in vars(Running) if not name.startswith("_")}
    assert set(table("## What comes back")) == methods


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_joins_with_a_table_is_started_and_read_as_the_pages_say(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path / "streams")
    for n in (1, 2, 3):
        with store.create(f"monitor{n}", "source string, bytes bigint", bucket="1s").producer(
            stime="stime"
        ) as producer:
            for second in range(6):
                stime = datetime.fromtimestamp(second, UTC)
                producer.send_many([{"stime": stime, "source": f"s{k}", "bytes": 1} for k in range(3)])
    (tmp_path / "owners-2026-11.csv").write_text("source,owner\ns0,ann\ns1,bob\ns9,eve\n")
    (app,), (running,) = blocks(HOME / "docs" / "static-tables.md", "python"), blocks(RUNNING, "python")
    (tmp_path / "program.py").write_text(app + running)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, text=True, capture_output=True, timeout=580, check=False,
        env={**os.environ, "PYTHONPATH": str(HOME / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "active_sources@here STABLE" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("INSERTION")]
    assert len(rows) == 6
    assert all("'count': 6" in row for row in rows)
    assert ["ann" in row for row in rows] == [True, False] * 3
