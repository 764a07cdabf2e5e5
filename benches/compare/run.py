"""One contender through the whole plan: started as a child process, fed, listened to, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from benches.compare.contenders import Contender, python_of
from benches.compare.judge import Line
from benches.compare.machine import Own, elsewhere, usage
from benches.compare.workload import INPUTS, Plan
from holdfast.spark.java import find_java

HOME = Path(__file__).parents[2]
#: A JVM on a busy machine takes half a minute; who takes longer than this does not start at all.
_READY_S_MAX = 180
_STOP_S_MAX = 15

Said = queue.SimpleQueue[tuple[float, dict[str, Any]]]


class Failed(Exception):
    """A contender did not run to the end."""


class Run(NamedTuple):
    version: str
    elsewhere: float
    """The share of the machine that others took while it was judged."""
    lines: list[Line]


def run(contender: Contender, plan: Plan, environments: Path) -> Run:
    root = Path(tempfile.mkdtemp(prefix=f"compare-{contender.name}-"))
    for name in INPUTS:
        (root / name).mkdir()
    with (root / "log").open("wb") as log:
        child = _started(contender, root, environments, log)
        own = Own(child.pid)
        try:
            return _listen(child, own, root, plan)
        except Failed as failure:
            log.flush()
            tail = (root / "log").read_text(errors="replace")[-3000:]
            raise Failed(f"{contender.name} {failure}; it said last: {tail}") from None
        finally:
            _stop(child, own)
            shutil.rmtree(root, ignore_errors=True)


def _started(contender: Contender, root: Path, environments: Path, log: Any) -> subprocess.Popen[str]:
    python = python_of(contender.peer, environments)
    # Flink's interpreter inside the JVM knows nothing of virtual environments; it finds packages by the path alone.
    packages = Path(python).parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    path = [str(HOME), str(HOME / "src" if contender.peer is None else packages)]
    java = {"JAVA_HOME": str(home)} if (home := find_java()) is not None else {}  # The same for Spark and Flink.
    command = [python, "-m", f"benches.compare.{contender.module}", str(root)]
    return subprocess.Popen(
        [*command, *contender.arguments], stdout=subprocess.PIPE, stderr=log, text=True, cwd=root,
        env={**os.environ, **java, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # So that what it starts (a JVM, workers) ends with it.
    )  # fmt: skip


def _listen(child: subprocess.Popen[str], own: Own, root: Path, plan: Plan) -> Run:
    """Every line with the time at which it came."""
    said: Said = queue.SimpleQueue()
    threading.Thread(target=_read, args=(child, said), daemon=True).start()
    greeting = _next(child, said, time.time() + _READY_S_MAX)
    if greeting is None:
        raise Failed(f"was not ready within {_READY_S_MAX} s")
    begin = time.time() + 1
    feeder = _feeder(root, plan, begin)
    lines: list[Line] = []
    try:
        _take(child, said, begin, begin + plan.judged_from_s, lines)
        before = usage(own)
        _take(child, said, begin, begin + plan.judged_until_s, lines)
        shared = elsewhere(before, usage(own))
        _take(child, said, begin, begin + plan.stopped_at_s, lines)
    finally:
        feeder.kill()
        feeder.wait()
    return Run(greeting[1]["version"], shared, lines)


def _take(child: subprocess.Popen[str], said: Said, begin: float, until: float, lines: list[Line]) -> None:
    while (got := _next(child, said, until)) is not None:
        at, values = got
        line = Line(at - begin)
        if "window" in values:
            line = Line(at - begin, values["window"], values["key"], values["count"], values["tentative"])
        lines.append(line)


def _feeder(root: Path, plan: Plan, begin: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benches.compare.workload", str(root), "--plan", json.dumps(plan)]
    return subprocess.Popen([*command, "--begin", str(begin)], cwd=HOME)


def _read(child: subprocess.Popen[str], said: Said) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        at = time.time()
        if line.startswith("{"):  # Libraries greet; that is nobody's result.
            said.put((at, json.loads(line)))


def _next(child: subprocess.Popen[str], said: Said, until: float) -> tuple[float, dict[str, Any]] | None:
    """The next line; None if none came until then."""
    while time.time() < until:
        try:
            return said.get(timeout=max(0.0, min(0.2, until - time.time())))
        except queue.Empty:
            if child.poll() is not None:
                raise Failed(f"ended by itself with exit code {child.returncode}") from None
    return None


def _stop(child: subprocess.Popen[str], own: Own) -> None:
    """The child and all that it started: it leads a session of its own."""
    own.processes()  # Who began sessions of their own is known by its parent while that lives.
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_STOP_S_MAX)
    own.end()
    child.wait()
