"""Any PySpark function as a node: cut, forked, healed, killed, restarted; on time, and in the end equal to batch Spark.

One process runs a few kinds at a time and is killed (-9) while they run; the next one ends them and compares, and runs
the next few.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.any_query import MAX_DELAY_S
from tests.spark.query_kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
#: So many run together that two cores are busy and nothing is late for want of them.
_TOGETHER = 3
#: What the machine may add beside X and a usual pause between results: the cores have other work, too.
_MARGIN_S = 4.0


def _run(root: Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """What a process says of its tasks. It is killed when it has said it, with its JVM and workers."""
    command = [sys.executable, "-m", "tests.spark.any_query", str(root), *tasks]
    with open(root / "log", "ab") as log, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    ) as process:  # fmt: skip
        found = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    said = json.loads(line)
                    if "done" in said:
                        break
                    found.append(said)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    return found


def _groups(names: Sequence[str]) -> list[list[str]]:
    """What runs together. Neighbours are alike: spread, no process has more than one of those that take long."""
    heavy = [name for name in names if KINDS[name].heavy]
    count = -(-(len(names) + len(heavy)) // _TOGETHER)
    groups: list[list[str]] = [[] for _ in range(count - len(heavy))] + [[name] for name in heavy]
    others = iter(name for name in names if not KINDS[name].heavy)
    for place in range(_TOGETHER):
        for group in groups:
            taken = sum(2 if KINDS[name].heavy else 1 for name in group)
            if taken <= place and (name := next(others, None)) is not None:
                group.append(name)
    return groups


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("any-query")
    # Only the kinds that are asked for: one that is run again takes a minute, all of them ten.
    mine = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    asked = {item.callspec.params["name"] for item in mine}
    groups = _groups([name for name in KINDS if name in asked])
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in asked}
    before: list[str] = []
    for group in [*groups, []]:
        for said in _run(root, [*(f"end:{name}" for name in before), *(f"cut:{name}" for name in group)]):
            found[said["kind"]][said["phase"]] = said
        before = group
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", KINDS)
def test_any_query_is_on_time_and_right_in_the_end(name: str, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """D1, D3, D5, D9."""
    cut, end = results[name].get("cut", {}), results[name].get("end", {})
    assert "error" not in cut, f"while an input was cut: {cut}"
    assert cut["tentative"] > 0
    assert cut["silence_s"] <= MAX_DELAY_S + cut["usual_s"] + _MARGIN_S, cut
    assert "error" not in end, f"after kill -9: {end}"
    assert end["rows"] > 0
    assert end["equal"], end
