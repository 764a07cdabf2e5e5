"""The machine beside a contender: how much of it others took, and which processes are the contender's own.

A run on a machine that others keep busy says nothing about the contender, so each run carries the share that was not
its own, and one with too much of it is made again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Of all cores. Beside more than this, batches take visibly longer.
BUSY_MAX = 0.25
#: Who had less than half of the machine, and was slow when nothing failed, was not measured: no figures are shown.
CROWDED, CALM_MIN = 0.5, 0.9
_LOOK_S = 3.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of processor time so far."""

    total_s: float
    idle_s: float
    own_s: float


def usage(session: int | None = None) -> Usage:
    """Of the machine, and of the processes of a session."""
    cpu = [int(word) / _TICKS for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # Time of processes that have ended is their parents' (the last two).
    own = sum(sum(map(int, fields[11:15])) / _TICKS for _, fields in _members(session)) if session else 0.0
    return Usage(sum(cpu), cpu[3] + cpu[4], own)


def elsewhere(before: Usage, after: Usage) -> float:
    """The share of the machine between two looks that was neither idle nor the session's."""
    total = after.total_s - before.total_s
    busy = total - (after.idle_s - before.idle_s) - (after.own_s - before.own_s)
    return round(max(0.0, busy / total), 2) if total else 0.0


def wait_until_quiet(patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = usage()
        time.sleep(_LOOK_S)
        if elsewhere(before, usage()) < BUSY_MAX:
            return


def end_session(session: int) -> None:
    """Every process of a session that was started here; some make process groups of their own."""
    for pid, _ in _members(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _members(session: int | None) -> Iterator[tuple[int, list[str]]]:
    """The processes of a session, with the fields of /proc/PID/stat behind the name."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):  # It has just ended.
            continue
        if int(fields[3]) == session:
            yield int(folder.name), fields
