"""Any PySpark function as a node: cut, forked, healed, killed, restarted; on time, and in the end equal to batch Spark.

One process runs a few kinds at a time and is killed (-9) while they run; the next one ends them and compares, and runs
the next few. With HOLDFAST_SILENCES=FILE it writes how long no result came, from which docs/queries.md has its table
(`python -m tests.spark.query_kinds FILE`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.any_query import MAX_DELAY_S
from tests.spark.query_kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
#: Places in one process: two cores are busy, and nothing is late for want of them.
_TOGETHER = 4
#: With all, also kinds that put together what others show one by one.
_ALL = os.environ.get("HOLDFAST_KINDS") == "all"
_AT_LENGTH = pytest.mark.skipif(not _ALL, reason="made of what other kinds show; `make test-faults` tries it")
_NAMES = [pytest.param(name, marks=_AT_LENGTH if kind.at_length else (), id=name) for name, kind in KINDS.items()]
#: What the machine may add beside X and a usual pause between results: the cores have other work, too.
_MARGIN_S = 4.0


class _Process:
    """One that runs tasks when it is told to, and is killed with its JVM when it has said what came of them."""

    def __init__(self, root: Path, tasks: Sequence[str]) -> None:
        command = [sys.executable, "-m", "tests.spark.any_query", str(root), *tasks]
        with open(root / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It says nothing, then.
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def said(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                if "done" in said:
                    return
                yield said

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _groups(names: Sequence[str]) -> list[list[str]]:
    """The kinds of one process. Neighbours are alike: spread, none has more than one of those that take long. That one
    comes last, since it goes on until the process is killed."""
    heavy = [name for name in names if KINDS[name].heavy]
    count = max(len(heavy), -(-sum(KINDS[name].places for name in names) // _TOGETHER))
    groups: list[list[str]] = [[] for _ in range(count - len(heavy))] + [[name] for name in heavy]
    others = iter(name for name in names if not KINDS[name].heavy)
    for place in range(_TOGETHER):
        for group in groups:
            if sum(KINDS[name].places for name in group) <= place and (name := next(others, None)) is not None:
                group.append(name)
    return [sorted(group, key=lambda name: KINDS[name].heavy) for group in groups]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("any-query")
    # Only the kinds that are asked for: one that is run again takes a minute, all of them more than ten.
    mine = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    names = [item.callspec.params["name"] for item in mine]
    asked = {name for name in names if _ALL or not KINDS[name].at_length}
    groups = _groups([name for name in KINDS if name in asked])
    steps = [
        [*(f"end:{name}" for name in before), *(f"cut:{name}" for name in group)]
        for before, group in itertools.pairwise([[], *groups, []])
    ]
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in asked}
    waiting = iter(steps)
    processes = [_Process(root, next(waiting))]
    try:
        while processes:
            processes[0].go()
            # A JVM that starts beside a failure makes its results late. What has just gone ends kinds at first.
            processes += [_Process(root, tasks) for tasks in itertools.islice(waiting, 1)]
            for said in processes[0].said():
                found[said["kind"]][said["phase"]] = said
            processes.pop(0).kill()
    finally:
        for process in processes:
            process.kill()
    if path := os.environ.get("HOLDFAST_SILENCES"):
        cuts = {name: phases["cut"] for name, phases in found.items() if "cut" in phases}
        silences = {name: cut["silence_s"] for name, cut in cuts.items() if "silence_s" in cut}
        Path(path).write_text(json.dumps(silences, indent=1))
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", _NAMES)
def test_any_query_is_on_time_and_right_in_the_end(name: str, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """D1, D3, D5, D9."""
    cut, end = results[name].get("cut", {}), results[name].get("end", {})
    assert "error" not in cut, f"while an input was cut: {cut}"
    assert cut["tentative"] > 0
    assert cut["valued"] > 0, "what a tentative result is worth is noted under its own bucket"
    assert cut["silence_s"] <= MAX_DELAY_S + cut["usual_s"] + _MARGIN_S, cut
    assert "error" not in end, f"after kill -9: {end}"
    assert end["rows"] > 0
    assert end["equal"], end
